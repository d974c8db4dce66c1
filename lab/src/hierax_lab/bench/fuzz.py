"""`hierax bench fuzz`: random small bilevel problems, solved with nothing set, and every claim judged from outside.

A wrong claim is printed with the number of its problem; `--seed S --only K` runs that problem again with all details.
Problems are in `fuzz_forms`, `fuzz_draw` and `fuzz_planted`, the judge in `fuzz_judge`, the comparison in
`fuzz_claims`.
"""

import collections
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hierax_lab.bench.fuzz_case import Case
from hierax_lab.bench.fuzz_claims import KINDS, MISSED, Result, examine
from hierax_lab.bench.fuzz_draw import draw
from hierax_lab.bench.fuzz_forms import FORMS

Counts = dict[str, Any]  # ready for JSON
REFUSED = "refused_optimum"


def run(
    console: Console, count: int, seed: int, seconds: float, out: Path | None = None, certify: bool = False
) -> Counts:
    """Draw, solve and judge the problems 0 to count - 1 of a seed; print the table and every wrong claim.

    `certify`: certificates of points that are no solutions are judged too.
    """
    begin = time.perf_counter()
    order = sorted(range(count), key=lambda number: (number % len(FORMS), number))  # a form at a time: it compiles once
    results = []
    for number in order:
        result = examine(number, draw(seed, number), seconds, certify)
        results.append(result)
        for kind, words in result.wrong.items():
            text = f"{kind} --seed {seed} --only {number} ({_title(result.case)}): {words}"
            console.print(text, soft_wrap=True, markup=False, highlight=False)
        if result.trace:  # shown here, since what depends on the clock may not happen again
            where = [line.strip() for line in result.trace.splitlines() if line.strip().startswith("File ")]
            console.print(f"    {where[-1]}", soft_wrap=True, markup=False, highlight=False)
    counts = summary(results, seed, time.perf_counter() - begin)
    _print_tables(console, results, counts)
    if out is not None:
        out.write_text(json.dumps(counts, indent=1) + "\n")
    return counts


def run_one(console: Console, number: int, seed: int, seconds: float, certify: bool = False) -> Result:
    """Draw, solve and judge one problem, and print everything that is known about it."""
    case = draw(seed, number)
    for line in described(case):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    result = examine(number, case, seconds, certify)
    if result.solution is not None:
        solution = result.solution
        shown = ["", str(solution), "", *solution.log, "", str(solution.certificate)]
        shown.append(f"certificate.ok(1e-4): {result.certified}")
        shown.append(f"{result.times.solve:.2f} s and {result.times.compilation:.2f} s to compile")
        for line in shown:
            console.print(line, soft_wrap=True, markup=False, highlight=False)
    if result.verdict is not None:
        console.print("\nThe judge, in core units:")
        for name, value in vars(result.verdict).items():
            console.print(f"  {name}: {value}", soft_wrap=True, markup=False, highlight=False)
    console.print(f"\nglobal optimum missed: {result.missed}")
    if result.refused:
        console.print(f"certify at the best point known: {result.refused}", soft_wrap=True, markup=False)
    for kind, words in result.wrong.items():
        console.print(f"{kind}: {words}", soft_wrap=True, markup=False)
    if result.trace:
        console.print(result.trace, markup=False, highlight=False)
    return result


def summary(results: list[Result], seed: int, seconds: float) -> Counts:
    """The counts, by kind, with the numbers of the problems."""
    solvable = [result for result in results if result.case.truth == "solvable"]
    return {
        "seed": seed,
        "problems": len(results),
        "solvable": len(solvable),
        "wrong": {kind: sum(kind in result.wrong for result in results) for kind in KINDS},
        MISSED: sum(result.missed for result in solvable),
        REFUSED: sum(bool(result.refused) for result in solvable),
        "unsure": sum(result.status not in ("converged", "best_of_branches") for result in solvable),
        "statuses": dict(collections.Counter(result.status for result in results)),
        "seconds": round(seconds, 1),
        "solve_seconds": round(sum(result.times.solve for result in results), 1),
        "judge_seconds": round(sum(result.times.judge for result in results), 1),
        "compile_seconds": round(sum(result.times.compilation for result in results), 1),
        "numbers": {kind: sorted(result.number for result in results if kind in result.wrong) for kind in KINDS}
        | {
            MISSED: sorted(result.number for result in solvable if result.missed),
            REFUSED: sorted(result.number for result in solvable if result.refused),
        },
        "details": [
            {"number": result.number, "form": result.case.form.name, "twist": result.case.twist, kind: words}
            for result in results
            for kind, words in result.wrong.items()
        ],
    }


def _print_tables(console: Console, results: list[Result], counts: Counts) -> None:
    table = plain_table("wrong claims", "", "what counts", "numbers")
    for kind, words in KINDS.items():
        table.add_row(kind, str(counts["wrong"][kind]), words, _listed(counts["numbers"][kind]))
    console.print(table)
    table = plain_table("no claim", "", "what counts", "numbers")
    words = "F above the best known by 1e-3 of its scale, or the point is none"
    table.add_row(MISSED, str(counts[MISSED]), words, _listed(counts["numbers"][MISSED]))
    table.add_row("unsure", str(counts["unsure"]), "solvable, ended neither converged nor best_of_branches", "")
    words = "with --certify: hx.certify is not ok(1e-4) at the best point known"
    table.add_row(REFUSED, str(counts[REFUSED]), words, _listed(counts["numbers"][REFUSED]))
    console.print(table)
    table = plain_table("form", "problems", "wrong", "missed", "median s", "compile s", "statuses")
    for form in FORMS:
        some = [result for result in results if result.case.form is form]
        if some:
            table.add_row(form.name, *_of_form(some))
    console.print(table)
    console.print(
        f"{counts['problems']} problems, {counts['solvable']} of them solvable, in {counts['seconds']:.0f} s: "
        f"{counts['solve_seconds']:.0f} s to solve, {counts['compile_seconds']:.0f} s to compile, "
        f"{counts['judge_seconds']:.0f} s to judge, the rest for certificates."
    )


def _of_form(some: list[Result]) -> tuple[str, ...]:
    names = collections.Counter(result.status for result in some)
    return (
        str(len(some)),
        str(sum(bool(result.wrong) for result in some)),
        str(sum(result.missed for result in some)),
        f"{np.median([result.times.solve for result in some]):.2f}",
        f"{sum(result.times.compilation for result in some):.1f}",
        ", ".join(f"{count} {name}" for name, count in names.most_common()),
    )


def plain_table(*titles: str) -> Table:
    """An empty table without lines."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _listed(numbers: list[int], most: int = 12) -> str:
    text = ", ".join(map(str, numbers[:most]))
    return text + (f" and {len(numbers) - most} more" if len(numbers) > most else "")


def _title(case: Case) -> str:
    return f"{case.form.name}, {case.twist}"


def described(case: Case) -> list[str]:
    """The problem in words and numbers."""
    form = case.form
    lines = [
        f"{form.name}, {case.twist}: {form.n} + {form.m} variables, lower level {form.lower}, X {form.x_set}, "
        f"Y {form.y_set}; {form.rows} affine rows, {form.balls} balls, {form.equalities} equalities, "
        f"{form.upper_rows} upper rows, {form.waves} waves in F{', trees' if form.tree else ''}.",
        f"Truth: {case.truth}" + ("" if case.planted is None else f", planted at x = {case.planted[0]}"),
        "Units: " + ", ".join(f"{name} {value}" for name, value in vars(case.units).items() if value.size),
        f"Start in core units: x = {case.start[0]}, y = {case.start[1]}",
    ]
    lines += [f"  {name} = {np.array2string(value)}" for name, value in case.numbers.items() if value.size]
    return lines
