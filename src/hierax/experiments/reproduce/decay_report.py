"""Tables and figures of the weight-decay experiment.

The legend that the tables begin with says what each column is. No numbers are computed here.
"""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from hierax.experiments.reproduce.comparison import (
    Axis,
    Row,
    TargetRow,
    draw_panels,
    headed,
    print_judgement,
    shown_endings,
    shown_mean,
)
from hierax.experiments.reproduce.decay_claims import Summaries
from hierax.experiments.reproduce.decay_runs import Curve
from hierax.experiments.reproduce.verdict import Verdict

LEGEND = """\
accuracy, loss: test set, of a network trained anew on the training part under the tuned bound C; +-: standard error
of y: test accuracy of the penalised y itself, which has seen the validation data: it proves nothing
finished: runs that made all their steps, and how the others ended; every number is over the runs that finished alone
gain, to grid: paired differences of the accuracy to no weight decay and to the grid search over C
held: largest excess of the norm of y over its bound; gradients: of both levels, the last training not counted
"""


def print_tables(
    console: Console, summaries: Summaries, judged: list[TargetRow] | None, statements: list[Verdict]
) -> None:
    """One table per data set and kind of labels, the targets (None: not judged), and the paper's statements."""
    console.print(LEGEND, highlight=False)
    for (name, labels), rows in summaries.items():
        console.print(_table(f"{name}, {labels} labels", rows))
    print_judgement(console, judged, statements)


def _table(title: str, rows: dict[str, Row]) -> Table:
    table = headed(
        title, "finished", "C", "accuracy", "loss", "of y", "gain", "to grid", "held", "gradients", "seconds"
    )
    for name, row in rows.items():
        ended = shown_endings(row) if "statuses" in row else ""
        if row["accuracy"] is None:
            table.add_row(name, ended)
            continue
        table.add_row(
            name,
            ended,
            " ".join(f"{value:.1f}" for value in np.ravel(row["bound"])),
            shown_mean(row, "accuracy", ".3f"),
            shown_mean(row, "loss", ".3f"),
            f"{row['own_accuracy']:.3f}" if "own_accuracy" in row else "",
            shown_mean(row, "gain", "+.3f"),
            shown_mean(row, "to_grid", "+.3f"),
            f"{row['violation']:.1e}" if "violation" in row else "",
            f"{row['gradients']:,}",
            f"{row['seconds']:.2f}" if "seconds" in row else "",
        )
    return table


# -- figures ----------------------------------------------------------------------------------------------------------

ROWS = (Axis("accuracy", "test accuracy, retrained under C"), Axis("loss", "test loss, retrained under C"))
COLUMNS = (Axis("seconds", "seconds (compilation apart)"), Axis("steps", "iterations"), Axis("samples", "samples"))


def draw(folder: Path, every: dict[tuple[str, str], dict[str, list[Curve]]], summaries: Summaries) -> list[Path]:
    """Per data set and kind of labels: test accuracy and loss against seconds, iterations and samples."""
    yardsticks = ("grid search", "no weight decay")
    return [
        draw_panels(
            folder / f"{name}-{labels}.png",
            f"Weight decay, {name}, {labels} labels",
            curves,
            ROWS,
            COLUMNS,
            {row.field: {kind: summaries[name, labels][kind][row.field] for kind in yardsticks} for row in ROWS},
        )
        for (name, labels), curves in every.items()
    ]
