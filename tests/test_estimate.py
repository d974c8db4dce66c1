"""What is estimated where the user leaves it unset: norms, scales, and that units do not matter."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import close

import hierax as hx
from hierax.extend import Rows
from hierax.problems import toy


def test_every_number_is_filled_in_and_given_ones_are_kept():
    problem = toy(0.0).problem
    at = jnp.asarray(1.5)
    plain = jax.jit(lambda x: hx.SALVF_VR().begin(problem, x, x, jax.random.key(0)).method)(at)
    numbers = [plain.c1, plain.c2, plain.gamma1, plain.gamma2, plain.tau, plain.smoothness, plain.direction.unit]
    numbers += [plain.inner.eta, plain.inner.rho, plain.inner.eta_max, plain.inner.rho_max, plain.steps.z]
    assert all(isinstance(a, jax.Array) and a.shape == () and a > 0 for a in numbers)
    np.testing.assert_allclose(plain.inner.eta, 0.5, rtol=0.05)  # G_yy = 2
    np.testing.assert_allclose(plain.c2 / plain.c1, 20.0, rtol=0.05)  # 10 L_G / |J|^2
    assert float(plain.inner.eta_max) <= 1 / (2 + 1 / float(plain.gamma1)) * 1.05
    assert float(plain.steps.y(0)) <= 1 / float(plain.c1 * 2 + plain.c2) * 1.05
    given = hx.SALVF(c1=3.0, c2=7.0, gamma1=0.2, gamma2=0.3, tau=0.4, inner=hx.SALM(eta=0.1, rho=0.2))
    kept = jax.jit(lambda x: given.begin(problem, x, x, jax.random.key(0)).method)(at)
    assert (float(kept.c1), float(kept.c2), float(kept.gamma1), float(kept.gamma2), float(kept.tau)) == (
        3.0, 7.0, 0.2, 0.3, 0.4,
    )  # fmt: skip
    assert (float(kept.inner.eta), float(kept.inner.rho)) == (0.1, 0.2)
    np.testing.assert_array_equal(kept.scales.inequalities, 1.0)  # c2 and gamma carry the constraints' units


@pytest.mark.parametrize(
    "units", [{"scale_upper": 100.0}, {"scale_lower": 0.01}, {"scale_constraint": 100.0}, {"stretch": 10.0}]
)
def test_other_units_give_the_same_path(units):
    """With nothing set, the iterates of the exact toy do not depend on the units of F, G, H, x and y."""
    paths = []
    for example in (toy(0.0), toy(0.0, **units)):
        t = 10.0 if example.x0 > 10 else 1.0
        sol = hx.solve(example.problem, 1.2 * t, 1.2 * t, hx.SALVF(), max_steps=200)
        paths.append((sol.x / t, sol.y / t))
    np.testing.assert_allclose(paths[0], paths[1], rtol=1e-4)


def test_no_knobs_at_all():
    example = toy(0.1)
    sol = hx.solve(example.problem, 1.2, 1.2, hx.SALVF(), max_steps=2500)
    assert sol.counts.zeta == 2500
    np.testing.assert_allclose(sol.x, 0.98622, atol=0.05)
    np.testing.assert_allclose(sol.y, sol.x, atol=0.02)
    np.testing.assert_allclose(sol.multipliers.inequalities, 2 * sol.x, atol=0.2)
    assert sol.status.name == "max_steps"


def test_optax_transformations_as_steps():
    example = toy(0.1)
    adam = hx.Steps(x=optax.adam(3e-3), y=optax.sgd(5e-3), z=None)
    method = hx.SALVF(c1=5.0, c2=100.0, steps=adam, direction=hx.Storm(beta=0.5))
    first = hx.solve(example.problem, 1.2, 1.2, method, max_steps=1000)
    np.testing.assert_allclose(first.x, 0.98622, atol=0.1)
    np.testing.assert_allclose(first.y, first.x, atol=0.05)
    more = hx.solve(example.problem, 1.2, 1.2, method, max_steps=10, state=first.state)
    assert more.status.step == 1010


def test_rows_and_scales_round_trip_through_the_multipliers():
    """Multipliers are reported in the user's units: H scaled by 50 has lam / 50."""
    ends = [hx.solve(toy(0.0, scale_constraint=k).problem, 1.2, 1.2, hx.SALVF(), max_steps=300) for k in (1.0, 50.0)]
    close(
        Rows(ends[0].multipliers.inequalities, None),
        Rows(50.0 * ends[1].multipliers.inequalities, None),
        rtol=1e-4,
        atol=0,
    )
