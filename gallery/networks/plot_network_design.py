r"""
Which roads to widen
====================

A county has money to widen some of its roads. Drivers choose their routes themselves, so a wider road draws traffic
from elsewhere, and what it brings is known only when everybody has moved. Planners call this the continuous network
design problem (Abdulaal and LeBlanc 1979), and test it on networks such as Sioux Falls. Here is a smaller one: nine
towns in a square, 24 one-way roads, four groups of drivers.

Upper level: capacities :math:`x_a` (thousand vehicles per hour) to be added to six roads, such that total travel time
plus the cost of building is least. Lower level: the drivers' equilibrium, route flows :math:`y \ge 0` (thousand
vehicles per hour) that minimise the integrals of the travel times over the flows :math:`v_a(y)` of the roads, subject
to the demand of every group. Travel times are those of the Bureau of Public Roads:

.. math:: t_a(v) = t_a^0 \left(1 + 0.15 \left(\frac{v}{c_a + x_a}\right)^4\right) .
"""

import itertools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import LinearConstraint, minimize
from scipy.sparse.csgraph import dijkstra

import hierax as hx

jax.config.update("jax_enable_x64", True)  # the fourth power of the flows needs the digits

# %%
# The network
# -----------
# Towns are 0 to 8, row by row. Routes are all that come nearer to their destination with every road.
steps = lambda i, j: abs(i // 3 - j // 3) + abs(i % 3 - j % 3)
ROADS = [road for road in itertools.permutations(range(9), 2) if steps(*road) == 1]
rng = np.random.default_rng(4)
FREE, CAPACITY = (rng.uniform(*ends, len(ROADS)).round(1) for ends in ((4.0, 8.0), (1.5, 4.0)))  # minutes; thousand/h
GROUPS, DEMAND = [(0, 8), (2, 6), (6, 2), (1, 8)], np.array([6.0, 4.0, 3.0, 2.0])  # from, to; thousand vehicles/h


def routes(i, j):
    """All routes from town i to town j, as lists of roads."""
    ahead = [a for a, (p, q) in enumerate(ROADS) if p == i and steps(q, j) < steps(i, j)]
    return [[a, *rest] for a in ahead for rest in routes(ROADS[a][1], j)] if i != j else [[]]


ALL = [(g, route) for g, ends in enumerate(GROUPS) for route in routes(*ends)]
USES = np.array([[a in route for a in range(len(ROADS))] for _, route in ALL], float)  # 21 routes by 24 roads
OF_GROUP = np.array([[g == h for h in range(len(GROUPS))] for g, _ in ALL], float)
WIDENED = np.array([ROADS.index(road) for road in [(0, 3), (5, 8), (7, 8), (1, 4), (2, 5), (6, 7)]])
PRICE = 1.5 * FREE[WIDENED]  # of a thousand vehicles per hour, in thousand minutes of travel per hour
minutes = lambda x, v: FREE * (1.0 + 0.15 * (v / jnp.asarray(CAPACITY).at[WIDENED].add(x)) ** 4)  # of every road
planners = lambda x, y, _: jnp.sum(minutes(x, y @ USES) * (y @ USES)) + PRICE @ x  # thousand minutes per hour


def drivers(x, y, _):
    """Beckmann's function: times are t + s v^4, so their integral is v (4/5 t + 1/5 time)."""
    return jnp.sum((y @ USES) * (0.8 * FREE + 0.2 * minutes(x, y @ USES)))


problem = hx.Problem(
    upper=planners,
    lower=drivers,
    equalities=lambda x, y: {"demand": y @ OF_GROUP - DEMAND},
    x_set=hx.Box(0.0, 6.0),
    y_set=hx.NonNegative(),
)
y0 = OF_GROUP @ (DEMAND / OF_GROUP.sum(0))  # every group spread over its routes
sol = hx.solve(problem, np.ones(6), y0)
x, v = np.asarray(sol.x), np.asarray(sol.y) @ USES
print("added", {ROADS[a]: round(float(c), 3) for a, c in zip(WIDENED, x, strict=True)}, "thousand vehicles per hour")

# %%
# Two checks
# ----------
# By Dijkstra's algorithm no driver can find a quicker route, over whatever roads. And SciPy's SLSQP, which solves the
# drivers' problem at the answer and at eleven points around it, finds the same cost there and no lower one nearby.
times = np.zeros((9, 9))
times[tuple(np.array(ROADS).T)] = minutes(x, v)
longer = USES @ np.asarray(minutes(x, v)) - [dijkstra(times)[GROUPS[g]] for g, _ in ALL]
assert np.all(longer[np.asarray(sol.y) > 1e-3] < 1e-3)  # minutes

beckmann = jax.jit(jax.value_and_grad(drivers, argnums=1))


def cost(x):
    """The planners' cost, thousand minutes per hour, with the equilibrium by SciPy."""
    fun = lambda y: [np.asarray(part, float) for part in beckmann(x, y, None)]
    limits = {"bounds": [(0, None)] * len(y0), "constraints": LinearConstraint(OF_GROUP.T, DEMAND, DEMAND)}
    found = minimize(fun, y0, jac=True, method="SLSQP", options={"ftol": 1e-13, "maxiter": 300}, **limits)
    return float(planners(x, found.x, None))


around = min(cost(np.clip(x + step, 0.0, 6.0)) for step in 0.2 * np.vstack([np.eye(6), -np.eye(6)[:5]]))
print(f"hierax {sol.value:.3f}, SciPy {cost(x):.3f}, around {around:.3f}, unbuilt {cost(0 * x):.3f} thousand minutes/h")
assert abs(cost(x) - sol.value) < 1e-3 and around > sol.value - 1e-3

# %%
# What is known
# -------------
# Roads have one flow, but routes do not: the certificate says that y is not unique. The cost is the same for all.
print(*(line for line in sol.log if "Globality" in line))
print(sol.certificate)

# %%
# Widths are flows; red roads were widened, by what is written beside them (thousand vehicles per hour).
fig, axis = plt.subplots(figsize=(6, 5.6))
for a, road in enumerate(ROADS):
    tail, head = (np.array([i % 3, -(i // 3)], float) for i in road)
    aside = 0.08 * np.array([(head - tail)[1], (tail - head)[0]])  # traffic keeps to the right
    added = dict(zip(WIDENED, x, strict=True)).get(a, 0.0)
    colour = "tab:red" if added > 0.01 else "0.55"
    arrow = {"arrowstyle": "-|>", "linewidth": max(v[a], 0.3), "color": colour, "shrinkA": 14, "shrinkB": 14}
    axis.annotate("", head + aside, tail + aside, arrowprops=arrow)
    axis.text(*(0.5 * (head + tail) + 3.2 * aside), f"+{added:.2f}" if added > 0.01 else "", ha="center", va="center")
for i in range(9):
    axis.text(i % 3, -(i // 3), i, ha="center", va="center", bbox={"boxstyle": "circle", "fc": "white"})
axis.set(xlim=(-0.3, 2.3), ylim=(-2.3, 0.3), frame_on=False, xticks=[], yticks=[])
plt.show()
