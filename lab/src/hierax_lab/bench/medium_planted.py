"""Problems of `hierax bench medium` around a planted local minimiser with F = 0, and the QPECs of MacMPEC.

The lower solution y* at a drawn x* is solved for (or drawn with it), D is the derivative of y*(x) there, and

    F = g'(y - y*) + 1/2 |y - y*|^2 - (D'g)'(x - x*) + 2 |x - x*|^2

is stationary along y*(x) at x*, with F = 0, although its gradient g in y is not zero. Other pieces of y*(x) may hold
lower values: the planted one is an upper bound of the best.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from hierax import Box, NonNegative, Problem, Sampler
from hierax.problems.noise import linear_term
from hierax_lab.bench.medium_case import Bounds, Functions, MediumCase
from hierax_lab.bench.medium_lower import LowerLevel
from hierax_lab.problems.ellipsoids import (
    Ellipsoids,
    planted_multipliers,
    planted_slack,
    random_direction,
    random_ellipsoids,
    random_factor,
)

Upper = Callable[[jax.Array, jax.Array, None], jax.Array]
Numbers = dict[str, np.ndarray]

MARGIN = 1e-3  # least slack of inactive rows and least multiplier of active ones at the planted point
QPEC_BEST = {1: 0.0990028, 2: -6.59074, 3: -5.48287, 4: -3.98212}  # published with MacMPEC; judged one-sided


def _planted_upper(numbers: Numbers) -> Upper:
    """F around the planted point."""

    def upper(x: jax.Array, y: jax.Array, zeta: None) -> jax.Array:
        del zeta
        (dx, slope), (dy, gradient) = (
            (at - jnp.asarray(numbers[point], at.dtype), jnp.asarray(numbers[name], at.dtype))
            for at, point, name in ((x, "x", "slope"), (y, "y", "gradient"))
        )
        return gradient @ dy + 0.5 * dy @ dy - slope @ dx + 2.0 * dx @ dx

    return upper


def planted_numbers(n: int, m: int, rows: int, seed: int = 0) -> Numbers:
    """The arrays of `planted_qp`, the planted point with g (`gradient`) and D'g (`slope`) among them."""
    rng = np.random.default_rng(seed)
    while True:
        root, coupling, cost = rng.normal(size=(m, m)), rng.normal(size=(m, n)), rng.normal(size=m)
        numbers = {"hessian": root @ root.T / m + 0.1 * np.eye(m), "coupling": coupling, "cost": cost}
        numbers |= {"matrix": rng.normal(size=(rows, m)) / np.sqrt(m), "moves": 0.3 * rng.normal(size=(rows, n))}
        numbers |= {"rhs": rng.uniform(0.05, 0.5, rows), "x": rng.uniform(-0.5, 0.5, n)}
        planted = _planted(numbers, rng.normal(size=m) / np.sqrt(m))
        if planted is not None:
            return numbers | planted


def _planted(numbers: Numbers, gradient: np.ndarray) -> Numbers | None:
    """y* at x* and the upper objective's numbers; None where complementarity is not strict there."""
    case, x = _program_case(_quadratic_program(numbers, lambda x, y, zeta: jnp.sum(y)), numbers), numbers["x"]
    functions = Functions(case)
    level = LowerLevel(functions)
    solution = level.solve(x)
    slack = np.concatenate([-functions.rows(x, solution.y)[0], solution.y])
    multipliers = np.concatenate([solution.rows, -solution.bounds])
    if np.min(np.maximum(slack, multipliers)) < MARGIN:
        return None
    return {"y": solution.y, "gradient": gradient, "slope": level.derivative(x, solution).T @ gradient}


def planted_qp(n: int, m: int, rows: int, seed: int = 0) -> MediumCase:
    """A quadratic program below: min 1/2 y'My + (Nx + q)'y s.t. Ay <= b + Bx, y >= 0; X = [-1, 1]^n.

    R, N, q are standard normal, M = RR'/m + 0.1 I, A normal / sqrt(m), B 0.3 normal, b uniform in [0.05, 0.5], x*
    uniform in [-0.5, 0.5], g normal / sqrt(m). Drawn again where complementarity at x* is not strict.
    """
    numbers = planted_numbers(n, m, rows, seed)
    return _program_case(_quadratic_program(numbers, _planted_upper(numbers)), numbers)


def _program_case(problem: Problem, numbers: Numbers) -> MediumCase:
    m, n = numbers["coupling"].shape
    nonnegative = Bounds(np.zeros(m), np.full(m, np.inf))
    return MediumCase(problem, problem, np.zeros(n), np.zeros(m), Bounds.between(-1.0, 1.0, n), nonnegative, best=0.0)


def _quadratic_program(numbers: Numbers, upper: Upper) -> Problem:
    def lower(x: jax.Array, y: jax.Array, xi: None) -> jax.Array:
        del xi
        m, n, q = (jnp.asarray(numbers[name], y.dtype) for name in ("hessian", "coupling", "cost"))
        return 0.5 * y @ m @ y + (n @ x + q) @ y

    def constraints(x: jax.Array, y: jax.Array) -> jax.Array:
        a, b, c = (jnp.asarray(numbers[name], y.dtype) for name in ("matrix", "rhs", "moves"))
        return a @ y - b - c @ x

    return Problem(upper=upper, lower=lower, constraints=constraints, x_set=Box(-1.0, 1.0), y_set=NonNegative())


def ellipsoid_numbers(n: int, m: int, rows: int, seed: int = 0) -> Numbers:
    """The arrays of `ellipsoids`, the planted point with g (`gradient`) and D'g (`slope`) among them."""
    rng = np.random.default_rng(seed)
    active = (rows + 1) // 2
    x, y = rng.uniform(-0.5, 0.5, n), random_direction(rng, m, norm=1.0)
    factor, coupling = random_factor(rng, m, largest=10.0), rng.normal(size=(m, n)) / np.sqrt(n)
    hessian = factor.T @ factor
    bodies = random_ellipsoids(rng, y, planted_slack(rng, rows, active))
    moves = rng.normal(size=(rows, n))
    moves *= 0.2 / np.abs(moves).sum(1, keepdims=True)
    multipliers = planted_multipliers(rng, rows, active, mean=10.0 / active)
    cost = hessian @ y + bodies.jacobian(y).T @ multipliers - coupling @ x
    held = np.arange(rows) < active
    normals = bodies.jacobian(y)[held]
    curved = hessian + np.diag(multipliers @ bodies.weights)
    kkt = np.block([[curved, normals.T], [normals, np.zeros((active, active))]])
    derivative = np.linalg.solve(kkt, np.vstack([coupling, moves[held]]))[:m]
    gradient = rng.normal(size=m) / np.sqrt(m)
    numbers = {"hessian": hessian, "coupling": coupling, "cost": cost, "moves": moves, "shift": moves @ x}
    numbers |= {"x": x, "y": y, "gradient": gradient, "slope": derivative.T @ gradient}
    return numbers | {"weights": bodies.weights, "centres": bodies.centres, "levels": bodies.levels}


def ellipsoids(n: int, m: int, rows: int, seed: int = 0) -> MediumCase:
    """A convex quadratic over ellipsoids that move with x: min 1/2 y'Ay - (b + Cx)'y s.t. H_i(y) <= B_i'(x - x*).

    A has eigenvalues from 1 to 10, C is normal / sqrt(n); H_i and the planted (y*, multipliers) are those of
    `hierax_lab.problems.ellipsoid_qp`, half of them active; |B_i'(x - x*)| <= 0.3 on X = [-1, 1]^n, so that y = 0 is
    strictly feasible at every x.
    """
    numbers = ellipsoid_numbers(n, m, rows, seed)
    bodies = Ellipsoids(*(numbers[name] for name in ("weights", "centres", "levels")))

    def lower(x: jax.Array, y: jax.Array, xi: None) -> jax.Array:
        del xi
        a, c, b = (jnp.asarray(numbers[name], y.dtype) for name in ("hessian", "coupling", "cost"))
        return 0.5 * y @ a @ y - (b + c @ x) @ y

    def constraints(x: jax.Array, y: jax.Array) -> jax.Array:
        moves, shift = (jnp.asarray(numbers[name], x.dtype) for name in ("moves", "shift"))
        return bodies.values(y) - moves @ x + shift

    problem = Problem(upper=_planted_upper(numbers), lower=lower, constraints=constraints, x_set=Box(-1.0, 1.0))
    bounds = Bounds.between(-1.0, 1.0, n), Bounds.free(m)
    return MediumCase(problem, problem, np.zeros(n), np.zeros(m), *bounds, quadratic_rows=True, best=0.0)


def noisy_quadratic(n: int = 50, m: int = 50, rows: int = 5, sigma: float = 0.5, seed: int = 0) -> MediumCase:
    """`ellipsoids`, of which nothing but samples can be seen."""
    return with_samples(ellipsoids(n, m, rows, seed), sigma)


def with_samples(case: MediumCase, sigma: float) -> MediumCase:
    """The case with samples: f = F + <zeta, (x, y)> and g = G + <xi, (x, y)>, zeta and xi of N(0, sigma^2 I).

    The sources have no `exact`: nothing but samples can be seen of F and G. x and y must be arrays.
    """
    exact, entries = case.exact, np.size(case.x0) + np.size(case.y0)

    def draw(key: jax.Array, count: int) -> jax.Array:
        return sigma * jax.random.normal(key, (count, entries), float)

    def upper(x: jax.Array, y: jax.Array, zeta: jax.Array) -> jax.Array:
        return exact.upper(x, y, None) + linear_term(zeta, x, y)

    def lower(x: jax.Array, y: jax.Array, xi: jax.Array) -> jax.Array:
        return exact.lower(x, y, None) + linear_term(xi, x, y)

    problem = dataclasses.replace(exact, upper=upper, lower=lower, zeta=Sampler(draw), xi=Sampler(draw))
    return dataclasses.replace(case, problem=problem, sampled=True)


def qpec(number: int, folder: Path) -> MediumCase:
    """qpec-100-`number` of MacMPEC (S. Leyffer; made by QPECgen, H. Jiang and D. Ralph 1999) as a bilevel problem.

        min 1/2 x'Pxx x + x'Pxy y + 1/2 y'Pyy y + c'x + d'y  s.t.  Ax x + a <= 0,
        y = argmin over y >= 0 of 1/2 y'My + (Nx + q)'y, M symmetric positive definite

    The arrays are read from qpec-100-<number>.npz in the folder; they are not part of hierax.
    """
    data = np.load(folder / f"qpec-100-{number}.npz", allow_pickle=False)
    n, m = data["N"].shape[1], data["N"].shape[0]
    arrays = {name: np.asarray(data[name], float) for name in data}

    def of(name: str, like: jax.Array) -> jax.Array:
        return jnp.asarray(arrays[name], like.dtype)

    def upper(x: jax.Array, y: jax.Array, zeta: None) -> jax.Array:
        del zeta
        quadratic = 0.5 * x @ of("Pxx", x) @ x + x @ of("Pxy", x) @ y + 0.5 * y @ of("Pyy", y) @ y
        return quadratic + of("c", x) @ x + of("d", y) @ y

    def lower(x: jax.Array, y: jax.Array, xi: None) -> jax.Array:
        del xi
        return 0.5 * y @ of("M", y) @ y + (of("N", x) @ x + of("q", y)) @ y

    problem = Problem(
        upper=upper,
        lower=lower,
        upper_constraints=lambda x, y: of("Ax", x) @ x + of("a", x),
        y_set=NonNegative(),
    )
    return MediumCase(
        problem,
        problem,
        np.zeros(n),
        np.zeros(m),
        Bounds.free(n),
        Bounds(np.zeros(m), np.full(m, np.inf)),
        best=QPEC_BEST[number],
        published=True,
    )
