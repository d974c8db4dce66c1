"""
An Equinox module as the lower variable
=======================================

The lower variable is an Equinox module: its arrays are trained, its functions are set aside and put back.

::

    python gallery/integrations/equinox_module.py

The norm of a small network is bounded by x, and x is chosen on a validation set.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import hierax as hx


def make_data(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A noisy curve."""
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(-2.0, 2.0, (rows, 1)).astype(np.float32)
    return inputs, (np.sin(2.0 * inputs[:, 0]) + 0.3 * rng.normal(size=rows)).astype(np.float32)


def mean_square(model: eqx.nn.MLP, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Of the errors on a batch."""
    inputs, targets = batch
    return jnp.mean((jax.vmap(model)(inputs)[:, 0] - targets) ** 2)


def norm(model: eqx.nn.MLP) -> jax.Array:
    """Of all weights and biases."""
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))))


def main(steps: int = 2000) -> hx.Solution:
    """Tune the bound, print what came out."""
    model = eqx.nn.MLP(1, 1, width_size=32, depth=1, activation=jnp.tanh, key=jax.random.key(0))
    problem = hx.Problem(
        upper=lambda x, y, zeta: mean_square(y, zeta),
        lower=lambda x, y, xi: mean_square(y, xi),
        constraints=lambda x, y: norm(y) - x,
        x_set=hx.Box(1.0, 20.0),
        zeta=hx.Finite(make_data(100, seed=1)),
        xi=hx.Finite(make_data(40, seed=0)),
    )
    sol = hx.solve(problem, np.float32(3.0), model, hx.SALVF(c1=2.0), max_steps=steps)
    test = mean_square(sol.y, make_data(1000, seed=2))
    print(f"bound {float(sol.x):.2f}, norm {float(norm(sol.y)):.2f}, mean square on new data {float(test):.3f}")
    print(f"{type(sol.y).__name__} at 0.5: {sol.y(jnp.array([0.5]))}")
    return sol


if __name__ == "__main__":
    main()
