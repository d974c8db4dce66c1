"""Descents of Auto: along kinks, from several starts, from points that are feasible, and how they are ended."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import hierax as hx
from hierax_lab.problems import bolib


def kinked(n):
    """phi(x) = 3 sum |x_i| + (x_i - 1)^2 + coupling: y* = x where x > 0, else 0; the minimiser lies on all kinks."""
    weights = 1.0 + np.arange(n) / n
    return hx.Problem(
        upper=lambda x, y, zeta: (weights * (6 * y - 3 * x)).sum() + ((x - 1.0) ** 2).sum() + 0.1 * x.sum() ** 2,
        lower=lambda x, y, xi: ((y - x) ** 2).sum(),
        x_set=hx.Box(-2.0, 2.0),
        y_set=hx.NonNegative(),
    )


@pytest.mark.parametrize("n", [3, 6])
def test_a_minimum_on_many_kinks_is_found_and_proved(n):
    solution = hx.solve(kinked(n), np.full(n, 0.7), np.full(n, 0.5), progress=False)
    assert solution.status.name == "converged", solution.status.message
    assert np.allclose(solution.x, 0.0, atol=1e-5)


def test_a_curved_ridge_of_kinks_is_followed():
    # On the circle |x| = 1 the row changes sides: phi = x0 + 4 ||x|^2 - 1| is least at (-1, 0), where it has a kink.
    problem = hx.Problem(
        upper=lambda x, y, zeta: x[0] + 4 * (2 * y - ((x**2).sum() - 1)),
        lower=lambda x, y, xi: (y - ((x**2).sum() - 1)) ** 2,
        x_set=hx.Box(-2.0, 2.0),
        y_set=hx.NonNegative(),
    )
    solution = hx.solve(problem, np.array([0.3, 0.9]), np.array(0.5), progress=False)
    assert solution.status.name == "converged", solution.status.message
    assert np.allclose(solution.x, [-1.0, 0.0], atol=1e-3)
    assert float(solution.value) == pytest.approx(-1.0, abs=1e-5)


@pytest.mark.slow
def test_a_lower_level_that_is_convex_only_at_the_start_is_not_trusted():
    case = bolib.load("MitsosBarton2006Ex317")  # its curvature in y is x at y = 0, and x0 = 1
    solution = hx.solve(case.problem(), *case.x0y0(), progress=False)
    assert solution.status.name == "best_of_branches"
    assert solution.value == pytest.approx(case.values[0], abs=1e-4)


def test_a_callback_that_ends_the_search_is_not_called_again():
    calls = []

    def stop(info):
        calls.append(info.step)
        return True

    base = hx.Problem(
        upper=lambda x, y, zeta: (y - 1) ** 2 + 0.1 * x**2,
        lower=lambda x, y, xi: (y - 2 * x) ** 2,
        constraints=lambda x, y: y - x,
    )
    solution = hx.solve(base, 0.5, 0.5, callback=stop, progress=False)
    assert solution.status.name in ("stopped", "converged")
    assert calls == [1]


def test_an_unfinished_search_does_not_call_a_problem_infeasible():
    # At x0 no y is feasible; elsewhere there is one, but the search is ended before it looks.
    problem = hx.Problem(
        upper=lambda x, y, zeta: (x - 2) ** 2 + y**2,
        lower=lambda x, y, xi: y**2,
        constraints=lambda x, y: [1 - x + y, -y],
        x_set=hx.Box(0.0, 3.0),
    )
    ended = hx.solve(problem, 0.0, 0.0, callback=lambda info: True, progress=False)
    assert ended.status.name == "stopped"
    assert hx.solve(problem, 0.0, 0.0, progress=False).status.name == "converged"


def test_a_large_problem_whose_starts_have_no_feasible_y_is_not_called_infeasible():
    n = 60
    problem = hx.Problem(
        upper=lambda x, y, zeta: ((x - 1) ** 2).sum() + (y**2).sum(),
        lower=lambda x, y, xi: ((y - 1) ** 2).sum(),
        constraints=lambda x, y: y - 20 * (x - 0.9),
        x_set=hx.Box(0.0, 1.0),
        y_set=hx.NonNegative(),
    )
    solution = hx.solve(problem, np.zeros(n), np.zeros(n), hx.Auto(seconds=30.0), progress=False)
    assert solution.status.name == "converged", solution.status.message


def test_lengths_that_were_only_assumed_do_not_certify():
    # At the start nothing tells the length of x[0], whose answer is 1e-6: taken for known, one would pass all slopes.
    problem = hx.Problem(
        upper=lambda x, y, zeta: (y[0] / 1e-6 - 1) ** 2 + (y[1] - 1) ** 2 + x[1] ** 2,
        lower=lambda x, y, xi: ((y - x) ** 2).sum(),
    )
    solution = hx.solve(problem, np.zeros(2), np.zeros(2), progress=False)
    solved = np.allclose(solution.x, [1e-6, 0.5], rtol=1e-2)
    assert solution.status.ok == solved == hx.certify(problem, solution.x, solution.y).ok(1e-4)


def test_a_small_feasible_part_of_X_is_found_before_a_problem_is_called_infeasible():
    problem = hx.Problem(
        upper=lambda x, y, zeta: x**2 + y**2,
        lower=lambda x, y, xi: (y - x) ** 2,
        constraints=lambda x, y: [y, 0.05 - 0.08 * jnp.sin(9 * x) * jnp.exp(-4 * (x - 1.2) ** 2) - y],
        x_set=hx.Box(-2.0, 2.0),
    )
    solution = hx.solve(problem, -1.0, 0.0, progress=False)  # feasible for x in [0.860, 0.941]
    assert solution.status.name == "converged"
    assert float(solution.x) == pytest.approx(0.8597, abs=1e-3)


def test_few_variables_and_many_rows_of_data():
    """Where evaluations take the time, not calls: no batches of starts, and descents before anything else.

    With 100,000 rows and ten variables each the search had not moved x when its 30 seconds were up.
    """
    rng, truth = np.random.default_rng(0), np.array([1.0, -0.5, 0.3])

    def rows():
        features = rng.normal(size=(40_000, 3))
        return features, features @ truth + rng.normal(size=40_000)

    (train, targets), (other, others) = rows(), rows()

    def error(y, batch):
        return jnp.mean((batch[0] @ y - batch[1]) ** 2)

    problem = hx.Problem(
        upper=lambda x, y, zeta: error(y, zeta),
        lower=lambda x, y, xi: error(y, xi) + jnp.sum(jnp.exp(x) * y**2),
        constraints=lambda x, y: y - 0.8,
        x_set=hx.Box(-8.0, 3.0),
        zeta=hx.Finite((other, others)),
        xi=hx.Finite((train, targets)),
    )
    solution = hx.solve(problem, np.zeros(3), np.zeros(3))
    assert solution.status.name == "converged", solution.status.message

    def phi(x):
        hessian, slope = train.T @ train / len(train) + np.diag(np.exp(x)), train.T @ targets / len(train)
        y = np.linalg.solve(hessian, slope)
        if y[0] > 0.8:  # the only row that is met
            y = np.array([0.8, *np.linalg.solve(hessian[1:, 1:], slope[1:] - 0.8 * hessian[1:, 0])])
        return np.mean((other @ y - others) ** 2)

    grid = [np.array(x) for x in itertools.product((-8.0, -6.0, -4.0, -2.0, 0.0), repeat=3)]
    best = scipy.optimize.minimize(phi, min(grid, key=phi), method="L-BFGS-B", bounds=[(-8.0, 3.0)] * 3)
    assert solution.value <= best.fun + 1e-6
    assert solution.value == pytest.approx(phi(solution.x), rel=1e-9)
