"""`load`: a data set by name, as plain NumPy arrays.

Where a file is found is the business of `files`, what a data set is and whose is that of `sources`; here its bytes
become features and labels.
"""

import hashlib
import io
import os
import warnings
from typing import NamedTuple

import numpy as np

from hierax import HieraxWarning, InputError, MissingExtra
from hierax_lab.datasets import files
from hierax_lab.datasets.prepare import scale
from hierax_lab.datasets.sources import SOURCES, Source

PENDIGITS_TRAIN = 7494  # rows of UCI's pendigits.tra
SCALED = ("diabetes", "fourclass")  # LIBSVM publishes both in [-1, 1]


class Dataset(NamedTuple):
    """A data set in memory.

    Attributes:
        name: its name in the table.
        features: float64, one row per sample.
        labels: -1.0 and +1.0 (float64) for two classes, 0 to 9 (int64) for digits.
        source: where the values come from.
        licence: what is stated about using them.
        positive: what +1 stands for; None for more than two classes.
        train: the first `train` rows are the training set of the data set's authors, the others their test set; None
            where they made no such split.

    Examples:
        >>> from hierax_lab.datasets import load
        >>> data = load("pendigits")
        >>> data.name, sorted(set(data.labels.tolist()))
        ('pendigits', [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """

    name: str
    features: np.ndarray
    labels: np.ndarray
    source: str
    licence: str
    positive: str | None = None
    train: int | None = None


def load(
    name: str, *, scaled: bool = False, data_dir: str | os.PathLike[str] | None = None, download: bool = False
) -> Dataset:
    """Load a data set: "diabetes", "fourclass", "digits", "pendigits" or "breast-cancer".

    The bundled one (pendigits) is the same everywhere, whatever `data_dir` holds.

    Args:
        name: a name of `SOURCES`.
        scaled: diabetes in LIBSVM's form `diabetes_scale`: every column mapped to [-1, 1], and +1 = tested *negative*,
            where the unscaled form has +1 = tested positive. LIBSVM's own file agrees to 1e-6, being rounded.
            fourclass is always in this form; the others have none.
        data_dir: folder with `diabetes.csv` or `fourclass_scale`; unset, the environment variable HIERAX_DATA, then
            earlier downloads.
        download: fetch `fourclass_scale` from its public home if it is nowhere here; the hash is checked.
            `diabetes.csv` is never downloaded, because it was withdrawn.

    Raises:
        MissingData: a file is missing or is not the one of the table (an `InputError`).
        MissingExtra: scikit-learn or pooch is needed and not installed.

    Examples:
        >>> from hierax_lab.datasets import load
        >>> load("pendigits").features.shape
        (10992, 16)
    """
    if not isinstance(name, str) or name not in SOURCES:
        raise InputError(f"name={name!r}: there is no such data set; there are {', '.join(SOURCES)}.")
    if scaled and name not in SCALED:
        raise InputError(f"scaled=True: {name} has no scaled form; map its columns with datasets.scale(features).")
    source = SOURCES[name]
    if source.kind == "scikit-learn":
        return _from_sklearn(source)
    content = files.content(source, data_dir, download)
    if name == "diabetes":
        return _diabetes(source, content, scaled)
    return _fourclass(source, content) if name == "fourclass" else _pendigits(source, content)


def _diabetes(source: Source, content: bytes, scaled: bool) -> Dataset:
    table = np.loadtxt(io.BytesIO(content), delimiter=",", skiprows=1)
    features, tested = table[:, :-1], np.where(table[:, -1] == 1, 1.0, -1.0)
    if scaled:
        return _dataset(source, scale(features), -tested, "tested negative")
    return _dataset(source, features, tested, "tested positive")


def _fourclass(source: Source, content: bytes) -> Dataset:
    """LIBSVM's text, `label index:value ...`: an entry left out is zero, so values go by index, never by position."""
    features, labels = np.zeros((source.rows, source.columns)), np.empty(source.rows)
    for row, line in enumerate(content.decode("ascii").splitlines()):
        label, *entries = line.split()
        labels[row] = float(label)
        for entry in entries:
            index, value = entry.split(":")
            features[row, int(index) - 1] = float(value)
    return _dataset(source, features, labels, "the file's +1")


def _pendigits(source: Source, content: bytes) -> Dataset:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return _dataset(source, arrays["features"], arrays["labels"].astype(np.int64), train=PENDIGITS_TRAIN)


def _from_sklearn(source: Source) -> Dataset:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise MissingExtra(f"{source.name} is scikit-learn's: {files.PIP_LINE}") from error
    features, labels = getattr(datasets, source.file)(return_X_y=True)
    if value_hash(features, labels) != source.sha256:
        warnings.warn(
            f"{source.name}: the values of the installed scikit-learn are not those of the table in hierax; "
            "results may differ from published ones.",
            HieraxWarning,
            stacklevel=3,
        )
    if source.name == "breast-cancer":
        return _dataset(source, features, np.where(labels == 1, 1.0, -1.0), "benign")
    return _dataset(source, features, labels.astype(np.int64))


def value_hash(features: np.ndarray, labels: np.ndarray) -> str:
    """The sha256 of the features (float64) and then the labels (int64), row by row, little-endian.

    scikit-learn's files may be packed anew in any release; their values should stay.
    """
    return hashlib.sha256(features.astype("<f8").tobytes() + labels.astype("<i8").tobytes()).hexdigest()


def _dataset(
    source: Source, features: np.ndarray, labels: np.ndarray, positive: str | None = None, train: int | None = None
) -> Dataset:
    features = np.ascontiguousarray(features, dtype=np.float64)
    return Dataset(source.name, features, labels, source.origin, source.licence, positive, train)
