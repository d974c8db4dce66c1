"""Large sparse lower levels with a planted solution: chains, membranes over obstacles, flows through networks.

Each is a strictly convex quadratic program, min y'Hy/2 + (c + Cx)'y s.t. Ay <= b + Mx, Ey = e, of which every row has a
few entries, stated as one would write it (differences of neighbours, sums per node). y*, the multipliers and the active
rows are drawn, c, b and e follow from them, so that no size needs a solver. With the derivative D of y*(x) at x*

    F = g'(y - y*) + 1/2 |y - y*|^2 - (D'g)'(x - x*) + 2 |x - x*|^2

is stationary along y*(x) at x*, with F = 0; D'g takes one sparse linear system. Where the active rows stay, F along
y*(x) is 2 |x - x*|^2 plus a square, so x* is a strict local solution; other pieces of y*(x) may hold lower values.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierax import Box, NonNegative, Problem
from hierax.extend import lazy
from hierax.problems.example import Example, Known

sparse, sparse_linalg = lazy("scipy.sparse"), lazy("scipy.sparse.linalg")

SOURCE = "hierax: large sparse quadratic programs with a planted solution."
MARGIN = 0.05  # least slack of inactive rows and least multiplier of active ones
ACTIVE = 0.3  # share of the rows or bounds that hold with equality
PULL = 0.1  # curvature that every entry of y has of its own

Matrix = Any  # of scipy.sparse
Array = np.ndarray


def chain(n: int = 1000, controls: int = 5, seed: int = 0) -> Example:
    """n heights in a row, held together by springs, that rise at most so much from one to the next; y >= 0.

        y*(x) = argmin { sum (y_{i+1} - y_i)^2 / 2 + 0.05 |y|^2 + (c + x_{s(i)})'y : y_{i+1} - y_i <= b_i, y >= 0 }

    Entry s(i) of x, one of `controls`, acts on a stretch of equal length.

    Args:
        n: entries of y.
        controls: entries of x.
        seed: seed of the data.

    Returns:
        The example, with one local solution, where F = 0.

    Examples:
        >>> from hierax_lab.problems import chain
        >>> example = chain(50)
        >>> example.y0.shape, example.solutions[0].upper
        ((50,), 0.0)

    References:
        docs/benchmarks/cost.md (whole calls)
    """
    rng = np.random.default_rng(seed)
    steps = sparse.diags([-np.ones(n), np.ones(n - 1)], [0, 1], shape=(n - 1, n), format="csr")
    stretch = np.arange(n) * controls // n
    y = rng.uniform(0.5, 1.5, n)
    at_zero = np.repeat(rng.uniform(size=n // 10 + 1) < ACTIVE, 10)[:n]
    y[at_zero] = 0.0
    held = (rng.uniform(size=n - 1) < ACTIVE) & ~(at_zero[1:] & at_zero[:-1])
    limits = steps @ y + np.where(held, 0.0, rng.uniform(MARGIN, 0.5, n - 1))
    hessian = steps.T @ steps + PULL * sparse.eye(n)
    normals = sparse.vstack([steps[held], -sparse.eye(n, format="csr")[at_zero]])
    coupling = sparse.csc_matrix((np.ones(n), (np.arange(n), stretch)), (n, controls))
    moves = sparse.csc_matrix((normals.shape[0], controls))
    known, cost, upper = _planted(rng, hessian, normals, coupling, moves, (y, at_zero.sum() + held.sum()))

    def lower(x: jax.Array, y: jax.Array, xi: None) -> jax.Array:
        del xi
        springs = 0.5 * jnp.sum(jnp.diff(y) ** 2) + 0.5 * PULL * y @ y
        return springs + (jnp.asarray(cost, y.dtype) + x[stretch]) @ y

    problem = Problem(
        upper=upper,
        lower=lower,
        constraints=lambda x, y: jnp.diff(y) - jnp.asarray(limits, y.dtype),
        x_set=Box(-1.0, 1.0),
        y_set=NonNegative(),
    )
    multipliers = np.zeros(n - 1)
    multipliers[held] = known.multipliers[: held.sum()]
    return _example(problem, known._replace(multipliers=multipliers), np.zeros(n))


def membrane(side: int = 30, controls: int = 4, seed: int = 0) -> Example:
    """A membrane on a square of side x side nodes, zero around it, above an obstacle that x lifts in strips.

        y*(x) = argmin { sum over neighbours (y_i - y_j)^2 / 2 + 0.05 |y|^2 + (c + x_{s(i)})'y : y_i >= o_i + x_{s(i)} }

    Entry s(i) of x, one of `controls`, also loads the strip.

    Args:
        side: nodes of a side; y has side x side entries.
        controls: entries of x.
        seed: seed of the data.

    Returns:
        The example, with one local solution, where F = 0.

    Examples:
        >>> from hierax_lab.problems import membrane
        >>> membrane(8).y0.shape
        (8, 8)

    References:
        docs/benchmarks/cost.md (whole calls)
    """
    rng, n = np.random.default_rng(seed), side**2
    edges = sparse.diags([np.ones(side), -np.ones(side)], [0, -1], shape=(side + 1, side), format="csr")
    along = edges.T @ edges
    hessian = sparse.kron(along, sparse.eye(side)) + sparse.kron(sparse.eye(side), along) + PULL * sparse.eye(n)
    strip = np.repeat(np.arange(side) * controls // side, side)
    y, held = rng.normal(size=n), rng.uniform(size=n) < ACTIVE
    coupling = sparse.csc_matrix((np.ones(n), (np.arange(n), strip)), (n, controls))
    normals, moves = -sparse.eye(n, format="csr")[held], -coupling[held]
    known, cost, upper = _planted(rng, hessian, normals, coupling, moves, (y, held.sum()))
    obstacle = y - np.where(held, 0.0, rng.uniform(MARGIN, 0.5, n)) - known.x[strip]

    def lower(x: jax.Array, y: jax.Array, xi: None) -> jax.Array:
        del xi
        whole = jnp.pad(y, 1)
        stretched = jnp.sum(jnp.diff(whole, axis=0) ** 2) + jnp.sum(jnp.diff(whole, axis=1) ** 2)
        loads = jnp.asarray(cost, y.dtype) + x[strip]
        return 0.5 * stretched + 0.5 * PULL * jnp.sum(y**2) + loads @ y.ravel()

    problem = Problem(
        upper=lambda x, y, zeta: upper(x, y.ravel(), zeta),
        lower=lower,
        constraints=lambda x, y: jnp.asarray(obstacle, y.dtype) + x[strip] - y.ravel(),
        x_set=Box(-1.0, 1.0),
    )
    multipliers = np.zeros(n)
    multipliers[held] = known.multipliers
    known = known._replace(y=y.reshape(side, side), multipliers=multipliers)
    return _example(problem, known, np.zeros((side, side)))


def flows(side: int = 6, goods: int = 6, controls: int = 4, seed: int = 0) -> Example:
    """Flows of several goods on a grid of side x side nodes, links both ways; x is tolls on `controls` of the links.

        y*(x) = argmin { sum over links (q_a v_a^2 / 2 + x_a v_a) + 0.05 |y|^2 + c'y : outflow - inflow = e, y >= 0 }

    v_a is what all goods together send through link a. The term 0.05 |y|^2 makes the flows of single goods unique.

    Args:
        side: nodes of a side.
        goods: goods; y has goods x (4 side (side - 1)) entries.
        controls: entries of x.
        seed: seed of the data.

    Returns:
        The example, with one local solution, where F = 0.

    Examples:
        >>> from hierax_lab.problems import flows
        >>> flows(3, goods=2).y0.shape
        (2, 24)

    References:
        docs/benchmarks/cost.md (whole calls)
    """
    rng, nodes = np.random.default_rng(seed), np.arange(side**2).reshape(side, side)
    pairs = [(nodes[:, :-1], nodes[:, 1:]), (nodes[:-1], nodes[1:])]
    ones, others = (np.concatenate([pair[i].ravel() for pair in pairs]) for i in (0, 1))
    tail, head = np.concatenate([ones, others]), np.concatenate([others, ones])
    links = np.arange(tail.size)
    tree = ((links < ones.size) & (ones[links % ones.size] % side == 0)) | (links < side * (side - 1))
    entries = np.concatenate([np.ones(tail.size), -np.ones(tail.size)])
    shape = side**2, tail.size
    incidence = sparse.csr_matrix((entries, (np.concatenate([tail, head]), np.tile(links, 2))), shape)[:-1]
    used = (rng.uniform(size=(goods, tail.size)) > ACTIVE) | tree
    flow = np.where(used, rng.uniform(0.2, 1.0, used.shape), 0.0)
    crowd = rng.uniform(0.5, 1.5, tail.size) / goods
    tolled = rng.choice(tail.size, controls, replace=False)
    supply = flow @ incidence.T
    hessian = sparse.kron(np.ones((goods, goods)), sparse.diags(crowd)) + PULL * sparse.eye(flow.size)
    at_zero = -sparse.eye(flow.size, format="csr")[~used.ravel()]
    normals = sparse.vstack([at_zero, sparse.kron(sparse.eye(goods), incidence)])
    coupling = sparse.kron(np.ones((goods, 1)), sparse.eye(tail.size, format="csc")[:, tolled])
    moves = sparse.csc_matrix((normals.shape[0], controls))
    known, cost, upper = _planted(rng, hessian, normals, coupling, moves, (flow.ravel(), at_zero.shape[0]))
    cost = cost.reshape(flow.shape)

    def lower(x: jax.Array, y: jax.Array, xi: None) -> jax.Array:
        del xi
        v = jnp.sum(y, axis=0)
        crowded = 0.5 * jnp.asarray(crowd, y.dtype) @ v**2 + x @ v[tolled]
        return crowded + 0.5 * PULL * jnp.sum(y**2) + jnp.sum(jnp.asarray(cost, y.dtype) * y)

    def balance(x: jax.Array, y: jax.Array) -> jax.Array:
        del x
        sent = jnp.zeros((goods, side**2), y.dtype).at[:, tail].add(y).at[:, head].add(-y)
        return sent[:, :-1] - jnp.asarray(supply, y.dtype)

    problem = Problem(
        upper=lambda x, y, zeta: upper(x, y.ravel(), zeta),
        lower=lower,
        equalities=balance,
        x_set=Box(-1.0, 1.0),
        y_set=NonNegative(),
    )
    equal = known.multipliers[at_zero.shape[0] :].reshape(supply.shape)
    return _example(problem, known._replace(y=flow, multipliers=None, equality_multipliers=equal), np.zeros(flow.shape))


def _planted(
    rng: np.random.Generator,
    hessian: Matrix,
    normals: Matrix,
    coupling: Matrix,
    moves: Matrix,
    drawn: tuple[Array, int],
) -> tuple[Known, Array, Callable[..., jax.Array]]:
    """The solution, the cost c that makes y optimal below at x*, and F; the first of the normals are inequalities."""
    (y, inequalities), controls = drawn, coupling.shape[1]
    x, gradient = rng.uniform(-0.5, 0.5, controls), rng.normal(size=y.size) / np.sqrt(y.size)
    multipliers = rng.normal(size=normals.shape[0])
    multipliers[:inequalities] = rng.uniform(MARGIN, 1.0, inequalities)
    cost = -(hessian @ y + normals.T @ multipliers + coupling @ x)
    matrix = sparse.bmat([[hessian, normals.T], [normals, None]], format="csc")
    adjoint = sparse_linalg.spsolve(matrix, np.concatenate([-gradient, np.zeros(len(multipliers))]))
    slope = coupling.T @ adjoint[: y.size] - moves.T @ adjoint[y.size :]

    def upper(x_: jax.Array, y_: jax.Array, zeta: None) -> jax.Array:
        del zeta
        dx, dy = x_ - jnp.asarray(x, x_.dtype), y_ - jnp.asarray(y, y_.dtype)
        planted = jnp.asarray(gradient, y_.dtype) @ dy - jnp.asarray(slope, x_.dtype) @ dx
        return planted + 0.5 * dy @ dy + 2.0 * dx @ dx

    return Known(x, y, multipliers, 0.0), cost, upper


def _example(problem: Problem, known: Known, y0: Array) -> Example:
    return Example(problem, x0=np.zeros(known.x.size), y0=y0, solutions=[known], source=SOURCE)
