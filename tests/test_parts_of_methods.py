"""Unit tests of hierax._methods.common and .smoothed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_envelope_penalties import LINE
from test_smoothed import EVERY, METHODS

import hierax as hx
from hierax._methods.common import Adaptive
from hierax._methods.smoothed import Round


def test_adaptive_steps_follow_the_curvature():
    """On x'diag(1, 4)x/2 the step settles between 1/(2 L) and 1/(2 mu); it grows by 1.2 at most, and x* is found."""
    rule, curvature = Adaptive(jnp.asarray(1e-3)), jnp.array([1.0, 4.0])
    x = {"x": jnp.array([1.0, 1.0])}
    memory, lengths = rule.init(x), []
    for k in range(60):
        d = {"x": curvature * x["x"]}
        eta = rule.length(memory, x, d, jnp.asarray(k))
        memory = (x, d, eta)
        x = {"x": x["x"] - eta * d["x"]}
        lengths.append(float(eta))
    assert lengths[0] == 1e-3
    assert np.max(np.divide(lengths[1:], lengths[:-1])) < 1.2 + 1e-9
    assert min(lengths[40:]) >= 0.125 - 1e-9
    assert max(lengths[40:]) <= 0.5 + 1e-9
    assert optax.tree.norm(x) < 1e-4
    # Held at a bound, x does not move: nothing is learnt, and the step must not become zero.
    assert rule.length((x, d, eta), x, d, jnp.asarray(60)) == pytest.approx(1.2 * lengths[-1])


@pytest.mark.slow
@EVERY
def test_the_gradient_is_that_of_phi(name: str) -> None:
    """Against central differences, where rows are active, near-active and inactive."""
    rng = np.random.default_rng(3)
    mixed, rows, point = rng.normal(size=(3, 2)), rng.normal(size=(4, 3)), np.array([0.4, -0.7])
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum(jnp.sin(y)) + x[0] * y[1] + jnp.sum(x**2),
        lower=lambda x, y, xi: jnp.sum((y - mixed @ x) ** 2) + 0.1 * jnp.sum(y**4),
        constraints=lambda x, y: rows @ y - 0.3 * x[0] - 0.2,
        y_set=hx.Box(-0.5, 0.5),
    )
    x, y = jnp.asarray(point), jnp.zeros(3)
    method, state, _ = METHODS[name][0].begin(problem, x, y, jax.random.key(0))
    at = Round(jnp.asarray(3, jnp.int32), state.key)

    @jax.jit
    def value(x: jax.Array) -> jax.Array:
        return method.look(problem, x, state.look.inner, at).value

    @jax.jit
    def slope(x: jax.Array) -> jax.Array:
        return method.slope(problem, x, method.look(problem, x, state.look.inner, at), at)

    step = 1e-5
    numeric = [(value(x + step * unit) - value(x - step * unit)) / (2 * step) for unit in jnp.eye(2)]
    np.testing.assert_allclose(slope(x), np.array(numeric), rtol=1e-4, atol=1e-5)


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


def test_eps_falls_with_the_line_searches() -> None:
    method, _, _ = at_first(hx.FirstOrderPenalty(r=1.0, m=1.0, eps=0.1, tau=0.5, eps_last=0.04))
    weights = [[float(w) for w in method.weights(Round(jnp.asarray(k), None))] for k in (0, 1, 2, 5)]
    np.testing.assert_allclose(weights, [[10.0, 100.0], [20.0, 400.0], [25.0, 625.0], [25.0, 625.0]])


def test_the_perturbation_is_bounded_fresh_for_a_line_search_and_the_same_within_one() -> None:
    method = hx.SIGD(sigma=jnp.asarray(0.2))
    y = {"a": jnp.zeros(3), "b": jnp.zeros(())}
    draws = [
        jax.flatten_util.ravel_pytree(method.perturbation(y, Round(jnp.asarray(i), jax.random.key(1))))[0]
        for i in (*range(50), 0)
    ]
    norms = np.linalg.norm(draws[:-1], axis=1)
    assert norms.max() <= 0.2
    assert norms.max() > 0.15
    np.testing.assert_array_equal(draws[0], draws[-1])
    assert len(np.unique(np.round(norms, 12))) == 50
    # Uniform in a ball of dimension 4: (norm/sigma)^4 is uniform in [0, 1], with mean 1/2 and standard error 0.04.
    assert np.mean((norms / 0.2) ** 4) == pytest.approx(0.5, abs=0.16)


def at_first(method: Any, number: int = 0, problem: hx.Problem = LINE) -> tuple[Any, Any, Any]:
    method, state, _ = method.begin(problem, jnp.asarray(0.5), jnp.asarray(0.5), jax.random.key(0))
    at = Round(jnp.asarray(number, jnp.int32), state.key)
    return method, method.look(problem, jnp.asarray(0.5), state.look.inner, at), at
