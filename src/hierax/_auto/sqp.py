"""Sequential quadratic programming on a function that gives everything at once (SciPy's SLSQP)."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

LARGE = 1e8  # a point beyond this has run off; what is not a number counts as this


class Evaluated(NamedTuple):
    """An objective, inequalities >= 0 and equalities = 0 at a point, each with its Jacobian."""

    value: np.ndarray | float
    slope: np.ndarray
    above: np.ndarray
    above_slope: np.ndarray
    equal: np.ndarray
    equal_slope: np.ndarray


class RunOff(Exception):
    """The iterates left for infinity, or the clock ran out."""


def slsqp(
    evaluate: Callable[[np.ndarray], Evaluated],
    start: np.ndarray,
    bounds: tuple[np.ndarray, np.ndarray],
    iterations: int,
    enough: float,
) -> np.ndarray:
    """The last iterate; the caller judges it. `enough`: change of the objective at which to stop."""
    known: dict[str, tuple[np.ndarray, Evaluated]] = {}

    def at(u: np.ndarray) -> Evaluated:
        if "last" not in known or not np.array_equal(known["last"][0], u):
            if not np.all(np.abs(u) < LARGE):
                raise RunOff
            found = evaluate(u)
            if not all(np.isfinite(part).all() for part in found):
                found = Evaluated(*(np.nan_to_num(part, nan=LARGE, posinf=LARGE, neginf=-LARGE) for part in found))
            known["last"] = (u.copy(), found)
        return known["last"][1]

    start = np.clip(start, *bounds)
    try:
        kinds = [(kind, name) for kind, name in (("ineq", "above"), ("eq", "equal")) if getattr(at(start), name).size]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            found = minimize(
                lambda u: (at(u).value, at(u).slope),
                start,
                jac=True,
                bounds=np.stack(bounds, axis=1),
                constraints=[
                    {
                        "type": kind,
                        "fun": lambda u, name=name: getattr(at(u), name),
                        "jac": lambda u, name=name: getattr(at(u), f"{name}_slope"),
                    }
                    for kind, name in kinds
                ],
                method="SLSQP",
                options={"maxiter": iterations, "ftol": enough},
            )
    except RunOff:
        return known["last"][0] if known else start
    return found.x if np.isfinite(found.x).all() else known["last"][0]
