"""71 small problems with nonlinear lower levels and known solutions.

After BOLIB: S. Zhou, A. B. Zemkoho, A. Tin, "BOLIB: Bilevel Optimization LIBrary of test problems" (versions 1 and 2).
Formulas, starts and published solutions are restated from there and from the papers that each case names; where the
published point is not optimal, `Case.best` is a better one.
"""

from hierax import InputError
from hierax_lab.problems.bolib import convex, nonconvex, strongly_convex
from hierax_lab.problems.bolib.case import Case

CASES: dict[str, Case] = {
    case.name: case for case in sorted((*strongly_convex.CASES, *convex.CASES, *nonconvex.CASES), key=lambda c: c.name)
}


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
