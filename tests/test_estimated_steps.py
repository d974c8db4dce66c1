"""Estimated steps are corrected on the way: shorter in growing curvature, as long as they are where they are given."""

import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax_lab.problems import random_qp


def test_a_bound_that_holds_x_back_neither_stops_the_rest_of_it_nor_throws_it_away():
    """One entry of x* is on its bound with a slope of 0.5 and more: SALVF settles, and stays where it has settled.

    The length of a step is what is left of it after the projection. Measured before it, the slope at the bound made
    every lengthened step look far too long; the other entries stood still, and at last went off with the whole factor.
    """
    example = random_qp(0, 5, 8, 0, 4)
    sol = hx.solve(example.problem, example.x0, example.y0, hx.SALVF(), max_steps=10_000)
    assert float(sol.history["stationarity"][-1]) < 1e-8
    assert np.linalg.norm(sol.x - example.solutions[0].x) < 0.3 * np.linalg.norm(example.x0 - example.solutions[0].x)


STEEPENING = hx.Problem(
    upper=lambda x, y, zeta: (y - 3.0) ** 2 + 0.01 * (x - 3.0) ** 2,
    lower=lambda x, y, xi: 0.5 * jnp.exp(2.0 * x) * (y - x) ** 2,
    x_set=hx.Box(0.0, 3.0),
)


def test_curvature_that_grows_on_the_way_shortens_the_steps():
    """G_yy = exp(2 x) grows from 1 to exp(6) = 403: steps of the start's length would diverge."""
    sol = hx.solve(STEEPENING, 0.0, 0.0, hx.SALVF(), max_steps=3000)
    watch = sol.state.run.state.watch
    assert sol.status.name == "max_steps"
    assert float(watch.share) < 0.1
    np.testing.assert_allclose(watch.curved / watch.share, np.exp(2 * sol.x) / 1.25, rtol=0.3)
    stiff = hx.solve(STEEPENING, 0.0, 0.0, hx.SALVF(adapt=()), max_steps=3000, throw=False)
    assert stiff.status.failed or stiff.value > 3 * sol.value


def test_steps_that_are_given_are_never_changed():
    steps = hx.Steps(x=1e-3, y=1e-3, z=1e-2)
    method = hx.SALVF(c1=5.0, steps=steps, inner=hx.SALM(eta_max=0.01))
    sol = hx.solve(STEEPENING, 0.0, 0.0, method, max_steps=200)
    assert sol.method.adapt == ()
    assert not sol.method.follow
    assert sol.state.run.state.watch.growth == 1
    assert sol.state.run.state.watch.vector is None


def test_names_of_steps_are_checked():
    with pytest.raises(hx.InputError, match="adapt"):
        hx.SALVF(adapt=("w",))
