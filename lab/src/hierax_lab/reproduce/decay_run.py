"""The paper's weight-decay experiment: the norm bound of a network chosen on a validation set, with noisy batches.

Beyond the paper: labels with noise, where a bound matters most, a grid search as the yardstick, and bounds per layer.
"""

import dataclasses
from pathlib import Path
from typing import cast

import numpy as np
from rich.console import Console

from hierax_lab.output import draw_or_say, versions, write_json
from hierax_lab.reproduce import decay_report
from hierax_lab.reproduce.comparison import Row, report_console
from hierax_lab.reproduce.decay_claims import summary, targets, verdicts
from hierax_lab.reproduce.decay_methods import ENTRIES
from hierax_lab.reproduce.decay_runs import Curve, Size, run_grid, run_method
from hierax_lab.reproduce.workers import Name, Task, run_tasks

QUICK = Size(seeds=2, records=4, training=300, grid=4, share=0.1)
NAMES = ("digits", "pendigits")
NOISE = {"clean": 0.0, "noisy": 0.2}


def run(
    out: Path,
    quick: bool = False,
    seeds: int | None = None,
    data_dir: Path | None = None,
    console: Console | None = None,
) -> dict[str, object]:
    """Run every method and the grid search, write the numbers and figures, print the tables and what they say.

    Args:
        out: folder for the results.
        quick: two seeds, few steps, digits only: shows that everything works; the targets are then not judged.
        seeds: number of random divisions of the data; None: 10.
        data_dir: handed to `datasets.load`.
        console: where to print; None: the terminal.

    Returns:
        What metrics.json holds.
    """
    console = console or report_console()
    size = QUICK if quick else Size()
    size = dataclasses.replace(size, seeds=seeds or size.seeds)
    cases = [(name, labels) for name in NAMES[: 1 if quick else None] for labels in NOISE]
    tasks: dict[Name, Task[list[Curve] | list[Row]]] = {}
    for name, labels in cases:
        tasks[name, labels, "grid search"] = (run_grid, (name, NOISE[labels], size, data_dir))
        for entry in ENTRIES:
            tasks[name, labels, entry.name] = (run_method, (name, NOISE[labels], entry.name, size, data_dir))
    out.mkdir(parents=True, exist_ok=True)

    def keep(found: dict[Name, list[Curve] | list[Row]]) -> None:
        methods = [entry.name for entry in ENTRIES]
        done = {case: {m: cast(list[Curve], found[*case, m]) for m in methods if (*case, m) in found} for case in cases}
        _write_curves(out / "curves.npz", done)

    found = run_tasks(tasks, console, not quick, keep)
    every = {case: {e.name: cast(list[Curve], found[(*case, e.name)]) for e in ENTRIES} for case in cases}
    grids = {case: cast(list[Row], found[(*case, "grid search")]) for case in cases}
    summaries = {case: summary(every[case], grids[case]) for case in cases}
    judged = targets(summaries, size.training)
    statements = verdicts(summaries, [entry.name for entry in ENTRIES])
    content: dict[str, object] = {
        "settings": {"quick": quick, **dataclasses.asdict(size)},
        "versions": versions(),
        "cases": {" ".join(case): {"methods": summaries[case], "grid": grids[case]} for case in cases},
        "targets": judged,
        "statements": [dataclasses.asdict(statement) for statement in statements],
    }
    write_json(out / "metrics.json", content)
    _write_curves(out / "curves.npz", every)
    decay_report.print_tables(console, summaries, None if quick else judged, statements)
    draw_or_say(lambda: decay_report.draw(out / "figures", every, summaries), console.out)
    console.print(f"Results: {out}", highlight=False)
    return content


def _write_curves(path: Path, every: dict[tuple[str, str], dict[str, list[Curve]]]) -> None:
    arrays = {
        f"{name}-{labels}/{method}/{seed}/{field}": getattr(curve, field)
        for (name, labels), methods in every.items()
        for method, curves in methods.items()
        for seed, curve in enumerate(curves)
        for field in ("steps", "seconds", "samples", "bounds", "accuracy", "loss")
    }
    np.savez(path, allow_pickle=False, **arrays)
