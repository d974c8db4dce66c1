"""The further examples against independent routes: Clarabel for lower levels, SciPy for minimisers, differences.

None of the routes shares code with the construction of the examples; they only call the problems' functions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import clarabel
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import contains
from scipy import optimize, sparse
from test_problems import expected, residuals

from hierax import InputError, Problem
from hierax.problems import Example
from hierax_lab.problems import gaffa_toy, kinked, lvhba_toy, random_qp, synthetic


class Quadratic(NamedTuple):
    """A quadratic lower level in y: 1/2 y'Ay + c'y, By + e <= 0 for the first p rows, = 0 for the others."""

    matrix: np.ndarray
    linear: np.ndarray
    normals: np.ndarray
    level: np.ndarray
    p: int


class Lower(NamedTuple):
    y: np.ndarray
    lam: np.ndarray
    values: np.ndarray


def row_values(problem: Problem, x: Any, y: Any) -> jax.Array:
    """Inequalities, then equalities, as one vector."""
    return jnp.concatenate([jnp.atleast_1d(part) for part in jax.tree.leaves(problem.rows(x, y))])


def quadratic(problem: Problem) -> Callable[[Any, np.ndarray], Quadratic]:
    """Reads the coefficients off the problem's functions, at y = 0; y must be one vector."""

    @jax.jit
    def read(x: Any, y: Any) -> Any:
        derivatives = jax.hessian(problem.lower, 1)(x, y, None), jax.grad(problem.lower, 1)(x, y, None)
        return *derivatives, jax.jacobian(row_values, 2)(problem, x, y), row_values(problem, x, y)

    def at(x: Any, start: np.ndarray) -> Quadratic:
        p = sum(leaf.size for leaf in jax.tree.leaves(problem.constraints(x, start)))
        return Quadratic(*map(np.asarray, read(x, np.zeros_like(start))), p)

    return at


def clarabel_qp(qp: Quadratic, tol: float = 1e-12) -> Lower:
    q = qp.level.size - qp.p
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tol
    order = np.roll(np.arange(qp.level.size), q)  # equalities first
    result = clarabel.DefaultSolver(
        sparse.csc_matrix(np.triu(qp.matrix)),
        qp.linear,
        sparse.csc_matrix(qp.normals[order]),
        -qp.level[order],
        [clarabel.ZeroConeT(q), clarabel.NonnegativeConeT(qp.p)],
        settings,
    ).solve()
    assert str(result.status) == "Solved"
    y, lam = np.asarray(result.x), np.empty(qp.level.size)
    lam[order] = result.z
    return Lower(y, lam, qp.normals @ y + qp.level)


def kkt_solve(qp: Quadratic, tight: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve with the KKT matrix of the rows `tight`; returns the part of y and that of the multipliers."""
    normals = qp.normals[tight]
    kkt = np.block([[qp.matrix, normals.T], [normals, np.zeros((len(normals), len(normals)))]])
    return np.linalg.solve(kkt, right)


def polished(qp: Quadratic, guess: Lower) -> tuple[Lower, np.ndarray]:
    """One Newton step on the rows that Clarabel's answer shows to be active, and these rows."""
    tight = (np.arange(guess.lam.size) >= qp.p) | (guess.lam + guess.values > 0.0)
    found = kkt_solve(qp, tight, -np.concatenate([qp.linear, qp.level[tight]]))
    lam = np.zeros(guess.lam.size)
    y, lam[tight] = found[: qp.linear.size], found[qp.linear.size :]
    return Lower(y, lam, qp.normals @ y + qp.level), tight


def hyper_objective(example: Example) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """x -> F(x, y*(x)) and its gradient by the adjoint KKT system, for a quadratic lower level."""
    problem, read = example.problem, quadratic(example.problem)
    upper = jax.jit(jax.value_and_grad(lambda x, y: problem.upper(x, y, None), (0, 1)))
    n = example.y0.size

    @jax.jit
    def sensitivity(x: Any, y: Any, lam: Any, adjoint: Any, rows_adjoint: Any) -> Any:
        def residual(x: Any) -> jax.Array:
            def lagrangian(y: Any) -> jax.Array:
                return problem.lower(x, y, None) + jnp.vdot(lam, row_values(problem, x, y))

            return jnp.vdot(adjoint, jax.grad(lagrangian)(y)) + jnp.vdot(rows_adjoint, row_values(problem, x, y))

        return jax.grad(residual)(x)

    def phi(x: np.ndarray) -> tuple[float, np.ndarray]:
        qp = read(x, example.y0)
        (y, lam, _), tight = polished(qp, clarabel_qp(qp, 1e-9))
        value, (direct, along) = upper(x, y)
        adjoint = kkt_solve(qp, tight, np.concatenate([along, np.zeros(tight.sum())]))
        rows_adjoint = np.zeros(lam.size)
        rows_adjoint[tight] = adjoint[n:]
        return float(value), np.asarray(direct - sensitivity(x, y, lam, adjoint[:n], rows_adjoint))

    return phi


# --- the toys of LV-HBA and BiC-GAFFA -------------------------------------------------------------------------

TOYS: dict[str, Callable[[int], Example]] = {
    "lvhba": lvhba_toy,
    "gaffa": gaffa_toy,
    "gaffa-cubic": lambda n: gaffa_toy(n, cubic=True),
}


def single_level(problem: Problem, n: int) -> tuple[Callable[[Any], jax.Array], Callable[[Any], jax.Array]]:
    """F and the KKT conditions of the lower level (equalities, since it has no inequality) in u = (x, y1, y2, nu)."""

    def parts(u: Any) -> tuple[Any, Any, Any]:
        return u[:n], {"y1": u[n : 2 * n], "y2": u[2 * n : 3 * n]}, u[3 * n]

    def objective(u: Any) -> jax.Array:
        x, y, _ = parts(u)
        return problem.upper(x, y, None)

    def conditions(u: Any) -> jax.Array:
        x, y, nu = parts(u)
        slope = jax.grad(lambda y: problem.lower(x, y, None) + nu * problem.equalities(x, y))(y)
        # The entries of the slope in y2 are the same condition n times, which would make the Jacobian singular.
        return jnp.concatenate([slope["y1"], slope["y2"][:1], problem.equalities(x, y)[None]])

    return objective, conditions


def stacked(example: Example) -> np.ndarray:
    (known,) = example.solutions
    return np.concatenate([known.x, known.y["y1"], known.y["y2"], known.equality_multipliers[None]])


@pytest.mark.parametrize("n", [1, 100])
@pytest.mark.parametrize("name", TOYS)
def test_equality_toys_satisfy_both_levels_kkt_conditions(name: str, n: int) -> None:
    example = TOYS[name](n)
    (known,) = example.solutions
    objective, conditions = single_level(example.problem, n)
    u = stacked(example)
    np.testing.assert_allclose(conditions(u), 0.0, atol=1e-12)
    slope, jacobian = np.asarray(jax.grad(objective)(u)), np.asarray(jax.jacobian(conditions)(u))
    multipliers = np.linalg.lstsq(jacobian.T, -slope)[0]
    np.testing.assert_allclose(slope + jacobian.T @ multipliers, 0.0, atol=1e-10)
    np.testing.assert_allclose(objective(u), known.upper, atol=1e-12)
    assert known.equality_multipliers == -1.0 and known.multipliers is None
    assert example.problem.constraints(known.x, known.y) is None
    assert example.problem.equalities(example.x0, example.y0) == 0.0  # the start is feasible


@pytest.mark.parametrize("name", TOYS)
def test_equality_toys_are_solved_by_slsqp_on_the_kkt_form(name: str) -> None:
    n = 3
    example = TOYS[name](n)
    objective, conditions = single_level(example.problem, n)
    value, jacobian = jax.jit(jax.value_and_grad(objective)), jax.jit(jax.jacobian(conditions))
    for start in np.random.default_rng(0).normal(0.0, 2.0, (5, 3 * n + 1)):
        result = optimize.minimize(
            lambda u: [np.asarray(part) for part in value(u)],
            start,
            jac=True,
            method="SLSQP",
            constraints={"type": "eq", "fun": jax.jit(conditions), "jac": jacobian},
            options={"ftol": 1e-15, "maxiter": 500},
        )
        np.testing.assert_allclose(result.x, stacked(example), atol=1e-5)


@pytest.mark.parametrize("name", TOYS)
def test_equality_toys_have_many_lower_solutions_with_one_y1(name: str) -> None:
    example = TOYS[name](6)
    rng = np.random.default_rng(1)
    x, other = rng.standard_normal(6), rng.standard_normal(6)
    total = -float(example.problem.equalities(x, {"y1": x + 1.0, "y2": np.zeros(6)}))
    y, moved = ({"y1": x + 1.0, "y2": total / 6.0 + scale * (other - other.mean())} for scale in (0.0, 1.0))
    for point in (y, moved):
        assert abs(float(example.problem.equalities(x, point))) < 1e-12
        slope = jax.grad(lambda y: example.problem.lower(x, y, None) - example.problem.equalities(x, y))(point)
        np.testing.assert_allclose(np.concatenate(list(slope.values())), 0.0, atol=1e-14)
    values = [float(example.problem.lower(x, point, None)) for point in (y, moved)]
    np.testing.assert_allclose(*values, rtol=1e-12)
    assert abs(float(example.problem.upper(x, y, None)) - float(example.problem.upper(x, moved, None))) > 0.1


# --- random_qp ------------------------------------------------------------------------------------------------

QPS: dict[str, Callable[[], Example]] = {
    "default": random_qp,
    "seed-1": lambda: random_qp(1),
    "equalities": lambda: random_qp(0, p=0, equalities=3),
    "both": lambda: random_qp(2, nx=12, ny=10, p=4, equalities=3),
    "small": lambda: random_qp(0, nx=1, ny=1, p=1),
}

# From the start of "both" descent ends at another minimiser.
QPS_FROM_START = ["default", "seed-1", "equalities", "small"]


@pytest.mark.parametrize("name", QPS)
def test_qp_solution_satisfies_both_levels_kkt_conditions(name: str) -> None:
    example = QPS[name]()
    (known,) = example.solutions
    qp = quadratic(example.problem)(known.x, example.y0)
    planted = np.concatenate([part for part in (known.multipliers, known.equality_multipliers) if part is not None])
    values = qp.normals @ known.y + qp.level
    np.testing.assert_allclose(qp.matrix @ known.y + qp.linear + qp.normals.T @ planted, 0.0, atol=1e-13)
    np.testing.assert_allclose(values[planted != 0.0], 0.0, atol=1e-14)
    # Strict complementarity, and rows that are independent.
    inside = values[: qp.p]
    assert np.all(planted[: qp.p] >= 0.0) and np.all(inside < 1e-14)
    assert np.min(np.abs(inside) + planted[: qp.p], initial=1.0) >= 0.5
    assert np.linalg.svd(qp.normals, compute_uv=False)[-1] > 0.05
    # The upper level: zero slope inside the box, at least 0.5 outwards where x is on a bound.
    value, slope = hyper_objective(example)(known.x)
    np.testing.assert_allclose(value, known.upper, rtol=1e-12)
    at_bound = np.abs(known.x) == 2.0
    assert at_bound.sum() == known.x.size // 5
    np.testing.assert_allclose(slope[~at_bound], 0.0, atol=1e-12)
    assert np.all(-slope[at_bound] * np.sign(known.x[at_bound]) >= 0.5)


@pytest.mark.parametrize("name", QPS)
def test_qp_lower_solution_agrees_with_clarabel(name: str) -> None:
    example = QPS[name]()
    (known,) = example.solutions
    found = clarabel_qp(quadratic(example.problem)(known.x, example.y0))
    np.testing.assert_allclose(found.y, known.y, atol=1e-6)
    planted = np.concatenate([part for part in (known.multipliers, known.equality_multipliers) if part is not None])
    np.testing.assert_allclose(found.lam, planted, atol=1e-6)


@pytest.mark.parametrize(("name", "part"), [*((name, 0.1) for name in QPS), *((name, 1.0) for name in QPS_FROM_START)])
def test_qp_solution_is_found_by_descent_from_nearby(name: str, part: float) -> None:
    example = QPS[name]()
    (known,) = example.solutions
    assert contains(example.problem.x_set, example.x0)
    assert np.max(np.abs(example.x0 - known.x)) > 0.05
    result = optimize.minimize(
        hyper_objective(example),
        known.x + part * (example.x0 - known.x),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-2.0, 2.0)] * known.x.size,
        options={"ftol": 1e-15, "gtol": 1e-10},
    )
    np.testing.assert_allclose(result.x, known.x, atol=1e-7)
    np.testing.assert_allclose(result.fun, known.upper, atol=1e-12)


def test_qp_gradient_of_the_test_agrees_with_differences() -> None:
    example = random_qp(2, nx=12, ny=10, p=4, equalities=3)
    phi = hyper_objective(example)
    x = example.x0
    differences = [(phi(x + 1e-5 * e)[0] - phi(x - 1e-5 * e)[0]) / 2e-5 for e in np.eye(12)]
    np.testing.assert_allclose(phi(x)[1], differences, atol=1e-7)


def test_qp_seeds_are_repeatable_and_different() -> None:
    first, again, other = (random_qp(seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.solutions[0].x, again.solutions[0].x)
    assert np.max(np.abs(first.solutions[0].x - other.solutions[0].x)) > 0.1
    for wrong in ({"p": 9}, {"p": 0}, {"p": 5, "equalities": 4}, {"nx": 0}, {"p": -1, "equalities": 2}):
        with pytest.raises(InputError, match="constraints in all"):
            random_qp(**wrong)


# --- synthetic in other sizes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("nx", "ny", "p", "seed"), [(4, 6, 4, 0), (1, 2, 1, 0), (15, 8, 7, 3)])
def test_synthetic_in_other_sizes_has_its_planted_solution(nx: int, ny: int, p: int, seed: int) -> None:
    example = synthetic(0.0, seed=seed, nx=nx, ny=ny, p=p)
    (known,) = example.solutions
    functions = expected(example.problem)
    x, y, lam = (jnp.asarray(part) for part in (known.x, known.y, known.multipliers))
    found = jax.jit(lambda *point: residuals(functions, *point))(x, y, lam)
    assert found.kkt < 1e-12 and found.stationarity < 1e-12
    np.testing.assert_allclose(found.upper, known.upper, rtol=1e-13)
    values = np.asarray(functions.constraints(x, y))
    assert (
        np.sum(known.multipliers >= 0.5) == (p + 1) // 2 and np.min(np.abs(values) + known.multipliers) >= 0.5 - 1e-12
    )
    # Jointly convex, as in the default size.
    hessians = jax.hessian(lambda u: functions.constraints(u[:nx], u[nx:]))(jnp.concatenate([x, y]))
    assert min(np.linalg.eigvalsh(hessian)[0] for hessian in np.asarray(hessians)) > -1e-12
    assert example.x0.shape == (nx,) and example.y0.shape == (ny,)


def test_synthetic_refuses_sizes_without_a_planted_solution() -> None:
    for wrong in ({"nx": 0}, {"ny": 1, "p": 1}, {"p": 0}, {"ny": 3, "p": 7}):
        with pytest.raises(InputError, match="needs nx >= 1"):
            synthetic(**wrong)


# --- kinked -----------------------------------------------------------------------------------------------------


def test_kinked_lower_level_is_the_minimum_of_x_and_one() -> None:
    example = kinked()
    read = quadratic(example.problem)
    for x in np.random.default_rng(0).uniform(-3.0, 3.0, (10, 2)):
        found = clarabel_qp(read(x, example.y0))
        np.testing.assert_allclose(found.y, np.minimum(x, 1.0), atol=1e-6)
        np.testing.assert_allclose(found.lam, 2.0 * np.maximum(x - 1.0, 0.0), atol=1e-6)


def test_kinked_solution_is_the_only_minimiser_and_no_piece_is_stationary_there() -> None:
    example = kinked()
    (known,) = example.solutions
    upper = jax.jit(lambda x, y: example.problem.upper(x, y, None))

    def phi(x: Any) -> jax.Array:
        return upper(x, jnp.minimum(x, 1.0))

    # Weakly active: H = lam = 0, and (y, lam) satisfies the KKT conditions.
    np.testing.assert_array_equal(example.problem.constraints(known.x, known.y), 0.0)
    np.testing.assert_array_equal(known.multipliers, 0.0)
    np.testing.assert_array_equal(jax.grad(example.problem.lower, 1)(known.x, known.y, None), 0.0)
    np.testing.assert_allclose(phi(known.x), known.upper)
    assert known.upper == pytest.approx(2.645)
    # The pieces: y_i = x_i (constraint out) or y_i = 1 (in).
    pieces = [[False, False], [False, True], [True, False], [True, True]]
    gradients = np.stack(
        [jax.grad(lambda x, tight=tight: upper(x, jnp.where(np.array(tight), 1.0, x)))(known.x) for tight in pieces]
    )
    np.testing.assert_allclose(gradients, [[-0.5, -1.8], [-0.5, 0.2], [0.5, -1.8], [0.5, 0.2]], atol=1e-14)
    assert np.min(np.linalg.norm(gradients, axis=1)) > 0.5
    # A sharp minimum: phi grows linearly in every direction.
    angles = np.linspace(0.0, 2.0 * np.pi, 73)
    around = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for t in (1e-6, 1e-3, 0.1):
        assert np.all(np.asarray(jax.vmap(phi)(known.x + t * around)) - known.upper > 0.19 * t)
    # The only one: either entry's slope changes sign at 1 and nowhere else.
    grid = np.linspace(-3.0, 3.0, 602)  # 1 is not on it
    slopes = jax.vmap(jax.grad(phi))(np.stack([grid, grid], axis=1))
    np.testing.assert_array_equal(np.asarray(slopes) > 0.0, np.stack([grid > 1.0, grid > 1.0], axis=1))
    assert np.all((example.x0 < 1.0) == [True, False])
