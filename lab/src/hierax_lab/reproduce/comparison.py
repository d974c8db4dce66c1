"""What the reports of the experiments that compare methods share: tables, targets, statements, panels.

Nothing here knows an experiment: a report hands over its rows, curves and the names of their fields.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from hierax_lab.output import TableConsole, new_figure, save_figure
from hierax_lab.reproduce.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#1f6fb4", "#d1602b", "#3a9a5b", "#8b5fbf", "#b8860b", "#555555", "#c2185b")
LINE_STYLES = ("--", ":", "-.", (0, (1, 4)), (0, (5, 5)))
LEGEND_WIDTH = 0.98  # largest share of a figure's width that a legend takes
FILE_WIDTH = 160  # characters of a line where the output is a file

# Names of the statuses whose `failed` is true: such a run is no result.
FAILED = frozenset(("nonfinite", "diverged", "infeasible", "unbounded_lower", "unbounded_upper", "data_error"))
USUAL_STATUS = "max_steps"  # of a run that was given a number of steps and made them

Row = dict[str, Any]  # what is written about one method, by name: numbers, texts and lists, as metrics.json has it


class TargetRow(TypedDict):
    """A bound that has to be kept on a data set, what was measured, and whether it is kept."""

    set: str
    target: str
    measured: str
    met: bool


def report_console() -> TableConsole:
    """The terminal, or where the output is a file a console wide enough for the tables."""
    return TableConsole(width=None if Console().is_terminal else FILE_WIDTH)


class Axis(NamedTuple):
    """A field of the curves and what to write beside it."""

    field: str
    text: str
    log: bool = False


def headed(title: str, *headings: str) -> Table:
    """An empty table with a column of names and columns of numbers."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def mark(met: bool | None) -> str:
    """Whether a target is met, for a table; None: not judged."""
    return "-" if met is None else "[green]met[/green]" if met else "[red]not met[/red]"


def target_table(title: str, headings: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> Table:
    """A table whose rows are texts, and last whether the target is met."""
    table = headed(title, *headings, "")
    for *texts, met in rows:
        table.add_row(*texts, mark(met))
    return table


def target(where: str, wanted: str, measured: str, met: bool) -> TargetRow:
    """A judged target of a data set."""
    return {"set": where, "target": wanted, "measured": measured, "met": bool(met)}


def endings(finals: Sequence[Row]) -> Row:
    """How the runs of a method ended: how many there are, how many did not fail, and how often each status occurred."""
    return {
        "runs": len(finals),
        "finished": sum(not final["failed"] for final in finals),
        "statuses": dict(Counter(final["status"] for final in finals)),
    }


def shown_statuses(statuses: Iterable[str]) -> str:
    """How often each status occurred, the most frequent first: "8 converged, 2 unproved"."""
    return ", ".join(f"{count} {status}" for status, count in Counter(statuses).most_common())


def shown_endings(row: Mapping[str, Any]) -> str:
    """`endings` as text: "10/10" where all runs made their steps, "8/10, 2 nonfinite" where two of ten failed."""
    unusual = [f"{count} {status}" for status, count in row["statuses"].items() if status != USUAL_STATUS]
    return ", ".join([f"{row['finished']}/{row['runs']}", *unusual])


def mean_and_error(values: Sequence[float] | np.ndarray) -> tuple[float | None, float | None]:
    """Mean and standard error over the runs; None where no run finished, an error of 0 where one did."""
    if not len(values):
        return None, None
    return float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0


def shown_mean(row: Mapping[str, Any], name: str, form: str) -> str:
    """Mean and standard error of a column as text; "-" where no run finished."""
    if row[name] is None:
        return "-"
    return f"{row[name]:{form}} +- {row[name + '_se']:{form.lstrip('+')}}"


def print_judgement(console: Console, judged: list[TargetRow] | None, statements: Sequence[Verdict]) -> None:
    """The targets (None: not judged) and the paper's statements."""
    if judged is None:
        console.print("A quick run is not judged.\n")
    else:
        rows = [tuple(row.values()) for row in judged]
        console.print(target_table("targets for SALVF", ("target", "measured"), rows))
    print_verdicts(console, statements)


def print_verdicts(console: Console, statements: Sequence[Verdict], heading: str = "The paper says") -> None:
    """Statements, whether each holds, and the evidence."""
    console.print(heading, style="bold")
    for statement in statements:
        console.print(f'"{statement.statement}": {statement.holds}', highlight=False, style="bold", soft_wrap=True)
        for line in statement.evidence:
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def draw_panels(
    path: Path,
    title: str,
    curves: Mapping[str, Sequence[object]],
    rows: Sequence[Axis],
    columns: Sequence[Axis],
    levels: Mapping[str, Mapping[str, float]],
) -> Path:
    """Means over each method's runs that finished, with bands of one standard error.

    `levels`: horizontal lines by row field. A method without a run that finished has an entry in the legend alone.
    """
    figure = new_figure(13.0, 7.2)
    panels = figure.subplots(len(rows), len(columns))
    for (name, runs), colour in zip(curves.items(), COLOURS, strict=False):
        finished = [curve for curve in runs if not _failed(curve)]
        if not finished:
            panels[0, 0].plot([], [], color=colour, label=labelled(name, runs), lw=1.4)
            continue
        for i, row in enumerate(rows):
            values = np.stack([getattr(curve, row.field) for curve in finished])
            middle = values.mean(axis=0)
            spread = values.std(axis=0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0 * middle
            for j, column in enumerate(columns):
                across = np.mean([getattr(curve, column.field) for curve in finished], axis=0)
                shown = slice(1 if column.log else 0, None)  # a logarithm has no place for zero
                panels[i, j].plot(across[shown], middle[shown], color=colour, label=labelled(name, runs), lw=1.4)
                low, high = middle - spread, middle + spread
                panels[i, j].fill_between(across[shown], low[shown], high[shown], color=colour, alpha=0.12, lw=0)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            panel = panels[i, j]
            if column.log:
                panel.set_xscale("log")
            for (text, level), style in zip(levels.get(row.field, {}).items(), LINE_STYLES, strict=False):
                panel.axhline(level, color="black", lw=0.8, ls=style, label=text)
            panel.set(xlabel=column.text, ylabel=row.text)
            panel.grid(alpha=0.25)
            panel.spines[["top", "right"]].set_visible(False)
    place_legend(figure, *panels[0, 0].get_legend_handles_labels())
    figure.suptitle(f"{title}: mean over the runs that finished, bands one standard error")
    return save_figure(figure, path)


def labelled(name: str, runs: Sequence[object]) -> str:
    """A method's entry in the legend; it says how many runs ended early, which are not drawn."""
    early = sum(map(_failed, runs))
    return f"{name} ({early} of {len(runs)} ended early)" if early else name


def _failed(curve: object) -> bool:
    return bool(getattr(curve, "failed", False))


def place_legend(figure: "Figure", handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Below the panels, in as few lines as the width of the figure has room for."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    for lines in range(1, len(labels) + 1):
        columns = -(-len(labels) // lines)
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
        if legend.get_window_extent(renderer).width <= LEGEND_WIDTH * figure.bbox.width or columns == 1:
            return
        legend.remove()
