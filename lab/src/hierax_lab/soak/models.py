"""The problems whose runs are killed: `hierax solve lab/src/hierax_lab/soak/models.py:NAME`."""

import jax
import jax.numpy as jnp
import numpy as np

import hierax as hx
from hierax.problems import toy


def noisy():
    """The paper's toy, from samples that are drawn."""
    return toy(0.1)[:3]


def wide():
    """A lower variable of 200,000 entries: writing a checkpoint takes long enough to be hit."""
    target = jnp.linspace(0.0, 1.0, 200_000)
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.mean((y - target) ** 2) + 0.1 * x**2,
        lower=lambda x, y, xi: jnp.mean((y - x) ** 2 + 0.1 * y**2),
        x_set=hx.Box(-3.0, 3.0),
    )
    return problem, 0.5, np.zeros(200_000)


def streamed():
    """Batches from a list, which is begun anew and skipped."""
    rng = np.random.default_rng(0)
    zeta, xi = (hx.Stream([0.1 * rng.standard_normal((4, 2)) for _ in range(count)]) for count in (7, 11))
    problem = hx.Problem(
        upper=lambda x, y, zeta: (x - 1.0) ** 2 + (y - 2.0) ** 2 + jnp.mean(zeta, 0) @ jnp.stack([x, y]),
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2 + jnp.mean(xi, 0) @ jnp.stack([x, y]),
        constraints=lambda x, y: y - x,
        x_set=hx.Box(0.0, 3.0),
        y_set=hx.Box(0.0, 3.0),
        zeta=zeta,
        xi=xi,
    )
    return problem, 0.5, 0.5


def several_minima():
    """A search from 16 starts: a lower level with several minima in every entry of y."""
    weights = jnp.linspace(0.5, 1.5, 4)
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((x - 0.3) ** 2) + jnp.sum((y - 1.0) ** 2),
        lower=lambda x, y, xi: jnp.sum(jnp.cos(3.0 * y) + 0.3 * weights * (y - x) ** 2),
        x_set=hx.Box(-2.0, 2.0),
        y_set=hx.Box(-3.0, 3.0),
    )
    return problem, np.full(4, 0.5), np.full(4, 0.5)


def averaged():
    """Expectations that are known from samples only, for growing averages."""

    def draw(key, n):
        return 0.02 * jax.random.normal(key, (n, 2))

    problem = hx.Problem(
        upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2 + jnp.mean(zeta, 0) @ jnp.stack([x, y]),
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2 + jnp.mean(xi, 0) @ jnp.stack([x, y]),
        constraints=lambda x, y: y - x,
        x_set=hx.Box(-3.0, 3.0),
        y_set=hx.Box(-3.0, 3.0),
        zeta=hx.Sampler(draw),
        xi=hx.Sampler(draw),
    )
    return problem, 0.5, 0.5
