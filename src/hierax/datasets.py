"""Deprecated: the data sets are now in the package hierax-lab, `hierax_lab.datasets`. The old names forward there."""

from hierax._base.imports import moved

__getattr__ = moved(__name__, "SOURCES Dataset MissingData Source availability load quadratic_features scale splits")
