"""What is claimed of lower levels whose solutions are hidden: narrow wells, tiny slopes, kinks, one x that has any."""

import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx


def well(width):
    """F = 0.3618 at x = 1 in the well, in which the follower sits for all x; without it F = -0.5625 at x = 1.25."""
    return hx.Problem(
        upper=lambda x, y, _: (x - 1.0) ** 2 + 0.5 * y,
        lower=lambda x, y, _: 0.2 * (y + x) ** 2 - 2.0 * jnp.exp(-(((y - 0.7237) / width) ** 2)),
        x_set=hx.Box(-2.0, 2.0),
        y_set=hx.Box(-3.0, 3.0),
    )


def test_hidden_wells_refute_points_outside_of_them():
    problem = well(0.03)
    outside = hx.certify(problem, 1.25, -1.25)
    assert outside.verdict() == "no"
    assert outside.lower_gap == pytest.approx(1.22, abs=0.01)
    assert "all of Y" in outside.not_convex


def test_the_search_goes_on_from_a_well_that_the_certificate_finds():
    sol = hx.solve(well(0.01), 0.0, 0.0)
    assert sol.status.ok
    assert sol.value == pytest.approx(0.3618, abs=1e-3)
    assert any("searched again" in line for line in sol.log)


def test_convexity_that_is_not_proved_is_said():
    def softened(x, y, _):
        return jnp.sum((y - x) ** 2) + jnp.arctan(jnp.sum(y)) * 1e-3

    problem = hx.Problem(upper=lambda x, y, _: (x - 1.0) ** 2 + jnp.sum(y**2), lower=softened)
    sol = hx.solve(problem, 0.0, np.zeros(4))
    assert sol.status.name == "converged"
    assert "not proved" in sol.status.message
    assert "not proved" not in hx.solve(hx.problems.toy(0.0).problem, 1.0, 1.0).status.message


@pytest.mark.parametrize("eps", [1e-5, 1e-8])
def test_a_slope_far_below_every_tolerance_decides_y(eps):
    """y_0 costs eps: only y_0 = sin 3x is a solution below, although every other has the same G up to eps."""
    problem = hx.Problem(
        upper=lambda x, y, _: -y[0] + 0.1 * (y[1] - 1.0) ** 2,
        lower=lambda x, y, _: eps * y[0] - y[1],
        constraints=lambda x, y: jnp.stack([jnp.sin(3 * x) - y[0], y[1] - x]),
        x_set=hx.Box(-2.0, 2.0),
        y_set=hx.Box(-3.0, 3.0),
    )
    x = 0.53396
    y = np.array([np.sin(3 * x), x])
    assert hx.certify(problem, x, y).verdict(1e-3) == "yes"
    off = hx.certify(problem, x, y + np.array([0.36, 0.0]))
    assert off.verdict() == "no"
    assert "y can move" in " ".join(off.reasons())


def test_a_flat_direction_without_any_slope_leaves_y_free():
    problem = hx.Problem(
        upper=lambda x, y, _: (y[0] - 1.0) ** 2 + (y[1] - x) ** 2 + 0.1 * x**2,
        lower=lambda x, y, _: (y[0] + y[1] - 2.0 * x) ** 2,
        x_set=hx.Box(0.0, 3.0),
        y_set=hx.Box(0.0, 3.0),
    )
    assert hx.certify(problem, 5 / 6, np.array([11 / 12, 3 / 4])).verdict() == "yes"


def test_a_saddle_among_many_entries_is_no_minimum():
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(40, 40)))[0]
    square = jnp.asarray(rotation * np.r_[-0.1, np.ones(39)] @ rotation.T)
    saddle = hx.Problem(upper=lambda x, y, _: y @ square @ y, lower=lambda x, y, _: jnp.sum((y - x) ** 2))
    assert hx.certify(saddle, np.zeros(40), np.zeros(40)).verdict() == "no"


@pytest.mark.parametrize(("sign", "verdict"), [(-1.0, "unknown"), (1.0, "yes")])
def test_a_fall_of_fourth_order_is_not_decided(sign, verdict):
    problem = hx.Problem(
        upper=lambda x, y, _: y[0] ** 2 + sign * y[1] ** 4, lower=lambda x, y, _: jnp.sum((y - x) ** 2)
    )
    assert hx.certify(problem, np.zeros(2), np.zeros(2)).verdict() == verdict


@pytest.mark.parametrize("slope", [0.9, 1.1])
def test_fifty_weakly_active_rows_are_decided(slope):
    """y = min(x, 1), so F = -slope x + y per entry: x = 1 is a minimum where the slope is below one only."""
    problem = hx.Problem(
        upper=lambda x, y, _: jnp.sum(x * (1.0 - slope) - (x - y) * (2.0 - slope)) * -1.0,
        lower=lambda x, y, _: jnp.sum((y - x) ** 2),
        constraints=lambda x, y: y - 1.0,
        x_set=hx.Box(-3.0, 3.0),
    )
    left, right = -(1.0 - slope), -(1.0 - slope) + (2.0 - slope)  # slopes of F in each entry
    minimum = left <= 0 <= right
    assert hx.certify(problem, np.ones(50), np.ones(50)).verdict() == ("yes" if minimum else "no")


def test_an_x_at_which_alone_the_level_is_bounded_is_found():
    """G = y (x - 1/2) with y free."""
    problem = hx.Problem(
        upper=lambda x, y, _: x**2 + (y - 1.0) ** 2, lower=lambda x, y, _: y * (x - 0.5), x_set=hx.Box(-2.0, 2.0)
    )
    sol = hx.solve(problem, 0.0, 0.0)
    assert sol.x == pytest.approx(0.5, abs=1e-6)
    assert sol.status.name != "unbounded_lower"


def test_a_level_without_a_minimum_is_not_claimed():
    """-log(1 + exp(y - x)) falls for ever, and is flat to rounding far out."""
    problem = hx.Problem(
        upper=lambda x, y, _: jnp.exp(-0.1 * x) + 0.1 * jnp.tanh(y), lower=lambda x, y, _: -jnp.log(1 + jnp.exp(y - x))
    )
    assert not hx.solve(problem, 0.0, 0.0, seconds=10, throw=False).status.ok


# -- kinks ------------------------------------------------------------------------------------------------------------


def test_absolute_values_below_become_rows():
    """min (y - 1.5 x)^2 / 2 + 0.7 |y - 0.2|: y = 0.2 in an interval of x, else off by 0.7."""
    problem = hx.Problem(
        upper=lambda x, y, _: (y - 0.2) ** 2 + 0.1 * (x - 0.3) ** 2,
        lower=lambda x, y, _: 0.5 * (y - 1.5 * x) ** 2 + 0.7 * jnp.abs(y - 0.2),
        x_set=hx.Box(-2.0, 2.0),
    )
    sol = hx.solve(problem, -1.0, 0.0)
    assert sol.status.name == "converged"
    assert sol.x == pytest.approx(0.3, abs=1e-4)
    assert sol.y == pytest.approx(0.2, abs=1e-6)
    assert sol.multipliers.inequalities is None
    certificate = hx.certify(problem, 0.3, 0.2)
    assert certificate.verdict() == "yes"
    assert np.shape(certificate.reference.y) == np.shape(certificate.lengths[1]) == ()
    assert hx.certify(problem, 0.3, 0.25).verdict() == "no"


def test_derivatives_at_a_kink_decide_nothing():
    problem = hx.Problem(
        upper=lambda x, y, _: (y + 1.0) ** 2, lower=lambda x, y, _: (y - jnp.abs(x)) ** 2, x_set=hx.Box(-2.0, 2.0)
    )
    certificate = hx.certify(problem, 0.0, 0.0)
    assert certificate.verdict() == "unknown"
    assert "kink" in certificate.reasons()[-1]
    assert "abs" in certificate.reasons()[-1]
