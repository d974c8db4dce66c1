"""Jacobians whose columns are computed together: the same as one column at a time, also where zeros move.

Unit tests of hierax._engine.columns and of medians in hierax._engine.lengths.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_active_set import follower_of

import hierax as hx
from hierax._engine.columns import THROWS, Places, grouped
from hierax._engine.lengths import intrinsic_lengths

N = 200


@pytest.mark.parametrize("share", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("seed", range(3))
def test_columns_of_a_group_share_no_row(share, seed):
    filled = np.random.default_rng(seed).random((300, N)) < share
    groups = grouped(*np.nonzero(filled), filled.shape, N)
    assert groups is not None
    for group in range(groups.max() + 1):
        assert filled[:, groups == group].sum(axis=1).max() <= 1


def test_a_band_needs_as_many_groups_as_it_is_wide():
    places = np.arange(N)
    assert grouped(*np.nonzero(np.abs(places[:, None] - places) <= 1), (N, N), N).max() + 1 == 3


def test_full_rows_need_all_columns():
    filled = np.eye(N, dtype=bool)
    filled[0] = True
    assert grouped(*np.nonzero(filled), filled.shape, N - 1) is None


class Recorded:
    """A function of (x, y, mu) with its Jacobian, and derivatives along directions, counted."""

    def __init__(self, function):
        self.calls = 0
        self.jacobian = jax.jit(jax.jacfwd(function, 1))
        self.push = jax.jit(
            jax.vmap(
                lambda x, y, mu, way: jax.jvp(lambda y: function(x, y, mu), (y,), (way,))[1], (None, None, None, 0)
            )
        )

    def along(self, *args):
        self.calls += 1
        return np.asarray(self.push(*args))


def slacks(x, y, mu):
    """Twenty entries that all rows see, and a slack for every row; curvature that depends on x and on mu."""
    w, s = y[:20], y[20:]
    features = np.random.default_rng(0).normal(size=(N - 20, 20))
    return jnp.concatenate([jnp.tanh(features @ w) - x[0] * s, w * x[1] + features.T @ mu, mu * s**2])


def test_the_same_as_one_column_at_a_time():
    function, rng = Recorded(slacks), np.random.default_rng(1)
    together = Places()
    for _ in range(20):
        point = rng.normal(size=2), rng.normal(size=N), rng.normal(size=N - 20)
        found = together.at(function.along, *point)
        np.testing.assert_allclose(found.toarray(), function.jacobian(*point), rtol=1e-12, atol=1e-14)
    assert function.calls == THROWS + 20


def late(x, y, mu):
    """A function whose zeros depend on the point: more and more pairs of entries as x grows."""
    on = jnp.arange(float(N)) < x[0]
    return y**2 + mu[:1] + jnp.where(on, y * jnp.roll(y, 1), 0.0) + jnp.where(on & (x[1] > 0), jnp.roll(y, 7) ** 3, 0.0)


@pytest.mark.parametrize("levels", [(0, 0, 0, 0, 0, 0, 0, 30, 30, 120, 120, 120, 5, 120), tuple(range(0, 200, 8))])
def test_entries_at_new_places_are_noticed(levels):
    function, rng = Recorded(late), np.random.default_rng(2)
    together = Places()
    for number, level in enumerate(levels):
        point = np.array([float(level), float(number % 2)]), rng.normal(size=N), rng.normal(size=3)
        found = together.at(function.along, *point)
        np.testing.assert_allclose(found.toarray(), function.jacobian(*point), rtol=1e-12, atol=1e-14)
    assert function.calls > THROWS + len(levels)  # some were missed at first


def test_no_sparse_matrix_of_what_is_dense_or_not_finite():
    function = Recorded(lambda x, y, mu: y * jnp.sqrt(x[0]) + 0 * mu[0])
    together = Places()
    assert together.at(function.along, np.ones(1), np.ones(N), np.ones(1)).nnz == N
    assert together.at(function.along, np.array([-1.0]), np.ones(N), np.ones(1)) is None
    full = Recorded(lambda x, y, mu: y * jnp.sum(y) + 0 * mu[0])
    assert Places().at(full.along, np.ones(1), np.ones(N), np.ones(1)) is None


def test_a_follower_forgets_what_it_has_seen():
    """After `forget` the same points give the same bits, as a run that goes on from a checkpoint needs."""
    rng = np.random.default_rng(3)
    features, n = rng.normal(size=(90, 6)), 90

    def lower(x, y, xi):
        return 0.5 * (y["w"] ** 2).sum() + (jnp.exp(x) * y["s"] ** 2).sum()

    problem = hx.Problem(
        upper=lambda x, y, zeta: ((y["w"] - 1.0) ** 2).sum() + 1e-2 * (x**2).sum(),
        lower=lower,
        constraints=lambda x, y: 1.0 - features @ y["w"] - y["s"],
        x_set=hx.Box(-2.0, 2.0),
    )
    start = {"s": np.ones(n), "w": np.zeros(6)}
    vectors, follower = follower_of(problem, np.zeros(n), start)
    xs = rng.uniform(-1, 1, size=(9, n)) / vectors.x_unit

    def followed():
        y, mu, found = np.concatenate([np.ones(n), np.zeros(6)]) / vectors.y_unit, np.zeros(n), []
        for x in xs:
            solved = follower.solve(x, y, mu)
            assert solved is not None
            y, mu = solved.y, solved.mu
            found.append((y, mu, follower.total(x, solved).slopes.upper))
        return found

    first = followed()
    follower.forget()
    for one, other in zip(first, followed(), strict=True):
        for part, again in zip(one, other, strict=True):
            np.testing.assert_array_equal(part, again)


def test_an_intrinsic_length_is_the_median_distance_to_the_zeros_of_the_functions_that_depend_on_the_entry():
    rng = np.random.default_rng(4)
    values, slopes = rng.normal(size=40), np.where(rng.random((40, 30)) < 0.2, rng.normal(size=(40, 30)), 0.0)
    slopes[:, 3] = 0.0  # nothing depends on it
    shared = np.sqrt((slopes != 0).sum(axis=1).clip(min=1))
    each = [np.abs(values[mine] / slopes[mine, j]) / shared[mine] for j in range(30) for mine in [slopes[:, j] != 0]]
    expected = [np.median(distances) if distances.size else 0.0 for distances in each]
    np.testing.assert_allclose(intrinsic_lengths(values, slopes), expected, rtol=1e-13)
