"""The large route: SALVF in stages, for sampled problems and for sizes at which nothing else is possible.

The first stage is a race over the weight c1 of the value function (its estimate, and two values far below it, with
which steps are longer), for small problems from several starts side by side. Every further stage makes two runs from
the best point so far, with the x-step that did best and with one several times longer, and keeps whichever ends lower
in F(x, w), w being the lower level's own answer at the final x (`referee.py`): the iterate y is drawn towards low F,
which for a network means that it has seen the validation data. A run that diverges counts as no run: the next stage
starts from the last good point with a shorter step. Stages get longer.

The certificate of the best point decides what comes next: where it has nothing to object beyond its standard errors,
the route ends; where it objects although F no longer falls, c1 is raised, to remove the bias that a small c1 leaves.
Problems too large for a certificate at every stage go by F alone. Steps and weights are in units that SALVF estimates
from curvature and noise at the first stage's start; everything else is estimated anew at every stage's start.
"""

import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import numpy as np
import optax
from jaxtyping import Array, PyTree

from hierax._auto.referee import EXACT_UP_TO, Referee, Seen, sees
from hierax._auto.verdict import NO_BOUND, NO_LOWER, NO_UPPER, UNBOUNDED_ABOVE
from hierax._base.constants import LOWER_STARTS
from hierax._base.trees import size, split_variable
from hierax._judge.certificate import Certificate
from hierax._lower.salm import SALM
from hierax._math.lower_level import INFEASIBLE, SOLVED, UNBOUNDED
from hierax._methods.salvf import SALVF
from hierax._methods.steps import Decay, Steps
from hierax._problem import sets
from hierax._problem.problem import Multipliers, Problem
from hierax._run.progress import Show, progress_bar
from hierax._run.records import History
from hierax._run.solution import Counts, Solution
from hierax._run.status import Status

SECONDS = 120.0
FIRST = 250  # steps of the first stage
LONGER, LONGEST = 1.5, 100_000  # growth of the stages
RACE, LEAST = 10.0, 1.8  # ratio of the two x-steps at first, and at least
DAMP = 0.25  # of the inner steps after a run that diverged
RAISE, POWERS = 4.0, (0, -2, -4)  # growth of c1, and its powers in the first race
HIGHEST, HIGHER = 1, 3  # power of c1 at which the route ends, and up to which it goes while the certificate objects
GAIN = 2e-3  # relative decrease of F that counts as progress
IDLE, STALE = 2, 6  # stages without progress before c1 grows: where the longer step does not win either, and at all
INNER = 50  # inner steps where the lower level is known exactly
STARTS, SEVERAL_UP_TO = 8, 200  # starts of the first race, for problems of up to so many variables
TOLERANCE = 1e-3  # of the certificate that ends the route
ALLOWED, WEIGHT = 1e-3, 10.0  # violation of upper constraints that is let pass, and what more of it costs in F
AWAY, FURTHER = 30.0, (10.0, 100.0, 1000.0)  # lengths from the start beyond which F is looked at further along


class Estimates(NamedTuple):
    """What the first stage estimated, the unit of what later ones try: c1, x-step, and cap of the inner steps."""

    c1: float
    step: float
    inner: float


class Stage(NamedTuple):
    """A finished run: its end as the referee sees it, and what it was run with."""

    seen: Seen
    factor: float
    raised: int
    text: str = ""

    @property
    def merit(self) -> float:
        """F, and a price for upper constraints that are not kept."""
        return self.seen.upper + WEIGHT * (1 + abs(self.seen.upper)) * max(self.seen.above - ALLOWED, 0.0)


class LargeRun:
    """The stages of one problem."""

    def __init__(
        self, problem: Problem, x0: PyTree, y0: PyTree, auto: Any, seed: int, log: list[str], solvers: tuple[Any, Any]
    ) -> None:
        self.problem, self.auto, self.seed, self.log = problem, auto, seed, log
        self.solve, self.solve_many = solvers
        self.begin, self.seconds = time.perf_counter(), auto.seconds or SECONDS
        self.compiling, self.x, self.y, self.x0 = 0.0, x0, y0, x0
        self.referee = Referee(problem, x0, y0, seed) if sees(problem) else None
        several = self.referee is not None and size(split_variable("x", x0)[0]) + self.referee.entries <= SEVERAL_UP_TO
        if self.referee is not None and self.referee.bent is not None:
            log.append(f"The lower level is {self.referee.bent}: y is the best of {LOWER_STARTS} solves at every x.")
        self.starts = (auto.starts or (STARTS if several else 1)) if self.referee is not None else 1
        self.unit: Estimates | None = None
        self.damping = 1.0
        self.best: Stage | None = None
        self.stages: list[Stage] = []
        self.failures: Counter[str] = Counter()  # of stages that came to nothing, why
        self.below: set[int] = set()  # how exact solves of the lower level ended
        self.certificate: Certificate | None = None
        self.ran_off = False
        self.counts = Counts()
        self.runs, self.made = 0, 0  # so far: runs, and steps of all starts
        self.show: Show = lambda done, record: None

    @property
    def elapsed(self) -> float:
        """Seconds, compilation apart."""
        judging = 0.0 if self.referee is None else self.referee.setting.compile_seconds
        return time.perf_counter() - self.begin - self.compiling - judging

    @property
    def drawn(self) -> int:
        """Samples so far, of all starts."""
        return self.counts.zeta + self.counts.xi

    @property
    def least_above(self) -> float:
        """The least violation of the upper constraints that was met."""
        return min((stage.seen.above for stage in self.stages), default=0.0)

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        return self.elapsed > self.seconds or (self.auto.samples is not None and self.drawn >= self.auto.samples)

    def _ran_off(self) -> bool:
        """Whether F falls without an end: where the best point is far away, on along the ray from the start as well."""
        if self.best is None or self.referee is None:
            return False
        (x, rest), (x0, _) = split_variable("x", self.x), split_variable("x", self.x0)
        way = optax.tree.sub(x, x0)
        if optax.tree.norm(way) < AWAY * (1 + optax.tree.norm(x0)):
            return False
        seen = self.best.seen
        for stretch in FURTHER:
            further = sets.project(self.problem.x_set, optax.tree.add_scale(x0, stretch, way))
            before = seen.upper
            seen = self.referee.look(eqx.combine(further, rest), seen.y, seen.y, seen.multipliers)
            if not (seen.upper < before - abs(before) and seen.above <= ALLOWED and seen.below in (SOLVED, None)):
                return False
        self.ran_off = True
        return True

    def run(self) -> None:
        """Stages until the certificate agrees, the budget is spent, or nothing improves any more."""
        steps, factor, ratio, idle, stale = FIRST, 1.0, RACE, 0, 0
        lanes = self.referee.starts(self.x, self.y, self.starts) if self.referee and self.starts > 1 else None
        first = [stage for stage in (self._stage(factor, power, steps, lanes) for power in POWERS) if stage is not None]
        ahead = min(first, key=lambda stage: stage.merit, default=None)
        self.log += [stage.text for stage in first]
        self._keep(ahead)
        if self.below and SOLVED not in self.below:
            return
        raised = POWERS[0] if ahead is None else ahead.raised
        while not (self._ran_off() or self._certified() or self.spent):
            steps = min(int(LONGER * steps), LONGEST)
            pair = self._stage(factor, raised, steps), self._stage(ratio * factor, raised, steps)
            fine = [stage for stage in pair if stage is not None]
            ahead = min(fine, key=lambda stage: stage.merit, default=None)
            gained = self._keep(ahead)
            if ahead is not None and ahead is self.best:
                self.log.append(ahead.text)
            if len(fine) < 2:
                self.damping *= DAMP
            longer = ahead is not None and ahead.factor > factor
            if longer:
                factor *= ratio
            else:  # the longer step is too long; without any gain the shorter one is, too
                ratio = max(ratio**0.5, LEAST)
                factor /= 1.0 if gained else ratio
            idle, stale = 0 if gained or longer else idle + 1, 0 if gained else stale + 1
            if idle >= IDLE or stale >= STALE:
                if self.least_above > ALLOWED or (raised >= HIGHEST and not self._objected()):
                    break
                raised, idle, stale = min(raised + 1, HIGHER), 0, 0

    def _keep(self, stage: Stage | None) -> bool:
        """Go on from a stage that is better; whether it is clearly so."""
        if stage is None or (self.best is not None and stage.merit >= self.best.merit):
            return False
        gained = self.best is None or stage.merit < self.best.merit - GAIN * (1 + abs(self.best.merit))
        self.best, self.x, self.y = stage, stage.seen.x, stage.seen.y
        self.certificate = None
        return gained

    def _certified(self) -> bool:
        """Whether the certificate of the best point has nothing to object beyond its standard errors."""
        if self.referee is None or self.best is None:
            return False
        if self.certificate is None:
            self.certificate = self.referee.certificate(self.best.seen)
            if self.certificate is not None:
                self.log.append(f"Certificate of the best point: {said(self.certificate)}")
        return self.certificate is not None and not self.certificate.refuted(TOLERANCE)

    def _objected(self) -> bool:
        """Whether the certificate names a slope that remains: not where it has nothing to say, as at a kink."""
        agreed = self._certified()
        return not agreed and self.certificate is not None and self.certificate.hypergradient_norm is not None

    def _stage(
        self, factor: float, raised: int, steps: int, lanes: tuple[PyTree, PyTree] | None = None
    ) -> Stage | None:
        """One run from the best point, or one from each start; its best end, or None where all failed."""
        if self.spent and self.stages:
            return None
        count = self.starts if lanes is not None else 1
        solver = self.solve if lanes is None else self.solve_many
        with _failures_untold():
            solution = solver(
                self.problem,
                *(lanes or (self.x, self.y)),
                self._method(factor, raised),
                max_steps=self._affordable(steps, count),
                seconds=max(1.0, self.seconds - self.elapsed),
                seed=self.seed + self.runs,
                output=self._output,
                progress=False,
                throw=False,
            )
        self.runs += 1
        self._account(solution, count)
        if self.unit is None:
            found = solution.method if lanes is None else _of_start(solution.method, 0)
            self.unit = Estimates(float(found.c1), float(found.steps.x.scale), float(found.inner.eta_max))
        ends = [Stage(seen, factor, raised) for seen in self._ends(solution, lanes is not None)]
        self.below |= {stage.seen.below for stage in ends if stage.seen.below is not None}
        fine = [end for end in ends if np.isfinite(end.merit) and end.seen.below not in (INFEASIBLE, UNBOUNDED)]
        settings = f"x-step {factor:g} and c1 {RAISE**raised:g} times the estimate"
        if not fine:
            self.failures[_failure(solution)] += 1
            return None
        best = min(fine, key=lambda end: end.merit)
        self.stages.append(best)
        leader = self.best or best
        self.show(int(self.elapsed), {"upper": leader.seen.upper, "violation": leader.seen.violation})
        whence = "" if lanes is None else f" from {count} starts"
        others = "" if lanes is None else f" (others up to {max(end.merit for end in fine):.6g})"
        return best._replace(
            text=f"{steps} steps{whence} with {settings}: F = {best.seen.upper:.6g}{others}, violation "
            f"{best.seen.violation:.2g}, gap of the iterate {best.seen.gap:.2g}."
        )

    def _affordable(self, steps: int, count: int) -> int:
        """As many of the steps as the budget of samples allows, going by what a step has cost so far."""
        if self.auto.samples is None or not self.made:
            return steps
        return int(np.clip((self.auto.samples - self.drawn) * self.made // max(self.drawn, 1) // count, 1, steps))

    def _ends(self, solution: Solution, many: bool) -> Iterator[Seen]:
        """Where the starts that did not fail ended: the average of each, and its last point."""
        statuses = solution.status if many else [solution.status]
        for i, status in enumerate(statuses):
            if status.failed:
                continue
            last = solution.state.run.state
            parts = (solution.x, solution.y, last.w, solution.multipliers, last.point.x)
            x, iterate, w, multipliers, last_x = _of_start(parts, i) if many else parts
            w = eqx.combine(w, split_variable("y", iterate)[1])
            if self.referee is None:
                upper, violation = (float(solution.history[name][-1]) for name in ("upper", "violation"))
                yield Seen(x, w, multipliers, upper, violation, 0.0, np.nan, None)
                continue
            yield self.referee.look(x, iterate, w, multipliers)
            if self._output == "tail":
                last_x = eqx.combine(last_x, split_variable("x", x)[1])
                yield self.referee.look(last_x, iterate, w, multipliers)

    @property
    def _output(self) -> Literal["last", "tail"]:
        """The average over a run's second half is worth a look where y is solved for anew at every x anyway."""
        return "tail" if self.referee is not None and self.referee.exact else "last"

    def _method(self, factor: float, raised: int) -> SALVF:
        """SALVF as the stage runs it; what is not given here is estimated at the stage's start."""
        exact = self.problem.xi is None
        inner = SALM(steps=INNER) if exact else SALM()
        if self.unit is None:
            return SALVF(inner=inner, follow=exact or None)
        inner = dataclasses.replace(inner, eta_max=self.unit.inner * self.damping)
        weight = RAISE**raised
        steps = Steps(x=Decay(self.unit.step * factor / weight, 2.0))  # the longest stable step is about 1/(c1 L)
        return SALVF(c1=self.unit.c1 * weight, steps=steps, inner=inner, follow=exact or None)

    def _account(self, solution: Solution, count: int) -> None:
        """Add up what a run cost; its counts are per start."""
        self.compiling += solution.counts.compile_seconds
        added = dataclasses.astuple(dataclasses.replace(solution.counts, seconds=0.0, compile_seconds=0.0))
        self.counts = Counts(*(a + count * b for a, b in zip(dataclasses.astuple(self.counts), added, strict=True)))
        statuses = solution.status if isinstance(solution.status, list) else [solution.status]
        self.made += sum(status.step for status in statuses)


@contextmanager
def _failures_untold() -> Iterator[None]:
    """Without warnings about runs that failed: they are part of a race, and the route's own log tells of them."""
    logger = logging.getLogger("hierax")
    logger.addFilter(_no_warning)
    try:
        yield
    finally:
        logger.removeFilter(_no_warning)


def _no_warning(record: logging.LogRecord) -> bool:
    return record.levelno != logging.WARNING


def _of_start(tree: PyTree, i: int) -> PyTree:
    def pick(leaf: Any) -> Any:
        return leaf[i] if isinstance(leaf, Array | np.ndarray) and leaf.ndim else leaf

    return jax.tree.map(pick, tree)


def _failure(solution: Solution) -> str:
    status = solution.status[0] if isinstance(solution.status, list) else solution.status
    return status.name if status.failed else "no lower-level solution there"


def said(certificate: Certificate) -> str:
    """The certificate in a sentence."""
    norm, error = certificate.hypergradient_norm, certificate.hypergradient_norm_se
    above = "hyper-gradient unknown" if norm is None else f"hyper-gradient {norm:.2g}"
    above += "" if error is None else f" +- {error:.1g}"
    gap = "unknown" if certificate.lower_gap is None else f"{certificate.lower_gap:.2g}"
    verdict = certificate.reasons(TOLERANCE)
    return (
        f"violation {certificate.max_violation:.2g}, lower gap {gap}, {above} (its terms: "
        f"{certificate.hypergradient_scale:.2g}); {'ok' if not verdict else verdict[0]}"
    )


def _status(run: LargeRun) -> Status:
    """How the route ended, in words."""
    done, best = len(run.stages), run.best
    for only, name, text in ((INFEASIBLE, "infeasible", NO_LOWER), (UNBOUNDED, "unbounded_lower", NO_BOUND)):
        if run.below == {only}:
            return Status(name, text, done)
    if best is None:
        return Status("diverged", "diverged: every stage failed, at the shortest step too; the start is returned.", 0)
    if run.ran_off:
        return Status("unbounded_upper", UNBOUNDED_ABOVE.format(upper=best.seen.upper), done)
    known = run.certificate
    agreed = known is not None and not known.refuted(TOLERANCE)
    if run.least_above > ALLOWED:
        return Status("infeasible", NO_UPPER.format(violation=run.least_above), done)
    name = "converged" if agreed or not run.spent else "seconds" if run.elapsed > run.seconds else "samples"
    if name == "converged" and run.referee is not None and run.referee.bent is not None:
        name = "best_of_branches"
    text = f"F = {best.seen.upper:.6g} on the data, violation {best.seen.violation:.2g}, after {done} stages."
    if agreed:
        text += " The certificate agrees."
    elif known is not None:
        text += f" The certificate objects: {known.reasons(TOLERANCE)[0]} More seconds may help."
    else:
        text += " `sol.certificate` says how good that is."
    return Status(name, f"{name}: {text}", done)


def run_large(
    problem: Problem, x0: PyTree, y0: PyTree, auto: Any, seed: int, first: str, progress: bool | None
) -> Solution:
    """The best point of all stages."""
    from hierax.solving import solve, solve_many  # here, because `solve` calls this

    run = LargeRun(problem, x0, y0, auto, seed, [first], (solve, solve_many))
    with progress_bar(progress, int(run.seconds)) as run.show:
        run.run()
    status = _status(run)
    failed = ", ".join(f"{count} {name}" for name, count in run.failures.items())
    run.log.append(f"{run.runs} runs in all" + (f", undone: {failed}." if failed else "."))
    if run.best is None:
        end = solve(problem, x0, y0, SALVF(), max_steps=1, seed=seed, progress=False, throw=False)
        x, y, multipliers = end.x, end.y, end.multipliers
    else:
        x, y, multipliers = _settled(run, run.best.seen)
    seen = [stage.seen for stage in run.stages]
    columns = {name: np.array([getattr(one, name) for one in seen]) for name in ("upper", "violation", "gap")}
    columns["factor"] = np.array([stage.factor for stage in run.stages])
    return Solution(
        x=x,
        y=y,
        multipliers=multipliers,
        status=status,
        history=History({"step": np.arange(1, len(seen) + 1), **columns}),
        counts=dataclasses.replace(run.counts, seconds=run.elapsed, compile_seconds=run.compiling),
        state=None,
        method=dataclasses.replace(auto, route="large", seconds=run.seconds, starts=run.starts),
        log=(*run.log, status.message),
        problem=problem,
    )


def _settled(run: LargeRun, seen: Seen) -> tuple[PyTree, PyTree, Multipliers]:
    """The best point with y and multipliers from an exact lower solve, where that is possible."""
    if run.referee is not None and not run.referee.exact:
        seen = run.referee.look(seen.x, seen.y, seen.y, seen.multipliers, EXACT_UP_TO)
    if seen.below == SOLVED:
        run.log.append("y is the lower level's exact solution at the final x.")
    return seen.x, seen.y, seen.multipliers
