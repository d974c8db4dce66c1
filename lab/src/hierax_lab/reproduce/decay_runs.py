"""The runs of the weight-decay experiment on one data set: bounds tuned by each method, networks trained under them.

The y of a penalty method has seen the validation data. So every bound is judged by a network trained anew on the
training part alone (`decay_training`), and the y itself is reported beside it.
"""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from hierax import AbstractMethod
from hierax_lab.problems.weight_decay import group_norms, perceptron, weight_decay
from hierax_lab.reproduce import decay_training as training
from hierax_lab.reproduce.comparison import Row
from hierax_lab.reproduce.decay_data import CLASSES, split
from hierax_lab.reproduce.decay_methods import BATCH, ENTRIES, START, Entry
from hierax_lab.reproduce.recorded import run_recorded

NO_BOUND = 1e6  # a bound that no network reaches: training without weight decay
MIN_BOUND, MAX_BOUND = 2.0, 30.0  # ends of the grid of bounds, which is geometric
HIDDEN = 32  # width of the hidden layer
BOUND_COUNTS = {"all": 1, "layers": 2, "tensors": 4}  # number of bounds of each kind


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is run."""

    seeds: int = 10
    records: int = 10
    training: int = training.STEPS
    grid: int = 12
    share: float = 1.0  # of the steps of each method


@dataclasses.dataclass
class Curve:
    """One run of a method: its bounds at the records, judged by retrained networks (first row: the start)."""

    steps: np.ndarray
    seconds: np.ndarray
    samples: np.ndarray
    bounds: np.ndarray
    accuracy: np.ndarray
    loss: np.ndarray
    final: Row

    @property
    def failed(self) -> bool:
        """Whether the run ended before its last step."""
        return bool(self.final["failed"])


def run_method(name: str, noise: float, method: str, size: Size, data_dir: Path | None) -> list[Curve]:
    """One run per seed."""
    (entry,) = (entry for entry in ENTRIES if entry.name == method)
    built = entry.build()  # once: programs are shared by runs with the same optax transformation, not with equal ones
    return [_run(name, noise, entry, built, seed, size, data_dir) for seed in range(size.seeds)]


def _run(
    name: str, noise: float, entry: Entry, method: AbstractMethod, seed: int, size: Size, data_dir: Path | None
) -> Curve:
    parts = split(name, seed, noise, data_dir)
    start = START / BOUND_COUNTS[entry.bounds] ** 0.5
    example = weight_decay(parts.train, parts.validation, bounds=entry.bounds, hidden=HIDDEN, start=start, seed=seed)
    steps = max(size.records, round(size.share * entry.steps))
    run = run_recorded(example, method, steps, steps // size.records, size.records, seed)
    solution, counts = run.solution, run.solution.counts
    caps = np.stack([*run.xs, np.asarray(solution.x)])
    initial = perceptron(jax.random.key(seed), parts.train[0].shape[1], HIDDEN, CLASSES)
    networks = training.trained(
        parts.train, initial, jnp.asarray(caps), jax.random.key(seed), entry.bounds, size.training
    )
    judged = training.score(networks, parts.test)
    own = training.score(jax.tree.map(lambda leaf: leaf[None], solution.y), parts.test)
    held = np.asarray(group_norms(solution.y, entry.bounds)) - np.asarray(solution.x)
    return Curve(
        steps=run.column("step"),
        seconds=run.column("seconds"),
        samples=run.column("zeta") + run.column("xi"),
        bounds=caps[:-1],
        accuracy=judged.accuracy[:-1],
        loss=judged.loss[:-1],
        final={
            "status": solution.status.name,
            "failed": solution.status.failed,
            "bound": np.asarray(solution.x).tolist(),
            "accuracy": float(judged.accuracy[-1]),
            "loss": float(judged.loss[-1]),
            "own_accuracy": float(own.accuracy[0]),
            "violation": float(np.max(held, initial=0.0)),
            "gradients": counts.gradients,
            "seconds": counts.seconds,
            "compile_seconds": counts.compile_seconds,
        },
    )


def run_grid(name: str, noise: float, size: Size, data_dir: Path | None, first: int = 0) -> list[Row]:
    """Per seed, from `first` on: training under every bound of a grid, the best one of them, and without any bound."""
    return [_grid(name, noise, seed, size, data_dir) for seed in range(first, first + size.seeds)]


def _grid(name: str, noise: float, seed: int, size: Size, data_dir: Path | None) -> Row:
    parts = split(name, seed, noise, data_dir)
    initial = perceptron(jax.random.key(seed), parts.train[0].shape[1], HIDDEN, CLASSES)
    bounds = np.geomspace(MIN_BOUND, MAX_BOUND, size.grid)
    caps = jnp.asarray(np.append(bounds, NO_BOUND)[:, None], jnp.float32)
    networks = training.trained(parts.train, initial, caps, jax.random.key(seed), "all", size.training)
    validated, tested = training.score(networks, parts.validation), training.score(networks, parts.test)
    losses = validated.loss[:-1]
    best = int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))  # NaN would be the least

    def row(i: int, bound: float) -> dict[str, float]:
        return {"bound": bound, "accuracy": float(tested.accuracy[i]), "loss": float(tested.loss[i])}

    return {
        "grid": row(best, float(bounds[best])),
        "none": row(-1, float(training.norms(networks, "all")[-1, 0])),
        "gradients": size.grid * size.training,
        "validation": losses.tolist(),
        "test": tested.accuracy[:-1].tolist(),
        "batch": BATCH,
    }
