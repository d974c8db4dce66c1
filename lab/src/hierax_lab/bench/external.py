"""`hierax bench bolib` and `hierax bench suite smd`: solvers against small problems with known solutions.

Every answer is judged by `outside_judge`, which uses a solver that is not hierax's own; the solvers that are compared
are in `solvers`. The tables, the targets and results.json are made here.
"""

import time
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, cast

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from hierax_lab.bench.outside_judge import Judge
from hierax_lab.bench.solvers import SOLVERS, clear_programs
from hierax_lab.output import write_results
from hierax_lab.problems import bolib
from hierax_lab.problems.bolib.case import Case
from hierax_lab.problems.smd import NUMBERS, smd_case
from hierax_lab.reproduce.comparison import FAILED, headed, shown_statuses, target_table
from hierax_lab.reproduce.workers import Name, Task, run_tasks

SMD = {f"SMD{number}": number for number in NUMBERS}
MIN_SMD, MIN_BOLIB = 9, 68  # problems that Auto should solve
MIN_BOLIB_PENALTY = 57  # problems that its penalty route should solve
NAMES = {"bolib": list(bolib.CASES), "smd": list(SMD)}  # of the problems, by suite
CLASSES = {
    "strongly convex": ("strongly convex",),
    "convex or linear": ("convex", "linear"),
    "nonconvex": ("nonconvex",),
}


class Record(TypedDict):
    """A run of a solver on a problem: the judgement, how it ended, CPU seconds with and without compilation.

    The first five fields are those of `outside_judge.Judgement`; "compiled" is measured for the first seed only.
    `known` is the upper objective at the best point known, `x` and `y` are the point.
    """

    upper: float
    violation: float
    gap: float
    solved: bool
    better: bool
    known: float
    x: list[float]
    y: list[float]
    seed: int
    ended: str
    seconds: float
    compiled: NotRequired[float]


Timing = Literal["seconds", "compiled"]
TIME_LIMITS: tuple[tuple[str, Timing, float], ...] = (  # median CPU seconds of Auto on BOLIB
    ("cold", "seconds", 3.5),
    ("compiled", "compiled", 0.7),
)
Found = dict[Name, list[Record]]  # by solver and problem, one record per seed


def load(name: str) -> Case:
    """The problem of that name, of either suite."""
    return smd_case(SMD[name]) if name in SMD else bolib.load(name)


def measure(name: str, solver: str, seeds: int) -> list[Record]:
    """Run a solver on a case with every seed: judgement, CPU seconds (the first run is cold), how it ended.

    The first seed is run again at the end, so that there is always a run with everything compiled.
    """
    case = load(name)
    judge = Judge(case)
    clear_programs()
    records: list[Record] = []
    for seed in [*range(seeds), 0]:
        begin = time.process_time()
        x, y, ended = SOLVERS[solver](case, seed)
        seconds = time.process_time() - begin
        if len(records) == seeds:
            records[0]["compiled"] = seconds
            break
        judged = judge(x, y, seed)
        judged = judged._replace(solved=judged.solved and ended not in FAILED)
        point = {"known": case.values[0], "x": np.ravel(x).tolist(), "y": np.ravel(y).tolist()}
        run = {**judged._asdict(), **point, "seed": seed, "ended": ended, "seconds": seconds}
        records.append(cast(Record, run))
    return records


def run(console: Console, seeds: int, solvers: list[str], names: list[str], out: Path, parallel: bool = True) -> bool:
    """Run, print the tables and the targets, write results.json; whether every target is met."""
    jax.config.update("jax_compilation_cache_dir", None)  # cold means cold
    tasks: dict[Name, Task[list[Record]]] = {
        (solver, name): (measure, (name, solver, seeds if solver == "Auto" else 1))
        for solver in solvers
        for name in names
    }
    found = run_tasks(tasks, console, parallel, lambda found: _write(found, out))
    console.print(_by_class(found, solvers, names))
    if "Auto" in solvers:
        console.print(_by_problem(found, names))
    better = [(solver, name) for (solver, name), rows in found.items() if any(row["better"] for row in rows)]
    if better:
        text = ", ".join(f"{name} ({solver})" for solver, name in better)
        console.print(f"Better than the reference, confirmed with 100 starts: {text}.", soft_wrap=True)
    targets = _targets(found, solvers, names, seeds)
    console.print(target_table("targets", ("measured",), targets))
    return all(met for _, _, met in targets)


def _write(found: Found, out: Path) -> None:
    rows = [{"solver": solver, "problem": name, **row} for (solver, name), runs in found.items() for row in runs]
    write_results(out, rows)


def _solved(found: Found, solver: str, names: list[str]) -> list[int]:
    """How many of the named problems are solved, for every seed."""
    runs = [found[(solver, name)] for name in names]
    return [sum(rows[seed]["solved"] for rows in runs) for seed in range(len(runs[0]))] if runs else []


def _range(counts: list[int]) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return str(low) if low == high else f"{low} to {high}"


def _of_class(names: list[str], classes: tuple[str, ...]) -> list[str]:
    return [name for name in names if load(name).lower_class in classes]


def _by_class(found: Found, solvers: list[str], names: list[str]) -> Table:
    table = headed("solved, over the seeds", "problems", *solvers)
    for title, classes in [*CLASSES.items(), ("all", sum(CLASSES.values(), ()))]:
        some = _of_class(names, classes)
        if not some:
            continue
        table.add_row(title, str(len(some)), *(_range(_solved(found, solver, some)) for solver in solvers))
    for title, field, _ in TIME_LIMITS:
        medians = [_median_seconds(found, solver, names, field) for solver in solvers]
        table.add_row(f"median CPU s, {title}", "", *(f"{value:.2f}" for value in medians))
    return table


def _median_seconds(found: Found, solver: str, names: list[str], field: Timing) -> float:
    """Median over the problems of the first seed's CPU seconds."""
    return float(np.median([found[(solver, name)][0][field] for name in names]))


def _by_problem(found: Found, names: list[str]) -> Table:
    table = headed("Auto, problem by problem", "F*", "F", "violation", "gap", "solved", "cold s", "compiled s", "ended")
    for name in names:
        rows = found[("Auto", name)]
        first = rows[0]
        table.add_row(
            name,
            f"{first['known']:.6g}",
            f"{first['upper']:.6g}",
            f"{first['violation']:.1e}",
            f"{first['gap']:.1e}",
            f"{sum(row['solved'] for row in rows)}/{len(rows)}",
            f"{first['seconds']:.1f}",
            f"{first['compiled']:.2f}",
            first["ended"] if len(rows) == 1 else shown_statuses(row["ended"] for row in rows),
        )
    return table


def _at_least(found: Found, solver: str, names: list[str], wanted: int) -> tuple[str, str, bool]:
    """The target to solve a number of the named problems, with every seed."""
    counts = _solved(found, solver, names)
    return f"{solver}: at least {wanted} of {len(names)} for every seed", _range(counts), min(counts) >= wanted


def _targets(found: Found, solvers: list[str], names: list[str], seeds: int) -> list[tuple[str, str, bool]]:
    """The targets that a whole run is judged by."""
    if set(names) == set(SMD) and "Auto" in solvers:
        return [_at_least(found, "Auto", names, MIN_SMD)]
    if len(names) < len(bolib.CASES):
        return []
    targets = []
    if "Auto" in solvers:
        targets.append(_at_least(found, "Auto", names, MIN_BOLIB))
        strong = _of_class(names, CLASSES["strongly convex"])
        often = [sum(row["solved"] for row in found[("Auto", name)]) for name in strong]
        enough = sum(count >= seeds - 1 for count in often) if seeds > 1 else sum(often)
        text = f"Auto: all {len(strong)} strongly convex in {max(1, seeds - 1)} of {seeds}"
        targets.append((text, str(enough), enough == len(strong)))
        for title, field, most in TIME_LIMITS:
            median = _median_seconds(found, "Auto", names, field)
            targets.append((f"Auto: median CPU seconds {title} <= {most}", f"{median:.2f}", median <= most))
    if "penalty" in solvers:
        targets.append(_at_least(found, "penalty", names, MIN_BOLIB_PENALTY))
    return targets
