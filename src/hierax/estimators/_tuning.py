"""Cost and weights of linear classifiers: Auto's descent on F(x, y*(x)), with derivatives by hand.

A scan over the cost at equal weights gives the start. A row that counts twice is as two rows: the search measures its
entry of x by the root of its sample weight.
"""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import linalg, optimize
from sklearn.preprocessing import label_binarize

from hierax._auto.descents import Phi, SearchAborted
from hierax._auto.session import Work
from hierax._base.constants import FRESH_SAMPLES, MUCH, NEGLIGIBLE
from hierax._base.errors import InputError
from hierax._base.interrupt import Interrupt
from hierax._compile.configuration import in_own_configuration, one_blas_thread
from hierax._engine.by_hand import VectorsByHand
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.vectors import Point, Total
from hierax._judge.certificate import Certificate
from hierax._judge.certifying import certificate_in
from hierax._lower.active_set import SOLVED_RESIDUAL, Found
from hierax._lower.linear import SAME
from hierax.estimators._base import Given, Parts, Splits, TunedClassifier
from hierax.estimators._linear import Kept, LinearByHand, Weighing, stated_linear


class Tuning(Phi):
    """F(x, y*(x)) of cost and weights, x in lengths, and what a search has found on it.

    Attributes:
        lengths: of x.
        best: the lowest point so far; before the search, one whose models are all zero.
        last: the last point whose models were found.
        records: (value, slope, logarithm of the cost) at the start of the descent, and at every lower point after it.
    """

    def __init__(self, kept: Kept) -> None:
        hand, counts = LinearByHand(kept, slack=False), kept["counts"][kept["train"].any(axis=0)]
        self.lengths, ones = np.append(1.0, np.sqrt(np.mean(kept["counts"]) / counts)), np.ones(counts.size)
        self._log_costs, (low, high) = hand.weighing.log_costs, hand.weighing.box
        limits = np.append(self._log_costs[0], low * ones), np.append(self._log_costs[-1], high * ones)
        vectors = VectorsByHand(hand, self.lengths, limits, SOLVED_RESIDUAL * hand.weighing.unit**0.5)
        super().__init__(vectors, np.zeros(0, bool))
        nothing = self._log_costs[0] + np.log(np.finfo(float).eps)  # a cost at which all models are zero
        equal = np.append(nothing, hand.weighing.start * ones) / self.lengths
        self.best = self.last = Point(equal, np.zeros(hand.ny), np.zeros(0))
        self.records: list[tuple[float, float, float]] = []
        self._max_iter, self._tol = np.inf, -np.inf
        self._gradients: list[tuple[np.ndarray, np.ndarray]] = []  # where, and what

    def solved(self, x: np.ndarray, warm: Point) -> Found | None:
        """The models at x; where they are too far from the known ones, by way of models between."""
        found = self.follower.solve(x, warm.y, warm.mu)
        if found is None and np.max(np.abs(x - warm.x)) > NEGLIGIBLE:
            halfway = self.solved(0.5 * (warm.x + x), warm)
            found = None if halfway is None else self.solved(x, self.last)
        if found is not None:
            self.last = Point(x, found.y, found.mu)
        return found

    def at(self, x: np.ndarray, warm: Point) -> tuple[Point, Total] | None:
        """The point at x and F there, which is noted; a descent ends at a small slope, or after its iterations."""
        found = super().at(x, warm)
        if found is not None:
            point, total = found
            self._gradients.append((x, total.slopes.upper))
            if not self.records or total.values.upper < self.records[-1][0]:
                self.best = point
                self.records.append((float(total.values.upper), self._left_of(total.slopes.upper), x[0]))
                if self.records[-1][1] <= self._tol or len(self.records) > self._max_iter:
                    raise SearchAborted
        return found

    def search(self, max_iter: int, tol: float) -> None:
        """The best cost of a scan at equal weights, then a descent."""
        equal = self.best.x[1:]
        for log_cost in self._log_costs:
            self.at(np.append(log_cost, equal), self.last)
        self.records = self.records[-1:] or [(np.inf, np.inf, self.last.x[0])]
        self._max_iter, self._tol = max_iter, tol
        if self.records[-1][1] > tol:
            self.minimised(self.best, Work(np.inf, Interrupt(), 0.0), max_iter, tol**2, least=0.0)
        value, slope, log_cost = self.records[-1]
        if slope > tol:
            self.records[-1] = value, min(slope, self._left_of(self._shortest(MUCH * tol))), log_cost

    def _left_of(self, gradient: np.ndarray) -> float:
        """The norm of what bounds leave of a gradient at the best point."""
        return float(np.linalg.norm(self.best.x - self.vectors.landed(self.best.x - gradient, self.best.y)[0]))

    def _shortest(self, radius: float) -> np.ndarray:
        """The shortest convex combination of the gradients seen near the best point, of what bounds leave of them.

        All pieces of F that meet in a kink count there, and a descent that a kink holds has seen them (gradient
        sampling: Burke, Lewis, Overton, SIAM J. Optim. 15, 2005).
        """
        x, (low, high) = self.best.x, self.vectors.x_limits
        near = [gradient for there, gradient in self._gradients if np.max(np.abs(there - x)) <= radius]
        left = np.where(x <= low, np.minimum(near, 0.0), near)
        left = np.where(x >= high, np.maximum(left, 0.0), left)
        much = (float(np.max(np.abs(left))) or 1.0) / NEGLIGIBLE  # makes the weights add up to one
        wanted = np.append(np.zeros(x.size), much)
        weights, _ = optimize.nnls(np.vstack([left.T, np.full(len(left), much)]), wanted)
        return (weights / weights.sum()) @ np.array(near)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class TunedLinear(TunedClassifier):
    """A linear classifier on features, with a cost and a weight per sample that are tuned."""

    weight_penalty: float = 1.0
    cv: Splits = 5
    validation_fraction: float = 0.25
    max_iter: int = 200
    tol: float = 1e-3
    random_state: int | np.random.RandomState | None = None

    _statement = staticmethod(stated_linear)

    def _tuned_linear(
        self, given: Given, parts: Parts, losses: tuple[str, str], bound: float | None, above: int, features: np.ndarray
    ) -> Float[np.ndarray, " n"]:
        """Tune cost and weights, then fit on all rows: those that judged count with a weight of one.

        Models minimise the first of `losses`, and are judged by the second. The last of `features` is for the fit on
        all rows; those before it (leading axis) are for the folds (none: the same for all). Returns the weights.
        """
        rows, back = _rows(features)
        counts = given.counts
        signs = label_binarize(given.codes, classes=range(len(self.classes_)), neg_label=-1)
        unit = 1.0 / _spread(rows, counts / counts.sum())
        weighing = Weighing(bound, float(self.weight_penalty), unit, above)
        judged = parts.validation * counts
        kept: Kept = {
            "loss": losses[0],
            "judge": losses[1],
            "rows": rows[:-1] if len(rows) > 1 else rows,
            "signs": signs.astype(float),
            "train": parts.train,
            "shares": judged / (judged.sum() * signs.shape[1]),
            "counts": counts,
            "judged": float(judged.sum()),
            "weighing": list(weighing),
        }
        v, everyone = np.full(counts.size, weighing.start), np.ones((1, counts.size), bool)
        with one_blas_thread:
            tuning = Tuning(kept)
            tuning.search(self.max_iter, self.tol)
            log_cost, v[parts.train.any(axis=0)] = np.split(tuning.best.x * tuning.lengths, [1])
            last = Tuning(kept | {"rows": rows[-1:], "train": everyone, "shares": 0.0 * everyone})
            self._solved = last.solved(np.append(log_cost, v) / last.lengths, last.best) is not None
        planes = last.last.y.reshape(signs.shape[1], -1)
        planes = planes if back is None else planes @ back.T
        self.coef_, self.intercept_ = planes[:, :-1], planes[:, -1]
        weights = np.full(given.counted.shape, np.nan)
        weights[given.counted] = weighing.weights(v)
        values, slopes, logs = (np.array(column) for column in zip(*tuning.records, strict=True))
        self.hyperparams_: dict[str, Any] = {"C": float(np.exp(log_cost[0])), "weights": weights}
        self.history_, self.n_iter_ = {"upper": values, "slope": slopes, "C": np.exp(logs)}, max(values.size - 1, 1)
        of_folds = tuning.best.y.reshape(len(parts.train), signs.shape[1], -1)
        self._kept = kept | {"log_cost": float(log_cost[0]), "v": v, "planes": of_folds}
        return weights[given.counted]

    def _unfinished(self) -> str | None:
        """What to say of a tuning that has not ended as it should; None: nothing."""
        slope, scale = self.history_["slope"][-1], "scale the features (StandardScaler)."
        if not self._solved:
            return f"the model could not be fitted to rounding on all rows: {scale}"
        if slope <= self.tol:
            return None
        ended = f"with a slope of {slope:.2g} (tol={self.tol:g})"
        if self.history_["slope"].size > self.max_iter:
            return f"the tuning ended after max_iter={self.max_iter} iterations {ended}: raise max_iter, or {scale}"
        ended += " where no step lowered the validation loss any more, as at a kink"
        return f"the tuning ended {ended}: raise tol, or {scale}"

    @in_own_configuration
    def _certified(self) -> Certificate:
        return certificate_in(Float64Problem.of(*self.stated_, FRESH_SAMPLES, 0), hand=LinearByHand(self._kept))

    def _mapped(self, rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n D"]:
        """The features that the linear model sees."""
        raise NotImplementedError

    def _scores(self, X: ArrayLike) -> Float[np.ndarray, "n k"]:
        return self._mapped(self._features(X)) @ self.coef_.T + self.intercept_

    def decision_function(self, X: ArrayLike) -> Float[np.ndarray, "..."]:
        """z'w + b per row and class against the rest; of two classes, one number per row."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The labels: of more than two classes, those with the highest scores."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else np.argmax(scores, axis=1)]


def _rows(features: Float[np.ndarray, "folds n D"]) -> tuple[np.ndarray, np.ndarray | None]:
    """The features with a one each, for the offset; where there are more of them than rows, as few, and the map back.

    Minimisers of a norm and of losses of a_i'u lie in the span of the rows, and so do all of their derivatives.
    """
    rows = np.concatenate([features, np.ones((*features.shape[:2], 1))], axis=2)
    if len(rows) > 1 or rows.shape[2] <= rows.shape[1]:
        return rows, None
    left, sizes, right = linalg.svd(rows[0], full_matrices=False)
    good = sizes > SAME * sizes[0]
    return (left[:, good] * sizes[good])[None], right[good].T


def _spread(rows: Float[np.ndarray, "folds n D"], share: Float[np.ndarray, " n"]) -> float:
    """The mean square of what rows differ from their mean, and of rounding in it at least."""
    with np.errstate(over="ignore", invalid="ignore"):
        whole = float(np.mean([share @ np.sum(one**2, axis=1) for one in rows]))
        spread = float(np.mean([share @ np.sum((one - share @ one) ** 2, axis=1) for one in rows]))
    if not np.isfinite(whole):
        raise InputError("X: the squares of its entries overflow; scale the features (StandardScaler).")
    return max(spread, SAME * whole)
