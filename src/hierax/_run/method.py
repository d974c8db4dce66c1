"""The protocol of a method: what the loop asks of it, and nothing else. Four of its methods must be written.

A method is an immutable module of settings. Its state is a NamedTuple of arrays with at least `point` (whose first
fields are x and y), `step` and `key`. It says how many samples it wants (`Batches`); planning and drawing them is the
same for all methods, and stands here too. Samples are drawn for many steps at once because random number generators are
slow at many small calls, and from the run's key and a block number, so that a run may be cut into chunks, resumed or
repeated without drawing other samples. How settings are checked (`_base.settings`) and steps taken (`_methods.common`)
stands outside. docs/guides/own-method.md writes one from scratch.
"""

import abc
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base.constants import MANY
from hierax._base.settings import COUNT, NEVER, Rule, check_settings
from hierax._base.trees import size
from hierax._judge.psi import Penalty
from hierax._problem import samples
from hierax._problem.problem import Multipliers, Problem
from hierax._problem.samples import AbstractSource, Tickets

MAX_DRAWN_STEPS = 64  # whose samples are drawn at once per start
MAX_DRAWN_NUMBERS = MAX_DRAWN_STEPS * MAX_DRAWN_STEPS  # that are drawn at once
STAGE_KEY_OFFSET = MANY  # beyond the small numbers by which a run's key is folded for other ends
LOOK_AHEAD_BATCHES = 8  # batches of zeta that the estimate before the first step shares with the first steps


class Batches(NamedTuple):
    """How many samples one outer step takes.

    Attributes:
        zeta: samples of zeta in the batch of the upper gradient (the paper's r).
        xi: samples of xi~ in the batch of the outer gradient (the paper's q).
        inner: how many batches of xi the inner loop takes (the paper's s).
        inner_size: samples in each of them.
        start: how many batches of that size the first lower solve takes; 0: there is none, or it draws nothing.
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
        """Planned samples to look at before the first step: the first batches of zeta, and those of a lower solve, or
        the first ones of the run where there is none: only those of a lower solve are drawn for nothing else.
        """
        zeta_key, _, inner_key = samples.streams(key)
        zeta = samples.plan(problem.zeta, zeta_key, 0, self.block(problem), self.zeta)
        if self.start:
            xi = samples.plan(problem.xi, jax.random.fold_in(inner_key, 3), 0, self.start, self.inner_size)
        else:
            first = self._planned(problem, key, 0, self.block(problem))
            inner = self.inner > 0
            xi = samples.folded(first.inner if inner else first.xi, -1, self.inner_size if inner else self.xi)
        return Tickets(zeta, xi, xi)

    def draws(self, problem: Problem, state: PyTree) -> Tickets:
        """The samples of all steps of the block that the state's next step lies in (leading axis `block`)."""
        rows = self.rows(problem, state)
        return jax.vmap(lambda at: self.cut(rows, at))(jnp.arange(self.block(problem)))

    def tickets(self, problem: Problem, state: PyTree) -> Tickets:
        """The planned samples of the next step; a `Stream`'s are None and come from the host."""
        return self.cut(self.rows(problem, state), state.step % self.block(problem))


def look_at(source: AbstractSource | None, plans: PyTree) -> PyTree:
    """The first few planned batches as one."""
    return samples.fetch(source, samples.joined(jax.tree.map(lambda a: a[:LOOK_AHEAD_BATCHES], plans)))


class Residual(NamedTuple):
    """Gradient mappings, zero at a stationary point: of x, y, the multiplier z and the inner variable.

        r(u) = (u - Proj(u - d/L)) L     for a block u with direction d and smoothness L

    An empty tuple where a method has no such block.

    Attributes:
        x: of the upper variable.
        y: of the lower variable.
        z: of the multiplier.
        inner: of the inner variable.

    Examples:
        >>> import hierax as hx
        >>> hx.extend.Residual(x=0.5)
        Residual(x=0.5, y=(), z=(), inner=())

    References:
        docs/guides/own-method.md; `gradient_mapping`
    """

    x: PyTree
    y: PyTree = ()
    z: PyTree = ()
    inner: PyTree = ()


class Metrics(NamedTuple):
    """What a step reports, all of it free: values on the step's own batches, violation in the user's units.

    Attributes:
        upper: F on the step's batch.
        lower: G on the step's batch.
        violation: largest violation of a constraint at the new point.
        step_x: distance that x moved.
        step_y: distance that y moved.
        residual: see `Residual`.
        raw_x: norm of the direction in x before the set X held it back.
        raw_y: the same for y.
        push: weight times the largest violation, in the method's own units, so that it compares with a gradient.
        distance: how far y is from the lower level's solution, as far as the method knows.
        weight: alpha_k, the weight of this iterate in the paper's random output.
        lower_status: of an exact lower solve; SOLVED where there was none.
        step_z: distance that z moved, in the user's units; 0 where there is none.

    Examples:
        >>> import hierax as hx
        >>> hx.extend.Metrics._fields[:4]  # hx.extend.step_metrics fills them in
        ('upper', 'lower', 'violation', 'step_x')
    """

    upper: Scalar
    lower: Scalar
    violation: Scalar
    step_x: Scalar
    step_y: Scalar
    residual: Residual
    raw_x: Scalar
    raw_y: Scalar
    push: Scalar
    distance: Scalar
    weight: Scalar
    lower_status: Int[Array, ""] | int = 0
    step_z: Scalar | float = 0.0


class Costs(NamedTuple):
    """Samples, gradients and lower solves.

    Attributes:
        zeta: samples of zeta.
        xi: samples of xi.
        grad_upper: gradients of f.
        grad_lower: gradients of g.
        vjp_constraints: vector-Jacobian products of the constraints.
        lower_solves: exact solves of the lower level.

    Examples:
        >>> import hierax as hx
        >>> hx.extend.Costs(zeta=32, grad_upper=1).zeta
        32
    """

    zeta: int = 0
    xi: int = 0
    grad_upper: int = 0
    grad_lower: int = 0
    vjp_constraints: int = 0
    lower_solves: int = 0


class RunCosts(NamedTuple):
    """What a run costs before its first step, with every outer step, and after the last.

    Attributes:
        start: before the first step.
        step: of every outer step.
        end: after the last step.

    Examples:
        >>> import hierax as hx
        >>> costs = hx.extend.RunCosts(start=hx.extend.Costs(lower_solves=1), step=hx.extend.Costs(grad_upper=1))
        >>> costs.start.lower_solves, costs.end.lower_solves
        (1, 0)
    """

    start: Costs
    step: Costs
    end: Costs = Costs()


class Begun(NamedTuple):
    """A method that is ready for its first step.

    Attributes:
        method: the method with every unset value filled in and every number an array.
        state: its state.
        doubts: reasons why the method cannot run on this problem, each with a flag that is True where it applies.

    Examples:
        >>> import hierax as hx
        >>> dict(hx.extend.Begun(method=hx.SALVF(), state=None).doubts)
        {}
    """

    method: Any
    state: PyTree
    doubts: Mapping[str, Bool[Array, ""]] = MappingProxyType({})


class Advice(NamedTuple):
    """What the messages of a run recommend.

    Attributes:
        bring_y_closer: how y gets closer to the lower level's solution.
        shorten_steps: what to do where the run diverged and a step may be too long.
        lengthen_x_step: what to do where x hardly moves although its direction is not zero.
        no_step_too_long: what to do where the run diverged although no step exceeds its limit; empty: `shorten_steps`.

    Examples:
        >>> import hierax as hx
        >>> hx.extend.Advice(bring_y_closer="a smaller t brings it closer").shorten_steps
        'Shorten the steps or leave them unset.'
    """

    bring_y_closer: str = "a larger c brings it closer"
    shorten_steps: str = "Shorten the steps or leave them unset."
    lengthen_x_step: str = "lengthen its step."
    no_step_too_long: str = ""


class AbstractSolver(eqx.Module):
    """Whatever `solve` takes as its method: one that makes steps, or `Auto`."""


class AbstractMethod(AbstractSolver):
    """A method that makes steps. Subclass it to add one: `begin`, `step`, `multipliers` and `costs` must be written.

    Args:
        batch_zeta: samples of zeta per outer step; None: 1 for a `Sampler`, min(n, 32) for `Finite`.
        batch_xi: samples of xi~ per outer step; None: the same.

    Examples:
        >>> import hierax as hx
        >>> sorted(hx.AbstractMethod.__abstractmethods__)  # what a method of your own must write
        ['begin', 'costs', 'multipliers', 'step']
        >>> issubclass(hx.SALVF, hx.AbstractMethod)
        True
    """

    batch_zeta: int | None = eqx.field(static=True, default=None, kw_only=True)
    batch_xi: int | None = eqx.field(static=True, default=None, kw_only=True)

    advice: ClassVar[Advice] = Advice()
    # Settings that decide what a state holds, each with what it is where it is unset: a run goes on with its own kind.
    state_settings: ClassVar[dict[str, str]] = {}
    size_rule: ClassVar[Rule] = COUNT

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right; a subclass adds its own rules and calls this."""
        check_settings(self, dict.fromkeys(("batch_zeta", "batch_xi"), self.size_rule))
        for name in ("batch_zeta", "batch_xi"):
            if isinstance(getattr(self, name), np.integer):
                setattr(self, name, int(getattr(self, name)))

    # -- must be written --------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def begin(self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, look: Tickets | None = None) -> Begun:
        """Estimate what is unset at (x0, y0) and make the state before the first step, with at most one lower solve.

        `look` are samples to look at (None: `self.batches(problem).first_look(problem, key)`); a problem with a
        `Stream` needs them.
        """

    @abc.abstractmethod
    def step(self, problem: Problem, state: PyTree, tickets: Tickets) -> tuple[PyTree, Metrics]:
        """One outer step on the planned samples `tickets`."""

    @abc.abstractmethod
    def multipliers(self, problem: Problem, state: PyTree) -> Multipliers:
        """lam of the lower level and the multipliers of the upper constraints, in the user's units."""

    @abc.abstractmethod
    def costs(self, problem: Problem) -> RunCosts:
        """Samples, gradients and lower solves of the start, of a step and of the end."""

    # -- may be left as it is ---------------------------------------------------------------------------------------

    def check(self, problem: Problem) -> None:
        """Raise InputError where the problem's structure rules the method out; warn about settings that go wrong."""

    def batches(self, problem: Problem) -> Batches:
        """How many samples a step takes."""
        asked = tuple((name, n) for name, n in (("zeta", self.batch_zeta), ("xi", self.batch_xi)) if n is not None)
        zeta, xi = samples.default_size(problem.zeta, self.batch_zeta), samples.default_size(problem.xi, self.batch_xi)
        return Batches(zeta, xi, asked=asked)

    def staged(self, step: int) -> tuple[Self, int]:
        """The method with the batch sizes of an outer step, and the next step at which they change."""
        return self, NEVER

    def zero_residual(self, state: PyTree) -> Residual:
        """Zeros in the structure of `Metrics.residual`."""
        return jax.tree.map(jnp.zeros_like, Residual(state.point.x, state.point.y))

    def moved_to(self, state: PyTree, x: PyTree, y: PyTree, multipliers: Multipliers) -> PyTree:
        """The state at another point of the run: the average, the best or the random iterate."""
        return state._replace(point=state.point._replace(x=x, y=y))

    def finish(self, problem: Problem, state: PyTree) -> tuple[PyTree, PyTree, Multipliers]:
        """(x, y, multipliers in the user's units) after the last step."""
        return state.point.x, state.point.y, self.multipliers(problem, state)

    def step_limits(self, problem: Problem, state: PyTree) -> dict[str, tuple[Scalar, Scalar]]:
        """Each step length in use and the longest that is stable where the state is: what to blame for a failure."""
        return {}

    def shown(self, state: PyTree) -> dict[str, PyTree]:
        """What a callback sees beside x and y: `z`, `w` and `lam` of `Info`, as far as the method has them."""
        return {}

    def psi_penalty(self, state: PyTree) -> Penalty | None:
        """What SALVF's penalty function Psi was made of at a state, for a certificate; None: the method has no Psi."""
        return None
