"""The certificate of a point whose lower level is trained rather than solved (`retraining.py`).

What can be known: whether the point keeps its constraints, whether another of several trainings ends with a lower G,
and what F does when x moves, from lower levels trained anew on both sides of x with the same starts and batches. All
of it carries the noise of training, with standard errors; none of it is a proof, so such a certificate never says yes.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree, Scalar

from hierax._base import trees
from hierax._base.text import entries, numbers_of, shown
from hierax._compile.configuration import float64
from hierax._engine.float64_problem import Data, Float64Problem
from hierax._engine.lengths import lengths_of
from hierax._engine.programs import raveled, unraveled
from hierax._judge.below import GapRange
from hierax._judge.inspection import Fields
from hierax._judge.point import violations
from hierax._judge.retraining import Retraining, Trained
from hierax._math.lagrangian import blockwise, nonnegative
from hierax._math.lower_level import INACCURATE, LowerSolution, level_at, multiplier_vector, residual_at, units_at
from hierax._math.spectrum import conjugate_gradients
from hierax._problem import sets
from hierax._problem.problem import Multipliers, Problem, Rows

ACCURATE = 1e-8  # what the KKT residual calls zero
COORDINATES = 4  # entries of x up to which each of them is moved by itself
RANDOM = 3  # else so many directions at random
STEP = 0.1  # how far x is moved, as a share of its size
ACTIVE = 1e-6  # rows within this of zero, as a share of what they change over the size of y, have a multiplier


class Move(NamedTuple):
    """What F does when x moves: means over the trainings, paired with those at x.

    Attributes:
        text: what was moved, and how far.
        x: where to.
        change: of F.
        error: its standard error.
    """

    text: str
    x: PyTree
    change: float
    error: float


class Retrained(NamedTuple):
    """What training anew says of a point.

    Attributes:
        trainings: how many under every x.
        upper: F at x, the mean over them.
        upper_error: its standard error.
        spread: standard deviation of G over the trainings at x.
        moves: of x, one after another.
        slope: the largest change of F per length of x along those moves.
        slope_error: its standard error.
    """

    trainings: int
    upper: float
    upper_error: float
    spread: float
    moves: tuple[Move, ...]
    slope: float | None
    slope_error: float | None

    def lower(self, least: float, sure: float) -> Move | None:
        """The move that lowers F the most, where that is by more than `least` and so many standard errors."""
        fine = [move for move in self.moves if -move.change > max(least, sure * move.error)]
        return min(fine, key=lambda move: move.change, default=None)


class _Comparison(NamedTuple):
    """(x, y) beside the reference solution.

    Attributes:
        violations: how much each constraint is violated, by block.
        lower_gap: G(x, y) - v(x).
        distance: ||y - y*(x)||.
        kkt_residual: of y, relative.
        slope: size of G's gradient.
        curvature: typical size of G's second derivatives.
    """

    violations: dict[str, PyTree]
    lower_gap: Scalar
    distance: Scalar
    kkt_residual: Scalar
    slope: Scalar
    curvature: Scalar


def trained_fields(retraining: Retraining, setting: Float64Problem, given: Multipliers | None, seed: int) -> Fields:
    """The fields of a certificate; where the time is up, as many as there are."""
    at = retraining.at(setting.x)
    own_y, own_lower = setting.y, float(setting.run("own G", _lower, setting.x, setting.y))
    y, lower = (own_y, own_lower) if at is None else (at.answer()[0], float(at.answer()[1].lower))
    best = y if lower < own_lower else own_y
    found = _reference(setting, best, min(lower, own_lower))
    compared = _compared(setting, found, given)
    with float64():
        low, high = map(np.asarray, sets.bounds(setting.bound.problem.x_set, setting.x))
    bounds = low, high
    v = raveled(setting.x)
    lengths = lengths_of(v, bounds, np.zeros(v.size), np.zeros(0, int), np.full(v.size, np.inf)).values
    of_y = float(np.sqrt(np.mean(numbers_of(own_y) ** 2))) or 1.0
    whole = of_y * numbers_of(own_y).size ** 0.5
    numbers: dict[str, PyTree] = {
        "reference": found,
        "lengths": (
            unraveled(setting.x, lengths),
            jax.tree.map(lambda leaf: np.full(leaf.shape, of_y), own_y),
        ),
        "not_convex": f"{retraining.why}: it is trained, not solved",
        "gap_range": GapRange(float(compared.slope) * whole, 0.5 * float(compared.curvature) * whole**2, 0.0, 0.0),
        "lower_gap": float(compared.lower_gap),
        "kkt_residual": float(compared.kkt_residual),
    }
    notes = {"distance": "y*(x) is not known: the lower level is trained, not solved"}
    if at is None:
        why = "the time was up before the lower level was trained once"
        return Fields(numbers | _feasibility(compared), notes | dict.fromkeys(("hypergradient_norm", "gains"), why))
    seen, scale = _moved(retraining, setting, at, lengths, bounds, seed)
    notes |= dict.fromkeys(("hypergradient_norm", "gains"), "by differences of retrained lower levels, see below")
    return Fields(numbers | _feasibility(compared) | {"retrained": seen, "upper_scale": scale}, notes)


def _feasibility(compared: _Comparison) -> dict[str, PyTree]:
    """The largest violation, and of what."""
    names = [name for block, tree in compared.violations.items() for name in entries(block, tree)]
    values = np.concatenate([numbers_of(tree) for tree in compared.violations.values()])
    worst = int(np.argmax(np.where(np.isnan(values), np.inf, values)))
    return {"max_violation": float(values[worst]), "violation": float(values[worst]), "worst": names[worst]}


def _compared(setting: Float64Problem, found: LowerSolution, given: Multipliers | None) -> _Comparison:
    """The setting's point beside the reference solution (which may be none)."""

    def program(problem: Problem, data: Data, x: PyTree, y: PyTree, found: LowerSolution, own: Rows) -> _Comparison:
        xi, accurate = data.xi, jnp.asarray(ACCURATE)
        level = level_at(problem, x, y, xi)
        mu = multiplier_vector(found._replace(multipliers=own), level.start.dtype)
        slope = jax.grad(level.objective)(level.start)
        units = units_at(level, level.start, level.rows(level.start), slope, accurate)
        return _Comparison(
            violations=violations(problem, x, y),
            lower_gap=problem.lower(x, y, xi) - problem.lower(x, found.y, xi),
            distance=trees.norm(trees.sub(y, found.y)),
            kkt_residual=residual_at(level, level.start, mu, accurate),
            slope=jnp.linalg.norm(slope),
            curvature=units.curvature,
        )

    own = found.multipliers if given is None else Rows(given.inequalities, given.equalities)
    return setting.run("compare", program, setting.x, setting.y, found, own)


def _lower(problem: Problem, data: Data, x: PyTree, y: PyTree) -> jax.Array:
    return problem.lower(x, y, data.xi)


def _reference(setting: Float64Problem, y: PyTree, value: float) -> LowerSolution:
    """The best training as a reference: its multipliers are the least-squares ones of the active rows."""

    def program(problem: Problem, data: Data, x: PyTree, y: PyTree, value: jax.Array) -> LowerSolution:
        over_y = jax.jvp(lambda at: problem.rows(x, at), (y,), (y,))[1]

        def active(at: PyTree) -> Rows:
            rows = problem.rows(x, at)
            return blockwise(lambda h, change: jnp.where(h > -ACTIVE * jnp.abs(change), h, 0.0), _first, rows, over_y)

        slope = jax.grad(lambda at: problem.lower(x, at, data.xi))(y)
        _, pull_back = jax.vjp(active, y)
        right = jax.tree.map(jnp.negative, jax.jvp(active, (y,), (slope,))[1])
        rows = conjugate_gradients(lambda v: jax.jvp(active, (y,), (pull_back(v)[0],))[1], right)
        faces = jax.tree.map(jnp.zeros_like, sets.faces(problem.y_set, y))
        nothing = jnp.zeros((), jnp.int32)
        return LowerSolution(y, nonnegative(rows), faces, value, jnp.full_like(value, jnp.nan), nothing, nothing)

    found = setting.run("multipliers of a training", program, setting.x, y, np.asarray(value))
    return found._replace(status=np.asarray(INACCURATE))


def _first(rows: jax.Array, _: jax.Array) -> jax.Array:
    return rows


def _moved(
    retraining: Retraining,
    setting: Float64Problem,
    at: Trained,
    lengths: np.ndarray,
    bounds: tuple[np.ndarray, ...],
    seed: int,
) -> tuple[Retrained, float]:
    """What retrained lower levels say of moves of x, and what F changes over a length of x."""
    v, here = raveled(setting.x), np.asarray(at.judged.upper)
    moves, slopes, scale = [], [(0.0, 0.0)], 0.0
    sizes = np.minimum(lengths, np.where(v != 0, np.abs(v), lengths))
    for name, direction in _directions(setting, sizes, seed):
        ends = []
        for side in (1.0, -1.0):
            there = np.clip(v + side * direction, *bounds)
            step = float(np.linalg.norm((there - v) / lengths))
            found = None if step == 0 else retraining.at(unraveled(setting.x, there))
            if found is None:
                continue
            change = np.asarray(found.judged.upper) - here
            ends.append((side * step, change))
            error = float(np.std(change, ddof=1)) / len(change) ** 0.5
            text = f"{name} moved to {shown(there[direction != 0])}"
            moves.append(Move(text, unraveled(setting.x, there), float(np.mean(change)), error))
        slope, curved = _slope(ends)
        if slope is not None:
            slopes.append((abs(float(np.mean(slope))), float(np.std(slope, ddof=1)) / len(slope) ** 0.5))
            scale = max(scale, abs(float(np.mean(slope))), 0.5 * abs(curved))
    steepest = max(slopes)
    seen = Retrained(
        trainings=len(here),
        upper=float(np.mean(here)),
        upper_error=float(np.std(here, ddof=1)) / len(here) ** 0.5,
        spread=float(np.std(at.judged.lower, ddof=1)),
        moves=tuple(moves),
        slope=steepest[0] if moves else None,
        slope_error=steepest[1] if moves else None,
    )
    return seen, scale


def _slope(ends: list[tuple[float, np.ndarray]]) -> tuple[np.ndarray | None, float]:
    """Slope of F per length of x, of every training, and the mean second derivative (zero from one side alone)."""
    if len(ends) < 2:
        return (ends[0][1] / ends[0][0], 0.0) if ends else (None, 0.0)
    (a, up), (b, down) = ends
    return (up - down) / (a - b), float(np.mean(2 * (up / a - down / b) / (a - b)))


def _directions(setting: Float64Problem, sizes: np.ndarray, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Moves of x in the user's units."""
    if sizes.size <= COORDINATES:
        for i, name in enumerate(entries("x", setting.x)):
            yield name, STEP * sizes * (np.arange(sizes.size) == i)
        return
    rng = np.random.default_rng(seed)
    for _ in range(RANDOM):
        yield "x", STEP * sizes * rng.choice([-1.0, 1.0], sizes.size)
