"""The paper's weight-decay experiment: the norm bound of a network chosen on a validation set, with noisy batches.

Beyond the paper: labels with noise, where a bound matters most, a grid search as the yardstick, and bounds per layer.
"""

import dataclasses
from typing import cast

from hierax_lab.reproduce import decay_report
from hierax_lab.reproduce.comparison import Row
from hierax_lab.reproduce.decay_claims import summary, targets, verdicts
from hierax_lab.reproduce.decay_methods import ENTRIES
from hierax_lab.reproduce.decay_runs import Curve, Size, run_grid, run_method
from hierax_lab.reproduce.experiment import Content, Run, experiment
from hierax_lab.reproduce.workers import Name, Task

QUICK = Size(seeds=2, records=4, training=300, grid=4, share=0.1)
DATA_SETS = ("digits", "pendigits")
NOISE = {"clean": 0.0, "noisy": 0.2}  # share of the training labels that are drawn anew
METHODS = [entry.name for entry in ENTRIES]


@experiment
def run(run: Run) -> Content:
    """Run every method and the grid search, write the numbers and figures, print the tables and what they say."""
    size = run.with_seeds(Size(), QUICK)
    cases = [(name, labels) for name in run.sized(DATA_SETS, DATA_SETS[:1]) for labels in NOISE]
    tasks: dict[Name, Task[list[Curve] | list[Row]]] = {}
    for name, labels in cases:
        tasks[name, labels, "grid search"] = (run_grid, (name, NOISE[labels], size, run.data_dir))
        for method in METHODS:
            tasks[name, labels, method] = (run_method, (name, NOISE[labels], method, size, run.data_dir))

    def curves_of(found: dict[Name, list[Curve] | list[Row]], case: tuple[str, str]) -> dict[str, list[Curve]]:
        return {method: cast(list[Curve], found[*case, method]) for method in METHODS if (*case, method) in found}

    def keep(found: dict[Name, list[Curve] | list[Row]]) -> None:
        done = {f"{'-'.join(case)}/{method}": runs for case in cases for method, runs in curves_of(found, case).items()}
        run.write_curves(done, ("steps", "seconds", "samples", "bounds", "accuracy", "loss"))

    found = run.measured(tasks, keep)
    every = {case: curves_of(found, case) for case in cases}
    grids = {case: cast(list[Row], found[(*case, "grid search")]) for case in cases}
    summaries = {case: summary(every[case], grids[case]) for case in cases}
    judged = targets(summaries, size.training)
    statements = run.judged(verdicts(summaries, METHODS))
    content = run.write(
        {
            "settings": {"quick": run.quick, **dataclasses.asdict(size)},
            "cases": {" ".join(case): {"methods": summaries[case], "grid": grids[case]} for case in cases},
            "targets": run.met(judged),
        },
        statements,
    )
    decay_report.print_tables(run.console, summaries, None if run.quick else judged, statements)
    run.draw(lambda folder: decay_report.draw(folder, every, summaries))
    return content
