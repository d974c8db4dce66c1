r"""
A forecast made for the decision
================================

A greengrocer fills a van every morning: up to 300 kg of four kinds of fruit, at most 200 kg of each. What a kilogram
earns depends on the day's weather and is not known yet, so it is predicted, and the van is filled for the prediction.
The usual way is to fit the prediction by least squares first. But a small error where it changes the load costs more
than a large one where it does not. Decision-focused learning (Elmachtoub and Grigas, Management Science 2022) trains
the predictor on what the loads earn in the end.

The upper level chooses the coefficients :math:`x` of a linear forecast :math:`\hat m_d(x)` of the margins (euros per
kg) of day :math:`d`, and minimises what was lost against the loads of someone who knows the margins :math:`m_d`. The
lower level fills the van (:math:`q_d`, in kg; every further kilogram earns less by :math:`\kappa = 0.01` euros):

.. math::

    \min_{0 \le q \le 200} \; \sum_d \Big( \tfrac{\kappa}{2} \|q_d\|^2 - \hat m_d(x)^\top q_d \Big)
    \quad\text{subject to}\quad \sum_j q_{dj} \le 300 \quad\text{for every day } d .
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize

import hierax as hx

jax.config.update("jax_enable_x64", True)  # losses of cents are compared with loads of hundreds of kilograms

# %%
# Thirty days to learn from, 500 to test, made with a fixed seed. Margins depend on the temperature (degrees Celsius)
# along curves, while the forecast has only a constant, the temperature and whether it is a weekend: it cannot be right
# everywhere.

FRUITS, VAN, EACH, KAPPA = ("apples", "strawberries", "melons", "grapes"), 300.0, 200.0, 0.01
rng = np.random.default_rng(4)
DAYS, NEW = 30, 500
temperature = rng.uniform(8.0, 34.0, DAYS + NEW)
weekend = (rng.random(DAYS + NEW) < 2 / 7).astype(float)
curves = np.stack(
    [
        1.0 - 0.02 * (temperature - 20.0),
        0.3 + 1.6 * np.exp(-(((temperature - 21.0) / 5.0) ** 2)),
        0.2 + 1.8 / (1.0 + np.exp(-(temperature - 27.0))),
        0.8 + 0.5 * weekend,
    ],
    axis=1,
)
margin = curves + 0.15 * rng.normal(size=curves.shape)  # euros per kg
known = np.column_stack([np.ones(DAYS + NEW), (temperature - 21.0) / 8.0, weekend])
days, new = slice(0, DAYS), slice(DAYS, None)


def earned(margin, load):
    """Euros per day, the mean over days."""
    return jnp.mean(jnp.sum(margin * load - 0.5 * KAPPA * load**2, axis=1))


def filled(margin):
    """The best loads for given margins by hand: every fruit up to a common margin, found by bisection."""
    low, high = np.zeros((len(margin), 1)), np.full((len(margin), 1), 10.0)
    for _ in range(60):
        middle = 0.5 * (low + high)
        full = np.clip((margin - middle) / KAPPA, 0.0, EACH).sum(1, keepdims=True) > VAN
        low, high = np.where(full, middle, low), np.where(full, high, middle)
    free = np.clip(margin / KAPPA, 0.0, EACH)
    return np.where(free.sum(1, keepdims=True) <= VAN, free, np.clip((margin - high) / KAPPA, 0.0, EACH))


best = float(earned(margin[days], filled(margin[days])))

# %%
# The start is the least squares forecast. Nothing else is set.

problem = hx.Problem(
    upper=lambda x, load, zeta: best - earned(margin[days], load),
    lower=lambda x, load, xi: -earned(known[days] @ x, load),
    constraints=lambda x, load: {"van": jnp.sum(load, axis=1) - VAN},
    x_set=hx.Box(-5.0, 5.0),
    y_set=hx.Box(0.0, EACH),
)
squares = np.linalg.lstsq(known[days], margin[days], rcond=None)[0]
sol = hx.solve(problem, squares, filled(known[days] @ squares))
print(sol.certificate, sol.status.name, sep="\n")

# %%
# Check: with the loads filled by hand, what is lost is a function of the twelve coefficients alone, and SciPy's
# L-BFGS-B minimises it by differences from the same start. Loads must agree to a gram in the mean, and SciPy must not
# lose less by a cent.


def lost(x, part=days):
    """Euros per day, against someone who knows the margins."""
    known_margin = float(earned(margin[part], filled(margin[part])))
    return known_margin - float(earned(margin[part], filled(known[part] @ np.reshape(x, (3, 4)))))


scipy = minimize(lost, squares.ravel(), method="L-BFGS-B")
print("euros a day that are lost")
print(f"on the 30 days: least squares {lost(squares):.2f}, SciPy {scipy.fun:.2f}, hierax {sol.value:.2f}")
assert np.abs(filled(known[days] @ sol.x) - sol.y).mean() < 1e-3
assert sol.value <= scipy.fun + 0.01
print(f"on 500 new days: least squares {lost(squares, new):.2f}, hierax {lost(np.asarray(sol.x), new):.2f}")

# %%
# The picture: margins of melons and strawberries and their forecasts on working days. The trained forecast gives up
# being near where the van is filled with something else anyway.

grid = np.linspace(8.0, 34.0, 100)
rows = np.column_stack([np.ones(100), (grid - 21.0) / 8.0, np.zeros(100)])
fig, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), sharey=True, layout="constrained")
for ax, j in zip(axes, (1, 2), strict=True):
    ax.plot(temperature[days], margin[days, j], "o", color="0.7", ms=4, label="30 days")
    ax.plot(grid, rows @ squares[:, j], "C0--", label="least squares")
    ax.plot(grid, rows @ np.asarray(sol.x)[:, j], "C3", label="trained on the loads' earnings")
    ax.set(xlabel="temperature (degrees Celsius)", title=FRUITS[j])
axes[0].set_ylabel("margin (euros per kg)")
axes[0].legend(fontsize=9)
plt.show()
