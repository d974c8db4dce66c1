"""Tables and figures of the SVM experiment."""

from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from hierax.report import new_figure, save_figure
from hierax.reproduce.svm_claims import shown_seconds
from hierax.reproduce.svm_methods import BATCH, ENTRIES
from hierax.reproduce.verdict import Verdict

LEGEND = """\
phi: validation loss at the exact lower solution y*(x), whole validation set; decrease: from equal weights
accuracy: test set, of the returned y and of y*(x); violation, gap: of the returned point, largest over the seeds
ms per step: compilation apart, one core; inner: lower solves and lower gradients per step
90 %: seconds to 90 % of the best method's decrease, mean curve; +-: standard error over the seeds
"""
COLOURS = ("#1f6fb4", "#d1602b", "#3a9a5b", "#8b5fbf", "#b8860b", "#555555", "#c2185b")


def print_tables(
    console: Console,
    summaries: dict[str, dict[str, dict[str, Any]]],
    plain: dict[str, dict[str, float]],
    judged: list[dict[str, Any]] | None,
    statements: list[Verdict],
) -> None:
    """One table per data set, the targets (None: not judged), and the paper's statements."""
    console.print(LEGEND, highlight=False)
    solvers = "; ".join(f"{entry.name}: {entry.lower}" for entry in ENTRIES)
    console.print(f"lower level by {solvers}\n", highlight=False)
    for name, table in summaries.items():
        console.print(_table(name, table, plain[name]))
    if judged is None:
        console.print("A quick run is not judged.\n")
    else:
        console.print(_targets(judged))
    for statement in statements:
        console.print(f'"{statement.statement}": {statement.holds}', highlight=False, style="bold", soft_wrap=True)
        for line in statement.evidence:
            console.print(f"  {line}", highlight=False, soft_wrap=True)


def _headed(title: str, *headings: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _table(name: str, rows: dict[str, dict[str, Any]], plain: dict[str, float]) -> Table:
    table = _headed(
        name,
        "c, step",
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
    for method, row in rows.items():
        steps = row["zeta"] / BATCH
        weight = row["setting"]["weight"]
        table.add_row(
            method,
            f"{'-' if weight is None else f'{weight:g}'}, {row['setting']['step']:g}",
            f"{row['decrease']:.4f} +- {row['decrease_se']:.4f}",
            f"{row['accuracy']:.3f} +- {row['accuracy_se']:.3f}",
            f"{row['accuracy_exact']:.3f} +- {row['accuracy_exact_se']:.3f}",
            f"{row['violation']:.1e}",
            f"{row['gap']:.1e}",
            f"{row['certified']}/{row['runs']}",
            f"{1e3 * row['seconds_per_step']:.2f}",
            f"{row['lower_solves'] / steps:.1f}, {row['grad_lower'] / steps:.0f}",
            shown_seconds(row["seconds_to_90"]),
        )
    accuracy = f"{plain['accuracy']:.3f} +- {plain['accuracy_se']:.3f}"
    start = np.mean([row["start_accuracy"] for row in rows.values()])
    table.add_row("equal weights", "", "0", f"{start:.3f}")
    table.add_row("plain linear SVM", "", "", accuracy)
    return table


def _targets(judged: list[dict[str, Any]]) -> Table:
    table = _headed("targets", "target", "measured", "")
    for row in judged:
        mark = "[green]met[/green]" if row["met"] else "[red]not met[/red]"
        table.add_row(row["set"], row["target"], row["measured"], mark)
    return table


# -- figures ----------------------------------------------------------------------------------------------------------

AXES = (("seconds", "seconds (compilation apart)"), ("steps", "iterations"), ("zeta", "samples of zeta"))


def draw(folder: Path, every: dict[str, dict[str, dict[str, Any]]], plain: dict[str, dict[str, float]]) -> list[Path]:
    """Per data set: test accuracy and hyper-objective against seconds, iterations and samples; bands are +- 1 s.e."""
    return [_draw_set(folder / f"{name}.png", name, every[name], plain[name]) for name in every]


def _draw_set(path: Path, name: str, results: dict[str, dict[str, Any]], plain: dict[str, float]) -> Path:
    figure = new_figure(13.0, 7.2)
    panels = figure.subplots(2, 3)
    for entry, colour in zip(ENTRIES, COLOURS, strict=True):
        curves = results[entry.name]["curves"]
        for row, field in enumerate(("accuracy", "phi")):
            values = np.stack([getattr(curve, field) for curve in curves])
            middle = values.mean(axis=0)
            spread = values.std(axis=0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0 * middle
            for column, (axis, _) in enumerate(AXES):
                across = np.mean([getattr(curve, axis) for curve in curves], axis=0)
                first = 1 if axis == "seconds" else 0  # a logarithm has no place for zero
                panels[row, column].plot(across[first:], middle[first:], color=colour, label=entry.name, lw=1.4)
                panels[row, column].fill_between(
                    across[first:], (middle - spread)[first:], (middle + spread)[first:], color=colour, alpha=0.12, lw=0
                )
    for row, title in enumerate(("test accuracy at y*(x)", "hyper-objective at the exact y*(x)")):
        for column, (axis, text) in enumerate(AXES):
            panel = panels[row, column]
            if axis == "seconds":
                panel.set_xscale("log")
            if row == 0:
                panel.axhline(plain["accuracy"], color="black", lw=0.8, ls="--", label="plain linear SVM")
            panel.set(xlabel=text, ylabel=title)
            panel.grid(alpha=0.25)
            panel.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=8, frameon=False, fontsize=9)
    figure.suptitle(f"SVM sample weights, {name}: mean over the seeds, bands one standard error")
    return save_figure(figure, path)
