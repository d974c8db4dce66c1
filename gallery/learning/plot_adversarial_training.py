r"""
A classifier for measurements with errors
=========================================

A laboratory sorts tumours by the mean radius (in the data's length units) and the texture (standard deviation of grey
values) of the cell nuclei in an image. Both are averages over many nuclei, and every image comes with standard errors
of its own. The classifier should hold even if each measurement is off by :math:`k = 2` standard errors in the worst
direction.

That is adversarial training. The upper level chooses the coefficients :math:`x = (w, b)`; below, an attacker moves
every image :math:`i` by :math:`\delta_i` within its own error ellipse, as far to the wrong side as it can:

.. math::

    \min_{\delta} \; \frac1N \sum_i l_i\, w^\top \delta_i
    \quad\text{subject to}\quad \sum_j (\delta_{ij} / \sigma_{ij})^2 \le k^2 \quad\text{for every } i ,

and the upper level minimises the logistic loss at :math:`z_i + \delta_i`. The attack can be solved by hand, so there is
a closed form to check against. The data are the Wisconsin breast cancer data of scikit-learn, which have the standard
errors as columns.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize
from sklearn.datasets import load_breast_cancer

import hierax as hx

jax.config.update("jax_enable_x64", True)  # the check below asks for six digits

# %%
# Fifty images. Radius and texture, and their standard errors, are divided by the standard deviation of the column.

data = load_breast_cancer()
pick = np.random.default_rng(2).permutation(len(data.target))[:50]
names = ("mean radius", "mean texture", "radius error", "texture error")
radius, texture, radius_error, texture_error = (data.data[pick, list(data.feature_names).index(n)] for n in names)
centre, unit = np.array([radius.mean(), texture.mean()]), np.array([radius.std(), texture.std()])
points = (np.stack([radius, texture], 1) - centre) / unit
sigma = np.stack([radius_error, texture_error], 1) / unit
labels = np.where(data.target[pick] == 0, 1.0, -1.0)  # +1: malignant
ERRORS, RIDGE = 2.0, 1e-2


def loss(x, margins):
    """Mean logistic loss (nats) and a small quadratic penalty."""
    return jnp.mean(jnp.logaddexp(0.0, -margins)) + 0.5 * RIDGE * jnp.sum(x["w"] ** 2)


problem = hx.Problem(
    upper=lambda x, delta, zeta: loss(x, labels * ((points + delta) @ x["w"] + x["b"])),
    lower=lambda x, delta, xi: jnp.mean(labels * (delta @ x["w"])),
    constraints=lambda x, delta: {"ellipse": jnp.sum((delta / sigma) ** 2, axis=1) - ERRORS**2},
    x_set=hx.Box(-20.0, 20.0),
)
sol = hx.solve(problem, {"w": np.array([1.0, 1.0]), "b": 0.0}, np.zeros((50, 2)))
w, b = np.asarray(sol.x["w"]), float(sol.x["b"])
print(f"w = {w.round(4)}, b = {b:.4f}, worst-case loss {sol.value:.6f}")
print(sol.certificate)
print(sol.status.name)

# %%
# By hand: the attacker's best move is :math:`\delta_{ij} = -k\, l_i \sigma_{ij}^2 w_j / \|\sigma_i \odot w\|`, which
# lowers the margin by :math:`k \|\sigma_i \odot w\|`. What is left is convex in :math:`(w, b)`, and SciPy minimises it.


def worst(u):
    """The worst-case loss at u = (w, b), by the closed form."""
    margins = labels * (points @ u[:2] + u[2]) - ERRORS * jnp.linalg.norm(sigma * u[:2], axis=1)
    return loss({"w": u[:2]}, margins)


def fitted(fun):
    """The minimiser of a smooth convex function of (w, b), by SciPy."""
    return minimize(jax.jit(jax.value_and_grad(fun)), np.array([1.0, 1.0, 0.0]), jac=True, options={"gtol": 1e-9})


exact = fitted(worst)
attack = -ERRORS * labels[:, None] * sigma**2 * w / np.linalg.norm(sigma * w, axis=1)[:, None]
print(f"closed form: w = {exact.x[:2].round(4)}, b = {exact.x[2]:.4f}, worst-case loss {exact.fun:.6f}")
assert np.abs(exact.x - np.array([*w, b])).max() < 1e-4
assert abs(exact.fun - sol.value) < 1e-6 and np.abs(attack - sol.y).max() < 1e-5

# %%
# Beside it the ordinary classifier, which trusts the measurements.

plain = fitted(lambda u: loss({"w": u[:2]}, labels * (points @ u[:2] + u[2]))).x
for name, u in (("ordinary", plain), ("adversarial", exact.x)):
    nominal = labels * (points @ u[:2] + u[2])
    attacked = nominal - ERRORS * np.linalg.norm(sigma * u[:2], axis=1)
    print(
        f"{name:12s} right as measured {np.mean(nominal > 0):.0%}, right under attack {np.mean(attacked > 0):.0%}, "
        f"worst-case loss {float(worst(u)):.3f} nats"
    )

# %%
# The picture: every image with the ellipse it may move in (two standard errors), and the two boundaries.

fig, axes = plt.subplots(figsize=(7, 5), layout="constrained")
angle = np.linspace(0.0, 2.0 * np.pi, 60)
circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
for kind, colour, name in ((1.0, "C3", "malignant"), (-1.0, "C0", "benign")):
    ours = labels == kind
    axes.plot(*(centre + unit * points[ours]).T, "o", ms=3, color=colour, label=name)
    ellipses = centre + unit * (points[ours, None] + ERRORS * sigma[ours, None] * circle)
    axes.plot(ellipses[..., 0].T, ellipses[..., 1].T, color=colour, lw=0.6)
limits = np.array([texture.min() - 3.0, texture.max() + 3.0])
for u, style, name in ((plain, "k--", "ordinary"), (np.array([*w, b]), "k-", "adversarial")):
    line = -(u[2] + u[1] * (limits - centre[1]) / unit[1]) / u[0]
    axes.plot(centre[0] + unit[0] * line, limits, style, label=f"boundary, {name}")
axes.set(xlabel="mean radius of the nuclei", ylabel="texture (standard deviation of grey values)", ylim=limits)
axes.legend(loc="lower right")
plt.show()
