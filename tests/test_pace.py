"""Estimated steps are corrected on the way: shorter in growing curvature, longer in x while it moves straight on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax._judge.keeping import nearest_kept
from hierax._math.psi import Inner
from hierax._methods.pace import REACH, SHORTEN, SLACK, Below, first_pace, first_watch, looked, paced, within_reach
from hierax._problem.problem import Rows


def run(directions, drift=0.0):
    """The pace after these directions of x; w moves by `drift` per step, y is one away from it."""

    def below(k):
        return Below(jnp.asarray([drift * k]), Rows(None, None))

    pace = first_pace(jnp.zeros(2), below(0.0))
    step = jax.jit(
        lambda pace, d, k: paced(pace, d, jnp.asarray(1.0), Below(below(k).y + 1, Rows(None, None)), below(k))
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
    assert float(within_reach(first_pace(jnp.zeros(2), Below(jnp.zeros(1), Rows(None, None))), jnp.asarray(30.0))) == 1


def test_a_bound_that_holds_x_back_neither_stops_the_rest_of_it_nor_throws_it_away():
    """One entry of x* is on its bound with a slope of 0.5 and more: SALVF settles, and stays where it has settled.

    The length of a step is what is left of it after the projection. Measured before it, the slope at the bound made
    every lengthened step look far too long; the other entries stood still, and at last went off with the whole factor.
    """
    example = hx.problems.random_qp(0, 5, 8, 0, 4)
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
    assert sol.state.run.state.watch.pace is None
    assert sol.state.run.state.watch.vector is None


def test_names_of_steps_are_checked():
    with pytest.raises(hx.InputError, match="adapt"):
        hx.SALVF(adapt=("w",))


def test_the_nearest_y_that_keeps_the_rows():
    """A ball and an equality: the nearest point of both, to rounding; what keeps them is left alone."""
    problem = hx.Problem(
        None, None, lambda x, y: jnp.linalg.norm(y)[None] - x, equalities=lambda x, y: jnp.stack([y[0] - 0.5])
    )
    y, left = nearest_kept(problem, None, jnp.ones(()), jnp.asarray([0.7, 2.0, 0.0]))
    assert float(left) <= 1e-6
    np.testing.assert_allclose(y, [0.5, 0.75**0.5, 0.0], atol=1e-3)
    kept = jnp.asarray([0.5, 0.1, 0.2])
    same, left = nearest_kept(problem, None, jnp.ones(()), kept)
    np.testing.assert_array_equal(same, kept)
    assert float(left) == 0


def test_curvature_that_moves_from_one_entry_to_another_is_met_at_once():
    """As the weights of slacks do: the power iteration's vector has no part along the entry that is curved now."""
    problem = hx.Problem(upper=lambda x, y, zeta: jnp.sum(y**2), lower=lambda x, y, xi: 0.5 * jnp.sum(x * y**2))
    n = 40
    inner, below = Inner(jnp.zeros(n), Rows(None, None)), Below(jnp.zeros(n), Rows(None, None))
    first, second = jnp.ones(n).at[3].set(5.0), jnp.ones(n).at[30].set(20.0)
    watch = first_watch(("inner",), jnp.asarray(5.0), first, below)
    for _ in range(50):
        watch = looked(watch, problem, first, inner, 0.0, None)
    assert float(watch.share) == pytest.approx(1.0)
    watch = looked(watch, problem, second, inner, 0.0, None)
    assert float(watch.share) == pytest.approx(SLACK * 5.0 / 20.0)
