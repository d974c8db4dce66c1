"""`HyperCleaner`: a classifier for untrusted labels, which finds the rows that harm it on trusted ones."""

import dataclasses
import functools
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from scipy import special
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state

from hierax._base.errors import InputError
from hierax._base.settings import COUNT_GIVEN, NOT_NEGATIVE, one_of
from hierax._compile.configuration import one_blas_thread
from hierax._lower.linear import SAME
from hierax.estimators._base import Given, Parts, kept
from hierax.estimators._linear import COST_DECADES
from hierax.estimators._tuning import TunedLinear
from hierax.estimators.mlp import Networks, Training, drawn_batches, shares_of

EPOCHS, LEARNING_RATE = 60, 0.01  # of the hidden layer's training


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class HyperCleaner(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TunedLinear):
    r"""Logistic classifier for labels that are not trusted: weights in [0, 1] per row, tuned on trusted rows.

        min over C, a of   (sum over trusted rows of log(1 + exp(-l (z'w + b))) + weight_penalty sum((1 - a)^2)) / rows
        (w, b) = argmin of 1/2 ||(w, b)||^2 + C sum over the other rows of a_i log(1 + exp(-l_i (z_i'w + b)))

    with 0 <= a_i <= 1 and C within three decades of 1 / (spread of the features); one such model per class against the
    rest where there are more than two, all with the same C and a (the upper level is the mean over them). Rows whose
    weight falls below `threshold` are `suspects_`. Where nobody says which rows are trusted, every row is judged by
    folds that it is not in, by the loss 1 / (1 + exp(l (z'w + b))): labels flipped at random only shift its mean, so
    that noisy rows can judge. It rewards models that are sure of themselves, so C ends at 1 / (spread of the features)
    then. After the tuning the model is fitted once more, on all rows with the tuned weights (trusted rows count with
    weight one). Scale the features first (`StandardScaler`).

    As a filter: `filter(X, y)` returns the rows of the fit that are not suspect. As a transformer: `transform(X)` gives
    the scores of `decision_function`, one column per model.

    Args:
        model: "linear", or "mlp": z is then the hidden layer of a network (of every fold, its own) that is trained on
            the rows that do not judge, and again with the weights found; the bilevel problem is that of output layers.
        hidden: width of that layer.
        weight_penalty: price of weights below one: the larger, the fewer rows are suspect.
        threshold: weight below which a row is suspect.
        cv: who judges where `fit` is told of no trusted rows, as in scikit-learn: a number of folds, a splitter or
            pairs of row numbers. None: one held-out part, which judges many weights by few rows.
        validation_fraction: share of the rows, of every class, in that part.
        max_iter: iterations of the tuning: points that are each lower than those before.
        tol: norm of the slope at which it ends.
        random_state: of folds, of the held-out part and of the hidden layer.

    Attributes:
        classes_: the labels.
        weights_: one per row; one for rows that judged, NaN for rows of sample weight zero.
        suspects_: whether each row is suspect.
        coef_: w per class against the rest (one row for two classes).
        intercept_: b, likewise.
        hyperparams_: {"C": the cost, "weights": `weights_`}.
        history_: arrays by name: "upper" (the loss on trusted rows with the penalty), "slope" and "C", per iteration.
        n_iter_: iterations made (1 where none was needed).
        certificate_: `hierax.certify` of the tuned point, made when first asked for.
        stated_: the bilevel problem and the point.
        n_features_in_: number of features.
        feature_names_in_: their names, where X had any.

    Examples:
        >>> import numpy as np
        >>> from sklearn.datasets import make_blobs
        >>> from hierax.estimators import HyperCleaner
        >>> X, y = make_blobs(200, centers=[[-2, 0], [2, 0]], random_state=0)
        >>> noisy, trusted = y.copy(), np.arange(200) >= 150
        >>> noisy[:15] = 1 - noisy[:15]
        >>> cleaner = HyperCleaner().fit(X, noisy, trusted=trusted)
        >>> bool(cleaner.suspects_[:15].sum() > 9), int(cleaner.suspects_[15:].sum())
        (True, 0)

    References:
        Franceschi, Donini, Frasconi, Pontil: Forward and reverse gradient-based hyperparameter optimization, ICML
            2017 (data hyper-cleaning).
        docs/guides/estimators.md
    """

    model: str = "linear"
    hidden: int = 32
    threshold: float = 0.9

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, trusted: ArrayLike | None = None
    ) -> "HyperCleaner":
        """Tune and fit.

        Args:
            X: features, (n, d).
            y: labels, (n,).
            sample_weight: what each row counts, in both levels; None: one.
            trusted: which rows have labels that are right, (n,) of True and False: they judge, the others are weighed.
                `cv` and `validation_fraction` are not looked at then. None: they choose the rows that judge.

        Returns:
            The estimator.

        Raises:
            InputError: where a setting or the data make no sense.
        """
        rules = {"hidden": COUNT_GIVEN, "weight_penalty": NOT_NEGATIVE, "threshold": NOT_NEGATIVE}
        given = self._given(X, y, sample_weight, model=one_of("linear", "mlp"), **rules)
        rng = check_random_state(self.random_state)
        parts = self._parts(given, rng) if trusted is None else self._trusted(trusted, given)
        self._tune(given, parts, "sigmoid" if trusted is None else "logistic", rng)
        self.weights_: np.ndarray = self.hyperparams_["weights"]
        self.suspects_ = self.weights_ < self.threshold
        self._n_features_out = self.coef_.shape[0]
        self._warn(self._unfinished())
        return self

    def _tune(self, given: Given, parts: Parts, judge: str, rng: np.random.RandomState) -> None:
        """The tuning; with a network, of its output layer, twice."""
        above = 0 if judge == "sigmoid" else COST_DECADES
        tuned = functools.partial(self._tuned_linear, given, parts, ("logistic", judge), None, above)
        self._hidden_layer = None
        if self.model == "linear":
            tuned(given.rows[None])
            return
        network = Networks.drawn(rng, given.rows.shape[1], self.hidden, len(self.classes_))
        network = network.taken(np.zeros(len(parts.train) + 1, int))  # one per fold, and at last one on all rows
        masks = np.concatenate([parts.train, np.ones((1, given.codes.size), bool)])
        batches, weights = drawn_batches(rng, given.codes.size, EPOCHS), np.ones(given.codes.size)
        for _ in range(2):  # the second time with the weights that the first has led to, of which some always count
            shares = shares_of(given.counts * np.maximum(weights, SAME), masks)
            training = Training(network, given, batches, LEARNING_RATE)
            with one_blas_thread:
                layers = training.run(range(training.steps), shares, None)
            weights = tuned(layers.hidden(given.rows))
        self._hidden_layer = {"weight": layers.weight1[-1], "bias": layers.bias1[-1]}

    def _mapped(self, rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n D"]:
        if self._hidden_layer is None:
            return rows
        return np.tanh(rows @ self._hidden_layer["weight"] + self._hidden_layer["bias"])

    def _trusted(self, trusted: ArrayLike, given: Given) -> Parts:
        """The folds where it is known which rows are trusted."""
        mask = np.asarray(trusted)
        if mask.dtype != bool or mask.shape != given.counted.shape:
            raise InputError(
                f"trusted: needs True or False per row, shape {given.counted.shape}, got {mask.dtype} of shape "
                f"{mask.shape}."
            )
        if mask.all() or not mask.any():
            raise InputError("trusted: needs rows that are trusted and rows that are not.")
        return kept(Parts(~mask[None], mask[None]), given.counted)

    def predict_proba(self, X: ArrayLike) -> Float[np.ndarray, "n classes"]:
        """Probabilities of the classes; of more than two, those of each against the rest, scaled to add up to one."""
        likely = special.expit(self._scores(X))
        if likely.shape[1] == 1:
            return np.hstack([1.0 - likely, likely])
        return likely / likely.sum(axis=1, keepdims=True)

    def transform(self, X: ArrayLike) -> Float[np.ndarray, "n k"]:
        """The scores of `decision_function`, as columns."""
        return self._scores(X)

    def filter(self, X: ArrayLike, y: ArrayLike) -> tuple[Any, Any]:
        """The rows of the fit that are not suspect.

        Args:
            X: the features that `fit` was given, an array or a data frame.
            y: the labels that `fit` was given.

        Returns:
            X and y without the suspects: data frames and arrays as they were, lists as arrays.

        Raises:
            InputError: where there are not as many rows as in the fit.
        """
        self._features(X)
        return _rows(X, ~self.suspects_, "X"), _rows(y, ~self.suspects_, "y")


def _rows(part: Any, keep: Bool[np.ndarray, " n"], name: str) -> Any:
    found = part if hasattr(part, "shape") else np.asarray(part)
    if found.shape[0] != keep.size:
        raise InputError(f"{name}: has {found.shape[0]} rows, but the fit had {keep.size}; weights belong to its rows.")
    return found[keep]
