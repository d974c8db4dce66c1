"""The theory, measured: `hierax reproduce rates`.

Inner error against s, floors of the outer loop, SALVF-VR against SALVF, the stability of its schedules, the two outer
penalties, and exponents beside those of the theorems; on the toy, on quadratic problems over ellipsoids, on the
synthetic problem and on one with a single row. Everything is float64 with fixed seeds.
"""

import time
from collections.abc import Callable

import jax
from rich.table import Table

from hierax_lab.reproduce import rates_exponents, rates_figures, rates_floors, rates_inner, rates_vr
from hierax_lab.reproduce.comparison import headed, print_verdicts, target_table
from hierax_lab.reproduce.experiment import Content, Run, experiment
from hierax_lab.reproduce.rates_claims import UNBOUNDED, Exponent, Target, exponents, statements, targets
from hierax_lab.reproduce.rates_fit import interval, stable
from hierax_lab.reproduce.rates_sizes import Sizes, choose
from hierax_lab.reproduce.verdict import Verdict
from hierax_lab.reproduce.workers import Name, Task

PARTS: dict[str, Callable[[Sizes], dict]] = {
    "inner": rates_inner.measure,
    "floors": rates_floors.measure,
    "outer": rates_vr.measure,
    "exponents": rates_exponents.measure,
}


@experiment
def run(run: Run) -> Content:
    """Measure everything, write metrics.json and the figures, print the table and what it says.

    A quick run takes a minute instead of several: fewer seeds, no synthetic problem, and nothing is judged. The exit
    code of the command is 1 where a target is missed.
    """
    sizes = choose(run.quick, run.seeds)
    tasks: dict[Name, Task[tuple[dict, float]]] = {(name,): (_timed, (part, sizes)) for name, part in PARTS.items()}

    def measurements(found: dict[Name, tuple[dict, float]]) -> Content:
        seconds = {name: spent for (name,), (_, spent) in found.items()}
        return {"sizes": sizes, "seconds": seconds} | {name: measured for (name,), (measured, _) in found.items()}

    with jax.enable_x64(True):
        found = run.measured(tasks, lambda found: run.write(measurements(found)), parallel=False)
    parts = [measured for measured, _ in found.values()]
    goals, words = targets(*parts), statements(*parts)
    reached = run.met([{**goal._asdict(), "met": goal.met} for goal in goals])
    rows = [
        (goal.name, _range(goal), f"{goal.measured:.3g}", row["met"]) for goal, row in zip(goals, reached, strict=True)
    ]
    run.console.print(_exponents(exponents(parts[0], parts[3])))
    title = "Measured numbers (a quick run is not judged)" if run.quick else "Measured numbers"
    run.console.print(target_table(title, ("range", "measured"), rows))
    seen = [Verdict(word.claim, "seen" if word.seen else "not seen", [word.measured]) for word in words]
    print_verdicts(run.console, run.judged(seen), "Statements")
    claims = [word._asdict() | ({"seen": None} if run.quick else {}) for word in words]
    content = run.write(measurements(found) | {"targets": reached, "statements": claims})
    run.draw(lambda folder: rates_figures.draw(folder, *parts))
    return content


def _timed(measure: Callable[[Sizes], dict], sizes: Sizes) -> tuple[dict, float]:
    """What a part measures, and the seconds that it takes."""
    begin = time.perf_counter()
    return measure(sizes), round(time.perf_counter() - begin, 1)


def _range(goal: Target) -> str:
    if goal.low == -UNBOUNDED:
        return f"<= {goal.high:.4g}"
    return f">= {goal.low:.4g}" if goal.high == UNBOUNDED else f"{goal.low:g} to {goal.high:g}"


def _exponents(rows: list[Exponent]) -> Table:
    table = headed("Exponents beside those of the theorems", "theorem", "measured", "95 %", "last decade", "identified")
    for row in rows:
        table.add_row(*exponent_cells(row))
    return table


def exponent_cells(row: Exponent) -> list[str]:
    """A fitted exponent beside the theorem's: both, the 95 % interval, the slopes in the halves of the last decade."""
    cells = [row.name, f"{row.theorem:.3g}"]
    if row.found is None:
        return [*cells, "", "", "", "no: its sign is not known"]
    low, high = interval(row.found)
    halves, known = "", "as against K"  # where the values are too far apart to have three in a decade
    if row.found["halves"]:
        halves = "{:.2f}, {:.2f} +- {:.2f}".format(*row.found["halves"])
        known = "yes" if stable(row.found) else "no: the slope changes"
    return [*cells, f"{row.found['slope']:.3f}", f"{low:.3f} to {high:.3f}", halves, known]
