r"""`NormBoundedMLPClassifier`: a network whose layers are bounded in norm, by bounds that are tuned while it trains.

Networks with one hidden layer of tanh, many side by side, trained by Adam, and their norm bounds tuned meanwhile.

All arrays have a leading axis of networks. Every network sees the same batches; rows count as its weights say, zero for
rows that are not its own. After each step a layer whose norm exceeds its bound is scaled back to it.

Bounds are tuned by a population of networks, each under bounds of its own. At every milestone the networks that are
worst on the validation rows go on as copies of the best ones, under bounds moved at random (population based training:
Jaderberg et al., arXiv:1711.09846). No derivative of the hyper-objective is taken, and nothing is proved: the
certificate retrains networks around the bounds that were found.
"""

import dataclasses
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike
from scipy import special
from sklearn.utils import check_random_state

from hierax._base.constants import FRESH_SAMPLES
from hierax._base.settings import COUNT_GIVEN, POSITIVE_GIVEN
from hierax._compile.configuration import in_own_configuration, one_blas_thread
from hierax._engine.float64_problem import Float64Problem
from hierax._judge.certificate import Certificate
from hierax._judge.certifying import certificate_in
from hierax._judge.retraining import Retraining
from hierax._lower.linear import SAME
from hierax._problem.problem import Problem
from hierax._problem.samples import Finite
from hierax._problem.sets import Box
from hierax.estimators._base import Given, Parts, Splits, TunedClassifier
from hierax.estimators._linear import Kept, Stated

ADAM_MEAN, ADAM_SQUARE = 0.9, 0.999  # what Adam's averages of slopes and of their squares keep in a step
MEMBERS = 8  # of a population
FACTORS = np.logspace(-2, 3, MEMBERS, base=2)  # first bounds, in units of the norms of the network before training
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

    def norms(self, xp: Any = np) -> Any:
        """Of each layer, weights and biases together: (p, 2). Never zero, where a root has no derivative."""
        first, bias1, second, bias2 = (xp.sum(part**2, axis=tuple(range(1, part.ndim))) for part in self)
        return xp.sqrt(xp.stack([first + bias1, second + bias2], axis=1) + SAME)

    def within(self, bounds: Float[np.ndarray, "p 2"]) -> "Networks":
        """Layers scaled back to their bounds, where they exceed them."""
        one, two = np.minimum(1.0, bounds / self.norms()).T
        shares = one[:, None, None], one[:, None], two[:, None, None], two[:, None]
        return Networks(*(part * share for part, share in zip(self, shares, strict=True)))

    def hidden(self, rows: Any, xp: Any = np) -> Any:
        """What the hidden layer says of rows: (p, n, h)."""
        return xp.tanh(rows @ self.weight1 + self.bias1[:, None])

    def scores(self, hidden: Any) -> Any:
        """The classes' scores, whose softmax is their probabilities: (p, n, k)."""
        return hidden @ self.weight2 + self.bias2[:, None]


def losses(
    networks: Networks, rows: Float[np.ndarray, "n d"], codes: Int[np.ndarray, " n"], shares: Float[np.ndarray, "p n"]
) -> Float[np.ndarray, " p"]:
    """Mean cross-entropy of every network over the rows, with shares that add up to one."""
    likely = special.log_softmax(networks.scores(networks.hidden(rows)), axis=2)
    return -np.sum(shares * likely[:, np.arange(codes.size), codes], axis=1)


def slopes(
    networks: Networks, rows: Float[np.ndarray, "n d"], codes: Int[np.ndarray, " n"], shares: Float[np.ndarray, "p n"]
) -> Networks:
    """The gradients of `losses`."""
    hidden = networks.hidden(rows)
    off = special.softmax(networks.scores(hidden), axis=2)
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

    def __init__(self, networks: Networks, given: Given, batches: Int[np.ndarray, "steps b"], rate: float) -> None:
        """`batches`: row numbers, a line per step; `rate`: length of a step, over the second half it falls to zero."""
        self.networks, self.steps = Networks(*map(np.copy, networks)), len(batches)
        self._given, self._batches, self._rate = given, batches, rate
        self._mean, self._square = (Networks(*map(np.zeros_like, networks)) for _ in range(2))

    def keep(self, which: Int[np.ndarray, " q"]) -> None:
        """Go on with some of the networks."""
        every = self.networks, self._mean, self._square
        self.networks, self._mean, self._square = (part.taken(which) for part in every)

    def run(self, steps: range, shares: Float[np.ndarray, "p n"], bounds: Float[np.ndarray, "p 2"] | None) -> Networks:
        """Make some of the steps; a batch stands for all rows, so its shares are scaled up."""
        for step in steps:
            batch = self._batches[step]
            own = shares[:, batch] * (self._given.codes.size / batch.size)
            slope = slopes(self.networks, self._given.rows[batch], self._given.codes[batch], own)
            long = self._rate * min(1.0, 2 * (self.steps - step) / self.steps) / (1 - ADAM_MEAN ** (step + 1))
            wide, least = 1 / (1 - ADAM_SQUARE ** (step + 1)), np.finfo(float).eps ** 0.5
            for part, mean, square, new in zip(self.networks, self._mean, self._square, slope, strict=True):
                mean[:] = ADAM_MEAN * mean + (1 - ADAM_MEAN) * new
                square[:] = ADAM_SQUARE * square + (1 - ADAM_SQUARE) * new**2
                part -= long * mean / (np.sqrt(wide * square) + least)
            if bounds is not None:
                self.networks = self.networks.within(bounds)
        return self.networks


def drawn_batches(rng: np.random.RandomState, n: int, epochs: int) -> Int[np.ndarray, "steps b"]:
    """Epochs in random orders, in batches of a tenth of the rows (8 to 64); left over rows begin the next epoch."""
    batch = int(np.clip(n // 10, min(8, n), 64))
    orders = np.concatenate([rng.permutation(n) for _ in range(epochs)])
    return orders[: orders.size // batch * batch].reshape(-1, batch)


def shares_of(counts: Float[np.ndarray, " n"], masks: np.ndarray) -> Float[np.ndarray, "folds n"]:
    """What each row counts in every fold: shares that add up to one."""
    found = masks * counts
    return found / found.sum(axis=1, keepdims=True)


def tuned_bounds(
    given: Given, parts: Parts, network: Networks, batches: np.ndarray, rate: float, rng: np.random.RandomState
) -> tuple[dict[str, np.ndarray], Kept]:
    """The bounds under which the network, trained on the batches, ends with the lowest validation loss.

    Returns:
        Per milestone, validation and training loss and the bounds of the member that is best there; and what states the
        problem with the best bounds, as arrays and plain values.
    """
    folds, unit = len(parts.train), network.norms()[0]
    bounds = FACTORS[:, None] * unit
    low, high = bounds[0] / BOUND_MARGIN, bounds[-1] * BOUND_MARGIN
    counted, judged = (np.tile(shares_of(given.counts, masks), (MEMBERS, 1)) for masks in parts)
    start = network.taken(np.zeros(MEMBERS * folds, int)).within(np.repeat(bounds, folds, axis=0))
    training = Training(start, given, batches, rate)
    stops = np.linspace(0, training.steps, MILESTONES + 1).astype(int)
    records = []
    with one_blas_thread:
        for begin, end in itertools.pairwise(stops):
            networks = training.run(range(begin, end), counted, np.repeat(bounds, folds, axis=0))
            both = [losses(networks, given.rows, given.codes, part) for part in (judged, counted)]
            worth, own = (part.reshape(MEMBERS, folds).mean(axis=1) for part in both)
            order = np.argsort(np.where(np.isfinite(worth), worth, np.inf), kind="stable")
            best = int(order[0])
            records.append((worth[best], own[best], bounds[best]))
            if end < training.steps / 2:  # as long as steps have their full length
                members, gone = np.arange(MEMBERS), order[-(MEMBERS // 4) :]
                members[gone] = order[: gone.size]
                training.keep((members[:, None] * folds + np.arange(folds)).ravel())
                bounds = bounds[members]
                moved = bounds[gone] * np.exp(LOG_BOUND_DEVIATION * rng.normal(size=(gone.size, 2)))
                bounds[gone] = np.clip(moved, low, high)
                training.networks = training.networks.within(np.repeat(bounds, folds, axis=0))
    history = dict(zip(("upper", "lower", "bounds"), map(np.array, zip(*records, strict=True)), strict=True))
    kept = {"rows": given.rows, "codes": given.codes, "counted": counted[:folds], "judged": judged[:folds]}
    kept |= {"bounds": bounds[best], "low": low, "high": high}
    return history, kept | networks.taken(best * folds + np.arange(folds))._asdict()


def stated_network(kept: Kept) -> Stated:
    """x: a bound per layer; y: the networks of all folds; both levels are means over rows."""
    rows, codes = kept["rows"], kept["codes"]

    def source(weights: np.ndarray) -> Finite:
        """Rows that count in some fold, their labels, and what they count in each; the weights have mean one."""
        seen = (weights > 0).any(axis=0)
        counts = weights[:, seen] / weights[:, seen].mean(axis=1, keepdims=True)
        return Finite((rows[seen], codes[seen], counts.T))

    def loss(y: dict[str, Any], batch: tuple[Array, Array, Array]) -> Array:
        (features, labels, counts), networks = batch, Networks(**y)
        likely = jax.nn.log_softmax(networks.scores(networks.hidden(features, jnp)), axis=2)
        return -jnp.mean(counts.T * jnp.take_along_axis(likely, labels[None, :, None], axis=2)[:, :, 0])

    problem = Problem(
        upper=lambda x, y, zeta: loss(y, zeta),
        lower=lambda x, y, xi: loss(y, xi),
        constraints=lambda x, y: Networks(**y).norms(jnp) - x[None],
        x_set=Box(kept["low"], kept["high"]),
        zeta=source(kept["judged"]),
        xi=source(kept["counted"]),
    )
    return Stated(problem, kept["bounds"], {name: kept[name] for name in Networks._fields})


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class NormBoundedMLPClassifier(TunedClassifier):
    r"""Network with one hidden layer of tanh whose two layers have norm bounds, tuned on validation rows.

        min over C_1, C_2 of  mean cross-entropy on validation rows of the network y
        y = argmin of         mean cross-entropy on training rows,   subject to ||layer_1|| <= C_1, ||layer_2|| <= C_2

    The bounds take the place of weight decay. The lower level is not convex: y is what training finds. Eight networks
    train side by side under bounds of their own, and at milestones the worst go on as copies of the best with bounds
    moved at random; then one network is trained on all rows under the bounds that were best. Scale the features first
    (`StandardScaler`).

    Args:
        hidden: width of the hidden layer.
        learning_rate: of Adam, over the first half of the training; then it falls to zero.
        validation_fraction: share of the rows, of every class, that judge.
        cv: scikit-learn's: a number of folds, a splitter or pairs of row numbers; every fold then trains networks of
            its own under the same bounds. None: one held-out part.
        max_iter: passes through the rows.
        tol: relative fall of the validation loss over the last twentieth of the training above which the tuning counts
            as unfinished.
        random_state: of the held-out part, the network before training, the batches and the moves of bounds.

    Attributes:
        classes_: the labels.
        bounds_: C_1 and C_2.
        hyperparams_: {"bounds": `bounds_`}.
        coefs_: the weights of both layers.
        intercepts_: their biases.
        history_: arrays by name: "upper" (validation loss), "lower" (training loss) and "bounds" of the best network,
            per milestone.
        n_iter_: passes through the rows.
        certificate_: the certificate of the tuned point, made when first asked for. It retrains eight networks at and
            around the bounds: that refutes a bad point, but proves no good one, so the verdict is never "yes".
        stated_: the bilevel problem and the point.
        n_features_in_: number of features.
        feature_names_in_: their names, where X had any.

    Examples:
        >>> from sklearn.datasets import make_moons
        >>> from hierax.estimators import NormBoundedMLPClassifier
        >>> X, y = make_moons(200, noise=0.1, random_state=0)
        >>> mlp = NormBoundedMLPClassifier(random_state=0).fit(X, y)
        >>> bool(mlp.score(X, y) > 0.9), mlp.bounds_.shape
        (True, (2,))

    References:
        Jaderberg and others: Population based training of neural networks, arXiv:1711.09846, 2017.
        docs/guides/estimators.md
    """

    hidden: int = 32
    learning_rate: float = 0.02
    validation_fraction: float = 0.25
    cv: Splits = None
    max_iter: int = 100
    tol: float = 0.05
    random_state: int | np.random.RandomState | None = None

    _statement = staticmethod(stated_network)

    @in_own_configuration
    def _certified(self) -> Certificate:
        setting = Float64Problem.of(*self.stated_, FRESH_SAMPLES, 0)
        training = Retraining.before(setting, 0, lambda: False, "not convex: a network")
        return certificate_in(setting, training=training)

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> "NormBoundedMLPClassifier":
        """Tune and train.

        Args:
            X: features, (n, d).
            y: labels, (n,).
            sample_weight: what each row counts, in both levels; None: one.

        Returns:
            The estimator.

        Raises:
            InputError: where a setting or the data make no sense.
        """
        given = self._given(X, y, sample_weight, hidden=COUNT_GIVEN, learning_rate=POSITIVE_GIVEN)
        rng = check_random_state(self.random_state)
        parts = self._parts(given, rng)
        network = Networks.drawn(rng, given.rows.shape[1], self.hidden, len(self.classes_))
        batches = drawn_batches(rng, given.codes.size, self.max_iter)
        self.history_, self._kept = tuned_bounds(given, parts, network, batches, self.learning_rate, rng)
        self.bounds_, self.n_iter_ = self._kept["bounds"], self.max_iter
        shares, bounds = shares_of(given.counts, np.ones((1, given.codes.size), bool)), self.bounds_[None]
        training = Training(network.within(bounds), given, batches, self.learning_rate)
        with one_blas_thread:
            last = training.run(range(training.steps), shares, bounds).taken(np.array(0))
        self.coefs_, self.intercepts_ = [last.weight1, last.weight2], [last.bias1, last.bias2]
        self.hyperparams_ = {"bounds": self.bounds_}
        before, after = self.history_["upper"][-2:]
        falling = float((before - after) / max(abs(after), SAME))
        if not falling <= self.tol:
            self._warn(
                f"the validation loss still fell by {falling:.0%} over the last twentieth of the training "
                f"(tol={self.tol:g}): raise max_iter or learning_rate, or scale the features (StandardScaler)."
            )
        return self

    def predict_proba(self, X: ArrayLike) -> Float[np.ndarray, "n classes"]:
        """Probabilities of the classes."""
        features, layers = self._features(X), zip(self.coefs_, self.intercepts_, strict=True)
        network = Networks(*(part[None] for layer in layers for part in layer))
        return special.softmax(network.scores(network.hidden(features))[0], axis=1)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The labels."""
        likely = self.predict_proba(X)
        return self.classes_[np.argmax(likely, axis=1)]
