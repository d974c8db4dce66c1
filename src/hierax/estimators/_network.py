r"""Networks with one hidden layer of tanh, many side by side, trained by Adam and kept within bounds on their norms.

All arrays have a leading axis of networks. Every network sees the same batches; rows count as its weights say, zero for
rows that are not its own. After each step a layer whose norm exceeds its bound is scaled back to it.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import special

ADAM_MEAN, ADAM_SQUARE, ADAM_EPSILON = 0.9, 0.999, 1e-8  # Adam's averages, and what keeps it from dividing by zero
DECAY_FROM_SHARE = 0.5  # share of the steps after which they are shortened, in a straight line to zero


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
        squares = [np.sum(weight**2, axis=(1, 2)) for weight in (self.weight1, self.weight2)]
        squares = [a + np.sum(bias**2, axis=1) for a, bias in zip(squares, (self.bias1, self.bias2), strict=True)]
        return np.sqrt(np.stack(squares, axis=1))

    def within(self, bounds: Float[np.ndarray, "p 2"]) -> "Networks":
        """Layers scaled back to their bounds, where they exceed them."""
        one, two = np.minimum(1.0, bounds / np.maximum(self.norms(), 1e-300)).T
        return Networks(
            self.weight1 * one[:, None, None],
            self.bias1 * one[:, None],
            self.weight2 * two[:, None, None],
            self.bias2 * two[:, None],
        )

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
    scores = hidden @ networks.weight2 + networks.bias2[:, None]
    off = special.softmax(scores, axis=2)
    off[:, np.arange(codes.size), codes] -= 1.0
    off *= shares[:, :, None]
    inside = (off @ networks.weight2.transpose(0, 2, 1)) * (1.0 - hidden**2)
    return Networks(rows.T @ inside, inside.sum(axis=1), hidden.transpose(0, 2, 1) @ off, off.sum(axis=1))


class Adam(NamedTuple):
    """Averages of the gradients and of their squares, and the number of steps."""

    mean: Networks
    square: Networks
    step: int

    @staticmethod
    def of(networks: Networks) -> "Adam":
        """Before the first step."""
        return Adam(Networks(*map(np.zeros_like, networks)), Networks(*map(np.zeros_like, networks)), 0)

    def taken(self, which: Int[np.ndarray, " q"]) -> "Adam":
        """That of some of the networks."""
        return Adam(self.mean.taken(which), self.square.taken(which), self.step)

    def stepped(self, networks: Networks, slope: Networks, rate: float) -> tuple[Networks, "Adam"]:
        """The networks after a step."""
        step = self.step + 1
        mean = Networks(*(ADAM_MEAN * m + (1 - ADAM_MEAN) * g for m, g in zip(self.mean, slope, strict=True)))
        square = Networks(
            *(ADAM_SQUARE * v + (1 - ADAM_SQUARE) * g**2 for v, g in zip(self.square, slope, strict=True))
        )
        long, wide = rate / (1 - ADAM_MEAN**step), 1 / (1 - ADAM_SQUARE**step)
        moved = (
            part - long * m / (np.sqrt(wide * v) + ADAM_EPSILON)
            for part, m, v in zip(networks, mean, square, strict=True)
        )
        return Networks(*moved), Adam(mean, square, step)


class Plan(NamedTuple):
    """The batches of a training, and how long its steps are.

    Attributes:
        batches: row numbers, one line per step.
        rate: length of the first steps; they are shortened over the second half.
    """

    batches: Int[np.ndarray, "steps b"]
    rate: float

    @staticmethod
    def drawn(rng: np.random.RandomState, n: int, batch: int, epochs: int, rate: float) -> "Plan":
        """Epochs in random orders; the rows that are left over of one begin the next."""
        orders = np.concatenate([rng.permutation(n) for _ in range(epochs)])
        steps = max(orders.size // batch, 1)
        return Plan(orders[: steps * batch].reshape(steps, -1), rate)

    def length(self, step: int) -> float:
        """Of one step."""
        return self.rate * min(1.0, (len(self.batches) - step) / (len(self.batches) * (1 - DECAY_FROM_SHARE)))


def trained(
    networks: Networks,
    adam: Adam,
    plan: Plan,
    steps: range,
    rows: Float[np.ndarray, "n d"],
    codes: Int[np.ndarray, " n"],
    shares: Float[np.ndarray, "p n"],
    bounds: Float[np.ndarray, "p 2"] | None,
) -> tuple[Networks, Adam]:
    """The networks after some steps of a plan; each batch stands for all rows, so its shares are scaled up."""
    for step in steps:
        batch = plan.batches[step]
        own = shares[:, batch] * (codes.size / batch.size)
        slope = slopes(networks, rows[batch], codes[batch], own)
        networks, adam = adam.stepped(networks, slope, plan.length(step))
        if bounds is not None:
            networks = networks.within(bounds)
    return networks, adam
