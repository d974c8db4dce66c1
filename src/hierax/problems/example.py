"""What a problem with known answers consists of: `Example`, and its solutions, `Known`.

Every factory of `hierax.problems` and `hierax_lab.problems` returns an `Example`.
"""

from typing import NamedTuple

from jaxtyping import PyTree

from hierax._problem.problem import Problem


class Known(NamedTuple):
    """A local solution (x*, y*(x*)) of a bilevel problem.

    Attributes:
        x: the upper variable.
        y: the solution of the lower level at `x`.
        multipliers: multipliers of the lower level's inequalities at (x, y), shaped like the constraints' output.
        upper: the expected upper objective F(x, y).
        equality_multipliers: the same for the lower level's equalities; None where it has none.

    Examples:
        >>> from hierax.problems import toy
        >>> known = toy().solutions[0]
        >>> round(float(known.x), 3), round(float(known.y), 3), round(known.upper, 3)
        (0.149, 0.149, 2.968)
    """

    x: PyTree
    y: PyTree
    multipliers: PyTree
    upper: float
    equality_multipliers: PyTree = None


class Example(NamedTuple):
    """A problem, a starting point and its known solutions.

    Attributes:
        problem: the problem as `hierax.solving` takes it.
        x0: start of the upper variable; not chosen with any method in mind.
        y0: start of the lower variable.
        solutions: local minimisers, the best one not necessarily first; empty where none is known.
        source: where the problem comes from.

    Examples:
        >>> from hierax.problems import toy
        >>> example = toy(sigma=0.0)
        >>> len(example.solutions), example.problem.zeta is None
        (4, True)
    """

    problem: Problem
    x0: PyTree
    y0: PyTree
    solutions: list[Known]
    source: str
