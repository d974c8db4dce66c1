"""The SVM's lower level solved exactly: semismooth Newton on its (d + 1)-dimensional form, and the hyper-gradient.

With the slack eliminated, xi_i = [1 - l_i (z_i'w + b)]_+, the lower level of `hierax_lab.problems.svm` is the
squared-hinge SVM

    min_{w, b}  1/2 ||w||^2 + 1/2 sum_i s_i [1 - l_i (z_i'w + b)]_+^2,

convex and piecewise quadratic. Newton's method on the active pieces with an exact line search ends at its solution
after finitely many steps (S. S. Keerthi, D. DeCoste: A modified finite Newton method for fast solution of large scale
linear SVMs, JMLR 6, 2005), usually five to ten.
"""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

Weights = Literal["softmax", "exp"]
Data = tuple[ArrayLike, ArrayLike]

MAX_STEPS = 100


class SVMSolution(NamedTuple):
    """The lower level of `hierax_lab.problems.svm` at given sample weights.

    Attributes:
        w: normal of the separating plane, shape (d,).
        b: its offset.
        slack: xi / sqrt(N), the slack in the units of the problem's y, shape (N,).
        multipliers: of the rows 1 - l_i (z_i'w + b) - sqrt(N) slack_i <= 0, shape (N,).
        value: the lower objective; NaN where Newton's method did not converge.

    Examples:
        >>> import numpy as np
        >>> from hierax_lab.problems import svm_reference
        >>> data = (np.array([[-1.0], [1.0]]), np.array([-1.0, 1.0]))
        >>> [round(float(value), 3) for value in svm_reference(data, np.zeros(2)).multipliers]
        [0.25, 0.25]
    """

    w: Float[Array, " d"]
    b: Float[Array, ""]
    slack: Float[Array, " N"]
    multipliers: Float[Array, " N"]
    value: Float[Array, ""]


def sample_weights(c: Float[Array, " N"], weights: Weights) -> Float[Array, " N"]:
    """s(c): the softmax of c, or exp(c) entry by entry."""
    return jax.nn.softmax(c) if weights == "softmax" else jnp.exp(c)


@functools.partial(jax.jit, static_argnames="weights")
def svm_reference(train: Data, c: ArrayLike, weights: Weights = "softmax") -> SVMSolution:
    """Solve the lower level of `hierax_lab.problems.svm` at c; works under `jit` and `vmap`.

        min over w, b of  1/2 ||w||^2 + 1/2 sum_i s_i [1 - l_i (z_i'w + b)]_+^2,     xi_i = [1 - l_i (z_i'w + b)]_+

    by Newton's method on the active pieces with an exact line search, which ends after finitely many steps.

    The multipliers follow from the stationarity in the slack: N s_i slack_i = sqrt(N) lam_i, so lam_i = s_i xi_i.

    Args:
        train: features (N, d) and labels in {-1, +1} (N,), both labels present.
        c: the upper variable, shape (N,).
        weights: how c gives the sample weights, as in `svm`.

    Returns:
        The solution in JAX's precision. With 64-bit numbers the gradient of the squared-hinge form is below 2.3e-13
        times max(1, max_k sum_i s_i xi_i |z_ik|), in practice at rounding: the last step of Newton's method is exact.

    Examples:
        >>> import numpy as np
        >>> from hierax_lab.problems import svm_reference
        >>> data = (np.array([[-1.0], [1.0]]), np.array([-1.0, 1.0]))
        >>> round(float(svm_reference(data, np.zeros(2)).w[0]), 3)
        0.5

    References:
        Keerthi, DeCoste: A modified finite Newton method for fast solution of large scale linear SVMs, Journal of
            Machine Learning Research 6, 2005.
    """
    rows, s = _signed_rows(train), sample_weights(jnp.asarray(c, float), weights)
    u, converged = _newton(rows, s)
    xi = jnp.maximum(1.0 - rows @ u, 0.0)
    value = 0.5 * jnp.sum(u[:-1] ** 2) + 0.5 * jnp.sum(s * xi**2)
    return SVMSolution(u[:-1], u[-1], xi / xi.size**0.5, s * xi, jnp.where(converged, value, jnp.nan))


@functools.partial(jax.jit, static_argnames="weights")
def svm_hypergradient(
    train: Data, validation: Data, c: ArrayLike, weights: Weights = "softmax"
) -> tuple[Float[Array, ""], Float[Array, " N"]]:
    """phi(c) = F(y*(c)) on the whole validation set and its gradient; works under `jit` and `vmap`.

        dphi/ds_i = xi_i a_i' Q^-1 grad F(w, b),     a_i = l_i (z_i, 1),     dphi/dc = (ds/dc)' dphi/ds

    With u = (w, b), rows a_i = l_i (z_i, 1) and Q the matrix of Newton's method at y*(c), the gradient of the lower
    objective, (w, 0) - sum_i s_i xi_i a_i, stays zero along du/ds_i = xi_i Q^{-1} a_i. One solve with Q gives all
    derivatives of phi.

    Args:
        train: as in `svm_reference`.
        validation: features (M, d) and labels in {-1, +1} (M,).
        c: the upper variable, shape (N,).
        weights: how c gives the sample weights, as in `svm`.

    Returns:
        The value (NaN where the lower level was not solved) and the gradient.

    Examples:
        >>> import numpy as np
        >>> from hierax_lab.problems import svm_hypergradient
        >>> data = (np.array([[-1.0], [1.0]]), np.array([-1.0, 1.0]))
        >>> value, gradient = svm_hypergradient(data, data, np.zeros(2))
        >>> round(float(value), 3), gradient.shape
        (1.649, (2,))

    References:
        docs/methods/gam.md (the derivative on the active set, of which this is the case of the SVM)
    """
    c = jnp.asarray(c, float)
    rows, tests = _signed_rows(train), _signed_rows(validation)
    s, pull = jax.vjp(lambda c: sample_weights(c, weights), c)
    u, converged = _newton(rows, s)
    residual = 1.0 - rows @ u
    losses = jnp.exp(1.0 - tests @ u)
    adjoint = _solve(rows, s, residual > 0.0, -jnp.mean(losses[:, None] * tests, axis=0))
    (gradient,) = pull(jnp.maximum(residual, 0.0) * (rows @ adjoint))
    return jnp.where(converged, jnp.mean(losses), jnp.nan), gradient


def _signed_rows(data: Data) -> Float[Array, "N columns"]:
    """The rows a_i = l_i (z_i, 1), so that l_i (z_i'w + b) = a_i'(w, b)."""
    features, labels = (jnp.asarray(part, float) for part in data)
    return labels[:, None] * jnp.concatenate([features, jnp.ones_like(labels)[:, None]], axis=1)


def _newton(rows: Float[Array, "N columns"], s: Float[Array, " N"]) -> tuple[Float[Array, " columns"], Bool[Array, ""]]:
    """(w, b) and whether the gradient is small there."""
    tolerance = 2.0**10 * jnp.finfo(rows.dtype).eps  # 2e-13 in double precision
    sizes = jnp.abs(rows)

    def gradient(u: Array) -> Array:
        return u.at[-1].set(0.0) - (s * jnp.maximum(1.0 - rows @ u, 0.0)) @ rows

    def small(u: Array, slope: Array) -> Array:
        terms = (s * jnp.maximum(1.0 - rows @ u, 0.0)) @ sizes  # rounding in the gradient's sums is relative to these
        return jnp.max(jnp.abs(slope)) <= tolerance * jnp.maximum(1.0, jnp.max(terms))

    def going(state: tuple[Array, Array, Array]) -> Array:
        u, slope, steps = state
        return (steps < MAX_STEPS) & ~small(u, slope)

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        u, slope, steps = state
        residual = 1.0 - rows @ u
        direction = -_solve(rows, s, residual > 0.0, slope)
        along = direction[:-1] @ u[:-1], direction[:-1] @ direction[:-1]
        u = u + _line_search(along, s, residual, rows @ direction) * direction
        return u, gradient(u), steps + 1

    start = jnp.zeros(rows.shape[1], rows.dtype)
    u, slope, _ = jax.lax.while_loop(going, step, (start, gradient(start), jnp.zeros((), jnp.int32)))
    return u, small(u, slope)


def _solve(rows: Array, s: Array, active: Bool[Array, " N"], right: Array) -> Array:
    """Q^{-1} right with Q = diag(1, ..., 1, 0) + sum over the active i of s_i a_i a_i'."""
    # The offset has no curvature of its own: where no row is active its entry of `right` is zero, and so is its step.
    ridge = jnp.ones(rows.shape[1], rows.dtype).at[-1].set(jnp.finfo(rows.dtype).tiny ** 0.5)
    matrix = rows.T @ (jnp.where(active, s, 0.0)[:, None] * rows) + jnp.diag(ridge)
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(matrix), right)


def _line_search(along: tuple[Array, Array], s: Array, residual: Array, change: Array) -> Array:
    """The root t > 0 of the objective's slope along a direction of descent, exactly.

    The slope is  along_0 + t along_1 - sum_i s_i q_i [r_i - t q_i]_+  with r = `residual`, q = `change`: increasing and
    piecewise linear in t, with breaks at r_i / q_i > 0. It is added up from break to break until it turns positive.
    """
    moving = residual * change > 0.0  # rows that become inactive (r > 0) or active (r < 0) at some t > 0
    breaks = jnp.where(moving, residual / jnp.where(moving, change, 1.0), jnp.inf)
    order = jnp.argsort(breaks)
    exists = moving[order]
    curvature = s * change**2
    active = (residual > 0.0) | ((residual == 0.0) & (change < 0.0))
    jumps = jnp.where(exists, -jnp.sign(residual[order]) * curvature[order], 0.0)

    # Piece 0 starts at t = 0, piece k at the k-th break; rows without a break come last and are left out.
    starts = jnp.concatenate([jnp.zeros_like(breaks[:1]), jnp.where(exists, breaks[order], 0.0)])
    curvatures = along[1] + jnp.cumsum(jnp.concatenate([jnp.sum(jnp.where(active, curvature, 0.0))[None], jumps]))
    slope = along[0] - jnp.sum(s * change * jnp.maximum(residual, 0.0))
    rises = jnp.where(exists, curvatures[:-1] * jnp.diff(starts), 0.0)
    slopes = jnp.cumsum(jnp.concatenate([slope[None], rises]))
    below = (slopes < 0.0) & jnp.concatenate([jnp.ones_like(exists[:1]), exists])
    piece = jnp.maximum(jnp.sum(below) - 1, 0)  # the last piece whose slope is still negative at its start
    return starts[piece] - slopes[piece] / jnp.maximum(curvatures[piece], jnp.finfo(s.dtype).tiny)
