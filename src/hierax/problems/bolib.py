"""Deprecated: the problems of BOLIB have moved to the package hierax-lab, `hierax_lab.problems.bolib`."""

from typing import Any

from hierax._base.imports import from_the_lab


def __getattr__(name: str) -> Any:
    return from_the_lab(__name__, name, ("CASES", "Case", "load"), "hierax_lab.problems.bolib")
