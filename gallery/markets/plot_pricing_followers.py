r"""
Prices against customers with budgets
=====================================

A shop sells coffee and tea by the kilogram and sets two prices, in EUR/kg. Sixteen customers each decide what to buy
in a month: the first kilogram is worth most to them, and nobody spends more than a monthly budget. The shop wants
profit, so it must foresee how every customer answers: one whose budget is used up spends the same money at a higher
price, and takes fewer kilograms home.

Customer :math:`k` buys :math:`q_k \ge 0` (kg per month), which maximises

.. math:: \sum_j \left(a_{kj} q_{kj} - \tfrac12 b_j q_{kj}^2\right) - p^\top q_k
          \quad\text{subject to}\quad p^\top q_k \le m_k .

The budget couples the price with what is bought: a constraint of the lower level with a product of :math:`x` and
:math:`y` in it. All customers together are one lower level, as none of them sees the others.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import brentq

import hierax as hx

rng = np.random.default_rng(3)
K = 16
WORTH = np.stack([rng.uniform(14.0, 26.0, K), rng.uniform(10.0, 22.0, K)], 1)  # EUR for the first kg: coffee, tea
SATIETY = np.array([4.0, 5.0])  # EUR/kg less for every further kg
BUDGET = rng.uniform(6.0, 45.0, K)  # EUR per month
COST = np.array([7.0, 4.0])  # EUR/kg that the shop pays

# %%
# The problem in hierax
# ---------------------
# The upper level minimises, so the profit enters with a minus; so does what the customers gain.
problem = hx.Problem(
    upper=lambda p, q, _: -jnp.sum((p - COST) * q),
    lower=lambda p, q, _: jnp.sum(0.5 * SATIETY * q**2 - (WORTH - p) * q),
    constraints=lambda p, q: {"budget": q @ p - BUDGET},
    x_set=hx.Box(COST, 30.0),
    y_set=hx.NonNegative(),
)
sol = hx.solve(problem, COST + 3.0, np.ones((K, 2)))
print(f"prices {np.round(sol.x, 3)} EUR/kg, profit {-sol.value:.3f} EUR per month ({sol.status.name})")

# %%
# The same demand without hierax
# ------------------------------
# What one customer buys is known but for one number: with the budget's multiplier :math:`\lambda`,
# :math:`q_j = \max(0, (a_j - (1 + \lambda) p_j) / b_j)`, and :math:`\lambda` is the root of one equation. So the
# profit can be had on a grid of prices, with nothing of hierax in it.


def bought(p, worth, budget):
    """What a customer buys at prices p, by the root of the budget equation."""

    def demand(lam):
        return np.maximum(0.0, (worth - (1.0 + lam) * p) / SATIETY)

    if demand(0.0) @ p <= budget:
        return demand(0.0)
    return demand(brentq(lambda lam: demand(lam) @ p - budget, 0.0, worth.max() / p.min(), xtol=1e-13))


def profit(p):
    """The shop's profit at prices p, EUR per month."""
    return sum((p - COST) @ bought(p, *customer) for customer in zip(WORTH, BUDGET, strict=True))


coffee, tea = np.linspace(7.0, 22.0, 61), np.linspace(4.0, 20.0, 65)  # steps of 0.25 EUR/kg
grid = np.array([[profit(np.array([c, t])) for c in coffee] for t in tea])
print(f"best of the grid {grid.max():.3f}, at the prices found {profit(np.asarray(sol.x, float)):.3f} EUR per month")
assert abs(profit(np.asarray(sol.x, float)) + sol.value) < 1e-3  # the same demand: profits agree to 0.1 cent
assert grid.max() <= -sol.value + 1e-3  # no point of the grid is better

# %%
# What is known
# -------------
# The certificate solves the customers' problems anew and looks around the prices for a better one. It is a local
# statement; the grid above is what says that no other region of prices is better.
print(sol.certificate)

# %%
# The profit has kinks where a customer begins to spend the whole budget; the answer lies on one of them (the line
# *hyper-gradient* of the certificate says so, and that both sides were looked at). On the right, customers on the
# dashed line spend all they have.
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
shown = left.contourf(coffee, tea, grid, levels=np.linspace(0.0, grid.max(), 13))
fig.colorbar(shown, ax=left, label="profit, EUR per month")
left.plot(*sol.x, "r*", markersize=14, label="answer")
left.set(xlabel="price of coffee, EUR/kg", ylabel="price of tea, EUR/kg")
left.legend(loc="upper right")
right.plot([0, 46], [0, 46], "k--", linewidth=0.8, label="budget")
right.plot(BUDGET, np.asarray(sol.y) @ np.asarray(sol.x), "o", label="customers")
right.set(xlabel="budget, EUR per month", ylabel="spent, EUR per month")
right.legend()
fig.tight_layout()
plt.show()
