"""Runs of the large route: SALVF with given settings from given starts, each end judged by a referee.

The referee sees a point at the lower level's own answer there, with F on all of the data: SALVF's iterate y is drawn
towards low F, which for a network means that it has seen the validation data. Everything is in double precision, with
programs that all stages share.

The settings: every stage is a race of two x-steps at one c1. A longer step that wins becomes the normal one; a longer
step that loses brings the two closer together; where it loses twice without progress the weight c1 grows, which removes
the bias that a small c1 leaves.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._auto import constants as const
from hierax._auto import session as sessions
from hierax._auto.session import Session
from hierax._base.constants import FRESH_SAMPLES, LOWER_STARTS, MUCH
from hierax._base.errors import InputError
from hierax._base.trees import select, size
from hierax._compile.checked import finite_values
from hierax._compile.configuration import doubled_on_host
from hierax._engine.float64_problem import Data, Float64Problem, standard_error
from hierax._engine.segments import not_convex
from hierax._judge.certificate import Certificate
from hierax._judge.certifying import certificate_in
from hierax._judge.point import Judgement, nearest_kept, point_values, relative_gap
from hierax._judge.retraining import LARGE, Retraining, is_trained
from hierax._lower.exact import Exact
from hierax._lower.linear import OutOfTime
from hierax._lower.salm import SALM
from hierax._math.lower_level import INFEASIBLE, SOLVED, UNBOUNDED
from hierax._math.scatter import Cube, cover, unit_cube
from hierax._methods.common import Decay, Steps
from hierax._methods.salvf import SALVF
from hierax._problem.problem import Multipliers, Problem
from hierax._run.call import Call, Interrupted
from hierax._run.device import Output
from hierax._run.feeding import Exhausted, on_rows
from hierax._run.prepare import Prepared
from hierax._run.solution import Counts, Kind, Solution, Solutions, statuses_of
from hierax._run.stepping import run_steps, state_to_begin_with


class RunSettings(NamedTuple):
    """How a run of SALVF differs from what it would estimate by itself.

    Attributes:
        steps: outer steps.
        step_factor: the x-step, in units of the estimate.
        c1_factor: c1, likewise.
    """

    steps: int
    step_factor: float
    c1_factor: float


AS_ESTIMATED = RunSettings(const.FIRST_STEPS, 1.0, 1.0)


class Schedule:
    """Which settings come next, after what the stages so far have shown.

    Attributes:
        settings: of the normal run of a race.
        longer_lost: stages in a row with this weight c1 in which there was no progress, nor did the longer step win.
    """

    def __init__(self) -> None:
        self.settings = AS_ESTIMATED
        self._ratio = MUCH  # of the two x-steps in the next race
        self.longer_lost = 0

    def first_race(self) -> list[RunSettings]:
        """The estimated weight c1, and weights far below it, where steps are longer: which wins depends on the problem.

        On the toy, where a constraint pins y, small c1 wins.
        """
        return [self.settings._replace(c1_factor=const.GROWTH**-power) for power in (0.0, 2.0, 4.0)]

    def next_race(self) -> list[RunSettings]:
        """A longer run with the x-step that did best so far, and one with a longer x-step."""
        self.settings = self.settings._replace(steps=int(const.STEPS_GROWTH * self.settings.steps))
        return [self.settings, self.settings._replace(step_factor=self._ratio * self.settings.step_factor)]

    def learn(self, winner: RunSettings | None, progress: bool) -> None:
        """Adapt the x-step to which run of a race won (None: neither was any good), and whether it brought progress."""
        factor = self.settings.step_factor
        longer_won = winner is not None and winner.step_factor > factor
        if longer_won:
            factor *= self._ratio
        else:  # the longer step is too long; without any progress the shorter one is, too
            self._ratio = max(self._ratio**0.5, MUCH**0.25)
            factor /= 1.0 if progress else self._ratio
        self.settings = self.settings._replace(step_factor=factor)
        self.longer_lost = 0 if progress or longer_won else self.longer_lost + 1

    def raise_c1(self) -> None:
        """The next weight, up to a hundred times the estimate."""
        factor = min(const.GROWTH * self.settings.c1_factor, MUCH**2)
        self.settings = self.settings._replace(c1_factor=factor)
        self.longer_lost = 0


class Stage(NamedTuple):
    """The end of a run, judged at the lower level's own answer; the best of its ends stands for the run.

    Attributes:
        x: the run's x.
        y: the lower level's solution there: exact where its size allows, else the inner solver's.
        multipliers: likewise.
        upper: F(x, y).
        violation: the largest at (x, y).
        upper_violation: the largest of an upper constraint.
        iterate_gap: relative gap of the run's own y against this one: what the weight c1 leaves of the lower level.
        lower_status: how the exact solve ended; None where there was none.
        parts: F on each of several parts of the samples that judge, where F is only known from samples; else None.
        settings: what the run was made with.
        text: a line for the log.
    """

    x: PyTree
    y: PyTree
    multipliers: Multipliers
    upper: float
    violation: float
    upper_violation: float
    iterate_gap: float
    lower_status: int | None = None
    parts: np.ndarray | None = None
    settings: RunSettings = AS_ESTIMATED
    text: str = ""

    @property
    def merit(self) -> float:
        """F; where upper constraints are not kept, these come first."""
        return self.upper + const.RUN_OFF * (1 + abs(self.upper)) * max(self.upper_violation - const.NOTICEABLE, 0.0)

    @property
    def upper_se(self) -> float:
        """The standard error of F."""
        return 0.0 if self.parts is None else float(standard_error(self.parts))

    def error_against(self, other: "Stage") -> float:
        """The standard error of the difference of F to that of another stage on the same samples."""
        if self.parts is None or other.parts is None:
            return 0.0
        return float(standard_error(self.parts - other.parts))

    def kept(self) -> tuple[list[np.ndarray], tuple[Any, ...]]:
        """The same for a checkpoint: its arrays, and everything else."""
        return sessions.arrays_of(self[:3]), self[3:]

    @staticmethod
    def restored(prepared: Prepared, kept: tuple[list[np.ndarray], tuple[Any, ...]]) -> "Stage":
        """The stage that was `kept`."""
        like = prepared.x, prepared.y, sessions.form_of_multipliers(prepared)
        return Stage(*sessions.tree_of(kept[0], like), *kept[1])


def open_by_noise(certificate: Certificate, tol: float) -> bool:
    """Whether noise alone keeps a certificate from saying yes or no."""
    known = certificate.hypergradient_norm is not None and certificate.hypergradient_norm_se is not None
    return known and certificate.verdict(tol) == "unknown"


class Referee:
    """Judges points of one problem. Points are arrays in the precision of the run, here and in what it returns.

    `rows_of_streams` gives the next rows of all streams, about as many as it is asked for: no run has seen them.

    Attributes:
        samples: how many stand for an expectation that is not known.
        exact: whether every point is judged at the exact y*(x).
        not_convex: why it is the best of several solves then.
        trained: why the lower level is trained, not solved; with streams, which SALVF sees more of, it never is.
    """

    def __init__(
        self, prepared: Prepared, seed: int, rows_of_streams: Callable[[int], dict[str, PyTree]] = lambda count: {}
    ) -> None:
        self.prepared, self.seed, self._rows_of_streams = prepared, seed, rows_of_streams
        self.samples, self._looks = FRESH_SAMPLES, 0
        self.setting = self._on_new_samples(FRESH_SAMPLES)
        rows = self.setting.shapes()[:2]
        self.entries = size(self.setting.y) + sum(row.size for row in jax.tree.leaves(rows))
        self.exact = self.entries <= LARGE
        self.not_convex = not_convex(self.setting, self.setting.y, seed) if self.exact else None
        self.trained = None if self.exact or prepared.feeders else is_trained(self.setting, seed)
        self.lower = Exact() if self.not_convex is None else Exact(starts=LOWER_STARTS)

    def see_more_samples(self) -> bool:
        """Judge by as many samples as possible from now on; False where there is no noise, or they do so already."""
        if not self.setting.sampled or self.samples >= const.MOST_SAMPLES:
            return False
        return self.see_other_samples(const.MOST_SAMPLES)

    def see_other_samples(self, count: int) -> bool:
        """Judge by other samples from now on; False where the streams give no more."""
        try:
            self.setting = self._on_new_samples(count)
        except (Exhausted, OutOfTime, Interrupted):
            return False
        return True

    def _on_new_samples(self, count: int) -> Float64Problem:
        problem, known = on_rows(self.prepared.problem, self._rows_of_streams(count))
        self.samples = known if self.prepared.feeders else count
        self._looks += 1
        stated = dataclasses.replace(self.prepared, problem=problem)
        return sessions.float64_problem(stated, self.seed + self._looks - 1, self.samples)

    def judge(self, x: PyTree, iterate: PyTree, w: PyTree, multipliers: Multipliers, exact_up_to: int = LARGE) -> Stage:
        """The end (x, iterate) of a run, judged at y*(x) up to this number of entries, else at the inner solver's w."""
        at, y, last = doubled_on_host((x, w, iterate))
        status = None
        if self.entries <= exact_up_to:
            found = self.setting.solve_lower(self.lower, at, y)
            status = int(found.status)
            if status == SOLVED:
                own = found.multipliers
                y, multipliers = found.y, Multipliers(own.inequalities, own.equalities, multipliers.upper)
        return self._measured(at, y, last)._replace(x=x, multipliers=multipliers, lower_status=status)

    def _measured(self, x: PyTree, y: PyTree, iterate: PyTree) -> Stage:
        """F, the violations, and the gap of the iterate."""
        judged, gap = self.setting.run("end of a run", _judged, x, y, iterate)
        upper, violation, above = float(judged.upper), float(judged.violation), float(judged.upper_violation)
        stage = Stage(x, y, sessions.zero_multipliers(self.prepared), upper, violation, above, float(gap))
        if not self.setting.zeta.fresh:
            return stage
        return stage._replace(parts=self.setting.run_on_groups("parts of F", _upper, x, y))

    def in_words(self, stage: Stage) -> str:
        """F of a stage that these samples have judged."""
        if stage.parts is None:
            return f"{stage.upper:.6g} on the data"
        return f"{stage.upper:.6g} +- {stage.upper_se:.2g} (standard error) on {self.setting.fresh_samples} samples"

    def again(self, stage: Stage, exact_up_to: int = LARGE) -> Stage:
        """A stage judged once more."""
        new = self.judge(stage.x, stage.y, stage.y, stage.multipliers, exact_up_to)
        return new._replace(settings=stage.settings, text=stage.text)

    def moved_onto_rows(self, end: Stage) -> Stage:
        """The end of a run with its y moved to where it keeps the constraints of the lower level."""
        x, y = doubled_on_host((end.x, end.y))
        y, _ = self.setting.run("nearest y that keeps the rows", nearest_kept, x, y)
        kept = self._measured(x, y, y)
        return kept._replace(x=end.x, multipliers=end.multipliers, lower_status=end.lower_status)

    def starts(self, count: int) -> tuple[PyTree, PyTree]:
        """The given start and points that cover X and Y, stacked; where a function is not finite, the given start."""
        x, y = self.prepared.x, self.prepared.y
        cubes = unit_cube(size(x), count - 1, self.seed), unit_cube(size(y), count - 1, self.seed + 1)
        xs, ys = self.setting.run("starts", _finite_starts, self.setting.x, self.setting.y, *cubes)
        return sessions.in_precision_of(x, xs), sessions.in_precision_of(y, ys)

    def certificate(self, end: Stage, training: Retraining | None = None) -> Certificate | None:
        """The certificate of a point, whose lower level may be trained; None: it is too large for one."""
        there = self.setting.at(end.x, end.y)
        if training is not None:
            return certificate_in(there, seed=self.seed, stop=training.stop, training=training)
        if self.entries > (LARGE if self.prepared.feeders else const.MATRIX_ORDER):
            return None
        return certificate_in(there, Exact(), doubled_on_host(end.multipliers), None, self.seed)


def _judged(problem: Problem, data: Data, x: PyTree, y: PyTree, iterate: PyTree) -> tuple[Judgement, Array]:
    judged = point_values(problem, data, x, y)
    return judged, relative_gap(problem.lower(x, iterate, data.xi), judged.lower)


def _upper(problem: Problem, data: Data, x: PyTree, y: PyTree) -> Array:
    return problem.upper(x, y, data.zeta)


def _finite_starts(
    problem: Problem, data: Data, x: PyTree, y: PyTree, x_cube: Cube, y_cube: Cube
) -> tuple[PyTree, PyTree]:
    def stacked(convex_set: PyTree, tree: PyTree, cube: Cube) -> PyTree:
        return jax.vmap(jax.flatten_util.ravel_pytree(tree)[1])(cover(convex_set, tree, cube))

    def usable(at: PyTree, below: PyTree) -> tuple[PyTree, PyTree]:
        finite = jnp.stack(list(finite_values(problem, at, below, data.zeta, data.xi).values()))
        return select(jnp.all(finite), (at, below), (x, y))

    return jax.vmap(usable)(stacked(problem.x_set, x, x_cube), stacked(problem.y_set, y, y_cube))


class Known(NamedTuple):
    """What the runs so far have shown and spent.

    Attributes:
        estimates: in whose units settings are: c1, the x-step, and the cap of the inner steps at the given start.
        runs: how many.
        failures: why runs came to nothing.
        lower_statuses: how exact solves of the lower level ended.
        no_more_data: why the streams give nothing any more; empty: they do.
        counts: samples and gradients of all starts.
        steps: of all runs and starts.
        ends: start and F of ends of runs from several starts.
    """

    estimates: tuple[float, float, float] | None = None
    runs: int = 0
    failures: tuple[str, ...] = ()
    lower_statuses: tuple[int, ...] = ()
    no_more_data: str = ""
    counts: Counts = Counts()
    steps: int = 0
    ends: tuple[tuple[int, float], ...] = ()


class Runner:
    """Makes the runs of one problem; a run that an earlier run of the same call has finished is taken over.

    Attributes:
        known: what they have shown.
        damping: of the inner steps; less after a run that failed.
    """

    def __init__(self, session: Session, referee: Referee) -> None:
        self.session, self.prepared, self.referee = session, session.prepared, referee
        self.known = Known()
        self._cut_short = False  # whether time or the user ended the latest run
        self.damping = 1.0

    @property
    def samples_left(self) -> int | None:
        """How many may still be drawn; None: any number."""
        counts, most = self.known.counts, self.session.auto.samples
        return None if most is None else max(0, most - counts.zeta - counts.xi)

    def run(self, settings: RunSettings, x: PyTree, y: PyTree, starts: int | None = None) -> Stage | None:
        """One run from (x, y), or one from each of several; the best end, or None where all failed."""
        name, self._cut_short = f"run {self.known.runs}", False
        return self.session.piece(
            name,
            functools.partial(self._new_run, name, settings, x, y, starts),
            (Known, RunSettings, Counts),
            self._record,
            self._restored,
        )

    def _record(self, stage: Stage | None) -> tuple[Any, Known] | None:
        return None if self._cut_short else (None if stage is None else stage.kept(), self.known)

    def _restored(self, record: tuple[Any, Known]) -> Stage | None:
        kept, self.known = record
        return None if kept is None else Stage.restored(self.prepared, kept)

    def _new_run(self, name: str, settings: RunSettings, x: PyTree, y: PyTree, starts: int | None) -> Stage | None:
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
        if self.known.estimates is None:
            given = state_to_begin_with(self.prepared, self._method(None), call, None).method
            assert isinstance(given, SALVF)
            estimates = float(given.c1), float(given.steps.x.longest), float(given.longest_inner_step)
            self.known = self.known._replace(estimates=estimates)
        found = self._made(self.prepared.at(x, y, starts), settings, call)
        return None if found is None else self._best_end(found, settings, starts)

    def _affordable(self, steps: int, starts: int) -> int:
        """As many of the steps as the samples allow, going by what a step has cost so far."""
        left, drawn = self.samples_left, self.known.counts.zeta + self.known.counts.xi
        if left is None or not self.known.steps:
            return steps
        return int(np.clip(left * self.known.steps // max(drawn, 1) // starts, 1, steps))

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
        feasible = [(i, s.upper) for i, s in fine if s.upper_violation <= const.NOTICEABLE]
        self.known = known._replace(
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
            f"{settings.steps} steps{f' from {len(solutions)} starts' if several else ''} with x-step "
            f"{settings.step_factor:g} and c1 {settings.c1_factor:g} times the estimate: "
            f"F = {best.upper:.6g}{others}, violation {best.violation:.2g}, gap of the iterate {best.iterate_gap:.2g}."
        )
        return best._replace(text=text)

    @property
    def _output(self) -> Output:
        """The average over a run's second half is worth a look where y is solved for anew at every x anyway."""
        return "tail" if self.referee.exact else "last"

    def _method(self, settings: RunSettings | None) -> SALVF:
        """SALVF as a run makes it; None: what the estimates are made for, before the first run.

        One form for all runs: then they share their programs.
        """
        exact = self.prepared.problem.xi is None
        inner = SALM(steps=const.INNER_STEPS) if exact else SALM()
        follow = exact or None
        if settings is None or self.known.estimates is None:
            return SALVF(inner=inner, follow=follow)
        c1, x_step, inner_step = self.known.estimates
        # The longest stable x-step is about 1/(c1 L); steps stay at full length for 2^3 steps.
        steps = Steps(x=Decay(x_step * settings.step_factor / settings.c1_factor, 2.0))
        inner = dataclasses.replace(inner, eta_max=inner_step * self.damping)
        return SALVF(c1=c1 * settings.c1_factor, steps=steps, inner=inner, follow=follow)

    def _ends(self, solution: Solution) -> Iterator[Stage]:
        """Where a run that did not fail ended: its average, and its last point."""
        if solution.status.failed and solution.status.kind is not Kind.DATA_ERROR:
            return
        assert solution.state is not None
        last, multipliers = solution.state.run.state, solution.multipliers
        x, iterate = (eqx.filter(tree, eqx.is_inexact_array) for tree in (solution.x, solution.y))
        yield self.referee.judge(x, iterate, last.w, multipliers)
        if self._output == "tail":
            yield self.referee.judge(last.point.x, iterate, last.w, multipliers)


def _sum(counts: Counts, run: Counts, starts: int) -> Counts:
    """The counts with those of a run, which are per start; seconds apart, but for those of waiting."""
    names = ("zeta", "xi", "grad_upper", "grad_lower", "vjp_constraints", "lower_solves")
    more = {name: (getattr(counts, name) or 0) + starts * (getattr(run, name) or 0) for name in names}
    return dataclasses.replace(counts, **more, waiting_seconds=counts.waiting_seconds + run.waiting_seconds)
