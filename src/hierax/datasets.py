"""Data sets by name: `load`, and what to do with one before it enters a problem.

The data sets belong to the experiments; this module is their public name. Nothing in the library imports it.
"""

from hierax.experiments.datasets.files import MissingData as MissingData
from hierax.experiments.datasets.files import availability as availability
from hierax.experiments.datasets.loading import Dataset as Dataset
from hierax.experiments.datasets.loading import load as load
from hierax.experiments.datasets.prepare import quadratic_features as quadratic_features
from hierax.experiments.datasets.prepare import scale as scale
from hierax.experiments.datasets.prepare import splits as splits
from hierax.experiments.datasets.sources import SOURCES as SOURCES
from hierax.experiments.datasets.sources import Source as Source

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
