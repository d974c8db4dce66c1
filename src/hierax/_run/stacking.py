"""Solutions that were found one after another, as one `Solutions` with a leading axis of starts."""

from dataclasses import fields
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hierax._run.records import History
from hierax._run.solution import Counts, Solution, Solutions


def stacked(each: list[Solution]) -> Solutions:
    """All of them; a start without multipliers (it had no turn) has NaN there."""
    counts = {field.name: _sum([getattr(one.counts, field.name) for one in each]) for field in fields(Counts)}
    return Solutions(
        x=_together([one.x for one in each]),
        y=_together([one.y for one in each]),
        multipliers=_together(_alike([one.multipliers for one in each])),
        status=[one.status for one in each],
        history=_history([one.history for one in each]),
        counts=Counts(**counts),
        state=None,
        method=each[0].method,
        problem=each[0].problem,
        log=tuple(f"start {i}: {line}" for i, one in enumerate(each) for line in one.log),
        each=tuple(each),
    )


def _sum(counts: list[float | None]) -> Any:
    """None where one of them was not counted."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _together(trees: list[PyTree]) -> PyTree:
    """Arrays on a new leading axis (NumPy's stay NumPy's, with their precision); what is none, once."""

    def stack(*leaves: PyTree) -> PyTree:
        if not eqx.is_array_like(leaves[0]):
            return leaves[0]
        return (jnp if all(isinstance(leaf, jax.Array) for leaf in leaves) else np).stack(leaves)

    return jax.tree.map(stack, *trees)


def _alike(trees: list[PyTree]) -> list[PyTree]:
    """Empty trees filled with NaN in the form of the others."""
    full = next((tree for tree in trees if jax.tree.leaves(tree)), trees[0])
    unknown = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), full)
    return [tree if jax.tree.leaves(tree) else unknown for tree in trees]


def _history(each: list[History]) -> History:
    """One column per start; a start that ended before the others stays at its last record (NaN: it has none)."""
    most = max(len(history) for history in each)
    names = [name for name in max(each, key=len) if name != "step"]

    def padded(history: History, name: str) -> np.ndarray:
        column = np.asarray(history[name], float) if name in history else np.zeros(0)
        last = column[-1] if column.size else np.nan
        return np.concatenate([column, np.full(most - column.size, last)])

    columns = {name: np.stack([padded(history, name) for history in each], axis=1) for name in names}
    return History({"step": np.arange(1, most + 1), **columns})
