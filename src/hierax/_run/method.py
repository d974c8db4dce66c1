"""What every method offers the loop: settings to fill in, a step, the samples it draws, what it reports and costs.

A method is an immutable module of settings. Its state is a NamedTuple of arrays with at least `point` (with fields x
and y), `step` and `key`. The loop knows nothing else about a method than what stands here.
"""

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base.trees import size
from hierax._problem import samples
from hierax._problem.problem import Multipliers, Problem

BLOCK, MOST_STEPS = 4096, 64  # numbers drawn at once per start, and for at most how many steps
LOOK_AHEAD = 8  # batches of zeta that the estimate shares with the first steps


class Metrics(NamedTuple):
    """What a step reports, all of it free: values on the step's own batches, violation in the user's units."""

    upper: Scalar
    lower: Scalar
    violation: Scalar
    step_x: Scalar
    step_y: Scalar
    residual: tuple[PyTree, PyTree, PyTree, PyTree]  # gradient mappings of x, y, z and of the inner variable
    raw_x: Scalar  # norm of the direction in x before the set held it back
    raw_y: Scalar
    push: Scalar  # weight times the largest violation, in the method's own units: comparable with a gradient
    distance: Scalar  # how far y is from the lower level's solution, as far as the method knows
    weight: Scalar  # alpha_k, the weight of this iterate in the paper's random output
    lower_status: Int[Array, ""] | int = 0  # of an exact lower solve (`lower.solution`); 0: nothing to say


class Costs(NamedTuple):
    """Samples and gradient evaluations of one outer step, or of the preparation before the first."""

    zeta: int = 0
    xi: int = 0
    grad_upper: int = 0
    grad_lower: int = 0
    vjp_constraints: int = 0
    lower_solves: int = 0


class AbstractMethod(eqx.Module):
    """A method that `solve` can run."""

    batch_zeta: eqx.AbstractVar[int | None]
    batch_xi: eqx.AbstractVar[int | None]

    closer: ClassVar[str] = "a larger c brings it closer"
    shorten: ClassVar[str] = "Shorten the steps or leave them unset."
    otherwise: ClassVar[str] = ""  # what to turn where no step exceeds its limit, if that is something else

    # -- what a method writes ---------------------------------------------------------------------------------------

    @abc.abstractmethod
    def resolve(
        self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, look: samples.Tickets | None = None
    ) -> Self:
        """The method with every unset value estimated at (x0, y0) and every number an array."""

    @abc.abstractmethod
    def init(
        self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, look: samples.Tickets | None = None
    ) -> Any:
        """State before the first step (of a resolved method)."""

    @abc.abstractmethod
    def step(self, problem: Problem, state: Any, tickets: samples.Tickets) -> tuple[Any, Metrics]:
        """One outer step."""

    @abc.abstractmethod
    def blank(self, state: Any) -> tuple[PyTree, PyTree, PyTree, PyTree]:
        """Zeros in the structure of `Metrics.residual`."""

    @abc.abstractmethod
    def multipliers(self, problem: Problem, state: Any) -> Multipliers:
        """lam of the lower level and the multipliers of the upper constraints, in the user's units."""

    @abc.abstractmethod
    def moved_to(self, state: Any, x: PyTree, y: PyTree, multipliers: Multipliers) -> Any:
        """The state at another point of the run: the average, the best or the random iterate."""

    @abc.abstractmethod
    def costs(self, problem: Problem) -> Costs:
        """Samples and gradients of one outer step."""

    @abc.abstractmethod
    def start_costs(self, problem: Problem) -> Costs:
        """Samples and gradients before the first step."""

    # -- what it may leave as it is ---------------------------------------------------------------------------------

    def postprocess(self, problem: Problem, state: Any) -> tuple[PyTree, PyTree, Multipliers]:
        """(x, y, multipliers in the user's units) after the last step."""
        return state.point.x, state.point.y, self.multipliers(problem, state)

    def end_costs(self, problem: Problem) -> Costs:
        """Samples and gradients after the last step."""
        return Costs()

    def step_limits(self, problem: Problem, state: Any) -> dict[str, tuple[Scalar, Scalar]]:
        """Each step length in use and the longest that is stable where the state is: what to blame for a failure."""
        return {}

    def doubts(self, problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray) -> dict[str, Array]:
        """Reasons why the method cannot run on this problem, each with a flag that is True where it applies."""
        return {}

    def takes_streams(self) -> bool:
        """Whether it can live on a Stream of xi, which is never seen as a whole."""
        return False

    def warn(self) -> None:
        """Warn about settings that are legal and known to go wrong."""

    def refuse(self, problem: Problem) -> None:
        """Raise InputError where the problem's structure rules the method out (before anything is compiled)."""

    def refuse_state(self, known: "AbstractMethod") -> None:
        """Raise InputError where a run of `known` cannot go on with these settings."""

    def inner_draws(self) -> tuple[int, int]:
        """How many batches of xi the inner loop of a step takes, and how large they are."""
        return 0, 1

    def start_draws(self) -> int:
        """How many batches of xi (as large as the inner loop's) the start takes."""
        return 0

    def asked_batches(self) -> list[tuple[str, int | None]]:
        """Every batch size that can be set, with the source it belongs to."""
        return [("zeta", self.batch_zeta), ("xi", self.batch_xi)]

    def with_batches(self, problem: Problem) -> Self:
        """Fill in what is structure, and so never traced: the batch sizes."""
        return dataclasses.replace(
            self,
            batch_zeta=self.batch_zeta or (problem.zeta.default_batch() if problem.zeta is not None else 1),
            batch_xi=self.batch_xi or (problem.xi.default_batch() if problem.xi is not None else 1),
        )

    # -- samples ----------------------------------------------------------------------------------------------------

    def block(self, problem: Problem) -> int:
        """How many steps' samples are drawn at once: generators are slow at many small calls."""
        per_step = max(1, size(jax.eval_shape(lambda: self._rows(problem, jax.random.key(0), 0, 1))))
        return max(1, min(MOST_STEPS, BLOCK // per_step))

    def _rows(self, problem: Problem, key: PRNGKeyArray, block: Any, steps: int) -> samples.Tickets:
        """Planned samples of the `block`-th group of `steps` outer steps, as plain rows.

        Rows, because a generator fused with a reshape to many small axes is four times slower. Where the batch sizes of
        the outer and the inner xi agree, one draw serves both: compiling a generator is slow.
        """
        zeta_key, xi_key, inner_key = samples.streams(key)
        (count, batch), outer, shared = self.inner_draws(), self.batch_xi or 1, self._one_draw()
        zeta = samples.plan(problem.zeta, zeta_key, block, steps, self.batch_zeta or 1)
        xi = None if shared else samples.plan(problem.xi, xi_key, block, steps, outer)
        inner = samples.plan(problem.xi, inner_key, block, steps * (count + shared), batch) if count else None
        return samples.Tickets(*(samples.joined(plan) for plan in (zeta, xi, inner)))

    def _one_draw(self) -> bool:
        count, batch = self.inner_draws()
        return count > 0 and batch == (self.batch_xi or 1)

    def rows(self, problem: Problem, state: Any) -> samples.Tickets:
        """The samples of the block of steps that the state's next step lies in; `cut` takes out those of a step."""
        steps = self.block(problem)
        return self._rows(problem, state.key, state.step // steps, steps)

    def cut(self, rows: samples.Tickets, at: Array) -> samples.Tickets:
        """The tickets of the `at`-th step of a block."""
        (count, batch), outer = self.inner_draws(), self.batch_xi or 1

        def part(tree: PyTree, *shape: int) -> PyTree:
            each = int(np.prod(shape))
            taken = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, at * each, each), tree)
            return samples.folded(taken, *shape)

        zeta = part(rows.zeta, self.batch_zeta or 1)
        if not self._one_draw():
            return samples.Tickets(zeta, part(rows.xi, outer), part(rows.inner, count, batch) if count else None)
        both = part(rows.inner, count + 1, batch)
        return samples.Tickets(zeta, jax.tree.map(lambda a: a[count], both), jax.tree.map(lambda a: a[:count], both))

    def first_look(self, problem: Problem, key: PRNGKeyArray) -> samples.Tickets:
        """Planned samples to look at before the first step: the first batches of zeta, and those of a lower solve."""
        zeta_key, _, inner_key = samples.streams(key)
        zeta = samples.plan(problem.zeta, zeta_key, 0, self.block(problem), self.batch_zeta or 1)
        count = max(1, self.start_draws())
        start = samples.plan(problem.xi, jax.random.fold_in(inner_key, 3), 0, count, self.inner_draws()[1])
        return samples.Tickets(zeta, start, start)

    def draws(self, problem: Problem, state: Any) -> samples.Tickets:
        """The tickets of all steps of the block that the state's next step lies in (leading axis `block`)."""
        rows = self.rows(problem, state)
        return jax.vmap(lambda at: self.cut(rows, at))(jnp.arange(self.block(problem)))

    def tickets(self, problem: Problem, state: Any) -> samples.Tickets:
        """The planned samples of the next step; a `Stream`'s are None and come from the host."""
        return self.cut(self.rows(problem, state), state.step % self.block(problem))


def look_at(source: samples.AbstractSource | None, plans: PyTree) -> PyTree:
    """The first few planned batches as one."""
    return samples.fetch(source, samples.joined(jax.tree.map(lambda a: a[:LOOK_AHEAD], plans)))
