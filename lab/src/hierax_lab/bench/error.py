"""`hierax bench error`: the error that is left after equal numbers of samples, with nothing set, over many seeds.

(phi(x) - F*) / (phi(x0) - F*) on the exact problem, which no method sees: SALVF, SALVF-VR, the averages of `Auto`, and
plain stochastic gradients, which solve the lower level exactly on the average of half of the samples (`GAM` with
batches of 32) and average their last iterates, too.
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypedDict

import jax
import numpy as np
from rich.console import Console

from hierax import GAM, SALVF, SALVF_VR, AbstractMethod, Auto, Finite, Solution, solve
from hierax_lab.bench.methods_measure import Judge
from hierax_lab.bench.methods_problems import TOY_START, Entry, moving_ellipsoids, toy_from
from hierax_lab.output import write_results
from hierax_lab.reproduce.comparison import headed

PROBLEMS = {
    "toy": Entry("toy", partial(toy_from, TOY_START), 0.1),
    "ellipsoids 20+20": Entry("nonlinear", partial(moving_ellipsoids, 0, 20, 20, 5), 0.2),
}
SAMPLES = (12_000, 36_000)
METHODS = ("SALVF", "SALVF-VR", "Auto, averages", "plain gradients")
BATCH = 32  # of the plain gradients
QUARTILES = (25, 50, 75)


class Row(TypedDict):
    """The errors of a method on a problem after so many samples, one per seed, and their quartiles."""

    problem: str
    method: str
    samples: int
    errors: list[float]
    quartiles: list[float]


class Run(NamedTuple):
    """What is run: a method on a judged problem, from a seed, with so many samples at most."""

    judge: Judge
    method: str
    samples: int
    seed: int

    def error(self) -> float:
        """Of the answer."""
        solution = self.solution()
        return self.judge.gap(self.judge.functions.flat(solution.x, solution.y)[0])

    def solution(self) -> Solution:
        """The answer."""
        case = self.judge.answer.case
        start, problem = (case.x0, case.y0), case.problem
        if self.method == "Auto, averages":
            auto = Auto(route="average", samples=self.samples)
            return solve(problem, *start, auto, seed=self.seed, progress=False, throw=False)
        method: AbstractMethod
        if self.method == "plain gradients":
            half = self.samples // 2
            seen = problem.xi.draw(jax.random.key(self.seed), half)
            problem, method = dataclasses.replace(problem, xi=Finite(np.asarray(seen))), GAM(batch_zeta=BATCH)
            steps = half // BATCH
        else:
            method = SALVF() if self.method == "SALVF" else SALVF_VR()
            sizes = method.batches(problem)
            steps = self.samples // (sizes.zeta + sizes.xi + sizes.inner * sizes.inner_size)
        return solve(problem, *start, method, max_steps=steps, seed=self.seed, progress=False, throw=False)


def run(console: Console, seeds: int, out: Path) -> list[Row]:
    """Run, write results.json after every row, print the table."""
    rows: list[Row] = []
    for name, entry in PROBLEMS.items():
        judge = Judge(name, entry)
        for method in METHODS:
            for samples in SAMPLES:
                errors = [Run(judge, method, samples, seed).error() for seed in range(seeds)]
                quartiles = np.percentile(errors, QUARTILES).tolist()
                row = Row(problem=name, method=method, samples=samples, errors=errors, quartiles=quartiles)
                rows.append(row)
                write_results(out, {"seeds": seeds, "rows": rows})
    print_table(console, rows)
    return rows


def print_table(console: Console, rows: list[Row]) -> None:
    """Medians and quartiles."""
    table = headed("Share of the start's error that is left: median (quartiles)", *map(str, SAMPLES))
    for problem in PROBLEMS:
        for method in METHODS:
            here = [row for row in rows if (row["problem"], row["method"]) == (problem, method)]
            cells = (
                f"{row['quartiles'][1]:.1e} ({row['quartiles'][0]:.1e} - {row['quartiles'][2]:.1e})" for row in here
            )
            table.add_row(problem, method, *cells)
    console.print(table)
