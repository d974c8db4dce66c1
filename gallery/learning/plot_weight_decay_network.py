r"""
Weight decay of a small network
===============================

An engine test bench measures torque (N m) at a few speeds (revolutions per minute), and every reading has noise of 6 N
m. A network with one hidden layer is to give a smooth curve. Trained without restraint it follows the noise; weight
decay restrains it, and how much is right is what the second half of the readings decides.

The upper level chooses the logarithm :math:`x` of the weight decay by the error on the second half; the lower level
trains the network :math:`n(s; y)` with weights :math:`y` on the first half of the pairs (speed :math:`s_i`, torque
:math:`t_i`):

.. math::

    \min_y \; \frac1N \sum_i \big(n(s_i; y) - t_i\big)^2 + e^x \, \|y\|^2 .

Networks are not convex: training may end in many places, most of them copies of each other with hidden units exchanged.
With a dozen weights hierax still looks at the lower level from many starts.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

import hierax as hx

jax.config.update("jax_enable_x64", True)  # the check below compares trainings to eight digits

# %%
# The readings. Speeds are scaled to about [-2, 2] and torques to about [-1, 1] for the network.

rng = np.random.default_rng(3)
speed = np.sort(rng.uniform(1000.0, 6000.0, 40))  # revolutions per minute


def true_torque(s):
    """The curve behind the readings, in N m."""
    return 100.0 + 60.0 * np.exp(-(((s - 3300.0) / 1300.0) ** 2)) - 12.0 * np.exp(-(((s - 2300.0) / 350.0) ** 2))


torque = true_torque(speed) + 6.0 * rng.normal(size=40)
s, t = (speed - 3500.0) / 1250.0, (torque - 130.0) / 30.0
train, judge = np.arange(0, 40, 2), np.arange(1, 40, 2)


def network(y, s):
    """Four hidden units."""
    return jnp.tanh(s[:, None] * y["slope"] + y["shift"]) @ y["out"] + y["mean"]


def decay(x, y):
    """The weight decay of all weights but the mean."""
    return jnp.exp(x) * sum(jnp.sum(y[name] ** 2) for name in ("slope", "shift", "out"))


problem = hx.Problem(
    upper=lambda x, y, zeta: jnp.mean((network(y, s[judge]) - t[judge]) ** 2),
    lower=lambda x, y, xi: jnp.mean((network(y, s[train]) - t[train]) ** 2) + decay(x, y),
    x_set=hx.Box(np.log(1e-5), np.log(1.0)),
)
slope, shift = np.array([0.5, 1.0, 1.5, 2.0]), np.array([-1.0, -0.5, 0.5, 1.0])
y0 = {"slope": slope, "shift": shift, "out": np.full(4, 0.3), "mean": 0.0}
sol = hx.solve(problem, np.log(1e-2), y0)
print(f"weight decay {np.exp(sol.x):.2e}, error on the judging readings {30.0 * sol.value**0.5:.2f} N m")
print(sol.certificate, sol.status.name, sep="\n")

# %%
# ``best_of_branches`` is what hierax says instead of ``converged`` where the lower level is not convex: the certificate
# agrees, but what it calls the best network is the best of 24 trainings. Two of the four hidden units end at zero, so
# that the weight decay has also chosen the size of the network.
#
# Check: SciPy trains the network under each of 9 weight decays, by BFGS from four random starts, and keeps the training
# with the least lower objective. None of them may have a smaller error than hierax's answer, and at hierax's weight
# decay SciPy must find the same error, to 0.001 N m.

flat, shaped = ravel_pytree(jax.tree.map(jnp.asarray, y0))
objective = jax.jit(jax.value_and_grad(lambda v, x: problem.lower(x, shaped(v), None)))
starts = rng.normal(size=(4, flat.size))


def trained(x):
    """The best of four trainings under a weight decay: the network and its lower objective."""
    runs = [minimize(objective, start, args=(x,), jac=True, method="BFGS", options={"gtol": 1e-7}) for start in starts]
    best = min(runs, key=lambda run: run.fun)
    return shaped(jnp.asarray(best.x)), best.fun


def error(y):
    """Root mean square error on the judging readings, in N m."""
    return 30.0 * float(problem.upper(None, y, None)) ** 0.5


decays = np.linspace(np.log(1e-5), np.log(1.0), 9)
grid = [trained(x)[0] for x in decays]
same, least = trained(float(sol.x))
print(f"best of the grid {min(map(error, grid)):.3f} N m, at hierax's weight decay {error(same):.3f} N m")
assert abs(error(same) - error(sol.y)) < 1e-3 and least > float(problem.lower(sol.x, sol.y, None)) - 1e-8
assert error(sol.y) <= min(map(error, grid)) + 1e-3

# %%
# The picture: left the curve that was chosen, beside the least weight decay of the grid; right the error above.

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
axis = np.linspace(1000.0, 6000.0, 300)
left.plot(axis, true_torque(axis), color="0.6", label="true curve")
for y, style, name in ((grid[0], "C1--", "weight decay $10^{-5}$"), (sol.y, "C3", "weight decay by hierax")):
    left.plot(axis, 130.0 + 30.0 * network(y, (axis - 3500.0) / 1250.0), style, label=name)
left.plot(speed[train], torque[train], "ko", ms=4, label="training")
left.plot(speed[judge], torque[judge], "o", mfc="w", mec="k", ms=4, label="judging")
left.set(xlabel="speed (revolutions per minute)", ylabel="torque (N m)")
left.legend(fontsize=8)
right.semilogx(np.exp(decays), [error(y) for y in grid], "o-", label="9 weight decays, by SciPy")
right.plot(np.exp(sol.x), error(sol.y), "C3o", label="found by hierax")
right.set(xlabel="weight decay $e^x$", ylabel="error on judging readings (N m)")
right.legend()
plt.show()
