r"""
Braess's paradox, and the toll that undoes it
=============================================

Six thousand drivers an hour go from S to T, over A or over B. The roads S-A and B-T are short and jam; A-T and S-B
are long and wide. A city opens a bridge from A to B, and every driver loses nine minutes: each gains by taking the
bridge, and all of them together jam the short roads (Braess 1968; his numbers are used here). The city cannot tell
drivers where to drive, but it can charge a toll on the bridge.

Upper level: the toll :math:`x` (minutes, the drivers' value of their time) that minimises the total time of all
trips. The city takes no interest in the revenue; of two tolls that do the same it prefers the smaller one. Lower
level: the drivers' equilibrium. Flows on the three routes (thousand per hour) minimise Beckmann's function, the
integrals of the travel times :math:`t_a` over the flows of the roads plus the tolls paid (Beckmann, McGuire and
Winsten 1956):

.. math:: \min_{y \ge 0}\; \sum_a \int_0^{v_a(y)} t_a(s)\,ds + x\,y_3 \quad\text{subject to}\quad y_1 + y_2 + y_3 = 6 .
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import hierax as hx

jax.config.update("jax_enable_x64", True)  # the toll is compared with the exact one to 1e-4 minutes

# Roads S-A, A-T, S-B, B-T and the bridge A-B: minutes when empty, and more per thousand vehicles an hour.
FREE, SLOPE = np.array([0.0, 50.0, 50.0, 0.0, 10.0]), np.array([10.0, 1.0, 1.0, 10.0, 1.0])
ROUTES = np.array([[1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [1, 0, 0, 1, 1]])  # over A, over B, over the bridge
DEMAND, DISLIKE = 6.0, 0.1  # thousand vehicles/h; thousand minutes per hour that a minute of toll counts for


def beckmann(toll, y, _):
    """The function that the drivers' equilibrium minimises."""
    v = y @ ROUTES
    return jnp.sum(FREE * v + 0.5 * SLOPE * v**2) + toll * y[2]


def total_time(y):
    """Thousand minutes on the road in an hour."""
    v = y @ ROUTES
    return jnp.sum((FREE + SLOPE * v) * v)


def stated(upper):
    """The toll problem with an upper objective."""
    return hx.Problem(
        upper=upper,
        lower=beckmann,
        equalities=lambda toll, y: {"all drivers": jnp.sum(y) - DEMAND},
        x_set=hx.Box(0.0, 40.0),
        y_set=hx.NonNegative(),
    )


start = np.full(3, DEMAND / 3)
sol = hx.solve(stated(lambda toll, y, _: total_time(y) + DISLIKE * toll), 5.0, start)
minutes = float(total_time(sol.y)) / DEMAND
print(f"toll {sol.x:.4f} minutes, routes {np.round(sol.y, 4)} thousand/h, {minutes:.4f} minutes per driver")

# %%
# What a private owner would charge
# ---------------------------------
# The same drivers, another upper level: the owner of the bridge wants revenue.
owner = hx.solve(stated(lambda toll, y, _: -toll * y[2]), 5.0, start)
print(f"revenue: toll {owner.x:.4f} minutes, {owner.y[2]:.4f} thousand vehicles/h on the bridge ({owner.status.name})")

# %%
# A check by hand
# ---------------
# By symmetry :math:`y_1 = y_2 = (6 - y_3)/2`. As long as the bridge is used, its route takes as long as the others:
# :math:`20 (6 + y_3)/2 + 10 + y_3 + x = 10 (6 + y_3)/2 + 50 + (6 - y_3)/2`, so :math:`y_3 = (26 - 2x)/13`. The bridge
# is empty from a toll of 13 minutes on, and drivers need 83 minutes instead of 92. The revenue :math:`x (26 - 2x)/13`
# is largest at 6.5 minutes.
bridge = lambda toll: np.maximum(0.0, (26.0 - 2.0 * toll) / 13.0)
assert abs(sol.x - 13.0) < 1e-4 and abs(minutes - 83.0) < 1e-3
assert abs(owner.x - 6.5) < 1e-3 and abs(owner.y[2] - bridge(6.5)) < 1e-3

# %%
# What is known
# -------------
# At 13 minutes the bridge's flow reaches zero: the total time has a kink there, and no gradient. The certificate says
# so, and looks at both sides.
print(sol.certificate)
print("The owner's:", owner.status.message)

# %%
tolls = np.linspace(0.0, 20.0, 81)
flows = np.array([[(DEMAND - bridge(t)) / 2] * 2 + [bridge(t)] for t in tolls])
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
left.plot(tolls, [total_time(y) / DEMAND for y in flows], label="by hand")
left.plot(sol.x, minutes, "r*", markersize=14, label="the city's toll")
left.plot(owner.x, total_time(owner.y) / DEMAND, "ks", label="the owner's toll")
left.set(xlabel="toll, minutes", ylabel="travel time, minutes per driver")
left.legend()
right.plot(tolls, flows[:, 0], label="over A (and over B)")
right.plot(tolls, flows[:, 2], label="over the bridge")
right.plot([sol.x] * 2, sol.y[1:], "r*", [owner.x] * 2, owner.y[1:], "ks", markersize=9)
right.set(xlabel="toll, minutes", ylabel="flow, thousand vehicles per hour")
right.legend()
fig.tight_layout()
plt.show()
