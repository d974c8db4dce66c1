"""What an exact solver of the lower level returns, and how it says that there is no solution."""

import abc
from typing import NamedTuple

import equinox as eqx
from jaxtyping import Array, Bool, Int, PyTree, Scalar

from hierax._problem.problem import Problem, Rows
from hierax._problem.sets import Faces

SOLVED, INACCURATE, INFEASIBLE, UNBOUNDED = range(4)

MEANING = {
    SOLVED: "solved",
    INACCURATE: "not solved to the tolerance",
    INFEASIBLE: "infeasible: no y in Y satisfies the constraints at this x",
    UNBOUNDED: "unbounded: the lower objective falls without limit at this x",
}


class LowerSolution(NamedTuple):
    """y*(x), its multipliers, and how far they can be trusted.

    Attributes:
        y: the minimiser of G(x, .) over Y and the constraints (the last iterate where `status` is not SOLVED).
        multipliers: those of the constraints and equalities, shaped like them, in the user's units.
        faces: multipliers of the faces of Y (`sets.faces`).
        value: G(x, y).
        residual: largest entry of the KKT system: stationarity, violation and complementarity.
        status: SOLVED, INACCURATE, INFEASIBLE or UNBOUNDED.
        iterations: Newton steps (`Conic`: interior-point steps).
    """

    y: PyTree
    multipliers: Rows
    faces: Faces
    value: Scalar
    residual: Scalar
    status: Int[Array, ""]
    iterations: Int[Array, ""]


class AbstractLowerSolver(eqx.Module):
    """A deterministic solver of the lower level, a pure function of arrays: it compiles and maps."""

    @abc.abstractmethod
    def solve(
        self, problem: Problem, x: PyTree, y: PyTree, xi: PyTree = None, multipliers: Rows | None = None
    ) -> LowerSolution:
        """Solve the lower level at x from y; `xi` is the batch that stands for the expectation (`samples.whole`)."""

    def doubts(self, problem: Problem, x: PyTree, y: PyTree, xi: PyTree) -> dict[str, Bool[Array, ""]]:
        """Reasons why the solver does not fit the problem, each with a flag that is True where it applies."""
        return {}
