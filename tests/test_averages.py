"""Problems that are known from samples only: averages, judged on samples that they have not seen."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx


def noisy(sigma):
    """The README's problem with noise on F and G; its answer is x = y = 1 / 1.1."""
    draw = hx.Sampler(lambda key, n: sigma * jax.random.normal(key, (n, 2)))
    return hx.Problem(
        upper=lambda x, y, zeta: (y - 1) ** 2 + 0.1 * x**2 + (zeta[:, 0] * x + zeta[:, 1] * y).mean(),
        lower=lambda x, y, xi: (y - 2 * x) ** 2 + (xi[:, 0] * y).mean(),
        constraints=lambda x, y: y - x,
        x_set=hx.Box(0.0, 3.0),
        y_set=hx.Box(0.0, 3.0),
        zeta=draw,
        xi=draw,
    )


@pytest.fixture(scope="module")
def timed():
    """A solution, and the seconds that it took."""
    begin = time.perf_counter()
    return hx.solve(noisy(0.5), 0.5, 0.5, progress=False), time.perf_counter() - begin


@pytest.fixture(scope="module")
def solution(timed):
    return timed[0]


def test_nearly_all_of_the_time_is_accounted_for(timed):
    """Also what certificates on fresh samples take, between the averages."""
    sol, took = timed
    assert 0.7 * took <= sol.counts.seconds + sol.counts.compile_seconds <= took


def test_the_answer_is_right_within_its_standard_error(solution):
    assert solution.method.route == "average"
    assert float(solution.x) == pytest.approx(1 / 1.1, abs=0.02)
    assert "standard error" in " ".join(solution.log)
    assert solution.counts.zeta == solution.counts.xi > 0


def test_what_is_claimed_holds(solution):
    """F(x, y*(x)) is within three standard errors of the value, and no more above the best than was stated."""
    seen, x = solution.estimates, float(solution.x)
    value = (x - 1) ** 2 + 0.1 * x**2
    assert solution.status.ok == (solution.certificate.verdict(1e-4) == "yes")
    assert abs(solution.value - value) < 3 * seen.upper_se and value - 1 / 11 < seen.gap
    assert abs(x - 1 / 1.1) < 3 * seen.x_se[0]


def test_what_noise_leaves_open_is_not_claimed():
    few = hx.solve(noisy(5.0), 0.5, 0.5, hx.Auto(samples=20_000), progress=False)
    assert few.certificate.upper_se > 0 and few.status.name == "unproved"
    assert "samples would tell" in few.status.message and "above the best nearby" in few.status.message
    assert "samples would tell whether" in few.log[1]  # after every average


def test_little_noise_is_certified():
    quiet = hx.solve(noisy(1e-6), 0.5, 0.5, progress=False)
    assert quiet.status.name == "converged"
    assert quiet.log[0].startswith("Route average")


def test_samples_that_are_all_alike_prove_nothing():
    """Noise that is -1, and once in 1e9 samples so much more that its mean is 0: x = 1 / 1.1 is not seen."""
    rare = hx.Sampler(lambda key, n: jnp.where(jax.random.uniform(key, (n, 2)) < 1e-9, 1e9, 0.0) - 1.0)
    sol = hx.solve(dataclasses.replace(noisy(0.5), zeta=rare, xi=rare), 0.5, 0.5, hx.Auto(samples=4000), progress=False)
    assert not sol.status.ok
    assert sol.certificate.verdict() == "unknown" and sol.certificate.unvarying == ("zeta", "xi")
    reasons = " ".join(sol.certificate.reasons())
    assert "4096 samples of zeta were all alike" in reasons and "below 0.00073" in reasons
    assert "standard error of 0" not in " ".join(sol.log)


def test_a_source_that_no_function_looks_at_needs_no_noise():
    constant = hx.Sampler(lambda key, n: jnp.ones((n, 2)))
    stated = dataclasses.replace(
        noisy(0.5), upper=lambda x, y, zeta: (y - 1) ** 2 + 0.1 * x**2, lower=lambda x, y, xi: (y - 2 * x) ** 2
    )
    used = dataclasses.replace(stated, lower=noisy(0.5).lower, xi=constant)
    assert hx.certify(stated, 1 / 1.1, 1 / 1.1).verdict() == "yes"
    assert hx.certify(used, 1 / 1.1, 1 / 1.1).unvarying == ("xi",)


@pytest.mark.slow
def test_the_answer_does_not_depend_on_the_judges_samples(solution):
    again = hx.solve(noisy(0.5), 0.5, 0.5, progress=False)
    assert float(again.x) == float(solution.x)


def test_samples_bound_the_averages():
    few = hx.solve(noisy(0.5), 0.5, 0.5, hx.Auto(samples=4000), progress=False)
    assert few.counts.zeta + few.counts.xi <= 4000


def test_averages_need_a_sampler():
    problem = dataclasses.replace(
        noisy(0.5), zeta=None, xi=None, upper=lambda x, y, _: y**2 + x**2, lower=lambda x, y, _: y**2
    )
    with pytest.raises(hx.InputError, match="Sampler"):
        hx.solve(problem, 0.5, 0.5, hx.Auto(route="average"))


def test_what_samples_cannot_tell_is_no_objection():
    """An upper constraint holds up to the noise of y*, and the answer has the noise of its own samples too."""
    noisy = hx.Problem(
        upper=lambda x, y, zeta: (x - 3.0) ** 2 + y**2,
        lower=lambda x, y, xi: jnp.mean((y - x - xi) ** 2),
        upper_constraints=lambda x, y: y - 1.0,
        x_set=hx.Box(-4.0, 4.0),
        y_set=hx.Box(-9.0, 9.0),
        xi=hx.Sampler(lambda key, n: jax.random.normal(key, (n,))),
    )
    found = hx.solve(noisy, 0.0, 0.0, hx.Auto(samples=9000, starts=2))
    assert found.status.name == "unproved" and found.certificate.verdict() == "unknown", found.status
    assert abs(found.x - 1.0) < 4 / 1024**0.5 and found.certificate.own_tol == found.method.tol
    above = (found.x - 3.0) ** 2 + found.x**2 - 5.0  # y*(x) = x: room that is left costs F, a violation lowers it
    assert above < found.estimates.gap and found.x - 1.0 < 9.0 * found.estimates.violation


def test_a_stream_of_a_small_problem_becomes_averages():
    """What it gives is kept: the first rows make an average, later ones judge it; and it is no failure that it ends."""
    rng = np.random.default_rng(0)
    problem = hx.Problem(
        upper=lambda x, y, zeta: (y - 1) ** 2 + 0.1 * x**2,
        lower=lambda x, y, xi: (y - 2 * x) ** 2 + y * jnp.mean(xi),
        xi=hx.Stream(rng.normal(size=32) for _ in range(100)),
        x_set=hx.Box(0.0, 3.0),
    )
    sol = hx.solve(problem, 0.5, 0.5)
    assert sol.method.route == "average" and sol.counts.xi == 3200
    assert "No more than 3200 samples came from the stream." in sol.log
    value = (2 * sol.x - 1) ** 2 + 0.1 * sol.x**2
    assert abs(sol.value - value) < 4 * sol.estimates.upper_se
