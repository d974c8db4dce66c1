"""Steps that are corrected on the way: unit tests of hierax._methods.pace and .watch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax._math.psi import Inner
from hierax._methods.pace import REACH, SHORTEN, SLACK, first_pace, first_watch, looked, paced, within_reach
from hierax.extend import Rows


def run(directions, drift=0.0):
    """The pace after these directions of x; w moves by `drift` per step, y is one away from it."""

    def below(k):
        return Inner(jnp.asarray([drift * k]), Rows(None, None))

    pace = first_pace(jnp.zeros(2), below(0.0))
    step = jax.jit(
        lambda pace, d, k: paced(pace, d, jnp.asarray(1.0), Inner(below(k).w + 1, Rows(None, None)), below(k))
    )
    for k, direction in enumerate(directions, start=1):
        pace = step(pace, jnp.asarray(direction), float(k))
    return pace


def test_a_straight_way_lengthens_the_step():
    assert float(run([(1.0, 0.0)] * 60).factor) >= 8


def test_steps_that_undo_each_other_shorten_it_at_once():
    straight = [(1.0, 0.0)] * 60
    before = float(run(straight).factor)
    after = run(straight + [((-1.0) ** k, 0.0) for k in range(60)])
    assert float(after.factor) <= before / SHORTEN
    assert float(after.longest) < before


def test_a_circle_does_not_count_as_straight():
    turn = 2 * np.pi / 6 * np.arange(120)
    assert float(run(list(zip(np.cos(turn), np.sin(turn), strict=True))).factor) == 1


def test_noise_leaves_the_estimate():
    directions = np.random.default_rng(0).standard_normal((400, 2))
    assert float(run(directions).factor) <= 2


def test_x_waits_for_a_lower_solution_that_it_drags_along():
    assert float(run([(1.0, 0.0)] * 60, drift=0.2).factor) == 1


def test_a_lengthened_step_is_kept_within_reach():
    pace = run([(1.0, 0.0)] * 60)
    np.testing.assert_allclose(within_reach(pace, jnp.asarray(30.0)), REACH / 30.0, rtol=1e-6)
    assert float(within_reach(pace, jnp.asarray(2.0))) == 1
    assert float(within_reach(pace._replace(factor=jnp.ones(())), jnp.asarray(30.0))) == 1


def test_after_a_standstill_a_step_is_no_longer_than_estimated():
    """x stood still to the last digit: nothing is usual, and the lengthened step is not let loose."""
    pace = run([(1.0, 0.0)] * 60)
    still = pace._replace(moved=jnp.zeros(2))
    np.testing.assert_allclose(within_reach(still, jnp.asarray(30.0)), 1 / float(pace.factor), rtol=1e-6)
    assert float(within_reach(first_pace(jnp.zeros(2), Inner(jnp.zeros(1), Rows(None, None))), jnp.asarray(30.0))) == 1


def test_curvature_that_moves_from_one_entry_to_another_is_met_at_once():
    """As the weights of slacks do: the power iteration's vector has no part along the entry that is curved now."""
    problem = hx.Problem(upper=lambda x, y, zeta: jnp.sum(y**2), lower=lambda x, y, xi: 0.5 * jnp.sum(x * y**2))
    n = 40
    inner, below = Inner(jnp.zeros(n), Rows(None, None)), Inner(jnp.zeros(n), Rows(None, None))
    first, second = jnp.ones(n).at[3].set(5.0), jnp.ones(n).at[30].set(20.0)
    watch = first_watch(("inner",), jnp.asarray(5.0), first, below)
    for _ in range(50):
        watch = looked(watch, problem, first, inner, 0.0, None)
    assert float(watch.share) == pytest.approx(1.0)
    watch = looked(watch, problem, second, inner, 0.0, None)
    assert float(watch.share) == pytest.approx(SLACK * 5.0 / 20.0)
