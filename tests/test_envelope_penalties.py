"""Moreau and FirstOrderPenalty: their inner problems in closed form, their limits in c and eps, what they refuse."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax._methods.accelerated import accelerated
from hierax._methods.smoothed import Round, Samples
from hierax.problems import gaffa_toy

LINE = hx.Problem(
    upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
    lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
    constraints=lambda x, y: y - x - 10.0,  # not active: everything is quadratic
)


def at_first(method: Any, number: int = 0, problem: hx.Problem = LINE) -> tuple[Any, Any, Any]:
    method, state, _ = method.begin(problem, jnp.asarray(0.5), jnp.asarray(0.5), jax.random.key(0))
    this = Round(jnp.asarray(number, jnp.int32), state.key)
    return method, method.look(problem, jnp.asarray(0.5), state.look.inner, this, Samples(None, None)), this


@pytest.mark.slow
def test_the_envelope_and_its_penalised_minimiser_in_closed_form() -> None:
    """With a = 2x: th = (y + 2 g a)/(1 + 2 g), G - v_g = k (y - a)^2, k = 2 g/(1 + 2 g), y = (1 + c k a)/(1 + c k)."""
    method, look, _ = at_first(hx.Moreau(c=7.0, g=0.8, p=2.0), number=1)
    c, a, k = 7.0 * 4, 1.0, 1.6 / 2.6
    problem = hx.Problem(lambda x, y, _: (y - 3.0) ** 2, LINE.lower, LINE.constraints)
    _, other, _ = at_first(hx.Moreau(c=7.0, g=0.8, p=2.0), number=1, problem=problem)
    y = (3.0 + c * k * a) / (1 + c * k)
    np.testing.assert_allclose(other.y, y, rtol=1e-7)
    np.testing.assert_allclose(other.inner.envelope.y, (y + 1.6 * a) / 2.6, rtol=1e-7)
    np.testing.assert_allclose(other.value, (y - 3.0) ** 2 + c * k * (y - a) ** 2, rtol=1e-8)
    np.testing.assert_allclose(look.y, 1.0, rtol=1e-8)  # F and G agree there
    assert float(method.weight(Round(jnp.asarray(0), None))) == 7.0


def test_the_penalised_pair_in_closed_form() -> None:
    """One active row y <= x: z minimises (y - 1)^2 + m (y - x)^2, y adds ((y - 1)^2 + ...)/r; x = 0.5."""
    problem = hx.Problem(lambda x, y, _: (y - 3.0) ** 2, LINE.lower, lambda x, y: y - x)
    _, look, _ = at_first(hx.FirstOrderPenalty(r=1.0, m=2.0, eps=0.1), problem=problem)
    r, m = 10.0, 200.0
    z = (1.0 + 0.5 * m) / (1 + m)
    y = (3.0 / r + 1.0 + 0.5 * m) / (1 / r + 1 + m)
    np.testing.assert_allclose(look.inner.z, z, rtol=1e-7)
    np.testing.assert_allclose(look.inner.y, y, rtol=1e-7)
    np.testing.assert_allclose(look.multipliers.inequalities, 2 * m * (z - 0.5), rtol=1e-5)


@pytest.mark.slow
def test_a_weakly_convex_lower_level_gets_a_short_envelope() -> None:
    """G = y^4/4 - y^2/2 has curvature -1 at y = 0: its proximal problem is convex for g < 1."""
    problem = hx.Problem(lambda x, y, _: (y - 1) ** 2 + x**2, lambda x, y, _: y**4 / 4 - y**2 / 2 + 0 * x)
    method, _, _ = hx.Moreau().begin(problem, jnp.asarray(0.5), jnp.asarray(0.0), jax.random.key(0))
    assert 0.3 < float(method.g) < 1.0
    convex, _, _ = hx.Moreau().begin(LINE, jnp.asarray(0.5), jnp.asarray(0.0), jax.random.key(0))
    assert float(convex.g) == pytest.approx(5.0, rel=0.05)  # 10 over the curvature 2


def test_eps_falls_with_the_line_searches() -> None:
    method, _, _ = at_first(hx.FirstOrderPenalty(r=1.0, m=1.0, eps=0.1, tau=0.5, eps_last=0.04))
    weights = [[float(w) for w in method.weights(Round(jnp.asarray(k), None))] for k in (0, 1, 2, 5)]
    np.testing.assert_allclose(weights, [[10.0, 100.0], [20.0, 400.0], [25.0, 625.0], [25.0, 625.0]])


@pytest.mark.slow
@pytest.mark.parametrize("method", [hx.Moreau(), hx.FirstOrderPenalty()])
def test_equalities_and_a_lower_level_without_a_unique_solution(method: Any) -> None:
    """BiC-GAFFA's toy: x* = 1 although y2 is determined by an equality alone."""
    case = gaffa_toy(3)
    found = hx.solve(case.problem, case.x0, case.y0, method, max_steps=150)
    (known,) = case.solutions
    np.testing.assert_allclose(found.x, known.x, atol=2e-2)


@pytest.mark.parametrize("seed", [0, 1])
def test_accelerated_gradients_against_a_linear_system(seed: int) -> None:
    """A quadratic over a box, against its optimality conditions; L begins far too small."""
    rng = np.random.default_rng(seed)
    root, b = rng.normal(size=(8, 8)), rng.normal(size=8)
    a = root @ root.T + 0.05 * np.eye(8)
    end = accelerated(
        lambda v: 0.5 * v @ a @ v - b @ v,
        lambda v: jnp.clip(v, -0.3, 0.3),
        jnp.zeros(8),
        jnp.asarray(0.01),
        jnp.asarray(1e-10),
        100_000,
    )
    v = np.asarray(end.v)
    np.testing.assert_allclose(np.clip(v - (a @ v - b), -0.3, 0.3), v, atol=1e-9)
    assert int(end.steps) < 20_000


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
