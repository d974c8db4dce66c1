"""What the estimators share: checks of what `fit` is given, folds, the certificate, the warning at the end.

`Parts` says which rows the model is fitted on, and which ones judge the hyper-parameters: one pair of both for a
held-out part, several for cross-validation, where every fold is a lower level of its own and all share the
hyper-parameters.
"""

import dataclasses
import warnings
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import BaseCrossValidator, BaseShuffleSplit, check_cv
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from hierax._base.errors import InputError
from hierax._base.settings import COUNT_GIVEN, NOT_NEGATIVE, Rule, check_settings, in_interval
from hierax._judge.certificate import Certificate
from hierax.estimators._linear import Kept, Stated

Splits: TypeAlias = int | BaseCrossValidator | BaseShuffleSplit | Iterable[tuple[ArrayLike, ArrayLike]] | None
"""A number of folds, a splitter, pairs of row numbers, or None: a held-out share."""


RULES = {
    "max_iter": COUNT_GIVEN,
    "tol": NOT_NEGATIVE,
    "validation_fraction": in_interval(lambda share: 0 < share < 1, "(0, 1)"),
}


class Parts(NamedTuple):
    """The rows of every fold (leading axis): those of the lower level, and those of the upper one."""

    train: Bool[np.ndarray, "folds n"]
    validation: Bool[np.ndarray, "folds n"]


class Given(NamedTuple):
    """What `fit` was given, checked.

    Attributes:
        rows: features of the rows that count.
        codes: their classes as 0, 1, ...
        counts: their sample weights.
        counted: which of all rows they are.
    """

    rows: Float[np.ndarray, "n d"]
    codes: Int[np.ndarray, " n"]
    counts: Float[np.ndarray, " n"]
    counted: Bool[np.ndarray, " all"]


class TunedClassifier(ClassifierMixin, BaseEstimator):
    """A classifier whose hyper-parameters are the upper level of a bilevel problem."""

    _certified: Callable[[], Certificate]
    _statement: Callable[[Kept], Stated]
    """The problem and the point, from what `fit` has kept."""

    def __dir__(self) -> list[str]:
        # scikit-learn's `dir`, and so its display in notebooks, reads every attribute; certificates take seconds.
        made = "_certificate" in self.__dict__
        names = [name for name in object.__dir__(self) if made or name not in ("certificate_", "stated_")]
        return [name for name in names if hasattr(self, name)]

    @property
    def stated_(self) -> Stated:
        """The bilevel problem that `fit` has worked on, as a `hierax.Problem`, with the point (x, y) that it found."""
        check_is_fitted(self)
        return self._statement(self._kept)

    @property
    def certificate_(self) -> Certificate:
        """The certificate of the tuned point, at the estimator's `tol`: made when it is first asked for, then kept."""
        check_is_fitted(self)
        if "_certificate" not in self.__dict__:
            self._certificate = dataclasses.replace(self._certified(), own_tol=self.tol)
        return self._certificate

    def _given(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, **rules: Rule) -> Given:
        """What `fit` was given; sets `classes_` and forgets what an earlier `fit` has left. `rules`: of settings."""
        check_settings(self, {**RULES, **rules})
        self.__dict__.pop("_certificate", None)
        features, labels = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=1)
        try:
            check_classification_targets(labels)
        except TypeError:
            kinds = sorted({type(label).__name__ for label in labels.tolist()})
            raise InputError(f"y: has labels of different kinds ({', '.join(kinds)}); give all of one kind.") from None
        counts = _sample_weight(sample_weight, labels.shape[0])
        counted = counts > 0
        self.classes_ = np.unique(labels[counted])
        if self.classes_.size < 2:
            raise InputError(
                f"y: {type(self).__name__} needs two classes at least, but the rows that count have 1 class, "
                f"{self.classes_.tolist()[0]!r}."
            )
        return Given(features[counted], np.searchsorted(self.classes_, labels[counted]), counts[counted], counted)

    def _parts(self, given: Given, rng: np.random.RandomState) -> Parts:
        """The folds of the rows that count."""
        if self.cv is None:
            return held_out(given.codes, self.validation_fraction, rng)
        if isinstance(self.cv, int | np.integer):
            return stratified(given.codes, self.cv, rng)
        count, features = given.counted.size, given.rows.shape[1]  # splitters number all rows
        everyone, codes = np.zeros((count, features)), np.zeros(count, int)
        everyone[given.counted], codes[given.counted] = given.rows, given.codes
        return kept(folds(everyone, codes, self.cv), given.counted)

    def _features(self, X: ArrayLike) -> Float[np.ndarray, "n d"]:
        """Features to predict for."""
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)

    def _warn(self, text: str | None) -> None:
        """Say that the tuning has not ended as it should; None: it has."""
        if text is not None:
            more = "The certificate of the point, certificate_, tells how far it can be trusted."
            warnings.warn(f"{type(self).__name__}: {text} {more}", ConvergenceWarning, stacklevel=3)


def _sample_weight(sample_weight: ArrayLike | None, n: int) -> Float[np.ndarray, " n"]:
    if sample_weight is None:
        return np.ones(n)
    try:
        counts = np.asarray(sample_weight, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"sample_weight: needs one number per row, got {sample_weight!r:.60}.") from None
    if counts.shape != (n,):
        raise InputError(f"sample_weight: needs one number per row, shape ({n},), got {counts.shape}.")
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise InputError("sample_weight: needs finite numbers >= 0.")
    if not counts.any():
        raise InputError("sample_weight: every weight is zero, so no row counts.")
    return counts


# -- folds ----------------------------------------------------------------------------------------------------------


def held_out(codes: Int[np.ndarray, " n"], fraction: float, rng: np.random.RandomState) -> Parts:
    """A share of every class, drawn at random; at least one row in all, and never the last row of a class."""
    order = rng.permutation(codes.size)
    chosen = np.zeros(codes.size, bool)
    for code in np.unique(codes):
        rows = order[codes[order] == code]
        chosen[rows[: min(round(fraction * rows.size), rows.size - 1)]] = True
    if not chosen.any():  # every class has too few rows for a share: one row of the largest class
        chosen[order[codes[order] == np.bincount(codes).argmax()][0]] = True
    return Parts(~chosen[None], chosen[None])


def folds(features: Float[np.ndarray, "n d"], codes: Int[np.ndarray, " n"], cv: Splits) -> Parts:
    """Those of a splitter of scikit-learn, or of pairs of row numbers."""
    pairs: Iterable[tuple[np.ndarray, np.ndarray]] = check_cv(cv, codes, classifier=True).split(features, codes)
    masks = np.array([[_mask(rows, codes.size, cv) for rows in pair] for pair in pairs])
    parts = Parts(masks[:, 0], masks[:, 1])
    if not (parts.train.any(axis=1) & parts.validation.any(axis=1)).all():
        raise InputError(f"cv={cv!r}: a fold has no rows to fit the model on, or none to judge it.")
    return parts


def stratified(codes: Int[np.ndarray, " n"], count: int | np.integer, rng: np.random.RandomState) -> Parts:
    """Folds into which the rows of every class are dealt in turn: of any size, however few rows a class has."""
    if isinstance(count, bool) or count < 2:
        raise InputError(f"cv={count!r}: needs 2 folds at least, a splitter, pairs of row numbers, or None.")
    order = rng.permutation(codes.size)
    order = order[np.argsort(codes[order], kind="stable")]
    number = np.empty(codes.size, int)
    number[order] = np.arange(codes.size) % min(int(count), codes.size)
    judged = number == np.arange(min(int(count), codes.size))[:, None]
    return Parts(~judged, judged)


def kept(parts: Parts, rows: Bool[np.ndarray, " n"]) -> Parts:
    """The same folds of some of the rows; folds that lose all rows of a part go."""
    train, validation = parts.train[:, rows], parts.validation[:, rows]
    whole = train.any(axis=1) & validation.any(axis=1)
    if not whole.any():
        raise InputError("sample_weight: is zero for all rows that the model is fitted on, or for all that judge it.")
    return Parts(train[whole], validation[whole])


def _mask(rows: np.ndarray, n: int, cv: Splits) -> Bool[np.ndarray, " n"]:
    found = np.zeros(n, bool)
    try:
        found[rows] = True
    except IndexError:
        raise InputError(f"cv={cv!r}: names rows that X does not have; it has rows 0 to {n - 1}.") from None
    return found
