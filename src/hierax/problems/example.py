"""What a problem with known answers consists of."""

from typing import Any, NamedTuple

from hierax._problem.problem import Problem


class Known(NamedTuple):
    """A local solution (x*, y*(x*)) of a bilevel problem.

    Attributes:
        x: the upper variable.
        y: the solution of the lower level at `x`.
        multipliers: multipliers of the lower level's inequalities at (x, y), shaped like the constraints' output.
        upper: the expected upper objective F(x, y).
        equality_multipliers: the same for the lower level's equalities; None where it has none.
    """

    x: Any
    y: Any
    multipliers: Any
    upper: float
    equality_multipliers: Any = None


class Example(NamedTuple):
    """A problem, a starting point and its known solutions.

    Attributes:
        problem: the problem as `hierax.solving` takes it.
        x0: start of the upper variable; not chosen with any method in mind.
        y0: start of the lower variable.
        solutions: local minimisers, the best one not necessarily first; empty where none is known.
        source: where the problem comes from.
    """

    problem: Problem
    x0: Any
    y0: Any
    solutions: list[Known]
    source: str
