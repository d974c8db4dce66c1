"""The paper's SVM experiment: sample weights of an SVM chosen on a validation set, seven methods under one measure.

Methods and data sets are dealt out to as many processes as there are cores, one core each, so that seconds compare.
"""

import dataclasses
from pathlib import Path

import numpy as np
from rich.console import Console

from hierax.experiments.reproduce import svm_data, svm_report
from hierax.experiments.reproduce.comparison import report_console
from hierax.experiments.reproduce.svm_claims import summary, targets, verdicts
from hierax.experiments.reproduce.svm_methods import ENTRIES
from hierax.experiments.reproduce.svm_plain import plain_svm
from hierax.experiments.reproduce.svm_runs import MethodResult, Size, run_method
from hierax.experiments.reproduce.workers import Name, Task, run_tasks
from hierax.problems.svm import Weights
from hierax.report import draw_or_say, versions, write_json

QUICK = Size(seeds=2, steps=40, record_every=10, tuning_seeds=1)
SLOWEST_FIRST = ("GAM", "LV-HBA", "BLOCC", "SALVF, exact inner", "BiC-GAFFA", "SALVF-VR", "SALVF")


def run(
    out: Path,
    quick: bool = False,
    seeds: int | None = None,
    data_dir: Path | None = None,
    weights: Weights = "softmax",
    console: Console | None = None,
) -> dict[str, object]:
    """Tune and run every method on the data sets, write the numbers and figures, print the tables and what they say.

    Args:
        out: folder for the results.
        quick: two seeds and few steps: shows that everything works; the targets are then not judged.
        seeds: number of random divisions of the data; None: 10.
        data_dir: folder with diabetes.csv and fourclass_scale; None: the folder in HIERAX_DATA, or earlier downloads.
        weights: "softmax" as in the paper, or "exp": weights exp(c_i) that need not sum to one.
        console: where to print; None: the terminal.

    Returns:
        What metrics.json holds.
    """
    console = console or report_console()
    size = QUICK if quick else Size()
    size = dataclasses.replace(size, seeds=seeds or size.seeds)
    names, note = svm_data.names(data_dir)
    if note:
        console.print(note, soft_wrap=True)
    out.mkdir(parents=True, exist_ok=True)
    every = _every_set(names, size, weights, data_dir, console, not quick, out / "curves.npz")
    plain = {name: plain_svm(name, size.seeds, data_dir) for name in names}
    summaries = {name: summary(every[name]) for name in names}
    judged = targets(summaries)
    statements = verdicts(summaries)
    content: dict[str, object] = {
        "settings": {"weights": weights, "quick": quick, **dataclasses.asdict(size)},
        "versions": versions(),
        "sets": {name: {"methods": summaries[name], "plain": plain[name]} for name in names},
        "targets": judged,
        "statements": [dataclasses.asdict(statement) for statement in statements],
    }
    write_json(out / "metrics.json", content)
    _write_curves(out / "curves.npz", every)
    svm_report.print_tables(console, summaries, plain, None if quick else judged, statements)
    draw_or_say(lambda: svm_report.draw(out / "figures", every, plain), console.out)
    console.print(f"Results: {out}", highlight=False)
    return content


def _every_set(
    names: list[str],
    size: Size,
    weights: Weights,
    data_dir: Path | None,
    console: Console,
    parallel: bool,
    curves: Path,
) -> dict[str, dict[str, MethodResult]]:
    """Results by data set and method; the slowest methods come first, so that no core waits for a last long one.

    The curves of what is done are written whenever a task ends.
    """
    tasks: dict[Name, Task[MethodResult]] = {
        (name, method): (_by_name, (name, method, size, weights, data_dir))
        for method in SLOWEST_FIRST
        for name in names
    }

    def keep(found: dict[Name, MethodResult]) -> None:
        _write_curves(curves, {name: {m: found[n, m] for n, m in found if n == name} for name in names})

    found = run_tasks(tasks, console, parallel, keep)
    return {name: {entry.name: found[name, entry.name] for entry in ENTRIES} for name in names}


def _by_name(name: str, method: str, size: Size, weights: Weights, data_dir: Path | None) -> MethodResult:
    """`run_method` in a worker: an entry holds functions, which cannot be sent to one."""
    (entry,) = (entry for entry in ENTRIES if entry.name == method)
    return run_method(name, entry, size, weights, data_dir)


def _write_curves(path: Path, every: dict[str, dict[str, MethodResult]]) -> None:
    arrays = {
        f"{name}/{method}/{seed}/{field}": getattr(curve, field)
        for name, methods in every.items()
        for method, result in methods.items()
        for seed, curve in enumerate(result["curves"])
        for field in ("steps", "seconds", "zeta", "phi", "accuracy")
    }
    np.savez(path, allow_pickle=False, **arrays)
