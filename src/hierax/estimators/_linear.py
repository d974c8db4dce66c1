r"""Linear classifiers with weighted samples as one bilevel problem: stated for JAX, and with derivatives by hand.

For each fold f and each class k against the rest, with rows a_i (features and a one) and labels l_i of -1 and +1,

    u_fk(x) = argmin over u of  1/2 ||u||^2 + sum_{i in train f} s_i(x) loss(l_i a_i'u),

and the upper level is the mean of a loss over the validation rows and the classes. The minimiser is unique whatever
s >= 0 is, as the offset is penalised too (as in liblinear). x is the logarithm of the cost, then an entry v_i per
training row, which gives the weight exp(v_i) or is the weight itself.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from scipy import special

from hierax._engine.by_hand import HandMade
from hierax._lower.active_set import Slopes
from hierax._lower.blocks import Blocks, Stack
from hierax._problem.problem import Problem
from hierax._problem.sets import Box

Kept = dict[str, Any]
"""What states a problem: arrays and plain values by name, so that fitted estimators hold no functions."""

COST_DECADES = 3  # of the cost below its unit


class Stated(NamedTuple):
    """A bilevel problem and the point that a fitted estimator has found for it."""

    problem: Problem
    x: PyTree
    y: PyTree


class Loss(NamedTuple):
    """A loss of the margin m = l f(z), for NumPy and for JAX, and two derivatives; a judge has no curvature."""

    value: Callable[..., Any]
    slope: Callable[[np.ndarray], np.ndarray]
    curvature: Callable[[np.ndarray], np.ndarray] = np.zeros_like


LOSSES = {
    "squared_hinge": Loss(
        lambda m, xp=np: xp.maximum(1.0 - m, 0.0) ** 2,
        lambda m: -2.0 * np.maximum(1.0 - m, 0.0),
        lambda m: 2.0 * (m < 1.0),
    ),
    "logistic": Loss(
        lambda m, xp=np: xp.logaddexp(0.0, -m),
        lambda m: -special.expit(-m),
        lambda m: special.expit(m) * special.expit(-m),
    ),
    "sigmoid": Loss(
        lambda m, xp=np: xp.exp(-xp.logaddexp(0.0, m)),
        lambda m: -special.expit(m) * special.expit(-m),
    ),
}


class Weighing(NamedTuple):
    """How entries of x become weights: the box that they are in, where they start, and what deviating costs.

    Attributes:
        bound: the weight is exp(v), v in [-bound, bound]; None: it is v itself, in [0, 1].
        penalty: of the sum of squares of what v differs from its start, per row that judges: the fewer there are, the
            less they can say of each weight.
        unit: of the cost.
        above: decades of the cost above its unit that are searched.
    """

    bound: float | None
    penalty: float
    unit: float
    above: int

    @property
    def start(self) -> float:
        """v of a weight of one."""
        return 1.0 if self.bound is None else 0.0

    @property
    def box(self) -> tuple[float, float]:
        """The smallest and the largest v."""
        return (0.0, 1.0) if self.bound is None else (-self.bound, self.bound)

    @property
    def log_costs(self) -> Float[np.ndarray, " decades"]:
        """The logarithms of the costs that are scanned, from the smallest to the largest."""
        return np.log(self.unit) + np.log(10.0) * np.arange(-COST_DECADES, self.above + 1)

    def weights(self, v: Any, xp: Any = np) -> Any:
        """The weights of the samples."""
        return v if self.bound is None else xp.exp(v)


class LinearByHand(HandMade):
    """The problem in vectors, with the hinge and `slack` the stated one, which the certificate judges.

    Without slacks it has the same planes, and is smooth. y: all planes, then the slacks.

    Attributes:
        features: of the rows to fit on, of each fold, or the same for all.
        signs: the labels of the classes there.
        counts: of these rows in each fold; zero where it is not fitted on them.
        tests: as `features`, of the rows that judge.
        test_signs: as `signs`.
        shares: of the tests in each fold.
        prices: of what v differs from its start.
        slacks: which of all (fold, class, row) have one.
        shape: of the models: folds, classes, features.
    """

    def __init__(self, kept: Kept, slack: bool = True) -> None:
        signs, tuned, judging = kept["signs"].T, kept["train"].any(axis=0), kept["shares"].any(axis=0)
        self.weighing = Weighing(*kept["weighing"])
        self.loss, self.judge = LOSSES[kept["loss"]], LOSSES[kept["judge"]]
        self.features, self.signs, self.counts = kept["rows"][:, tuned], signs[:, tuned], kept["train"] * kept["counts"]
        self.counts = self.counts[:, tuned]
        self.tests, self.test_signs = kept["rows"][:, judging], signs[:, judging]
        self.shares, self.prices = kept["shares"][:, judging], kept["counts"][tuned] / kept["judged"]
        self.prices *= self.weighing.penalty
        self._slack = slack and kept["loss"] == "squared_hinge"
        self.slacks = np.flatnonzero(np.repeat(self.counts * self._slack, len(signs), axis=0))
        self.shape = len(self.counts), len(signs), self.features.shape[2]
        self.rows, self._first = self.slacks.size, int(np.prod(self.shape))
        self.ny = self._first + self.rows
        self._last: tuple[bytes, Blocks] | None = None  # matrices with slacks at one x, whatever y is
        self._met = b"", self.signs  # margins at one y

    def values(self, rows: Any, planes: Any) -> Any:
        """What models (their shape may have more axes in front) say of the rows, or of the tests: (..., f, k, n)."""
        found = planes.reshape(*planes.shape[: -len(self.shape)], len(rows), -1, rows.shape[2]) @ rows.mT
        return found.reshape(*planes.shape[:-1], rows.shape[1])

    def pull(self, rows: np.ndarray, pushes: Float[np.ndarray, "f k n"]) -> Float[np.ndarray, " fkd"]:
        """The transposed of `values`."""
        return (pushes.reshape(len(rows), -1, rows.shape[1]) @ rows).ravel()

    def _weights(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the rows of every fold count, and the derivatives in v; that in x_0 is what they count."""
        per = self.counts * np.exp(x[0])
        s = per * self.weighing.weights(x[1:])
        return s, per if self.weighing.bound is None else s

    def _margins(self, y: np.ndarray) -> Float[np.ndarray, "f k n"]:
        if self._met[0] != (text := y[: self._first].tobytes()):
            self._met = text, self.signs * self.values(self.features, y[: self._first].reshape(self.shape))
        return self._met[1]

    def _spread(self, of_slacks: np.ndarray) -> Float[np.ndarray, "... f k n"]:
        """What belongs to slacks in the place of their fold, class and row; several in lines."""
        f, k, _ = self.shape
        found = np.zeros((*of_slacks.shape[:-1], f, k, self.signs.shape[1]))
        found.reshape(*of_slacks.shape[:-1], -1)[..., self.slacks] = of_slacks
        return found

    def slopes(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Slopes:
        """G, the gradients of L = G + mu.rows, and the rows."""
        planes, margins, (s, steep) = y[: self._first], self._margins(y), self._weights(x)
        of_slacks = rows = np.zeros(0)
        if self._slack:
            slack, pull = self._spread(y[self._first :]), self._spread(mu)
            losses, pushes = slack**2, -pull
            of_slacks = (2.0 * s[:, None] * slack - pull).ravel()[self.slacks]
            rows = (1.0 - margins - slack).ravel()[self.slacks]
        else:
            losses, pushes = self.loss.value(margins), s[:, None] * self.loss.slope(margins)
        every, of_planes = losses.sum(axis=1), planes + self.pull(self.features, self.signs * pushes)
        total = float(np.sum(s * every))
        along_x = np.append(total, np.sum(steep * every, axis=0))
        return Slopes(0.5 * float(planes @ planes) + total, along_x, np.append(of_planes, of_slacks), rows)

    def matrices(self, x: np.ndarray, y: np.ndarray, _: np.ndarray) -> Blocks:
        """The Jacobian of the rows in y, and the Hessian of L in y."""
        if self._slack:
            if self._last is None or self._last[0] != x.tobytes():
                self._last = x.tobytes(), Blocks(self._stacks(x), self.ny, self.rows)
            return self._last[1]
        bends = (self._weights(x)[0][:, None] * self.loss.curvature(self._margins(y))).reshape(-1, self.signs.shape[1])
        hessian, none = np.tile(np.eye(self.shape[2]), (len(bends), 1, 1)), slice(self.ny, self.ny)
        for i, bend in enumerate(bends):
            curved, rows = np.flatnonzero(bend), self.features[i // self.shape[1] % len(self.features)]
            hessian[i] += (rows[curved] * bend[curved, None]).T @ rows[curved]
        empty = hessian[:, :0]
        stack = Stack(slice(0, self.ny), none, slice(0, 0), hessian, empty[:, :, 0], empty, empty[:, :, 0])
        return Blocks([stack], self.ny, self.rows)

    def _stacks(self, x: np.ndarray) -> list[Stack]:
        """The blocks of every fold with slacks."""
        stacks, first, (s, _) = [], 0, self._weights(x)
        _, k, d = self.shape
        for f, weights in enumerate(s):
            own = np.flatnonzero(self.counts[f])
            signs, rows = self.signs[:, own], self.features[f % len(self.features), own]
            last, planes = first + signs.size, slice(f * k * d, (f + 1) * k * d)
            places = planes, slice(self._first + first, self._first + last), slice(first, last)
            curvatures = np.tile(2.0 * weights[own], (k, 1))
            hessian, slopes = np.tile(np.eye(d), (k, 1, 1)), -signs[:, :, None] * rows
            stacks.append(Stack(*places, hessian, curvatures, slopes, -np.ones_like(signs)))
            first = last
        return stacks

    def mixed(self, x: np.ndarray, y: np.ndarray, _: np.ndarray) -> np.ndarray:
        """The derivatives in x of the gradient of L in y, then of the rows."""
        found, (s, steep) = np.zeros((self.ny + self.rows, x.size)), self._weights(x)
        if self._slack:
            push, at = 2.0 * self._spread(y[self._first :]), np.arange(self._first, self.ny)
            found[at, 0] = (push * s[:, None]).ravel()[self.slacks]
            found[at, 1 + self.slacks % s.shape[1]] = (push * steep[:, None]).ravel()[self.slacks]
        else:
            pushes = (self.signs * self.loss.slope(self._margins(y)))[:, :, None] * self.features.mT[:, None]
            found[:, 0] = (pushes @ s[:, None, :, None]).ravel()
            found[:, 1:] = (pushes * steep[:, None, None]).reshape(self.ny, -1)
        return found

    def upper(self, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """F and its derivatives in x and in y."""
        off, shares = x[1:] - self.weighing.start, self.shares[:, None]
        margins = self.test_signs * self.values(self.tests, y[: self._first].reshape(self.shape))
        value = float(self.prices @ off**2) + float(np.sum(self.judge.value(margins) * shares))
        in_planes = self.pull(self.tests, self.test_signs * shares * self.judge.slope(margins))
        return value, np.append(0.0, 2.0 * self.prices * off), np.append(in_planes, np.zeros(self.rows))

    def pulled(self, x: np.ndarray, y: np.ndarray, _: np.ndarray, adjoints: np.ndarray) -> np.ndarray:
        """Each of the adjoints (a, b) times the derivatives in x of (the gradient of L in y, the rows)."""
        s, steep = self._weights(x)
        if self._slack:
            pulls = self._spread(adjoints[:, self._first : self.ny]) * (2.0 * self._spread(y[self._first :]))
        else:
            planes = adjoints[:, : self._first].reshape(len(adjoints), *self.shape)
            pulls = self.values(self.features, planes) * (self.signs * self.loss.slope(self._margins(y)))
        every = pulls.sum(axis=2)
        return np.concatenate([np.sum(every * s, axis=(1, 2))[:, None], np.sum(every * steep, axis=1)], axis=1)


def stated_linear(kept: Kept) -> Stated:
    """The problem for JAX; x: the logarithm of the cost and v of the training rows, y: see `LinearByHand`."""
    hand, hinge = LinearByHand(kept), kept["loss"] == "squared_hinge"
    weighing = hand.weighing

    def margins(signs: np.ndarray, rows: np.ndarray, planes: Array) -> Array:
        return jnp.asarray(signs[None], planes.dtype) * hand.values(jnp.asarray(rows, planes.dtype), planes)

    def upper(x: dict[str, Array], y: dict[str, Array], _: None) -> Array:
        off, losses = x["v"] - weighing.start, hand.judge.value(margins(hand.test_signs, hand.tests, y["planes"]), jnp)
        prices, shares = jnp.asarray(hand.prices, off.dtype), jnp.asarray(hand.shares[:, None], losses.dtype)
        return prices @ off**2 + jnp.sum(losses * shares)

    def lower(x: dict[str, Array], y: dict[str, Array], _: None) -> Array:
        weights = jnp.exp(x["log_cost"]) * weighing.weights(x["v"], jnp)
        s = jnp.repeat(jnp.asarray(hand.counts, weights.dtype) * weights[None], len(hand.signs), axis=0).ravel()
        if hinge:
            losses, s = y["slacks"] ** 2, s[hand.slacks]
        else:
            losses = hand.loss.value(margins(hand.signs, hand.features, y["planes"]), jnp).ravel()
        return 0.5 * jnp.sum(y["planes"] ** 2) + losses @ s

    def constraints(_: dict[str, Array], y: dict[str, Array]) -> Array:
        return 1.0 - margins(hand.signs, hand.features, y["planes"]).ravel()[hand.slacks] - y["slacks"]

    problem = Problem(
        upper=upper,
        lower=lower,
        constraints=constraints if hinge else None,  # type: ignore[arg-type]  # None: no constraint
        x_set={"log_cost": Box(*weighing.log_costs[[0, -1]].tolist()), "v": Box(*weighing.box)},
    )
    y = {"planes": kept["planes"]}
    if hinge:
        losing = 1.0 - hand.signs * hand.values(hand.features, kept["planes"])
        y["slacks"] = np.maximum(losing, 0.0).ravel()[hand.slacks]
    return Stated(problem, {"log_cost": np.asarray(kept["log_cost"]), "v": kept["v"][kept["train"].any(axis=0)]}, y)
