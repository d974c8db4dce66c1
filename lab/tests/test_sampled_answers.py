"""Findings R1 to R8 on problems known from samples, solved with few of them, and judged by the truth.

R3 is in tests/test_large_route.py and tests/test_averages.py (streams), R4 in `hierax bench cleaning`, R5 in
tests/test_salvf_units.py.
"""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax_lab.bench import samples_cases as cases

FEW = hx.Auto(samples=16_000, starts=1)


def solved(case, auto=FEW, **settings):
    """The answer, F at its x in truth, and how much of the possible decrease that is."""
    found = hx.solve(case.problem, case.x0, case.y0, auto, progress=False, **settings)
    x = np.ravel(np.asarray(found.x, float))
    at, start, (_, best) = case.truth.phi(x), case.truth.phi(case.truth.x0), case.truth.best()
    return found, at, (start - at) / (start - best)


def states_what_holds(found, at):
    said = found.estimates
    assert abs(said.upper - at) < 4 * said.upper_se and said.interval[0] < said.upper < said.interval[1]


@pytest.mark.slow  # 3 CPU seconds; smaller: tests/test_averages.py
def test_r1_a_newsvendor_is_no_worse_than_it_says():
    """It stopped at 1,024 samples with x = 1.10 where .90 is right."""
    case = cases.newsvendor(constrained=False)
    found, at, share = solved(case)
    states_what_holds(found, at)
    assert share > 0.97 and at - case.truth.best()[1] < found.estimates.gap


@pytest.mark.slow  # without the limit: the test above
def test_r1_with_a_limit_of_the_chance():
    found, at, share = solved(cases.newsvendor(), hx.Auto(samples=1_000_000), seconds=60)
    states_what_holds(found, at)
    assert share > 0.99 and float(found.x) == pytest.approx(1.866, abs=0.02)


@pytest.mark.slow  # 9 CPU seconds
def test_r2_many_rows_of_data():
    """The start came back after 38 CPU seconds."""
    found, _, share = solved(cases.newsvendor_finite(), hx.Auto())
    assert found.status.ok and share > 0.9999


@pytest.mark.slow  # 4 CPU seconds
def test_r2_many_rows_with_a_kink_each():
    """The start came back after 60 seconds."""
    found, at, share = solved(cases.newsvendor_kinked(20_000))
    assert "has 20000 rows, of which some are drawn" in found.log[0]
    states_what_holds(found, at)
    assert share > 0.9


@pytest.mark.slow  # 6 CPU seconds
def test_a_follower_that_jumps_at_the_answer():
    """At best x = 0 the two wells are equally low, and samples alone do not tell which the follower takes.

    Polishes went to a well that is not the lower one, from 1.00 of the decrease to .14 of it, with a gap of 3e-4.
    """
    case = cases.two_wells()
    upper = lambda x, y, z: (y + 0.6) ** 2 + 0.2 * (x + 1.0) ** 2 + jnp.mean(z) * y
    found = hx.solve(dataclasses.replace(case.problem, upper=upper), -2.0, 0.0, hx.Auto(samples=80_000), progress=False)
    assert abs(float(found.x)) < 0.1 and not found.status.ok
    assert found.estimates.gap > 0.1


def rare_behind_noise(chance):
    """Events that move the answer far, behind normal noise in which a few samples show nothing of them."""

    def draw(key, n):
        of_event, of_noise = jax.random.split(key)
        event = jnp.where(jax.random.uniform(of_event, (n,)) < chance, 1 / chance, 0.0) - 1.0
        return event + 0.1 * jax.random.normal(of_noise, (n,))

    case, source = cases.rare(chance), hx.Sampler(draw)
    return case._replace(problem=dataclasses.replace(case.problem, zeta=source, xi=source))


@pytest.mark.parametrize("chance", [pytest.param(1e-4, marks=pytest.mark.slow), 1e-5])
def test_r6_rare_events_behind_other_noise_are_not_claimed_away(chance):
    """1,024 samples had none of them: `converged` in 17 and 19 of 20 seeds, with F off by .9."""
    found, _, _ = solved(rare_behind_noise(chance), hx.Auto(starts=1))
    assert not found.status.ok and found.estimates.samples > 1024
    assert "samples allow" in found.status.message


def test_r6_events_that_hardly_anybody_sees_have_no_standard_error():
    found, _, _ = solved(cases.rare(1e-5))
    assert not found.status.ok and found.estimates is None and "replications F is the same" in " ".join(found.log)


@pytest.mark.slow  # the test of the tail: test_coverage.py
def test_r6_squares_of_t_with_three_degrees_have_no_finite_variance():
    source = hx.Sampler(lambda key, n: 3**-0.5 * jax.random.t(key, 3.0, (n,)))
    problem = hx.Problem(
        upper=lambda x, y, z: jnp.mean((y - 1 + z) ** 2) + 0.1 * x**2,
        lower=lambda x, y, z: jnp.mean((y - 2 * x + z) ** 2),
        x_set=hx.Box(0.0, 3.0),
        zeta=source,
        xi=source,
    )
    found = hx.solve(problem, 0.5, 0.5, hx.Auto(samples=80_000, starts=1), progress=False)
    assert found.estimates.upper_se == np.inf and "without a standard error (tail index" in str(found)
    assert found.to_dict()["estimates"]["interval"] == [None, None]


def test_r7_the_same_seed_gives_the_same_answer():
    """Beside busy processes: `python -m hierax_lab.soak load` (its call "averages")."""
    one, other = (solved(cases.queue())[0] for _ in range(2))
    assert float(one.x) == float(other.x) and one.value == other.value and one.status.name == other.status.name


@pytest.mark.slow  # 15 seconds
def test_r8_seconds_are_obeyed():
    """It took 29 to 51 seconds by the clock. A compilation that is under way is not ended."""
    begin = time.perf_counter()
    found, at, share = solved(cases.newsvendor_kinked(), hx.Auto(), seconds=15)
    assert time.perf_counter() - begin < 1.05 * 15 + 1 + found.counts.compile_seconds
    states_what_holds(found, at)
    assert share > 0.99


@pytest.mark.slow  # 7 CPU seconds each
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_samples_grow_while_noise_leaves_the_certificate_open(seed):
    """It ended `unproved` with 6,000 of two million samples, because the noise of an upper constraint was not asked."""
    found, at, share = solved(cases.chance("upper"), hx.Auto(), seconds=60, seed=seed)
    states_what_holds(found, at)
    assert found.status.ok and share > 0.99
