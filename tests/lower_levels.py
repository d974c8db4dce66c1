"""Random lower levels with every kind of row and set, and the same problems for SciPy and for Clarabel itself.

y is a dict of four pairs of numbers, one in a box, one >= 0, one in a simplex, one in a ball. So one compiled program
solves all problems, and each has affine inequalities, an equality, ellipsoids and the faces of all sets. By seed, some
kinds are made so loose that they play no part.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.sparse

import hierax as hx
from hierax import Exact
from hierax.extend import LowerSolution

SEEDS = range(100)
N = 8
START = {"ball": jnp.zeros(2), "box": jnp.zeros(2), "positive": jnp.ones(2), "simplex": jnp.full(2, 0.5)}
SETS = {"ball": hx.Ball(0.8), "box": hx.Box(-0.5, 0.5), "positive": hx.NonNegative(), "simplex": hx.Simplex(1.5)}


class Instance(NamedTuple):
    """min 1/2 y'Py + q'y with A y <= b, E y = e and 1/2 sum_k Q_ik (y_k - m_ik)^2 <= level_i."""

    P: Any
    q: Any
    A: Any
    b: Any
    E: Any
    e: Any
    Q: Any
    m: Any
    level: Any


def draw(seed: int) -> Instance:
    """A problem with a point that satisfies everything, most of it strictly."""
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((N, N))
    inside = np.concatenate(
        [rng.uniform(-0.5, 0.5, 2), rng.uniform(-0.4, 0.4, 2), rng.uniform(0.1, 1.0, 2), [0.5, 1.0]]
    )
    loose = np.array([0.0, 100.0, 0.0, 0.0, 100.0])[seed % 5]
    loose_balls = np.array([0.0, 0.0, 100.0, 0.0, 100.0])[seed % 5]
    A, E, Q, m = (
        rng.standard_normal((3, N)),
        rng.standard_normal((1, N)),
        rng.uniform(0.3, 2.0, (2, N)),
        0.3 * rng.standard_normal((2, N)),
    )
    if seed % 5 == 3:
        E = 0 * E
    return Instance(
        P=factor @ factor.T / N + 0.5 * np.eye(N),
        q=2 * rng.standard_normal(N),
        A=A,
        b=A @ inside + rng.uniform(0.02, 0.3, 3) + loose,
        E=E,
        e=E @ inside,
        Q=Q,
        m=m,
        level=0.5 * np.sum(Q * (inside - m) ** 2, 1) + rng.uniform(0.02, 0.3, 2) + loose_balls,
    )


INSTANCES = [draw(seed) for seed in SEEDS]
STACKED = Instance(*(jnp.asarray(np.stack(column)) for column in zip(*INSTANCES, strict=True)))


def vector(y: dict[str, Any]) -> jax.Array:
    """The dict as a vector, in the order of its keys."""
    return jnp.concatenate([y[key] for key in sorted(y)])


def problem_of(one: Instance) -> hx.Problem:
    """The lower level; the functions close over the instance's arrays, traced or not."""

    def constraints(x: Any, y: dict[str, Any]) -> dict[str, jax.Array]:
        v = vector(y)
        return {"affine": one.A @ v - one.b, "balls": 0.5 * jnp.sum(one.Q * (v[None] - one.m) ** 2, 1) - one.level}

    return hx.Problem(
        upper=lambda x, y, zeta: jnp.sum(y["box"]),
        lower=lambda x, y, xi: 0.5 * vector(y) @ one.P @ vector(y) + one.q @ vector(y),
        constraints=constraints,
        equalities=lambda x, y: one.E @ vector(y) - one.e,
        y_set=SETS,
    )


@functools.cache
def by_exact() -> LowerSolution:
    """All of them by Exact, from a cold start and by one compiled program."""
    return jax.jit(jax.vmap(lambda one: Exact().solve(problem_of(one), None, START)))(STACKED)


class Reference(NamedTuple):
    """What another solver found: y, the objective, multipliers of A, of the ellipsoids and of E."""

    y: np.ndarray
    value: float
    affine: np.ndarray
    balls: np.ndarray
    equal: np.ndarray


def rows_of(one: Instance, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Values and gradients of all inequalities (A, ellipsoids, ball, box, positive, simplex), then of equalities."""
    below = [one.A @ y - one.b, 0.5 * np.sum(one.Q * (y - one.m) ** 2, 1) - one.level]
    slopes = [one.A, one.Q * (y - one.m)]
    below += [[y[:2] @ y[:2] - 0.64], y[2:4] - 0.5, -0.5 - y[2:4], -y[4:]]
    slopes += [[np.concatenate([2 * y[:2], np.zeros(6)])], np.eye(N)[2:4], -np.eye(N)[2:4], -np.eye(N)[4:]]
    total = np.concatenate([np.zeros(6), np.ones(2)])
    equal, normals = np.append(one.E @ y - one.e, total @ y - 1.5), np.vstack([one.E, total])
    return np.concatenate(below), np.vstack(slopes), equal, normals


def same_as(other: Reference, mine: LowerSolution, one: Instance) -> None:
    """The objective to 1e-7, multipliers to 1e-5."""
    np.testing.assert_allclose(mine.value, other.value, rtol=1e-7)
    close = 1e-5 * (1 + max(np.max(np.abs(part)) for part in other[2:]))
    np.testing.assert_allclose(mine.multipliers.inequalities["affine"], other.affine, atol=close)
    np.testing.assert_allclose(mine.multipliers.inequalities["balls"], other.balls, atol=close)
    if one.E.any():  # a row of zeros has no multiplier
        np.testing.assert_allclose(mine.multipliers.equalities, other.equal, atol=close)


def by_scipy(one: Instance) -> Reference:
    """SLSQP, and multipliers by nonnegative least squares on the rows that are active at its point."""
    flat = not one.E.any()  # SLSQP takes no row of zeros
    found = scipy.optimize.minimize(
        lambda y: 0.5 * y @ one.P @ y + one.q @ y,
        np.concatenate([np.zeros(4), np.full(2, 0.5), [0.5, 1.0]]),
        jac=lambda y: one.P @ y + one.q,
        method="SLSQP",
        constraints=[
            {"type": "ineq", "fun": lambda y: -rows_of(one, y)[0], "jac": lambda y: -rows_of(one, y)[1]},
            {"type": "eq", "fun": lambda y: rows_of(one, y)[2][flat:], "jac": lambda y: rows_of(one, y)[3][flat:]},
        ],
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert found.status in (0, 8), found.message  # 8: the line search ran into rounding errors
    y = found.x
    below, slopes, _, normals = rows_of(one, y)
    active = np.flatnonzero(below > -1e-6)
    columns = np.concatenate([slopes[active].T, normals.T, -normals.T], axis=1)
    weights, _ = scipy.optimize.nnls(columns, -(one.P @ y + one.q))
    mu = np.zeros(below.size)
    mu[active] = weights[: active.size]
    free = weights[active.size : active.size + 2] - weights[active.size + 2 :]
    return Reference(y, float(found.fun), mu[:3], mu[3:5], free[:1])


def by_clarabel(one: Instance) -> Reference:
    """Clarabel without hierax: ellipsoids as |sqrt(Q) (y - m)| <= sqrt(2 level), whose multiplier is z_0 / radius."""
    import clarabel

    radius = np.sqrt(2 * one.level)
    total = np.concatenate([np.zeros(6), np.ones(2)])
    blocks = [one.E, total[None], one.A, np.eye(N)[2:4], -np.eye(N)[2:4], -np.eye(N)[4:]]
    offsets = [one.e, [1.5], one.b, np.full(4, 0.5), np.zeros(4)]
    cones = [clarabel.ZeroConeT(2), clarabel.NonnegativeConeT(11)]
    for root, centre, bound in zip(np.sqrt(one.Q), one.m, radius, strict=True):
        blocks += [np.vstack([np.zeros(N), -np.diag(root)])]
        offsets += [np.concatenate([[bound], -root * centre])]
        cones += [clarabel.SecondOrderConeT(N + 1)]
    blocks += [np.vstack([np.zeros(N), -np.eye(N)[:2]])]
    offsets += [[0.8, 0.0, 0.0]]
    cones += [clarabel.SecondOrderConeT(3)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    found = clarabel.DefaultSolver(
        scipy.sparse.csc_matrix(np.triu(one.P)),
        one.q,
        scipy.sparse.csc_matrix(np.vstack(blocks)),
        np.concatenate(offsets),
        cones,
        settings,
    ).solve()
    y, z = np.array(found.x), np.array(found.z)
    value = float(0.5 * y @ one.P @ y + one.q @ y)
    return Reference(y, value, z[2:5], z[[13, 13 + N + 1]] / radius, z[:1])
