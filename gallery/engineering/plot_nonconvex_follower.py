r"""
A follower with several local optima
====================================

A county wants a logistics firm to open its depot in the poor east of a road of 10 km. The firm goes where its profit is
highest; near each of three towns its profit has a local maximum, the highest of them in the west. The county can pay a
subsidy of :math:`x` (thousand EUR per year and km east). A depot at :math:`y` km brings the county the more the further
east it is, and every thousand EUR of subsidy costs it a thousand.

.. math:: \max_{x \in [0, 30]}\; 40\,y - x y \quad\text{where } y \text{ maximises}\quad
          \sum_k a_k \exp\!\left(-\tfrac{(y - t_k)^2}{2 s^2}\right) + x y \quad\text{over } [0, 10] .

The firm's problem is not convex. Its answer jumps from one town to the next when the subsidy makes the other one
better, and the county's optimum sits at such a jump. A method that follows a local optimum of the firm gets it wrong:
near every town the firm's derivative vanishes, but only one of them is the firm's answer.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import brentq

import hierax as hx

jax.config.update("jax_enable_x64", True)  # the jump is found to 1e-4 thousand EUR

TOWNS, TRADE, REACH = np.array([1.5, 5.0, 8.5]), np.array([100.0, 85.0, 50.0]), 1.0  # km; thousand EUR per year; km


def trade(y):
    """The firm's profit without a subsidy, thousand EUR per year."""
    return jnp.sum(TRADE * jnp.exp(-0.5 * ((y - TOWNS) / REACH) ** 2))


problem = hx.Problem(
    upper=lambda x, y, _: -(40.0 * y - x * y),
    lower=lambda x, y, _: -(trade(y) + x * y),
    x_set=hx.Box(0.0, 30.0),
    y_set=hx.Box(0.0, 10.0),
)
sol = hx.solve(problem, 1.0, 2.0)
print(f"subsidy {sol.x:.4f} thousand EUR per year and km, depot at {sol.y:.4f} km, worth {-sol.value:.3f}")
print(sol.status.name, "|", sol.status.message)

# %%
# What is known
# -------------
# The status is not ``converged`` but ``best_of_branches``: the certificate has seen that the firm's problem is not
# convex, and takes the best of 24 local solves for the firm's answer. That is evidence, not a proof: a firm with a
# sharp peak that all 24 miss would fool it. In one dimension a fine grid settles the matter, and does so below.
print(sol.certificate)

# %%
# A wrong branch is refused. With half of that subsidy the depot near the same town is still a local optimum of the
# firm, found here by Newton's method, but the west is better, and the certificate says by how much.
half, wrong = 0.5 * float(sol.x), float(sol.y)
slope, bend = jax.grad(trade), jax.grad(jax.grad(trade))
for _ in range(20):
    wrong -= (slope(wrong) + half) / bend(wrong)
refused = hx.certify(problem, half, float(wrong))
print(f"at {half:.3f} thousand EUR, {wrong:.3f} km: {refused.verdict(1e-4)}")
print(refused.reasons(1e-4)[0])
assert not refused.ok(1e-4)

# %%
# A check by grid
# ---------------
# The firm's best of 100,001 places, for every subsidy of a grid. The jump itself is where two towns are equally good: a
# root, by SciPy.
places = np.linspace(0.0, 10.0, 100_001)
profit = np.asarray(jax.vmap(trade)(places))
subsidies = np.linspace(0.0, 30.0, 601)
depot = np.array([places[np.argmax(profit + x * places)] for x in subsidies])
worth = (40.0 - subsidies) * depot
near = lambda x, a, b: np.max((profit + x * places)[(places > a) & (places < b)])  # the best between two places
jump = brentq(lambda x: near(x, 0.0, sol.y - 1.5) - near(x, sol.y - 1.5, 10.0), 0.0, 30.0)
print(f"best of the grid {worth.max():.3f} at {subsidies[worth.argmax()]:.2f}; the firm is indifferent at {jump:.4f}")
assert abs(sol.x - jump) < 1e-3 and worth.max() <= -sol.value + 0.02  # one step of the grid changes the worth by 0.4

# %%
# At the answer the firm is indifferent, and is taken to go where the county wants it: the optimistic reading of a
# bilevel problem. A county that does not trust in that pays a little more.
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
for x, style in ((0.0, "0.6"), (float(sol.x), "tab:blue")):
    left.plot(places, profit + x * places, color=style, label=f"subsidy {x:.2f}")
left.plot(sol.y, trade(sol.y) + sol.x * sol.y, "r*", markersize=14, label="answer")
left.set(xlabel="place of the depot, km", ylabel="the firm's profit, thousand EUR per year")
left.legend()
right.plot(subsidies, worth, ".", markersize=3, label="grid")
right.plot(sol.x, -sol.value, "r*", markersize=14, label="answer")
right.set(xlabel="subsidy, thousand EUR per year and km", ylabel="worth to the county, thousand EUR per year")
right.legend()
fig.tight_layout()
plt.show()
