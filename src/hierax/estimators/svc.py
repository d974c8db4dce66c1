"""`BilevelSVC`: a support vector machine that tunes its cost, and the weight of every sample, on validation rows."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from sklearn.kernel_approximation import Nystroem
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils import check_random_state

from hierax._base.settings import COUNT_GIVEN, NOT_NEGATIVE, POSITIVE_GIVEN, Rule, one_of
from hierax.estimators._linear import COST_DECADES
from hierax.estimators._tuning import TunedLinear

RULES = {
    "kernel": one_of("linear", "quadratic", "rbf"),
    "gamma": Rule(lambda value: POSITIVE_GIVEN.fits(value) or value == "scale", 'needs "scale" or a number > 0'),
    "landmarks": COUNT_GIVEN,
    "weight_bound": NOT_NEGATIVE,
    "weight_penalty": NOT_NEGATIVE,
}


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class BilevelSVC(TunedLinear):
    r"""Support vector machine with squared hinge loss whose cost and sample weights are tuned on validation rows.

        min over C, v of   (sum over validation rows of loss(u) + weight_penalty sum(v^2)) / (validation rows)
        u = argmin of      1/2 ||u||^2 + C sum over training rows of exp(v_i) max(0, 1 - l_i (z_i'w + b))^2

    with u = (w, b), -weight_bound <= v_i <= weight_bound and C within three decades of 1 / (spread of the features);
    one such machine per class against the rest where there are more than two, all with the same C and v (the upper
    level is the mean over them). With equal weights it is scikit-learn's `LinearSVC`, whose offset is penalised too.
    After the tuning the machine is fitted once more, on all rows with the tuned weights (rows that judged count with
    weight one). Scale the features first (`StandardScaler`).

    Args:
        kernel: "linear", "quadratic" (features and their products) or "rbf" (features of landmarks; exact where there
            are no more rows than `landmarks`).
        gamma: of the RBF kernel exp(-gamma ||z - z'||^2): "scale" (1 / (d var)), or a number.
        landmarks: of the RBF kernel: how many rows, drawn at random, span its features.
        weight_bound: bound of |v_i|; 0: equal weights, so that C alone is tuned.
        weight_penalty: price of unequal weights: without one they fit the noise of the validation rows.
        cv: who judges, as in scikit-learn: a number of folds, a splitter or pairs of row numbers. Each fold is fitted
            on its own, and all share C and v. None: one held-out part, which judges many weights by few rows.
        validation_fraction: share of the rows, of every class, in that part.
        max_iter: iterations of the tuning: points that are each lower than those before.
        tol: norm of the slope at which it ends.
        random_state: of folds, of the held-out part and of landmarks.

    Attributes:
        classes_: the labels.
        coef_: w per class against the rest (one row for two classes), in the features of the kernel.
        intercept_: b, likewise.
        hyperparams_: {"C": the cost, "weights": exp(v_i) per row}; NaN for rows of sample weight zero.
        history_: arrays by name: "upper" (the validation loss with the penalty), "slope" and "C", per iteration.
        n_iter_: iterations made (1 where none was needed).
        certificate_: `hierax.certify` of the tuned point, made when first asked for.
        stated_: the bilevel problem and the point.
        n_features_in_: number of features.
        feature_names_in_: their names, where X had any.

    Examples:
        >>> from sklearn.datasets import load_iris
        >>> from hierax.estimators import BilevelSVC
        >>> X, y = load_iris(return_X_y=True)
        >>> svc = BilevelSVC(random_state=0).fit(X, y)
        >>> bool(svc.score(X, y) > 0.9), sorted(svc.hyperparams_)
        (True, ['C', 'weights'])

    References:
        Bennett, Hu, Ji, Kunapuli, Pang: Model selection via bilevel optimization, IJCNN 2006.
        docs/guides/estimators.md
    """

    kernel: str = "linear"
    gamma: float | str = "scale"
    landmarks: int = 100
    weight_bound: float = 3.0

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> "BilevelSVC":
        """Tune and fit.

        Args:
            X: features, (n, d).
            y: labels, (n,).
            sample_weight: what each row counts, in both levels; None: one.

        Returns:
            The estimator.

        Raises:
            InputError: where a setting or the data make no sense.
        """
        given = self._given(X, y, sample_weight, **RULES)
        rng = check_random_state(self.random_state)
        parts = self._parts(given, rng)
        self._map = self._features_of_kernel(given.rows, rng)
        losses = "squared_hinge", "squared_hinge"
        self._tuned_linear(given, parts, losses, float(self.weight_bound), COST_DECADES, self._mapped(given.rows)[None])
        self._warn(self._unfinished())
        return self

    def _features_of_kernel(self, rows: Float[np.ndarray, "n d"], rng: np.random.RandomState) -> Any:
        """What maps rows to the kernel's features, fitted; None: they are the features.

        With as many landmarks as rows the features are exact: their inner products are the kernel matrix.
        """
        if self.kernel == "linear":
            return None
        if self.kernel == "quadratic":
            return PolynomialFeatures(2, include_bias=False).fit(rows)
        spread = float(rows.var()) * rows.shape[1]
        width = (1.0 / spread if spread > 0 else 1.0) if self.gamma == "scale" else float(self.gamma)
        return Nystroem(gamma=width, n_components=min(self.landmarks, len(rows)), random_state=rng).fit(rows)

    def _mapped(self, rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n D"]:
        return rows if self._map is None else self._map.transform(rows)
