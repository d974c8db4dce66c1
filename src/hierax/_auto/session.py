"""One call of `Auto`: what it may spend, who is told of it, what earlier runs of it have done, and its answer.

Searches are bounded by work, which is counted: equal calls give equal answers, however busy the machine is. The clock
is a limit beside that, and where it decides, status and log say so.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hierax._auto import constants as const
from hierax._base.constants import CHUNK_SECONDS, FRESH_SAMPLES
from hierax._base.interrupt import Interrupt
from hierax._compile.bound import Bound
from hierax._compile.configuration import as_answer
from hierax._engine.float64_problem import Float64Problem, own_rows
from hierax._judge.certificate import Certificate
from hierax._judge.sampling import Estimates
from hierax._problem.problem import CONSTRAINTS, Multipliers
from hierax._run.call import Call, Info
from hierax._run.checkpoints import Notes
from hierax._run.feeding import Place
from hierax._run.prepare import Prepared
from hierax._run.solution import Counts, History, Kind, Solution, Starts, Status, changed, with_certificate

if TYPE_CHECKING:
    from hierax._auto.auto import Auto

Result = TypeVar("Result")
Route = Literal["small", "penalty", "average", "implicit", "large"]

GOES_ON = (Kind.SECONDS, Kind.INTERRUPTED, Kind.STOPPED, Kind.MAX_STEPS, Kind.SAMPLES, Kind.DATA_ERROR)
"""Kinds of endings after which the same call goes on: with the time, the steps or the data that were missing."""


class Work:
    """What a search has done and may do: evaluations are counted, and time, Ctrl-C or the caller may end it.

    Attributes:
        evaluations: points at which F(x, y*(x)), a KKT system or the value function was evaluated.
        seconds: time limit of the call, from `begin` on (`time.perf_counter`).
        share: share of it after which the present part of the work has to end.
        stopped: why the caller wants no more points; None: he may want more.
        closing: whether only the answer is put together, which has to be done however late it is.
    """

    def __init__(self, seconds: float, interrupt: Interrupt, begin: float) -> None:
        self.evaluations = 0
        self.seconds, self.share = seconds, 1.0
        self._interrupt, self._begin = interrupt, begin
        self.stopped: Kind | None = None
        self.closing = False
        self._over_since = math.inf

    def stop(self, kind: Kind) -> None:
        """End the work for another reason than time."""
        self.stopped = self.stopped or kind

    @property
    def elapsed(self) -> float:
        """Seconds since the call."""
        return time.perf_counter() - self._begin

    @property
    def over(self) -> bool:
        """Whether nothing more may be done, not even a certificate of what was found."""
        return self._interrupt.asked or self.elapsed > self.seconds

    def late(self) -> bool:
        """Whether not even what was begun may be brought to its end: the work should have been over for a second."""
        if self.closing or not self.over:
            return False
        self._over_since = min(self._over_since, time.perf_counter())
        return time.perf_counter() > self._over_since + 2 * CHUNK_SECONDS

    @property
    def ended(self) -> Kind | None:
        """Why this part of the work has to end; None: it has not."""
        if self.stopped is not None:
            return self.stopped
        if self._interrupt.asked:
            return Kind.INTERRUPTED
        return Kind.SECONDS if self.elapsed > self.share * self.seconds else None

    @property
    def passed(self) -> bool:
        """Whether this part of the work has to end."""
        return self.ended is not None


class Piece(NamedTuple):
    """A finished piece of the work, for a checkpoint.

    Attributes:
        record: what came of it.
        records: of the points that it reported, and
        spent: what the session had spent at each of them.
        evaluations: of the session, afterwards.
        places: where the streams were afterwards.
    """

    record: Any
    records: list[dict[str, float]]
    spent: list[tuple[int, float]]
    evaluations: int
    places: dict[str, Place]


class Session:
    """The call, and what came of it so far.

    Attributes:
        work: what was spent.
        log: what is said of it.
        records: of every point that was reported, and
        spent: evaluations and seconds until then.
        ended: why the search was not complete; None: it was.
        replayed: whether the latest piece was taken over from an earlier run of the call.
    """

    def __init__(self, prepared: Prepared, auto: "Auto", seed: int, call: Call, interrupt: Interrupt) -> None:
        assert auto.seconds is not None
        self.prepared, self.auto, self.seed, self.call, self.interrupt = prepared, auto, seed, call, interrupt
        self.work = Work(auto.seconds, interrupt, call.clock.begin)
        self.work.share = const.SEARCH_SHARE
        self.log: list[str] = []
        self.records: list[dict[str, float]] = []
        self.spent: list[tuple[int, float]] = []
        self.ended: Kind | None = None
        self.replayed = False
        self._bounds = {id(prepared.bound): prepared.bound}
        self._places: dict[str, Place] = {}  # where the streams were after the latest piece that was taken over

    def compiles(self, bound: Bound) -> None:
        """Tell the seconds of compiling this problem's programs apart."""
        self._bounds[id(bound)] = bound

    @property
    def compile_seconds(self) -> float:
        """Seconds spent compiling."""
        return sum(bound.compile_seconds for bound in self._bounds.values())

    def report(self, record: dict[str, float], point: Callable[[], tuple[PyTree, PyTree]], again: bool = False) -> None:
        """A point was found: the callback is told, and may end the search; so may `max_steps`.

        Args:
            record: its numbers, by name.
            point: gives its x and y, inside of X and Y.
            again: whether an earlier run of the call has found it, whose callback was told.
        """
        if self.work.stopped:  # the end of a search that was told to stop adds no point
            return
        self._reported([record], [(self.work.evaluations, self.work.elapsed)])
        if self.call.callback is not None and not again:
            try:
                info = Info(len(self.records), *self.prepared.whole(*point()), dict(record))
                if self.call.callback(info) is True:
                    self.work.stop(Kind.STOPPED)
            except KeyboardInterrupt:
                self.work.stop(Kind.INTERRUPTED)

    def _reported(self, records: list[dict[str, float]], spent: list[tuple[int, float]]) -> None:
        self.records += records
        self.spent += spent
        if self.call.max_steps is not None and len(self.records) >= self.call.max_steps:
            self.work.stop(Kind.MAX_STEPS)

    def piece(
        self,
        name: str,
        do: Callable[[], Result],
        types: tuple[type, ...] = (),
        record: Callable[[Result], Any] = lambda result: [result],
        restore: Callable[[Any], Result] = lambda kept: kept[0],
    ) -> Result:
        """A piece of the work, or what came of it in an earlier run of the call.

        One that the clock or the caller cut short counts as not done.

        Args:
            name: of the piece.
            do: does it; what it does must depend on its arguments alone.
            types: named tuples and data classes in its record.
            record: what is kept of the result, as numbers, texts, arrays and these; None: nothing, it was cut short.
            restore: the result from what was kept.
        """
        notes = self.call.notes
        kept: Piece | None = notes.take(name, (*types, Piece, Place))
        self.replayed = kept is not None
        if kept is not None:
            self._reported(kept.records, kept.spent)
            self.work.evaluations, self._places = kept.evaluations, kept.places
            return restore(kept.record)
        self.prepared.move_streams_to(self._places)
        self._places = {}
        begun, result = len(self.records), do()
        if notes.kept and not self.work.passed:
            worth_keeping = record(result)
            if worth_keeping is not None:
                notes.under(name).drop()  # its own pieces: what came of them is this record
                done = self.records[begun:], self.spent[begun:], self.work.evaluations, self.prepared.places()
                notes.put(name, Piece(worth_keeping, *done))
        return result

    def solution(
        self,
        point: tuple[PyTree, PyTree],
        multipliers: Multipliers,
        status: Status,
        certificate: Certificate | None,
        starts: Starts,
        upper: float | None,
        counts: Counts | None = None,
    ) -> Solution:
        """The solution of the call; `point`: arrays inside of X and Y, `upper`: F there."""
        compiling = self.compile_seconds
        counts = dataclasses.replace(
            counts or Counts.of_search(0.0, 0.0),
            seconds=self.work.elapsed - compiling,
            compile_seconds=compiling,
            evaluations=self.work.evaluations or None,
            **(self._first_held(upper) if status.ok and upper is not None else {}),
        )
        if self.ended is Kind.SECONDS:
            limit = f"The time limit of {self.auto.seconds:g} s ({compiling:.0f} s went into compiling)"
            line = f"{limit} ended the search after {len(self.records)} points"
            self.log.append(f"{line}: a faster or less busy machine may find another answer.")
            if status.ok:
                status = dataclasses.replace(status, message=f"{status.message} {line}.")
        solution = made(
            self.prepared,
            self.auto,
            point=point,
            multipliers=as_answer(multipliers),
            status=status,
            history=self._history(),
            counts=counts,
            log=(*self.log, status.message),
            starts=starts,
        )
        return self.certified(solution, certificate)

    def certified(self, solution: Solution, certificate: Certificate | None) -> Solution:
        """The solution with its certificate, whose own tolerance is that of the run."""
        own = None if certificate is None else dataclasses.replace(certificate, own_tol=self.auto.tol)
        return with_certificate(solution, own)

    def _history(self) -> History:
        """A record of every point that was reported."""
        names = list(self.records[0]) if self.records else ["upper", "violation", "gap"]
        columns = {name: np.array([record[name] for record in self.records]) for name in names}
        return History({"step": np.arange(1, 1 + len(self.records)), **columns})

    def _first_held(self, upper: float) -> dict[str, Any]:
        """What it took to hold a point as low as the returned one."""
        low, tol = upper + self.auto.tol * (1 + abs(upper)), self.auto.tol
        for (evaluations, seconds), record in zip(self.spent, self.records, strict=True):
            if record["violation"] <= tol and record["upper"] <= low:
                return {"evaluations_to_answer": evaluations or None, "seconds_to_answer": seconds}
        return {}


def made(prepared: Prepared, auto: "Auto", point: tuple[PyTree, PyTree], **known: Any) -> Solution:
    """The solution of a call of `Auto`, of its point and the other fields: the one place that makes it."""
    x, y = prepared.whole(*point)
    return Solution(x=x, y=y, state=None, method=auto, problem=prepared.problem, tol=auto.tol, **known)


# -- answers in checkpoints -------------------------------------------------------------------------------------------

ANSWER = "answer"  # the name of what is kept of a search that is done
AS_THEY_ARE = ("counts", "log", "starts", "estimates")  # parts of an answer that are kept as they are
TYPES_OF_ANSWER = (Counts, Starts, Estimates)


def record_of_answer(answer: Solution) -> dict[str, Any] | None:
    """A solution of `Auto` as numbers, texts and arrays; None where the same call goes on.

    Its certificate is made again when it is asked for.
    """
    if answer.status.kind in GOES_ON:
        return None
    return {
        "point": (arrays_of(answer.x), arrays_of(answer.y)),
        "multipliers": arrays_of(answer.multipliers),
        "status": (answer.status.kind.name, answer.status.message, answer.status.step),
        "history": dict(answer.history.items()),
        "settings": {one.name: getattr(answer.method, one.name) for one in dataclasses.fields(answer.method)},
        **{name: getattr(answer, name) for name in AS_THEY_ARE},
    }


def answer_of_record(record: dict[str, Any], prepared: Prepared, auto: "Auto") -> Solution:
    """The solution that was kept."""
    (x, y), (kind, *rest) = record["point"], record["status"]
    return made(
        prepared,
        dataclasses.replace(auto, **record["settings"]),
        point=as_answer((tree_of(x, prepared.x), tree_of(y, prepared.y))),
        multipliers=as_answer(tree_of(record["multipliers"], form_of_multipliers(prepared))),
        status=Status(Kind[kind], *rest),
        history=History(record["history"]),
        **{name: record[name] for name in AS_THEY_ARE},
    )


def kept_answer(notes: Notes, prepared: Prepared, auto: "Auto") -> Solution | None:
    """The answer of an earlier run of the call; None: there is none yet."""
    kept = notes.take(ANSWER, TYPES_OF_ANSWER)
    return None if kept is None else answer_of_record(kept, prepared, auto)


def finished(notes: Notes, solution: Solution, cut_short: bool) -> Solution:
    """The solution with the seconds of earlier runs of the call; it is kept, or where the search goes on these are."""
    seconds, compiling = notes.take("seconds") or (0.0, 0.0)
    seconds, compiling = seconds + solution.counts.seconds, compiling + solution.counts.compile_seconds
    counts = dataclasses.replace(solution.counts, seconds=seconds, compile_seconds=compiling)
    solution = changed(solution, counts=counts)
    if solution.status.kind in GOES_ON:
        notes.put("seconds", (seconds, compiling), solution.status.name)
    elif notes.kept and not cut_short:
        notes.drop()  # the pieces of the search: what came of them is the answer
        notes.put(ANSWER, record_of_answer(solution), f"done: {solution.status.name}")
    return solution


def arrays_of(tree: PyTree) -> list[np.ndarray]:
    """The arrays of a tree, on the host."""
    return [np.array(leaf) for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]


def tree_of(arrays: list[np.ndarray], like: PyTree) -> PyTree:
    """Arrays in the structure of a tree."""
    return jax.tree.unflatten(jax.tree.structure(like), arrays)


def form_of_multipliers(prepared: Prepared) -> Multipliers:
    """Shapes of the multipliers of the problem's constraints."""
    x, y = prepared.one_start()
    return Multipliers(*(jax.eval_shape(prepared.stated(name), x, y) for name in CONSTRAINTS))


def zero_multipliers(prepared: Prepared) -> Multipliers:
    """Multipliers of a point of which none are known."""
    zeros: Multipliers = jax.tree.map(lambda row: np.zeros(row.shape, row.dtype), form_of_multipliers(prepared))
    return zeros


def multipliers_of(problem: Float64Problem, mu: np.ndarray, certificate: Certificate | None) -> Multipliers:
    """Those of all rows of the lower level, and of the upper level those of the certificate, where it has some."""
    own, _ = problem.layout().split(mu)
    upper = None if certificate is None else certificate.upper_multipliers
    if upper is None:
        upper = jax.tree.map(lambda row: np.zeros(row.shape), problem.shapes().upper)
    return Multipliers(own_rows(problem, own.inequalities), own.equalities, upper)


# -- the prepared problem in double precision -------------------------------------------------------------------------


def float64_problem(
    prepared: Prepared, seed: int, samples: int = FRESH_SAMPLES, open_kinks: bool = False
) -> Float64Problem:
    """The prepared problem in double precision; `open_kinks`: whether y may become a pair.

    A problem without samples shares the traces of the run, where that is in double precision. With samples it would
    gain nothing (batches have other shapes than all of the data), and the certificate of the solution, which knows
    nothing of the run, would compile its programs again.
    """
    sampled = any(source is not None for source in (prepared.problem.zeta, prepared.problem.xi))
    x, y = prepared.whole(prepared.x, prepared.y)
    return Float64Problem.of(prepared.problem, x, y, samples, seed, None if sampled else prepared.bound, open_kinks)


def in_precision_of(like: PyTree, tree: PyTree) -> PyTree:
    """JAX arrays with the dtypes of another tree."""
    return jax.tree.map(lambda old, new: jnp.asarray(new, old.dtype), like, tree)
