"""The records of a run; how its starts ended, what to do about those that did not end well, and what a run may claim.

Its residuals speak of the method's own reformulation, a certificate of the bilevel problem.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree, Scalar

from hierax._base.errors import InputError
from hierax._base.trees import size
from hierax._compile.placement import read
from hierax._judge.certificate import Certificate
from hierax._judge.measuring import SHOWN_TOLERANCE
from hierax._problem import sets
from hierax._problem.problem import Problem, is_streamed
from hierax._run import device
from hierax._run.call import Call
from hierax._run.device import CYCLE_STEPS, Record, Run
from hierax._run.method import AbstractMethod, Costs
from hierax._run.prepare import Prepared
from hierax._run.solution import History, Open, Reason, Solution, Status, changed

FOR_MESSAGES = ("pinned", "cycling", "slope_x")  # fields of a record that are no columns of the history
HARDLY_MOVED_SHARE = 0.02  # x has hardly moved where it moved by less than this part of its size, or of its set's width
MAX_CERTIFIED_ENTRIES = 2000  # entries of y and of the constraints; larger problems are certified when asked

FAILURES = {
    device.NONFINITE: Reason.NOT_A_NUMBER,
    device.DIVERGED: Reason.RAN_AWAY,
    device.NO_LOWER_POINT: Reason.NO_LOWER_POINT,
    device.NO_LOWER_BOUND: Reason.NO_LOWER_BOUND,
}


class Spending:
    """Costs of the steps of a run, part after part; `before`: what was spent before its first one."""

    def __init__(self, before: Costs) -> None:
        self.before = before
        self.parts: list[tuple[int, Costs]] = []  # the first step of a part, and what each step of it costs

    def begin(self, step: int, each: Costs) -> None:
        """From this step on every step costs `each`."""
        self.parts.append((step, each))

    def until(self, step: int | np.ndarray) -> dict[str, Any]:
        """Costs by name after `steps` steps."""
        ends = [first for first, _ in self.parts[1:]] + [np.iinfo(np.int64).max]
        made = [np.clip(step, first, end) - first for (first, _), end in zip(self.parts, ends, strict=True)]
        costs = zip(self.before, *(each for _, each in self.parts), strict=True)
        totals = [before + sum(n * each for n, each in zip(made, parts, strict=True)) for before, *parts in costs]
        return dict(zip(Costs._fields, totals, strict=True))


class Records:
    """The records of a run so far."""

    def __init__(self) -> None:
        self._tables: list[tuple[Record, np.ndarray]] = []

    def __len__(self) -> int:
        """Number of chunks that brought records."""
        return len(self._tables)

    def add(self, table: Record, count: int, begin: float, end: float) -> None:
        """Add the first `count` rows of a chunk's table, made between two times in seconds."""
        if count:
            rows = jax.tree.map(lambda a: np.asarray(a)[:count].copy(), table)  # not the rest of the table
            self._tables.append((rows, np.linspace(begin, end, count + 1)[1:]))

    def kept(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """All records as columns by name, and their times: what a checkpoint keeps."""
        if not self._tables:
            return {}, np.zeros((0,))
        tables, times = zip(*self._tables, strict=True)
        columns = {name: np.concatenate([getattr(table, name) for table in tables]) for name in Record._fields}
        return columns, np.concatenate(times)

    def restore(self, columns: dict[str, Any], times: np.ndarray) -> None:
        """Begin with what was `kept`."""
        self._tables = [(Record(**columns), times)] if columns else []

    def last(self, at: int = -1) -> dict[str, np.ndarray]:
        """The latest record (`at` 0: the first); empty where there is none yet."""
        return {name: column[at] for name, column in self._tables[at][0]._asdict().items()} if self._tables else {}

    def of(self, start: int, at: int = -1) -> dict[str, float]:
        """The same of one start."""
        return {name: float(np.ravel(number)[start]) for name, number in self.last(at).items()}

    def path(self, start: int, first: int) -> float:
        """How far a start's x has travelled since step `first`, every step counted."""
        columns, times = self.kept()
        steps, moved = (columns[name].reshape(len(times), -1)[:, start] for name in ("step", "step_x"))
        return float(np.diff(steps, prepend=first) @ moved.astype(float))

    def history(self, spending: Spending, many: bool) -> History:
        """All records, with the costs up to each."""
        kept, times = self.kept()
        columns = {name: kept.get(name, np.zeros(0)) for name in Record._fields if name not in FOR_MESSAGES}
        if many and kept:
            columns["step"] = columns["step"].max(axis=1)
        return History({**columns, "seconds": times, **spending.until(columns["step"].astype(int))})


class Ending(NamedTuple):
    """Why the host ended a run, with what the reason's text says of the data."""

    reason: Reason
    what: str = ""
    cure: str = ""


class Begin(NamedTuple):
    """Where a run began: the steps made before it, and a copy of x."""

    step: int
    x: PyTree


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What is known of a run after its last step.

    Attributes:
        prepared: the problem.
        call: what was asked for.
        method: with every value filled in.
        begin: where it began.
        runs: where it ended.
        records: of its steps.
        done: steps made, those of earlier calls apart.
        compiling: seconds spent compiling.
        ended: what the host ended the run with; None: its steps, or its own codes.
    """

    prepared: Prepared
    call: Call
    method: AbstractMethod
    begin: Begin
    runs: Run
    records: Records
    done: int
    compiling: float
    ended: Ending | None

    def statuses(self) -> list[Status]:
        """How every start ended."""
        arrays = self.runs.code, self.runs.state.step, self.runs.pinned
        flags = zip(*(np.ravel(read(array)).tolist() for array in arrays), strict=True)
        return [self._status(i, *one) for i, one in enumerate(flags)]

    def _status(self, i: int, code: int, step: int, pinned: bool) -> Status:
        if code in FAILURES:
            unexplained = code in (device.NONFINITE, device.DIVERGED)
            return FAILURES[code].status(step, cure=self._cure(i) if unexplained else "")
        ended = self.ended or Ending(Reason.STEPS_DONE)
        if pinned and not ended.reason.kind.failed:
            return Reason.HELD_IN_A_CORNER.status(step)
        quality = self.quality(i)
        if code == device.CONVERGED and not ended.reason.kind.failed:
            why = Open.ONE_OF_MANY.text()
            return Reason.RESIDUALS_SMALL_UNPROVED.status(step, tol=self.call.tol, quality=quality, why=why)
        said = {"quality": quality, "hint": self._hint(i), "what": ended.what, "cure": ended.cure}
        return ended.reason.status(step, done=self.done, seconds=self.call.seconds, compiling=self.compiling, **said)

    def quality(self, i: int) -> str:
        """How good the last point of start i is by its own residuals, in words."""
        last = self.records.of(i)
        if not last:
            return ""
        stationarity, violation, distance = (last[name] for name in ("stationarity", "violation", "distance"))
        tol = self.call.tol or SHOWN_TOLERANCE
        below = f"y is {distance:.2g} from the inner solver's answer"
        if violation > max(distance, tol):
            below += ", which is not the lower level's solution: it is not feasible"
        elif distance > tol:
            below += f": {self.method.advice.bring_y_closer}"
        return f" (stationarity {stationarity:.2g}, violation {violation:.2g}, {below})"

    def _hint(self, i: int) -> str:
        """What to do about start i where it goes round in a cycle or x has hardly moved."""
        last, first = self.records.of(i), self.records.of(i, 0)
        if not last:
            return ""
        small = max(self.call.tol or 0.0, HARDLY_MOVED_SHARE * first["stationarity"])
        if last["cycling"] and last["stationarity"] > small:
            return (
                " The last steps jump to and fro in a cycle: each is long, and together they lead nowhere. "
                f"{self.method.advice.shorten_steps}"
            )
        return self._no_movement(i, last)

    @functools.cached_property
    def _ends_of_x(self) -> tuple[PyTree, PyTree]:
        return self.begin.x, read(self.runs.state.point.x)

    def _no_movement(self, i: int, last: dict[str, float]) -> str:
        """That x has hardly moved although its direction is not zero, where that is so.

        Noise moves x to and fro: where the way it came is much longer than the distance, it need not go further.
        """
        ends = self._ends_of_x if self.prepared.count is None else jax.tree.map(lambda a: a[i], self._ends_of_x)
        x0, x = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in ends)
        sizes, moved = np.maximum(np.maximum(np.abs(x), np.abs(x0)), 1.0), float(np.linalg.norm(x - x0))
        wandering = 2 * moved < self.records.path(i, self.begin.step)
        few = last["step"] - self.begin.step <= CYCLE_STEPS
        if few or wandering or moved > HARDLY_MOVED_SHARE * np.linalg.norm(sizes):
            return ""
        box = sets.bounds(self.prepared.problem.x_set, jax.tree.map(jnp.asarray, ends[1]))
        length = float(np.linalg.norm(np.minimum(sizes, np.asarray(box.upper) - np.asarray(box.lower))))
        flat = last["slope_x"] * length < HARDLY_MOVED_SHARE * (1 + abs(last["upper"]))
        if flat or moved > HARDLY_MOVED_SHARE * length:
            return ""
        return (
            f" x has moved by {moved:.1g} in all, {moved / length:.2g} of its size or its set's width, and its "
            f"direction is not zero: {self.method.advice.lengthen_x_step}"
        )

    def _cure(self, i: int) -> str:
        """What to do about start i: its steps compared with what the curvature at its last finite point allows."""
        advice = self.method.advice
        if self.prepared.feeders or self.prepared.files:
            return advice.shorten_steps
        method, run = self.method, self.runs
        if self.prepared.count is not None:
            method, run = jax.tree.map(lambda a: a[i] if eqx.is_array(a) else a, (method, run))
        limits = self.prepared.bound.run("step limits", _step_limits, run, method)
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

    # -- claims -----------------------------------------------------------------------------------------------------

    def certified(self, solution: Solution) -> Solution:
        """A solution whose residuals met the tolerance, with its certificate and the status that follows from it."""
        assert self.call.tol is not None
        tol, reason, objection = self.call.tol, Reason.RESIDUALS_SMALL_UNPROVED, ""
        why = self._too_costly() or certificate_or_why(solution)
        if isinstance(why, Certificate):
            verdict, objection = why.verdict(tol), "".join(why.reasons(tol)[:1])
            reasons = {"yes": Reason.RESIDUALS_SMALL, "no": Reason.RESIDUALS_SMALL_BUT_REFUTED}
            reason, why = reasons.get(verdict, reason), Open.UNDECIDED.text(objection=objection)
        said = {"quality": self.quality(0), "objection": objection, "why": why}
        return changed(solution, status=reason.status(solution.status.step, tol=tol, **said), tol=tol)

    def _too_costly(self) -> str:
        """Why the certificate is not made before the run returns; empty: it is."""
        prepared = self.prepared
        rows = jax.eval_shape(prepared.bound.problem.rows, prepared.x, prepared.y)
        entries = size((prepared.y, rows))
        if entries > MAX_CERTIFIED_ENTRIES:
            return Open.TOO_LARGE.text(entries=entries)
        return Open.NO_TIME.text() if self.call.clock.passed else ""


def certificate_or_why(solution: Solution, certify: bool = True) -> Certificate | str:
    """The certificate of a solution, made where it is not known and `certify` says so; or why there is none."""
    if solution.known_certificate is not None:
        return solution.known_certificate
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


def _step_limits(problem: Problem, run: Run, method: AbstractMethod) -> dict[str, tuple[Scalar, Scalar]]:
    return method.step_limits(problem, run.state)
