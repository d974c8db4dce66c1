r"""
Which risk aversion and which views explain a fund's portfolios?
================================================================

A fund publishes its weights in five sectors every quarter, rounded to a percent. Everybody knows the consensus
forecasts of that quarter and the covariance of returns; only the manager knows how much risk she tolerates and where
she disagrees with the consensus. An analyst wants both, from the published weights alone: inverse optimisation.

The lower level is the manager. In quarter :math:`t` she chooses weights :math:`w_t \ge 0` with sum one and at most 0.4
in a sector, which minimise :math:`\tfrac{\gamma}{2} w_t^\top \Sigma w_t - (m_t + v)^\top w_t`, with the consensus
:math:`m_t` (percent per quarter), her risk aversion :math:`\gamma` and her lasting views :math:`v` (percent per
quarter). The upper level is the analyst, who chooses :math:`\gamma` and :math:`v` such that the weights come closest
to the published ones. A view that shifts all sectors alike changes nothing, so the views are taken to sum to zero.
"""

import clarabel
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy import sparse
from scipy.optimize import minimize

import hierax as hx

jax.config.update("jax_enable_x64", True)  # the check below compares sums of squares of 1e-4

SECTORS, T, LIMIT = ["energy", "finance", "health", "industry", "technology"], 12, 0.4
DEVIATION = np.array([9.0, 8.0, 6.0, 7.0, 10.0])  # percent per quarter
SIGMA = (0.4 + 0.6 * np.eye(5)) * np.outer(DEVIATION, DEVIATION)
NOISE = np.random.default_rng(5).normal(size=(T, 5))
CONSENSUS = np.array([2.0, 1.9, 1.6, 1.8, 2.4]) + 0.7 * NOISE  # percent per quarter

# %%
# The published portfolios
# ------------------------
# They are made here from a manager whom the analyst does not know, by Clarabel, and rounded.
TRUE_GAMMA, TRUE_VIEWS = 0.05, np.array([-0.8, 0.1, 0.4, 0.0, 0.3])
ROWS = sparse.csc_matrix(np.vstack([np.ones(5), -np.eye(5), np.eye(5)]))
RIGHT = np.concatenate([[1.0], np.zeros(5), np.full(5, LIMIT)])
SETTINGS = clarabel.DefaultSettings()
SETTINGS.verbose = False


def manager(gamma, views):
    """The weights of every quarter."""
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(10)]
    quadratic = sparse.csc_matrix(np.triu(gamma * SIGMA))
    quarters = [clarabel.DefaultSolver(quadratic, -(m + views), ROWS, RIGHT, cones, SETTINGS) for m in CONSENSUS]
    return np.array([quarter.solve().x for quarter in quarters])


PUBLISHED = np.round(manager(TRUE_GAMMA, TRUE_VIEWS), 2)

# %%
# The analyst's problem
# ---------------------
# Twelve portfolios together are one lower level with 60 variables. Four views are free, the fifth follows.


def views_of(x):
    """All five views, which sum to zero."""
    return jnp.append(x["views"], -jnp.sum(x["views"]))


def chosen(x, w, _):
    """What the manager minimises, the sum over the quarters."""
    return jnp.sum(0.5 * x["gamma"] * jnp.sum(w @ SIGMA * w, 1) - jnp.sum((CONSENSUS + views_of(x)) * w, 1))


problem = hx.Problem(
    upper=lambda x, w, _: 100.0 * jnp.sum((w - PUBLISHED) ** 2),
    lower=chosen,
    equalities=lambda x, w: {"invested": jnp.sum(w, 1) - 1.0},
    x_set={"gamma": hx.Box(0.01, 0.3), "views": hx.Box(-3.0, 3.0)},
    y_set=hx.Box(0.0, LIMIT),
)
sol = hx.solve(problem, {"gamma": 0.1, "views": np.zeros(4)}, np.full((T, 5), 0.2))
gamma, views = float(sol.x["gamma"]), np.asarray(views_of(sol.x))
print(f"risk aversion {gamma:.4f} (true {TRUE_GAMMA}), views {views.round(2)} (true {TRUE_VIEWS}) percent per quarter")

# %%
# A check
# -------
# SciPy's Nelder-Mead, from the truth, on the same sum of squares with the weights by Clarabel: no derivative, nothing
# of hierax. The answer may not be the truth, as rounding hides it; but it must fit no worse than the truth does.


def misfit(x):
    """100 times the sum of squares."""
    return 100.0 * np.sum((manager(x[0], np.append(x[1:], -np.sum(x[1:]))) - PUBLISHED) ** 2)


truth = np.append(TRUE_GAMMA, TRUE_VIEWS[:4])
found = minimize(misfit, truth, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9, "maxfev": 1500})
print(f"misfit: hierax {sol.value:.6f}, the truth {misfit(truth):.6f}, Nelder-Mead from there {found.fun:.6f}")
assert sol.value <= found.fun + 1e-5 and abs(misfit(np.append(gamma, views[:4])) - sol.value) < 1e-5
assert abs(gamma - TRUE_GAMMA) < 0.002 and np.allclose(views, TRUE_VIEWS, atol=0.05)  # as far as rounding lets us see

# %%
# What is known
# -------------
# The misfit is not convex in the manager's parameters: some starts end elsewhere, with a misfit hundreds of times as
# large, as the log says. That the best of them is meant is clear from the misfit: rounding alone explains it.
print(*(line for line in sol.log if "Globality" in line))
print(sol.certificate)

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
for k, name in enumerate(SECTORS):
    left.plot(100 * PUBLISHED[:, k], 100 * np.asarray(sol.y)[:, k], "o", label=name, alpha=0.7)
left.set(xlabel="published weight, percent", ylabel="explained weight, percent")
left.legend(fontsize=8)
right.bar(np.arange(5) - 0.2, TRUE_VIEWS, 0.4, label="true views")
right.bar(np.arange(5) + 0.2, views, 0.4, label="from the portfolios")
right.set(ylabel="above the consensus, percent per quarter", xticks=range(5), xticklabels=SECTORS)
right.legend()
fig.tight_layout()
plt.show()
