"""Deprecated: the data sets are now in the package hierax-lab, `hierax_lab.datasets`. The old names forward there."""

from typing import Any

from hierax._base.imports import from_the_lab

NAMES = ("SOURCES", "Dataset", "MissingData", "Source", "availability", "load", "quadratic_features", "scale", "splits")


def __getattr__(name: str) -> Any:
    return from_the_lab(__name__, name, NAMES, "hierax_lab.datasets")
