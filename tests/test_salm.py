"""SALM against a NumPy transcription of Algorithm 1, its variants, and where the printed steps go wrong."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import close

import hierax as hx
from hierax import SALM
from hierax.extend import Rows
from hierax.problems import toy, toy_inner_solution

X, Z, W0, LAM0, GAMMA1, GAMMA2 = 1.1, 1.5, 2.3, 0.7, 0.8, 0.5
STEPS, BATCH, ETA, RHO, ETA_MAX, RHO_MAX = 12, 3, 0.9, 1.7, 0.3, 0.4
PROBLEM = toy(0.5).problem
NOISE = 0.5 * np.random.default_rng(0).standard_normal((STEPS, BATCH, 2))


def algorithm_1(noise, w, lam, eta_of, rho_of):
    """Algorithm 1 on the toy, with the corrected augmented term: G = (w - 2x)^2, H = w - x, Y = [0, 3]."""
    for j, batch in enumerate(noise):
        h = w - X
        mu = max(GAMMA1 * lam + h, 0.0) / GAMMA1
        d_w = 2 * (w - 2 * X) + batch.mean(0)[1] + mu
        d_lam = max(-GAMMA1 * lam, h) - GAMMA2 * (lam - Z)
        w, lam = min(max(w - eta_of(j) * d_w, 0.0), 3.0), max(lam + rho_of(j) * d_lam, 0.0)
    return w, lam


def run(solver, noise=NOISE, problem=PROBLEM, w=W0, lam=LAM0, x=X, z=Z, gammas=(GAMMA1, GAMMA2)):
    solver = dataclasses.replace(solver, steps=len(noise) if noise is not None else solver.steps)
    found = jax.jit(lambda w, lam: solver.solve(problem, jnp.asarray(x), Rows(z, None), w, lam, noise, *gammas))(
        jnp.asarray(w), Rows(jnp.asarray(lam), None)
    )
    return found.w, found.lam.inequalities, found.residual


def test_paper_rule_is_algorithm_1_to_the_letter():
    solver = SALM(eta=ETA, rho=RHO, rule="paper")
    w, lam, _ = run(solver)
    expected = algorithm_1(NOISE, W0, 0.0, lambda j: ETA / (j + 1), lambda j: RHO / (j + 1))
    np.testing.assert_allclose((w, lam), expected, rtol=1e-13)
    # Every call starts at lam = 0, whatever the last one found, and the caps are not looked at.
    np.testing.assert_array_equal(run(dataclasses.replace(solver, eta_max=1e-9, rho_max=1e-9), lam=5.0)[:2], (w, lam))


def test_capped_rule_warm_and_cold():
    solver = SALM(eta=ETA, rho=RHO, eta_max=ETA_MAX, rho_max=RHO_MAX)

    def rules(offset):
        return (lambda j: min(ETA / (j + 1 + offset), ETA_MAX), lambda j: min(RHO / (j + 1 + offset), RHO_MAX))

    np.testing.assert_allclose(run(solver)[:2], algorithm_1(NOISE, W0, LAM0, *rules(10)), rtol=1e-13)
    cold = dataclasses.replace(solver, warm=False)
    first = max(Z + (W0 - X) / GAMMA2, GAMMA2 * Z / (GAMMA1 + GAMMA2))  # the best lam at w0
    np.testing.assert_allclose(run(cold)[:2], algorithm_1(NOISE, W0, first, *rules(0)), rtol=1e-13)


def test_dual_free_minimises_the_eliminated_form():
    solver = SALM(eta=ETA, rho=RHO, eta_max=0.1, rho_max=RHO_MAX, dual_free=True)
    w, joint = W0, GAMMA1 * GAMMA2 / (GAMMA1 + GAMMA2)
    for j, batch in enumerate(NOISE):
        d_w = 2 * (w - 2 * X) + batch.mean(0)[1] + max(joint * Z + w - X, 0.0) / joint
        w = min(max(w - min(ETA / (j + 11), 0.1) * d_w, 0.0), 3.0)
    lam = max(Z + (w - X) / GAMMA2, GAMMA2 * Z / (GAMMA1 + GAMMA2))
    np.testing.assert_allclose(run(solver)[:2], (w, lam), rtol=1e-13)


@pytest.mark.parametrize("dual_free", [False, True])
def test_converges_to_the_saddle_point(dual_free):
    solver = SALM(steps=3000, eta=50.0, rho=50.0, eta_max=0.2, rho_max=1.0, dual_free=dual_free)
    w, lam, residual = run(solver, None, toy(0.0).problem)
    close((w, lam), toy_inner_solution(X, Z, GAMMA1, GAMMA2), rtol=1e-9, atol=1e-9)
    assert abs(residual) < 1e-8


def test_without_constraints_it_is_projected_gradient_descent():
    problem = hx.Problem(lambda x, y, zeta: y, lambda x, y, xi: (y - 2 * x) ** 2, y_set=hx.Box(0.0, 1.0))
    solver = SALM(steps=5, eta=1.0, rho=1.0, eta_max=0.1, rho_max=1.0)
    empty = Rows(None, None)
    found = solver.solve(problem, jnp.asarray(0.4), empty, jnp.asarray(0.0), empty, None, 1.0, 1.0)
    w = 0.0
    for j in range(5):
        w -= min(1 / (j + 11), 0.1) * 2 * (w - 0.8)
    np.testing.assert_allclose(found.w, w, rtol=1e-14)
    assert jax.tree.leaves(found.lam) == []


def test_residual_is_the_gradient_mapping_of_the_last_step():
    solver = SALM(eta=ETA, rho=RHO, eta_max=ETA_MAX, rho_max=RHO_MAX)
    before = run(solver, NOISE[:-1])
    after = run(solver)
    step = min(ETA / (STEPS + 10), ETA_MAX)
    np.testing.assert_allclose(after[2], (before[0] - after[0]) / step, rtol=1e-10)


def test_printed_steps_get_stuck_where_capped_ones_do_not():
    """eta >= 1/mu_G exceeds 2/L on a badly conditioned problem: for L/2 steps w jumps between the ends of Y."""
    curvature = jnp.array([1.0, 100.0])
    problem = hx.Problem(
        lambda x, y, zeta: jnp.sum(y),
        lambda x, y, xi: 0.5 * jnp.sum(curvature * y**2),
        y_set=hx.Box(-10.0, 10.0),
    )
    empty, numbers = Rows(None, None), {"steps": 40, "eta": 1.0, "rho": 1.0, "eta_max": 0.01, "rho_max": 1.0}

    def distance(rule):
        solver = SALM(rule=rule, **numbers)
        w = solver.solve(problem, jnp.asarray(0.0), empty, jnp.array([1.0, 0.1]), empty, None, 1.0, 1.0).w
        return np.abs(w)

    assert distance("paper")[1] == 10.0
    assert distance("capped")[1] < 1e-12
    assert np.all(distance("capped") < 1.0)


def test_a_cold_start_at_lam_zero_misses_the_multiplier_in_ten_steps():
    exact = toy(0.0).problem
    z = 2 * X  # the multiplier, at which w* = x and lam* = 2x
    numbers = {"steps": 10, "eta": 0.5, "rho": 1.0, "eta_max": 1 / 3, "rho_max": 3.0}
    call = {"noise": None, "problem": exact, "w": X, "lam": 0.0, "z": z, "gammas": (1.0, 1.0)}
    printed = run(SALM(rule="paper", **numbers), **call)
    closed = run(SALM(warm=False, dual_free=True, **numbers), **call)
    assert abs(printed[1] - z) > 0.1
    assert abs(printed[0] - X) > 0.02
    assert abs(closed[1] - z) < 1e-10
    assert abs(closed[0] - X) < 1e-10


def test_mini_batches_enter_by_their_mean():
    solver = SALM(eta=ETA, rho=RHO, eta_max=ETA_MAX, rho_max=RHO_MAX)
    averaged = np.broadcast_to(NOISE.mean(1, keepdims=True), NOISE.shape)
    close(run(solver), run(solver, averaged), rtol=1e-12, atol=1e-12)
    assert abs(run(solver, NOISE[:, :1])[0] - run(solver)[0]) > 1e-3
