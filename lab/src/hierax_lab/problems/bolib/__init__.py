"""71 small problems with nonlinear lower levels and known solutions.

After BOLIB: S. Zhou, A. B. Zemkoho, A. Tin, "BOLIB: Bilevel Optimization LIBrary of test problems" (versions 1 and 2).
Formulas, starts and published solutions are restated from there and from the papers in `sources`. Where a published
point is not optimal, `Case.best` is a better one.
"""

import dataclasses
import re

from hierax import InputError
from hierax_lab.problems.bolib import convex, nonconvex, strongly_convex
from hierax_lab.problems.bolib.case import Case
from hierax_lab.problems.bolib.sources import SOURCES

_BY_CLASS = {
    "strongly convex": strongly_convex.CASES,
    "convex": convex.CONVEX,
    "linear": convex.LINEAR,
    "nonconvex": nonconvex.CASES,
}


def _completed(case: Case, lower_class: str) -> Case:
    """The case with the class of its lower level and the paper that its name begins with."""
    paper = re.match(r"[A-Za-z]+\d{4}", case.name)
    assert paper is not None, case.name
    return dataclasses.replace(case, lower_class=lower_class, source=SOURCES[paper[0]])


_ALL = [_completed(case, lower_class) for lower_class, cases in _BY_CLASS.items() for case in cases]
CASES: dict[str, Case] = {case.name: case for case in sorted(_ALL, key=lambda case: case.name)}


def load(name: str) -> Case:
    """The case of this name.

    Examples:
        >>> from hierax_lab.problems import bolib
        >>> case = bolib.load("Bard1988Ex1")
        >>> case.values
        (17.0, 1.0)
        >>> problem, (x0, y0) = case.problem(), case.x0y0()
    """
    if name not in CASES:
        raise InputError(f"bolib.load({name!r}): no such problem; there are {', '.join(CASES)}.")
    return CASES[name]


__all__ = ["CASES", "Case", "load"]
