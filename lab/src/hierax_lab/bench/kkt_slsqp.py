"""The baseline "SLSQP" of `hierax bench bolib`: one run of SciPy's SLSQP on the lower level's KKT system.

    min F(x, y)   subject to   upper rows <= 0,   rows <= 0,   grad_y f + J_y' mu = 0,   mu >= 0,   -mu_i row_i <= t

over (x, y, mu), from the case's start and mu = 0; `rows` are those of the lower level and the bounds of y, t = 1e-8.
"""

import time
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from hierax.extend import lazy
from hierax_lab.bench.outside_judge import bounds_of
from hierax_lab.problems.bolib.case import Case

optimize, threadpoolctl = lazy("scipy.optimize"), lazy("threadpoolctl")

RELAXATION = 1e-8  # t
MAX_ITERATIONS, MIN_CHANGE = 60, 1e-12  # of SLSQP; of F between two iterations


class _TimeIsUp(Exception):
    """Holds nothing: the last point that SLSQP asked for is the answer."""


def kkt_slsqp(case: Case, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """The (x, y) at which SLSQP ends, after `seconds` at the latest."""
    x0, y0 = (np.asarray(part, float) for part in case.x0y0())
    system = _System(case, x0, y0)
    ends, latest = time.perf_counter() + seconds, [system.start]

    def objective(u: np.ndarray) -> tuple[float, np.ndarray]:
        if time.perf_counter() > ends:
            raise _TimeIsUp
        latest[0] = u.copy()
        value, slope = system.upper(u)
        return float(value), np.asarray(slope)

    constraints = [
        {"type": kind, "fun": lambda u, of=of: np.asarray(of(u)), "jac": lambda u, of=slopes: np.asarray(of(u))}
        for kind, of, slopes in (("ineq", *system.above), ("eq", *system.equal))
    ]
    with threadpoolctl.threadpool_limits(1, user_api="blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            found = optimize.minimize(
                objective,
                system.start,
                jac=True,
                bounds=system.bounds,
                constraints=constraints,
                method="SLSQP",
                options={"maxiter": MAX_ITERATIONS, "ftol": MIN_CHANGE},
            ).x
        except _TimeIsUp:
            found = latest[0]
    x, y, _ = system.split(found)
    return np.asarray(x), np.asarray(y)


class _System:
    """The functions of u = (x, y, mu), compiled, with their derivatives."""

    def __init__(self, case: Case, x0: np.ndarray, y0: np.ndarray) -> None:
        nx, ny = x0.size, y0.size
        low, high = bounds_of(case.y_set, ny)
        at_low, at_high = np.flatnonzero(np.isfinite(low)), np.flatnonzero(np.isfinite(high))

        def rows(x: jax.Array, y: jax.Array) -> jax.Array:
            own = jnp.stack(case.rows(x, y)) if case.rows else jnp.zeros(0)
            return jnp.concatenate([own, low[at_low] - y[at_low], y[at_high] - high[at_high]])

        def split(u: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            return u[:nx], u[nx : nx + ny], u[nx + ny :]

        def above(u: jax.Array) -> jax.Array:
            x, y, mu = split(u)
            upper = jnp.stack(case.upper_rows(x, y)) if case.upper_rows else jnp.zeros(0)
            return jnp.concatenate([-upper, -rows(x, y), RELAXATION + mu * rows(x, y)])

        def equal(u: jax.Array) -> jax.Array:
            x, y, mu = split(u)
            return jax.grad(lambda y: case.lower(x, y) + mu @ rows(x, y))(y)

        self.split = split
        self.start = np.concatenate([x0, y0, np.zeros(rows(jnp.asarray(x0), jnp.asarray(y0)).size)])
        sides = [*zip(*bounds_of(case.x_set, nx), strict=True), *zip(low, high, strict=True)]
        self.bounds = sides + [(0.0, np.inf)] * (self.start.size - nx - ny)
        self.upper = jax.jit(jax.value_and_grad(lambda u: case.upper(*split(u)[:2])))
        self.above, self.equal = _with_slopes(above), _with_slopes(equal)


def _with_slopes(function: Callable[[jax.Array], jax.Array]) -> tuple[Callable, Callable]:
    return jax.jit(function), jax.jit(jax.jacfwd(function))
