"""A planted problem of any size without a matrix in it: tridiagonal lower levels with bounds and a few budget rows.

Lower level 1/2 y'My + (N x + q)'y over A y <= b + B x, y >= 0 with M = 2.5 I - shifts, products by `jnp.roll`. y*, its
active rows and multipliers at x* are drawn, and q and b follow from the KKT conditions. With the Jacobian D of y* there
(sparse LU of SciPy), F = g'(y - y*) + 1/2 |y - y*|^2 - (D'g)'(x - x*) + 2 |x - x*|^2 has its minimum F = 0 at x*.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sparse

import hierax as hx

MARGIN = 0.2  # least entry of y* and least multiplier of a bound: x* is no kink


class Planted(NamedTuple):
    """The problem, its solution, the Jacobian of y* there, and the parts for solvers from outside."""

    problem: hx.Problem
    x: np.ndarray
    y: np.ndarray
    jacobian: np.ndarray
    parts: dict[str, np.ndarray]


def matrix(n: int) -> sparse.csc_matrix:
    """M, as a sparse matrix (for checks from outside)."""
    corners = sparse.coo_matrix(([-1.0, -1.0], ([0, n - 1], [n - 1, 0])), shape=(n, n))
    return (sparse.diags([-1.0, 2.5, -1.0], [-1, 0, 1], shape=(n, n)) + corners).tocsc()


def planted(n: int, nx: int = 5, rows: int = 3, seed: int = 0) -> Planted:
    """The problem with n entries of y."""
    rng = np.random.default_rng(seed)
    m, couple, own = matrix(n), rng.normal(size=(n, nx)), rng.normal(size=(rows, n)) / n**0.5
    x, shift, free = rng.uniform(-0.5, 0.5, nx), 0.3 * rng.normal(size=(rows, nx)), rng.random(n) < 0.6
    y = np.where(free, rng.uniform(MARGIN, 1.5, n), 0.0)
    on_bounds = np.where(free, 0.0, rng.uniform(MARGIN, 1.0, n))
    held = np.arange(rows) < rows - 1  # the last budget is not used up
    prices = np.where(held, rng.uniform(0.2, 1.0, rows), 0.0)
    linear = on_bounds - m @ y - couple @ x - own.T @ prices
    limits = own @ y - shift @ x + np.where(held, 0.0, 0.5)
    whole = sparse.bmat([[m[free][:, free], sparse.csr_matrix(own[held][:, free].T)], [own[held][:, free], None]])
    right = np.concatenate([-couple[free], shift[held]])
    jacobian = np.zeros((n, nx))
    jacobian[free] = sparse.linalg.splu(whole.tocsc()).solve(right)[: free.sum()]
    push = rng.normal(size=n) / n**0.5
    along = jacobian.T @ push
    couple_, own_, linear_, limits_, shift_, y_, push_ = map(jnp.asarray, (couple, own, linear, limits, shift, y, push))

    def lower(at, below, xi):
        bent = 2.5 * below - jnp.roll(below, 1) - jnp.roll(below, -1)
        return 0.5 * below @ bent + (couple_ @ at + linear_) @ below

    def upper(at, below, zeta):
        away = below - y_
        return push_ @ away + 0.5 * away @ away - along @ (at - x) + 2.0 * jnp.sum((at - x) ** 2)

    problem = hx.Problem(
        upper=upper,
        lower=lower,
        constraints=lambda at, below: own_ @ below - limits_ - shift_ @ at,
        x_set=hx.Box(-1.0, 1.0),
        y_set=hx.NonNegative(),
    )
    parts = {"couple": couple, "own": own, "linear": linear, "limits": limits, "shift": shift, "push": push}
    return Planted(problem, x, y, jacobian, parts)
