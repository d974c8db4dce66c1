r"""
Cost and width of a kernel machine
==================================

Whoever trains a support vector machine with a Gaussian kernel has two numbers to choose, the cost :math:`C` of a
violated margin and the width :math:`r` of the kernel, and mostly chooses them from a grid. Here the upper level chooses
them by the loss on validation rows, and the lower level is the machine's dual problem: with kernel :math:`k(u, v) =
e^{-\|u - v\|^2 / (2 r^2)}`, labels :math:`l_i = \pm 1` and squared slacks,

.. math::

    \min_{a} \; \tfrac12 \sum_{ij} a_i a_j l_i l_j \big(k(z_i, z_j) + \tfrac1C \delta_{ij}\big) - \sum_i a_i
    \quad\text{subject to}\quad a_i \ge 0 ,

so that the decision function is :math:`f(z) = \sum_i a_i l_i k(z, z_i)`. A row with :math:`a_i > 0` is a support
vector; which rows are changes with :math:`C` and :math:`r`, and the validation loss has a kink wherever one enters or
leaves. The features are two half moons without units, with noise of standard deviation 0.3.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import nnls
from sklearn.datasets import make_moons

import hierax as hx

jax.config.update("jax_enable_x64", True)  # kernel matrices of close points are nearly singular

# %%
# Sixty rows to train, 200 to judge, 2,000 to test.

points, kinds = make_moons(2260, noise=0.3, random_state=0)
labels = np.where(kinds == 1, 1.0, -1.0)
train, judge, test = slice(0, 60), slice(60, 260), slice(260, None)
same = np.outer(labels[train], labels[train])


def kernel(u, v, log_width):
    """The Gaussian kernel between the rows of u and v; works for NumPy and JAX numbers."""
    squares = ((u[:, None, :] - v[None, :, :]) ** 2).sum(-1)
    return jnp.exp(-squares / (2.0 * jnp.exp(2.0 * log_width)))


def scores(x, a, part):
    """The decision function on some rows."""
    return kernel(points[part], points[train], x["log width"]) @ (a * labels[train])


def lower(x, a, xi):
    """The dual objective."""
    quadratic = same * kernel(points[train], points[train], x["log width"])
    return 0.5 * a @ (quadratic @ a) + 0.5 * jnp.exp(-x["log cost"]) * jnp.sum(a**2) - jnp.sum(a)


def upper(x, a, zeta):
    """Mean squared hinge of the validation rows, the loss that the machine itself is trained by."""
    return jnp.mean(jax.nn.relu(1.0 - labels[judge] * scores(x, a, judge)) ** 2)


problem = hx.Problem(
    upper=upper,
    lower=lower,
    x_set={"log cost": hx.Box(np.log(1e-2), np.log(1e3)), "log width": hx.Box(np.log(0.1), np.log(3.0))},
    y_set=hx.NonNegative(),
)
sol = hx.solve(problem, {"log cost": 0.0, "log width": 0.0}, np.full(60, 0.1))
cost, width = np.exp(sol.x["log cost"]), np.exp(sol.x["log width"])
print(f"cost {cost:.3f}, width {width:.3f}, validation loss {sol.value:.5f}, support vectors {np.sum(sol.y > 1e-9)}")
print(sol.certificate)
print(sol.status.name)

# %%
# Check: a grid of 25 costs and 25 widths, the lower level solved by SciPy's non-negative least squares (the dual is
# one: with :math:`Q = L L^\top`, minimise :math:`\|L^\top a - L^{-1} 1\|` over :math:`a \ge 0`). The best point of the
# grid must not be better than what hierax found, and SciPy's machine at that point must be the same.


def reference(log_cost, log_width):
    """The dual solution by SciPy, and its validation loss."""
    quadratic = same * np.asarray(kernel(points[train], points[train], log_width)) + np.exp(-log_cost) * np.eye(60)
    factor = np.linalg.cholesky(quadratic)
    a = nnls(factor.T, solve_triangular(factor, np.ones(60), lower=True))[0]
    return a, float(upper({"log width": log_width}, a, None))


log_costs, log_widths = np.linspace(np.log(1e-2), np.log(1e3), 25), np.linspace(np.log(0.1), np.log(3.0), 25)
losses = np.array([[reference(c, r)[1] for c in log_costs] for r in log_widths])
a, loss = reference(float(sol.x["log cost"]), float(sol.x["log width"]))
print(f"best of the grid {losses.min():.5f}; at hierax's point by SciPy {loss:.5f}")
assert np.abs(a - sol.y).max() < 1e-6 * np.abs(a).max() and abs(loss - sol.value) < 1e-8
assert sol.value <= losses.min() + 1e-8

# %%
# The picture: left the validation loss by the grid, with the point that was found; right the machine, its training rows
# (support vectors large), its decision boundary (solid) and its margins (dashed).

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
levels = np.linspace(0.4, 1.0, 13)
shades = left.contourf(np.exp(log_costs), np.exp(log_widths), losses, levels, cmap="viridis_r", extend="max")
left.plot(cost, width, "C3o", mec="w", label="found by hierax")
left.set(xscale="log", yscale="log", xlabel="cost $C$", ylabel="width $r$ of the kernel", title="validation loss")
left.legend(loc="lower right")
fig.colorbar(shades, ax=left)
axis = np.linspace(-2.0, 3.0, 80)
mesh = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
values = np.asarray(kernel(mesh, points[train], sol.x["log width"]) @ (sol.y * labels[train])).reshape(80, 80)
right.contour(axis, axis, values, levels=[-1, 0, 1], colors="0.3", linestyles=["--", "-", "--"])
held = np.asarray(sol.y) > 1e-9
for kind, colour in ((-1, "C0"), (1, "C1")):
    ours = labels[train] == kind
    right.scatter(*points[train][ours].T, c=colour, s=np.where(held[ours], 40, 8), label=f"label {kind:+d}")
correct = 100 * np.mean(np.sign(scores(sol.x, sol.y, test)) == labels[test])
right.set(xlabel="first feature", ylabel="second feature", title=f"test accuracy {correct:.1f} %")
right.set(xlim=(-2, 3), ylim=(-1.6, 2.1))
right.legend(loc="upper right")
plt.show()
