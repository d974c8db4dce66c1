r"""
Price, lead time and stock: a newsvendor inside
===============================================

A web shop sells a seasonal jacket. Its planners choose the price (EUR) and what they pay per jacket for fast delivery,
which shortens the lead time and so narrows the forecast error. The stock itself is set by the warehouse, which is
measured by a service level: it weighs a jacket too few about twenty times as much as one too many, so it orders the
95 % quantile of demand. The planners must take that order as it comes.

Demand is known as 60 scenarios. With price :math:`p` and express share :math:`e \in [0, 1]`, scenario :math:`i` is

.. math:: D_i(p, e) = 900 - 6 p + s(e)\, z_i, \qquad s(e) = 150\,(1 - 0.7 e),

jackets per season, with forecast errors :math:`z_i`. The lower level is the quantile as an optimisation problem
(Koenker and Bassett 1978): the order :math:`q` and the shortages :math:`u_i \ge D_i - q`, :math:`u_i \ge 0` minimise
the mean of :math:`(1 - \tau)(q - D_i + u_i) + \tau u_i` with :math:`\tau = 0.952`: a linear program with 61 variables.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize

import hierax as hx

jax.config.update("jax_enable_x64", True)  # the check below asks for six digits of the profit

N, LEVEL = 60, 0.952  # 60 times 0.952 is no whole number: the quantile is then one of the scenarios, and unique
ERROR = np.random.default_rng(7).gamma(4.0, 0.5, N) - 2.0  # skewed: a few very good seasons
COST, SALVAGE, EXPRESS = 28.0, 12.0, 15.0  # EUR per jacket: to buy, back when left over, express delivery at e = 1


def demand(x):
    """Jackets per season in every scenario, at x = (price in EUR, express share)."""
    return 900.0 - 6.0 * x[0] + 150.0 * (1.0 - 0.7 * x[1]) * ERROR


def planners(x, y, _):
    """Minus the mean profit, thousand EUR per season."""
    sold = demand(x) - y["short"]
    left = y["order"] - sold
    return -jnp.mean(x[0] * sold + SALVAGE * left - (COST + EXPRESS * x[1] ** 2) * y["order"]) / 1e3


def warehouse(x, y, _):
    """The quantile's loss, jackets per season."""
    return jnp.mean((1.0 - LEVEL) * (y["order"] - demand(x) + y["short"]) + LEVEL * y["short"])


problem = hx.Problem(
    upper=planners,
    lower=warehouse,
    constraints=lambda x, y: {"short": demand(x) - y["order"] - y["short"]},
    x_set=hx.Box(np.array([30.0, 0.0]), np.array([140.0, 1.0])),
    y_set={"order": hx.Free(), "short": hx.NonNegative()},
)
sol = hx.solve(problem, np.array([60.0, 0.5]), {"order": 500.0, "short": np.zeros(N)})
print(f"price {sol.x[0]:.2f} EUR, express share {sol.x[1]:.3f}, order {sol.y['order']:.1f} jackets")
print(f"mean profit {-sol.value:.4f} thousand EUR per season ({sol.status.name})")

# %%
# A check
# -------
# The same quantile needs no optimisation: it is an entry of the sorted scenarios. With it the profit is a function of
# two numbers, which SciPy maximises.
QUANTILE = np.sort(ERROR)[int(np.ceil(LEVEL * N)) - 1]


def profit(x):
    """Mean profit, thousand EUR per season, with the quantile by sorting."""
    order = 900.0 - 6.0 * x[0] + 150.0 * (1.0 - 0.7 * x[1]) * QUANTILE
    sold = np.minimum(np.asarray(demand(x)), order)
    return np.mean(x[0] * sold + SALVAGE * (order - sold) - (COST + EXPRESS * x[1] ** 2) * order) / 1e3


best = minimize(lambda x: -profit(x), [60.0, 0.5], bounds=[(30.0, 140.0), (0.0, 1.0)], method="L-BFGS-B", tol=1e-12)
print(f"SciPy: price {best.x[0]:.2f} EUR, express share {best.x[1]:.3f}, mean profit {-best.fun:.4f} thousand EUR")
assert abs(best.fun - sol.value) < 1e-5 and abs(profit(np.asarray(sol.x)) + sol.value) < 1e-5  # one cent per season

# %%
# What is known
# -------------
print(sol.status.message)
print(sol.certificate)

# %%
# The planners would like a smaller stock than the service level orders: for them a jacket too few costs the margin, not
# twenty times the jacket left over. Express delivery is their way to make the warehouse order less.
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
prices, shares = np.linspace(60, 120, 61), np.linspace(0, 1, 51)
shown = left.contourf(prices, shares, [[profit((p, e)) for p in prices] for e in shares], levels=14)
fig.colorbar(shown, ax=left, label="mean profit, thousand EUR per season")
left.plot(*sol.x, "r*", markersize=14, label="answer")
left.set(xlabel="price, EUR", ylabel="express share")
left.legend(loc="lower left")
right.hist(np.asarray(demand(sol.x)), bins=18, color="0.7", label="demand scenarios")
right.axvline(float(sol.y["order"]), color="r", label="order: the service level's quantile")
right.set(xlabel="jackets per season", ylabel="scenarios", ylim=(0, 15))
right.legend()
fig.tight_layout()
plt.show()
