"""The one-dimensional toy of BLOCC: four local minimisers, a closed-form lower level, a closed-form envelope.

`toy` states it, in any units; the other functions are its closed forms, in the original units.
"""

import functools
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float64

from hierax._base.constants import MANY
from hierax._base.errors import InputError
from hierax._problem.problem import Problem
from hierax._problem.sets import Box
from hierax.problems.example import Example, Known
from hierax.problems.noise import gaussian, linear_term

SOURCE = (
    "L. Jiang, Q. Xiao, V. M. Tenorio, F. Real-Rojas, A. G. Marques, T. Chen: A primal-dual-assisted penalty approach "
    "to bilevel optimization with coupled constraints (BLOCC), NeurIPS 2024. Gradient noise as in Nie, Li, Wen: An "
    "augmented Lagrangian value function method for lower-level constrained stochastic bilevel optimization."
)

SIDE = 3.0  # X = Y = [0, SIDE]


def toy(
    sigma: float = 0.1,
    *,
    scale_upper: float = 1.0,
    scale_lower: float = 1.0,
    scale_constraint: float = 1.0,
    stretch: float = 1.0,
) -> Example:
    """The toy of Jiang et al. (NeurIPS 2024), with scalar x and y.

        min_{x in [0,3]}  F(x, y*(x)) = exp(2 - y) / (2 + cos 6x) + 1/2 log((4x - 2)^2 + 1)
        y*(x) = argmin_{y in [0,3]} { G(x, y) = (y - 2x)^2  :  H(x, y) = y - x <= 0 }

    so y*(x) = x and lam*(x) = 2x; F(x, x) has four local minimisers, the global one at x = 0.98622. The noise is the
    paper's: f = F + <zeta, (x, y)>, g = G + <xi, (x, y)> with zeta, xi ~ N(0, sigma^2 I_2).

    The other arguments state *the same problem in other units*, to test that a method does not depend on them: the
    variables become t x, t y with t = `stretch`, and f, g, h (noise included) are multiplied by the scales s_f, s_g,
    s_h. The solutions become t x, t y with multiplier 2x s_g / s_h.

    Args:
        sigma: standard deviation of the gradient noise per coordinate; 0 gives the deterministic problem.
        scale_upper: factor of the upper objective.
        scale_lower: factor of the lower objective.
        scale_constraint: factor of the constraint.
        stretch: factor of x and y.

    Returns:
        The example; `solutions` are the four local minimisers, from left to right.

    Examples:
        >>> from hierax.problems import toy
        >>> best = min(toy().solutions, key=lambda known: known.upper)
        >>> round(float(best.x), 5), round(float(best.y), 5)
        (0.98622, 0.98622)

    References:
        Jiang, Xiao, Tenorio, Real-Rojas, Marques, Chen: A primal-dual-assisted penalty approach to bilevel
            optimization with coupled constraints, NeurIPS 2024.
        docs/benchmarks/paper-experiments.md
    """
    # An array, so that problems in other units share a compiled program:
    factors = np.array([scale_upper, scale_lower, scale_constraint, stretch])
    for name, factor in zip(("scale_upper", "scale_lower", "scale_constraint", "stretch"), factors, strict=True):
        if not factor > 0:
            raise InputError(f"{name}={factor:g}: is a factor between units and must be > 0")

    def upper(x: Array, y: Array, zeta: Array | None) -> Array:
        scale, _, _, t = jnp.asarray(factors, y.dtype)
        x, y = x / t, y / t
        value = _upper(x, y)
        return scale * (value if zeta is None else value + linear_term(zeta, x, y))

    def lower(x: Array, y: Array, xi: Array | None) -> Array:
        _, scale, _, t = jnp.asarray(factors, y.dtype)
        x, y = x / t, y / t
        value = (y - 2.0 * x) ** 2
        return scale * (value if xi is None else value + linear_term(xi, x, y))

    def constraints(x: Array, y: Array) -> Array:
        _, _, scale, t = jnp.asarray(factors, y.dtype)
        return scale * (y / t - x / t)

    box = Box(0.0, SIDE * stretch)
    problem = Problem(upper, lower, constraints, x_set=box, y_set=box, zeta=gaussian(sigma, 2), xi=gaussian(sigma, 2))
    best = local_minimisers()
    solutions = [
        Known(
            x=np.asarray(stretch * x),
            y=np.asarray(stretch * x),
            multipliers=np.asarray(2.0 * x * scale_lower / scale_constraint),
            upper=scale_upper * value,
        )
        for x, value in zip(best.tolist(), _upper(best, best, np).tolist(), strict=True)  # float64, whatever JAX has
    ]
    centre = np.asarray(0.5 * SIDE * stretch)
    return Example(problem, x0=centre, y0=centre, solutions=solutions, source=SOURCE)


@functools.cache
def local_minimisers() -> Float64[np.ndarray, " 4"]:
    """The local minimisers of x -> F(x, y*(x)) on [0, 3], in the original units and ascending; the second is global.

    The zeros of its derivative (an imaginary part: no digits are lost) where that changes from - to +, by bisection.
    """
    tiny = np.finfo(np.float64).eps
    grid = np.linspace(0.0, SIDE, MANY)

    def falls(x: np.ndarray) -> np.ndarray:
        return _upper(x + tiny * 1j, x + tiny * 1j, np).imag < 0

    turns = np.flatnonzero(falls(grid[:-1]) & ~falls(grid[1:]))
    low, high = grid[turns], grid[turns + 1]
    for _ in range(np.finfo(np.float64).nmant):
        middle = 0.5 * (low + high)
        low, high = np.where(falls(middle), middle, low), np.where(falls(middle), high, middle)
    found = 0.5 * (low + high)
    found.setflags(write=False)  # all callers share it
    return found


def hyper_objective(x: ArrayLike) -> Array:
    """F(x, y*(x)) = F(x, x) in the original units, elementwise."""
    return _upper(jnp.asarray(x), jnp.asarray(x))


def toy_inner_solution(x: ArrayLike, z: ArrayLike, gamma1: ArrayLike, gamma2: ArrayLike) -> tuple[Array, Array]:
    """The saddle point (w*, lam*) of the envelope of the toy's lower level, in the original units.

    With A the augmented term, A(w, lam) = ([gamma1 lam + H]_+^2 - gamma1^2 lam^2) / (2 gamma1), it solves

        max_{lam >= 0} min_{w in [0,3]}  G(x, w) + A(w, lam) - gamma2/2 (lam - z)^2.

    The maximum over lam comes first: lam* = max(z + H/gamma2, gamma2 z / (gamma1 + gamma2)), which leaves

        min_{w in [0,3]}  G(x, w) + ([g z + H]_+^2 - g^2 z^2) / (2 g),   1/g = 1/gamma1 + 1/gamma2.

    For x in [0,3] and z >= 0 its minimiser has g z + H >= 0 (also where a bound of Y is active): the objective is
    quadratic there, a convex function on an interval is minimised by clipping, and lam* is the first of its two values.

    Args:
        x: upper variable, in [0, 3].
        z: proximal centre of the multiplier, >= 0.
        gamma1: parameter of the augmented term, > 0.
        gamma2: parameter of the proximal term, > 0.

    Returns:
        (w*, lam*), elementwise in the arguments, which broadcast.

    Examples:
        >>> from hierax.problems import toy_inner_solution
        >>> [round(float(value), 4) for value in toy_inner_solution(1.0, 2.0, 0.1, 0.1)]  # z = lam*(x): w* = y*(x)
        [1.0, 2.0]

    References:
        docs/methods/corrections.md (item 13), docs/methods/salvf.md (E and lam* of the envelope)
    """
    x, z, gamma1, gamma2 = (jnp.asarray(value) for value in (x, z, gamma1, gamma2))
    gamma = gamma1 * gamma2 / (gamma1 + gamma2)
    w = jnp.clip((gamma * (4.0 * x - z) + x) / (2.0 * gamma + 1.0), 0.0, SIDE)
    return w, z + (w - x) / gamma2


def _upper(x: Any, y: Any, xp: ModuleType = jnp) -> Any:
    """F of JAX's arrays, or of NumPy's, which may be complex."""
    return xp.exp(2.0 - y) / (2.0 + xp.cos(6.0 * x)) + 0.5 * xp.log((4.0 * x - 2.0) ** 2 + 1.0)
