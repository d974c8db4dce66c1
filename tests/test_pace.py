"""What is corrected on the way: unit tests of hierax._methods.pace."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax._math.psi import Inner, Weights, all_constraints, updated_nu
from hierax._methods.common import Decay, Normalised
from hierax._methods.pace import SLACK, first_watch, grown, looked
from hierax._methods.salvf import without_noise_of
from hierax.extend import Rows
from hierax.problems import toy


def test_curvature_that_moves_from_one_entry_to_another_is_met_at_once():
    """As the weights of slacks do: the power iteration's vector has no part along the entry that is curved now."""
    problem = hx.Problem(upper=lambda x, y, zeta: jnp.sum(y**2), lower=lambda x, y, xi: 0.5 * jnp.sum(x * y**2))
    n = 40
    inner = Inner(jnp.zeros(n), Rows(None, None))
    first, second = jnp.ones(n).at[3].set(5.0), jnp.ones(n).at[30].set(20.0)
    watch = first_watch(("inner",), jnp.asarray(5.0), first, inner.w)
    for _ in range(50):
        watch = looked(watch, problem, first, inner, 1.0, None)
    assert float(watch.share) == pytest.approx(1.0)
    watch = looked(watch, problem, second, inner, 1.0, None)
    assert float(watch.share) == pytest.approx(SLACK * 5.0 / 20.0)


def growth(distance, steps=1000):
    """By how much c1 grows where y is `distance(growth)` from w, which has length one."""
    w = jnp.asarray([1.0])
    watch = first_watch((), None, w, w)
    for k in range(steps):
        watch = grown(watch, w + distance(float(watch.growth)), w, jnp.asarray(k))
    return float(watch.growth)


def test_c1_grows_while_that_brings_y_closer():
    assert growth(lambda c1: 0.1 / c1, 500) == pytest.approx(25.0, rel=0.03)  # as (k / 100)^2


def test_c1_stays_where_y_is_close():
    assert growth(lambda c1: 1e-4) == 1
    assert growth(lambda c1: 4e-3 / c1) == pytest.approx(4.0, rel=0.02)


def test_c1_stays_where_y_keeps_its_distance_whatever_c1_is():
    """As with a lower level that has several solutions."""
    assert growth(lambda c1: 0.1) == pytest.approx(3.0, rel=0.02)


def test_the_outer_multiplier_does_not_see_the_noise_of_the_inner_solution():
    """At y = w and nu = c1 lam the rows say the same of both, wherever noise has taken w."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum(y**2),
        lower=lambda x, y, xi: 0.5 * jnp.sum((y - x) ** 2),
        constraints=lambda x, y: y - 1.0,
        equalities=lambda x, y: y[0] - y[1] - 0.5,
    )
    x, w, lam = jnp.ones(2), jnp.asarray([1.25, 0.75]), Rows(jnp.asarray([0.5, 0.0]), jnp.asarray(-0.25))
    weights = Weights(*(jnp.asarray(number) for number in (8.0, 16.0, 0.5, 0.5)))
    nu = hx.Multipliers(8.0 * lam.inequalities, 8.0 * lam.equalities, None)
    moved = updated_nu(all_constraints(problem, x, w), nu, weights.c2, jnp.asarray(0.125))
    assert float(moved.inequalities[0]) > float(nu.inequalities[0])
    kept = without_noise_of(problem, x, Inner(w, lam), moved, weights, jnp.asarray(0.125))
    np.testing.assert_allclose(kept.inequalities, nu.inequalities, atol=1e-12)
    np.testing.assert_allclose(kept.equalities, nu.equalities, atol=1e-12)


@pytest.mark.parametrize(("forgets", "grows"), [(1.0, 0.5), (2.0, 1.0), (4.0, 4.0)])
def test_a_step_whose_directions_vanish_keeps_its_length_over_them_with_s_of_two(forgets, grows):
    """alpha_j / sqrt(v) goes as k^(s/2 - 1) once the directions are zero: from step 100 to 400."""
    rule = Normalised(jnp.ones(1), Decay(0.01, a=50.0, power=1.0), jnp.ones(()), forgets)
    memory, ratios = rule.init(jnp.zeros(1)), {}
    after = jax.jit(lambda memory, d, k: rule.moved(memory, jnp.zeros(1), d, k, 1.0)[1])
    for k in range(401):
        memory = after(memory, jnp.full(1, float(k < 50)), jnp.asarray(k))
        ratios[k] = float(rule.share(jnp.asarray(k)) / memory.root[0]) if k in (100, 400) else None
    assert ratios[400] / ratios[100] == pytest.approx(grows, rel=0.1)


def test_a_sampler_gives_as_many_samples_above_as_below():
    sizes = hx.SALVF(inner=hx.SALM(steps=4, batch=3), batch_xi=2).batches(toy(0.1).problem)
    assert sizes.zeta == 2 + 4 * 3
    assert hx.SALVF(batch_zeta=5).batches(toy(0.1).problem).zeta == 5
