r"""
Bids of a large producer in an electricity market
=================================================

A producer with one plant in the north and one in the south of a country sends the market operator a bid for each:
the price in EUR/MWh from which the plant is to run. The operator accepts bids so that demand is served at least cost;
everybody is paid the price of their zone. A producer that is large enough moves this price, and so bids above its
cost. Regulators compute such bids to see how much market power a plant has, producers to see what a bid is worth.

The lower level clears the market of one hour: generation :math:`g` and demand :math:`d` in each zone and the flow
:math:`f` from north to south, all in GW, minimise bids and costs minus what the demand is worth, subject to the balance
of each zone and to the limit of the line:

.. math:: g_z + r_z \mp f = d_z, \qquad |f| \le f_{\max}, \qquad 0 \le g_z \le \bar g_z .

The price of a zone is the multiplier of its balance. The upper level, the producer's profit, needs it; as demand
answers the price, it is also :math:`p_z = \alpha_z - \beta_z d_z`, a function of :math:`y` alone.
"""

import clarabel
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy import sparse

import hierax as hx

jax.config.update("jax_enable_x64", True)  # prices are compared below with another solver's to 1e-4 EUR/MWh

# Zones: north, south. Marginal costs are c + s g, EUR/MWh at g GW.
OWN_COST, OWN_SLOPE, OWN_LIMIT = np.array([20.0, 35.0]), np.array([4.0, 4.0]), np.array([6.0, 5.0])
RIVAL_COST, RIVAL_SLOPE = np.array([25.0, 40.0]), np.array([12.0, 8.0])
ALPHA, BETA = np.array([120.0, 150.0]), np.array([14.0, 10.0])  # worth of the first GW, and less for every further one
LINE, POSITIVE = 1.5, hx.NonNegative()  # GW; a set


def price(y):
    """What a further MWh is worth to the demand of each zone, EUR/MWh."""
    return ALPHA - BETA * y["demand"]


def producer(bid, y, _):
    """Minus the producer's profit in the hour, thousand EUR."""
    g = y["own"]
    return -jnp.sum(price(y) * g - OWN_COST * g - 0.5 * OWN_SLOPE * g**2)


def operator(bid, y, _):
    """Bids and costs minus what the demand is worth. A plant's bid keeps its true slope and shifts its start."""
    supply = bid * y["own"] + 0.5 * OWN_SLOPE * y["own"] ** 2
    supply += RIVAL_COST * y["rival"] + 0.5 * RIVAL_SLOPE * y["rival"] ** 2
    return jnp.sum(supply - ALPHA * y["demand"] + 0.5 * BETA * y["demand"] ** 2)


# The balance is demand minus what arrives: with this sign its multiplier is the price.
problem = hx.Problem(
    upper=producer,
    lower=operator,
    equalities=lambda bid, y: {"balance": y["demand"] - y["own"] - y["rival"] + y["flow"] * np.array([1.0, -1.0])},
    x_set=hx.Box(0.0, 150.0),
    y_set={"own": hx.Box(0.0, OWN_LIMIT), "rival": POSITIVE, "demand": POSITIVE, "flow": hx.Box(-LINE, LINE)},
)
y0 = {"own": np.ones(2), "rival": np.ones(2), "demand": np.full(2, 2.0), "flow": np.zeros(())}
sol = hx.solve(problem, OWN_COST, y0)
print(f"bids {np.round(sol.x, 2)} against costs {OWN_COST} EUR/MWh; profit {-sol.value:.3f} thousand EUR per hour")
print(f"prices {np.round(price(sol.y), 3)} EUR/MWh, multipliers {np.round(sol.multipliers.equalities['balance'], 3)}")

# %%
# A check with Clarabel
# ---------------------
# Clarabel, an interior-point solver for cone programs, clears the market at every pair of bids of a grid, and its own
# multipliers of the balance are the prices. Variables: own, rival, demand (two each), flow.
QUADRATIC = sparse.diags(np.concatenate([OWN_SLOPE, RIVAL_SLOPE, BETA, [1e-9]]), format="csc")
BALANCE = np.hstack([-np.eye(2), -np.eye(2), np.eye(2), [[1.0], [-1.0]]])
ROWS = sparse.csc_matrix(np.vstack([BALANCE, -np.eye(7), np.eye(7)[[0, 1, 6]]]))
RIGHT = np.concatenate([np.zeros(8), [LINE], OWN_LIMIT, [LINE]])
SETTINGS = clarabel.DefaultSettings()
SETTINGS.verbose = False


def cleared(bid):
    """Profit (thousand EUR per hour) and prices at a pair of bids."""
    linear = np.concatenate([bid, RIVAL_COST, -ALPHA, [0.0]])
    cones = [clarabel.ZeroConeT(2), clarabel.NonnegativeConeT(10)]
    result = clarabel.DefaultSolver(QUADRATIC, linear, ROWS, RIGHT, cones, SETTINGS).solve()
    g, p = np.array(result.x[:2]), np.array(result.z[:2])
    return np.sum(p * g - OWN_COST * g - 0.5 * OWN_SLOPE * g**2), p


north, south = np.linspace(15.0, 75.0, 49), np.linspace(30.0, 90.0, 49)
profit = np.array([[cleared(np.array([n, s]))[0] for n in north] for s in south])
here, here_price = cleared(np.asarray(sol.x))
print(f"Clarabel: profit {here:.3f} at these bids (best of the grid {profit.max():.3f}), prices {here_price.round(3)}")
assert np.allclose(here_price, price(sol.y), atol=1e-4) and abs(here + sol.value) < 1e-3
assert np.allclose(sol.multipliers.equalities["balance"], price(sol.y), atol=1e-4)
assert profit.max() <= -sol.value + 1e-3  # EUR 1 per hour

# %%
# What is known
# -------------
# The certificate is local; that no other pair of bids on the grid earns more is what the picture adds.
print(sol.certificate)

# %%
truth = cleared(OWN_COST)
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
shown = left.contourf(north, south, profit, levels=14)
fig.colorbar(shown, ax=left, label="profit, thousand EUR per hour")
left.plot(*sol.x, "r*", markersize=14, label="answer")
left.plot(*OWN_COST, "ko", label="bids at cost")
left.set(xlabel="bid of the plant in the north, EUR/MWh", ylabel="bid in the south, EUR/MWh")
left.legend()
right.bar(np.arange(2) - 0.2, truth[1], 0.4, label=f"bids at cost: profit {truth[0]:.1f}")
right.bar(np.arange(2) + 0.2, price(sol.y), 0.4, label=f"answer: profit {-sol.value:.1f} thousand EUR/h")
right.set_xticks([0, 1], ["north", "south"])
right.set(ylabel="price, EUR/MWh", ylim=(0, 1.35 * float(max(price(sol.y)))))
right.legend()
fig.tight_layout()
plt.show()
