"""Exact against SciPy and Clarabel, its statuses, warm starts, and what a value function needs."""

import dataclasses
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from cases import close
from lower_levels import INSTANCES, STACKED, START, by_clarabel, by_exact, by_scipy, problem_of, same_as

import hierax as hx
from hierax import Exact, InputError
from hierax.extend import INFEASIBLE, SOLVED, UNBOUNDED, Rows
from hierax.problems import toy
from hierax_lab.problems import ellipsoid_qp

TOY = toy(0.0).problem


def level(lower, constraints=None, equalities=None, y_set=None):
    return hx.Problem(
        upper=lambda x, y, zeta: 0.0, lower=lower, constraints=constraints, equalities=equalities, y_set=y_set
    )


@pytest.fixture(scope="module")
def cold():
    return by_exact()


@pytest.fixture(scope="module")
def warm_solve():
    return jax.jit(jax.vmap(lambda one, y, mu: Exact().solve(problem_of(one), None, y, None, mu)))


@pytest.mark.parametrize("solver", [by_scipy, by_clarabel])
def test_agrees_with_others_on_random_problems(cold, solver):
    assert np.all(cold.status == SOLVED)
    assert np.max(cold.residual) <= 1e-8
    assert np.max(cold.iterations) <= 40
    for place, one in enumerate(INSTANCES):
        same_as(solver(one), jax.tree.map(operator.itemgetter(place), cold), one)


def test_all_kinds_of_rows_take_part(cold):
    """Each block of rows and faces is active in some of the random problems and inactive in others."""
    for leaf in jax.tree.leaves((cold.multipliers.inequalities, cold.faces.inequalities)):
        share = np.mean(leaf > 1e-6)
        assert 0.05 < share < 0.95


def test_a_good_start_saves_newton_steps(cold, warm_solve):
    again = warm_solve(STACKED, cold.y, cold.multipliers)
    assert np.mean(again.iterations) < 0.1
    moved = STACKED._replace(q=1.01 * STACKED.q + 0.01, b=STACKED.b + 0.003)
    warm = warm_solve(moved, cold.y, cold.multipliers)
    assert np.all(warm.status == SOLVED)
    assert np.mean(warm.iterations) < 0.6 * np.mean(cold.iterations)


def test_a_bad_start_does_no_harm(cold, warm_solve):
    """Multipliers from elsewhere, and a y that is far off."""
    far = jax.tree.map(lambda leaf: leaf + 30.0, cold.y)
    found = warm_solve(STACKED, far, jax.tree.map(lambda leaf: leaf + 1e6, cold.multipliers))
    assert np.all(found.status == SOLVED)
    np.testing.assert_allclose(found.value, cold.value, rtol=1e-7, atol=1e-7)


def test_single_precision(cold):
    """It keeps its dtype, says what it reached, and is right to four digits."""
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (STACKED, START))
    found = jax.jit(jax.vmap(lambda one: Exact().solve(problem_of(one), None, single[1])))(single[0])
    assert {leaf.dtype for leaf in jax.tree.leaves(found[:5])} == {jnp.dtype("float32")}
    assert np.mean(found.status == SOLVED) > 0.97
    assert not np.any((found.status == INFEASIBLE) | (found.status == UNBOUNDED))
    np.testing.assert_allclose(found.value, cold.value, rtol=2e-3, atol=2e-3)


def test_planted_solution_and_units():
    """The known solution is found, whatever the units of G and of the constraints."""
    example = ellipsoid_qp(6, 4, sigma=0.0)
    problem, known = example.problem, example.solutions[0]

    def solve(units):
        scaled = dataclasses.replace(
            problem,
            lower=lambda x, y, xi: units[0] * problem.lower(x, y, None),
            constraints=lambda x, y: units[1] * problem.constraints(x, y),
        )
        return Exact().solve(scaled, jnp.asarray(example.x0), jnp.asarray(example.y0))

    units = jnp.array([[1.0, 1.0], [1e-7, 1.0], [1e6, 1e-6], [1.0, 1e5]])
    found = jax.jit(jax.vmap(solve))(units)
    assert np.all(found.status == SOLVED)
    assert np.max(found.residual) <= 1e-8
    np.testing.assert_allclose(found.y, np.tile(known.y, (4, 1)), atol=1e-7)
    multipliers = found.multipliers.inequalities * (units[:, 1] / units[:, 0])[:, None]
    np.testing.assert_allclose(multipliers, np.tile(known.multipliers, (4, 1)), atol=1e-5)


def test_infeasible_and_unbounded_have_their_own_status():
    """One compiled program: min 1/2 p y_0^2 + q'y, A y <= b, |y - m|^2 <= r, y_0 <= 10."""

    def solve(data):
        problem = level(
            lambda x, y, xi: 0.5 * data["p"] * y[0] ** 2 + data["q"] @ y,
            lambda x, y: {"affine": data["A"] @ y - data["b"], "ball": jnp.sum((y - data["m"]) ** 2) - data["r"]},
            y_set=hx.Box(-jnp.inf, jnp.array([10.0, jnp.inf])),
        )
        return Exact().solve(problem, None, jnp.array([0.3, -0.2]))

    cases = {
        "two half-spaces": ({"A": [[1.0, -1.0], [-1.0, 1.0]], "b": [-1.0, -1.0]}, INFEASIBLE),
        "a hair's breadth": ({"A": [[1.0, 0.0], [-1.0, 0.0]], "b": [-1e-3, 0.0]}, INFEASIBLE),
        "beyond the box": ({"A": [[-1.0, 0.0], [0.0, 0.0]], "b": [-11.0, 0.0]}, INFEASIBLE),
        "outside the ball": ({"A": [[0.0, -1.0], [0.0, 0.0]], "b": [-3.0, 0.0], "r": 1.0}, INFEASIBLE),
        "no such ball": ({"r": -1.0}, INFEASIBLE),
        "along a ray": ({"q": [0.0, -1.0]}, UNBOUNDED),
        "along an edge": ({"p": 0.0, "q": [0.1, 1.0], "A": [[1.0, -1.0], [0.0, 0.0]], "b": [0.0, 0.0]}, UNBOUNDED),
        "redundant rows": ({"p": 0.0, "q": [-1.0, -1.0], "A": [[1.0, 1.0], [2.0, 2.0]], "b": [1.0, 2.0]}, SOLVED),
        "a solution": ({"q": [0.0, -1.0], "A": [[0.0, 1.0], [0.0, 0.0]], "b": [1.0, 0.0]}, SOLVED),
    }
    default = {"p": 1.0, "q": [0.0, 0.0], "A": [[0.0, 0.0]] * 2, "b": [0.0, 0.0], "m": [0.0, 0.0], "r": 1e30}
    data = [
        jax.tree.map(np.asarray, default | given, is_leaf=lambda v: isinstance(v, list)) for given, _ in cases.values()
    ]
    found = jax.jit(jax.vmap(solve))(jax.tree.map(lambda *leaves: jnp.stack(leaves), *data))
    assert dict(zip(cases, found.status.tolist(), strict=True)) == {name: code for name, (_, code) in cases.items()}


DRAWN = np.random.default_rng(0).standard_normal((4, 5))
MATRIX, CENTRE = DRAWN[:3], 1.0 + DRAWN[3]


def nonlinear(x, y, np=jnp):
    """G, rows and equality: exponentials, fourth powers, all of it coupled with x; for JAX and for NumPy."""
    objective = np.log(np.sum(np.exp(2 * y))) + 0.5 * np.sum((y - CENTRE - x[0]) ** 2)
    exponentials = np.sum(np.exp(MATRIX * y[None]), 1) - np.array([4.5, 6.0, 7.0]) * (1 + x[1])
    return objective, np.append(exponentials, np.sum(y**4) - 1.5 + x[0]), y[0] + y[1] - 0.2 + x[1]


def test_nonlinear_constraints():
    """Against SciPy, from starts where slopes differ by 1e8; and the envelope theorem, dv/dx = d_x L(x, y*, mu*)."""
    problem = level(
        lambda x, y, xi: nonlinear(x, y)[0], lambda x, y: nonlinear(x, y)[1], lambda x, y: nonlinear(x, y)[2]
    )
    x, step = jnp.array([0.1, 0.05]), 1e-5
    xs = jnp.stack([x, x, x, *(x[None] + step * jnp.eye(2)), *(x[None] - step * jnp.eye(2))])
    starts = jnp.zeros((7, 5)).at[1].set(10.0).at[2].set(jnp.array([-8.0, 3.0, 0.0, 5.0, 1.0]))
    found = jax.jit(jax.vmap(lambda x, y: Exact(tol=1e-11).solve(problem, x, y)))(xs, starts)
    assert np.all(found.status == SOLVED)
    np.testing.assert_allclose(found.value[:3], np.full(3, found.value[0]), rtol=1e-10)
    y, mu = found.y[0], found.multipliers
    assert np.sum(mu.inequalities[0] > 0.01) >= 2
    assert np.sum(mu.inequalities[0] == 0) >= 1

    def lagrangian(x, y):
        objective, rows, equality = nonlinear(x, y)
        return objective + mu.inequalities[0] @ rows + mu.equalities[0] * equality

    along_x, along_y = jax.jit(jax.grad(lagrangian, (0, 1)))(x, y)
    np.testing.assert_allclose(along_y, np.zeros(5), atol=1e-9)
    np.testing.assert_allclose((found.value[3:5] - found.value[5:7]) / (2 * step), along_x, rtol=1e-6)

    plain = lambda place: lambda y: nonlinear(np.asarray(x), y, np)[place]
    other = scipy.optimize.minimize(
        plain(0),
        np.zeros(5),
        method="SLSQP",
        constraints=[{"type": "ineq", "fun": lambda y: -plain(1)(y)}, {"type": "eq", "fun": plain(2)}],
        options={"ftol": 1e-13, "maxiter": 300},
    )
    assert other.status in (0, 8), other.message  # 8: the line search ran into rounding errors
    np.testing.assert_allclose(found.value[0], other.fun, rtol=1e-7)
    np.testing.assert_allclose(y, other.x, atol=1e-5)


def test_merely_convex():
    """LV-HBA's lower level: quadratic in y1, linear in y2, one equality; y2 is not unique, the value is."""
    n = 10
    problem = level(
        lambda x, y, xi: 0.5 * y["1"] @ y["1"] - x @ y["1"] + jnp.sum(y["2"]),
        equalities=lambda x, y: jnp.sum(x) + jnp.sum(y["1"]) + jnp.sum(y["2"]),
    )
    x = jnp.linspace(-1.0, 0.4, n)
    found = jax.jit(lambda x: Exact().solve(problem, x, {"1": jnp.zeros(n), "2": jnp.linspace(0.0, 3.0, n)}))(x)
    assert found.status == SOLVED
    y1 = x + 1.0  # the multiplier is -1
    np.testing.assert_allclose(found.multipliers.equalities, -1.0, atol=1e-7)
    np.testing.assert_allclose(found.y["1"], y1, atol=1e-7)
    np.testing.assert_allclose(found.value, 0.5 * y1 @ y1 - x @ y1 - jnp.sum(x) - jnp.sum(y1), rtol=1e-8)


@pytest.mark.parametrize("size", [1e2, 3e4])
def test_a_constant_that_was_subtracted_hides_no_rounding(size):
    """Values of terms that cancel differ by rounding alone near the solution: there the slope tells where to go on."""

    def lower(x, y, _):
        return jnp.sum((y - x) ** 2) + jnp.sum(size * jnp.cos(3 * y) ** 2 + size * jnp.sin(3 * y) ** 2)

    with jax.enable_x64(True):
        x = jnp.array([0.3, -0.7])
        away = jnp.array([1e-6, 1e-7, 3e-8, 2e-8])

        def solved(by):
            level = hx.Problem(lambda x, y, _: 0.0, lambda x, y, _: lower(x, y, _) - lower(x, x + by, _))
            return Exact(starts=2).solve(level, x, x + by)

        found = jax.jit(jax.vmap(solved))(away)
        assert np.all(found.status == SOLVED)
        assert np.max(found.iterations) <= 5
        np.testing.assert_allclose(found.y, np.broadcast_to(x, found.y.shape), rtol=0, atol=1e-9)


def test_beyond_the_dense_limit_it_is_matrix_free():
    n = 3000
    target = jnp.linspace(-1.0, 2.0, n)
    problem = level(
        lambda x, y, xi: 0.5 * jnp.sum((1.0 + target**2) * (y - target) ** 2),
        lambda x, y: jnp.sum(y) / n - 0.3,
        y_set=hx.Box(0.0, 1.0),
    )
    solve = jax.jit(lambda y: Exact().solve(problem, None, y)).lower(jnp.zeros(n)).compile()
    assert solve.memory_analysis().temp_size_in_bytes < 8e6  # a matrix of 3000 x 3000 numbers takes 72 MB
    found = solve(jnp.zeros(n))
    assert found.status == SOLVED

    def at(mu):  # the solution for a given multiplier
        return np.clip(target - mu / n / (1 + target**2), 0, 1)

    mu = scipy.optimize.brentq(lambda mu: np.mean(at(mu)) - 0.3, 0, 100 * n, xtol=1e-12)
    np.testing.assert_allclose(found.y, at(mu), atol=1e-6)
    np.testing.assert_allclose(found.multipliers.inequalities, mu, rtol=1e-5)


def test_eager_jit_and_vmap_agree():
    """On the toy, y* = x and the multiplier is 2x. The batch is what the objective sees: here xi = 2x."""
    problem = dataclasses.replace(TOY, lower=lambda x, y, xi: jnp.mean((y - xi) ** 2))
    x, y = jnp.array([0.5, 1.0, 2.9]), jnp.array([0.1, 3.0, 2.0])

    def solve(x, y):
        return Exact().solve(problem, x, y, jnp.stack([2 * x - 0.1, 2 * x + 0.1]))

    mapped = jax.jit(jax.vmap(solve))(x, y)
    close(mapped.y, x, atol=1e-7)
    close(mapped.multipliers, Rows(2 * x, None), atol=1e-6)
    close(mapped.value, x**2 + 0.01, atol=1e-6)
    assert mapped.faces.inequalities[0].keys() == {"lower", "upper"}
    alone, among = solve(x[1], y[1]), jax.tree.map(lambda leaf: leaf[1], mapped)
    close(alone._replace(iterations=None), among._replace(iterations=None), atol=1e-9)  # alone: by other steps


@pytest.mark.parametrize(
    "settings",
    [{"tol": 0.0}, {"tol": None}, {"tol": "small"}, {"max_steps": 0}, {"max_steps": None}, {"dense_limit": -1}],
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(InputError, match=f"Exact.{next(iter(settings))}="):
        Exact(**settings)
