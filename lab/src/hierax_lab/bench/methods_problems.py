"""The problems of `hierax bench methods`: six kinds, each with its optimum known from the way the problem is made.

A problem is given to a method as it is, or as samples alone (`with_samples`). What is known of it, x*, F* and y*(x),
stays with the judge.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hierax import Box, Problem
from hierax.problems import toy
from hierax.problems.example import Example
from hierax.problems.toy import SIDE
from hierax_lab.bench.medium_case import Bounds, Functions, MediumCase
from hierax_lab.bench.medium_planted import ellipsoid_numbers, ellipsoids, with_samples
from hierax_lab.problems import gaffa_toy, kinked, random_qp, synthetic
from hierax_lab.problems.random_qp import X_BOUND
from hierax_lab.problems.synthetic import Y_BOUND

KINDS = {
    "toy": "the toy of BLOCC: one variable each, a nonconvex F",
    "linear": "affine inequalities below",
    "nonlinear": "ellipsoids below that move with x",
    "equality": "affine equalities below",
    "non-unique": "a lower level with many solutions; the best one counts",
    "degenerate": "a kink of y*(x) at the optimum: rows active with multiplier zero",
}


class TableCase(NamedTuple):
    """A problem with its answer.

    Attributes:
        case: problem, start, bounds, F* (`best`), and y*(x) where a formula gives it (else it is solved for).
        x: x*, flat.
    """

    case: MediumCase
    x: np.ndarray


class Entry(NamedTuple):
    """A row of the table before it is built: what kind of problem, and the standard deviation of its samples."""

    kind: str
    build: Callable[[], TableCase]
    sigma: float = 0.0

    def built(self) -> TableCase:
        """The problem; with samples where there are any."""
        found = self.build()
        return found if not self.sigma else found._replace(case=with_samples(found.case, self.sigma))

    @property
    def seeds(self) -> int:
        """Runs of every method: what has no noise is run once."""
        return 2 if self.sigma else 1


def _of_example(
    example: Example, x_bounds: Bounds, y_bounds: Bounds, solution: int = 0, rows: bool = False, **known: object
) -> TableCase:
    """An example of `hierax.problems` without noise; `rows`: its rows are quadratic in y."""
    answer = example.solutions[solution]
    case = MediumCase(
        example.problem,
        example.problem,
        example.x0,
        example.y0,
        x_bounds,
        y_bounds,
        quadratic_rows=rows,
        best=answer.upper,
        **known,  # type: ignore[arg-type]  # fields of MediumCase by name
    )
    return TableCase(case, np.ravel(answer.x))


def toy_from(start: float, scale: float = 1.0) -> TableCase:
    """The toy from a start in the basin of its best minimiser, which is the second; y*(x) = x.

    `scale` states it in other units: x, y, H and G are multiplied by it, F is divided by it.
    """
    example = toy(0.0, scale_upper=1 / scale, scale_lower=scale, scale_constraint=scale, stretch=scale)
    example = example._replace(x0=np.asarray(scale * start), y0=np.asarray(scale * start))
    side = Bounds.between(0.0, SIDE * scale, 1)
    return _of_example(example, side, side, solution=1, lower_solution=lambda x: x)


def affine(seed: int, nx: int, ny: int, p: int, equalities: int) -> TableCase:
    """`hierax_lab.problems.random_qp`; without inequalities y*(x) is the solution of a linear system."""
    example = random_qp(seed, nx, ny, p, equalities)
    found = _of_example(example, Bounds.between(-X_BOUND, X_BOUND, nx), Bounds.free(ny))
    return found if p else found._replace(case=dataclasses.replace(found.case, lower_solution=_by_elimination(found)))


def _by_elimination(table: TableCase) -> Callable[[np.ndarray], np.ndarray]:
    """y*(x) = -A^-1 (g + B'nu), B y = -e, of a quadratic G with gradient g at y = 0 and affine equalities with value e.

    The system is eliminated once; far quicker than a conic solver at every x where there are hundreds of entries.
    """
    functions = Functions(table.case)
    zero = np.zeros(functions.sizes.y)
    hessian, (_, slopes) = functions.lower_hessian(table.x, zero), functions.equal(table.x, zero)
    size = len(slopes)
    inverse = np.linalg.inv(np.block([[hessian, slopes.T], [slopes, np.zeros((size, size))]]))

    def solved(x: np.ndarray) -> np.ndarray:
        right = -np.concatenate([functions.lower(x, zero)[1], functions.equal(x, zero)[0]])
        return np.asarray((inverse @ right)[: zero.size])

    return solved


def moving_ellipsoids(seed: int, nx: int, ny: int, p: int) -> TableCase:
    """`hierax_lab.problems.synthetic` without noise."""
    example = synthetic(0.0, seed=seed, nx=nx, ny=ny, p=p)
    bounds = Bounds.between(-2.0, 2.0, nx), Bounds.between(-Y_BOUND, Y_BOUND, ny)
    return _of_example(example, *bounds, rows=True)


def planted_bodies(n: int, m: int, rows: int) -> TableCase:
    """`ellipsoids` of `hierax bench medium`."""
    return TableCase(ellipsoids(n, m, rows), ellipsoid_numbers(n, m, rows)["x"])


def free_cubes(n: int) -> TableCase:
    """`gaffa_toy` with cubes: y1 = x + 1, and of all y2 with sum s the closest to -3 has equal entries s / n."""

    def best(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x + 1.0, np.full(n, -(np.sum(x**3) + np.sum(x + 1.0)) / n)])

    return _of_example(gaffa_toy(n, cubic=True), Bounds.free(n), Bounds.free(2 * n), lower_solution=best)


def flat_valley(m: int, seed: int = 0) -> TableCase:
    """A lower level that sees y through its sum alone; x is one number.

        min_{x in [-2m,2m]}  1/2 (x - b)^2 + 1/2 ||y - a||^2,   y in argmin { 1/2 (1'y - x)^2 : -5 <= y <= 5, y_1 <= 4 }

    with a uniform in [0, 1] and b = 1'a + m. The best of the solutions is y = a + (x - 1'a)/m as long as no row is
    active, which leaves 1/2 (x - b)^2 + (x - 1'a)^2 / (2m): x* = (m b + 1'a) / (m + 1), where every y_i is at most 2.
    """
    a = np.random.default_rng(seed).uniform(0.0, 1.0, m)
    total, target = a.sum(), a.sum() + m
    x = (m * target + total) / (m + 1)

    def upper(x: Array, y: Array, zeta: None) -> Array:
        del zeta
        return 0.5 * (x - target) ** 2 + 0.5 * jnp.sum((y - jnp.asarray(a, y.dtype)) ** 2)

    def best(x: np.ndarray) -> np.ndarray:
        """The projection of a on {y : 1'y = x, bounds}: a plus one number, cut off at the bounds; by bisection."""
        top = np.minimum(5.0, np.where(np.arange(m) == 0, 4.0, 5.0))
        low, high = -10.0, 10.0
        for _ in range(80):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if np.clip(a + middle, -5.0, top).sum() < x[0] else (low, middle)
        return np.clip(a + low, -5.0, top)

    problem = Problem(
        upper=upper,
        lower=lambda x, y, xi: 0.5 * (jnp.sum(y) - x) ** 2,
        constraints=lambda x, y: y[0] - 4.0,
        x_set=Box(-2.0 * m, 2.0 * m),
        y_set=Box(-5.0, 5.0),
    )
    value = 0.5 * (x - target) ** 2 + (x - total) ** 2 / (2 * m)
    bounds = Bounds.between(-2.0 * m, 2.0 * m, 1), Bounds.between(-5.0, 5.0, m)
    case = MediumCase(problem, problem, np.asarray(0.0), np.zeros(m), *bounds, best=value, lower_solution=best)
    return TableCase(case, np.atleast_1d(x))


def kinks(n: int, seed: int = 0) -> TableCase:
    """`kinked` in n coordinates of a random basis: with u = Qx, Q orthogonal, y*(x) = min(u, 1) and all kinks at x*.

        min_x  1/2 ||Qx - a||^2 + 1/2 ||y - b||^2,   y = argmin { ||y - Qx||^2 : y <= 1 }

    with a_i uniform in [0.2, 0.8] and b_i in [2, 3]: the slope of the i-th term at u_i = 1 is 2 - a_i - b_i < 0 to the
    left and 1 - a_i > 0 to the right, so u = 1 is the only minimiser. X = [-r, r]^n, r = 3 sqrt(n), never binds.
    """
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(0.2, 0.8, n), rng.uniform(2.0, 3.0, n)
    basis, _ = np.linalg.qr(rng.standard_normal((n, n)))
    reach = 3.0 * n**0.5

    def upper(x: Array, y: Array, zeta: None) -> Array:
        del zeta
        target_x, target_y, q = (jnp.asarray(part, y.dtype) for part in (a, b, basis))
        return 0.5 * jnp.sum((q @ x - target_x) ** 2) + 0.5 * jnp.sum((y - target_y) ** 2)

    problem = Problem(
        upper=upper,
        lower=lambda x, y, xi: jnp.sum((y - jnp.asarray(basis, y.dtype) @ x) ** 2),
        constraints=lambda x, y: y - 1.0,
        x_set=Box(-reach, reach),
    )
    start = basis.T @ np.where(np.arange(n) % 2, 2.0, 0.0)  # one coordinate in two on either side
    case = MediumCase(
        problem,
        problem,
        start,
        np.zeros(n),
        Bounds.between(-reach, reach, n),
        Bounds.free(n),
        best=float(0.5 * np.sum((1 - a) ** 2) + 0.5 * np.sum((1 - b) ** 2)),
        lower_solution=lambda x: np.minimum(basis @ x, 1.0),
    )
    return TableCase(case, basis.T @ np.ones(n))


def two_kinks() -> TableCase:
    """`hierax_lab.problems.kinked`."""
    return _of_example(
        kinked(), Bounds.between(-3.0, 3.0, 2), Bounds.free(2), lower_solution=lambda x: np.minimum(x, 1.0)
    )


TOY_START = 0.6  # in the basin of the best minimiser, 0.986: F(x, x) falls all the way

ENTRIES: dict[str, Entry] = {
    "toy": Entry("toy", partial(toy_from, TOY_START)),
    "toy, other units": Entry("toy", partial(toy_from, TOY_START, 10.0)),
    "toy, samples": Entry("toy", partial(toy_from, TOY_START), 0.1),
    "rows 5+8": Entry("linear", partial(affine, 0, 5, 8, 6, 0)),
    "rows 20+80": Entry("linear", partial(affine, 0, 20, 80, 40, 0)),
    "rows 5+8, samples": Entry("linear", partial(affine, 0, 5, 8, 6, 0), 0.2),
    "ellipsoids 10+20": Entry("nonlinear", partial(moving_ellipsoids, 0, 10, 20, 5)),
    "ellipsoids 20+130": Entry("nonlinear", partial(planted_bodies, 20, 130, 8)),
    "ellipsoids 10+20, samples": Entry("nonlinear", partial(moving_ellipsoids, 0, 10, 20, 5), 0.2),
    "equalities 5+8": Entry("equality", partial(affine, 0, 5, 8, 0, 4)),
    "equalities 100+400": Entry("equality", partial(affine, 0, 100, 400, 0, 50)),
    "equalities 5+8, samples": Entry("equality", partial(affine, 0, 5, 8, 0, 4), 0.2),
    "free cubes 10+20": Entry("non-unique", partial(free_cubes, 10)),
    "valley 1+9": Entry("non-unique", partial(flat_valley, 9)),
    "valley 1+9, samples": Entry("non-unique", partial(flat_valley, 9), 0.1),
    "kinks 2+2": Entry("degenerate", two_kinks),
    "kinks 250+250": Entry("degenerate", partial(kinks, 250)),
    "kinks 10+10, samples": Entry("degenerate", partial(kinks, 10), 0.2),
}
