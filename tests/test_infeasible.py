"""Constraints that cannot be met: `infeasible` where that is proved, and what is said where it is not."""

import jax.numpy as jnp
import pytest

import hierax as hx


def tiny(**parts):
    return hx.Problem(upper=lambda x, y, zeta: x**2 + y**2, lower=lambda x, y, xi: (y - x) ** 2, **parts)


@pytest.mark.parametrize("route", ["small", "penalty"])
def test_an_upper_constraint_that_cannot_be_met_is_said_at_once(route):
    """The penalty route went on until its time was up, and ended as `seconds`."""
    problem = tiny(upper_constraints=lambda x, y: {"price": x - 15.0}, x_set=hx.Box(16.0, 40.0))
    sol = hx.solve(problem, 20.0, 20.0, hx.Auto(route=route, seconds=60.0), throw=False)
    assert sol.status.name == "infeasible"
    assert sol.status.step == 1 or route == "small"
    assert "upper_constraints['price'] is violated by at least 1 everywhere" in sol.status.message


def test_a_search_alone_does_not_prove_that_there_is_no_point():
    """Feasible nowhere, and in a part of X that no derivative leads to: a search ends in the same way."""
    nowhere = tiny(upper_constraints=lambda x, y: [2.0 + jnp.sin(x)], x_set=hx.Box(-3.0, 3.0))
    sol = hx.solve(nowhere, 0.5, 0.5, throw=False)
    assert sol.status.name == "not_certified"
    assert "not proved" in sol.status.message
    assert "upper_constraints[0] is violated by 1" in sol.status.message
    hidden = tiny(upper_constraints=lambda x, y: 1 - 2 * jnp.exp(-1e4 * (x - 2.9) ** 2), x_set=hx.Box(-3.0, 3.0))
    assert hx.solve(hidden, 0.5, 0.5, throw=False).status.name != "infeasible"
