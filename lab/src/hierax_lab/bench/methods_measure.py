"""One run of `hierax bench methods`: a method with nothing set on a problem, judged from outside on its way.

A run is made in legs that end at steps 1, 2, 3, 4, 7, 11, ... 10,000; each goes on bit for bit from the one before.
Between two legs phi(x) = F(x, y*(x)) is computed with a lower solution from outside hierax, on the exact problem; the
run is over once phi is at the finest level twice in a row, or time is up. No judging and no compilation is timed.
"""

import time
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypedDict

import numpy as np

from hierax import AbstractMethod, Auto, InputError, Solution, solve
from hierax.extend import METHODS
from hierax_lab.bench.medium_case import Functions
from hierax_lab.bench.medium_lower import Unsolved
from hierax_lab.bench.medium_phi import Phi, outside
from hierax_lab.bench.methods_problems import ENTRIES, Entry
from hierax_lab.bench.own_method import line_in, named_in, shown, split
from hierax_lab.reproduce.comparison import FAILED

LEVELS = (1e-2, 1e-3)  # values of (phi(x) - F*) / (phi(x0) - F*) that a run should reach
VIOLATION = 1e-6  # largest one of a point that counts: relative to 1 + |x| for X, absolute for upper rows
STEPS = (1, 2, 3, 4, 7, 11, 18, 30, 48, 78, 127, 207, 336, 546, 886, 1438, 2336, 3793, 6158, 10_000)
SECONDS = 6.0  # processor seconds of a run, compilation apart
MIN_SHARE = 0.1  # of the processor that a run is assumed to have: a leg gets at most ten times its seconds by the clock
AUTO, AUTO_SECONDS = "auto", 60.0  # by the clock, compilation included: twice what it allows itself on these problems


class Record(TypedDict):
    """A judged point of a run: costs so far and `gap`, (phi(x) - F*) / (phi(x0) - F*), infinite where x is not allowed.

    `gradients` are evaluations of the gradients of f and g, a batch being one; `lower_solves` those by exact solvers or
    of inner loops, as the method counts them.
    """

    step: int
    seconds: float
    gradients: int
    lower_solves: int
    gap: float


class Run(TypedDict):
    """A run as results.json has it; `refused` is the method's reason not to begin, `status` how it ended.

    `levels` are the records at which each of `LEVELS` was reached, `end` is the last one. The stored results of the
    benchmark have no `records`.
    """

    problem: str
    kind: str
    sampled: bool
    size: str
    method: str
    seed: int
    refused: str
    status: str
    levels: list[Record | None]
    end: Record | None
    records: list[Record]


class Judge:
    """phi of one problem, on a scale on which the start is at 1 and the optimum at 0."""

    def __init__(self, name: str, entry: Entry) -> None:
        self.name, self.entry, self.answer = name, entry, entry.built()
        self.functions = Functions(self.answer.case)
        self._phi = Phi(self.functions)
        self._start = 1.0
        self._best = self.answer.case.best
        assert self._best is not None
        self._start = self.gap(self.functions.x0)

    def gap(self, x: np.ndarray) -> float:
        """(phi(x) - F*) / (phi(x0) - F*); infinite where x is outside X, violates an upper row or has no y*(x)."""
        if not np.isfinite(x).all():
            return np.inf
        try:
            y = self._phi.lower_solution(x)
        except Unsolved:
            return np.inf
        above = np.max(self.functions.upper_rows(x, y)[0], initial=0.0)
        if max(above, outside(self.answer.case, x) / (1 + np.abs(x).max())) > VIOLATION:
            return np.inf
        assert self._best is not None
        return (float(self.functions.upper(x, y)[0]) - self._best) / self._start

    def record(self, solution: Solution, seconds: float) -> Record:
        """The record of a solution."""
        counts = solution.counts
        x, _ = self.functions.flat(solution.x, solution.y)
        return {
            "step": solution.status.step,
            "seconds": seconds,
            "gradients": counts.gradients,
            "lower_solves": counts.lower_solves or 0,
            "gap": self.gap(x),
        }


@lru_cache(maxsize=2)  # its functions are compiled once for all methods of a worker
def judge_of(name: str) -> Judge:
    """The judge of the problem of that name."""
    return Judge(name, ENTRIES[name])


def reached(records: list[Record], level: float) -> Record | None:
    """The first record at the level whose successor is at it too; None: the level was not reached.

    One record alone may be a point that x passes by, the last one included; it counts where it is the only one, an
    answer rather than a point on the way.
    """
    for record, after in pairwise(records) if len(records) > 1 else zip(records, records, strict=True):
        if max(record["gap"], after["gap"]) <= level:
            return record
    return None


def method_called(name: str) -> Callable[[], AbstractMethod]:
    """What makes the method of that name: of the registry, or FILE.py:NAME, which is executed."""
    return METHODS[name] if name in METHODS else _of_the_user(name)


@lru_cache(maxsize=1)  # another execution would be another class, whose programs are compiled anew
def _of_the_user(name: str) -> Callable[[], AbstractMethod]:
    found = named_in(name)
    if isinstance(found, AbstractMethod):
        return lambda: found
    if isinstance(found, type) and issubclass(found, AbstractMethod):
        return found
    raise InputError(
        f"{name}: needs a subclass of hx.AbstractMethod or one of its instances (docs/guides/own-method.md)."
    )


def called(method: str) -> str:
    """What the table calls a method: a user's without the folders of its file."""
    return method if method in METHODS or method == AUTO else f"{split(method)[0].name}:{split(method)[1]}"


def measure(problem: str, method: str) -> list[Run]:
    """The runs of a method on a problem, one for every seed."""
    judge = judge_of(problem)
    run = _auto if method == AUTO else _in_legs
    return [run(judge, method, seed) for seed in range(judge.entry.seeds)]


class _Ended(NamedTuple):
    status: str
    records: list[Record]
    refused: str = ""


def _run(judge: Judge, method: str, seed: int, ended: _Ended) -> Run:
    return {
        "problem": judge.name,
        "kind": judge.entry.kind,
        "sampled": judge.entry.sigma > 0,
        "size": str(judge.functions.sizes),
        "method": called(method),
        "seed": seed,
        "refused": ended.refused,
        "status": ended.status,
        "levels": [None if ended.status in FAILED else reached(ended.records, level) for level in LEVELS],
        "end": ended.records[-1] if ended.records else None,
        "records": ended.records,
    }


class _Timed(NamedTuple):
    """A solution, and the share of the processor that this process had while it was computed."""

    solution: Solution
    share: float


def _timed(judge: Judge, seed: int, **arguments: object) -> _Timed:
    """One call of `solve`. The share turns its seconds by the clock into the processor's."""
    case = judge.answer.case
    wall, cpu = time.perf_counter(), time.process_time()
    solution = solve(case.problem, case.x0, case.y0, seed=seed, progress=False, throw=False, **arguments)  # type: ignore[arg-type]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return _Timed(solution, min(1.0, cpu / wall))


def _auto(judge: Judge, method: str, seed: int) -> Run:
    """`Auto` makes no steps of one kind: its answer alone is judged."""
    if seed == 0:
        _timed(judge, seed, method=Auto(), seconds=AUTO_SECONDS)  # compiles, for the other seeds too
    solution, share = _timed(judge, seed, method=Auto(), seconds=AUTO_SECONDS)
    record = judge.record(solution, share * solution.counts.seconds)
    return _run(judge, method, seed, _Ended(solution.status.name, [record]))


def _in_legs(judge: Judge, method: str, seed: int) -> Run:
    build = method_called(method)
    try:
        ended = _legs(judge, build, seed)
    except InputError as error:
        ended = _Ended("refused", [], str(error))
    except Exception as error:  # a method of the user's may raise anything; it is told, and the table goes on
        where = "raised" if method in METHODS else f"{called(method)}{line_in(split(method)[0], error)}:"
        ended = _Ended(f"{where} {shown(error)}", [])
    return _run(judge, method, seed, ended)


def _legs(judge: Judge, build: Callable[[], AbstractMethod], seed: int) -> _Ended:
    records: list[Record] = []
    leg, seconds = _compiled(judge, build, seed), 0.0
    state, done, before = None, 0, 0.0
    for goal in STEPS:
        while done < goal and seconds < SECONDS:  # again where others had more of the processor than a leg before
            leg = _timed(
                judge,
                seed,
                method=build() if state is None else None,
                state=state,
                max_steps=goal - done,
                record_every=goal - done,
                seconds=(SECONDS - seconds) / max(leg.share, MIN_SHARE),
            )
            counts, status = leg.solution.counts, leg.solution.status
            seconds += leg.share * (counts.seconds - before)
            state, done, before = leg.solution.state, status.step, counts.seconds
            if status.failed or state is None or (done < goal and status.name != "seconds"):
                return _Ended(status.name, [*records, judge.record(leg.solution, seconds)])
        records.append(judge.record(leg.solution, seconds))
        if len(records) > 1 and max(record["gap"] for record in records[-2:]) <= LEVELS[-1]:
            return _Ended("at the finest level", records)
        if seconds >= SECONDS:
            return _Ended("out of time", records)
    return _Ended(leg.solution.status.name, records)


def _compiled(judge: Judge, build: Callable[[], AbstractMethod], seed: int) -> _Timed:
    """A step, and one that goes on from it: with samples each has a program of its own to compile."""
    first = _timed(judge, seed, method=build(), max_steps=1)
    state = first.solution.state
    return first if first.solution.status.failed or state is None else _timed(judge, seed, state=state, max_steps=1)
