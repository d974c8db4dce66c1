"""How the starts of a run ended: their statuses, and what to do about those that did not end well."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree, Scalar

from hierax._compile.placement import read
from hierax._problem.problem import Problem
from hierax._run import device, wording
from hierax._run.call import Call
from hierax._run.clock import Stopwatch
from hierax._run.device import Run, Spread
from hierax._run.method import AbstractMethod
from hierax._run.prepare import Prepared
from hierax._run.records import Records
from hierax._run.status import Open, Reason, Status

LOWER_FAILURES = {device.NO_LOWER_POINT: Reason.NO_LOWER_POINT, device.NO_LOWER_BOUND: Reason.NO_LOWER_BOUND}


class Ending(NamedTuple):
    """Why the host ended a run, with what the reason's text says of the data."""

    reason: Reason
    what: str = ""
    cure: str = ""


class Begin(NamedTuple):
    """Where a run began: the steps made before it, and x."""

    step: int
    x: PyTree

    @classmethod
    def of(cls, runs: Run) -> Begin:
        """A copy: chunks overwrite the run."""
        x = jax.tree.map(lambda a: np.array(a, copy=True), read(runs.state.point.x))
        return cls(int(np.max(read(runs.state.step))), x)


class _Flags(NamedTuple):
    """How every start stands: the code with which it stopped, its step, and whether the sets hold it."""

    code: np.ndarray
    step: np.ndarray
    pinned: np.ndarray


class EndedRun(Protocol):
    """A run after its last step: the problem, the call, where it began and ended, and its records."""

    prepared: Prepared
    call: Call
    spread: Spread
    method: AbstractMethod
    begin: Begin
    runs: Run
    records: Records
    watch: Stopwatch

    @property
    def done(self) -> int:
        """Outer steps made, those of earlier calls apart."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What is known of a run after its last step.

    Attributes:
        host: of the run: the problem, the call, where it began and ended, and its records.
        ended: what the host ended the run with; None: its steps, or its own codes.
    """

    host: EndedRun
    ended: Ending | None

    def statuses(self) -> list[Status]:
        """How every start ended."""
        return [self._status(i) for i in range(np.size(self._flags.code))]

    @functools.cached_property
    def _flags(self) -> _Flags:
        runs = self.host.runs
        return _Flags(*(np.ravel(read(array)) for array in (runs.code, runs.state.step, runs.pinned)))

    def _status(self, i: int) -> Status:
        """How start i ended."""
        code, step = int(self._flags.code[i]), int(self._flags.step[i])
        if code == device.NONFINITE:
            return Reason.NOT_A_NUMBER.status(step, cure=self._cure(i))
        if code == device.DIVERGED:
            return Reason.RAN_AWAY.status(step, cure=self._cure(i))
        if code in LOWER_FAILURES:
            return LOWER_FAILURES[code].status(step)
        if self.ended is not None and self.ended.reason.kind.failed:
            return self._ending(self.ended, i, step)
        if bool(self._flags.pinned[i]):
            return Reason.HELD_IN_A_CORNER.status(step)
        if code == device.CONVERGED:
            quality = self.quality(i)
            return Reason.RESIDUALS_SMALL_UNPROVED.status(
                step, tol=self.host.call.tol, quality=quality, why=Open.ONE_OF_MANY.text()
            )
        return self._ending(self.ended or Ending(Reason.STEPS_DONE), i, step)

    def _ending(self, ended: Ending, i: int, step: int) -> Status:
        """The status of a start that the host ended."""
        reason, what, cure = ended
        time_taken = {"seconds": self.host.call.seconds, "compiling": self.host.watch.compiling}
        quality, hint = self.quality(i), self._hint(i)
        return reason.status(step, done=self.host.done, quality=quality, hint=hint, what=what, cure=cure, **time_taken)

    @property
    def met_tolerance(self) -> bool:
        """Whether a single run was ended by its tolerance."""
        met = self.host.spread == "one" and int(self._flags.code[0]) == device.CONVERGED
        return met and not bool(self._flags.pinned[0])

    def quality(self, i: int) -> str:
        """How good the last point of start i is by its own residuals, in words."""
        return wording.quality(self.host.records, i, self.host.method.advice, self.host.call.tol)

    @functools.cached_property
    def _last_x(self) -> PyTree:
        x: PyTree = read(self.host.runs.state.point.x)
        return x

    def _hint(self, i: int) -> str:
        """What to do about start i where it goes round in a cycle or x has hardly moved."""
        ends = self.host.begin.x, self._last_x
        if self.host.spread != "one":
            ends = jax.tree.map(lambda a: a[i], ends)
        way = wording.Way(self.host.begin.step, *ends)
        host = self.host
        return wording.hints(host.records, i, host.method.advice, host.call.tol, host.prepared.problem, way)

    def _cure(self, i: int) -> str:
        """What to do about start i: its steps compared with what the curvature at its last finite point allows."""
        advice = self.host.method.advice
        if self.host.prepared.feeders or self.host.prepared.files:
            return advice.shorten_steps
        method, run = self.host.method, self.host.runs
        if self.host.spread != "one":
            method, run = jax.tree.map(lambda a: a[i] if eqx.is_array(a) else a, (method, run))
        limits = self.host.prepared.bound.run("step limits", _step_limits, run, method)
        found = {name: (float(used), float(most)) for name, (used, most) in limits.items()}
        for name, (used, most) in found.items():
            if np.isfinite(most) and used > most:
                return (
                    f"{name}={used:.3g} exceeds 2/L ~ {most:.3g} there; lower it or leave it unset (an estimate is "
                    "made at the start only: where the curvature grows on the way, set a smaller step)."
                )
        if not all(np.isfinite(most) for _, most in found.values()):
            return "The functions' derivatives are not finite there: restrict X and Y to where they are."
        return (found and advice.no_step_too_long) or advice.shorten_steps


def _step_limits(problem: Problem, run: Run, method: AbstractMethod) -> dict[str, tuple[Scalar, Scalar]]:
    return method.step_limits(problem, run.state)
