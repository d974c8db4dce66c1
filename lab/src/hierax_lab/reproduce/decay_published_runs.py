"""The runs of the weight-decay experiment in the published setting: data, methods, networks, and what is kept of them.

One split of each data set for all seeds; a seed changes the initial network and the batches. The accuracy of a run is
that of its y, as in the paper's figure; a network trained anew on the training part under the final bound is the judge.
"""

import dataclasses
import functools
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from hierax import BLOCC, SALM, SALVF, AbstractMethod, Info, MaxMin, solve
from hierax_lab.datasets import load
from hierax_lab.problems.weight_decay import (
    Images,
    Network,
    class_scores,
    cross_entropy,
    group_norms,
    perceptron,
    weight_decay,
    within,
)
from hierax_lab.reproduce.comparison import USUAL_STATUS, Row
from hierax_lab.reproduce.decay_data import CLASSES, Split
from hierax_lab.reproduce.decay_methods import START as ACTIVE_START
from hierax_lab.reproduce.published import as_printed, printed_schedule_allowed

SHARES = (0.6, 0.2)  # of the rows, to train and to validate; the rest is the test set
HIDDEN, BATCH, EPOCHS = 128, 64, 100  # width of the hidden layer, rows of a batch, passes over the training rows
START = 20.0  # the bound C at the start
C1, C2, STEP = 1.0, 0.2, 0.1  # weights of the value function and of the constraint; length of every step
GAMMA1, GAMMA2, S = 1.0, 1.0, 5  # of the envelope; inner steps


class Published(NamedTuple):
    """A method as the experiment runs it."""

    method: AbstractMethod
    steps_per_epoch: int | None = None  # None: one for each batch of the training set
    start: float = START


@dataclasses.dataclass
class Curve:
    """One run, epoch by epoch (nan after a failure): test accuracy of y, its norm, the bound; seconds in all."""

    epochs: np.ndarray
    accuracy: np.ndarray
    norms: np.ndarray
    bounds: np.ndarray
    seconds: np.ndarray
    final: Row

    @property
    def failed(self) -> bool:
        """Whether the run ended before its last epoch."""
        return bool(self.final["failed"])


def printed(reduced: bool) -> SALVF:
    """Algorithm 2, or 3 where `reduced`, as printed, every step .1; w starts where the last inner loop ended."""
    inner = SALM(steps=S, batch=BATCH, eta=always, rho=always, warm=True, rule="paper")
    weights = {"c1": C1, "c2": C2, "gamma1": GAMMA1, "gamma2": GAMMA2}
    return as_printed(STEP, reduced, **weights, inner=inner, batch_zeta=BATCH, batch_xi=BATCH)


def always(k: Array, j: Array) -> Array:
    """eta_j = rho_j = .1."""
    del k
    return jnp.full_like(j, STEP)


def blocc() -> BLOCC:
    """BLOCC with the same weight and steps; its solves see the whole training set, so it has one step per epoch."""
    solver = MaxMin(dual_steps=3, primal_steps=2, eta1=STEP, eta2=STEP)
    return BLOCC(
        c=C1, lower=solver, penalised=solver, eta=STEP, batch_zeta=BATCH, batch_xi=BATCH, start="given", smoothness=1.0
    )


def methods() -> dict[str, Published]:
    """By name; the last is not published: the same algorithm where the bound is active."""
    return {
        "SALVF": Published(printed(reduced=False)),
        "SALVF-VR": Published(printed(reduced=True)),
        "BLOCC": Published(blocc(), steps_per_epoch=1),
        f"SALVF, from C = {ACTIVE_START:g}": Published(printed(reduced=False), start=ACTIVE_START),
    }


def published_split(name: str, data_dir: Path | None) -> Split:
    """60 % to train, 20 % to validate, 20 % to test; features standardised by the training part. One for all seeds."""
    data = load(name, data_dir=data_dir)
    features, labels = data.features.astype(float), data.labels.astype(np.int32)
    count = len(labels)
    order = np.random.default_rng(0).permutation(count)
    ends = np.cumsum([round(share * count) for share in SHARES])
    parts = np.split(order, ends)
    mean, spread = features[parts[0]].mean(axis=0), features[parts[0]].std(axis=0)
    scaled = ((features - mean) / np.where(spread > 0, spread, 1.0)).astype(np.float32)
    return Split(*((scaled[part], labels[part]) for part in parts))


@jax.jit
def test_accuracy(network: Network, part: Images) -> Float[Array, ""]:
    """Share of right labels."""
    return jnp.mean(jnp.argmax(class_scores(network, part[0], "relu"), axis=1).astype(part[1].dtype) == part[1])


def run_method(data: str, name: str, seeds: int, epochs: int, data_dir: Path | None) -> list[Curve]:
    """One run per seed."""
    given, parts = methods()[name], published_split(data, data_dir)
    return [_run(given, parts, seed, epochs) for seed in range(seeds)]


def _run(given: Published, parts: Split, seed: int, epochs: int) -> Curve:
    example = weight_decay(
        parts.train, parts.validation, hidden=HIDDEN, start=given.start, seed=seed, activation="relu"
    )
    per_epoch = given.steps_per_epoch or -(-len(parts.train[1]) // BATCH)
    kept: list[tuple[float, float, float]] = []

    def keep(info: Info) -> None:
        norm = float(group_norms(info.y, "all")[0])
        kept.append((float(test_accuracy(info.y, parts.test)), norm, float(np.asarray(info.x)[0])))

    with printed_schedule_allowed():
        solution = solve(
            *example[:3],
            given.method,
            max_steps=per_epoch * epochs,
            record_every=per_epoch,
            callback=keep,
            seed=seed,
            progress=False,
            throw=False,
        )
    columns = np.full((epochs, 3), np.nan)
    done = kept[:epochs] if not solution.status.failed else kept[: solution.status.step // per_epoch]
    columns[: len(done)] = done
    counts = solution.counts
    return Curve(
        epochs=np.arange(1, epochs + 1),
        accuracy=columns[:, 0],
        norms=columns[:, 1],
        bounds=columns[:, 2],
        seconds=counts.seconds * np.arange(1, epochs + 1) / epochs,
        final={
            "status": solution.status.name,
            "failed": solution.status.failed,
            "start": given.start,
            "bound": float(np.asarray(solution.x)[0]),
            "gradients": counts.gradients,
            "seconds": counts.seconds,
            "compile_seconds": counts.compile_seconds,
        },
    )


# -- networks trained under a given bound -----------------------------------------------------------------------------


def run_training(
    data: str, caps: list[float], with_validation: bool, epochs: int, data_dir: Path | None
) -> list[Curve]:
    """Networks trained under each seed's bound, epoch by epoch."""
    parts = published_split(data, data_dir)
    train = parts.train
    if with_validation:
        train = (np.concatenate([train[0], parts.validation[0]]), np.concatenate([train[1], parts.validation[1]]))
    starts = [perceptron(jax.random.key(seed), train[0].shape[1], HIDDEN, CLASSES) for seed in range(len(caps))]
    keys = jnp.stack([jax.random.key(seed) for seed in range(len(caps))])
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
    given = train, parts.test, stacked, jnp.asarray(caps, jnp.float32), keys
    program = _trained.lower(*given, epochs).compile()
    begun = time.perf_counter()
    accuracy, norms = map(np.asarray, program(*given))
    seconds = (time.perf_counter() - begun) / len(caps)
    each = np.arange(1, epochs + 1)
    final = {"status": USUAL_STATUS, "failed": False, "seconds": seconds}
    return [
        Curve(each, accurate, norm, np.full(epochs, cap), seconds * each / epochs, final)
        for cap, accurate, norm in zip(caps, accuracy, norms, strict=True)
    ]


@functools.partial(jax.jit, static_argnames="epochs")
def _trained(
    train: Images, test: Images, starts: Network, caps: Float[Array, " n"], keys: PRNGKeyArray, epochs: int
) -> tuple[Array, Array]:
    """Projected stochastic gradients, step .1 and batches of 64, from every start."""
    features, labels = (jnp.asarray(part) for part in train)
    per_epoch = -(-labels.shape[0] // BATCH)

    def one(start: Network, cap: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
        def step(network: Network, key: PRNGKeyArray) -> tuple[Network, None]:
            rows = jax.random.randint(key, (BATCH,), 0, labels.shape[0])
            slope = jax.grad(cross_entropy)(network, (features[rows], labels[rows]), "relu")
            return within(jax.tree.map(lambda a, g: a - STEP * g, network, slope), cap[None], "all"), None

        def epoch(network: Network, key: PRNGKeyArray) -> tuple[Network, tuple[Array, Array]]:
            network, _ = jax.lax.scan(step, network, jax.random.split(key, per_epoch))
            return network, (test_accuracy(network, test), group_norms(network, "all")[0])

        return jax.lax.scan(epoch, within(start, cap[None], "all"), jax.random.split(key, epochs))[1]

    return jax.lax.map(lambda each: one(*each), (starts, caps, keys))
