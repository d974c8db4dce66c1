"""The large route: SALVF in stages, for sampled problems and for sizes at which nothing else is possible.

A stage makes two runs from the best point so far, with the x-step that did best and with one several times longer, and
keeps whichever ends lower in F(x, y), y being the lower level's own solution at the final x (`repair`). A run that
diverges counts as no run: the next stage starts from the last good point with a shorter step. Stages get longer; when
one gains nothing, the weight c1 of the value function is raised, which removes the bias that a finite c1 leaves.
Everything else is estimated anew from the problem at every stage's start.
"""

import dataclasses
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from hierax import samples
from hierax.lower.salm import SALM
from hierax.methods.salvf import SALVF
from hierax.methods.steps import Decay, Steps
from hierax.problem import Problem
from hierax.samples import Stream
from hierax.solution import Counts, History, Solution, Status

SECONDS = 120.0
FIRST = 250  # steps of the first stage
LONGER = 1.5  # growth of the stages
RACE = 5.0  # ratio of the two x-steps
REPAIR = 300  # inner steps that bring y to the lower level's solution
RAISE, RAISES = 4.0, 2  # growth of c1, and how often
GAIN = 2e-3  # relative decrease of F that counts as progress
IDLE = 2  # stages without progress before c1 grows
SAMPLES = 4096  # for the value of F where the expectation is not known
INNER = 50  # inner steps where the lower level is known exactly


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
        self.unit: tuple[float, float] | None = None
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
        best, factor, raised, idle, steps = self._stage(1.0, 0, FIRST), 1.0, 0, 0, FIRST
        while not self.spent and raised <= RAISES:
            steps = int(LONGER * steps)
            short, long = self._stage(factor, raised, steps), self._stage(RACE * factor, raised, steps)
            fine = [stage for stage in (short, long) if stage is not None]
            if not fine:
                factor /= RACE
                idle += 1
            else:
                ahead = min(fine, key=lambda stage: stage.upper)
                factor = ahead.factor
                gained = best is None or ahead.upper < best.upper - GAIN * (1 + abs(best.upper))
                if best is None or ahead.upper < best.upper:
                    best = ahead
                    self.x, self.y = ahead.solution.x, ahead.solution.y
                idle = 0 if gained else idle + 1
            if idle >= IDLE:
                raised, idle = raised + 1, 0
        self.best = best

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
            resolved = solution.method
            self.unit = float(resolved.c1), float(resolved.steps.x.scale)
        if solution.status.failed:
            self.log.append(
                f"x-step {factor:g}, c1 {RAISE**raised:g} times the estimate: {solution.status.name}; undone."
            )
            return None
        zeta = self._batch(self.problem.zeta)
        upper, violation = (float(part) for part in self._value(solution.x, solution.y, zeta))
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
        exact = self.problem.xi is None
        settings: dict[str, Any] = {"repair": REPAIR}
        if exact:
            settings |= {"inner": SALM(steps=INNER), "follow": True}
        if self.unit is not None:
            c1, step = self.unit
            settings |= {"c1": c1 * RAISE**raised, "steps": Steps(x=Decay(step * factor, 2.0))}
        return SALVF(**settings)

    def _upper(self, x: PyTree, y: PyTree, zeta: PyTree) -> tuple[jax.Array, jax.Array]:
        problem = self.problem
        rows = (problem.constraints(x, y), problem.upper_constraints(x, y))
        equal = jax.tree.map(abs, problem.equalities(x, y))
        worst = [jax.numpy.max(leaf, initial=0.0) for leaf in jax.tree.leaves((rows, equal))]
        return problem.upper(x, y, zeta), jax.numpy.max(jax.numpy.stack([jax.numpy.zeros(()), *worst]))

    def _batch(self, source: Any) -> PyTree:
        if source is None:
            return None
        if isinstance(source, Stream):
            return next(iter(source.iterable)) if hasattr(source, "iterable") else None
        if isinstance(source, samples.Finite):
            return source.full()
        return source.exact if source.exact is not None else source.draw(jax.random.key(self.seed + 10_000), SAMPLES)

    def _account(self, solution: Solution) -> None:
        self.compiling += solution.counts.compile_seconds
        self.counts = Counts(
            *(
                a + b
                for a, b in zip(dataclasses.astuple(self.counts), dataclasses.astuple(solution.counts), strict=True)
            )
        )


def run_large(
    problem: Problem, x0: PyTree, y0: PyTree, auto: Any, seed: int, progress: bool | None, first: str
) -> Solution:
    """The best point of all stages."""
    from hierax.solve import solve  # here, because `solve` calls this

    del progress
    run = LargeRun(problem, x0, y0, auto, seed, [first], solve)
    run.run()
    best = run.best
    if best is None:
        solution = solve(problem, x0, y0, SALVF(), max_steps=1, seed=seed, progress=False, throw=False)
        status = Status("diverged", "diverged: every stage failed, at the shortest step too; the start is returned.", 0)
    else:
        solution = best.solution
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
