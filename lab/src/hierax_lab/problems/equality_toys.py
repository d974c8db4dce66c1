"""The toys of LV-HBA and BiC-GAFFA: one equality, and a lower level that is linear in half of y.

Their lower solutions are not unique, which many methods do not allow; the docstrings derive the solutions.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax import InputError, Problem
from hierax.problems.example import Example, Known

SOURCE_LVHBA = (
    "W. Yao, C. Yu, S. Zeng, J. Zhang: Constrained bi-level optimization: proximal Lagrangian value function approach "
    "and Hessian-free algorithm (LV-HBA), ICLR 2024, toy example."
)
SOURCE_GAFFA = (
    "W. Yao, H. Yin, S. Zeng, J. Zhang: Overcoming lower-level constraints in bilevel optimization: a novel approach "
    "with regularized gap functions (BiC-GAFFA), NeurIPS 2024, synthetic examples."
)


def lvhba_toy(n: int = 100) -> Example:
    """The toy of Yao, Yu, Zeng, Zhang (ICLR 2024); x, y1, y2 in R^n.

        min_x  F = 1/2 ||x - y2||^2 + 1/2 ||y1 - 1||^2
        (y1, y2) in argmin { G = 1/2 ||y1||^2 - x'y1 + 1'y2  :  1'x + 1'y1 + 1'y2 = 0 }

    **y*(x) is not unique**: G is linear in y2. Its KKT conditions give the multiplier -1 and y1 = x + 1, and leave y2
    free on 1'y2 = -n - 2 1'x; the bilevel problem chooses the best y2 (optimistic form). Methods that need a strongly
    convex lower level cannot solve it, and the y of a lower-level solver is in general not the y of the solution.

    What remains, min 1/2 ||x - y2||^2 + 1/2 ||x||^2 subject to 2 1'x + 1'y2 = -n, is strictly convex with the solution
    x = -0.3, y2 = -0.4 in every entry, thus y1 = 0.7 and F = 0.05 n.

    Args:
        n: dimension of x, y1 and y2.

    Returns:
        The example, with one solution; it is the global one.

    Examples:
        >>> from hierax_lab.problems import lvhba_toy
        >>> round(lvhba_toy(2).solutions[0].upper, 6)
        0.1

    References:
        Yao, Yu, Zeng, Zhang: Constrained bi-level optimization: proximal Lagrangian value function approach and
            Hessian-free algorithm, ICLR 2024.
    """

    def upper(x: Array, y: PyTree, zeta: None) -> Array:
        del zeta
        return 0.5 * jnp.sum((x - y["y2"]) ** 2) + 0.5 * jnp.sum((y["y1"] - 1.0) ** 2)

    return _example(n, upper, jnp.sum, (-0.3, 0.7, -0.4), 0.05 * n, SOURCE_LVHBA)


def gaffa_toy(n: int = 100, cubic: bool = False) -> Example:
    """The synthetic examples of Yao, Yin, Zeng, Zhang (NeurIPS 2024); x, y1, y2 in R^n.

        min_x  F = (y1 - 2)'(x - 1) + ||y2 + 3||^2
        (y1, y2) in argmin { G = 1/2 ||y1||^2 - x'y1 + 1'y2  :  h(x) + 1'y1 + 1'y2 = 0 }

    with h(x) = sum_k x_k, or sum_k x_k^3 for `cubic`; then the set of feasible (x, y) is not convex. The lower level is
    that of `lvhba_toy`: multiplier -1, y1 = x + 1, and **y2 is not unique**, only 1'y2 = -h(x) - 1'(x + 1) is fixed.

    Along y1 = x + 1 the upper objective is ||x - 1||^2 + ||y2 + 3||^2 >= 0, and zero at x = 1, y2 = -3 (every entry),
    which satisfies the constraint for both h: it is the global solution. No other stationary point exists: with the
    best y2 what remains is ||x - 1||^2 + n m^2, m the mean of 2 - x_k - h_k with h_k = x_k or x_k^3. Its gradient is
    zero where x_k - 1 = m (1 + dh_k/dx_k), so all x_k - 1 have the sign of m; but all x_k > 1 would make m < 0, and all
    x_k < 1 would make m > 0.

    Args:
        n: dimension of x, y1 and y2.
        cubic: h(x) = sum of cubes instead of the sum.

    Returns:
        The example, with one solution.

    Examples:
        >>> import numpy as np
        >>> from hierax_lab.problems import gaffa_toy
        >>> np.asarray(gaffa_toy(3).solutions[0].x).tolist()
        [1.0, 1.0, 1.0]

    References:
        Yao, Yin, Zeng, Zhang: Overcoming lower-level constraints in bilevel optimization: a novel approach with
            regularized gap functions, NeurIPS 2024.
    """

    def upper(x: Array, y: PyTree, zeta: None) -> Array:
        del zeta
        return jnp.sum((y["y1"] - 2.0) * (x - 1.0)) + jnp.sum((y["y2"] + 3.0) ** 2)

    def cubes(x: Array) -> Array:
        return jnp.sum(x**3)

    return _example(n, upper, cubes if cubic else jnp.sum, (1.0, 2.0, -3.0), 0.0, SOURCE_GAFFA)


def _example(
    n: int,
    upper: Callable[[Array, PyTree, None], Array],
    h: Callable[[Array], Array],
    entries: tuple[float, float, float],
    value: float,
    source: str,
) -> Example:
    """The lower level that both toys share; `entries` are those of x, y1, y2 at the solution."""
    if n < 1:
        raise InputError(f"n={n} is a dimension: it must be at least 1")

    def lower(x: Array, y: PyTree, xi: None) -> Array:
        del xi
        return 0.5 * jnp.sum(y["y1"] ** 2) - jnp.sum(x * y["y1"]) + jnp.sum(y["y2"])

    def equalities(x: Array, y: PyTree) -> Array:
        return h(x) + jnp.sum(y["y1"]) + jnp.sum(y["y2"])

    x, y1, y2 = (np.full(n, entry) for entry in entries)
    known = Known(x, {"y1": y1, "y2": y2}, multipliers=None, upper=value, equality_multipliers=np.asarray(-1.0))
    problem = Problem(upper=upper, lower=lower, equalities=equalities)
    start = {"y1": np.zeros(n), "y2": np.zeros(n)}
    return Example(problem, x0=np.zeros(n), y0=start, solutions=[known], source=source)
