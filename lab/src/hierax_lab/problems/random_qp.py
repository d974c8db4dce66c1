"""A random quadratic lower level with coupled affine constraints and a planted solution.

The solution is drawn first and the data are fitted to it, so that it is exact up to rounding; see `ellipsoids`, which
does the same for ellipsoids.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hierax import Box, InputError, Problem
from hierax.problems.example import Example, Known
from hierax_lab.problems.ellipsoids import (
    Matrix,
    Vector,
    planted_multipliers,
    planted_slack,
    random_direction,
    random_factor,
)

SOURCE = "hierax: random bilevel problem with a quadratic lower level and affine constraints around a planted solution."

X_BOUND = 2.0


class _Rows(NamedTuple):
    """The affine functions By + Dx - e."""

    normals: Matrix  # B
    slopes: Matrix  # D
    level: Vector  # e

    def values(self, x: Array, y: Array) -> Array:
        """One value per row."""
        normals, slopes, level = (jnp.asarray(part, y.dtype) for part in self)
        return normals @ y + slopes @ x - level


class _Data(NamedTuple):
    """The data of a problem and its planted solution, in the letters of `random_qp`."""

    matrix: Matrix  # A
    linear: Vector  # b
    coupling: Matrix  # C
    rows: _Rows  # the inequalities, then the equalities
    target_x: Vector  # x_t
    target_y: Vector  # y_t
    x: Vector  # x*
    y: Vector  # y*
    multipliers: Vector  # of the rows
    x0: Vector  # the start


def random_qp(seed: int = 0, nx: int = 5, ny: int = 8, p: int = 6, equalities: int = 0) -> Example:
    """A strongly convex quadratic lower level with p inequalities and q = `equalities` equalities, all affine.

        min_{x in [-2,2]^nx}  F(x, y*(x)) = 1/2 ||x - x_t||^2 + 1/2 ||y - y_t||^2
        y*(x) = argmin_y { 1/2 y'Ay - (b + Cx)'y  :  By + Dx <= e,  B_q y + D_q x = e_q }

    A has equally spaced eigenvalues from 1 to 5 in a random basis, the entries of C are N(0, 1/nx), and the rows of B,
    B_q, D and D_q are random unit vectors. Those of (B, B_q) are linearly independent (p + q <= ny), so that the lower
    level is feasible for every x and its multipliers are unique.

    The solution is planted: x*, y* and the multipliers are drawn, and e, b and x_t are set so that y* satisfies the KKT
    conditions at x* and x* those of the upper level. The first ceil(p/2) inequalities are active with multipliers
    between 0.5 and 1.5, the others are between -1 and -0.5; multipliers of equalities have either sign. One in five
    entries of x* is on its bound, with the slope of F(x, y*(x)) there between 0.5 and 1.5; the others are inside. So
    x* is strictly complementary at both levels for every seed. y*(x) is affine near x*, hence F(x, y*(x)) is a strongly
    convex quadratic there, and x* is a local minimiser; farther away other pieces begin, and with them, in general,
    **other local minimisers** (seed 1: 1.0292 at x*, 1.1071 elsewhere). The start is therefore near, x* + 0.3 N(0, I)
    moved into the box; for ten of the seeds 0..11 L-BFGS on F(x, y*(x)) goes from there to x*. A run that ends
    elsewhere is not by itself an error. Without inequalities there is one piece, and x* is the global minimiser.

    Args:
        seed: seed of the data.
        nx: dimension of x.
        ny: dimension of y.
        p: number of inequalities.
        equalities: number q of equalities; p + q in 1..ny.

    Returns:
        The example, with one solution.

    Examples:
        >>> from hierax_lab.problems import random_qp
        >>> (known,) = random_qp(seed=3, nx=2, ny=4, p=2).solutions
        >>> known.x.shape, known.y.shape
        ((2,), (4,))

    References:
        docs/start/which-method.md (problems with planted solutions)
    """
    if min(nx, ny) < 1 or min(p, equalities) < 0 or not 1 <= p + equalities <= ny:
        raise InputError(
            f"nx={nx}, ny={ny}, p={p}, equalities={equalities}: needs dimensions of at least 1 and between 1 and ny "
            "constraints in all (more would be dependent)"
        )
    data = _planted(np.random.default_rng(seed), nx, ny, p, equalities)

    def upper(x: Array, y: Array, zeta: None) -> Array:
        del zeta
        wanted_x, wanted_y = jnp.asarray(data.target_x, x.dtype), jnp.asarray(data.target_y, y.dtype)
        return 0.5 * jnp.sum((x - wanted_x) ** 2) + 0.5 * jnp.sum((y - wanted_y) ** 2)

    def lower(x: Array, y: Array, xi: None) -> Array:
        del xi
        a, b, c = (jnp.asarray(part, y.dtype) for part in (data.matrix, data.linear, data.coupling))
        return 0.5 * jnp.vdot(y, a @ y) - jnp.vdot(b + c @ x, y)

    inequality_rows, equality_rows = (
        _Rows(*(part[which] for part in data.rows)) for which in (slice(p), slice(p, None))
    )
    rows = {"constraints": inequality_rows, "equalities": equality_rows}
    stated = {name: part.values for name, part in rows.items() if part.level.size}
    problem = Problem(upper=upper, lower=lower, x_set=Box(-X_BOUND, X_BOUND), **stated)
    known = Known(
        x=data.x,
        y=data.y,
        multipliers=data.multipliers[:p] if p else None,
        upper=float(0.5 * np.sum((data.x - data.target_x) ** 2) + 0.5 * np.sum((data.y - data.target_y) ** 2)),
        equality_multipliers=data.multipliers[p:] if equalities else None,
    )
    return Example(problem, x0=data.x0, y0=np.zeros(ny), solutions=[known], source=SOURCE)


def _planted(rng: np.random.Generator, nx: int, ny: int, p: int, equalities: int) -> _Data:
    """Draw the data and the solution, and fit e, b and x_t to the solution."""
    active, total = (p + 1) // 2, p + equalities
    at_bound = np.arange(nx) < nx // 5
    x = np.where(at_bound, rng.choice([-X_BOUND, X_BOUND], nx), rng.uniform(-1.0, 1.0, nx))
    y = random_direction(rng, ny, norm=1.0)
    factor = random_factor(rng, ny, largest=5.0)
    matrix = factor.T @ factor
    coupling = rng.standard_normal((ny, nx)) / np.sqrt(nx)
    normals = rng.standard_normal((total, ny))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    slopes = rng.standard_normal((total, nx))
    slopes /= np.linalg.norm(slopes, axis=1, keepdims=True)

    # Lower level: e makes the rows' values -slack, b makes the gradient of the Lagrangian vanish.
    slack = np.concatenate([planted_slack(rng, p, active), np.zeros(equalities)])
    signs = rng.choice([-1.0, 1.0], equalities)
    multipliers = np.concatenate(
        [planted_multipliers(rng, p, active, mean=1.0), signs * planted_multipliers(rng, equalities, equalities, 1.0)]
    )
    rows = _Rows(normals, slopes, normals @ y + slopes @ x + slack)
    linear = matrix @ y - coupling @ x + normals.T @ multipliers

    # Upper level: differentiate the KKT system of the active rows, then choose x_t so that the hyper-gradient is zero
    # where x* is inside the box and points out of the box where it is on a bound.
    tight = slack == 0.0
    kkt = np.block([[matrix, normals[tight].T], [normals[tight], np.zeros((tight.sum(), tight.sum()))]])
    dy_dx = np.linalg.solve(kkt, np.concatenate([coupling, -slopes[tight]]))[:ny]
    target_y = y + random_direction(rng, ny, norm=1.0)
    outwards = np.where(at_bound, np.sign(x) * rng.uniform(0.5, 1.5, nx), 0.0)
    target_x = x + dy_dx.T @ (y - target_y) + outwards
    x0 = np.clip(x + 0.3 * rng.standard_normal(nx), -X_BOUND, X_BOUND)
    return _Data(matrix, linear, coupling, rows, target_x, target_y, x, y, multipliers, x0)
