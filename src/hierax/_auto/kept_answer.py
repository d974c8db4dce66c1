"""The answer of `Auto` as a checkpoint keeps it, and the seconds of a search that is not done yet."""

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from hierax._compile.precision import as_answer
from hierax._problem.problem import Multipliers
from hierax._run.notes import Notes
from hierax._run.prepare import Prepared
from hierax._run.records import History
from hierax._run.solution import Counts, Solution, changed
from hierax._run.starts import Starts
from hierax._run.status import Kind, Status

if TYPE_CHECKING:
    from hierax._auto.auto import Auto

GOES_ON = (Kind.SECONDS, Kind.INTERRUPTED, Kind.STOPPED, Kind.MAX_STEPS, Kind.SAMPLES, Kind.DATA_ERROR)
"""Kinds of endings after which the same call goes on: with the time, the steps or the data that were missing."""


class KeptAnswer(NamedTuple):
    """A solution without its problem: arrays of its trees, and everything else as numbers and texts."""

    x: list[np.ndarray]
    y: list[np.ndarray]
    multipliers: list[np.ndarray]
    kind: str
    message: str
    step: int
    history: dict[str, np.ndarray]
    counts: Counts
    log: list[str]
    tol: float
    settings: dict[str, Any]
    starts: Starts = Starts()


TYPES = (KeptAnswer, Counts, Starts)


def kept_answer(solution: Solution) -> KeptAnswer:
    """What is kept of a solution of `Auto`; its certificate is made again when it is asked for."""
    status = solution.status
    return KeptAnswer(
        x=arrays_of(solution.x),
        y=arrays_of(solution.y),
        multipliers=arrays_of(solution.multipliers),
        kind=status.kind.name,
        message=status.message,
        step=status.step,
        history=dict(solution.history.items()),
        counts=solution.counts,
        log=list(solution.log),
        tol=solution.tol,
        settings={field.name: getattr(solution.method, field.name) for field in dataclasses.fields(solution.method)},
        starts=solution.starts,
    )


def answer_of(kept: KeptAnswer, auto: "Auto", prepared: Prepared) -> Solution:
    """The solution that was kept."""
    x, y = prepared.whole(*as_answer((tree_of(kept.x, prepared.x), tree_of(kept.y, prepared.y))))
    return Solution(
        x=x,
        y=y,
        multipliers=as_answer(tree_of(kept.multipliers, form_of_multipliers(prepared))),
        status=Status(Kind[kept.kind], kept.message, kept.step),
        history=History(kept.history),
        counts=kept.counts,
        state=None,
        method=dataclasses.replace(auto, **kept.settings),
        problem=prepared.problem,
        log=tuple(kept.log),
        tol=kept.tol,
        starts=kept.starts,
    )


def arrays_of(tree: PyTree) -> list[np.ndarray]:
    """The arrays of a tree, on the host."""
    return [np.array(leaf) for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]


def tree_of(arrays: list[np.ndarray], like: PyTree) -> PyTree:
    """Arrays in the structure of a tree."""
    return jax.tree.unflatten(jax.tree.structure(like), arrays)


def form_of_multipliers(prepared: Prepared) -> Multipliers:
    """Shapes of the multipliers of the problem's constraints."""
    x, y = prepared.one_start()
    names = ("constraints", "equalities", "upper_constraints")
    return Multipliers(*(jax.eval_shape(prepared.stated(name), x, y) for name in names))


def add_up(notes: Notes, solution: Solution) -> Solution:
    """The solution with the seconds of earlier calls; where the search goes on, they are kept for the next one."""
    seconds, compiling = notes.take("seconds") or (0.0, 0.0)
    counts = solution.counts
    counts = dataclasses.replace(
        counts, seconds=counts.seconds + seconds, compile_seconds=counts.compile_seconds + compiling
    )
    if solution.status.kind in GOES_ON:
        notes.put("seconds", (counts.seconds, counts.compile_seconds), solution.status.name)
    return changed(solution, counts=counts)
