"""The large route: SALVF in stages, for sampled problems and for sizes at which nothing else is possible.

A stage makes two runs from the best point so far, with the x-step that did best and with one several times longer, and
keeps whichever ends lower in F(x, w), w being the inner solver's answer at the final x (the exact one for small
problems): the iterate y is drawn towards low F, which for a network means that it has seen the validation data. A run
that diverges counts as no run: the next stage starts from the last good point with a shorter step. Stages get longer.
The weight c1 of the value function is chosen by a first race (its estimate, and two values far below it, with which
steps are longer) and raised whenever nothing is gained any more, which removes the bias that a small c1 leaves.
Everything else is estimated anew at every stage's start. In the end the lower level is solved exactly at the final x,
where its size allows.
"""

import dataclasses
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from hierax import samples
from hierax.lower.exact import Exact
from hierax.lower.salm import SALM
from hierax.lower.solution import SOLVED
from hierax.methods.salvf import SALVF
from hierax.methods.steps import Decay, Steps
from hierax.problem import Multipliers, Problem
from hierax.reference import double_precision, on_host, solve_lower
from hierax.samples import Stream
from hierax.solution import Counts, History, Solution, Status
from hierax.trees import size, split_variable

SECONDS = 120.0
FIRST = 250  # steps of the first stage
LONGER = 1.5  # growth of the stages
RACE, LEAST = 10.0, 1.8  # ratio of the two x-steps at first, and at least
DAMP = 0.25  # of the inner steps after a run that diverged
RAISE, POWERS, HIGHEST = 4.0, (0, -2, -4), 1  # growth of c1; its powers in the first race, and the highest in the end
GAIN = 2e-3  # relative decrease of F that counts as progress
IDLE = 2  # stages without progress before c1 grows
SAMPLES = 4096  # for the value of F where the expectation is not known
JUDGED_EXACTLY = 200  # entries of y and multipliers up to which every stage is judged at the exact y*(x)
EXACT_UP_TO = 2000  # entries of y and multipliers for which the lower level is solved exactly in the end
INNER = 50  # inner steps where the lower level is known exactly


class Estimates(NamedTuple):
    """What the first stage estimated, the unit of what later ones try: c1, x-step, and cap of the inner steps."""

    c1: float
    step: float
    inner: float


class Stage(NamedTuple):
    """A finished run: its solution, F there on all of the data (or many samples), and the largest violation."""

    solution: Solution
    upper: float
    violation: float
    factor: float
    raised: int


class LargeRun:
    """The stages of one problem."""

    def __init__(
        self, problem: Problem, x0: PyTree, y0: PyTree, auto: Any, seed: int, log: list[str], solve: Any
    ) -> None:
        self.problem, self.auto, self.seed, self.solve, self.log = problem, auto, seed, solve, log
        self.begin, self.seconds = time.perf_counter(), auto.seconds or SECONDS
        self.compiling, self.x, self.y = 0.0, x0, y0
        self.unit: Estimates | None = None
        self.damping = 1.0
        self.best: Stage | None = None
        self.stages: list[Stage] = []
        self.counts = Counts()
        self._value = jax.jit(self._upper)

    @property
    def elapsed(self) -> float:
        """Seconds, compilation apart."""
        return time.perf_counter() - self.begin - self.compiling

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        drawn = self.counts.zeta + self.counts.xi
        return self.elapsed > self.seconds or (self.auto.samples is not None and drawn >= self.auto.samples)

    def run(self) -> None:
        """Stages until the budget is spent or nothing improves any more."""
        steps, factor, ratio, idle = FIRST, 1.0, RACE, 0
        first = [stage for stage in (self._stage(factor, power, steps) for power in POWERS) if stage is not None]
        ahead = min(first, key=lambda stage: stage.upper, default=None)
        self._keep(ahead)
        raised = POWERS[0] if ahead is None else ahead.raised
        while not self.spent and raised <= HIGHEST:
            steps = int(LONGER * steps)
            pair = self._stage(factor, raised, steps), self._stage(ratio * factor, raised, steps)
            fine = [stage for stage in pair if stage is not None]
            ahead = min(fine, key=lambda stage: stage.upper, default=None)
            gained = self._keep(ahead)
            if len(fine) < 2:
                self.damping *= DAMP
            longer = ahead is not None and ahead.factor > factor
            if longer:
                factor *= ratio
            else:  # the longer step is too long; without any gain the shorter one is, too
                ratio = max(ratio**0.5, LEAST)
                factor /= 1.0 if gained else ratio
            idle = 0 if gained or longer else idle + 1
            if idle >= IDLE:
                raised, idle = raised + 1, 0

    def _keep(self, stage: Stage | None) -> bool:
        """Go on from a stage that is better; whether it is clearly so."""
        if stage is None or (self.best is not None and stage.upper >= self.best.upper):
            return False
        gained = self.best is None or stage.upper < self.best.upper - GAIN * (1 + abs(self.best.upper))
        self.best, self.x, self.y = stage, stage.solution.x, stage.solution.y
        return gained

    def _stage(self, factor: float, raised: int, steps: int) -> Stage | None:
        """One run from the best point; None where it failed."""
        if self.spent and self.stages:
            return None
        solution = self.solve(
            self.problem,
            self.x,
            self.y,
            self._method(factor, raised),
            max_steps=steps,
            seconds=max(1.0, self.seconds - self.elapsed),
            seed=self.seed + len(self.stages),
            progress=False,
            throw=False,
        )
        self._account(solution)
        if self.unit is None:
            found = solution.method
            self.unit = Estimates(float(found.c1), float(found.steps.x.scale), float(found.inner.eta_max))
        if solution.status.failed:
            self.log.append(
                f"x-step {factor:g}, c1 {RAISE**raised:g} times the estimate: {solution.status.name}; undone."
            )
            return None
        solution = _settled(self.problem, _at_inner_solution(solution), JUDGED_EXACTLY)
        upper, violation = self._judged(solution)
        if not np.isfinite(upper):
            return None
        stage = Stage(solution, upper, violation, factor, raised)
        self.stages.append(stage)
        self.log.append(
            f"{steps} steps with x-step {factor:g} and c1 {RAISE**raised:g} times the estimate: F = {upper:.6g}, "
            f"violation {violation:.2g}."
        )
        return stage

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

    def _upper(self, x: PyTree, y: PyTree, zeta: PyTree) -> tuple[jax.Array, jax.Array]:
        problem = self.problem
        rows = (problem.constraints(x, y), problem.upper_constraints(x, y))
        equal = jax.tree.map(abs, problem.equalities(x, y))
        worst = [jax.numpy.max(leaf, initial=0.0) for leaf in jax.tree.leaves((rows, equal))]
        return problem.upper(x, y, zeta), jax.numpy.max(jax.numpy.stack([jax.numpy.zeros(()), *worst]))

    def _judged(self, solution: Solution) -> tuple[float, float]:
        """F and the largest violation at the solution; of a Stream, never seen as a whole, F as the run met it."""
        source = self.problem.zeta
        if isinstance(source, Stream):
            return float(solution.history["upper"][-1]), float(solution.history["violation"][-1])
        if isinstance(source, samples.Finite):
            zeta = source.full()
        elif source is not None and source.exact is None:
            zeta = source.draw(jax.random.key(self.seed + 10_000), SAMPLES)
        else:
            zeta = None if source is None else source.exact
        upper, violation = self._value(solution.x, solution.y, zeta)
        return float(upper), float(violation)

    def _account(self, solution: Solution) -> None:
        self.compiling += solution.counts.compile_seconds
        self.counts = Counts(
            *(
                a + b
                for a, b in zip(dataclasses.astuple(self.counts), dataclasses.astuple(solution.counts), strict=True)
            )
        )


def _at_inner_solution(solution: Solution) -> Solution:
    """The solution with y replaced by the inner solver's answer."""
    _, rest = split_variable("y", solution.y)
    return dataclasses.replace(solution, y=eqx.combine(solution.state.run.state.w, rest))


def _settled(problem: Problem, solution: Solution, most: int) -> Solution:
    """The solution with y and multipliers from an exact lower solve on all of the data, where that is possible."""
    if isinstance(problem.xi, Stream) or size((solution.y, solution.multipliers)) > most:
        return solution
    with double_precision(problem, solution.x, solution.y, SAMPLES, 0) as setting:
        found = on_host(solve_lower(setting, Exact(), setting.x, setting.y))
    if int(found.status) != SOLVED:
        return solution
    arrays, rest = split_variable("y", solution.y)
    y = jax.tree.map(lambda new, old: jax.numpy.asarray(new, old.dtype), found.y, arrays)
    own = Multipliers(found.multipliers.inequalities, found.multipliers.equalities, solution.multipliers.upper)
    return dataclasses.replace(solution, y=eqx.combine(y, rest), multipliers=own)


def run_large(problem: Problem, x0: PyTree, y0: PyTree, auto: Any, seed: int, first: str) -> Solution:
    """The best point of all stages."""
    from hierax.solve import solve  # here, because `solve` calls this

    run = LargeRun(problem, x0, y0, auto, seed, [first], solve)
    run.run()
    best = run.best
    if best is None:
        solution = solve(problem, x0, y0, SALVF(), max_steps=1, seed=seed, progress=False, throw=False)
        status = Status("diverged", "diverged: every stage failed, at the shortest step too; the start is returned.", 0)
    else:
        solution = _settled(problem, best.solution, EXACT_UP_TO)
        if solution is not best.solution or size(solution.y) <= JUDGED_EXACTLY:
            run.log.append("y is the lower level's exact solution at the final x.")
        text = f"F = {best.upper:.6g} on the data, violation {best.violation:.2g}, after {len(run.stages)} stages."
        name = "seconds" if run.spent else "converged"
        status = Status(name, f"{name}: {text} `sol.certificate` says how good that is.", sum(1 for _ in run.stages))
    columns = {
        "step": np.arange(1, len(run.stages) + 1),
        "upper": np.array([stage.upper for stage in run.stages]),
        "violation": np.array([stage.violation for stage in run.stages]),
        "factor": np.array([stage.factor for stage in run.stages]),
    }
    return dataclasses.replace(
        solution,
        status=status,
        history=History(columns),
        counts=dataclasses.replace(run.counts, seconds=run.elapsed, compile_seconds=run.compiling),
        method=dataclasses.replace(auto, route="large", seconds=run.seconds),
        log=(*run.log, status.message),
        problem=problem,
    )
