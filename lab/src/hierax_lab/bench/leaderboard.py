"""`hierax bench leaderboard`: the page docs/benchmarks/leaderboard.md, from the results of `hierax bench suite` alone.

The results of a suite are FOLDER/SUITE/results.json. Figures are what the judges outside of hierax said; a point where
a published value is beaten is written out, so that anybody can check it.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from hierax import InputError
from hierax_lab.bench import medium_report
from hierax_lab.bench.external import SMD, load
from hierax_lab.bench.outside_judge import GAP, VIOLATION
from hierax_lab.bench.suites import MEDIUM, PROBLEMS
from hierax_lab.problems.smd import smd12_as_published
from hierax_lab.reproduce.comparison import shown_statuses

NOTES = "notes.md"  # file in the folder that says how its results were made; it ends the page
DIGITS = 10  # of the printed entries of a point
MIN_IMPROVEMENT = 1e-3  # over a published value that counts as beating it, relative to 1 + |F|
DESCRIPTIONS = {
    "bolib": "71 small problems of BOLIB (S. Zhou, A. Zemkoho, A. Tin); best points as in `hierax_lab.problems.bolib`",
    "smd": "SMD1 to SMD12 without SMD9 (A. Sinha, P. Malo, K. Deb 2014), 5 + 5 variables; `hierax_lab.problems.smd`",
    "qpec": "qpec-100-1 to 4 of MacMPEC (S. Leyffer); published values, judged one-sided",
    "macmpec": "problems of MacMPEC with one convex follower, 60 s each; published values, judged one-sided: at most "
    "1 % of the possible decrease from a feasible start left, else within 1e-4 (1 + |F|) of the published value",
    "portfolio": "robust portfolios of 20, 60 and 120 assets; optimum known",
}
HEAD = """# Leaderboard

Written by `hierax bench leaderboard` from the results of `hierax bench suite NAME` (and, at the end, their notes).
Every answer was judged by solvers that are no part of hierax: SciPy's SLSQP from many starts (bolib, smd), Clarabel
(the others). Small problems count as solved where the point is feasible and y optimal below up to 1e-5 and F is
within 1e-3 (1 + |F*|) of the best value known; the others as docs/methods/auto.md says. The answer of a run that failed
(status nonfinite, diverged, infeasible, unbounded) never counts as solved. Seconds are CPU seconds of the first seed,
compilation included (cold) and without it (compiled).
"""


class Row(NamedTuple):
    """What a solver reached in a suite; `solved` for every seed."""

    solver: str
    problems: int
    solved: list[int]
    missed: list[str]
    ended: str
    cold: float
    compiled: float


class Beaten(NamedTuple):
    """A point that is better than what is published."""

    problem: str
    solver: str
    value: float
    published: float
    x: list[float]
    y: list[float] | None


def write_page(folder: Path, page: Path) -> None:
    """Write the page from all results in the folder."""
    found = {suite: folder / suite / "results.json" for suite in PROBLEMS}
    found = {suite: file for suite, file in found.items() if file.is_file()}
    if not found:
        raise InputError(f"{folder}: has no SUITE/results.json; run hierax bench suite NAME --out {folder}/NAME first.")
    parts, beaten = [HEAD], list[Beaten]()
    for suite, file in found.items():
        records = json.loads(file.read_text())
        parts.append(_table(suite, _rows(suite, records)))
        beaten += _beaten(suite, records)
    page.parent.mkdir(parents=True, exist_ok=True)
    notes = folder / NOTES
    page.write_text("\n".join([*parts, _points(beaten), *([notes.read_text()] if notes.is_file() else [])]))


def _grouped(records: list[dict[str, Any]]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Records by solver and problem, one for each seed."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in records:
        found.setdefault(row["solver"], {}).setdefault(row["problem"], []).append(row)
    return found


def _solved(suite: str, records: list[dict[str, Any]], row: dict[str, Any]) -> bool:
    if suite not in MEDIUM:
        return bool(row["solved"])
    found: Any = {(other["problem"], other["solver"]): [] for other in records}
    for other in records:
        found[other["problem"], other["solver"]].append(other)
    record: Any = row
    return medium_report.solved(record, medium_report.best_value(found, row["problem"]))


def _rows(suite: str, records: list[dict[str, Any]]) -> list[Row]:
    rows = []
    cold = "cold" if suite in MEDIUM else "seconds"
    for solver, problems in _grouped(records).items():
        made = {name: runs for name, runs in problems.items() if not runs[0].get("not_run")}
        if not made:
            continue
        marks = {name: [_solved(suite, records, row) for row in runs] for name, runs in made.items()}
        seeds = min(len(mark) for mark in marks.values())
        solved = [sum(mark[seed] for mark in marks.values()) for seed in range(seeds)]
        missed = [name for name, mark in marks.items() if not all(mark)]
        seconds = [
            float(np.median([runs[0].get(field, np.nan) for runs in made.values()])) for field in (cold, "compiled")
        ]
        ended = shown_statuses(row.get("status") or row["ended"] for runs in made.values() for row in runs)
        rows.append(Row(solver, len(made), solved, missed, ended, *seconds))
    return sorted(rows, key=lambda row: -min(row.solved))


def _table(suite: str, rows: list[Row]) -> str:
    lines = [f"## {suite}", "", f"{DESCRIPTIONS[suite]}.", ""]
    lines += [
        "| solver | solved, seed by seed | of | median CPU s, cold | compiled | missed by some seed | runs ended |"
    ]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        counts = ", ".join(map(str, row.solved))
        compiled = "-" if math.isnan(row.compiled) else f"{row.compiled:.2f}"
        missed = ", ".join(row.missed) if len(row.missed) <= 6 else f"{len(row.missed)} problems"
        numbers = f"{counts} | {row.problems} | {row.cold:.2f} | {compiled}"
        lines.append(f"| {row.solver} | {numbers} | {missed} | {row.ended} |")
    return "\n".join([*lines, ""])


def _published(suite: str, row: dict[str, Any]) -> float:
    """The published value that a row is compared with; infinitely low where none is kept."""
    if row["problem"] == "SMD12":
        x, y = smd12_as_published()
        return float(load("SMD12").upper(jnp.asarray(x), jnp.asarray(y)))
    if suite == "bolib" or row["problem"] in SMD:
        return float(row["known"])
    return float(row["known"]) if row["published"] else -math.inf


def _confirmed(suite: str, row: dict[str, Any]) -> bool:
    """Whether a point is feasible and optimal below; how good it is above is not asked."""
    if suite in MEDIUM:
        return bool(row["violation"] <= medium_report.FEASIBLE and row["gap"] <= row["gap_allowed"])
    return bool(row["violation"] <= VIOLATION and row["gap"] <= GAP)


def _beaten(suite: str, records: list[dict[str, Any]]) -> list[Beaten]:
    """For each problem the best confirmed point below the published value."""
    best: dict[str, Beaten] = {}
    for row in records:
        if row.get("not_run") or not _confirmed(suite, row):
            continue
        published, value = _published(suite, row), row["upper"]
        if value < published - MIN_IMPROVEMENT * (1 + abs(published)) and value < best.get(row["problem"], _NONE).value:
            best[row["problem"]] = Beaten(row["problem"], row["solver"], value, published, row["x"], row.get("y"))
    return list(best.values())


_NONE = Beaten("", "", math.inf, math.inf, [], None)


def _points(beaten: list[Beaten]) -> str:
    lines = ["## Better than published", ""]
    if not beaten:
        return "\n".join([*lines, "No published value is beaten in these results.", ""])
    lines += ["Points to check; y is left out where it is the only solution of the lower level at x.", ""]
    for point in beaten:
        lines += [
            f"- **{point.problem}** ({point.solver}): F = {point.value:.7g}, published {point.published:.7g}.",
            f"  x = {_numbers(point.x)}" + ("" if point.y is None else f", y = {_numbers(point.y)}"),
        ]
    return "\n".join([*lines, ""])


def _numbers(values: list[float]) -> str:
    return "(" + ", ".join(f"{value:.{DIGITS}g}" for value in values) + ")"
