"""Unit tests of hierax._engine.float64_problem, .point, .units, .keeping and .certifying."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TOY
from qp_family import at, family

import hierax as hx
from hierax import certify
from hierax._compile import bound as programs
from hierax._compile.bound import Bound
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.lengths import lengths_of
from hierax._engine.programs import Programs
from hierax._judge.point import judge_in, judge_point, nearest_kept, relative_gap


def test_a_setting_computes_in_double_precision_from_anywhere():
    """It can be kept: outside of x64 it answers in NumPy's float64, and leaves the configuration as it is."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: (y - 1.0) ** 2 + x**2,
        lower=lambda x, y, xi: (y - x / 3.0) ** 2,
        constraints=lambda x, y: y - 10.0,
    )
    with jax.enable_x64(False):
        x, y = jnp.float32(0.1), jnp.float32(0.0)
        setting = Float64Problem.of(problem, x, y, 64, 0)
        found = setting.solve_lower(hx.Exact(), setting.x, setting.y)
        again = setting.ready("third", lambda problem, data, x: x / 3.0, setting.x)
        judged, best = judge_in(setting), judge_in(setting.at(setting.x, found.y))
        assert not jax.config.jax_enable_x64
    assert isinstance(found.y, np.ndarray) and found.y.dtype == np.float64
    exact = float(np.float32(0.1)) / 3
    np.testing.assert_allclose(found.y, exact, rtol=2e-8)  # a float32 would be off by up to 6e-8
    assert again(setting.x) == exact and again(setting.x).dtype == np.float64
    expected = [1.0 + (3 * exact) ** 2, exact**2, 0.0, 0.0]
    np.testing.assert_allclose(judged[:4], expected, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(relative_gap(judged.lower, best.lower), exact**2, rtol=1e-9)


def test_a_setting_reuses_the_traces_of_a_run_in_double_precision():
    calls = []

    def lower(x, y, xi):
        calls.append(x.dtype)
        return (y - x) ** 2

    problem = hx.Problem(upper=lambda x, y, zeta: y**2, lower=lower)
    x, y = jnp.asarray(1.0), jnp.asarray(0.5)
    bound = Bound(problem, None, None)
    bound.trace("lower", (x, y, None))
    before = len(calls)
    assert Float64Problem.of(problem, x, y, 64, 0, bound).bound is bound
    assert len(calls) == before
    narrow = Float64Problem.of(problem, x.astype(jnp.float32), y, 64, 0, bound)
    assert narrow.bound is not bound and narrow.x.dtype == np.float64


def test_the_judge_of_a_point_by_hand():
    problem = hx.Problem(
        upper=lambda x, y, zeta: x + jnp.sum(y),
        lower=lambda x, y, xi: jnp.sum((y - x) ** 2),
        constraints=lambda x, y: {"a": y[0] - 1.0},
        equalities=lambda x, y: y[1] - 0.5,
        upper_constraints=lambda x, y: x - 1.75,
        x_set=hx.Box(0.0, 1.5),
        y_set=hx.Box(-1.0, 3.0),
    )
    judged = judge_point(problem, 2.0, np.array([1.25, 3.5]))
    np.testing.assert_allclose(judged[:4], [6.75, 0.75**2 + 1.5**2, 3.0, 0.25])
    assert np.isnan(judged.gap)
    assert relative_gap(3.0, -1.0) == 2.0


@pytest.mark.parametrize("tiny", [0.0, 1e-17, 1e-10])
def test_entries_at_zero_have_the_length_of_their_set(tiny):
    """Within rounding of zero they were called free and taken to be of order one, whatever their box."""
    v, none = np.array([1.0, tiny]), np.zeros(2)
    bounds = np.zeros(2), np.array([2.0, 2e-6])
    lengths = lengths_of(v, bounds, none, np.arange(2), np.full(2, np.inf))
    np.testing.assert_allclose(lengths.values, [1.0, 1e-6])
    assert not lengths.assumed.any()
    free = lengths_of(v, (none - np.inf, none + np.inf), none, np.arange(2), np.full(2, np.inf))
    np.testing.assert_array_equal(free.values, 1.0)
    np.testing.assert_array_equal(free.assumed, [False, True])
    small = np.array([1e-3, tiny])
    shared = lengths_of(small, (none - np.inf, none + np.inf), none, np.zeros(2, int), np.full(2, np.inf))
    np.testing.assert_array_equal(shared.values, 1e-3)  # one of the group has a size
    assert not shared.assumed.any()


def test_the_nearest_y_that_keeps_the_rows():
    """A ball and an equality: the nearest point of both, to rounding; what keeps them is left alone."""
    problem = hx.Problem(
        None, None, lambda x, y: jnp.linalg.norm(y)[None] - x, equalities=lambda x, y: jnp.stack([y[0] - 0.5])
    )
    y, left = nearest_kept(problem, None, jnp.ones(()), jnp.asarray([0.7, 2.0, 0.0]))
    assert float(left) <= 1e-6
    np.testing.assert_allclose(y, [0.5, 0.75**0.5, 0.0], atol=1e-3)
    kept = jnp.asarray([0.5, 0.1, 0.2])
    same, left = nearest_kept(problem, None, jnp.ones(()), kept)
    np.testing.assert_array_equal(same, kept)
    assert float(left) == 0


def test_too_large(monkeypatch):
    """Without matrices a convex lower level leaves nothing open here, one that is not convex leaves the upper level."""
    dense = certify(TOY.problem, 1.5, 1.5)
    monkeypatch.setattr(Programs, "large", True)
    monkeypatch.setattr(Programs, "by_table", False)
    free = certify(TOY.problem, 1.5, 1.5)
    assert free.hypergradient_norm == pytest.approx(dense.hypergradient_norm, rel=1e-6)
    assert free.verdict() == dense.verdict() == "no"
    bent = family(hessian=(1.0, -1.0), push=(1.0, 0.5), rows=[[0.0, 1.0], [0.0, -1.0]], level=(1.0, 1.0))
    certificate = certify(bent, 1.0, at(1.0, 1.0))
    assert certificate.hypergradient_norm is None
    assert certificate.notes["hypergradient_norm"].startswith("not computed: the KKT matrix")
    assert f"stationarity above is not known: {certificate.notes['hypergradient_norm']}." in certificate.reasons()


def test_problems_of_equal_form_share_their_programs():
    certify(family(), 0.5, at(0.5, 0.5))
    known = len(programs._programs)
    certify(family(target=(0.4, 1.0, 1.0)), 0.6, at(0.5, 0.5))
    assert len(programs._programs) == known
