"""Unit tests of hierax._bridges.scipy_style and .cvxpy_cones."""

import jax.numpy as jnp
import numpy as np
from scipy.optimize import Bounds, NonlinearConstraint

import hierax as hx
from hierax._bridges.cvxpy_cones import affine_map
from hierax._bridges.scipy_style import _method, box_of, constraints_of


def test_rows_and_multipliers_of_mixed_sides():
    """Sides by hand: entry 0 has no lower side, 1 is an equality, 2 has both."""
    given = NonlinearConstraint(lambda x, y: y, [-np.inf, 2.0, -1.0], [1.0, 2.0, 4.0])
    x, y = jnp.zeros(1), jnp.array([3.0, 5.0, 7.0])
    (one,) = constraints_of("constraints", given, x, y)
    rows, equal = one.rows(x, y), one.rows(x, y, equal=True)
    np.testing.assert_allclose(rows["low"], [-1.0 - 7.0])
    np.testing.assert_allclose(rows["high"], [3.0 - 1.0, 7.0 - 4.0])
    np.testing.assert_allclose(equal["equal"], [5.0 - 2.0])
    found = one.multipliers({"low": jnp.array([0.5]), "high": jnp.array([2.0, 3.0]), "equal": jnp.array([4.0])})
    np.testing.assert_allclose(found, [-2.0, -4.0, 0.5 - 3.0])
    (upper,) = constraints_of("upper", given, x, y, both_sides=True)  # the equality is an inequality from either side
    rows = upper.rows(x, y)
    np.testing.assert_allclose(rows["low"], [2.0 - 5.0, -1.0 - 7.0])
    np.testing.assert_allclose(rows["high"], [3.0 - 1.0, 5.0 - 2.0, 7.0 - 4.0])
    assert upper.rows(x, y, equal=True) == {}
    found = upper.multipliers({"low": jnp.array([1.5, 0.5]), "high": jnp.array([2.0, 4.0, 3.0])})
    np.testing.assert_allclose(found, [-2.0, 1.5 - 4.0, 0.5 - 3.0])


def test_bounds_as_pairs_and_as_an_object_are_the_same():
    pairs = box_of("bounds_x", 3, [(0, 1), (None, 2.5), (-1, None)])
    given = box_of("bounds_x", 3, Bounds([0, -np.inf, -1], [1, 2.5, np.inf]))
    np.testing.assert_array_equal(pairs.lower, given.lower)
    np.testing.assert_array_equal(pairs.upper, given.upper)
    np.testing.assert_array_equal(pairs.upper, [1.0, 2.5, np.inf])


def test_methods_by_name():
    assert isinstance(_method("SALVF"), hx.SALVF) and isinstance(_method("auto"), hx.Auto)
    assert _method(None) is None and isinstance(_method(hx.GAM()), hx.GAM)


def test_affine_maps_by_hand(monkeypatch):
    """Against the sum of matrices, dense and entry by entry."""
    import scipy.sparse as sp

    rng = np.random.default_rng(2)
    parts = rng.normal(size=(4, 3, 5)) * (rng.uniform(size=(4, 3, 5)) < 0.5)
    tensor = sp.csc_array(np.stack([part.ravel(order="F") for part in parts], axis=1))
    # parameters 0 and 2 change, as places 2 and 1 of (1, theta); 1 is fixed at 7; column 3 is the constant
    one = affine_map(tensor, 3, 5, np.array([2, 0, 1, 0]), np.array([1.0, 7.0, 1.0, 1.0]))
    theta, vector = rng.normal(size=2), rng.normal(size=5)
    matrix = theta[1] * parts[0] + 7.0 * parts[1] + theta[0] * parts[2] + parts[3]
    np.testing.assert_allclose(one.matrix(theta), matrix)
    for dense in (10**6, 0):
        monkeypatch.setattr("hierax._bridges.cvxpy_cones.MAX_DENSE", dense)
        np.testing.assert_allclose(one.times(jnp.asarray(theta), jnp.asarray(vector)), matrix @ vector)
