"""`hierax bench unset`: how much F(x, y*(x)) falls in 2,500 steps of SALVF with nothing set, as a share of what it can.

On problems whose optimum is known (the toy, the kinds of `hierax bench methods`, a noisy quadratic) the share is that
of the possible decrease. On the SVM of the paper's experiment, in the units of that experiment and in raw ones (x = c,
slack as it is), it is that of the best setting of the experiment's own grid after as many steps.
"""

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TypedDict

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from rich.console import Console

from hierax import SALVF, SALVF_VR, AbstractMethod, Problem, Solution, solve
from hierax_lab.bench.medium_case import Bounds, MediumCase
from hierax_lab.bench.methods_measure import Judge
from hierax_lab.bench.methods_problems import ENTRIES, Entry, TableCase
from hierax_lab.output import write_results
from hierax_lab.problems import svm
from hierax_lab.reproduce import svm_data, svm_methods, svm_runs
from hierax_lab.reproduce.comparison import headed

STEPS = 2500
METHODS: dict[str, AbstractMethod] = {"SALVF": SALVF(), "SALVF-VR": SALVF_VR()}
SEED = svm_runs.FIRST_TUNING_SEED  # of the division of the data: one that the experiment does not judge by


class Row(TypedDict):
    """A problem, the decrease that counts as all of it, and the share of it that each method reached."""

    problem: str
    whole: float
    shares: dict[str, float]


def quadratic(n: int) -> TableCase:
    """1/2 ||x||^2 + 1/2 ||y - 1||^2 over y = x / 2 in n + n unknowns: x* = 0.4, by the slopes x + (x/2 - 1) / 2."""

    def lower(x: Array, y: Array, xi: None) -> Array:
        del xi
        return jnp.sum((y - 0.5 * x) ** 2)

    def upper(x: Array, y: Array, zeta: None) -> Array:
        del zeta
        return 0.5 * jnp.sum(x**2) + 0.5 * jnp.sum((y - 1.0) ** 2)

    problem, best = Problem(upper=upper, lower=lower), 0.4 * n
    free = Bounds.free(n), Bounds.free(n)
    case = MediumCase(problem, problem, np.ones(n), np.zeros(n), *free, best=best, lower_solution=lambda x: 0.5 * x)
    return TableCase(case, np.full(n, 0.4))


KNOWN = {**ENTRIES, "quadratic 50+50, samples": Entry("quadratic", partial(quadratic, 50), 1.0)}


def run(console: Console, data_dir: Path | None, out: Path) -> list[Row]:
    """Run, write results.json after every row, print the table."""
    rows: list[Row] = []
    for row in _rows(console, data_dir):
        rows.append(row)
        write_results(out, {"steps": STEPS, "rows": rows})
    table = headed(f"Share of the decrease of F(x, y*(x)) after {STEPS} steps, nothing set", *METHODS)
    for row in rows:
        table.add_row(row["problem"], "", *(f"{row['shares'][name]:.4f}" for name in METHODS))
    console.print(table)
    return rows


def _rows(console: Console, data_dir: Path | None) -> Iterator[Row]:
    for name, entry in KNOWN.items():
        yield known(name, entry)
    for name in svm_data.announced_names(data_dir, console):
        yield from machines(name, data_dir)


def known(name: str, entry: Entry) -> Row:
    """One minus the share of the start's distance to F* that is left."""
    judge = Judge(name, entry)
    case = judge.answer.case
    shares = {}
    for called, method in METHODS.items():
        found = _solved(case.problem, case.x0, case.y0, method)
        shares[called] = 1.0 - judge.gap(judge.functions.flat(found.x, found.y)[0])
    return Row(problem=name, whole=1.0, shares=shares)


def machines(name: str, data_dir: Path | None) -> Iterator[Row]:
    """The SVM in the experiment's units and in raw ones, against the best setting of the experiment's grid."""
    parts = svm_data.split(name, SEED, data_dir)
    unit, judge = svm_runs.unit(parts), svm_runs.Judge(parts, "softmax")
    scaled = svm(parts.train, parts.validation, unit=unit)
    start = judge(np.asarray(scaled.x0)[None])[0][0]

    def decrease(problem: Problem, y0: PyTree, method: AbstractMethod, in_raw: bool) -> float:
        found = _solved(problem, scaled.x0, y0, method)
        return float(start - judge(np.asarray(found.x)[None] / (unit if in_raw else 1.0))[0][0])

    grid = (svm_methods.ENTRIES[0].build(setting) for setting in svm_methods.ENTRIES[0].grid)
    whole = max(decrease(scaled.problem, scaled.y0, dataclasses.replace(one, **{"repair": 0}), False) for one in grid)
    raw = svm(parts.train, parts.validation)
    forms = {"": (scaled.problem, scaled.y0, False), ", raw": (*in_raw_units(raw.problem, raw.y0, unit), True)}
    for called, form in forms.items():
        shares = {key: decrease(*form[:2], method, form[2]) / whole for key, method in METHODS.items()}
        yield Row(problem=f"SVM, {name}{called}", whole=whole, shares=shares)


def in_raw_units(problem: Problem, y0: PyTree, root: float) -> tuple[Problem, PyTree]:
    """The SVM with its slack as it is, not divided by sqrt(N)."""

    def told(y: PyTree) -> PyTree:
        return {**y, "slack": y["slack"] / root}

    stated = dataclasses.replace(
        problem,
        upper=lambda x, y, zeta: problem.upper(x, told(y), zeta),
        lower=lambda x, y, xi: problem.lower(x, told(y), xi),
        constraints=lambda x, y: problem.constraints(x, told(y)),
    )
    return stated, {**y0, "slack": root * y0["slack"]}


def _solved(problem: Problem, x0: PyTree, y0: PyTree, method: AbstractMethod) -> Solution:
    return solve(problem, x0, y0, method, max_steps=STEPS, seed=0, progress=False, throw=False)
