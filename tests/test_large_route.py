"""The large route ends as converged where its certificate says yes, and nowhere else."""

import jax
import jax.numpy as jnp
import numpy as np

import hierax as hx


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


def test_the_value_of_a_stream_is_told_on_samples_that_chose_nothing():
    """Finding R3: the stage with the luckiest batch had won, and F was said to be that of this batch."""
    rng = np.random.default_rng(0)

    def batches():
        while True:
            yield rng.normal(size=32)

    stated = hx.Problem(
        upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2 + jnp.mean(zeta**2),
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2 + 0.1 * jnp.mean(xi) * y,
        constraints=lambda x, y: y - x,
        x_set=hx.Box(0.0, 5.0),
        zeta=hx.Stream(batches()),
        xi=hx.Stream(batches()),
    )
    sol = hx.solve(stated, 3.0, 3.0, hx.Auto(route="large"), max_steps=2)
    x, y = float(sol.x), float(sol.y)
    exact = (y - 1.0) ** 2 + 0.1 * x**2 + 1.0
    assert exact < 1.1 and sol.value == sol.estimates.upper
    assert abs(sol.value - exact) < 4 * sol.estimates.upper_se < 0.2
    assert "4096 samples of the streams were put aside" in sol.log[1]
    assert "fresh samples" in sol.certificate.data
