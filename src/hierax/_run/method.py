"""The protocol of a method: what the loop asks of it, and nothing else. Four of its methods must be written.

A method is an immutable module of settings. Its state is a NamedTuple of arrays with at least `point` (whose first
fields are x and y), `step` and `key`. How samples are planned (`batches.py`), settings checked (`_base.settings`) and
steps taken (`_methods.steps`) stands outside. docs/guides/own-method.md writes one from scratch.
"""

import abc
from typing import ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree, Scalar

from hierax._base.settings import COUNT, Rule, check_settings
from hierax._base.staircase import NEVER
from hierax._judge.psi import Penalty
from hierax._problem.problem import Multipliers, Problem
from hierax._problem.samples import Tickets
from hierax._run.batches import Batches, default_batches
from hierax._run.reports import Advice, Begun, Metrics, Residual, RunCosts


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
        return default_batches(problem, self.batch_zeta, self.batch_xi)._replace(asked=asked)

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

    def psi_penalty(self, state: PyTree) -> Penalty | None:
        """What SALVF's penalty function Psi was made of at a state, for a certificate; None: the method has no Psi."""
        return None
