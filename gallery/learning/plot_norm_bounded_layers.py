r"""
A norm bound for each layer of a network
========================================

A network that reads digits is trained on few images, one label in five of which is wrong. Left alone it learns the
wrong labels by heart. Bounds on the norms of its layers prevent that, and they are easier to reason about than
penalties: a layer of norm :math:`C` stretches its input by at most :math:`C`. The two layers want different bounds, and
which ones is what images with checked labels decide.

The upper level chooses the bounds :math:`x = (C_1, C_2)` by the cross-entropy (nats) on the checked images; the lower
level trains both layers :math:`y = (W_1, W_2)`, biases included, on the others:

.. math::

    \min_{W_1, W_2} \; \frac1N \sum_i \ell\big(W_2 \tanh(W_1 z_i), l_i\big)
    \quad\text{subject to}\quad \|W_1\|^2 \le C_1^2, \quad \|W_2\|^2 \le C_2^2 .

A network of this size has no exact solution that anybody could compute. hierax then trains it as its users would, eight
times under every pair of bounds, and says how sure it is: it certifies no such answer, ``unproved`` is the best status.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_digits

import hierax as hx

# %%
# The digits of scikit-learn, averaged to 4 by 4 pixels: 150 images to train with 30 wrong labels, 400 checked ones, the
# others to test. The network has 8 hidden units and 226 weights.

images, digits = load_digits(return_X_y=True)
images = (images.reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16) / 8.0 - 1.0).astype(np.float32)
rng = np.random.default_rng(0)
order = rng.permutation(len(digits))
images, digits = images[order], digits[order].astype(np.int32)
crowd, checked, test = slice(0, 150), slice(150, 550), slice(550, None)
given = digits[crowd].copy()
given[:30] = (given[:30] + rng.integers(1, 10, 30)) % 10


def untrained():
    """Weights before training; the last row of each layer is its bias."""
    shapes = {"hidden": (17, 8), "output": (9, 10)}
    return {name: (0.3 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}


def scores(y, images):
    """Of the ten digits, for each image."""
    hidden = jnp.tanh(images @ y["hidden"][:-1] + y["hidden"][-1])
    return hidden @ y["output"][:-1] + y["output"][-1]


def entropy(y, batch):
    """Mean cross-entropy, in nats."""
    images, labels = batch
    return optax.softmax_cross_entropy_with_integer_labels(scores(y, images), labels).mean()


problem = hx.Problem(
    upper=lambda x, y, zeta: entropy(y, zeta),
    lower=lambda x, y, xi: entropy(y, xi),
    constraints=lambda x, y: {name: jnp.sum(y[name] ** 2) - x[name] ** 2 for name in y},
    x_set=hx.Box(0.5, 40.0),
    zeta=hx.Finite((images[checked], digits[checked])),
    xi=hx.Finite((images[crowd], given)),
)
sol = hx.solve(problem, {"hidden": 4.0, "output": 4.0}, untrained())
print({name: round(float(bound), 2) for name, bound in sol.x.items()}, f"cross-entropy {sol.value:.3f} nats")
print(sol.certificate, sol.status.message, sep="\n")

# %%
# Check: training of our own, by Adam with a projection after every step, side by side for a grid of 6 x 6 pairs of
# bounds and six random starts each. It is another training than hierax's, which takes batches and fewer passes, so the
# best bounds need not be the same: at hierax's bounds it must be within 0.06 nats of its own best.


def judged(bounds, start):
    """Cross-entropy on the checked images, and test accuracy, after 1,000 steps under a pair of bounds."""
    adam, norms = optax.adam(0.03), {"hidden": bounds[0], "output": bounds[1]}

    def step(_, carry):
        y, state = carry
        change, state = adam.update(jax.grad(entropy)(y, (images[crowd], given)), state)
        y = optax.apply_updates(y, change)
        return {name: y[name] * jnp.minimum(1.0, norms[name] / jnp.linalg.norm(y[name])) for name in y}, state

    y = jax.lax.fori_loop(0, 1000, step, (start, adam.init(start)))[0]
    right = jnp.argmax(scores(y, images[test]), 1) == digits[test]
    return entropy(y, (images[checked], digits[checked])), jnp.mean(right)


starts = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(untrained() for _ in range(6)))
axis = np.geomspace(1.0, 32.0, 6).astype(np.float32)
pairs = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
ours = np.array([[sol.x["hidden"], sol.x["output"]]], np.float32)
every = jax.jit(jax.vmap(jax.vmap(judged, (None, 0)), (0, None)))(np.concatenate([pairs, ours]), starts)
losses, right = (np.mean(part, axis=1) for part in every)
best = losses[:-1].argmin()
print(f"best of the grid: {losses[best]:.3f} nats at {pairs[best]}; at hierax's bounds: {losses[-1]:.3f} nats")
difference = every[0][-1] - every[0][best]
print(f"difference {np.mean(difference):.3f} nats, standard error {np.std(difference, ddof=1) / 6**0.5:.3f}")
print(f"test accuracy without effective bounds {right[35]:.1%}, at hierax's {right[-1]:.1%}")
assert losses[-1] < losses[best] + 0.06

# %%
# The picture: cross-entropy on the checked images over both bounds, by the grid. The valley is flat, and which of its
# points is the lowest depends on how one trains.

fig, axes = plt.subplots(figsize=(6.2, 4.5), layout="constrained")
shown, levels = np.minimum(losses[:-1].reshape(6, 6).T, 2.5), np.linspace(0.9, 2.5, 17)
shades = axes.contourf(axis, axis, shown, levels=levels, cmap="viridis_r")
axes.plot(*ours[0], "C3o", mec="w", ms=9, label="found by hierax")
axes.set(xscale="log", yscale="log", xlabel="bound of the hidden layer $C_1$", ylabel="bound of the output layer $C_2$")
axes.legend(loc="upper right")
fig.colorbar(shades, label="cross-entropy on checked images (nats)")
plt.show()
