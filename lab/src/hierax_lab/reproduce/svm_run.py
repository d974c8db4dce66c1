"""The paper's SVM experiment: sample weights of an SVM chosen on a validation set, seven methods under one measure.

Methods and data sets are dealt out to as many processes as there are cores, one core each, so that seconds compare.
"""

import dataclasses

from hierax_lab.problems.svm import Weights
from hierax_lab.reproduce import svm_report
from hierax_lab.reproduce.experiment import Content, Run, experiment
from hierax_lab.reproduce.svm_claims import Summaries, summary, targets, verdicts
from hierax_lab.reproduce.svm_data import announced_names
from hierax_lab.reproduce.svm_methods import ENTRIES
from hierax_lab.reproduce.svm_plain import plain_svm
from hierax_lab.reproduce.svm_runs import MethodResult, Size, run_method
from hierax_lab.reproduce.workers import Name, Task

QUICK = Size(seeds=2, steps=40, record_every=10, tuning_seeds=1)
SLOWEST_FIRST = ("GAM", "LV-HBA", "BLOCC", "SALVF, exact inner", "BiC-GAFFA", "SALVF-VR", "SALVF")

EverySet = dict[str, dict[str, MethodResult]]  # results by data set and method


@experiment
def run(run: Run, weights: Weights = "softmax") -> Content:
    """Tune and run every method on the data sets, write the numbers and figures, print the tables and what they say.

    `weights`: "softmax" as in the paper, or "exp": weights exp(c_i) that need not sum to one.
    """
    size = run.with_seeds(Size(), QUICK)
    names = announced_names(run.data_dir, run.console)
    # The slowest methods come first, so that no core waits for a last long one.
    tasks: dict[Name, Task[MethodResult]] = {
        (name, method): (_by_name, (name, method, size, weights, run.data_dir))
        for method in SLOWEST_FIRST
        for name in names
    }

    def keep(found: dict[Name, MethodResult]) -> None:
        curves = {"/".join(name): result["curves"] for name, result in found.items()}
        run.write_curves(curves, ("steps", "seconds", "zeta", "phi", "accuracy"))

    found = run.measured(tasks, keep)
    every = {name: {entry.name: found[name, entry.name] for entry in ENTRIES} for name in names}
    summaries, plain, sets = summarised(every, size.seeds, run)
    judged, statements = targets(summaries), run.judged(verdicts(summaries))
    settings = {"weights": weights, "quick": run.quick, **dataclasses.asdict(size)}
    content = run.write({"settings": settings, "sets": sets, "targets": run.met(judged)}, statements)
    svm_report.print_tables(run.console, summaries, plain, None if run.quick else judged, statements)
    run.draw(lambda folder: svm_report.draw(folder, every, plain))
    return content


def summarised(every: EverySet, seeds: int, run: Run) -> tuple[Summaries, dict[str, dict[str, float]], Content]:
    """By data set: the rows of the methods, the plain SVM beside them, and both as metrics.json has them."""
    summaries = {name: summary(results) for name, results in every.items()}
    plain = {name: plain_svm(name, seeds, run.data_dir) for name in every}
    return summaries, plain, {name: {"methods": summaries[name], "plain": plain[name]} for name in every}


def _by_name(name: str, method: str, *arguments: object) -> MethodResult:
    """`run_method` in a worker: an entry holds functions, which cannot be sent to one."""
    (entry,) = (entry for entry in ENTRIES if entry.name == method)
    return run_method(name, entry, *arguments)  # type: ignore[arg-type]  # size, weights and data folder
