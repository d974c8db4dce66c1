"""The runs of the SVM experiment on one data set: choice of constants, one run per seed, and one measure for all.

Every method is judged at points it did not compute itself: phi(c) = F(y*(c)) on the whole validation set with y*(c)
from `svm_reference`, a Newton method of its own. Seconds are those of the run without compilation and evaluation.
"""

import dataclasses
import functools
import logging
import math
from pathlib import Path
from typing import TypedDict

import jax
import numpy as np
from jaxtyping import PyTree

from hierax import AbstractMethod, Conic, Solution, certify
from hierax.problems.example import Example
from hierax_lab.problems import svm, svm_hypergradient, svm_reference
from hierax_lab.problems.svm import Data, Weights
from hierax_lab.reproduce.comparison import Row, endings, mean_and_error
from hierax_lab.reproduce.recorded import run_recorded
from hierax_lab.reproduce.svm_data import Split, split
from hierax_lab.reproduce.svm_methods import BATCH, Entry, Setting

logger = logging.getLogger("hierax")

FIRST_TUNING_SEED = 100  # the seeds of the experiment are 0, 1, ...
MAX_VIOLATION, MAX_GAP = 1e-3, 1e-2  # of a returned point of SALVF


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is run."""

    seeds: int = 10
    steps: int = 200
    record_every: int = 10
    tuning_seeds: int = 2


@dataclasses.dataclass
class Curve:
    """One run of a method on one division of the data, judged at its records (the first is the start)."""

    steps: np.ndarray
    seconds: np.ndarray
    zeta: np.ndarray
    phi: np.ndarray
    accuracy: np.ndarray
    final: Row

    @property
    def failed(self) -> bool:
        """Whether the run ended before its last step, or at a point where phi is not finite."""
        return bool(self.final["failed"])

    @property
    def decrease(self) -> np.ndarray:
        """phi at the start minus phi."""
        return self.phi[0] - self.phi


class MethodResult(TypedDict):
    """What a method did on a data set: the setting it was given, how that was chosen, and a run per seed.

    `tuned` is False where every setting of the grid had a failed tuning run: the runs are then no result.
    """

    setting: Setting
    tuned: bool
    tuning: list[Row]
    curves: list[Curve]
    compile_seconds: float


class Judge:
    """phi, test accuracy and the reference solution of one division of the data."""

    def __init__(self, parts: Split, weights: Weights) -> None:
        self.parts, self.weights = parts, weights

    def __call__(self, xs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """phi, test accuracy at y*(x) and v(x) for every row of xs."""
        parts = self.parts
        found = _exact(parts.train, parts.validation, unit(parts) * xs, self.weights)
        phi, w, b, value = (np.asarray(part) for part in found)
        scores = parts.test[0] @ w.T + b
        return phi, np.mean(np.sign(scores) == parts.test[1][:, None], axis=0), value

    def accuracy(self, y: PyTree) -> float:
        """Test accuracy of a returned y."""
        scores = self.parts.test[0] @ np.asarray(y["w"]) + float(y["b"])
        return float(np.mean(np.sign(scores) == self.parts.test[1]))


@functools.partial(jax.jit, static_argnames="weights")
def _exact(train: Data, validation: Data, cs: jax.Array, weights: Weights) -> tuple[jax.Array, ...]:
    """phi, w, b and v at every row of cs; the data are arguments, so that all divisions share one program."""

    def one(c: jax.Array) -> tuple[jax.Array, ...]:
        found = svm_reference(train, c, weights)
        return svm_hypergradient(train, validation, c, weights)[0], found.w, found.b, found.value

    return jax.lax.map(one, cs)


def unit(parts: Split) -> float:
    """Of the upper variable: x = c / sqrt(N), so that one step length suits x and y (LV-HBA has only one)."""
    return float(len(parts.train[1]) ** 0.5)


def run_method(name: str, entry: Entry, size: Size, weights: Weights, data_dir: Path | None) -> MethodResult:
    """Choose a method's constants on the tuning seeds of one data set, then run it on every seed."""
    tuning = [split(name, FIRST_TUNING_SEED + i, data_dir) for i in range(size.tuning_seeds)]
    setting, tuned, table = _tuned(entry, tuning, size, weights)
    curves = [
        _run(entry.build(setting), split(name, seed, data_dir), seed, size, weights) for seed in range(size.seeds)
    ]
    finished = [curve.decrease[-1] for curve in curves if not curve.failed]
    logger.info(
        "%s: %s with %s: %d of %d runs finished, phi falls by %s",
        name,
        entry.name,
        setting,
        len(finished),
        len(curves),
        f"{np.mean(finished):.4f}" if finished else "-",
    )
    compiling = sum(row["compile_seconds"] for row in table) + sum(c.final["compile_seconds"] for c in curves)
    return {"setting": setting, "tuned": tuned, "tuning": table, "curves": curves, "compile_seconds": compiling}


def _tuned(entry: Entry, tuning: list[Split], size: Size, weights: Weights) -> tuple[Setting, bool, list[Row]]:
    """The setting with the largest mean decrease of phi among those whose tuning runs all finish, whether there is one,
    and the scores.

    Tuning runs are as long as those of the experiment. Where no setting finishes, the one with the most finished runs
    is returned, the earliest of them in the grid. A grid of one setting needs no runs.
    """
    if len(entry.grid) == 1:
        return entry.grid[0], True, []
    table: list[Row] = []
    for setting in entry.grid:
        curves = [
            _run(entry.build(setting), part, FIRST_TUNING_SEED + i, size, weights, judge_only=True)
            for i, part in enumerate(tuning)
        ]
        decrease, _ = mean_and_error([curve.decrease[-1] for curve in curves if not curve.failed])
        table.append(
            {
                **setting._asdict(),
                "decrease": decrease,  # of the runs that finished
                **endings([curve.final for curve in curves]),
                "compile_seconds": sum(curve.final["compile_seconds"] for curve in curves),
            }
        )
    sound = [i for i, row in enumerate(table) if row["finished"] == row["runs"]]
    if sound:
        return entry.grid[max(sound, key=lambda i: table[i]["decrease"])], True, table
    return entry.grid[max(range(len(table)), key=lambda i: table[i]["finished"])], False, table


def _run(
    method: AbstractMethod, parts: Split, seed: int, size: Size, weights: Weights, judge_only: bool = False
) -> Curve:
    example: Example = svm(parts.train, parts.validation, weights, unit=unit(parts))
    run = run_recorded(example, method, size.steps, size.record_every, size.steps // size.record_every, seed)
    solution, judge = run.solution, Judge(parts, weights)
    phi, accuracy, _ = judge(run.xs)
    status, judged = solution.status, bool(np.isfinite(phi[-1]))
    final: Row = {
        "status": status.name if judged or status.failed else "phi not finite",
        "failed": status.failed or not judged,
        "compile_seconds": solution.counts.compile_seconds,
    }
    if not judge_only:
        final |= _final(example, solution, judge)

    taken = run.column("step")
    return Curve(
        steps=taken,
        seconds=run.column("seconds"),
        zeta=BATCH * taken,
        phi=phi,
        accuracy=accuracy,
        final=final,
    )


def _final(example: Example, solution: Solution, judge: Judge) -> Row:
    """The returned point: accuracy of its y and of y*(x), violation, gap, certificate, seconds, counts."""
    phi, accuracy, value = judge(np.asarray(solution.x)[None])
    problem, x, y = example.problem, solution.x, solution.y
    certificate = certify(problem, x, y, lower=Conic())
    gap = float(problem.lower(x, y, None)) - float(value[0])
    counts = solution.counts
    return {
        "phi": float(phi[0]),
        "accuracy": judge.accuracy(y),
        "accuracy_exact": float(accuracy[0]),
        "violation": float(np.max(problem.constraints(x, y), initial=0.0)),
        "gap": gap,
        "certified": certificate.ok(violation=MAX_VIOLATION, gap=MAX_GAP, stationarity=math.inf),
        "certificate": {"violation": certificate.max_violation, "gap": certificate.lower_gap},
        "seconds": counts.seconds,
        "seconds_per_step": counts.seconds / max(1, solution.status.step),
        "zeta": counts.zeta,
        "grad_lower": counts.grad_lower,
        "lower_solves": counts.lower_solves,
    }
