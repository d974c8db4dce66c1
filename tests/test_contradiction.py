"""Constraints that exclude each other: where that is proved; what `solve` says then is in test_infeasible.py.

Unit tests of hierax._auto.feasibility and hierax._base.jaxprs.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax._auto.feasibility import contradiction
from hierax._auto.hunt import Space
from hierax._auto.session import Work
from hierax._base.jaxprs import curvatures
from hierax._engine.float64_problem import Float64Problem
from hierax.extend import Interrupt

KINDS = {  # is it convex, concave, constant?
    "constant": (True, True, True),
    "affine": (True, True, False),
    "convex": (True, False, False),
    "concave": (False, True, False),
    "unknown": (False, False, False),
}
MATRIX = np.array([[1.0, -2.0, 0.5], [0.0, 1.0, 3.0]])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, y: jnp.mean(x) - 15.0, "affine"),
        (lambda x, y: MATRIX @ x - y, "affine"),
        (lambda x, y: jnp.stack([x[0] - 1.0, 2.0 - y[1]]), "affine"),
        (lambda x, y: jnp.ones(3), "constant"),
        (lambda x, y: x @ x - 1.0, "convex"),
        (lambda x, y: jnp.sum((MATRIX @ x - y) ** 2) / 3.0, "convex"),
        (lambda x, y: jnp.exp(jnp.max(x)) - jnp.min(y), "convex"),
        (lambda x, y: 1.0 - jnp.sum(x**2), "concave"),
        (lambda x, y: x[:2] * y, "unknown"),
        (lambda x, y: jnp.floor(x), "unknown"),  # its derivative is constant
        (lambda x, y: x.astype(int).astype(float), "unknown"),
        (lambda x, y: jax.lax.stop_gradient(jnp.sin(x)), "unknown"),
        (lambda x, y: jnp.where(x > 0, x, 2 * x), "unknown"),
        (lambda x, y: jnp.tensordot(jnp.outer(x, jnp.ones(3)), jnp.outer(x, jnp.ones(3)), ((0, 1), (1, 0))), "unknown"),
        (lambda x, y: MATRIX[0] * x**2, "unknown"),  # convex times numbers of both signs
    ],
)
def test_what_a_program_proves(function, said):
    (found,) = curvatures(function, np.ones(3), np.ones(2))
    assert (found.is_convex, found.is_concave, found.is_constant) == KINDS[said]


def found_in(**parts):
    """The contradiction between constraints over x and y of three entries."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((y - 1) ** 2) + jnp.sum(x**2),
        lower=lambda x, y, xi: jnp.sum((y - 2 * x) ** 2),
        **parts,
    )
    setting = Float64Problem.of(problem, np.full(3, 0.3), np.full(3, 0.3), 64, 0)
    return contradiction(Space.of(setting, 2, 0, 0, lambda: False), Work(60.0, Interrupt(), time.perf_counter()))


@pytest.mark.parametrize(
    ("most", "x_set"), [(3**0.5, hx.Ball(1.0)), (1.0, hx.Simplex()), (6.0, hx.Box(-1.0, 2.0)), (1.5, hx.Simplex(1.5))]
)
def test_the_largest_sum_over_a_set(most, x_set):
    """The row `level - sum(x) <= 0` can be satisfied exactly where the level is at most the largest sum over X."""
    assert found_in(x_set=x_set, upper_constraints=lambda x, y: most - 0.05 - jnp.sum(x)) is None
    proved = found_in(x_set=x_set, upper_constraints=lambda x, y: most + 0.05 - jnp.sum(x))
    assert proved is not None
    assert proved.startswith("upper_constraints")
    assert "by at least 0.05 everywhere" in proved or "exclude each other" in proved


def test_rows_of_both_levels_and_curved_ones():
    both = found_in(constraints=lambda x, y: y - x, upper_constraints=lambda x, y: {"above": x[0] - y[0] + 1.0})
    assert both is not None
    assert both.startswith("upper_constraints['above'], constraints[0] exclude each other")
    curved = found_in(constraints=lambda x, y: [jnp.sum((y - 1) ** 2) - 1, jnp.sum((y + 1) ** 2) - 1])
    assert curved is not None
    assert found_in(constraints=lambda x, y: [jnp.sum((y - 1) ** 2) - 4, jnp.sum((y + 1) ** 2) - 4]) is None
    assert found_in(upper_constraints=lambda x, y: 2.0 + jnp.sin(x)) is None  # true, and not proved
