"""Runs of the large route: SALVF with given settings from given starts, each end judged by the referee."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from hierax._auto.constants import C1_GROWTH, INNER_STEPS, VIOLATED
from hierax._auto.referee import Referee, Stage
from hierax._auto.schedule import RunSettings
from hierax._auto.session import Session
from hierax._base.errors import InputError
from hierax._judge.point import Judgement
from hierax._lower.salm import SALM
from hierax._math.lower_level import INFEASIBLE, UNBOUNDED
from hierax._methods.inner import inner_of
from hierax._methods.salvf import SALVF
from hierax._methods.steps import Decay, Steps
from hierax._run.call import Call
from hierax._run.clock import Interrupted, OutOfTime
from hierax._run.device import Output
from hierax._run.prepare import Prepared
from hierax._run.solution import Counts, Solution, Solutions, statuses_of
from hierax._run.status import Kind
from hierax._run.stepping import run_steps
from hierax._run.stream_places import Place
from hierax._run.streams import Exhausted


class Estimates(NamedTuple):
    """What SALVF estimated at the first run's start: c1, the x-step, and the cap of the inner steps."""

    c1: float
    x_step: float
    inner_step: float


class Known(NamedTuple):
    """What the runs so far have shown and spent.

    Attributes:
        estimates: in whose units settings are; of the first run.
        runs: how many.
        failures: why runs came to nothing.
        lower_statuses: how exact solves of the lower level ended.
        no_more_data: why the streams give nothing any more; empty: they do.
        counts: samples and gradients of all starts.
        steps: of all runs and starts.
        ends: start and F of ends of runs from several starts.
        places: where the streams are.
    """

    estimates: Estimates | None = None
    runs: int = 0
    failures: tuple[str, ...] = ()
    lower_statuses: tuple[int, ...] = ()
    no_more_data: str = ""
    counts: Counts = Counts()
    steps: int = 0
    ends: tuple[tuple[int, float], ...] = ()
    places: dict[str, Place] | None = None


class Runner:
    """Makes the runs of one problem; a run that an earlier run of the same call has finished is taken over."""

    types = (Stage, Known, Judgement, RunSettings, Estimates, Counts, Place)

    def __init__(self, session: Session, referee: Referee | None) -> None:
        self.session, self.prepared, self.referee = session, session.prepared, referee
        self.known = Known()
        self._asked = 0  # runs that were asked for
        self._places: dict[str, Place] = {}  # where the streams were after the latest run that was taken over
        self._cut_short = False  # whether time or the user ended the latest run
        self._damping = 1.0

    @property
    def out_of_samples(self) -> bool:
        """Whether all samples are drawn."""
        counts, most = self.known.counts, self.session.auto.samples
        return most is not None and counts.zeta + counts.xi >= most

    def shorten_inner_steps(self) -> None:
        """After a run that failed."""
        self._damping /= C1_GROWTH

    def run(self, settings: RunSettings, x: PyTree, y: PyTree, starts: int | None = None) -> Stage | None:
        """One run from (x, y), or one from each of several; the best end, or None where all failed."""
        name = f"run {self._asked}"
        self._asked += 1
        return self.session.piece(name, functools.partial(self._new_run, name, settings, x, y, starts), self)

    def begin(self) -> None:
        """A run depends on its arguments alone."""
        self._cut_short = False

    def record(self, result: Stage | None) -> tuple[Stage | None, Known] | None:
        """What is known after a run; None where it was cut short."""
        known = self.known._replace(places=self.prepared.places())
        return None if self._cut_short else (None if result is None else result.kept(), known)

    def restore(self, record: tuple[Stage | None, Known]) -> Stage | None:
        """Take over a run."""
        stage, self.known = record
        self._places = self.known.places or {}
        return None if stage is None else stage.in_form_of(self.prepared)

    def _new_run(self, name: str, settings: RunSettings, x: PyTree, y: PyTree, starts: int | None) -> Stage | None:
        if self._places:
            self.prepared.move_streams_to(self._places)
            self._places = {}
        work = self.session.work
        call = Call(
            max_steps=self._affordable(settings.steps, starts or 1),
            seconds=max(1e-3, work.share * work.seconds - work.elapsed),  # without time it ends at its start
            seed=self.session.seed + self.known.runs,
            output=self._output,
            progress=False,
            quiet=True,  # a failure is part of the race, and the route's own log tells of it
            notes=self.session.call.notes.under(name),
        )
        found = self._made(self.prepared.at(x, y, starts), settings, call)
        return None if found is None else self._best_end(found, settings, starts)

    def _affordable(self, steps: int, starts: int) -> int:
        """As many of the steps as the samples allow, going by what a step has cost so far."""
        counts, most = self.known.counts, self.session.auto.samples
        drawn = counts.zeta + counts.xi
        if most is None or not self.known.steps:
            return steps
        return int(np.clip((most - drawn) * self.known.steps // max(drawn, 1) // starts, 1, steps))

    def _made(self, prepared: Prepared, settings: RunSettings, call: Call) -> Solution | Solutions | None:
        """The run; None where its streams give nothing for a first step, although earlier runs had something."""
        try:
            found = run_steps(prepared, self._method(settings), call)
        except (OutOfTime, Interrupted):
            if not self.known.runs:
                raise
            self._cut_short = True
            return None  # time and the request to end are looked at between the runs
        except InputError as error:
            if not (self.known.runs and isinstance(error.__cause__, Exhausted)):
                raise
            self.known, self._cut_short = self.known._replace(no_more_data=str(error.__cause__)), True
            return None
        for status in statuses_of(found):
            if status.kind is Kind.DATA_ERROR:
                self.known = self.known._replace(no_more_data=status.message)
            self._cut_short |= status.kind in (Kind.SECONDS, Kind.INTERRUPTED, Kind.DATA_ERROR)
        return found

    def _best_end(self, found: Solution | Solutions, settings: RunSettings, starts: int | None) -> Stage | None:
        """The best end of a run; None where none is any good."""
        solutions, known = [found] if isinstance(found, Solution) else list(found), self.known
        judged = [(i, end._replace(settings=settings)) for i, one in enumerate(solutions) for end in self._ends(one)]
        statuses = {s.lower_status for _, s in judged if s.lower_status is not None}
        fine = [(i, s) for i, s in judged if np.isfinite(s.merit) and s.lower_status not in (INFEASIBLE, UNBOUNDED)]
        feasible = [(i, s.upper) for i, s in fine if s.upper_violation <= VIOLATED]
        self.known = known._replace(
            estimates=known.estimates or _estimates(solutions[0]),
            runs=known.runs + 1,
            lower_statuses=tuple(sorted({*known.lower_statuses, *statuses})),
            counts=_sum(known.counts, found.counts, len(solutions)),
            steps=known.steps + sum(status.step for status in statuses_of(found)),
            ends=known.ends if starts is None else (*known.ends, *feasible),
        )
        if not fine:
            status = solutions[0].status
            why = status.name if status.failed else "no lower-level solution there"
            self.known = self.known._replace(failures=(*known.failures, why))
            return None
        best = min((stage for _, stage in fine), key=lambda stage: stage.merit)
        several = isinstance(found, Solutions)
        others = f" (others up to {max(stage.merit for _, stage in fine):.6g})" if several else ""
        text = (
            f"{settings.steps} steps{f' from {len(solutions)} starts' if several else ''} with {settings}: "
            f"F = {best.upper:.6g}{others}, violation {best.violation:.2g}, gap of the iterate {best.iterate_gap:.2g}."
        )
        return best._replace(text=text)

    @property
    def _output(self) -> Output:
        """The average over a run's second half is worth a look where y is solved for anew at every x anyway."""
        return "tail" if self.referee is not None and self.referee.exact else "last"

    def _method(self, settings: RunSettings) -> SALVF:
        """SALVF as the run makes it; what is not given here is estimated at the run's start."""
        exact = self.prepared.problem.xi is None
        inner = SALM(steps=INNER_STEPS) if exact else SALM()
        follow = exact or None
        if self.known.estimates is None:
            return SALVF(inner=inner, follow=follow)
        c1, x_step, inner_step = self.known.estimates
        # The longest stable x-step is about 1/(c1 L); steps stay at full length for 2^3 steps.
        steps = Steps(x=Decay(x_step * settings.step_factor / settings.c1_factor, 2.0))
        inner = dataclasses.replace(inner, eta_max=inner_step * self._damping)
        return SALVF(c1=c1 * settings.c1_factor, steps=steps, inner=inner, follow=follow)

    def _ends(self, solution: Solution) -> Iterator[Stage]:
        """Where a run that did not fail ended: its average, and its last point."""
        if solution.status.failed and solution.status.kind is not Kind.DATA_ERROR:
            return
        assert solution.state is not None
        last, multipliers = solution.state.run.state, solution.multipliers
        x, iterate = (eqx.filter(tree, eqx.is_inexact_array) for tree in (solution.x, solution.y))
        if self.referee is None:
            if len(solution.history):  # else it ended before its first step: nothing is known of the point
                upper, violation = (float(solution.history[name][-1]) for name in ("upper", "violation"))
                yield Stage(x, last.w, multipliers, Judgement(upper, np.nan, violation, 0.0, np.nan), np.nan, None)
            return
        yield self.referee.judge(x, iterate, last.w, multipliers)
        if self._output == "tail":
            yield self.referee.judge(last.point.x, iterate, last.w, multipliers)


def _estimates(solution: Solution) -> Estimates:
    method = solution.method
    assert isinstance(method, SALVF)
    longest_inner_step = inner_of(method.inner).control_step(method.smoothness)
    return Estimates(float(method.c1), float(method.steps.x.scale), float(longest_inner_step))


def _sum(counts: Counts, run: Counts, starts: int) -> Counts:
    """The counts with those of a run, which are per start; seconds apart, but for those of waiting."""
    names = ("zeta", "xi", "grad_upper", "grad_lower", "vjp_constraints", "lower_solves")
    more = {name: (getattr(counts, name) or 0) + starts * (getattr(run, name) or 0) for name in names}
    return dataclasses.replace(counts, **more, waiting_seconds=counts.waiting_seconds + run.waiting_seconds)
