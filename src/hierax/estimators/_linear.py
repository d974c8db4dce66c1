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


class Fold(NamedTuple):
    """A fold: rows to fit on and rows that judge (`tests`), labels per class as signs, and where its y stands."""

    rows: Float[np.ndarray, "n d"]
    signs: Float[np.ndarray, "k n"]
    counts: Float[np.ndarray, " n"]
    entries: np.ndarray  # of x[1:] that belong to the rows
    tests: Float[np.ndarray, "m d"]
    test_signs: Float[np.ndarray, "k m"]
    shares: Float[np.ndarray, " m"]
    planes: slice
    slacks: slice
    constraints: slice

    def planes_in(self, y: np.ndarray) -> Float[np.ndarray, "k d"]:
        """The models."""
        return y[self.planes].reshape(len(self.signs), -1)

    def slacks_in(self, y: np.ndarray) -> Float[np.ndarray, "k n"]:
        """The slacks."""
        return y[self.slacks].reshape(self.signs.shape)

    def margins(self, y: np.ndarray) -> Float[np.ndarray, "k n"]:
        """Of the rows that the models are fitted on."""
        return self.signs * (self.planes_in(y) @ self.rows.T)


def folds_of(kept: Kept, slack: bool) -> list[Fold]:
    """The folds one after another; with slacks, each has a constraint per class and row."""
    place, folds, signs = np.cumsum(kept["train"].any(axis=0)) - 1, [], kept["signs"].T
    first = row = 0
    for f, (train, shares) in enumerate(zip(kept["train"], kept["shares"], strict=True)):
        rows, own, judged = kept["rows"][f % len(kept["rows"])], signs[:, train], shares > 0
        slacks, count = first + len(signs) * rows.shape[1], own.size * slack
        folds.append(
            Fold(
                rows=rows[train],
                signs=own,
                counts=kept["counts"][train],
                entries=place[train],
                tests=rows[judged],
                test_signs=signs[:, judged],
                shares=shares[judged],
                planes=slice(first, slacks),
                slacks=slice(slacks, slacks + count),
                constraints=slice(row, row + count),
            )
        )
        first, row = slacks + count, row + count
    return folds


class LinearByHand(HandMade):
    """The problem in vectors; y: per fold the planes and, with the hinge and `slack`, slacks.

    With slacks it is the stated problem, which the certificate judges; without them, the same planes in a smooth one.
    """

    def __init__(self, kept: Kept, slack: bool = True) -> None:
        self.weighing = Weighing(*kept["weighing"])
        self._slack = slack and kept["loss"] == "squared_hinge"
        self._loss, self._judge = LOSSES[kept["loss"]], LOSSES[kept["judge"]]
        self._prices = self.weighing.penalty * kept["counts"][kept["train"].any(axis=0)] / kept["judged"]
        self._folds = folds_of(kept, self._slack)
        self.ny, self.rows = self._folds[-1].slacks.stop, self._folds[-1].constraints.stop
        self._last: tuple[bytes, Blocks] | None = None  # matrices with slacks at one x, whatever y is

    def _weights(self, fold: Fold, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the rows of a fold count, and the derivatives in their entries of x; that in x_0 is what they count."""
        per = fold.counts * np.exp(x[0])
        s = per * self.weighing.weights(x[1:][fold.entries])
        return s, per if self.weighing.bound is None else s

    def slopes(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Slopes:
        """G, the gradients of L = G + mu.rows, and the rows."""
        value, along_x, gradient, rows = 0.0, np.zeros_like(x), np.zeros_like(y), np.zeros(self.rows)
        for fold in self._folds:
            u, margins, (s, steep) = fold.planes_in(y), fold.margins(y), self._weights(fold, x)
            if self._slack:
                slack, pull = fold.slacks_in(y), mu[fold.constraints].reshape(margins.shape)
                losses, pushes = slack**2, -pull
                gradient[fold.slacks] = (2.0 * s * slack - pull).ravel()
                rows[fold.constraints] = (1.0 - margins - slack).ravel()
            else:
                losses, pushes = self._loss.value(margins), s * self._loss.slope(margins)
            gradient[fold.planes] = (u + (fold.signs * pushes) @ fold.rows).ravel()
            every = losses.sum(axis=0)
            value += 0.5 * float(np.sum(u**2)) + float(s @ every)
            along_x[0] += s @ every
            along_x[1:][fold.entries] += steep * every
        return Slopes(value, along_x, gradient, rows)

    def matrices(self, x: np.ndarray, y: np.ndarray, _: np.ndarray) -> Blocks:
        """The Jacobian of the rows in y, and the Hessian of L in y."""
        if self._slack:
            if self._last is None or self._last[0] != x.tobytes():
                self._last = x.tobytes(), Blocks([self._stack(fold, x) for fold in self._folds], self.ny, self.rows)
            return self._last[1]
        bends = [self._weights(fold, x)[0] * self._loss.curvature(fold.margins(y)) for fold in self._folds]
        of_models = [(fold.rows, bend) for fold, both in zip(self._folds, bends, strict=True) for bend in both]
        hessian, none = np.tile(np.eye(self._folds[0].rows.shape[1]), (len(of_models), 1, 1)), slice(self.ny, self.ny)
        for block, (rows, bend) in zip(hessian, of_models, strict=True):
            curved = np.flatnonzero(bend)
            block += (rows[curved] * bend[curved, None]).T @ rows[curved]
        empty = hessian[:, :0]
        stack = Stack(slice(0, self.ny), none, slice(0, 0), hessian, empty[:, :, 0], empty, empty[:, :, 0])
        return Blocks([stack], self.ny, self.rows)

    def _stack(self, fold: Fold, x: np.ndarray) -> Stack:
        """The blocks of a fold with slacks."""
        hessian = np.tile(np.eye(fold.rows.shape[1]), (len(fold.signs), 1, 1))
        curvatures = np.tile(2.0 * self._weights(fold, x)[0], (len(fold.signs), 1))
        places, slopes = (fold.planes, fold.slacks, fold.constraints), -fold.signs[:, :, None] * fold.rows
        return Stack(*places, hessian, curvatures, slopes, -np.ones_like(fold.signs))

    def mixed(self, x: np.ndarray, y: np.ndarray, _: np.ndarray) -> np.ndarray:
        """The derivatives in x of the gradient of L in y, then of the rows."""
        found = np.zeros((self.ny + self.rows, x.size))
        for fold in self._folds:
            entries, (s, steep) = 1 + fold.entries, self._weights(fold, x)
            if self._slack:
                slack, at = fold.slacks_in(y), np.arange(fold.slacks.start, fold.slacks.stop)
                found[at, 0] = (2.0 * s * slack).ravel()
                found[at, np.tile(entries, len(slack))] = (2.0 * steep * slack).ravel()
            else:
                slope = fold.signs * self._loss.slope(fold.margins(y))
                pushes = (fold.rows.T * slope[:, None]).reshape(-1, s.size)
                found[fold.planes, 0] = pushes @ s
                found[fold.planes, entries] = pushes * steep
        return found

    def upper(self, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """F and its derivatives in x and in y."""
        off = x[1:] - self.weighing.start
        value, in_y = float(self._prices @ off**2), np.zeros_like(y)
        for fold in self._folds:
            margins = fold.test_signs * (fold.planes_in(y) @ fold.tests.T)
            value += float(np.sum(self._judge.value(margins) @ fold.shares))
            in_y[fold.planes] = ((fold.test_signs * fold.shares * self._judge.slope(margins)) @ fold.tests).ravel()
        return value, np.append(0.0, 2.0 * self._prices * off), in_y

    def pulled(self, x: np.ndarray, y: np.ndarray, _: np.ndarray, adjoints: np.ndarray) -> np.ndarray:
        """Each of the adjoints (a, b) times the derivatives in x of (the gradient of L in y, the rows)."""
        found, lines = np.zeros((len(adjoints), x.size)), len(adjoints)
        for fold in self._folds:
            s, steep = self._weights(fold, x)
            if self._slack:
                pulls = adjoints[:, fold.slacks].reshape(lines, *fold.signs.shape) * (2.0 * fold.slacks_in(y))
            else:
                planes = adjoints[:, fold.planes].reshape(lines, len(fold.signs), -1)
                pulls = (planes @ fold.rows.T) * (fold.signs * self._loss.slope(fold.margins(y)))
            every = pulls.sum(axis=1)
            found[:, 0] += every @ s
            found[:, 1 + fold.entries] += every * steep
        return found


def stated_linear(kept: Kept) -> Stated:
    """The problem for JAX; x: the logarithm of the cost and v of the training rows, y: see `LinearByHand`."""
    weighing, tuned = Weighing(*kept["weighing"]), kept["train"].any(axis=0)
    hinge, loss, judge = kept["loss"] == "squared_hinge", LOSSES[kept["loss"]], LOSSES[kept["judge"]]
    folds = folds_of(kept, hinge)
    prices = weighing.penalty * kept["counts"][tuned] / kept["judged"]

    def margins(signs: np.ndarray, rows: np.ndarray, part: dict[str, Array]) -> Array:
        dtype = part["plane"].dtype
        return jnp.asarray(signs, dtype) * (part["plane"] @ jnp.asarray(rows.T, dtype))

    def upper(x: dict[str, Array], y: list[dict[str, Array]], _: None) -> Array:
        total = jnp.sum(jnp.asarray(prices, x["v"].dtype) * (x["v"] - weighing.start) ** 2)
        for fold, part in zip(folds, y, strict=True):
            losses = judge.value(margins(fold.test_signs, fold.tests, part), jnp)
            total = total + jnp.sum(losses @ jnp.asarray(fold.shares, losses.dtype))
        return total

    def lower(x: dict[str, Array], y: list[dict[str, Array]], _: None) -> Array:
        total, weights = jnp.zeros((), x["v"].dtype), weighing.weights(x["v"], jnp)
        for fold, part in zip(folds, y, strict=True):
            s = jnp.asarray(fold.counts, total.dtype) * jnp.exp(x["log_cost"]) * weights[fold.entries]
            losses = part["slack"] ** 2 if hinge else loss.value(margins(fold.signs, fold.rows, part), jnp)
            total = total + 0.5 * jnp.sum(part["plane"] ** 2) + jnp.sum(losses @ s)
        return total

    def constraints(_: dict[str, Array], y: list[dict[str, Array]]) -> list[Array]:
        return [1.0 - margins(fold.signs, fold.rows, part) - part["slack"] for fold, part in zip(folds, y, strict=True)]

    problem = Problem(
        upper=upper,
        lower=lower,
        constraints=constraints if hinge else None,  # type: ignore[arg-type]  # None: no constraint
        x_set={"log_cost": Box(*weighing.log_costs[[0, -1]].tolist()), "v": Box(*weighing.box)},
    )
    y = [{"plane": planes} for planes in kept["planes"]]
    for fold, part in zip(folds, y, strict=True) if hinge else ():
        part["slack"] = np.maximum(1.0 - fold.signs * (part["plane"] @ fold.rows.T), 0.0)
    return Stated(problem, {"log_cost": np.asarray(kept["log_cost"]), "v": kept["v"][tuned]}, y)
