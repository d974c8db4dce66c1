"""Which samples a run draws: how many per step, planned in blocks of steps, and how a step's part is cut out.

A method says how many samples it wants (`Batches`); everything about drawing them is here, the same for all methods.
Samples are drawn for many steps at once because random number generators are slow at many small calls, and from the
run's key and a block number, so that a run may be cut into chunks, resumed or repeated without drawing other samples.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from hierax._base.trees import size
from hierax._problem import samples
from hierax._problem.problem import Problem
from hierax._problem.samples import AbstractSource, Tickets

MAX_DRAWN_STEPS = 64  # whose samples are drawn at once per start
MAX_DRAWN_NUMBERS = MAX_DRAWN_STEPS * MAX_DRAWN_STEPS  # that are drawn at once
STAGE_KEY_OFFSET = 1000  # beyond the small numbers by which a run's key is folded for other ends
LOOK_AHEAD_BATCHES = 8  # batches of zeta that the estimate before the first step shares with the first steps


class Batches(NamedTuple):
    """How many samples one outer step takes.

    Attributes:
        zeta: samples of zeta in the batch of the upper gradient (the paper's r).
        xi: samples of xi~ in the batch of the outer gradient (the paper's q).
        inner: how many batches of xi the inner loop takes (the paper's s).
        inner_size: samples in each of them.
        start: how many batches of that size the first lower solve takes.
        needs_all_xi: whether the lower level is solved on all of xi, which a Stream never shows.
        asked: the sizes that the user set, each with the source it belongs to.
        stage: which of several sizes of a run these are (0: the first). Every stage has draws of its own: blocks of
            steps are numbered by their length, so that those of two stages could be the same.

    Examples:
        >>> import hierax as hx
        >>> hx.extend.Batches(zeta=32, inner=10, inner_size=8).inner
        10
    """

    zeta: int = 1
    xi: int = 1
    inner: int = 0
    inner_size: int = 1
    start: int = 0
    needs_all_xi: bool = True
    asked: tuple[tuple[str, int], ...] = ()
    stage: int = 0

    @property
    def one_draw(self) -> bool:
        """Whether one draw serves the outer and the inner xi: compiling a generator is slow."""
        return self.inner > 0 and self.inner_size == self.xi

    def block(self, problem: Problem) -> int:
        """For how many steps samples are drawn at once."""
        per_step = max(1, size(jax.eval_shape(lambda: self._planned(problem, jax.random.key(0), 0, 1))))
        return max(1, min(MAX_DRAWN_STEPS, MAX_DRAWN_NUMBERS // per_step))

    def _planned(self, problem: Problem, key: PRNGKeyArray, block: Array | int, steps: int) -> Tickets:
        """Planned samples of the `block`-th group of `steps` outer steps, as plain rows.

        Rows, because a generator fused with a reshape to many small axes is four times slower.
        """
        key = jax.random.fold_in(key, STAGE_KEY_OFFSET + self.stage) if self.stage else key
        zeta_key, xi_key, inner_key = samples.streams(key)
        zeta = samples.plan(problem.zeta, zeta_key, block, steps, self.zeta)
        xi = None if self.one_draw else samples.plan(problem.xi, xi_key, block, steps, self.xi)
        inner = None
        if self.inner:
            inner = samples.plan(problem.xi, inner_key, block, steps * (self.inner + self.one_draw), self.inner_size)
        return Tickets(*(samples.joined(plan) for plan in (zeta, xi, inner)))

    def rows(self, problem: Problem, state: PyTree) -> Tickets:
        """The samples of the block of steps that the state's next step lies in; `cut` takes out those of a step."""
        steps = self.block(problem)
        return self._planned(problem, state.key, state.step // steps, steps)

    def cut(self, rows: Tickets, at: Array) -> Tickets:
        """The samples of the `at`-th step of a block."""

        def part(tree: PyTree, *shape: int) -> PyTree:
            each = int(np.prod(shape))
            taken = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, at * each, each), tree)
            return samples.folded(taken, *shape)

        zeta = part(rows.zeta, self.zeta)
        if not self.one_draw:
            inner = part(rows.inner, self.inner, self.inner_size) if self.inner else None
            return Tickets(zeta, part(rows.xi, self.xi), inner)
        both = part(rows.inner, self.inner + 1, self.inner_size)
        return Tickets(zeta, jax.tree.map(lambda a: a[-1], both), jax.tree.map(lambda a: a[:-1], both))

    def first_look(self, problem: Problem, key: PRNGKeyArray) -> Tickets:
        """Planned samples to look at before the first step: the first batches of zeta, and those of a lower solve."""
        zeta_key, _, inner_key = samples.streams(key)
        zeta = samples.plan(problem.zeta, zeta_key, 0, self.block(problem), self.zeta)
        start = samples.plan(problem.xi, jax.random.fold_in(inner_key, 3), 0, max(1, self.start), self.inner_size)
        return Tickets(zeta, start, start)

    def draws(self, problem: Problem, state: PyTree) -> Tickets:
        """The samples of all steps of the block that the state's next step lies in (leading axis `block`)."""
        rows = self.rows(problem, state)
        return jax.vmap(lambda at: self.cut(rows, at))(jnp.arange(self.block(problem)))

    def tickets(self, problem: Problem, state: PyTree) -> Tickets:
        """The planned samples of the next step; a `Stream`'s are None and come from the host."""
        return self.cut(self.rows(problem, state), state.step % self.block(problem))


def default_size(source: AbstractSource | None, asked: int | None) -> int:
    """The batch size: as asked for, or what the source suggests."""
    return asked or (1 if source is None else source.default_batch())


def look_at(source: AbstractSource | None, plans: PyTree) -> PyTree:
    """The first few planned batches as one."""
    return samples.fetch(source, samples.joined(jax.tree.map(lambda a: a[:LOOK_AHEAD_BATCHES], plans)))
