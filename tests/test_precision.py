"""float32 and float64: the run has the dtype of its variables, whatever JAX is set to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import METHOD, TOY

import hierax as hx
from hierax._compile.bound import Bound
from hierax._engine.float64_problem import Float64Problem
from hierax._judge.point import judge_in, judge_point, relative_gap


def dtypes(tree):
    return {leaf.dtype for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)}


def test_float32_variables_stay_float32_with_x64_on():
    sol = hx.solve(TOY.problem, np.float32(1.5), np.float32(1.5), METHOD, max_steps=50)
    assert dtypes((sol.x, sol.y, sol.multipliers, sol.state.run, sol.method)) == {jnp.dtype("float32")}
    double = hx.solve(TOY.problem, 1.5, 1.5, METHOD, max_steps=50)
    assert dtypes((double.x, double.y, double.multipliers, double.state.run, double.method)) == {jnp.dtype("float64")}
    np.testing.assert_allclose(sol.x, double.x, atol=1e-3)


def test_x64_off():
    with jax.enable_x64(False):
        sol = hx.solve(TOY.problem, 1.5, 1.5, METHOD, max_steps=50)
        assert dtypes((sol.x, sol.y, sol.state.run, sol.method)) == {jnp.dtype("float32")}
        many = hx.solve(TOY.problem, np.float64(1.5), np.float64(1.5), METHOD, max_steps=50)
        np.testing.assert_array_equal(many.x, sol.x)
        assert not jax.config.jax_enable_x64
    assert jax.config.jax_enable_x64
    np.testing.assert_allclose(sol.x, hx.solve(TOY.problem, 1.5, 1.5, METHOD, max_steps=50).x, atol=1e-3)


@pytest.mark.usefixtures("promotion")  # the mixing of precisions is what is refused
def test_data_that_would_promote_the_run_are_refused():
    table = jnp.ones(3)
    problem = hx.Problem(lambda x, y, zeta: x**2, lambda x, y, xi: jnp.sum((y - x) ** 2 * table))
    with pytest.raises(hx.InputError, match=r"lower\(x, y, xi\): returns float64 for variables of float32"):
        hx.solve(problem, np.float32(1.0), np.float32(1.0))


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
        judged = judge_in(setting, setting.x, setting.y, found.y)
        assert not jax.config.jax_enable_x64
    assert isinstance(found.y, np.ndarray) and found.y.dtype == np.float64
    exact = float(np.float32(0.1)) / 3
    np.testing.assert_allclose(found.y, exact, rtol=2e-8)  # a float32 would be off by up to 6e-8
    assert again(setting.x) == exact and again(setting.x).dtype == np.float64
    np.testing.assert_allclose(judged, [1.0 + (3 * exact) ** 2, exact**2, 0.0, 0.0, exact**2], rtol=1e-9, atol=1e-15)


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
