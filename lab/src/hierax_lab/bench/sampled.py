"""`hierax bench stochastic`: Auto with nothing set on sampled problems, and whether its certificates tell the truth.

The truth about a certificate comes from elsewhere: hyper-gradients by central differences over lower-level solutions of
SciPy's SLSQP (toy, synthetic), the value of the lower level by the SVM's own reference solver, or by training the
network in the usual way.
"""

import math
import time
from pathlib import Path
from typing import NamedTuple, TypedDict, cast

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from rich.console import Console

from hierax import Box, Certificate, Problem, Solution, solve
from hierax.extend import lazy
from hierax.problems import toy
from hierax.problems.example import Example
from hierax.problems.toy import SIDE, local_minimisers
from hierax_lab.output import write_results
from hierax_lab.problems import svm, synthetic
from hierax_lab.problems.weight_decay import cross_entropy, group_norms, perceptron, weight_decay
from hierax_lab.reproduce import decay_run, decay_runs, decay_training, svm_runs
from hierax_lab.reproduce.comparison import headed, mark, shown_statuses
from hierax_lab.reproduce.decay_data import CLASSES
from hierax_lab.reproduce.decay_data import split as digits_split
from hierax_lab.reproduce.decay_methods import START
from hierax_lab.reproduce.svm_data import names as svm_names
from hierax_lab.reproduce.svm_data import split as svm_split
from hierax_lab.reproduce.svm_methods import ENTRIES
from hierax_lab.reproduce.toy_run import SIGMA
from hierax_lab.reproduce.workers import Name, Task, run_tasks

optimize = lazy("scipy.optimize")

NOISE = decay_run.NOISE["noisy"]  # share of wrong labels
TOY_STARTS, STARTS_PER_TASK = 200, 10
DIFFERENCE = 1e-4  # step of the central differences
TUNED_DISTANCE, GRID_DISTANCE = 0.02, 0.015  # accuracy that may be missed to tuned SALVF's, and to a grid search's
GRID_RANGE = 1.05  # bounds whose validation loss is within this factor of the best one's are the grid's best range
MAX_EXCESS = 1e-4  # of the norm over its bound
MAX_DISAGREEMENT = 1e-2  # relative difference between a certificate's number and the independent one


class Row(TypedDict):
    """What is kept of a call of `solve`: the measure it is judged by, and whether its certificate tells the truth."""

    reached: float
    true: bool
    ok: bool
    says: list[str]
    status: str
    seconds: float


def run(console: Console, seeds: int, starts: int, data_dir: Path | None, out: Path, parallel: bool = True) -> bool:
    """Run, print the table, write results.json; whether every target is met."""
    tasks: dict[Name, Task[list[Row] | list[float]]] = {
        ("toy", f"starts {first} to {min(first + STARTS_PER_TASK, starts) - 1}"): (
            _toy,
            (first, min(first + STARTS_PER_TASK, starts)),
        )
        for first in range(0, starts, STARTS_PER_TASK)
    }
    tasks[("synthetic", "as in reproduce rates")] = (_synthetic, ())
    sets, note = svm_names(data_dir)
    for name in sets:
        tasks |= {(f"SVM, {name}", f"seed {seed}"): (_svm, (name, seed, data_dir)) for seed in range(seeds)}
        tasks[(f"SVM, {name}", "tuned")] = (_tuned_svm, (name, seeds, data_dir))
    for name in decay_run.DATA_SETS:
        key = f"weight decay, {name}"
        tasks |= {(key, f"seed {seed}"): (_weight_decay, (name, seed)) for seed in range(seeds)}
        tasks[(key, "tuned")] = (_least_accuracy, (name, seeds))

    def keep(found: dict[Name, list[Row] | list[float]]) -> None:
        write_results(out, {", ".join(name): result for name, result in found.items()})

    found = run_tasks(tasks, console, parallel, keep)
    rows: dict[str, list[Row]] = {problem: [] for problem, _ in tasks}
    tuned = {problem: cast(list[float], found[(problem, "tuned")]) for problem, part in tasks if part == "tuned"}
    for (problem, part), result in found.items():
        if part != "tuned":
            rows[problem] += cast(list[Row], result)
    if note:
        console.print(note)
    return _report(console, rows, tuned)


def _report(console: Console, rows: dict[str, list[Row]], tuned: dict[str, list[float]]) -> bool:
    table = headed(
        "Auto, nothing set", "measured", "target", "", "ended", "seconds", "certificates true", "they say ok"
    )
    met = True
    for problem, runs in rows.items():
        reached = np.array([row["reached"] for row in runs])
        if problem == "toy":
            value, target = float(np.median(reached)), "median distance <= 0.01"
            fine = value <= 0.01
        elif problem == "synthetic":
            value, target = float(np.max(reached)), "|x - x*| <= 0.1"
            fine = value <= 0.1
        elif problem.startswith("weight decay"):
            value, (by_tuned, by_grid) = float(np.mean(reached)), tuned[problem]
            target = (
                f"test accuracy >= {by_tuned:.3f} (tuned - {TUNED_DISTANCE}), {by_grid:.3f} (grid - {GRID_DISTANCE})"
            )
            fine = value >= by_tuned and value >= by_grid
        elif tuned[problem]:
            value, least = float(np.mean(reached)), 0.9 * float(np.mean(tuned[problem]))
            target, fine = f"phi falls by >= {least:.3f} (0.9 tuned)", value >= least
        else:
            value, target, fine = float(np.mean(reached)), "0.9 tuned, of which no run finished", False
        honest = all(row["true"] for row in runs)
        met &= bool(fine and honest)
        table.add_row(
            f"{problem} ({len(runs)})",
            f"{value:.4g}",
            target,
            mark(fine),
            shown_statuses(row["status"] for row in runs),
            f"{np.median([row['seconds'] for row in runs]):.1f}",
            f"{sum(row['true'] for row in runs)} of {len(runs)}",
            f"{sum(row['ok'] for row in runs)} of {len(runs)}",
        )
    console.print(table)
    return met


# -- the problems -----------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """A call of `solve` with its certificate, and how long it took, compilation included."""

    solution: Solution
    certificate: Certificate
    seconds: float

    def row(self, reached: float, true: bool) -> Row:
        """What is kept of it: the measure it is judged by, and whether the certificate is true."""
        return {
            "reached": float(reached),
            "true": bool(true),
            "ok": self.certificate.ok(),
            "says": self.certificate.reasons()[:1],
            "status": self.solution.status.name,
            "seconds": self.seconds,
        }


def _solved(example: Example, x0: PyTree, y0: PyTree, seed: int) -> Run:
    begin = time.perf_counter()
    solution = solve(example.problem, x0, y0, seed=seed, progress=False)
    seconds, certificate = time.perf_counter() - begin, solution.certificate
    assert isinstance(certificate, Certificate)
    return Run(solution, certificate, seconds)


def _toy(first: int, last: int) -> list[Row]:
    """The starts of `reproduce toy`; the distance is that to the nearest local minimiser."""
    example, starts = toy(SIGMA), SIDE * np.random.default_rng(0).random((TOY_STARTS, 2))
    rows = []
    for start in range(first, last):
        x0, y0 = starts[start]
        run = _solved(example, x0, y0, start)
        distance = np.min(np.abs(local_minimisers() - float(run.solution.x)))
        rows.append(run.row(distance, slope_is_true(example.problem, run.certificate)))
    return rows


def _synthetic() -> list[Row]:
    example = synthetic()
    run = _solved(example, example.x0, example.y0, 0)
    distance = np.linalg.norm(np.asarray(run.solution.x) - np.asarray(example.solutions[0].x))
    return [run.row(float(distance), slope_is_true(example.problem, run.certificate))]


def slope_is_true(problem: Problem, certificate: Certificate) -> bool:
    """Whether the certificate's hyper-gradient agrees with central differences in random directions.

    The samples enter through their exact expectation, and the lower level is solved by SLSQP.
    """
    if certificate.hypergradient is None:
        return False
    at, tree = jax.flatten_util.ravel_pytree(certificate.x)
    x, claimed = np.asarray(at, float), np.ravel(certificate.hypergradient)
    rng = np.random.default_rng(0)
    for _ in range(3):
        way = rng.normal(size=x.size)
        way /= np.linalg.norm(way)
        ends = [
            _value_above(problem, tree(jnp.asarray(x + side * DIFFERENCE * way)), certificate.y) for side in (1.0, -1.0)
        ]
        measured = (ends[0] - ends[1]) / (2 * DIFFERENCE)
        if abs(measured - claimed @ way) > MAX_DISAGREEMENT * (1 + certificate.hypergradient_scale):
            return False
    return True


def _value_above(problem: Problem, x: PyTree, y: PyTree) -> float:
    """F(x, y*(x)) with y* from SLSQP."""
    flat, tree = jax.flatten_util.ravel_pytree(y)
    zeta, xi = (None if source is None else source.exact for source in (problem.zeta, problem.xi))
    lower = jax.jit(jax.value_and_grad(lambda v: problem.lower(x, tree(v), xi)))
    rows = jax.jit(lambda v: -jnp.ravel(jax.flatten_util.ravel_pytree(problem.constraints(x, tree(v)))[0]))
    slopes = jax.jit(jax.jacfwd(rows))
    bounds = None
    if isinstance(problem.y_set, Box):
        low, high = (np.broadcast_to(side, flat.shape) for side in (problem.y_set.lower, problem.y_set.upper))
        bounds = np.stack([low, high], axis=1)
    found = optimize.minimize(
        lambda v: tuple(np.asarray(part, float) for part in lower(v)),
        np.asarray(flat, float),
        jac=True,
        bounds=bounds,
        constraints=[{"type": "ineq", "fun": lambda v: np.asarray(rows(v)), "jac": lambda v: np.asarray(slopes(v))}],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-15},
    )
    return float(problem.upper(x, tree(jnp.asarray(found.x)), zeta))


def _svm(name: str, seed: int, data_dir: Path | None) -> list[Row]:
    """The decrease of phi(c) = F(y*(c)), as `reproduce svm` judges it; the truth is the lower level's value."""
    parts = svm_split(name, seed, data_dir)
    example = svm(parts.train, parts.validation, "softmax", unit=svm_runs.unit(parts))
    run = _solved(example, example.x0, example.y0, seed)
    judge = svm_runs.Judge(parts, "softmax")
    (before, after), _, (_, value) = judge(np.stack([np.asarray(example.x0), np.asarray(run.solution.x)]))
    gap, claimed = float(example.problem.lower(run.solution.x, run.solution.y, None)) - value, run.certificate.lower_gap
    return [run.row(before - after, claimed is not None and abs(claimed - gap) <= MAX_DISAGREEMENT * (1 + abs(value)))]


def _tuned_svm(name: str, seeds: int, data_dir: Path | None) -> list[float]:
    """The decrease of phi by tuned SALVF, of the runs that finished."""
    found = svm_runs.run_method(name, ENTRIES[0], svm_runs.Size(seeds=seeds), "softmax", data_dir)
    return [float(curve.decrease[-1]) for curve in found["curves"] if found["tuned"] and not curve.failed]


def _weight_decay(name: str, seed: int) -> list[Row]:
    """Test accuracy of a network trained anew under the bound found, as `reproduce weight-decay` judges it.

    That network's training loss is also the truth: the certificate's v(x) must not be above it. The bound has to be
    within the grid's best range, and y has to keep it.
    """
    parts = digits_split(name, seed, NOISE, None)
    example = weight_decay(parts.train, parts.validation, hidden=decay_runs.HIDDEN, start=START, seed=seed)
    run = _solved(example, example.x0, example.y0, seed)
    initial = perceptron(jax.random.key(seed), parts.train[0].shape[1], decay_runs.HIDDEN, CLASSES)
    caps = jnp.asarray(run.solution.x, jnp.float32).reshape(1, 1)
    network = decay_training.trained(parts.train, initial, caps, jax.random.key(seed), "all")
    accuracy = float(decay_training.score(network, parts.test).accuracy[0])
    trained = float(cross_entropy(jax.tree.map(lambda leaf: leaf[0], network), parts.train))
    value, bound = float(run.certificate.reference.value), float(np.ravel(run.solution.x)[0])
    held = float(group_norms(run.solution.y, "all")[0]) - bound <= MAX_EXCESS
    (grid,) = decay_runs.run_grid(name, NOISE, decay_runs.Size(seeds=1), None, first=seed)
    inside = _within_best(bound, np.asarray(grid["validation"]))
    return [run.row(accuracy, value <= trained + MAX_DISAGREEMENT * (1 + abs(trained)) and held and inside)]


def _within_best(bound: float, losses: np.ndarray) -> bool:
    """Whether a bound lies between the outermost of the grid whose validation loss is near the best.

    Every bound of the grid stands for what is nearer to it than to the next.
    """
    bounds = np.geomspace(decay_runs.MIN_BOUND, decay_runs.MAX_BOUND, losses.size)
    good, half_step = bounds[losses <= GRID_RANGE * np.nanmin(losses)], (bounds[1] / bounds[0]) ** 0.5
    return bool(good[0] / half_step <= bound <= good[-1] * half_step)


def _least_accuracy(name: str, seeds: int) -> list[float]:
    """What test accuracy is asked for: a little less than tuned SALVF's, and than that of a grid search."""
    size = decay_runs.Size(seeds=seeds, records=1)
    runs = decay_runs.run_method(name, NOISE, "SALVF", size, None)
    tuned = [curve.final["accuracy"] for curve in runs if not curve.failed]
    grid = [row["grid"]["accuracy"] for row in decay_runs.run_grid(name, NOISE, size, None)]
    return [float(np.mean(tuned)) - TUNED_DISTANCE if tuned else math.nan, float(np.mean(grid)) - GRID_DISTANCE]
