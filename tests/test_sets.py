"""Projections against their definition, on arrays, trees and prefixes.

Unit tests of hierax._problem.sets.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import close, contains
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

import hierax as hx
from hierax._problem import sets

LOW, HIGH = np.array([-1.0, 0.0, 0.5]), np.array([1.0, 0.0, 2.0])
SETS = {
    "free": (hx.Free(), [(None, None)] * 3, []),
    "box": (hx.Box(LOW, HIGH), list(zip(LOW, HIGH, strict=True)), []),
    "interval": (hx.Box(0.0, 1.0), [(0, 1)] * 3, []),
    "nonnegative": (hx.NonNegative(), [(0, None)] * 3, []),
    "ball": (hx.Ball(1.5), [(None, None)] * 3, [{"type": "ineq", "fun": lambda v: 1.5**2 - v @ v}]),
    "simplex": (hx.Simplex(2.0), [(0, None)] * 3, [{"type": "eq", "fun": lambda v: v.sum() - 2.0}]),
}
POINTS = st.lists(st.floats(-4.0, 4.0, width=32), min_size=3, max_size=3).map(np.array)


@pytest.mark.parametrize("name", SETS)
@given(POINTS)
def test_projection_is_the_nearest_point(name, point):
    convex_set, bounds, constraints = SETS[name]
    landed = np.asarray(convex_set.project(jnp.asarray(point)))
    inside = np.array([np.clip(1.0, a, np.inf if b is None else b) for a, b in bounds])
    found = optimize.minimize(
        lambda v: np.sum((v - point) ** 2),
        inside,
        jac=lambda v: 2 * (v - point),
        bounds=bounds,
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 200},
    )
    np.testing.assert_allclose(landed, found.x, atol=2e-6)
    # The definition: no point of the set lies in the half-space beyond the projection.
    for other in np.random.default_rng(0).standard_normal((20, 3)) * 3:
        member = np.asarray(convex_set.project(jnp.asarray(other)))
        assert (point - landed) @ (member - landed) <= 1e-9
    np.testing.assert_allclose(convex_set.project(jnp.asarray(landed)), landed, atol=1e-12)
    assert convex_set.contains(jnp.asarray(landed), 1e-12)


@pytest.mark.parametrize("name", [name for name in SETS if name != "free"])
def test_contains_refuses_what_lies_outside(name):
    convex_set = SETS[name][0]
    outside = jnp.array([-3.0, 2.0, 4.0])
    away = float(jnp.max(jnp.abs(outside - convex_set.project(outside))))
    assert not convex_set.contains(outside)
    assert not convex_set.contains(outside, 0.9 * away)
    assert convex_set.contains(outside, 1.1 * away)


def test_prefix_of_sets():
    tree = {"a": jnp.array([-1.0, 2.0]), "b": [jnp.array([3.0, 4.0]), jnp.array(12.0)], "c": jnp.array(5.0)}
    prefix = {"a": hx.NonNegative(), "b": hx.Ball(6.5), "c": hx.Free()}
    landed = sets.project(prefix, tree)
    close(landed, {"a": np.array([0.0, 2.0]), "b": [np.array([1.5, 2.0]), np.array(6.0)], "c": np.array(5.0)})
    assert not contains(prefix, tree)
    assert contains(prefix, landed, 1e-12)
    joint = sets.project(hx.Simplex(1.0), {"a": jnp.array([0.2, 0.4]), "b": jnp.array(0.1)})  # on the joint vector
    np.testing.assert_allclose(sum(float(jnp.sum(leaf)) for leaf in jax.tree.leaves(joint)), 1.0, rtol=1e-12)
    np.testing.assert_allclose(joint["a"], [0.3, 0.5], rtol=1e-12)


def test_bounds_broadcast_and_may_be_trees():
    tree = {"a": jnp.full((2, 3), 9.0), "b": jnp.array(-9.0)}
    close(hx.Box(-1.0, 1.0).project(tree), {"a": np.ones((2, 3)), "b": np.array(-1.0)})
    box = hx.Box({"a": np.zeros(3), "b": -2.0}, {"a": np.array([1.0, 2.0, 3.0]), "b": 0.0})
    close(box.project(tree), {"a": np.tile([1.0, 2.0, 3.0], (2, 1)), "b": np.array(-2.0)})


def test_a_bound_never_promotes_a_variable():
    single = jnp.ones(3, jnp.float32)
    for convex_set, _, _ in SETS.values():
        assert convex_set.project(single).dtype == jnp.float32


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: hx.Box(1.0, 0.0), r"Box\(lower=1.0, upper=0.0\) is empty"),
        (lambda: hx.Box(np.array([0.0, 2.0]), np.array([1.0, 1.0])), "is empty"),
        (lambda: hx.Box(float("nan"), 1.0), "neither may be NaN"),
        (lambda: hx.Ball(-1.0), r"Ball\(radius=-1.0\): the radius must be one number > 0"),
        (lambda: hx.Ball(np.ones(2)), "one number > 0"),
        (lambda: hx.Simplex(0.0), r"Simplex\(scale=0.0\) is empty"),
    ],
)
def test_empty_sets_are_refused(make, text):
    with pytest.raises(hx.InputError, match=text):
        make()


@pytest.mark.parametrize(
    "convex_set",
    [
        hx.Box(-1.0, {"a": np.array([0.5, np.inf]), "b": 0.2}),
        hx.NonNegative(),
        hx.Ball(0.7),
        hx.Simplex(2.0),
        {"a": hx.Simplex(1.0), "b": hx.Box(0.0, 1.0)},
    ],
)
def test_faces_describe_the_set(convex_set):
    """A point satisfies the faces exactly where the set contains it: checked outside, and on the projection."""
    for seed in range(20):
        draw = np.random.default_rng(seed).standard_normal(3)
        tree = {"a": jnp.asarray(draw[:2]), "b": jnp.asarray(draw[2])}
        for point in (tree, sets.project(convex_set, tree)):
            rows = sets.faces(convex_set, point)
            worst = max([float(jnp.max(leaf)) for leaf in jax.tree.leaves(rows.inequalities)], default=0.0)
            off = max([float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(rows.equalities)], default=0.0)
            assert (max(worst, off) <= 1e-12) == bool(contains(convex_set, point, 1e-12))


def test_a_set_without_faces_says_so():
    class Halfline(sets.AbstractSet):
        def project(self, tree):
            return jnp.maximum(tree, 0.0)

    with pytest.raises(hx.InputError, match="Halfline does not state its faces"):
        sets.faces(Halfline(), jnp.zeros(2))
