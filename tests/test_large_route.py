"""The large route ends as converged where its certificate says yes, and nowhere else."""

import jax
import jax.numpy as jnp
import numpy as np

import hierax as hx
from hierax._auto.constants import MOST_SAMPLES
from hierax._auto.runs import Reading, Referee
from hierax._base.constants import FRESH_SAMPLES
from hierax._run.prepare import prepare


def noisy(sigma):
    """The answer is x = y = 1/1.1; noise of standard deviation sigma on all gradients."""
    noise = hx.Sampler(lambda key, n: sigma * jax.random.normal(key, (n, 2)))
    return hx.Problem(
        upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2 + jnp.mean(zeta, 0) @ jnp.stack([x, y]),
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2 + jnp.mean(xi, 0) @ jnp.stack([x, y]),
        constraints=lambda x, y: y - x,
        x_set=hx.Box(0.0, 5.0),
        zeta=noise,
        xi=noise,
    )


def test_noise_is_no_agreement():
    """Finding S5: with sigma = 30 the route ended as converged where `sol.certificate.ok()` was False."""
    assert not hx.solve(noisy(30.0), 3.0, 3.0, hx.Auto(seconds=8.0, starts=1)).status.ok
    sol = hx.solve(noisy(30.0), 3.0, 3.0, hx.Auto(route="large", seconds=8.0, starts=1))
    assert sol.status.name == "seconds"
    assert not sol.status.ok
    assert "agrees" not in sol.status.message  # how far the stages get in 8 s is the machine's affair


def test_an_open_certificate_asks_for_more_samples():
    reading = Reading.of(hx.certify(noisy(30.0), 1 / 1.1, 1 / 1.1), 1e-3)
    assert reading.verdict == "unknown"
    assert reading.open_by_noise
    far = Reading.of(hx.certify(noisy(0.1), 0.3, 0.3), 1e-3)
    assert far.verdict == "no" and not far.open_by_noise


def test_the_referee_sees_more_samples_up_to_a_bound():
    referee = Referee(prepare(noisy(1.0), 0.9, 0.9), 0)
    first = referee.setting
    assert referee.see_more_samples()
    assert referee.samples == MOST_SAMPLES > FRESH_SAMPLES
    assert referee.setting is not first
    assert not referee.see_more_samples()
    exact = hx.Sampler(lambda key, n: jax.random.normal(key, (n, 2)), exact=np.zeros((1, 2)))
    known = noisy(1.0)
    known = hx.Problem(known.upper, known.lower, known.constraints, zeta=exact, xi=exact)
    assert not Referee(prepare(known, 0.9, 0.9), 0).see_more_samples()
