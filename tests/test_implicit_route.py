"""Lower levels without matrices: the route of `Auto` and the certificate; the parts are in test_linear_solvers.py."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize as optimize
from banded import planted

import hierax as hx


@pytest.fixture(scope="module")
def banded():
    return planted(5000)


# -- the route ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # the search itself: test_planted_solution_is_found in test_linear_solvers.py
def test_auto_solves_the_planted_problem_with_nothing_set(banded):
    sol = hx.solve(banded.problem, np.zeros(5), np.zeros(5000))
    assert sol.log[0].startswith("Route implicit")
    assert sol.status.name == "converged", sol.status.message
    np.testing.assert_allclose(sol.x, banded.x, atol=1e-5)
    assert abs(sol.value) <= 1e-6
    certificate = sol.certificate
    assert certificate.hypergradient_norm <= 1e-3
    assert certificate.around.complete
    off = hx.certify(banded.problem, banded.x + 0.02, sol.y)
    assert off.verdict() == "no"


def waterfilling(n, nx=4):
    """min 1/2 |y - q - B x|^2 over sum y <= c, y >= 0: y = [q + B x - t]_+ with the level t of a bisection."""
    rng = np.random.default_rng(1)
    base, along = rng.uniform(0.0, 1.0, n), rng.normal(size=(n, nx))
    limit, goal = 0.2 * n, rng.uniform(0.0, 0.5, n)
    base_, along_, goal_ = map(jnp.asarray, (base, along, goal))
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((y - goal_) ** 2) / n + 0.1 * jnp.sum((x - 0.3) ** 2),
        lower=lambda x, y, xi: 0.5 * jnp.sum((y - base_ - along_ @ x) ** 2),
        constraints=lambda x, y: jnp.sum(y) - limit,
        x_set=hx.Box(-1.0, 1.0),
        y_set=hx.NonNegative(),
    )

    def answer(x):
        heights, low, high = base + along @ x, -10.0, 10.0
        for _ in range(200):
            level = 0.5 * (low + high)
            low, high = (level, high) if np.maximum(heights - level, 0.0).sum() > limit else (low, level)
        return np.maximum(heights - max(low, 0.0), 0.0)

    def value(x):
        return np.sum((answer(x) - goal) ** 2) / n + 0.1 * np.sum((x - 0.3) ** 2)

    return problem, answer, value


@pytest.mark.slow
def test_auto_on_water_filling_against_scipy_on_the_closed_form():
    problem, answer, value = waterfilling(20_000)
    best = optimize.minimize(value, np.zeros(4), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14})
    sol = hx.solve(problem, np.zeros(4), np.zeros(20_000))
    assert sol.log[0].startswith("Route implicit")
    assert float(sol.value) <= best.fun + 1e-7 * (1 + abs(best.fun))
    np.testing.assert_allclose(sol.y, answer(np.asarray(sol.x)), atol=1e-6)
    assert sol.status.name in ("converged", "unproved"), sol.status.message


@pytest.mark.slow
def test_the_same_answer_as_with_matrices():
    """A size that both routes can do."""
    example = planted(60, nx=3, rows=2, seed=2)
    free = hx.solve(example.problem, np.zeros(3), np.zeros(60), hx.Auto(route="implicit"))
    np.testing.assert_allclose(free.x, example.x, atol=1e-5)
    assert free.status.ok
    dense = hx.solve(example.problem, np.zeros(3), np.zeros(60), hx.Auto(starts=1))
    np.testing.assert_allclose(free.x, dense.x, atol=1e-5)


def upper_rows():
    """x >= 0.7 by an upper constraint on y = x / 2 (>= 0.35): minimises |x|^2, so F = 0.49 a entry."""
    return hx.Problem(
        upper=lambda x, y, zeta: x @ x,
        lower=lambda x, y, xi: jnp.sum((y - 0.5 * x[0]) ** 2),
        upper_constraints=lambda x, y: 0.35 - jnp.mean(y),
        x_set=hx.Box(-2.0, 2.0),
    )


def test_upper_constraints_through_y():
    sol = hx.solve(upper_rows(), np.ones(2), np.zeros(50), hx.Auto(route="implicit"))
    np.testing.assert_allclose(sol.x, [0.7, 0.0], atol=1e-5)
    np.testing.assert_allclose(sol.multipliers.upper, 2.8, atol=1e-3)  # 2 x / (d mean(y) / dx)


@pytest.mark.slow
def test_a_lower_level_without_a_minimum_is_named():
    """A lower level without a minimum at the start."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: x**2 + y @ y,
        lower=lambda x, y, xi: jnp.sum(y) * (1.0 + x),
        x_set=hx.Box(-0.5, 0.5),
    )
    sol = hx.solve(problem, 0.0, np.zeros(10), hx.Auto(route="implicit", seconds=10.0), throw=False)
    assert sol.status.name == "unbounded_lower"


def test_max_steps_and_callback_end_the_route(banded):
    sol = hx.solve(banded.problem, np.zeros(5), np.zeros(5000), max_steps=2)
    assert sol.status.name == "max_steps"
    assert len(sol.history) == 2
    seen = []
    sol = hx.solve(banded.problem, np.zeros(5), np.zeros(5000), callback=lambda info: seen.append(info) or True)
    assert sol.status.name == "stopped"
    assert len(seen) == 1
    assert seen[0].y.shape == (5000,)


# -- kinks -------------------------------------------------------------------------------------------------------------


def kinked(n, slope):
    """y_i = [x - c_i]_+ with kinks c_i spread around zero, at which phi = slope * mean(y) + x^2 / 2 bends up."""
    places = jnp.linspace(-1e-3, 1e-3, n)
    return hx.Problem(
        upper=lambda x, y, zeta: slope * jnp.mean(y) + 0.5 * x**2 - 0.5 * slope * x,
        lower=lambda x, y, xi: 0.5 * jnp.sum((y - x + places) ** 2),
        x_set=hx.Box(-1.0, 1.0),
        y_set=hx.NonNegative(),
    )


@pytest.mark.parametrize("slope", [pytest.param(1e-6, marks=pytest.mark.slow), 1.0])
def test_many_kinks_are_bounded_or_left_open(slope):
    """2,400 rows change sides within 1e-3 of x = 0, the minimum: it is called one where they matter little."""
    n = 2401
    problem = kinked(n, slope)
    y = np.maximum(-np.linspace(-1e-3, 1e-3, n), 0.0)
    certificate = hx.certify(problem, 0.0, y)
    assert certificate.hypergradient_norm is not None
    assert certificate.radius <= 1e-5
    assert certificate.verdict(1e-3) == ("yes" if slope < 1e-3 else "unknown"), certificate.reasons(1e-3)
    assert hx.certify(problem, 0.3, np.maximum(0.3 - np.linspace(-1e-3, 1e-3, n), 0.0)).verdict(1e-3) == "no"


def test_a_maximum_is_refuted():
    """Slope zero, and F bends down: the descent test sees it."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: -jnp.mean(y**2),
        lower=lambda x, y, xi: jnp.sum((y - x) ** 2),
        x_set=hx.Box(-1.0, 1.0),
    )
    certificate = hx.certify(problem, 0.0, np.zeros(2100))
    assert certificate.verdict() == "no"
    assert "not a minimum above" in certificate.reasons()[0]
