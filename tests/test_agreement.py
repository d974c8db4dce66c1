"""Functions with many optima: the best is found, and the others are told."""

import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx


def test_optima_with_the_same_value_are_several():
    """sum (u^2 - 1)^2 + u/20 with u = Qx has 16 optima on five levels of F, the lowest of them at one place.

    Counted by F every level was met twice, and 16 starts that had missed the best one said that none was left.
    """
    q, _ = np.linalg.qr(np.random.default_rng(2).standard_normal((4, 4)))
    problem = hx.Problem(
        upper=lambda x, y, zeta: 1e-5 * jnp.sum(((q @ y) ** 2 - 1.0) ** 2 + 0.05 * (q @ y)),
        lower=lambda x, y, xi: jnp.sum((y - x) ** 2),
        x_set=hx.Box(-3.0, 3.0),
    )
    sol = hx.solve(problem, np.full(4, 0.5), np.zeros(4))
    (line,) = [line for line in sol.log if line.startswith("Globality")]
    assert sol.value == pytest.approx(-2.0062e-6, rel=1e-3), line


def griewank(x):
    return 1.0 + jnp.sum(x**2) / 400.0 - jnp.prod(jnp.cos(x / jnp.sqrt(1.0 + jnp.arange(3.0))))


def test_an_optimum_among_many_is_found_and_the_others_are_told():
    """Griewank's function has about 25 minima here, and F = 0 at one of them.

    The second term is zero at y*(x) = x, but changes by thousands over X and Y: in such a unit of F the minima hardly
    differ, and all starts seemed to agree.
    """
    problem = hx.Problem(
        upper=lambda x, y, zeta: griewank(x) + 40.0 * jnp.sum((y - x) ** 2),
        lower=lambda x, y, xi: jnp.sum((y - x) ** 2),
        x_set=hx.Box(-5.0, 10.0),
        y_set=hx.Box(-5.0, 10.0),
    )
    sol = hx.solve(problem, np.full(3, 6.0), np.full(3, 6.0))
    assert sol.status.name == "converged"
    assert sol.value == pytest.approx(0.0, abs=1e-6)
    (line,) = [line for line in sol.log if line.startswith("Globality")]
    assert "others to F = 0.0" in line and " more" in line


def test_valleys_along_the_entries_of_x():
    """Rastrigin's function of 5 variables: 16 starts hit the best of 11^5 valleys with next to no chance."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum(y**2 + 10.0 * (1.0 - jnp.cos(2.0 * jnp.pi * y))),
        lower=lambda x, y, xi: jnp.sum((y - x) ** 2),
        x_set=hx.Box(-5.12, 5.12),
    )
    sol = hx.solve(problem, np.full(5, 2.2), np.full(5, 2.2))
    assert sol.status.name == "converged"
    assert sol.value == pytest.approx(0.0, abs=1e-6)
