"""What a point is judged by: the lower level's reference solution at its x, in double precision, on all of the data.

`certify` and `check` both start here. Everything happens inside `jax.enable_x64(True)`, with the variables and the data
cast to float64; the caller's configuration and arrays stay as they are. Functions that close over float32 arrays
promote: their results are float64, with the accuracy that those arrays leave.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from hierax._base.errors import InputError
from hierax._base.trees import split_variable
from hierax._compile.programs import Bound
from hierax._lower.base import AbstractLowerSolver
from hierax._math.lower_level import LowerSolution
from hierax._problem.problem import Problem, Rows
from hierax._problem.samples import Finite, Sampler, Stream

WEAK = 1e-5  # rows whose slack and multiplier are both below this share of y's size are weakly active
GROUPS = 16  # groups of fresh samples, whose differences show the standard error


class Batch(NamedTuple):
    """What stands for an expectation: all there is, or (`fresh`) a sample."""

    rows: PyTree
    fresh: bool
    text: str

    def groups(self) -> PyTree:
        """The sample cut into groups, on a new leading axis."""
        return jax.tree.map(lambda leaf: leaf.reshape(GROUPS, -1, *leaf.shape[1:]), self.rows)


class Setting(NamedTuple):
    """A problem and a point in double precision, ready to compile."""

    bound: Bound
    x: PyTree
    y: PyTree
    x_rest: PyTree
    y_rest: PyTree
    zeta: Batch
    xi: Batch

    @property
    def sampled(self) -> bool:
        """Whether any expectation is only known from a sample."""
        return self.zeta.fresh or self.xi.fresh

    def batches(self) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
        """The batches by name: those that are all there is, and the groups of those that are samples."""
        both = {"zeta": self.zeta, "xi": self.xi}
        fixed = {name: batch.rows for name, batch in both.items() if not batch.fresh}
        return fixed, {name: batch.groups() for name, batch in both.items() if batch.fresh}


@contextmanager
def double_precision(problem: Problem, x: PyTree, y: PyTree, samples: int, seed: int) -> Iterator[Setting]:
    """The problem and the point in float64; so is everything computed inside the block."""
    refuse(problem, samples, seed)
    with jax.enable_x64(True):
        sources = {name: _doubled_source(getattr(problem, name)) for name in ("zeta", "xi")}
        x, x_rest = split_variable("x", x)
        y, y_rest = split_variable("y", y)
        x, y = doubled((x, y))
        bound = Bound(dataclasses.replace(problem, **sources), x_rest, y_rest)
        zeta, xi = (_batch(bound, name, seed, which, samples) for which, name in enumerate(("zeta", "xi")))
        setting = Setting(bound, x, y, x_rest, y_rest, zeta, xi)
        _trace(setting)
        yield setting


def _trace(setting: Setting) -> None:
    """Trace every function wherever it will be called.

    The key of a program holds all traces of its problem: if they grew on the way, the same program would compile twice.
    """
    for name in ("constraints", "equalities", "upper_constraints"):
        setting.bound.trace(name, (setting.x, setting.y))
    for name, batch in (("upper", setting.zeta), ("lower", setting.xi)):
        parts = [batch.rows]
        if batch.fresh:
            parts.append(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch.groups()))
        for part in parts:
            setting.bound.trace(name, (setting.x, setting.y, part))


def refuse(problem: Any, samples: Any, seed: Any) -> None:
    """Raise InputError where nothing can be judged."""
    if not isinstance(problem, Problem):
        raise InputError(f"problem: needs a hx.Problem, got {type(problem).__name__}.")
    for name, value, least in (("samples", samples, 2 * GROUPS), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name}={value!r}: needs a whole number >= {least}.")
    for name in ("zeta", "xi"):
        if isinstance(getattr(problem, name), Stream):
            raise InputError(
                f"Problem({name}): a Stream is never seen as a whole, so nothing can be judged on it. Judge the point "
                f"on data at hand: dataclasses.replace(problem, {name}=hx.Finite(arrays))."
            )


def doubled(tree: PyTree) -> PyTree:
    """Floating-point arrays as float64 (inside the block)."""

    def cast(leaf: Any) -> Any:
        floating = eqx.is_inexact_array_like(leaf) and isinstance(leaf, jax.Array | np.ndarray | np.generic)
        return jnp.asarray(np.asarray(leaf), jnp.float64) if floating else leaf

    return jax.tree.map(cast, tree)


def on_host(tree: PyTree) -> PyTree:
    """Arrays as NumPy's, which keep their precision wherever they go."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, tree)


def _doubled_source(source: Any) -> Any:
    if isinstance(source, Finite):
        return Finite(doubled(source.arrays), source.replace)
    if isinstance(source, Sampler):
        return Sampler(source.draw, doubled(source.exact))
    return source


def _batch(bound: Bound, name: str, seed: int, which: int, samples: int) -> Batch:
    source = getattr(bound.problem, name)
    if source is None:
        return Batch(None, False, f"{name}: none")
    if isinstance(source, Finite):
        return Batch(source.full(), False, f"{name}: all {source.size} rows")
    if source.exact is not None:
        return Batch(source.exact, False, f"{name}: the exact expectation")
    count = samples - samples % GROUPS
    key = jax.random.split(jax.random.key(seed))[which]

    def draw(problem: Problem, key: PRNGKeyArray) -> PyTree:
        return getattr(problem, name).draw(key, count)

    return Batch(doubled(bound.run("draw", draw, key, static=(name, count))), True, f"{name}: {count} fresh samples")


def solve_lower(
    setting: Setting, solver: AbstractLowerSolver, x: PyTree, y: PyTree, multipliers: Rows | None = None
) -> LowerSolution:
    """The lower level at x on all of xi, from y and multipliers (None: from zero)."""

    def program(
        problem: Problem, solver: AbstractLowerSolver, x: PyTree, y: PyTree, xi: PyTree, multipliers: Rows
    ) -> LowerSolution:
        return solver.solve(problem, x, y, xi, multipliers)

    if multipliers is None:
        shapes = Rows(*(setting.bound.trace(name, (setting.x, setting.y)) for name in ("constraints", "equalities")))
        multipliers = jax.tree.map(lambda row: jnp.zeros(row.aval.shape), shapes)
    return setting.bound.run("reference", program, solver, x, y, setting.xi.rows, multipliers)
