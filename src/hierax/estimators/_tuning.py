"""Cost and weights of linear classifiers: L-BFGS-B on F(x, y*(x)), with y* followed by the engine's Newton method.

A scan over the cost at equal weights gives the start. A row that counts twice is as two rows: the search measures its
entry of x by the root of its sample weight.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy import linalg, optimize

from hierax._auto.constants import RUN_OFF
from hierax._base.constants import FRESH_SAMPLES
from hierax._base.errors import InputError
from hierax._compile.configuration import in_own_configuration, one_blas_thread
from hierax._engine.float64_problem import Float64Problem
from hierax._judge.certificate import Certificate
from hierax._judge.certifying import certificate_in
from hierax._lower.active_set import SOLVED, Found, Level, Tracker
from hierax.estimators._base import Given, TunedClassifier
from hierax.estimators._linear import ROUNDING, Kept, LinearByHand, Scale, Stated, Weighing, stated_linear
from hierax.estimators._parts import Parts

MAX_STARTS, NEARBY_GRADIENTS = 4, 30  # starts of L-BFGS-B, each but the first beyond a kink; gradients near one
MAX_HALVINGS = 6  # of the way from models that are known to those of another x


class Models:
    """The models of all folds as x moves, each time from the last ones.

    Attributes:
        last: the last x, and all planes there.
    """

    def __init__(self, kept: Kept) -> None:
        self.hand = LinearByHand(kept, slack=False)
        weighing, count = self.hand.weighing, int(kept["train"].any(axis=0).sum())
        nothing = weighing.log_costs[0] + np.log(np.finfo(float).eps)  # a cost at which all models are zero
        self.last = np.append(nothing, np.full(count, weighing.start)), np.zeros(self.hand.ny)
        self._tracker, self._solved = Tracker(), SOLVED * weighing.unit**0.5

    def at(self, x: np.ndarray, halvings: int = MAX_HALVINGS) -> Found | None:
        """The models at x; where they are too far from the last ones, by way of those halfway."""
        slopes, matrices = functools.partial(self.hand.slopes, x), functools.partial(self.hand.matrices, x)
        level = Level(np.zeros(0, bool), slopes, matrices, landed=lambda y: y, solved=self._solved)
        with np.errstate(over="ignore", invalid="ignore"):
            found = self._tracker.solve(level, self.last[1], np.zeros(0))
        if found is None and halvings and self.at(0.5 * (self.last[0] + x), halvings - 1):
            found = self.at(x, halvings - 1)
        if found is not None:
            self.last = x, found.y
        return found


class Search:
    """The hyper-objective as a function of z = (log cost, entries of the rows in their units), and its slope."""

    def __init__(self, kept: Kept) -> None:
        self.models, weighing, tuned = Models(kept), Weighing(*kept["weighing"]), kept["train"].any(axis=0)
        self.units = np.append(1.0, np.sqrt(kept["counts"][tuned] / np.mean(kept["counts"])))
        self.costs, ones = weighing.log_costs, np.ones(tuned.sum())
        self.low, self.start, self.high = (
            np.append(cost, v * ones) * self.units
            for cost, v in zip(self.costs[[0, 0, -1]], (weighing.box[0], weighing.start, weighing.box[1]), strict=True)
        )
        self._last: tuple[np.ndarray, float, np.ndarray] | None = None

    def at(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        """The value and its gradient; a value that is too large where the models were not found."""
        if self._last is None or not np.array_equal(self._last[0], z):
            self._last = z.copy(), *self._evaluated(z / self.units)
        return self._last[1:]

    def _evaluated(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        found, hand = self.models.at(x), self.models.hand
        if found is None:
            return RUN_OFF, np.zeros_like(x)
        value, in_x, in_y = hand.upper(x, found.y)
        adjoint, _ = found.system.solve(in_y, found.mu)
        return value, (in_x - hand.pulled(x, found.y, found.mu, adjoint[None])[0]) / self.units

    def record(self, z: np.ndarray) -> tuple[float, float, float]:
        """The value, the norm of the projected gradient, and the logarithm of the cost."""
        value, gradient = self.at(z)
        return value, self.left_of(z, gradient), z[0]

    def left_of(self, z: np.ndarray, gradient: np.ndarray) -> float:
        """The norm of what bounds leave of a gradient."""
        return float(np.linalg.norm(z - np.clip(z - gradient, self.low, self.high)))


class Tuned(NamedTuple):
    """How a tuning ended: x, the models of the folds, and (value, slope, log cost) at every iteration."""

    x: Float[np.ndarray, " n"]
    planes: Float[np.ndarray, "folds k d"]
    records: list[tuple[float, float, float]]


def tune(kept: Kept, max_iter: int, tol: float) -> Tuned:
    """The best cost and weights that a local search from the best cost of a scan finds."""
    search = Search(kept)
    scanned = [np.append(cost, search.start[1:]) for cost in search.costs]
    values = [(search.at(one)[0], *search.models.last) for one in scanned]
    best = int(np.argmin([value for value, *_ in values]))
    z, search.models.last = scanned[best], values[best][1:]
    records = [search.record(z)]

    def note(intermediate_result: optimize.OptimizeResult) -> None:
        records.append(search.record(np.asarray(intermediate_result.x)))
        if records[-1][1] <= tol:
            raise StopIteration

    for _ in range(MAX_STARTS):
        left = max_iter + 1 - len(records)
        if records[-1][1] <= tol or not left:
            break
        z = optimize.minimize(
            search.at,
            z,
            jac=True,
            method="L-BFGS-B",
            bounds=optimize.Bounds(search.low, search.high),
            callback=note,
            options={"maxiter": left, "maxfun": 4 * left, "ftol": min(ROUNDING, tol**2), "gtol": 0.0, "maxls": 30},
        ).x
        records[-1] = search.record(z)
        if records[-1][1] <= tol or len(records) > max_iter:
            break
        slope, z = _over_a_kink(search, z, tol)
        records[-1] = records[-1][0], slope, records[-1][2]
        if search.at(z)[0] < records[-1][0]:
            records.append((search.at(z)[0], slope, z[0]))
    search.at(z)
    shape = len(kept["train"]), kept["signs"].shape[1], -1
    return Tuned(z / search.units, search.models.last[1].reshape(shape), records)


def _over_a_kink(search: Search, z: np.ndarray, tol: float) -> tuple[float, np.ndarray]:
    """The slope of a function with kinks, and a lower point where it is not small (else the same one).

    The slope is the shortest convex combination of the gradients at points nearby, as all pieces that meet in a kink
    count there (gradient sampling: Burke, Lewis, Overton, SIAM J. Optim. 15, 2005).
    """
    rng, (value, shortest, _), gradients = np.random.default_rng(0), search.record(z), [search.at(z)[1]]
    for radius in (10 * tol, tol, 0.1 * tol):
        nearby = np.clip(z + radius * rng.uniform(-1, 1, (NEARBY_GRADIENTS, z.size)), search.low, search.high)
        direction = _shortest([*gradients, *(search.at(one)[1] for one in nearby)], z <= search.low, z >= search.high)
        length = search.left_of(z, direction)
        shortest = min(shortest, length)
        if length <= tol:
            break
        for t in 0.5 ** np.arange(12):
            there = np.clip(z - t * direction, search.low, search.high)
            if search.at(there)[0] < value - 1e-4 * t * length**2:
                return shortest, there
    return shortest, z


def _shortest(gradients: list[np.ndarray], at_low: np.ndarray, at_high: np.ndarray) -> np.ndarray:
    """The shortest convex combination, of what bounds leave of them."""
    left = np.where(at_low, np.minimum(gradients, 0.0), gradients)
    left = np.where(at_high, np.maximum(left, 0.0), left)
    much = 1e3 * (float(np.max(np.abs(left))) or 1.0)  # makes the weights add up to one
    weights, _ = optimize.nnls(np.vstack([left.T, np.full(len(left), much)]), np.append(np.zeros(left.shape[1]), much))
    return (weights / weights.sum()) @ np.array(gradients)


class TunedLinear(TunedClassifier):
    """A linear classifier on features, with a cost and a weight per sample that are tuned."""

    def _tuned_linear(
        self,
        given: Given,
        parts: Parts,
        losses: tuple[str, str],
        scale: Scale,
        bound: float,
        above: int,
        features: Float[np.ndarray, "folds n D"],
    ) -> Float[np.ndarray, " n"]:
        """Tune cost and weights, then fit on all rows: those that judged count with a weight of one.

        Models minimise the first of `losses`, and are judged by the second. The last of `features` is for the fit on
        all rows; those before it are for the folds (none: the same for all). Returns the weights.
        """
        rows, back = _rows(features)
        counts, signs = given.counts, _signs(given.codes, len(self.classes_))
        unit = 1.0 / _spread(rows, counts / counts.sum())
        weighing = Weighing(scale, float(bound), float(self.weight_penalty), unit, above)
        judged = parts.validation * counts
        kept: Kept = {
            "loss": losses[0],
            "judge": losses[1],
            "rows": rows[:-1] if len(rows) > 1 else rows,
            "signs": signs,
            "train": parts.train,
            "shares": judged / (judged.sum() * signs.shape[1]),
            "counts": counts,
            "judged": float(judged.sum()),
            "weighing": list(weighing),
        }
        with one_blas_thread:
            tuned = tune(kept, self.max_iter, self.tol)
            v = np.full(counts.size, weighing.start)
            v[parts.train.any(axis=0)] = tuned.x[1:]
            everyone = np.ones((1, counts.size), bool)
            models = Models(kept | {"rows": rows[-1:], "train": everyone, "shares": 0.0 * everyone})
            self._solved = models.at(np.append(tuned.x[0], v)) is not None
        planes = models.last[1].reshape(signs.shape[1], -1)
        planes = planes if back is None else planes @ back.T
        self.coef_, self.intercept_ = planes[:, :-1], planes[:, -1]
        weights = np.full(given.counted.shape, np.nan)
        weights[given.counted] = weighing.weights(v)
        values, slopes, logs = (np.array(column) for column in zip(*tuned.records, strict=True))
        self.hyperparams_: dict[str, Any] = {"C": float(np.exp(tuned.x[0])), "weights": weights}
        self.history_, self.n_iter_ = {"upper": values, "slope": slopes, "C": np.exp(logs)}, max(values.size - 1, 1)
        self._kept = kept | {"log_cost": float(tuned.x[0]), "v": v, "planes": tuned.planes}
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
        where = "where no step lowered the validation loss any more, as at a kink"
        return f"the tuning ended {ended} {where}: raise tol, or {scale}"

    def _stated(self) -> Stated:
        return stated_linear(self._kept)

    @in_own_configuration
    def _certified(self) -> Certificate:
        setting = Float64Problem.of(*self.stated_, FRESH_SAMPLES, 0)
        return certificate_in(setting, hand=LinearByHand(self._kept))

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


def _signs(codes: Int[np.ndarray, " n"], classes: int) -> Float[np.ndarray, "n k"]:
    """Labels of -1 and +1, one column per class against the rest; of two classes, one column."""
    own = codes[:, None] == np.arange(classes)
    return np.where(own[:, 1:] if classes == 2 else own, 1.0, -1.0)


def _rows(features: Float[np.ndarray, "folds n D"]) -> tuple[np.ndarray, np.ndarray | None]:
    """The features with a one each, for the offset; where there are more of them than rows, as few, and the map back.

    Minimisers of a norm and of losses of a_i'u lie in the span of the rows, and so do all of their derivatives.
    """
    rows = np.concatenate([features, np.ones((*features.shape[:2], 1))], axis=2)
    if len(rows) > 1 or rows.shape[2] <= rows.shape[1]:
        return rows, None
    left, sizes, right = linalg.svd(rows[0], full_matrices=False)
    good = sizes > ROUNDING * sizes[0]
    return (left[:, good] * sizes[good])[None], right[good].T


def _spread(rows: Float[np.ndarray, "folds n D"], share: Float[np.ndarray, " n"]) -> float:
    """The mean square of what rows differ from their mean, and of rounding in it at least."""
    with np.errstate(over="ignore", invalid="ignore"):
        whole = float(np.mean([share @ np.sum(one**2, axis=1) for one in rows]))
        spread = float(np.mean([share @ np.sum((one - share @ one) ** 2, axis=1) for one in rows]))
    if not np.isfinite(whole):
        raise InputError("X: the squares of its entries overflow; scale the features (StandardScaler).")
    return max(spread, ROUNDING * whole)
