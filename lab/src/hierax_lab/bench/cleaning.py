"""`hierax bench cleaning`: hyper-cleaning of a network with nothing set, beside what is done without bilevel methods.

1,000 training rows of digits, 40 % of them with wrong labels, 400 trusted rows, the others to test. x has a weight for
every training row, through a sigmoid, y is a network with 9,610 weights:

    min over x in [-5, 5]^1000 of F(y(x)),     y(x) trained on  G = mean_i sigmoid(x_i) loss_i(y) + 5e-5 ||y||^2

F is the mean loss on the trusted rows, which G does not see. Beside it: training on the trusted rows alone, on all
rows, and on all rows with one weight for those that are not trusted, the best of twelve on a quarter of the trusted.
"""

import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from rich.console import Console

from hierax import Auto, Box, Finite, Problem, solve
from hierax_lab.datasets import load
from hierax_lab.output import write_results
from hierax_lab.problems.weight_decay import Images, Network, class_scores, perceptron
from hierax_lab.reproduce.comparison import headed, mark
from hierax_lab.reproduce.decay_training import BATCH, MOMENTUM, RATE

TRAIN, TRUSTED, NOISE, HIDDEN, CLASSES = 1000, 400, 0.4, 128, 10
DECAY, STEPS = 1e-4, 2000  # of the baselines' trainings; the decay is that of G too
GRID = np.geomspace(0.01, 1.0, 12)  # weights of the rows that are not trusted


class Parts(NamedTuple):
    """Training rows with wrong labels among them (`wrong` says which), trusted rows, and rows to test."""

    train: Images
    wrong: np.ndarray
    trusted: Images
    test: Images


def divided(seed: int) -> Parts:
    """A division of the digits."""
    data, rng = load("digits"), np.random.default_rng(seed)
    order = rng.permutation(len(data.labels))
    features = (data.features[order] / np.abs(data.features).max()).astype(np.float32)
    labels = data.labels[order].astype(np.int32)
    wrong = rng.random(TRAIN) < NOISE
    noisy = np.where(wrong, (labels[:TRAIN] + rng.integers(1, CLASSES, TRAIN)) % CLASSES, labels[:TRAIN])
    ends = [slice(0, TRAIN), slice(TRAIN, TRAIN + TRUSTED), slice(TRAIN + TRUSTED, None)]
    (train, _), trusted, test = ((features[part], labels[part]) for part in ends)
    return Parts((train, noisy), wrong, trusted, test)


def row_losses(network: Network, images: Images) -> Float[Array, " rows"]:
    """Cross-entropy, row by row."""
    likely = jax.nn.log_softmax(class_scores(network, images[0], "relu"))
    return -jnp.take_along_axis(likely, jnp.asarray(images[1])[:, None], axis=1)[:, 0]


def decay(network: Network) -> Float[Array, ""]:
    """What keeps G bounded below in every direction."""
    return 0.5 * DECAY * jnp.sum(jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(network)]))


def accuracy(network: Network, images: Images) -> float:
    """The share of rows whose class is found."""
    scores = class_scores(jax.tree.map(jnp.asarray, network), jnp.asarray(images[0]), "relu")
    return float(np.mean(np.argmax(np.asarray(scores), axis=1) == images[1]))


def cleaning(parts: Parts) -> Problem:
    """The problem; a sample of xi is a row with its number."""
    rows = (*parts.train, np.arange(TRAIN))

    def lower(x: Array, y: Network, xi: tuple[Array, Array, Array]) -> Array:
        features, labels, number = xi
        return jnp.mean(jax.nn.sigmoid(x[number]) * row_losses(y, (features, labels))) + decay(y)

    return Problem(
        upper=lambda x, y, zeta: jnp.mean(row_losses(y, zeta)),
        lower=lower,
        x_set=Box(-5.0, 5.0),
        zeta=Finite(parts.trusted),
        xi=Finite(rows),
    )


class Row(NamedTuple):
    """One seed: test accuracies, F, and what Auto took."""

    auto: float
    trusted: float
    everything: float
    grid: float
    upper: float
    status: str
    seconds: float
    compile_seconds: float
    cpu_seconds: float


def measured(seed: int, seconds: float) -> Row:
    """Auto and the baselines on one division."""
    parts, start = divided(seed), perceptron(jax.random.key(seed), 64, HIDDEN, CLASSES)
    begin, cpu = time.perf_counter(), time.process_time()
    sol = solve(cleaning(parts), jnp.zeros(TRAIN), start, Auto(seconds=seconds), seed=seed, progress=False)
    spent, cpu = time.perf_counter() - begin, time.process_time() - cpu
    baselines = trained_without(parts, start, jax.random.key(seed))
    took = (spent, sol.counts.compile_seconds, cpu)
    return Row(accuracy(sol.y, parts.test), *baselines, float(sol.value), sol.status.name, *took)


def trained_without(parts: Parts, start: Network, key: PRNGKeyArray) -> tuple[float, float, float]:
    """Test accuracy of trainings on the trusted rows, on all rows, and with the weight that a grid search finds."""
    part = TRUSTED - TRUSTED // 4

    def score(trusted: int, weights: np.ndarray, on: Images) -> list[float]:
        """With so many of the trusted rows, and each of the weights for the others."""
        rows = tuple(np.concatenate([a[:trusted], b]) for a, b in zip(parts.trusted, parts.train, strict=True))
        each = np.concatenate([np.ones((len(weights), trusted)), np.repeat(weights[:, None], TRAIN, axis=1)], axis=1)
        found = trainings(rows, jnp.asarray(each, jnp.float32), start, key)
        return [accuracy(jax.tree.map(lambda leaf, i=i: leaf[i], found), on) for i in range(len(weights))]

    held = (parts.trusted[0][part:], parts.trusted[1][part:])
    best = GRID[int(np.argmax(score(part, GRID, held)))]
    alone = trainings(parts.trusted, jnp.ones((1, TRUSTED)), start, key)
    everything, grid = score(TRUSTED, np.array([1.0, best]), parts.test)
    return accuracy(jax.tree.map(lambda leaf: leaf[0], alone), parts.test), everything, grid


@jax.jit
def trainings(images: Images, weights: Float[Array, "many rows"], start: Network, key: PRNGKeyArray) -> Network:
    """Networks trained with each of the weights of the rows (leading axis)."""
    features, labels = (jnp.asarray(part) for part in images)

    def one(weight: Float[Array, " rows"]) -> Network:
        def step(carry: tuple[Network, Network], i: Array) -> tuple[tuple[Network, Network], None]:
            network, speed = carry
            rows = jax.random.randint(jax.random.fold_in(key, i), (BATCH,), 0, labels.shape[0])

            def loss(network: Network) -> Array:
                return jnp.mean(weight[rows] * row_losses(network, (features[rows], labels[rows]))) + decay(network)

            speed = jax.tree.map(lambda v, g: MOMENTUM * v + g, speed, jax.grad(loss)(network))
            length = RATE * jnp.minimum(1.0, 2 * (STEPS - i) / STEPS)
            return (jax.tree.map(lambda a, v: a - length * v, network, speed), speed), None

        return jax.lax.scan(step, (start, jax.tree.map(jnp.zeros_like, start)), jnp.arange(STEPS))[0][0]

    return jax.vmap(one)(weights)


def run(console: Console, seeds: int, seconds: float, out: Path) -> bool:
    """Measure, print the table, write results.json; whether Auto is as good as the best of the others."""
    table = headed("seed", *Row._fields)
    rows = []
    for seed in range(seeds):
        rows.append(measured(seed, seconds))
        table.add_row(str(seed), *(one if isinstance(one, str) else f"{one:.3f}" for one in rows[-1]))
        write_results(out, {f"seed {i}": row._asdict() for i, row in enumerate(rows)})
    means = {name: float(np.mean([getattr(row, name) for row in rows])) for name in Row._fields[:4]}
    error = float(np.std([row.auto for row in rows], ddof=1) / seeds**0.5) if seeds > 1 else float("nan")
    met = means["auto"] >= max(means.values()) - error
    console.print(table)
    shown = ", ".join(f"{name} {mean:.4f}" for name, mean in means.items())
    console.print(f"Mean test accuracy: {shown}; standard error of auto {error:.4f}", mark(bool(met)))
    return bool(met)
