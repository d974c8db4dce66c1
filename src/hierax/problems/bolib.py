"""Deprecated: the problems of BOLIB have moved to the package hierax-lab, `hierax_lab.problems.bolib`."""

from hierax._base.imports import moved

__getattr__ = moved(__name__, "CASES Case load")
