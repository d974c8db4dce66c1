"""How the starts of a run ended: their statuses, and what to do about those that did not end well."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree, Scalar

from hierax._base.errors import InputError
from hierax._base.trees import size
from hierax._compile.placement import read
from hierax._judge.certificate import SHOWN_TOLERANCE, Certificate
from hierax._problem import sets
from hierax._problem.problem import Problem, is_streamed
from hierax._run import device
from hierax._run.call import Call
from hierax._run.device import CYCLE_STEPS, Run, Spread
from hierax._run.method import AbstractMethod, Advice
from hierax._run.prepare import Prepared
from hierax._run.progress import Stopwatch
from hierax._run.records import Records
from hierax._run.solution import Solution, changed
from hierax._run.status import Open, Reason, Status

HARDLY_MOVED_SHARE = 0.02  # x has hardly moved where it moved by less than this part of its size, or of its set's width
STRAIGHT_SHARE = 0.3  # part of the way it came that x has got away from its start, where noise does not lead it


def _quality(records: Records, start: int, advice: Advice, tol: float | None) -> str:
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


def _cycle(records: Records, start: int, advice: Advice, tol: float | None) -> str:
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


def _no_movement(records: Records, start: int, advice: Advice, problem: Problem, way: Way) -> str:
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


def _hints(records: Records, start: int, advice: Advice, tol: float | None, problem: Problem, way: Way) -> str:
    """What to do about a run that was ended before it was done."""
    return _cycle(records, start, advice, tol) or _no_movement(records, start, advice, problem, way)


MAX_CERTIFIED_ENTRIES = 2000  # entries of y and of the constraints; larger problems are certified when asked


def certificate_or_why(solution: Solution, certify: bool = True) -> Certificate | str:
    """The certificate of a solution, made where it is not known and `certify` says so; or why there is none."""
    known = solution.known_certificate
    if known is not None:
        return known
    if solution.several_processes:
        return Open.SEVERAL_PROCESSES.text()
    if is_streamed(solution.problem):
        return Open.STREAM.text()
    if not certify:
        return Open.NOT_MADE.text()
    try:
        return solution.certificate
    except InputError as error:  # a set that does not state its faces, or a lower level no reference solver takes
        return Open.NO_CERTIFICATE.text(error=error)


def certified(solution: Solution, prepared: Prepared, call: Call, quality: str) -> Solution:
    """A solution whose residuals met the tolerance, with its certificate and the status that follows from it."""
    assert call.tol is not None
    step, tol = solution.status.step, call.tol
    found = _too_costly(prepared, call) or certificate_or_why(solution)
    if isinstance(found, Certificate):
        return changed(solution, status=_status(found, tol, step, quality), tol=tol)
    status = Reason.RESIDUALS_SMALL_UNPROVED.status(step, tol=tol, quality=quality, why=found)
    return changed(solution, status=status, tol=tol)


def _status(certificate: Certificate, tol: float, step: int, quality: str) -> Status:
    verdict = certificate.verdict(tol)
    if verdict == "yes":
        return Reason.RESIDUALS_SMALL.status(step, tol=tol)
    objection = certificate.reasons(tol)[0]
    if verdict == "no":
        return Reason.RESIDUALS_SMALL_BUT_REFUTED.status(step, tol=tol, quality=quality, objection=objection)
    why = Open.UNDECIDED.text(objection=objection)
    return Reason.RESIDUALS_SMALL_UNPROVED.status(step, tol=tol, quality=quality, why=why)


def _too_costly(prepared: Prepared, call: Call) -> str:
    """Why the certificate is not made before the run returns; empty: it is."""
    rows = jax.eval_shape(prepared.bound.problem.rows, prepared.x, prepared.y)
    entries = size((prepared.y, rows))
    if entries > MAX_CERTIFIED_ENTRIES:
        return Open.TOO_LARGE.text(entries=entries)
    return Open.NO_TIME.text() if call.clock.passed else ""


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
        return _quality(self.host.records, i, self.host.method.advice, self.host.call.tol)

    @functools.cached_property
    def _last_x(self) -> PyTree:
        x: PyTree = read(self.host.runs.state.point.x)
        return x

    def _hint(self, i: int) -> str:
        """What to do about start i where it goes round in a cycle or x has hardly moved."""
        ends = self.host.begin.x, self._last_x
        if self.host.spread != "one":
            ends = jax.tree.map(lambda a: a[i], ends)
        way = Way(self.host.begin.step, *ends)
        host = self.host
        return _hints(host.records, i, host.method.advice, host.call.tol, host.prepared.problem, way)

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
