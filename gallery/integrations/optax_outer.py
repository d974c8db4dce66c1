"""
An optax chain above
====================

The outer update is an optax chain: clipped Adam for y, Adam for x, a decaying rate.

::

    python gallery/integrations/optax_outer.py

Two ridge penalties, one per group of features, are chosen on a validation set under a budget on the coefficients.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hierax as hx

FEATURES = 20


def make_data(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The first half of the features matters, the second does not."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(rows, FEATURES))
    return inputs, inputs[:, : FEATURES // 2].sum(axis=1) + rng.normal(size=rows)


def square(y: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Half the mean square of the errors."""
    inputs, targets = batch
    return 0.5 * jnp.mean((inputs @ y - targets) ** 2)


def lower(x: jax.Array, y: jax.Array, xi: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Ridge regression with a penalty exp(x_i) for each half."""
    first, second = jnp.split(y**2, 2)
    return square(y, xi) + 0.5 * (jnp.exp(x[0]) * jnp.sum(first) + jnp.exp(x[1]) * jnp.sum(second))


def main(steps: int = 3000) -> hx.Solution:
    """Tune both penalties, print them."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: square(y, zeta),
        lower=lower,
        constraints=lambda x, y: jnp.sum(y**2) - FEATURES,
        x_set=hx.Box(-6.0, 3.0),
        zeta=hx.Finite(make_data(60, seed=1)),
        xi=hx.Finite(make_data(30, seed=0)),
    )
    rate = optax.cosine_decay_schedule(0.05, steps)
    outer = hx.Steps(
        x=optax.chain(optax.clip_by_global_norm(10.0), optax.adam(rate)),
        y=optax.chain(optax.clip_by_global_norm(10.0), optax.adam(optax.cosine_decay_schedule(0.02, steps))),
    )
    sol = hx.solve(problem, np.zeros(2), np.zeros(FEATURES), hx.SALVF(c1=3.0, steps=outer), max_steps=steps)
    penalties = np.exp(np.asarray(sol.x))
    print(f"penalties: {penalties[0]:.3g} for features that matter, {penalties[1]:.3g} for those that do not")
    return sol


if __name__ == "__main__":
    main()
