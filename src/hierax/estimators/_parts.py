"""Which rows the model is fitted on, and which ones judge the hyper-parameters.

A `Parts` has one pair of both per fold: a single one for a held-out part, several for cross-validation, where every
fold is a lower level of its own and all of them share the hyper-parameters.
"""

from collections.abc import Iterable
from numbers import Real
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from sklearn.model_selection import BaseCrossValidator, BaseShuffleSplit, check_cv

from hierax._base.errors import InputError

Splits: TypeAlias = int | BaseCrossValidator | BaseShuffleSplit | Iterable[tuple[ArrayLike, ArrayLike]] | None
"""A number of folds, a splitter, pairs of row numbers, or None: a held-out share."""


class Parts(NamedTuple):
    """The rows of every fold (leading axis): those of the lower level, and those of the upper one."""

    train: Bool[np.ndarray, "folds n"]
    validation: Bool[np.ndarray, "folds n"]

    @property
    def tuned(self) -> Bool[np.ndarray, " n"]:
        """Rows that some fold is fitted on: they have weights to tune."""
        return np.any(self.train, axis=0)


def held_out(codes: Int[np.ndarray, " n"], fraction: float, rng: np.random.RandomState) -> Parts:
    """A share of every class, drawn at random; at least one row in all, and never the last row of a class."""
    if not isinstance(fraction, Real) or not 0 < fraction < 1:
        raise InputError(f"validation_fraction={fraction!r}: needs a number between 0 and 1.")
    if codes.size < 2:
        raise InputError("X: has 1 sample; the model is fitted on some rows and tuned on others, so 2 are needed.")
    order = rng.permutation(codes.size)
    chosen = np.zeros(codes.size, bool)
    for code in np.unique(codes):
        rows = order[codes[order] == code]
        chosen[rows[: min(round(fraction * rows.size), rows.size - 1)]] = True
    if not chosen.any():  # every class has too few rows for a share: one row of the largest class
        chosen[order[codes[order] == np.bincount(codes).argmax()][0]] = True
    return Parts(~chosen[None], chosen[None])


def folds(
    features: Float[np.ndarray, "n d"], codes: Int[np.ndarray, " n"], cv: Splits, rng: np.random.RandomState
) -> Parts:
    """Those of scikit-learn's `cv`: a number of stratified folds, a splitter, or pairs of row numbers."""
    if isinstance(cv, int | np.integer):
        return _stratified(codes, cv, rng)
    pairs: Iterable[tuple[np.ndarray, np.ndarray]] = check_cv(cv, codes, classifier=True).split(features, codes)
    train, validation = [], []
    for rows, others in pairs:
        train.append(_mask(rows, codes.size, cv))
        validation.append(_mask(others, codes.size, cv))
    parts = Parts(np.array(train), np.array(validation))
    if not (parts.train.any(axis=1) & parts.validation.any(axis=1)).all():
        raise InputError(f"cv={cv!r}: a fold has no rows to fit the model on, or none to judge it.")
    return parts


def _stratified(codes: Int[np.ndarray, " n"], count: int | np.integer, rng: np.random.RandomState) -> Parts:
    """Folds into which the rows of every class are dealt in turn: of any size, however few rows a class has."""
    if isinstance(count, bool) or count < 2:
        raise InputError(f"cv={count!r}: needs 2 folds at least, a splitter, pairs of row numbers, or None.")
    if codes.size < 2:
        raise InputError("X: has 1 sample; the model is fitted on some rows and tuned on others, so 2 are needed.")
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
