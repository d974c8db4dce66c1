"""`hierax bench rows`: regressions on data sets of 1e4 to 1e6 rows, `hx.solve` against nested SciPy, in CPU seconds.

The outside solver is what one writes by hand: L-BFGS-B on F(x, y*(x)), lower levels solved by Newton's method in NumPy,
gradients by the implicit function theorem. hierax solves the same problem object twice; the second time is compiled.
"""

import functools
import json
import logging
import time
from pathlib import Path
from typing import Any, TypedDict

import jax
import numpy as np
from rich.console import Console

from hierax import solve
from hierax.extend import lazy
from hierax_lab.bench.samples_cases import PENALTIES, robust
from hierax_lab.bench.samples_truth import Robust
from hierax_lab.output import plain, write_results
from hierax_lab.reproduce.comparison import headed, mark
from hierax_lab.reproduce.workers import Name, Task, run_tasks

optimize = lazy("scipy.optimize")

ROWS, UNKNOWNS = (10_000, 100_000, 1_000_000), (2, 10, 50)
MOST_TIMES = 3.0
"""Times the CPU seconds of nested SciPy that are allowed."""

SECONDS = 120.0
WARM = 1000  # rows of a first run of nested SciPy, which is not counted
AS_GOOD = 1e-4
"""Of 1 + |F|: by how much F may be above that of nested SciPy."""


class Row(TypedDict):
    """F by NumPy at both answers, and CPU seconds."""

    start: float
    scipy: float
    scipy_cpu: float
    hierax: float
    cold_cpu: float
    warm_cpu: float
    status: str
    warm_status: str


def measure(count: int, unknowns: int) -> Row:
    """Both solvers on a problem; hierax with nothing set but `seconds`."""
    jax.config.update("jax_enable_x64", False)
    logging.getLogger("hierax").setLevel(logging.ERROR)
    problem, x0, data = robust(count, unknowns)
    nested(Robust(*((a[:WARM], b[:WARM]) for a, b in data)), x0)  # imports SciPy
    began = time.process_time()
    by_scipy = nested(data, x0)
    spent, ended = [time.process_time() - began], []
    for _ in range(2):
        began = time.process_time()
        solution = solve(problem, x0, np.zeros(x0.size), seconds=SECONDS, progress=False)
        spent.append(time.process_time() - began)
        ended.append(solution.status.name)
    phi = functools.partial(data.phi, y=np.zeros(x0.size))
    values = [phi(np.asarray(x, float))[0] for x in (x0, by_scipy, np.ravel(solution.x))]
    return Row(
        start=values[0],
        scipy=values[1],
        scipy_cpu=spent[0],
        hierax=values[2],
        cold_cpu=spent[1],
        warm_cpu=spent[2],
        status=ended[0],
        warm_status=ended[1],
    )


def nested(data: Robust, x0: np.ndarray) -> np.ndarray:
    """The best x by L-BFGS-B; every lower level starts from the last one's answer."""
    y = np.zeros(x0.size)

    def phi(x: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal y
        value, slope, y = data.phi(x, y)
        return value, slope

    return np.asarray(optimize.minimize(phi, x0, jac=True, method="L-BFGS-B", bounds=[PENALTIES] * x0.size).x)


def run(
    console: Console, counts: list[int], unknowns: list[int], out: Path, again: bool, parallel: bool = True
) -> bool:
    """Run what results.json of the folder has not yet, print the table; whether every target is met."""
    file = out / "results.json"
    rows: dict[str, Any] = json.loads(file.read_text()) if file.is_file() and not again else {}
    tasks: dict[Name, Task[Row]] = {
        (f"{count} rows", f"{size} unknowns"): (measure, (count, size))
        for size in unknowns
        for count in counts
        if f"{count} rows, {size} unknowns" not in rows
    }

    def keep(found: dict[Name, Row]) -> None:
        rows.update({", ".join(name): plain(row) for name, row in found.items()})
        write_results(out, rows)

    try:
        run_tasks(tasks, console, parallel, keep, fresh=True)
    finally:
        met = report(console, rows)
    return met


def report(console: Console, rows: dict[str, Row]) -> bool:
    """The table; whether hierax is as good everywhere and takes at most so many times the CPU seconds."""
    table = headed("CPU seconds", "nested SciPy", "compiled", "times", "cold", "F above SciPy's", "status", "")
    met = True
    for name, row in rows.items():
        times, above = row["warm_cpu"] / row["scipy_cpu"], row["hierax"] - row["scipy"]
        good = times <= MOST_TIMES and above <= AS_GOOD * (1 + abs(row["scipy"]))
        met &= good
        numbers = (f"{row['scipy_cpu']:.2f}", f"{row['warm_cpu']:.2f}", f"{times:.1f}", f"{row['cold_cpu']:.1f}")
        table.add_row(name, *numbers, f"{above:.1e}", row["warm_status"], mark(good))
    console.print(table)
    return met
