"""The examples against independent routes: derivatives by JAX, lower levels by Clarabel, minimisers by SciPy.

None of the routes shares code with the construction of the examples; they only call the problems' functions.
"""

import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import clarabel
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import contains
from scipy import optimize, sparse

from hierax import Problem
from hierax.problems import Example, Known, toy, toy_inner_solution
from hierax.problems.toy import hyper_objective, local_minimisers
from hierax_lab.problems import ellipsoid_qp, synthetic
from hierax_lab.problems.synthetic import X_BOUND, _plant

UNITS = [
    {},
    {"scale_upper": 7.0, "scale_lower": 0.02, "scale_constraint": 30.0},
    {"stretch": 100.0},
    {"scale_upper": 1e-3, "scale_lower": 50.0, "scale_constraint": 0.1, "stretch": 0.03},
]

EXAMPLES: dict[str, Callable[[], Example]] = {
    **{f"toy-{index}": (lambda units=units: toy(**units)) for index, units in enumerate(UNITS)},
    "qp-2-1": lambda: ellipsoid_qp(2, 1),
    "qp-50-20": lambda: ellipsoid_qp(50, 20, seed=3),
    "qp-200-50": lambda: ellipsoid_qp(200, 50),
    "synthetic-additive": lambda: synthetic(),
    "synthetic-multiplicative": lambda: synthetic(noise="multiplicative", seed=1),
}


class Expected(NamedTuple):
    """The problem's functions without noise; x and y are arrays, the constraints one vector."""

    upper: Callable[[Any, Any], jax.Array]
    lower: Callable[[Any, Any], jax.Array]
    constraints: Callable[[Any, Any], jax.Array]

    def lagrangian(self, x: Any, y: Any, lam: Any) -> jax.Array:
        return self.lower(x, y) + jnp.vdot(lam, self.constraints(x, y))


def expected(problem: Problem) -> Expected:
    zeta, xi = (None if source is None else source.exact for source in (problem.zeta, problem.xi))
    return Expected(
        lambda x, y: problem.upper(x, y, zeta),
        lambda x, y: problem.lower(x, y, xi),
        lambda x, y: jnp.ravel(problem.constraints(x, y)),
    )


def arrays(*values: Any) -> list[jax.Array]:
    return [jnp.asarray(value) for value in values]


def kkt_matrix(functions: Expected, x: Any, y: Any, lam: Any, active: Any) -> jax.Array:
    """The KKT matrix of the active constraints; a row of an inactive one says that its multiplier is zero."""
    n = jnp.size(y)
    hessian = jax.hessian(functions.lagrangian, 1)(x, y, lam).reshape(n, n)
    normals = active[:, None] * jax.jacobian(functions.constraints, 1)(x, y).reshape(-1, n)
    return jnp.block([[hessian, normals.T], [normals, jnp.diag(1.0 - active)]])


def hyper_gradient(functions: Expected, x: Any, y: Any, lam: Any, active: Any) -> jax.Array:
    """d/dx F(x, y*(x)) by the adjoint of the KKT system."""
    direct, along = jax.grad(functions.upper, (0, 1))(x, y)
    matrix = kkt_matrix(functions, x, y, lam, active)
    adjoint = jnp.linalg.solve(matrix, jnp.concatenate([jnp.ravel(along), jnp.zeros(lam.size)]))

    def residual(x: Any) -> jax.Array:
        stationarity = jnp.ravel(jax.grad(functions.lagrangian, 1)(x, y, lam))
        return jnp.vdot(adjoint, jnp.concatenate([stationarity, active * functions.constraints(x, y)]))

    return direct - jax.grad(residual)(x)


class LowerLevel:
    """Solves a lower level with a quadratic objective and ellipsoids: Clarabel, then semismooth Newton to 1e-11."""

    def __init__(self, problem: Problem) -> None:
        functions = self.functions = expected(problem)
        self.upper = jax.jit(functions.upper)
        self.hyper_gradient = jax.jit(lambda *args: hyper_gradient(functions, *args))
        self._newton = jax.jit(self._newton_step)
        self._model = jax.jit(
            lambda x, y: (
                jax.grad(functions.lower, 1)(x, y),
                jax.hessian(functions.lower, 1)(x, y),
                functions.constraints(x, y),
                jax.jacobian(functions.constraints, 1)(x, y),
                jnp.diagonal(jax.hessian(functions.constraints, 1)(x, y), axis1=1, axis2=2),
            )
        )

    def cones(self, x: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """(y, lam) as Clarabel returns them; H_i <= 0 as || sqrt(Q) (y - a) || <= sqrt(2 r)."""
        linear, matrix, values, normals, weights = map(np.asarray, self._model(x, np.zeros(n)))
        centres = -normals / weights
        radii = np.sqrt(np.sum(weights * centres**2, axis=1) - 2.0 * values)
        rows, right = [], []
        for weight, centre, radius in zip(weights, centres, radii, strict=True):
            rows.append(np.vstack([np.zeros((1, n)), -np.diag(np.sqrt(weight))]))
            right.append(np.concatenate([[radius], -np.sqrt(weight) * centre]))
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        result = clarabel.DefaultSolver(
            sparse.csc_matrix(np.triu(matrix)),
            linear,
            sparse.csc_matrix(np.vstack(rows)),
            np.concatenate(right),
            [clarabel.SecondOrderConeT(n + 1)] * radii.size,
            settings,
        ).solve()
        assert str(result.status) == "Solved"
        # The cone's dual (t, u) has t = lam radius where the constraint holds with equality.
        return np.asarray(result.x), np.asarray(result.z)[:: n + 1] / radii

    def _newton_step(self, x: Any, y: Any, lam: Any) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """One step for grad L = 0, min(lam, -H) = 0; also the active set used and the residual before the step."""
        values = self.functions.constraints(x, y)
        active = (lam + values > 0.0).astype(lam.dtype)
        rows = active * values + (1.0 - active) * lam
        residual = jnp.concatenate([jax.grad(self.functions.lagrangian, 1)(x, y, lam), rows])
        step = jnp.linalg.solve(kkt_matrix(self.functions, x, y, lam, active), -residual)
        return y + step[: y.size], lam + step[y.size :], active, jnp.max(jnp.abs(residual))

    def solve(self, x: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(y, lam, which constraints are active)."""
        y, lam = self.cones(x, n)
        for _ in range(6):
            y, lam, active, residual = self._newton(x, y, lam)
        assert residual < 1e-11
        return np.asarray(y), np.asarray(lam), np.asarray(active)


class Residuals(NamedTuple):
    """How far a point is from a solution; `kkt` is relative to grad_y G, `stationarity` to grad_x F, where above 1."""

    kkt: jax.Array
    stationarity: jax.Array
    upper: jax.Array


def residuals(functions: Expected, x: Any, y: Any, lam: Any) -> Residuals:
    gradient = jax.grad(functions.lower, 1)(x, y)
    values, pull = jax.vjp(lambda y: functions.constraints(x, y), y)
    parts = [gradient + pull(lam)[0], jnp.maximum(values, 0.0), jnp.maximum(-lam, 0.0), lam * values]
    kkt = jnp.max(jnp.stack([jnp.max(jnp.abs(part)) for part in parts]))
    total = hyper_gradient(functions, x, y, lam, (lam > 0.0).astype(lam.dtype))
    value, direct = jax.value_and_grad(functions.upper)(x, y)
    return Residuals(kkt / _at_least_one(gradient), jnp.max(jnp.abs(total)) / _at_least_one(direct), value)


def _at_least_one(values: jax.Array) -> jax.Array:
    return jnp.maximum(jnp.max(jnp.abs(values)), 1.0)


@pytest.mark.parametrize("name", EXAMPLES)
def test_known_solutions_satisfy_kkt_and_are_stationary(name: str) -> None:
    example = EXAMPLES[name]()
    functions = expected(example.problem)
    judge = jax.jit(lambda x, y, lam: residuals(functions, x, y, jnp.ravel(lam)))
    for known in example.solutions:
        x, y, lam = arrays(known.x, known.y, known.multipliers)
        assert lam.shape == jax.eval_shape(example.problem.constraints, x, y).shape
        found = judge(x, y, lam)
        assert found.kkt < 1e-12 and found.stationarity < 1e-12
        np.testing.assert_allclose(found.upper, known.upper, rtol=1e-13)
        assert contains(example.problem.x_set, x)
        assert contains(example.problem.y_set, y)


@pytest.mark.parametrize("name", EXAMPLES)
def test_starts_are_admissible_and_have_the_solutions_shapes(name: str) -> None:
    example = EXAMPLES[name]()
    x0, y0 = arrays(example.x0, example.y0)
    assert contains(example.problem.x_set, x0)
    assert contains(example.problem.y_set, y0)
    for known in example.solutions:
        assert np.shape(known.x) == x0.shape
        assert np.shape(known.y) == y0.shape
    assert example.source


# --- toy ----------------------------------------------------------------------------------------------------


def test_toy_minimisers_are_all_local_minima() -> None:
    slope = jax.jit(jax.grad(hyper_objective))
    grid = np.linspace(0.0, 3.0, 30_001)
    sign = np.asarray(jax.jit(jax.vmap(slope))(grid)) > 0.0
    brackets = np.flatnonzero(~sign[:-1] & sign[1:])
    assert not sign[0] and sign[-1]  # neither end of X is a local minimiser
    found = [optimize.brentq(lambda x: float(slope(x)), grid[i], grid[i + 1]) for i in brackets]
    np.testing.assert_allclose(local_minimisers(), found, atol=1e-11)
    # The figures of methods.md.
    np.testing.assert_allclose(local_minimisers(), [0.14889, 0.98622, 2.01973, 2.99077], atol=5e-6)
    values = [known.upper for known in toy().solutions]
    np.testing.assert_allclose(values, [2.96850, 1.72188, 2.15611, 2.44573], atol=5e-6)
    np.testing.assert_allclose(hyper_objective(local_minimisers()), values, rtol=1e-14)
    assert np.argmin(values) == 1


@pytest.mark.parametrize("units", UNITS)
def test_toy_solutions_are_minima_in_every_unit(units: dict[str, float]) -> None:
    example = toy(0.0, **units)

    def restricted(x: Any) -> jax.Array:
        return example.problem.upper(x, x, None)

    t = units.get("stretch", 1.0)
    scale = units.get("scale_upper", 1.0)
    for known, x in zip(example.solutions, local_minimisers(), strict=True):
        np.testing.assert_allclose(known.x, t * x, rtol=1e-15)
        np.testing.assert_allclose(known.y, known.x)
        assert abs(float(jax.grad(restricted)(known.x))) * t / scale < 1e-12
        assert float(jax.grad(jax.grad(restricted))(known.x)) * t**2 / scale > 1.0


@pytest.mark.parametrize("units", UNITS[1:])
def test_toy_in_other_units_is_the_same_problem(units: dict[str, float]) -> None:
    plain, other = toy().problem, toy(**units).problem
    t = units.get("stretch", 1.0)
    rng = np.random.default_rng(0)
    zeta = rng.standard_normal((5, 2))
    for x, y in rng.uniform(0.0, 3.0, (10, 2)):
        for name, factor in [("upper", "scale_upper"), ("lower", "scale_lower")]:
            value = getattr(plain, name)(x, y, zeta)
            np.testing.assert_allclose(getattr(other, name)(t * x, t * y, zeta), units.get(factor, 1.0) * value)
        constraint = units.get("scale_constraint", 1.0) * plain.constraints(x, y)
        np.testing.assert_allclose(other.constraints(t * x, t * y), constraint, atol=1e-13)
    assert contains(other.x_set, jnp.asarray(3.0 * t))
    assert not contains(other.x_set, jnp.asarray(3.01 * t))


def random_inner_arguments(n: int) -> list[np.ndarray]:
    """(x, z, gamma1, gamma2), among them points whose w is on a bound of Y."""
    rng = np.random.default_rng(1)
    x, z = rng.uniform(0.0, 3.0, n), rng.exponential(3.0, n)
    x[:20], z[10:40] = 0.0, 0.0
    x[40:80], z[40:60] = rng.uniform(2.7, 3.0, 40), 0.0
    z[80:120] *= 10.0
    return [x, z, 10.0 ** rng.uniform(-1.5, 1.5, n), 10.0 ** rng.uniform(-1.5, 1.5, n)]


def test_toy_inner_solution_is_the_saddle_point() -> None:
    problem = toy(0.0).problem

    def saddle(w: Any, lam: Any, x: Any, z: Any, gamma1: Any, gamma2: Any) -> jax.Array:
        inside = jnp.maximum(gamma1 * lam + problem.constraints(x, w), 0.0)
        augmented = (inside**2 - (gamma1 * lam) ** 2) / (2.0 * gamma1)
        return problem.lower(x, w, None) + augmented - 0.5 * gamma2 * (lam - z) ** 2

    arguments = random_inner_arguments(500)
    w, lam = jax.jit(toy_inner_solution)(*arguments)
    d_w, d_lam = jax.vmap(jax.grad(saddle, (0, 1)))(w, lam, *arguments)
    np.testing.assert_allclose(jnp.clip(w - d_w, 0.0, 3.0), w, atol=1e-12)
    np.testing.assert_allclose(jnp.maximum(lam + d_lam, 0.0), lam, atol=1e-12)
    assert jnp.all(lam >= 0.0)
    # Both bounds and the interior occur: the test sees every case.
    assert np.sum(w == 0.0) > 5 and np.sum(w == 3.0) > 5 and np.sum((w > 0.0) & (w < 3.0)) > 100
    # One point at a time gives the same as all at once.
    np.testing.assert_allclose(toy_inner_solution(*(argument[7] for argument in arguments)), [w[7], lam[7]])


def test_toy_inner_solution_at_the_multiplier_is_the_lower_solution() -> None:
    x = np.linspace(0.0, 3.0, 31)
    for gamma1, gamma2 in itertools.product([0.1, 1.0, 10.0], repeat=2):
        w, lam = toy_inner_solution(x, 2.0 * x, gamma1, gamma2)
        np.testing.assert_allclose(w, x, atol=1e-13)
        np.testing.assert_allclose(lam, 2.0 * x, atol=1e-12)


class LowerView(NamedTuple):
    """What the lower level looks like at a point: Hessian of G, H, J_y H, and H at y = 0."""

    hessian: Any
    values: Any
    normals: Any
    at_zero: Any


def lower_view(problem: Problem) -> Callable[[Any, Any], LowerView]:
    functions = expected(problem)
    return lambda x, y: LowerView(
        jax.hessian(functions.lower, 1)(x, y),
        functions.constraints(x, y),
        jax.jacobian(functions.constraints, 1)(x, y),
        functions.constraints(x, jnp.zeros_like(y)),
    )


# --- ellipsoid_qp -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "p", "seed"), [(2, 1, 0), (20, 5, 0), (50, 20, 1)])
def test_qp_solution_agrees_with_clarabel(n: int, p: int, seed: int) -> None:
    example = ellipsoid_qp(n, p, seed=seed)
    (known,) = example.solutions
    level = LowerLevel(example.problem)
    y, lam = level.cones(np.zeros(()), n)
    np.testing.assert_allclose(y, known.y, atol=1e-4)
    np.testing.assert_allclose(lam, known.multipliers, atol=1e-3)
    y, lam, active = level.solve(np.zeros(()), n)
    np.testing.assert_allclose(y, known.y, atol=1e-12)
    np.testing.assert_allclose(lam, known.multipliers, atol=1e-11)
    assert active.sum() == (p + 1) // 2


@pytest.mark.parametrize(("n", "p"), [(2, 1), (20, 5), (50, 20), (200, 50)])
def test_qp_has_the_stated_spectrum_strict_complementarity_and_a_slater_point(n: int, p: int) -> None:
    example = ellipsoid_qp(n, p)
    (known,) = example.solutions
    view = jax.tree.map(np.asarray, jax.jit(lower_view(example.problem))(known.x, known.y))
    np.testing.assert_allclose(np.linalg.eigvalsh(view.hessian)[[0, -1]], [1.0, 10.0])
    lam, m = known.multipliers, (p + 1) // 2
    assert np.all(lam[:m] >= 5.0 / m) and np.all(lam[m:] == 0.0) and np.all(view.values[m:] <= -0.5)
    assert np.linalg.svd(view.normals[:m], compute_uv=False)[-1] > 0.3
    assert np.all(view.at_zero < 0.0)
    assert np.max(np.abs(known.y)) < 9.0


# --- synthetic ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exact() -> tuple[Known, LowerLevel]:
    example = synthetic(0.0)
    return example.solutions[0], LowerLevel(example.problem)


def test_synthetic_lower_solution_agrees_with_clarabel_and_slsqp(exact: tuple[Known, LowerLevel]) -> None:
    known, level = exact
    functions = level.functions
    y, lam = level.cones(known.x, 20)
    np.testing.assert_allclose(y, known.y, atol=1e-4)
    np.testing.assert_allclose(lam, known.multipliers, atol=1e-3)
    y, lam, _ = level.solve(known.x, 20)
    np.testing.assert_allclose(y, known.y, atol=1e-12)
    np.testing.assert_allclose(lam, known.multipliers, atol=1e-11)
    objective = jax.jit(jax.value_and_grad(functions.lower, 1))
    constraints, normals = jax.jit(functions.constraints), jax.jit(jax.jacobian(functions.constraints, 1))
    result = optimize.minimize(
        lambda y: [np.asarray(part) for part in objective(known.x, y)],
        np.zeros(20),
        jac=True,
        method="SLSQP",
        bounds=[(-10.0, 10.0)] * 20,
        constraints={
            "type": "ineq",
            "fun": lambda y: -np.asarray(constraints(known.x, y)),
            "jac": lambda y: -np.asarray(normals(known.x, y)),
        },
        options={"ftol": 1e-13, "maxiter": 300},
    )
    np.testing.assert_allclose(result.x, known.y, atol=1e-5)


def test_synthetic_implicit_gradient_agrees_with_finite_differences(exact: tuple[Known, LowerLevel]) -> None:
    known, level = exact
    rng = np.random.default_rng(2)

    def phi(x: np.ndarray) -> float:
        return float(level.upper(x, level.solve(x, 20)[0]))

    for x in [known.x, known.x + 0.05 * rng.standard_normal(10), rng.uniform(-1.0, 1.0, 10)]:
        gradient = np.asarray(level.hyper_gradient(x, *level.solve(x, 20)))
        differences = [(phi(x + 1e-4 * e) - phi(x - 1e-4 * e)) / 2e-4 for e in np.eye(10)]
        np.testing.assert_allclose(gradient, differences, atol=1e-6)


def test_synthetic_minimiser_is_found_from_random_starts(exact: tuple[Known, LowerLevel]) -> None:
    known, level = exact

    def phi(x: np.ndarray) -> tuple[float, np.ndarray]:
        y, lam, active = level.solve(x, 20)
        return float(level.upper(x, y)), np.asarray(level.hyper_gradient(x, y, lam, active))

    # The hyper-objective is piecewise smooth: a descent method on it, not on the reformulations of hierax.
    for start in np.random.default_rng(3).uniform(-X_BOUND, X_BOUND, (8, 10)):
        bounds = [(-X_BOUND, X_BOUND)] * 10
        options = {"ftol": 1e-15, "gtol": 1e-9}
        result = optimize.minimize(phi, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        np.testing.assert_allclose(result.x, known.x, atol=1e-6)
        np.testing.assert_allclose(result.fun, known.upper, atol=1e-10)


@pytest.mark.parametrize("seed", [0, 1])
def test_synthetic_is_well_posed_for_every_seed(seed: int) -> None:
    example = synthetic(0.0, seed=seed)
    functions = expected(example.problem)
    (known,) = example.solutions
    view = jax.tree.map(np.asarray, jax.jit(lower_view(example.problem))(known.x, known.y))
    np.testing.assert_allclose(np.linalg.eigvalsh(view.hessian)[[0, -1]], [1.0, 5.0])
    lam = known.multipliers
    assert np.all(lam[:3] >= 0.5) and np.all(lam[3:] == 0.0) and np.all(view.values[3:] <= -0.5)
    assert np.linalg.svd(view.normals[:3], compute_uv=False)[-1] > 0.5
    assert np.max(np.abs(known.x)) <= 1.0 and np.max(np.abs(known.y)) < 9.0

    # Every constraint is jointly convex in (x, y).
    def joint(u: jax.Array) -> jax.Array:
        return functions.constraints(u[:10], u[10:])

    for hessian in np.asarray(jax.jit(jax.hessian(joint))(jnp.zeros(30))):
        assert np.linalg.eigvalsh(hessian)[0] > -1e-12
    # A convex function of x has its maximum over the box at a corner: y = Mx is strictly feasible for every x.
    shift = jnp.asarray(_plant(np.random.default_rng(seed)).shift)
    corners = X_BOUND * np.asarray(list(itertools.product([-1.0, 1.0], repeat=10)))
    assert np.max(jax.jit(jax.vmap(lambda x: functions.constraints(x, shift @ x)))(corners)) < 0.0
    # Second-order condition: the hyper-gradient's derivative, by differences on the smooth piece at x*.
    level = LowerLevel(example.problem)

    def gradient(x: np.ndarray) -> np.ndarray:
        return np.asarray(level.hyper_gradient(x, *level.solve(x, 20)))

    curvature = np.stack([(gradient(known.x + 1e-4 * e) - gradient(known.x - 1e-4 * e)) / 2e-4 for e in np.eye(10)])
    np.testing.assert_allclose(curvature, curvature.T, atol=1e-5)
    eigenvalues = np.linalg.eigvalsh(curvature)
    assert eigenvalues[0] > 0.5 and eigenvalues[-1] < 4.0


def test_seeds_give_repeatable_and_different_data() -> None:
    for make in [lambda seed: ellipsoid_qp(5, 2, seed=seed), lambda seed: synthetic(seed=seed)]:
        first, again, other = (make(seed).solutions[0] for seed in (0, 0, 1))
        np.testing.assert_array_equal(first.y, again.y)
        assert np.max(np.abs(first.y - other.y)) > 0.1


def test_import_starts_no_backend() -> None:
    code = "import hierax.problems; from jax._src import xla_bridge; print(xla_bridge.backends_are_initialized())"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "False"
