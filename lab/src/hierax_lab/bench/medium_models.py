"""Problems of `hierax bench medium` from economics and traffic: portfolios, followers with budgets, tolls."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hierax import Box, Free, NonNegative, Problem, Simplex
from hierax_lab.bench.medium_case import Affine, Bounds, MediumCase

SIDE = 3  # of the square grid of the traffic network: nine nodes
ORIGINS = {0: {8: 0.6, 5: 0.4}, 2: {6: 0.6, 3: 0.4}}  # demand by origin and destination
TOLLED = (0, 3, 6, 9, 12, 15, 18, 21)  # every third link


def portfolio(assets: int) -> MediumCase:
    """A robust portfolio: maximise t over w in the simplex s.t. t <= w'y for the worst y in an ellipsoid.

        min -t  s.t.  t - w'y <= 0,   y = argmin { w'y : sum_i ((y_i - c_i) / s_i)^2 <= 1.5^2 },
        c_i = 1.15 + 0.05 i/N,  s_i = 0.05 / (3N) sqrt(2 N i (N + 1)),  i = 1..N

    After A. Ben-Tal, A. Nemirovski: Robust solutions of uncertain linear programs (1999). The worst return of w is
    c'w - 1.5 sqrt(sum (s_i w_i)^2), concave, and its gradient at equal weights is 1.15 in every entry: equal weights
    are optimal with t = 1.15. The start has weights in proportion to i.
    """
    i = np.arange(1, assets + 1)
    centre, spread = 1.15 + 0.05 * i / assets, 0.05 / (3 * assets) * np.sqrt(2.0 * assets * i * (assets + 1))

    def constraints(x: PyTree, y: jax.Array) -> jax.Array:
        del x
        c, s = jnp.asarray(centre, y.dtype), jnp.asarray(spread, y.dtype)
        return jnp.sum(((y - c) / s) ** 2) - 1.5**2

    problem = Problem(
        upper=lambda x, y, zeta: -x["t"],
        lower=lambda x, y, xi: x["w"] @ y,
        constraints=constraints,
        upper_constraints=lambda x, y: x["t"] - x["w"] @ y,
        x_set={"t": Free(), "w": Simplex()},
    )
    low, high = np.append(-np.inf, np.zeros(assets)), np.full(assets + 1, np.inf)
    return MediumCase(
        problem,
        problem,
        {"t": np.asarray(1.0), "w": i / i.sum()},
        centre,
        Bounds(low, high),
        Bounds.free(assets),
        x_equalities=Affine(np.append(0.0, np.ones(assets))[None], np.ones(1)),
        quadratic_rows=True,
        best=-1.15,
    )


def followers(goods: int = 5, count: int = 20, seed: int = 0) -> MediumCase:
    """Prices p of goods against followers with budgets: maximise revenue minus cost, sum_i (p - cost)'q_i.

        q_i = argmin { 1/2 q'D_i q - (a_i - p)'q : q >= 0, p'q <= b_i },  0.5 <= p <= 4

    D_i = diag(uniform [0.5, 1.5]) + 0.2 11' / goods, a_i uniform in [2, 4], b_i uniform in [1, 4], cost 0.5. The budget
    couples p and q; the lower level is strictly convex. The best prices are not known.
    """
    own, wish, budget = wishes(goods, count, seed)

    def lower(x: jax.Array, y: jax.Array, xi: None) -> jax.Array:
        del xi
        a, d = jnp.asarray(wish, y.dtype), jnp.asarray(own, y.dtype)
        utility = jnp.sum((a - x[None, :]) * y) - 0.5 * jnp.sum(d * y**2)
        return 0.1 / goods * jnp.sum(jnp.sum(y, axis=1) ** 2) - utility

    problem = Problem(
        upper=lambda x, y, zeta: -jnp.sum(y @ (x - 0.5)),
        lower=lower,
        constraints=lambda x, y: y @ x - jnp.asarray(budget, y.dtype),
        x_set=Box(0.5, 4.0),
        y_set=NonNegative(),
    )
    size = goods * count
    return MediumCase(
        problem,
        problem,
        np.full(goods, 1.0),
        np.full((count, goods), 0.1),
        Bounds.between(0.5, 4.0, goods),
        Bounds(np.zeros(size), np.full(size, np.inf)),
    )


def wishes(goods: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The diagonals D_i, the a_i and the budgets of `followers`."""
    rng = np.random.default_rng(seed)
    own, wish = rng.uniform(0.5, 1.5, (count, goods)), rng.uniform(2.0, 4.0, (count, goods))
    return own, wish, rng.uniform(1.0, 4.0, count)


def traffic(seed: int = 0) -> MediumCase:
    """Tolls on a network of nine nodes: total travel time at the users' equilibrium.

        min over 0 <= tau <= 2 of  sum_a v_a t_a(v_a) + 0.01 |tau|^2
        v = argmin { sum_a T_a(v_a) + tau_a v_a : flows of both origins conserved and >= 0, v_a <= capacity_a }

    with t_a(v) = r_a (1 + 0.15 (v / k_a)^4), the cost of the US Bureau of Public Roads, and its integral
    T_a(v) = r_a (v + 0.03 v^5 / k_a^4): M. Beckmann, C. McGuire, C. Winsten: Studies in the economics of transportation
    (1956). The 24 links go both ways along a 3 x 3 grid; r_a is uniform in [0.5, 1.5], k_a in [0.4, 0.8], the
    capacity is 1.5 k_a. y holds the flows by origin; v is their sum, unique where the split by origin is not.
    """
    rng = np.random.default_rng(seed)
    incidence, sent = _network()
    links = incidence.shape[1]
    free_time, practical = rng.uniform(0.5, 1.5, links), rng.uniform(0.4, 0.8, links)

    def numbers(like: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(free_time, like.dtype), jnp.asarray(practical, like.dtype)

    def lower(x: jax.Array, y: jax.Array, xi: None) -> jax.Array:
        del xi
        (r, k), v = numbers(y), jnp.sum(y, axis=0)
        return jnp.sum(r * (v + 0.03 * v**5 / k**4)) + x @ v[jnp.asarray(TOLLED)]

    def upper(x: jax.Array, y: jax.Array, zeta: None) -> jax.Array:
        del zeta
        (r, k), v = numbers(y), jnp.sum(y, axis=0)
        return jnp.sum(r * (v + 0.15 * v**5 / k**4)) + 0.01 * x @ x

    def conserved(x: jax.Array, y: jax.Array) -> jax.Array:
        """All nodes but the last: its balance follows from the others."""
        del x
        return (y @ jnp.asarray(incidence, y.dtype).T - jnp.asarray(sent, y.dtype))[:, :-1]

    problem = Problem(
        upper=upper,
        lower=lower,
        constraints=lambda x, y: jnp.sum(y, axis=0) - 1.5 * numbers(y)[1],
        equalities=conserved,
        x_set=Box(0.0, 2.0),
        y_set=NonNegative(),
    )
    size = links * len(ORIGINS)
    return MediumCase(
        problem,
        problem,
        np.zeros(len(TOLLED)),
        np.full((len(ORIGINS), links), 0.1),
        Bounds.between(0.0, 2.0, len(TOLLED)),
        Bounds(np.zeros(size), np.full(size, np.inf)),
        quadratic=False,
    )


def _network() -> tuple[np.ndarray, np.ndarray]:
    """The incidence matrix (1 at the tail of a link, -1 at its head), and what each origin sends into each node."""
    tails, heads = _grid_links()
    links = np.arange(len(tails))
    incidence = np.zeros((SIDE**2, len(tails)))
    incidence[tails, links], incidence[heads, links] = 1.0, -1.0
    sent = np.zeros((len(ORIGINS), SIDE**2))
    for row, (origin, demands) in enumerate(ORIGINS.items()):
        sent[row, origin] = sum(demands.values())
        sent[row, list(demands)] = -np.array(list(demands.values()))
    return incidence, sent


def _grid_links() -> tuple[np.ndarray, np.ndarray]:
    """Tails and heads of the links between neighbours of the grid, both ways."""
    nodes = np.arange(SIDE**2).reshape(SIDE, SIDE)
    pairs = [(nodes[:, :-1], nodes[:, 1:]), (nodes[:-1], nodes[1:])]
    tails = np.concatenate([one.ravel() for one, _ in pairs])
    heads = np.concatenate([other.ravel() for _, other in pairs])
    return np.concatenate([tails, heads]), np.concatenate([heads, tails])
