"""The value v(x) of a lower level at one x, settled: that no y is lower than the best known one, proved.

With the multipliers mu of a solution p and L = G + mu.rows, every feasible y has G(y) >= L(y). So on a box

    G(y) >= L(p) + grad L(p).(y - p)    where L is convex on the box that holds the box and p,
    G(y) >= G, or L, from interval arithmetic, and L(middle) - |grad L|.|y - middle| from bounds of the slopes.

Where the programs of G and the rows show that L is convex everywhere, the first line is all. Else bounds of the Hessian
over the box around Y may show it. Up to FEW entries of a bounded Y, boxes on which no bound reaches v(x) are halved
until none is left, or a lower y is found (branch and bound).
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hierax._base.intervals import bounds
from hierax._engine.float64_problem import FEW, convex_below
from hierax._engine.programs import BY_TABLE, FEASIBLE, Branches, Traced
from hierax._engine.segments import FLAT
from hierax._engine.vectors import VectorProblem
from hierax._lower.linear import Matrices
from hierax._math.lower_level import SOLVED, unraveled

BOXES = 64  # bounded in one call
ROUNDS = 300  # calls at most


class Enclosed(NamedTuple):
    """What is known of one box.

    Attributes:
        least: of G on it (natural bounds, and those by slopes from the middle); infinite where no point is feasible.
        middle: G in its middle.
        beyond: by how much the middle violates the rows.
        tangent: L at the known solution, and its gradient there.
        curved: bounds of the Hessian of L over the box that holds both.
    """

    least: Any
    middle: Any
    beyond: Any
    tangent: Any
    curved: Any


def enclosed(traced: Traced, x: Array, box: Array, point: Array, mu: Array) -> Enclosed:
    """What is known of a box (its two corners) and a known solution."""
    level, (low, high) = traced.level(x, point), box
    middle, half = 0.5 * (low + high), 0.5 * (high - low)

    def lagrangian(y: Array) -> Array:
        return level.objective(y) + mu @ level.rows(y)

    def over(function: Callable[[Array], Array], low: Array, high: Array) -> Array:
        return jnp.stack(bounds(function, low, high)[0])

    rows = over(level.rows, low, high)
    impossible = jnp.where(level.equal, jnp.maximum(rows[0], -rows[1]), rows[0])
    slope = jnp.max(jnp.abs(over(jax.grad(lagrangian), low, high)), axis=0)
    by_slope = lagrangian(middle) - jnp.sum(jnp.where(half > 0, slope * half, 0.0))
    plain = [over(function, low, high)[0] for function in (level.objective, lagrangian)]
    least = jnp.max(jnp.nan_to_num(jnp.stack([*plain, by_slope]), nan=-jnp.inf, posinf=jnp.inf, neginf=-jnp.inf))
    there = level.rows(middle)
    value, gradient = jax.value_and_grad(lagrangian)(point)
    return Enclosed(
        least=jnp.where(jnp.max(impossible, initial=-jnp.inf) > FEASIBLE, jnp.inf, least),
        middle=level.objective(middle),
        beyond=jnp.max(jnp.where(level.equal, jnp.abs(there), there), initial=0.0),
        tangent=jnp.concatenate([value[None], gradient]),
        curved=over(jax.jacfwd(jax.grad(lagrangian)), jnp.minimum(low, point), jnp.maximum(high, point)),
    )


def settled(vectors: VectorProblem, x: np.ndarray, found: Branches) -> tuple[Branches, float]:
    """The lower level's solutions at x, lower ones added; no y is lower by more than the number (infinite: unknown)."""
    best, programs = found.best(), vectors.programs
    if programs.hand is not None:  # convex by the word of who wrote it
        return found, 0.0
    if best is None or found.status[best] != SOLVED or found.unbounded:
        return found, np.inf

    def convex_here() -> bool:
        matrices = vectors.functions.matrices(x, found.y[best], found.mu[best])
        return isinstance(matrices, Matrices) and matrices.convex(0.5 * FLAT)

    if convex_below(programs.setting, unraveled(programs.setting.x, x * vectors.x_unit), convex_here):
        return found, 0.0
    if programs.large or vectors.layout.ny + vectors.layout.rows > BY_TABLE:
        return found, np.inf
    return _Halving(vectors, x, found).run()


class _Halving:
    """Branch and bound at one x."""

    def __init__(self, vectors: VectorProblem, x: np.ndarray, found: Branches) -> None:
        self.vectors, self.x, self.found = vectors, x, found

    @property
    def enough(self) -> float:
        """The value at which a bound leaves nothing to look for: v(x), less what counts as none."""
        value = self.found.value[self.found.best()]
        return float(value - FEASIBLE * (1 + abs(value)))

    def run(self) -> tuple[Branches, float]:
        """The solutions, and by how much a y may still be lower."""
        limits = np.stack(self.vectors.y_limits)
        bound, *_ = self._bounded(limits[None])
        if bound[0] >= self.enough:
            return self.found, 0.0
        if limits.shape[1] > FEW or not np.isfinite(limits).all():
            return self.found, np.inf
        sides = [np.linspace(low, high, 1 + round(BOXES ** (1 / limits.shape[1]))) for low, high in limits.T]
        boxes = np.array([np.transpose(box) for box in itertools.product(*map(list, map(itertools.pairwise, sides)))])
        known, least = np.zeros((0, *limits.shape)), np.zeros(0)
        for turn in range(1, ROUNDS + 1):
            bound, middle, beyond = self._bounded(boxes)
            known, least = np.concatenate([known, boxes]), np.concatenate([least, bound])
            self._look(boxes, np.where(beyond <= FEASIBLE, middle, np.inf), bound, turn)
            left = least < self.enough
            known, least = known[left], least[left]
            if not left.any():
                return self.found, 0.0
            first = np.argsort(least, kind="stable")[: BOXES // 2]
            boxes = np.concatenate([_half(known[first], side) for side in (0, 1)])
            known, least = np.delete(known, first, axis=0), np.delete(least, first)
        lowest = min(np.min(least, initial=np.inf), np.min(bound))
        return self.found, float(self.found.value[self.found.best()] - lowest)

    def _look(self, boxes: np.ndarray, middle: np.ndarray, bound: np.ndarray, turn: int) -> None:
        """Solve the lower level from a box where G may be lower: where its middle is, and else now and then."""
        place = int(np.argmin(middle))
        if not middle[place] < self.enough:
            place = int(np.argmin(bound))
            if not bound[place] < self.enough or turn & (turn - 1) or np.isfinite(middle[place]):
                return
        start, none = boxes[place].mean(axis=0), np.zeros((1, self.vectors.layout.rows))
        found = self.vectors.functions.branches(self.x, start[None], none, False)
        best = found.best()
        if best is not None and found.status[best] == SOLVED and found.value[best] < self.enough:
            self.found = Branches.joined([self.found, found])

    @np.errstate(invalid="ignore", over="ignore")
    def _bounded(self, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lower bounds of G on boxes, what G is in their middles, and by how much these violate."""
        solved = np.flatnonzero(self.found.status == SOLVED)
        middles = np.nan_to_num(boxes.mean(axis=1))
        near = solved[np.argmin(np.abs(middles[:, None] - self.found.y[solved]).max(axis=2), axis=1)]
        points, mu = self.found.y[near], self.found.mu[near]
        mu = np.where(self.vectors.layout.equal, mu, np.maximum(mu, 0.0))
        turns, every = np.arange(BOXES) % len(boxes), jax.vmap(enclosed, in_axes=(None, None, 0, 0, 0))
        found = self.vectors.functions.call("enclosed", every, self.x, boxes[turns], points[turns], mu[turns])
        one = Enclosed(*(np.asarray(part)[: len(boxes)] for part in found))
        middle, radius = 0.5 * one.curved.sum(axis=1), 0.5 * np.diff(one.curved, axis=1)[:, 0]
        known = np.isfinite(middle + radius).all(axis=(1, 2))[:, None, None]
        middle, radius = np.where(known, middle, 0.0), np.where(known, radius, np.inf)
        lowest = np.linalg.eigvalsh(0.5 * (middle + middle.transpose(0, 2, 1)))[:, 0] - radius.sum(axis=2).max(axis=1)
        rise = one.tangent[:, None, 1:] * (boxes - points[:, None])
        by_tangent = one.tangent[:, 0] + np.where(np.isnan(rise), 0.0, rise).min(axis=1).sum(axis=1)
        convex = lowest >= -FLAT * np.maximum(1.0, np.abs(middle).max(axis=(1, 2)))
        return np.where(convex, np.maximum(one.least, by_tangent), one.least), one.middle, one.beyond


def _half(boxes: np.ndarray, side: int) -> np.ndarray:
    """One half of each of some boxes, cut across their widest side."""
    halves, every = boxes.copy(), np.arange(len(boxes))
    widest = np.argmax(boxes[:, 1] - boxes[:, 0], axis=1)
    halves[every, 1 - side, widest] = 0.5 * (boxes[every, 0, widest] + boxes[every, 1, widest])
    return halves
