r"""F with the value function as a penalty, y eliminated, for lower levels that are not convex and no longer small.

    phi_c(x) = min over y in Y, h <= 0, e = 0 of [F + c f + AL(G; nu)](x, y)  -  c v(x),    v(x) the same of f

with the upper constraints G in an augmented Lagrangian. Both minima come from `Exact`, from several points each, and
the gradient from the envelope theorem. c grows; L-BFGS-B moves x.
"""

import dataclasses
from typing import Any, Generic, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._auto.constants import C1_GROWTH, PATIENCE, ROUNDING, SQP_CHANGE, SQP_ITERATIONS, STRETCH, TURNS
from hierax._auto.session import Work
from hierax._auto.space import Space
from hierax._auto.sqp import Evaluated, Progress, Stop, nowhere, quasi_newton
from hierax._engine.float64_problem import Data
from hierax._engine.programs import FEASIBLE
from hierax._engine.traced import Trees, Units, Vector, in_units, upper_rows
from hierax._engine.vectors import Point
from hierax._lower.exact import Branches, Exact
from hierax._math.lower_level import SOLVED
from hierax._problem.problem import Problem


class Penalty(NamedTuple):
    """The weights of f - v and of the augmented Lagrangian, and the multipliers of the upper constraints."""

    c: Any
    c2: Any
    nu: Any


class Below(NamedTuple, Generic[Vector]):
    """Minimisers of the penalised objective (y) and of f (w) with their multipliers, from which the next ones start."""

    y: Vector
    y_mu: Vector
    w: Vector
    w_mu: Vector


def penalised(space: Space, work: Work, x: np.ndarray, y: np.ndarray) -> tuple[Point, Point]:
    """The end of a descent for growing c: with y as penalised, and with y as the lower level has it."""
    vectors = space.vectors
    fixed, cover = (vectors.programs.trees, vectors.units), vectors.lower_starts[1 : TURNS - 1]
    none, penalty = np.zeros(vectors.layout.rows), Penalty(1.0, STRETCH, np.zeros(vectors.layout.above))
    last: Below[np.ndarray] = Below(y, none, y, none)
    program = vectors.programs.setting.ready("penalty", _phi, *fixed, x, penalty, last, cover)
    progress = Progress()
    best: list[tuple[np.ndarray, Below[np.ndarray], np.ndarray]] = []

    def evaluate(u: np.ndarray) -> Evaluated:
        nonlocal last
        value, slope, last, above = program(*fixed, u, penalty, last, cover)
        if not np.isfinite(value):
            return nowhere(u.size, 0, 0)
        if progress.best is None or value < progress.best[0]:
            best[:] = [(u.copy(), last, above)]
        progress.note(float(value), 0.0, Point(u, last.y, last.y_mu))
        empty = np.zeros(0), np.zeros((0, u.size))
        return Evaluated.of((value, slope), empty, empty)

    for power in range(PATIENCE):
        c = C1_GROWTH**power
        penalty = Penalty(c, STRETCH * c, penalty.nu * (c / penalty.c))  # multipliers grow with the objective
        for _ in range(2):
            if work.passed:
                break
            progress = Progress()
            stop = Stop(SQP_ITERATIONS // TURNS, SQP_CHANGE, work)
            quasi_newton(evaluate, x, vectors.x_limits, stop, ROUNDING)
            if best:
                x, last, above = best[0]
                penalty = penalty._replace(nu=np.maximum(penalty.nu + penalty.c2 * above, 0.0))
    return Point(x, last.y, last.y_mu / (1 + penalty.c)), Point(x, last.w, last.w_mu)


class _Own(NamedTuple):
    """What the penalised objective depends on beside (x, y): it stands in the place of the lower level's samples."""

    data: Data
    penalty: Penalty


def _phi(
    problem: Problem,
    data: Data,
    trees: Trees,
    units: Units,
    x: Array,
    penalty: Penalty,
    last: Below[Array],
    cover: Array,
) -> tuple[Array, Array, Below[Array], Array]:
    """phi_c, its gradient, the two minimisers and G; lower solves start from the last ones and from `cover`."""
    problem = in_units(problem, units)

    def objective(x: PyTree, y: PyTree, own: _Own) -> Array:
        c, c2, nu = own.penalty
        shifted = jnp.maximum(nu + c2 * upper_rows(problem, x, y), 0.0)
        constrained = jnp.sum(shifted**2 - nu**2) / (2 * c2)
        return problem.upper(x, y, own.data.zeta) + c * problem.lower(x, y, own.data.xi) + constrained

    both, c = dataclasses.replace(problem, lower=objective), penalty.c
    at, zero = trees.x_of(x), jnp.zeros_like(last.w_mu)
    ys, mu = jnp.stack([last.w, last.y, *cover]), jnp.stack([last.w_mu, zero, *(zero for _ in cover)])
    lower = _lowest(Exact(starts=len(ys)).branches(problem, at, trees.y, data.xi, ys, mu))
    first_mu = jnp.where(jnp.any(last.y_mu != 0), last.y_mu, c * lower.mu)
    ys, mu = jnp.stack([last.y, lower.v]), jnp.stack([first_mu, c * lower.mu])
    upper = _lowest(Exact(starts=2).branches(both, at, trees.y, _Own(data, penalty), ys, mu))
    value = upper.value - c * lower.value
    fine = jnp.isfinite(value) & (upper.violation <= FEASIBLE) & (lower.violation <= FEASIBLE)
    found = Below(upper.v, upper.mu, lower.v, lower.mu)
    above = upper_rows(problem, at, trees.y_of(upper.v))
    return jnp.where(fine, value, jnp.inf), upper.slope - c * lower.slope, found, above


def _lowest(found: Branches) -> Branches:
    """The solved branch of lowest value; else a feasible one, else any."""
    usable = found.violation <= FEASIBLE
    rank = jnp.where(usable & (found.status == SOLVED), 0, jnp.where(usable, 1, 2))
    first = jnp.lexsort((jnp.where(jnp.isfinite(found.value), found.value, jnp.inf), rank))[0]
    return Branches(*(part[first] for part in found))
