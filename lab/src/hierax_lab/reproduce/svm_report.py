"""Tables and figures of the SVM experiment.

The legend that the tables begin with says what each column is. No numbers are computed here.
"""

import math
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from hierax_lab.reproduce.comparison import (
    Axis,
    Row,
    TargetRow,
    draw_panels,
    headed,
    print_judgement,
    shown_endings,
    shown_mean,
)
from hierax_lab.reproduce.svm_claims import Summaries, shown_seconds
from hierax_lab.reproduce.svm_methods import BATCH, ENTRIES
from hierax_lab.reproduce.svm_runs import Curve, MethodResult
from hierax_lab.reproduce.verdict import Verdict

LEGEND = """\
phi: validation loss at the exact lower solution y*(x), whole validation set; decrease: from equal weights
accuracy: test set, of the returned y and of y*(x); violation, gap: of the returned point, largest over the seeds
finished: runs that made all their steps, and how the others ended; every number is over the runs that finished alone
a setting with a failed run is not chosen; where every setting of the grid has one, the method has no numbers
the figure's curves are over the runs that finished too, and its legend says how many ended early
ms per step: compilation apart, one core; inner: lower solves and lower gradients per step
90 %: seconds to 90 % of the best method's decrease, mean curve; +-: standard error over the seeds
"""


def print_tables(
    console: Console,
    summaries: Summaries,
    plain: dict[str, dict[str, float]],
    judged: list[TargetRow] | None,
    statements: list[Verdict],
) -> None:
    """One table per data set, the targets (None: not judged), and the paper's statements."""
    console.print(LEGEND, highlight=False)
    solvers = "; ".join(f"{entry.name}: {entry.lower}" for entry in ENTRIES)
    console.print(f"lower level by {solvers}\n", highlight=False)
    for name, table in summaries.items():
        console.print(method_table(name, table, plain[name]))
    print_judgement(console, judged, statements)


def method_table(name: str, rows: dict[str, Row], plain: dict[str, float]) -> Table:
    """What the methods did on one data set, and the yardsticks."""
    table = headed(
        name,
        "c, step",
        "finished",
        "decrease of phi",
        "accuracy",
        "at y*(x)",
        "violation",
        "gap",
        "certified",
        "ms per step",
        "inner",
        "90 %",
    )
    table.columns[2].no_wrap = True  # a status that is cut off says nothing
    for method, row in rows.items():
        given = (row["setting"][name] for name in ("weight", "step"))
        shown = ", ".join("-" if number is None or math.isnan(number) else f"{number:g}" for number in given)
        if not row["tuned"]:
            table.add_row(method, "no setting finished", f"with {shown}: {shown_endings(row)}")
            continue
        if row["decrease"] is None:
            table.add_row(method, shown, shown_endings(row))
            continue
        steps = row["zeta"] / BATCH
        table.add_row(
            method,
            shown,
            shown_endings(row),
            shown_mean(row, "decrease", ".4f"),
            shown_mean(row, "accuracy", ".3f"),
            shown_mean(row, "accuracy_exact", ".3f"),
            f"{row['violation']:.1e}",
            f"{row['gap']:.1e}",
            f"{row['certified']}/{row['runs']}",
            f"{1e3 * row['seconds_per_step']:.2f}",
            f"{row['lower_solves'] / steps:.1f}, {row['grad_lower'] / steps:.0f}",
            shown_seconds(row["seconds_to_90"]),
        )
    accuracy = f"{plain['accuracy']:.3f} +- {plain['accuracy_se']:.3f}"
    start = np.mean([row["start_accuracy"] for row in rows.values()])
    table.add_row("equal weights", "", "", "0", f"{start:.3f}")
    table.add_row("plain linear SVM", "", "", "", accuracy)
    return table


# -- figures ----------------------------------------------------------------------------------------------------------

ROWS = (Axis("accuracy", "test accuracy at y*(x)"), Axis("phi", "hyper-objective at the exact y*(x)"))
COLUMNS = (
    Axis("seconds", "seconds (compilation apart)", log=True),
    Axis("steps", "iterations"),
    Axis("zeta", "samples of zeta"),
)


def draw(
    folder: Path,
    every: dict[str, dict[str, MethodResult]],
    plain: dict[str, dict[str, float]],
    levels: dict[str, dict[str, float]] | None = None,
) -> list[Path]:
    """Per data set: test accuracy and hyper-objective against seconds, iterations and samples.

    `levels`: by data set, further accuracies to draw as horizontal lines.
    """
    return [
        draw_panels(
            folder / f"{name}.png",
            f"SVM sample weights, {name}",
            dict(_drawn(method, result) for method, result in every[name].items()),
            ROWS,
            COLUMNS,
            {"accuracy": {"plain linear SVM": plain[name]["accuracy"]} | (levels or {}).get(name, {})},
        )
        for name in every
    ]


def _drawn(method: str, result: MethodResult) -> tuple[str, list[Curve]]:
    """A method's name in the legend and the runs to draw."""
    return (method, result["curves"]) if result["tuned"] else (f"{method} (no setting finished)", [])
