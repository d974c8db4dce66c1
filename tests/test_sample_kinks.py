"""Kinks that single samples put into an average: seen in the program, smoothed, and gone as the samples become more.

Unit tests of hierax._base.sample_kinks.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hierax._base.sample_kinks import has_sample_kinks, without_sample_kinks

SAMPLES = np.random.default_rng(3).gamma(2.0, 3.0, 20_000)
KINKED = {
    "minimum": lambda x, y, z: x * y - jnp.mean(jnp.minimum(y, z)),
    "maximum": lambda x, y, z: x * y - jnp.mean(y - jnp.maximum(y - z, 0.0)),
    "relu": lambda x, y, z: x * y - jnp.mean(y - jax.nn.relu(y - z)),
    "where": lambda x, y, z: x * y - jnp.mean(jnp.where(y > z, z, y)),
    "where the other way": lambda x, y, z: x * y - jnp.mean(jnp.where(z[:, None] >= y, y, z[:, None])),
    "clip": lambda x, y, z: x * y - jnp.mean(jnp.clip(y, None, z)),
    "abs": lambda x, y, z: x * y - jnp.mean(0.5 * (y + z - jnp.abs(y - z))),
}


AT = float(np.quantile(SAMPLES, 0.7))
DENSITY = AT / 9.0 * np.exp(-AT / 3.0)  # of the gamma distribution with shape 2 and scale 3


@pytest.fixture(scope="module")
def seen():
    """Of every average at the quantile: its value, and of its smooth form value, slope and curvature in y."""

    def at(function, samples):
        smooth = without_sample_kinks(function)
        curvature = jax.hessian(smooth, 1)(0.3, AT, samples)
        return function(0.3, AT, samples), *jax.value_and_grad(smooth, 1)(0.3, AT, samples), curvature

    return jax.jit(lambda samples: {name: at(function, samples) for name, function in KINKED.items()})(SAMPLES)


@pytest.mark.parametrize("name", KINKED)
def test_a_newsvendor_orders_the_quantile(name, seen):
    """min of x y - E min(y, D) has y = the quantile of D at 1 - x: the smooth average's slope is zero there, within
    three standard errors of the share of samples below; it is close to the average with kinks, and its curvature is an
    estimate of the density (0 or 1 / N / width where the width is too small).
    """
    assert has_sample_kinks(KINKED[name], 0.3, 5.0, SAMPLES[:32])
    average, value, slope, curvature = map(float, seen[name])
    assert abs(slope) < 3 * (0.7 * 0.3 / SAMPLES.size) ** 0.5
    assert abs(value - average) < 1e-3
    assert curvature == pytest.approx(DENSITY, rel=0.25)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y, z: jnp.mean(jax.nn.softplus(y - z)),  # a maximum inside of a rule of its own
        lambda x, y, z: jnp.mean(jax.scipy.special.logsumexp(jnp.stack([y - z, x * z]), axis=0)),
        lambda x, y, z: jnp.maximum(y, x) * jnp.mean(z),  # a kink of the problem, not of the samples
        lambda x, y, z: jnp.mean(jnp.where(z > 0, y * z, 0.0)),  # the samples choose, wherever the point is
    ],
)
def test_what_has_no_such_kink_stays(function):
    assert not has_sample_kinks(function, 0.3, 5.0, SAMPLES[:32])
