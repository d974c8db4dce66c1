"""A problem whose solution is a kink of y*(x): both constraints are active there with multiplier zero.

It tests what methods that differentiate the lower level do where it is not differentiable.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hierax import Box, Problem
from hierax.problems.example import Example, Known

SOURCE = "hierax: smallest problem with a weakly active solution, for methods that differentiate the lower level."

_TARGET_X = np.array([0.5, 0.8])
_TARGET_Y = np.array([2.0, 3.0])


def kinked() -> Example:
    """Two coordinates in which y*(x) = min(x, 1), and a smooth upper objective with its minimum at the kink x = (1, 1).

        min_{x in [-3,3]^2}  F(x, y) = 1/2 ||x - (0.5, 0.8)||^2 + 1/2 ||y - (2, 3)||^2
        y*(x) = argmin { ||y - x||^2  :  y - 1 <= 0 }

    so lam*(x) = 2 [x - 1]_+. The hyper-objective is a sum of two functions of one entry each, piecewise quadratic, with
    the slopes at x = 1

        left of the kink (y = x):   (1 - 0.5) + (1 - 2) = -0.5   and   (1 - 0.8) + (1 - 3) = -1.8
        right of it (y = 1):         1 - 0.5 = 0.5               and    1 - 0.8 = 0.2.

    Both pieces are convex in either entry, and the slope changes from negative to positive at 1: x = (1, 1) is the only
    local minimiser, y = (1, 1), F = 2.645. There H = 0 and lam = 0: the constraints are weakly active, y* is not
    differentiable, and none of the four gradients that the active sets give is zero; only a point of their convex hull
    is. The start has one entry on either side of the kink.

    Returns:
        The example, with one solution.

    Examples:
        >>> from hierax_lab.problems import kinked
        >>> round(kinked().solutions[0].upper, 3)
        2.645

    References:
        docs/pictures/kinks.md, docs/start/which-method.md
    """

    def upper(x: Array, y: Array, zeta: None) -> Array:
        del zeta
        target_x, target_y = jnp.asarray(_TARGET_X, x.dtype), jnp.asarray(_TARGET_Y, y.dtype)
        return 0.5 * jnp.sum((x - target_x) ** 2) + 0.5 * jnp.sum((y - target_y) ** 2)

    problem = Problem(
        upper=upper,
        lower=lambda x, y, xi: jnp.sum((y - x) ** 2),
        constraints=lambda x, y: y - 1.0,
        x_set=Box(-3.0, 3.0),
    )
    value = 0.5 * np.sum((1.0 - _TARGET_X) ** 2) + 0.5 * np.sum((1.0 - _TARGET_Y) ** 2)
    known = Known(x=np.ones(2), y=np.ones(2), multipliers=np.zeros(2), upper=float(value))
    return Example(problem, x0=np.array([0.0, 2.0]), y0=np.zeros(2), solutions=[known], source=SOURCE)
