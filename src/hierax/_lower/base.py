"""What every solver of the lower level offers; what it answers is `hierax._math.lower_level.LowerSolution`."""

import abc

import equinox as eqx
from jaxtyping import Array, Bool, PyTree

from hierax._math.lower_level import LowerSolution
from hierax._problem.problem import Problem, Rows


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
