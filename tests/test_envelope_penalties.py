"""Moreau and FirstOrderPenalty: their inner problems in closed form, their limits in c and eps, what they refuse."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax_lab.problems import gaffa_toy

LINE = hx.Problem(
    upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
    lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
    constraints=lambda x, y: y - x - 10.0,  # not active: everything is quadratic
)


@pytest.mark.slow
def test_a_weakly_convex_lower_level_gets_a_short_envelope() -> None:
    """G = y^4/4 - y^2/2 has curvature -1 at y = 0: its proximal problem is convex for g < 1."""
    problem = hx.Problem(lambda x, y, _: (y - 1) ** 2 + x**2, lambda x, y, _: y**4 / 4 - y**2 / 2 + 0 * x)
    method, _, _ = hx.Moreau().begin(problem, jnp.asarray(0.5), jnp.asarray(0.0), jax.random.key(0))
    assert 0.3 < float(method.g) < 1.0
    convex, _, _ = hx.Moreau().begin(LINE, jnp.asarray(0.5), jnp.asarray(0.0), jax.random.key(0))
    assert float(convex.g) == pytest.approx(5.0, rel=0.05)  # 10 over the curvature 2


@pytest.mark.slow
@pytest.mark.parametrize("method", [hx.Moreau(), hx.FirstOrderPenalty()])
def test_equalities_and_a_lower_level_without_a_unique_solution(method: Any) -> None:
    """BiC-GAFFA's toy: x* = 1 although y2 is determined by an equality alone."""
    case = gaffa_toy(3)
    found = hx.solve(case.problem, case.x0, case.y0, method, max_steps=150)
    (known,) = case.solutions
    np.testing.assert_allclose(found.x, known.x, atol=2e-2)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (hx.Moreau, {"c": 0.0}),
        (hx.Moreau, {"g": -1.0}),
        (hx.Moreau, {"p": -0.5}),
        (hx.Moreau, {"lower": hx.SALM()}),
        (hx.FirstOrderPenalty, {"eps": 0.0}),
        (hx.FirstOrderPenalty, {"tau": 1.0}),
        (hx.FirstOrderPenalty, {"inner_steps": 0}),
        (hx.FirstOrderPenalty, {"scales": 2.0}),
    ],
)
def test_settings_that_make_no_sense_are_refused(method: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(hx.InputError, match=next(iter(settings))):
        method(**settings)
