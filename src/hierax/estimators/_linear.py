"""What `BilevelSVC` and `HyperCleaner` share: a linear model on features, with a cost and a weight per sample."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from hierax._base.errors import InputError
from hierax.estimators._base import Given
from hierax.estimators._features import shortened, with_one
from hierax.estimators._margins import LOSSES, Models, signs_of
from hierax.estimators._parts import Parts
from hierax.estimators._statement import Kept, kept_linear
from hierax.estimators._tuning import Scale, Tuned, Weighing, tune

NO_SPREAD_SHARE = 1e-12  # share of the mean square of rows below which their spread is none


class Fit(NamedTuple):
    """A tuned linear classifier: how the tuning ended, the planes (k, D + 1) fitted on all rows, and what is kept."""

    tuned: Tuned
    planes: Float[np.ndarray, "k D"]
    solved: bool
    kept: Kept
    weights: Float[np.ndarray, " n"]

    @property
    def cost(self) -> float:
        """The overall cost C."""
        return float(np.exp(self.tuned.log_cost))


def tuned_linear(
    given: Given,
    features: Float[np.ndarray, "folds n D"],
    parts: Parts,
    loss: str,
    judge: str,
    scale: Scale,
    classes: int,
    *,
    bound: float,
    penalty: float,
    above: int,
    max_iter: int,
    tol: float,
) -> Fit:
    """Tune cost and weights, then fit on all rows: those that judged count with a weight of one.

    Models minimise `loss`, and `judge` is the loss that they are judged by (names in LOSSES). The last of `features` is
    for that fit; those before it are for the folds (none: the same for all).
    """
    rows, back = _rows(features)
    weighing = Weighing(scale, bound, penalty, 1.0 / _spread(rows, given.counts / given.counts.sum()), above)
    of_folds = rows[:-1] if len(rows) > 1 else rows
    models = Models(of_folds, signs_of(given.codes, classes), given.counts, parts, LOSSES[loss], LOSSES[judge])
    tuned = tune(models, weighing, given.counts, max_iter, tol)
    weights = weighing.weights(tuned.v)
    planes, solved = models.whole(rows[-1], given.counts * np.exp(tuned.log_cost) * weights)
    kept = kept_linear(models, weighing, given.counts, tuned, loss, judge)
    return Fit(tuned, planes if back is None else planes @ back.T, solved, kept, weights)


def _rows(features: Float[np.ndarray, "folds n D"]) -> tuple[np.ndarray, np.ndarray | None]:
    """The features with a one each, shortened where there are more of them than rows, and the map back."""
    if len(features) > 1:
        return np.stack([with_one(one) for one in features]), None
    rows, back = shortened(with_one(features[0]))
    return rows[None], back


def _spread(rows: Float[np.ndarray, "folds n D"], share: Float[np.ndarray, " n"]) -> float:
    """The mean square of what rows differ from their mean, and of rounding in it at least."""
    with np.errstate(over="ignore", invalid="ignore"):
        whole = float(np.mean([share @ np.sum(one**2, axis=1) for one in rows]))
        spread = float(np.mean([share @ np.sum((one - share @ one) ** 2, axis=1) for one in rows]))
    if not np.isfinite(whole):
        raise InputError("X: the squares of its entries overflow; scale the features (StandardScaler).")
    return max(spread, NO_SPREAD_SHARE * whole)


def unfinished(fit: Fit, max_iter: int, tol: float) -> str | None:
    """What to say of a tuning that has not ended as it should; None: nothing."""
    tuned = fit.tuned
    if not fit.solved:
        return "the model could not be fitted to rounding on all rows: scale the features (StandardScaler)."
    if tuned.settled:
        return None
    if tuned.iterations >= max_iter:
        return (
            f"the tuning ended after max_iter={max_iter} iterations with a slope of {tuned.slope:.2g} "
            f"(tol={tol:g}): raise max_iter, or scale the features (StandardScaler)."
        )
    return (
        f"the tuning ended with a slope of {tuned.slope:.2g} (tol={tol:g}) where no step lowered the validation loss "
        "any more, as at a kink: raise tol, or scale the features (StandardScaler)."
    )


def spread_out(values: np.ndarray, where: np.ndarray, elsewhere: float) -> np.ndarray:
    """Values of the rows that count at their places among all rows."""
    found = np.full(where.shape, elsewhere)
    found[where] = values
    return found


def predicted(classes: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The classes with the highest scores; of two classes, by the sign of one score."""
    codes = (scores > 0).astype(int) if scores.ndim == 1 else np.argmax(scores, axis=1)
    return classes[codes]
