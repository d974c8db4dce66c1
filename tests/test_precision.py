"""float32 and float64: the run has the dtype of its variables, whatever JAX is set to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import METHOD, TOY

import hierax as hx


def dtypes(tree):
    return {leaf.dtype for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)}


def test_float32_variables_stay_float32_with_x64_on():
    sol = hx.solve(TOY.problem, np.float32(1.5), np.float32(1.5), METHOD, max_steps=50)
    assert dtypes((sol.x, sol.y, sol.multipliers, sol.state.run, sol.method)) == {jnp.dtype("float32")}
    double = hx.solve(TOY.problem, 1.5, 1.5, METHOD, max_steps=50)
    assert dtypes((double.x, double.y, double.multipliers, double.state.run, double.method)) == {jnp.dtype("float64")}
    np.testing.assert_allclose(sol.x, double.x, atol=1e-3)


def test_x64_off():
    with jax.enable_x64(False):
        sol = hx.solve(TOY.problem, 1.5, 1.5, METHOD, max_steps=50)
        assert dtypes((sol.x, sol.y, sol.state.run, sol.method)) == {jnp.dtype("float32")}
        many = hx.solve(TOY.problem, np.float64(1.5), np.float64(1.5), METHOD, max_steps=50)
        np.testing.assert_array_equal(many.x, sol.x)
        assert not jax.config.jax_enable_x64
    assert jax.config.jax_enable_x64
    np.testing.assert_allclose(sol.x, hx.solve(TOY.problem, 1.5, 1.5, METHOD, max_steps=50).x, atol=1e-3)


@pytest.mark.usefixtures("promotion")  # the mixing of precisions is what is refused
def test_data_that_would_promote_the_run_are_refused():
    table = jnp.ones(3)
    problem = hx.Problem(lambda x, y, zeta: x**2, lambda x, y, xi: jnp.sum((y - x) ** 2 * table))
    with pytest.raises(hx.InputError, match=r"lower\(x, y, xi\): returns float64 for variables of float32"):
        hx.solve(problem, np.float32(1.0), np.float32(1.0))
