r"""Networks with one hidden layer of tanh, many side by side, trained by Adam, and their norm bounds tuned meanwhile.

All arrays have a leading axis of networks. Every network sees the same batches; rows count as its weights say, zero for
rows that are not its own. After each step a layer whose norm exceeds its bound is scaled back to it.

Bounds are tuned by a population of networks, each under bounds of its own. At every milestone the networks that are
worst on the validation rows go on as copies of the best ones, under bounds moved at random (population based training:
Jaderberg et al., arXiv:1711.09846). No derivative of the hyper-objective is taken, and nothing is proved: the
certificate retrains networks around the bounds that were found.
"""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy import special

from hierax._compile.configuration import one_blas_thread
from hierax._problem.problem import Problem
from hierax._problem.samples import Finite
from hierax._problem.sets import Box
from hierax.estimators._linear import ROUNDING, Kept, Stated
from hierax.estimators._parts import Parts

ADAM_MEAN, ADAM_SQUARE = 0.9, 0.999  # what Adam's averages of slopes and of their squares keep in a step
MEMBERS = 8  # of a population
FACTORS = 2.0 ** np.linspace(-2, 3, MEMBERS)  # first bounds, in units of the norms of the network before training
BOUND_MARGIN = 5.0  # factor by which bounds may move beyond the first ones
LOG_BOUND_DEVIATION = 0.3  # standard deviation of the logarithm of a bound that is moved
MILESTONES = 20


class Networks(NamedTuple):
    """The weights and biases of both layers."""

    weight1: Float[np.ndarray, "p d h"]
    bias1: Float[np.ndarray, "p h"]
    weight2: Float[np.ndarray, "p h k"]
    bias2: Float[np.ndarray, "p k"]

    @staticmethod
    def drawn(rng: np.random.RandomState, features: int, hidden: int, classes: int) -> "Networks":
        """One, after Glorot and Bengio: variance 2 / (inputs + outputs), no biases."""
        first = rng.normal(size=(1, features, hidden)) * (2 / (features + hidden)) ** 0.5
        second = rng.normal(size=(1, hidden, classes)) * (2 / (hidden + classes)) ** 0.5
        return Networks(first, np.zeros((1, hidden)), second, np.zeros((1, classes)))

    def taken(self, which: Int[np.ndarray, " q"]) -> "Networks":
        """Some of them, in that order."""
        return Networks(*(part[which] for part in self))

    def norms(self) -> Float[np.ndarray, "p 2"]:
        """Of each layer, weights and biases together."""
        first, bias1, second, bias2 = (np.sum(part**2, axis=tuple(range(1, part.ndim))) for part in self)
        return np.sqrt(np.stack([first + bias1, second + bias2], axis=1))

    def within(self, bounds: Float[np.ndarray, "p 2"]) -> "Networks":
        """Layers scaled back to their bounds, where they exceed them."""
        one, two = np.minimum(1.0, bounds / np.maximum(self.norms(), np.finfo(float).tiny)).T
        shares = one[:, None, None], one[:, None], two[:, None, None], two[:, None]
        return Networks(*(part * share for part, share in zip(self, shares, strict=True)))

    def hidden(self, rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "p n h"]:
        """What the hidden layer says."""
        return np.tanh(rows @ self.weight1 + self.bias1[:, None])

    def log_likely(self, rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "p n k"]:
        """Logarithms of the classes' probabilities."""
        return special.log_softmax(self.hidden(rows) @ self.weight2 + self.bias2[:, None], axis=2)


def losses(
    networks: Networks, rows: Float[np.ndarray, "n d"], codes: Int[np.ndarray, " n"], shares: Float[np.ndarray, "p n"]
) -> Float[np.ndarray, " p"]:
    """Mean cross-entropy of every network over the rows, with shares that add up to one."""
    own = networks.log_likely(rows)[:, np.arange(codes.size), codes]
    return -np.sum(shares * own, axis=1)


def slopes(
    networks: Networks, rows: Float[np.ndarray, "n d"], codes: Int[np.ndarray, " n"], shares: Float[np.ndarray, "p n"]
) -> Networks:
    """The gradients of `losses`."""
    hidden = networks.hidden(rows)
    off = special.softmax(hidden @ networks.weight2 + networks.bias2[:, None], axis=2)
    off[:, np.arange(codes.size), codes] -= 1.0
    off *= shares[:, :, None]
    inside = (off @ networks.weight2.mT) * (1.0 - hidden**2)
    return Networks(rows.T @ inside, inside.sum(axis=1), hidden.mT @ off, off.sum(axis=1))


class Training:
    """Networks on their way through batches of rows: with averages of their gradients, and of the squares (Adam).

    Attributes:
        networks: as they are now.
        steps: in all.
    """

    def __init__(
        self,
        networks: Networks,
        rows: Float[np.ndarray, "n d"],
        codes: Int[np.ndarray, " n"],
        batches: Int[np.ndarray, "steps b"],
        rate: float,
    ) -> None:
        """`batches`: row numbers, a line per step; `rate`: length of a step, over the second half it falls to zero."""
        self.networks, self.steps = networks, len(batches)
        self._rows, self._codes, self._batches, self._rate = rows, codes, batches, rate
        self._mean, self._square = (Networks(*map(np.zeros_like, networks)) for _ in range(2))

    def keep(self, which: Int[np.ndarray, " q"]) -> None:
        """Go on with some of the networks."""
        self.networks, self._mean, self._square = (
            part.taken(which) for part in (self.networks, self._mean, self._square)
        )

    def run(self, steps: range, shares: Float[np.ndarray, "p n"], bounds: Float[np.ndarray, "p 2"] | None) -> Networks:
        """Make some of the steps; a batch stands for all rows, so its shares are scaled up."""
        for step in steps:
            batch = self._batches[step]
            own = shares[:, batch] * (self._codes.size / batch.size)
            slope = slopes(self.networks, self._rows[batch], self._codes[batch], own)
            self._mean = _averaged(self._mean, slope, ADAM_MEAN)
            self._square = _averaged(self._square, Networks(*(part**2 for part in slope)), ADAM_SQUARE)
            long = self._rate * min(1.0, 2 * (self.steps - step) / self.steps) / (1 - ADAM_MEAN ** (step + 1))
            wide, least = 1 / (1 - ADAM_SQUARE ** (step + 1)), np.finfo(float).eps ** 0.5
            moved = zip(self.networks, self._mean, self._square, strict=True)
            self.networks = Networks(*(part - long * m / (np.sqrt(wide * v) + least) for part, m, v in moved))
            if bounds is not None:
                self.networks = self.networks.within(bounds)
        return self.networks


def _averaged(average: Networks, new: Networks, kept: float) -> Networks:
    return Networks(*(kept * old + (1 - kept) * part for old, part in zip(average, new, strict=True)))


def drawn_batches(rng: np.random.RandomState, n: int, epochs: int) -> Int[np.ndarray, "steps b"]:
    """Epochs in random orders, in batches of a tenth of the rows (8 to 64); left over rows begin the next epoch."""
    batch = int(np.clip(n // 10, min(8, n), 64))
    orders = np.concatenate([rng.permutation(n) for _ in range(epochs)])
    return orders[: orders.size // batch * batch].reshape(-1, batch)


def shares_of(counts: Float[np.ndarray, " n"], masks: np.ndarray) -> Float[np.ndarray, "folds n"]:
    """What each row counts in every fold: shares that add up to one."""
    found = masks * counts
    return found / found.sum(axis=1, keepdims=True)


class Tuned(NamedTuple):
    """How a population ended.

    Attributes:
        bounds: of the best member.
        history: per milestone: validation and training loss and the bounds of the member that is best there.
        kept: what states the problem, as arrays and plain values.
    """

    bounds: Float[np.ndarray, "2"]
    history: dict[str, np.ndarray]
    kept: Kept


def tuned_bounds(
    rows: Float[np.ndarray, "n d"],
    codes: Int[np.ndarray, " n"],
    counts: Float[np.ndarray, " n"],
    parts: Parts,
    network: Networks,
    batches: Int[np.ndarray, "steps b"],
    rate: float,
    rng: np.random.RandomState,
) -> Tuned:
    """The bounds under which the network, trained on the batches, ends with the lowest validation loss."""
    folds, unit = len(parts.train), network.norms()[0]
    bounds = FACTORS[:, None] * unit
    low, high = bounds[0] / BOUND_MARGIN, bounds[-1] * BOUND_MARGIN
    counted, judged = (np.tile(shares_of(counts, masks), (MEMBERS, 1)) for masks in parts)
    start = network.taken(np.zeros(MEMBERS * folds, int)).within(np.repeat(bounds, folds, axis=0))
    training = Training(start, rows, codes, batches, rate)
    stops = np.linspace(0, training.steps, MILESTONES + 1).astype(int)
    upper, lower, best_bounds = [], [], []
    with one_blas_thread:
        for begin, end in itertools.pairwise(stops):
            networks = training.run(range(begin, end), counted, np.repeat(bounds, folds, axis=0))
            worth, own = (
                losses(networks, rows, codes, part).reshape(MEMBERS, folds).mean(axis=1) for part in (judged, counted)
            )
            order = np.argsort(np.where(np.isfinite(worth), worth, np.inf), kind="stable")
            best = int(order[0])
            upper.append(worth[best])
            lower.append(own[best])
            best_bounds.append(bounds[best])
            if end < training.steps / 2:  # as long as steps have their full length
                members, gone = np.arange(MEMBERS), order[-(MEMBERS // 4) :]
                members[gone] = order[: gone.size]
                training.keep((members[:, None] * folds + np.arange(folds)).ravel())
                bounds = bounds[members]
                moved = bounds[gone] * np.exp(LOG_BOUND_DEVIATION * rng.normal(size=(gone.size, 2)))
                bounds[gone] = np.clip(moved, low, high)
                training.networks = training.networks.within(np.repeat(bounds, folds, axis=0))
    history = {"upper": np.array(upper), "lower": np.array(lower), "bounds": np.array(best_bounds)}
    kept = {"rows": rows, "codes": codes, "counted": counted[:folds], "judged": judged[:folds]}
    kept |= {"bounds": bounds[best], "low": low, "high": high}
    found = networks.taken(best * folds + np.arange(folds))
    return Tuned(bounds[best], history, kept | found._asdict())


def stated_network(kept: Kept) -> Stated:
    """x: a bound per layer; y: per fold the network; both levels are means over rows, seen through mini-batches."""
    rows, codes = kept["rows"], kept["codes"]

    def source(weights: np.ndarray) -> Finite:
        """Rows that count in some fold, their labels, and what they count in each; the weights have mean one."""
        seen = (weights > 0).any(axis=0)
        counts = weights[:, seen] / weights[:, seen].mean(axis=1, keepdims=True)
        return Finite((rows[seen], codes[seen], counts.T))

    def loss(y: list[dict[str, Array]], batch: tuple[Array, Array, Array]) -> Array:
        features, labels, counts = batch
        total = jnp.zeros((), features.dtype)
        for f, network in enumerate(y):
            hidden = jnp.tanh(features @ network["weight1"] + network["bias1"][None])
            likely = jax.nn.log_softmax(hidden @ network["weight2"] + network["bias2"][None])
            own = jnp.take_along_axis(likely, labels[:, None], axis=1)[:, 0]
            total = total - jnp.mean(counts[:, f] * own)
        return total / len(y)

    def norms(y: list[dict[str, Array]]) -> Array:
        """Of the layers of every fold, (folds, 2)."""
        squares = [
            jnp.sum(part[f"{name}{layer}"] ** 2) for part in y for layer in (1, 2) for name in ("weight", "bias")
        ]
        # The derivative of a root is not finite at zero.
        return jnp.sqrt(jnp.stack(squares).reshape(len(y), 2, 2).sum(axis=2) + ROUNDING)

    problem = Problem(
        upper=lambda x, y, zeta: loss(y, zeta),
        lower=lambda x, y, xi: loss(y, xi),
        constraints=lambda x, y: norms(y) - x[None],
        x_set=Box(kept["low"], kept["high"]),
        zeta=source(kept["judged"]),
        xi=source(kept["counted"]),
    )
    y: list[dict[str, Any]] = [{name: kept[name][f] for name in Networks._fields} for f in range(len(kept["counted"]))]
    return Stated(problem, kept["bounds"], y)
