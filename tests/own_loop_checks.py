"""The ten-line loop of a user who wants to own it gives the iterates of `solve`; run by test_own_loop.py."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import METHOD, TOY, VR, same

import hierax as hx


def own_loop(method, steps, key):
    problem, x0, y0 = TOY.problem, jnp.asarray(1.5), jnp.asarray(1.5)
    resolved, state, _ = eqx.filter_jit(method.begin)(problem, x0, y0, key)

    @eqx.filter_jit
    def step(method, state):
        return method.step(problem, state, method.batches(problem).tickets(problem, state))

    seen = []
    for _ in range(steps):
        state, metrics = step(resolved, state)
        seen.append(float(metrics.upper))
    return resolved, state, seen, resolved.finish(problem, state)


@pytest.mark.parametrize("method", [METHOD, VR], ids=["plain", "storm"])
def test_own_loop_equals_solve(method):
    steps = 70  # more than one block of drawn samples
    sol = hx.solve(TOY.problem, 1.5, 1.5, method, max_steps=steps, record_every=1, seed=5)
    key = jax.random.fold_in(jax.random.key(5), 0)
    resolved, state, seen, (x, y, multipliers) = own_loop(method, steps, key)
    assert method.batches(TOY.problem).block(TOY.problem) < steps
    for ours, theirs in zip(jax.tree.leaves(resolved), jax.tree.leaves(sol.method), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    np.testing.assert_allclose(seen, sol.history["upper"], rtol=1e-10)
    np.testing.assert_allclose((x, y), (sol.x, sol.y), rtol=1e-10)
    np.testing.assert_allclose(multipliers.inequalities, sol.multipliers.inequalities, rtol=1e-9)
    assert int(state.step) == steps


def test_from_the_state_of_a_run_the_own_loop_goes_on_bit_for_bit():
    first = hx.solve(TOY.problem, 1.5, 1.5, METHOD, max_steps=10, seed=5)
    state, method, problem = first.state.run.state, first.method, TOY.problem

    @eqx.filter_jit
    def step(method, state):
        return method.step(problem, state, method.batches(problem).tickets(problem, state))

    for _ in range(10):
        state, _ = step(method, state)
    sol = hx.solve(problem, 1.5, 1.5, METHOD, max_steps=10, state=first.state)
    np.testing.assert_allclose(state.point.x, sol.x, rtol=1e-13)
    np.testing.assert_allclose(state.point.y, sol.y, rtol=1e-13)
    same(state.key, sol.state.run.state.key)
