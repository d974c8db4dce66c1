"""What the records of a run say of its last point, in words that end a status message."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hierax._judge.certificate import SHOWN_TOLERANCE
from hierax._problem import sets
from hierax._problem.problem import Problem
from hierax._run.records import Records
from hierax._run.reports import Advice
from hierax._run.window import CYCLE_STEPS

HARDLY_MOVED_SHARE = 0.02  # x has hardly moved where it moved by less than this part of its size, or of its set's width
STRAIGHT_SHARE = 0.3  # part of the way it came that x has got away from its start, where noise does not lead it


def quality(records: Records, start: int, advice: Advice, tol: float | None) -> str:
    """How good a start's last point is by its own residuals."""
    last = records.of(start)
    if last is None:
        return ""
    stationarity, violation, distance = (last[name] for name in ("stationarity", "violation", "distance"))
    tol = tol or SHOWN_TOLERANCE
    below = f"y is {distance:.2g} from the inner solver's answer"
    if violation > max(distance, tol):
        below += ", which is not the lower level's solution: it is not feasible"
    elif distance > tol:
        below += f": {advice.bring_y_closer}"
    return f" (stationarity {stationarity:.2g}, violation {violation:.2g}, {below})"


def cycle(records: Records, start: int, advice: Advice, tol: float | None) -> str:
    """That the last steps cancel each other, where they do."""
    last, first = records.of(start), records.of(start, 0)
    if last is None or first is None or not last["cycling"]:
        return ""
    if last["stationarity"] <= max(tol or 0.0, HARDLY_MOVED_SHARE * first["stationarity"]):
        return ""
    return (
        " The last steps jump to and fro in a cycle: each is long, and together they lead nowhere. "
        f"{advice.shorten_steps}"
    )


class Way(NamedTuple):
    """The way of x in a run: its first step, and where it began and ended."""

    first: int
    before: PyTree
    after: PyTree


def no_movement(records: Records, start: int, advice: Advice, problem: Problem, way: Way) -> str:
    """That x has hardly moved although its direction is not zero, where that is so.

    Noise moves x to and fro: where the way it came is much longer than the distance, it need not go further.
    """
    last = records.of(start)
    if last is None or last["step"] - way.first <= CYCLE_STEPS:
        return ""
    ends = (way.before, way.after)
    x0, x = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in ends)
    sizes, moved = np.maximum(np.maximum(np.abs(x), np.abs(x0)), 1.0), float(np.linalg.norm(x - x0))
    if moved > HARDLY_MOVED_SHARE * np.linalg.norm(sizes) or moved < STRAIGHT_SHARE * records.path(start, way.first):
        return ""
    box = sets.bounds(problem.x_set, jax.tree.map(jnp.asarray, way.after))
    length = float(np.linalg.norm(np.minimum(sizes, np.asarray(box.upper) - np.asarray(box.lower))))
    if moved > HARDLY_MOVED_SHARE * length or last["slope_x"] * length < HARDLY_MOVED_SHARE * (1 + abs(last["upper"])):
        return ""
    return (
        f" x has moved by {moved:.1g} in all, {moved / length:.2g} of its size or its set's width, and its direction "
        f"is not zero: {advice.lengthen_x_step}"
    )


def hints(records: Records, start: int, advice: Advice, tol: float | None, problem: Problem, way: Way) -> str:
    """What to do about a run that was ended before it was done."""
    return cycle(records, start, advice, tol) or no_movement(records, start, advice, problem, way)
