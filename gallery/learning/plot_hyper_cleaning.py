r"""
Cleaning labels that nobody checked
===================================

Handwritten digits were labelled by a crowd, and three in ten labels are wrong. A few dozen were checked by an expert.
Data hyper-cleaning gives every unchecked image a weight between 0 and 1, so that a model trained on the weighted images
does well on the checked ones; images that end with weight 0 are the ones to look at again.

The upper level chooses the weights :math:`x \in [0, 1]^N`. The lower level trains a softmax classifier with
coefficients :math:`W` under a norm bound, the constraint that keeps it from learning wrong labels by heart:

.. math::

    \min_W \; \frac1N \sum_i x_i \, \ell(W; z_i, l_i) + \tfrac{\varrho}{2} \|W\|^2
    \quad\text{subject to}\quad \|W\|^2 \le R^2 ,

with the cross-entropy :math:`\ell` in nats. The images are the digits 3, 5 and 8 of scikit-learn's digits, 8 by 8
pixels with grey values scaled to [0, 1].
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

import hierax as hx

jax.config.update("jax_enable_x64", True)  # weights of 1/100 of a mean loss are compared below

# %%
# One hundred unchecked images, thirty of them with a wrong label; sixty checked ones; the other images to test.

kinds = np.array([3, 5, 8])
images, digits = load_digits(return_X_y=True)
rng = np.random.default_rng(1)
order = rng.permutation(np.flatnonzero(np.isin(digits, kinds)))
images, digits = np.insert(images[order] / 16.0, 64, 1.0, axis=1), np.searchsorted(kinds, digits[order])
crowd, expert, test = slice(0, 100), slice(100, 160), slice(160, None)
wrong = np.zeros(100, bool)
wrong[rng.choice(100, 30, replace=False)] = True
given = np.where(wrong, (digits[crowd] + rng.integers(1, 3, 100)) % 3, digits[crowd])
RIDGE, RADIUS, PRICE = 1e-3, 3.0, 0.3


def entropies(weight, part, truth):
    """Cross-entropy of each image, in nats."""
    logs = jax.nn.log_softmax(images[part] @ weight)
    return -jnp.take_along_axis(logs, truth[:, None], axis=1)[:, 0]


def upper(x, y, zeta):
    """Loss on the checked images, and a price, in nats, of throwing images away."""
    return jnp.mean(entropies(y, expert, digits[expert])) + PRICE * jnp.mean(1.0 - x)


def lower(x, y, xi):
    """Loss on the weighted images."""
    return jnp.mean(x * entropies(y, crowd, given)) + 0.5 * RIDGE * jnp.sum(y**2)


# %%
# The price is part of the statement: an image has to be harmful to be thrown away. Without one the weights could all
# shrink together. A first try, with a price of 0.01 and :math:`R = 4`, ended as ``not_certified`` at a kink, where the
# norm bound is about to let go.

problem = hx.Problem(upper, lower, constraints=lambda x, y: {"norm": jnp.sum(y**2) - RADIUS**2}, x_set=hx.Box(0.0, 1.0))
sol = hx.solve(problem, np.full(100, 0.5), np.zeros((65, 3)))
print(sol.certificate, sol.status.name, sep="\n")

# %%
# Check: the lower level is convex, so its solution is the only minimiser of its Lagrangian at hierax's multiplier.
# SciPy's L-BFGS minimises that without knowing the bound, and must end at the same coefficients, with norm 3.

multiplier = float(sol.multipliers.inequalities["norm"])


def trained(loss):
    """The minimiser of a loss plus the quadratic terms of the Lagrangian, by SciPy."""
    fun = jax.jit(jax.value_and_grad(lambda y: loss(y.reshape(65, 3)) + (multiplier + RIDGE / 2) * jnp.sum(y**2)))
    options = {"ftol": 0.0, "gtol": 1e-9, "maxiter": 9999}
    return minimize(fun, np.zeros(195), jac=True, method="L-BFGS-B", options=options).x.reshape(65, 3)


found = trained(lambda y: jnp.mean(sol.x * entropies(y, crowd, given)))
print(f"norm {np.linalg.norm(found):.6f}, largest difference {np.abs(found - sol.y).max():.1e}")
assert multiplier > 0 and np.abs(found - sol.y).max() < 1e-5 and abs(np.linalg.norm(found) - RADIUS) < 1e-5

# %%
# What came of it. For comparison the same classifier with all weights one, and one that sees the checked images only.

weights = np.asarray(sol.x)
dropped = weights < 0.01
print(f"thrown away: {dropped.sum()} images, {wrong[dropped].sum()} of them wrong; wrong in all: {wrong.sum()}")
print(f"chance that a wrong label has the smaller weight: {roc_auc_score(~wrong, weights):.2f}")
models = {
    "all weights one": trained(lambda y: jnp.mean(entropies(y, crowd, given))),
    "checked images only": trained(lambda y: jnp.mean(entropies(y, expert, digits[expert]))),
    "weights by hierax": np.asarray(sol.y),
}
for name, weight in models.items():
    right = np.mean(np.argmax(images[test] @ weight, axis=1) == digits[test])
    print(f"{name:20s} test accuracy {100 * right:.1f} %")

# %%
# The picture: weights, and the eight images with a wrong label that were thrown away first in the list.

fig = plt.figure(figsize=(9.5, 3.6), layout="constrained")
left, right = fig.subfigures(1, 2, width_ratios=(1.3, 1))
axes = left.subplots()
axes.hist([weights[~wrong], weights[wrong]], bins=np.linspace(0, 1, 11), color=["C0", "C3"], label=["right", "wrong"])
axes.set(xlabel="weight of an unchecked image", ylabel="number of images")
axes.legend(title="label", loc="upper center")
for axes, i in zip(right.subplots(2, 4).ravel(), np.flatnonzero(dropped & wrong), strict=False):
    axes.imshow(images[i, :64].reshape(8, 8), cmap="gray_r")
    axes.set_title(f"labelled {kinds[given[i]]}", fontsize=9)
    axes.axis("off")
plt.show()
