"""What a problem with known answers consists of: `Example`, and its solutions, `Known`.

Every factory of `hierax.problems` returns an `Example`.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, PyTree

from hierax._base.errors import InputError
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
        >>> from hierax.problems import kinked
        >>> (known,) = kinked().solutions
        >>> known.x.tolist(), known.y.tolist(), round(known.upper, 3)
        ([1.0, 1.0], [1.0, 1.0], 2.645)
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


def features_and_labels(name: str, data: tuple[ArrayLike, ArrayLike], dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, d) in a precision and labels (n,) as they are; other shapes are refused."""
    features: np.ndarray = np.asarray(data[0], dtype)
    labels = np.asarray(data[1])
    if features.ndim != 2 or labels.shape != features.shape[:1] or features.size == 0:
        raise InputError(
            f"{name}: needs features of shape (n, d) and labels of shape (n,), got {features.shape} and {labels.shape}"
        )
    return features, labels
