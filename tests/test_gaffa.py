"""BiC-GAFFA: the gap function and its gradients, the published toys, problems with known solutions, its box for z."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import EXACT
from formulas import gap_value

import hierax as hx
from hierax import BiCGAFFA
from hierax.extend import Rows
from hierax.problems import toy
from hierax.problems.toy import local_minimisers
from hierax_lab.problems import gaffa_toy, lvhba_toy, random_qp, synthetic

STARTS = np.array([0.1, 0.5, 0.8, 1.2, 1.6, 2.0, 2.6, 2.95])


# -- the gap function --------------------------------------------------------------------------------------------------


def test_gap_is_positive_and_zero_at_the_solution():
    """On the toy, with th in closed form: th minimises (th - 2x)^2 + z (th - x) + (th - y)^2/(2 g1) over [0, 3]."""
    g1, g2, x = jnp.array([0.7, 1.3, 0.8])

    def gap(y, z):
        th = jnp.clip((4 * x - z + y / g1) / (2 + 1 / g1), 0.0, 3.0)
        return gap_value(EXACT.problem, x, y, Rows(z, None), th, g1, g2, None)

    grid = jax.jit(jax.vmap(jax.vmap(gap, (None, 0)), (0, None)))(jnp.linspace(0, 3, 31), jnp.linspace(0, 6, 61))
    assert jnp.min(grid) > -1e-12
    np.testing.assert_allclose(jax.jit(gap)(x, 2 * x), 0.0, atol=1e-12)
    assert jnp.unravel_index(jnp.argmin(grid), grid.shape) == (8, 16)


# -- known solutions ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy_runs():
    return hx.solve_many(EXACT.problem, STARTS, STARTS, BiCGAFFA(), max_steps=10_000)


def test_every_start_of_the_toy_ends_at_a_minimiser(toy_runs):
    away = np.abs(np.asarray(toy_runs.x)[:, None] - local_minimisers())
    assert np.max(np.min(away, axis=1)) <= 1e-3  # x = 3 is 0.0092 from the last one: not accepted
    assert set(np.argmin(away, axis=1)) == {0, 1, 2, 3}
    np.testing.assert_allclose(toy_runs.y, toy_runs.x, atol=5e-3)
    np.testing.assert_allclose(toy_runs.multipliers.inequalities, 2 * toy_runs.x, atol=2e-2)
    assert [status.name for status in toy_runs.status] == ["max_steps"] * 8


def test_units_do_not_matter(toy_runs):
    """The same problem in other units, with everything estimated: the same iterates."""
    units = {"scale_upper": 100.0, "scale_lower": 0.01, "scale_constraint": 30.0, "stretch": 5.0}
    other = hx.solve_many(toy(0.0, **units).problem, 5 * STARTS, 5 * STARTS, BiCGAFFA(), max_steps=10_000)
    np.testing.assert_allclose(other.x / 5, toy_runs.x, rtol=1e-8)
    np.testing.assert_allclose(other.y / 5, toy_runs.y, rtol=1e-8)
    np.testing.assert_allclose(other.multipliers.inequalities * 3000, toy_runs.multipliers.inequalities, rtol=1e-8)


@pytest.mark.parametrize("cubic", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["linear", "cubic"])
def test_published_toys(cubic):
    """n = 100 and a lower level that is linear in half of y; also where the feasible set is not convex."""
    example = gaffa_toy(100, cubic)
    sol = hx.solve(example.problem, example.x0, example.y0, BiCGAFFA(), max_steps=6000)
    known = example.solutions[0]
    assert np.linalg.norm(sol.x - known.x) <= 1e-3 * np.linalg.norm(known.x)
    for name, value in known.y.items():
        assert np.linalg.norm(sol.y[name] - value) <= 1e-3 * np.linalg.norm(value)
    np.testing.assert_allclose(sol.multipliers.equalities, -1.0, atol=1e-3)  # free in sign
    assert sol.status.name == "max_steps"


@pytest.mark.slow  # known solutions: test_published_toys
def test_toy_of_lvhba():
    example = lvhba_toy(100)
    sol = hx.solve(example.problem, example.x0, example.y0, BiCGAFFA(), max_steps=3000)
    known = example.solutions[0]
    np.testing.assert_allclose(sol.x, known.x, atol=1e-2)
    np.testing.assert_allclose(sol.y["y1"], known.y["y1"], atol=1e-2)
    np.testing.assert_allclose(sol.y["y2"], known.y["y2"], atol=1e-2)


@pytest.mark.slow  # known solutions: test_published_toys
@pytest.mark.parametrize(
    ("example", "steps", "error"),
    [(random_qp(0, p=4, equalities=3), 20_000, 1e-2), (synthetic(0.0), 40_000, 1.5e-2)],
    ids=["affine", "ellipsoids"],
)
def test_planted_solutions(example, steps, error):
    sol = hx.solve(example.problem, example.x0, example.y0, BiCGAFFA(), max_steps=steps)
    known = example.solutions[0]
    np.testing.assert_allclose(sol.x, known.x, atol=error)
    np.testing.assert_allclose(sol.y, known.y, atol=error)
    np.testing.assert_allclose(sol.multipliers.inequalities, known.multipliers, atol=0.1)


# -- the box for z, bad input ------------------------------------------------------------------------------------------


def test_a_bound_below_the_multiplier_shows_in_the_stationarity(toy_runs):
    """From 0.8 and 1.2, with lam* = 1.97 at the minimiser: r = 1 gives a wrong answer that does not look stationary."""
    tight = hx.solve_many(EXACT.problem, STARTS, STARTS, BiCGAFFA(r=1.0), max_steps=10_000)
    near = slice(2, 4)
    np.testing.assert_array_equal(tight.multipliers.inequalities[near], 1.0)
    assert np.all(np.abs(tight.x[near] - local_minimisers()[1]) > 0.05)
    assert np.min(tight.history["stationarity"][-1][near]) > 1.0
    assert np.max(toy_runs.history["stationarity"][-1]) < 0.1
    assert np.all(toy_runs.multipliers.inequalities < 0.5 * toy_runs.method.r)
    np.testing.assert_array_equal(tight.method.r, 1.0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"c": 0.0}, r"BiCGAFFA\(c=0.0\)"),
        ({"q": 0.5}, r"BiCGAFFA\(q=0.5\): must lie in \[0, 1/2\)"),
        ({"g1": -1.0}, r"BiCGAFFA\(g1=-1.0\)"),
        ({"start": "cold"}, r"BiCGAFFA\(start='cold'\)"),
        ({"steps": 0.1}, r"BiCGAFFA\(steps\): needs hx.Steps"),
        ({"batch_xi": 0}, r"BiCGAFFA\(batch_xi=0\)"),
    ],
)
def test_bad_settings(settings, text):
    with pytest.raises(hx.InputError, match=text):
        BiCGAFFA(**settings)
