r"""
A shared centre for many sensors
================================

A workshop calibrates temperature sensors of one production batch. Every sensor has an offset and a gain error of its
own, and time for four readings against a reference, each with noise of 0.4 K. Four readings alone fit the noise; but
sensors of one batch resemble each other. Meta-learning puts this to use: every sensor's two numbers are fitted to its
own readings, inside a ball around a centre that all sensors share. The upper level chooses the centre and the radius,
so that the fitted sensors are right at further readings.

With the parameters :math:`y_t` (both in K: offset, and gain error over 50 K) of sensor :math:`t`, the centre :math:`c`
and the radius :math:`r` (K), and rows :math:`Z_t` of readings with errors :math:`b_t` (K), the lower level is

.. math::

    \min_{y} \; \sum_t \frac1{N} \|Z_t y_t - b_t\|^2
    \quad\text{subject to}\quad \|y_t - c\|^2 \le r^2 \quad\text{for every sensor } t .
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import brentq, minimize

import hierax as hx

jax.config.update("jax_enable_x64", True)  # the check below asks for seven digits

# %%
# Twenty-four sensors to learn from, 200 more of the same batch to test. Reference temperatures are 0 to 100 degrees
# Celsius, measured from 50 in units of 50 K. The batch has an offset of 1.2 K and a gain error of -0.8 K; both vary by
# 0.5 K.

rng, SENSORS, NEW = np.random.default_rng(6), 24, 200


def readings(truth, count):
    """Rows (1, temperature) and the errors that are read, for every sensor."""
    temperature = rng.uniform(-1.0, 1.0, (len(truth), count))
    rows = np.stack([np.ones_like(temperature), temperature], axis=-1)
    return rows, np.einsum("tnj,tj->tn", rows, truth) + 0.4 * rng.normal(size=(len(truth), count))


truth = np.array([1.2, -0.8]) + 0.5 * rng.normal(size=(SENSORS + NEW, 2))
rows, errors = readings(truth, 4)
more_rows, more_errors = readings(truth[:SENSORS], 20)


def misfit(y, rows, errors):
    """Mean square error of every sensor, in K^2."""
    return jnp.mean((jnp.einsum("tnj,tj->tn", rows, y) - errors) ** 2, axis=1)


problem = hx.Problem(
    upper=lambda x, y, zeta: jnp.mean(misfit(y, more_rows, more_errors)),
    lower=lambda x, y, xi: jnp.sum(misfit(y, rows[:SENSORS], errors[:SENSORS])),
    constraints=lambda x, y: {"ball": jnp.sum((y - x["centre"]) ** 2, axis=1) - x["radius"] ** 2},
    x_set={"centre": hx.Box(-3.0, 3.0), "radius": hx.Box(0.05, 3.0)},
)
sol = hx.solve(problem, {"centre": np.zeros(2), "radius": 1.0}, np.zeros((SENSORS, 2)))
centre, radius = np.asarray(sol.x["centre"]), float(sol.x["radius"])
print(f"centre {centre.round(3)} K, radius {radius:.3f} K, error at further readings {sol.value:.5f} K^2")
print(sol.certificate, sol.status.name, sep="\n")

# %%
# Check: every sensor's fit is a least squares problem in a ball, whose multiplier solves one equation (by SciPy's
# ``brentq``). With it the upper objective is a function of three numbers, which Nelder and Mead's method minimises
# without derivatives. It must end where hierax did.


def fit(rows, errors, centre, radius):
    """Least squares in a ball around the centre."""
    square, wish = rows.T @ rows / len(errors), rows.T @ (errors - rows @ centre) / len(errors)
    step = lambda multiplier: np.linalg.solve(square + multiplier * np.eye(2), wish)
    if np.linalg.norm(step(0.0)) <= radius:
        return centre + step(0.0)
    return centre + step(brentq(lambda m: np.linalg.norm(step(m)) - radius, 0.0, 1e4, xtol=1e-14))


def judged(u):
    """The upper objective at u = (centre, radius)."""
    y = np.stack([fit(rows[t], errors[t], u[:2], max(u[2], 0.05)) for t in range(SENSORS)])
    return float(np.mean((np.einsum("tnj,tj->tn", more_rows, y) - more_errors) ** 2))


ours = np.array([*centre, radius])
simplex = minimize(judged, [1.0, -1.0, 0.5], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10})
print(f"by SciPy {simplex.fun:.5f} K^2 at centre {simplex.x[:2].round(3)} K, radius {simplex.x[2]:.3f} K")
assert abs(judged(ours) - sol.value) < 1e-7 and abs(simplex.fun - sol.value) < 1e-6
assert np.abs(simplex.x - ours).max() < 1e-3

# %%
# New sensors of the batch, with four readings each: the ball against no ball, and against the centre alone. The error
# is that of the two numbers, root mean square over 200 sensors.

new = range(SENSORS, SENSORS + NEW)
fits = {
    "four readings alone": np.stack([fit(rows[t], errors[t], centre, 1e3) for t in new]),
    "the centre alone": np.tile(centre, (NEW, 1)),
    "in the ball": np.stack([fit(rows[t], errors[t], centre, radius) for t in new]),
}
for name, y in fits.items():
    print(f"{name:20s} error {np.sqrt(np.mean(np.sum((y - truth[SENSORS:]) ** 2, axis=1))):.3f} K")

# %%
# The picture: the 24 sensors (four readings of one of them alone lead out of it). Fits outside of the ball are drawn
# to its edge, not always to the nearest point: readings tell some directions well. What counts is where the edge runs.

alone = np.stack([fit(rows[t], errors[t], centre, 1e3) for t in range(SENSORS)])
fig, axes = plt.subplots(figsize=(7.5, 4.8), layout="constrained")
axes.add_patch(plt.Circle(centre, radius, fc="C0", alpha=0.12, ec="C0"))
axes.plot(*np.stack([alone, sol.y]).transpose(2, 0, 1), color="0.75", lw=1, zorder=1)
axes.plot(*alone.T, "o", mfc="w", mec="0.4", label="four readings alone")
axes.plot(*np.asarray(sol.y).T, "C0o", label="in the ball")
axes.plot(*truth[:SENSORS].T, "C2x", label="truth")
axes.plot(*centre, "C3*", ms=13, label="shared centre")
axes.set(xlabel="offset (K)", ylabel="gain error (K per 50 K)", aspect="equal", ylim=(-2.4, 0.9))
axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
plt.show()
