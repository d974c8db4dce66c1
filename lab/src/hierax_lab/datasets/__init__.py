"""The data sets of the experiments, by name: `load("breast-cancer")`. What they are, and whose, is in `SOURCES`.

Nothing is downloaded unless asked for, and what is read is the file that the table names: its hash is checked. The
public name of this package is `hierax_lab.datasets`.
"""

from hierax_lab.datasets.files import MissingData as MissingData
from hierax_lab.datasets.files import availability as availability
from hierax_lab.datasets.loading import Dataset as Dataset
from hierax_lab.datasets.loading import load as load
from hierax_lab.datasets.prepare import quadratic_features as quadratic_features
from hierax_lab.datasets.prepare import scale as scale
from hierax_lab.datasets.prepare import splits as splits
from hierax_lab.datasets.sources import SOURCES as SOURCES
from hierax_lab.datasets.sources import Source as Source

__all__ = [
    "SOURCES",
    "Dataset",
    "MissingData",
    "Source",
    "availability",
    "load",
    "quadratic_features",
    "scale",
    "splits",
]
