"""What is corrected on the way: unit tests of hierax._methods.pace."""

import jax.numpy as jnp
import pytest

import hierax as hx
from hierax._math.psi import Inner
from hierax._methods.pace import SLACK, first_watch, grown, looked
from hierax.extend import Rows


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
