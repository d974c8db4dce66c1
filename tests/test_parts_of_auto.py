"""Unit tests of hierax._auto.hunt, .runs and .deterministic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_auto import sampled
from test_large_route import noisy

import hierax as hx
from hierax._auto.constants import MOST_SAMPLES
from hierax._auto.deterministic import ends_of_starts
from hierax._auto.hunt import Candidate, optima, times_met
from hierax._auto.runs import Referee, open_by_noise
from hierax._base.constants import FRESH_SAMPLES
from hierax._engine.vectors import Point
from hierax._math.scatter import chance_of_more, most_left
from hierax._run.prepare import prepare


def ended(start: int, upper: float, x: float, violation: float = 0.0) -> Candidate:
    point = Point(np.array([x]), np.zeros(1), np.zeros(0))
    return Candidate(point, upper, violation, 0.0, point, 0.0, True, 1, start, "kkt")


def test_ends_are_the_same_by_value_or_by_place():
    found = optima(
        [
            ended(0, 1.0, 0.0),
            ended(1, 1.0 + 1e-9, 5.0),  # another minimiser with the same F
            ended(2, 1.0 + 1e-5, 3.0),  # nearly the same F elsewhere: a valley of its own
            ended(3, 1.0 + 2e-5, 3.001),  # and the same one, less exactly
            ended(4, 0.5, 9.0, violation=1.0),  # not accepted
            ended(5, 7.0, 9.0),
            ended(5, 2.0, 8.0),  # the lowest counts
        ]
    )
    assert [[end.start for end in optimum] for optimum in found] == [[0, 1], [2, 3], [5]]
    assert chance_of_more(times_met(found)) == pytest.approx(3 / 5)  # at 0, 5 and 8 has been one start each
    assert chance_of_more(times_met(found[:1])) == 0.0  # no start has ended at another F
    assert chance_of_more([]) == 1.0
    assert 1 - (1 - most_left(5)) ** 5 == pytest.approx(0.95)  # a likelier place would have been met by five starts


def test_starts_of_the_large_route_are_finite():
    problem = sampled(upper=lambda x, y, zeta: (x - 1.0) ** 2 - jnp.log(y + 0.5) + jnp.mean(zeta) * x)
    xs, ys = Referee(prepare(problem, 0.5, 0.5), 0).starts(8)
    given = (np.asarray(xs) == 0.5) & (np.asarray(ys) == 0.5)
    assert np.asarray(ys).min() > -0.5
    assert 1 < given.sum() < 8  # some points were outside the domain, and some were not


def test_an_open_certificate_asks_for_more_samples():
    noise = hx.certify(noisy(30.0), 1 / 1.1, 1 / 1.1)
    assert noise.verdict(1e-3) == "unknown"
    assert open_by_noise(noise, 1e-3)
    far = hx.certify(noisy(0.1), 0.3, 0.3)
    assert far.verdict(1e-3) == "no" and not open_by_noise(far, 1e-3)


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


def test_points_that_are_not_valid_are_no_ends_of_a_start():
    point = Point(np.zeros(1), np.zeros(1), np.zeros(1))

    def candidate(start, upper, violation):
        return Candidate(point, upper, violation, 0.0, point, 0.0, True, 1, start, "kkt")

    found = [candidate(0, -9.0, 1.0), candidate(0, 2.0, 0.0), candidate(0, 1.0, 0.0), candidate(1, -9.0, 1.0)]
    np.testing.assert_array_equal(ends_of_starts(found, 3), [1.0, np.nan, np.nan])
