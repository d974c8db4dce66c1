"""Sources: what is drawn, how often, and that cutting into blocks does not matter.

Unit tests of hierax._problem.samples.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import same
from scipy import stats

import hierax as hx
from hierax._methods.salvf_settings import structured
from hierax._problem import samples

KEY = jax.random.key(3)


def rows(source, batches, n, key=KEY):
    """Row numbers of the first batches."""
    return np.asarray(jax.jit(lambda key: source.plan(key, 0, batches, n))(key))


@pytest.mark.parametrize("size", [1, 2, 3, 10, 37, 64, 100])
def test_every_epoch_visits_every_row_once(size):
    source = hx.Finite(np.arange(size), replace=False)
    epochs = rows(source, 3 * size, 1).reshape(3, size)
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(size))
    if size >= 10:
        assert not np.array_equal(epochs[0], epochs[1])
        assert not np.array_equal(epochs[0], np.sort(epochs[0]))


def test_a_batch_that_does_not_divide_the_data_never_repeats_within_its_epoch():
    source = hx.Finite(np.arange(10), replace=False)
    drawn = rows(source, 9, 3).reshape(3, 9)  # three batches of three per epoch, one row left out
    for epoch in drawn:
        assert len(set(epoch)) == 9


@pytest.mark.parametrize("size", [5, 16, 100])
def test_permutations_are_uniform_enough(size):
    """Which row comes first, and which second after it: chi-squared over 4,000 keys."""
    source = hx.Finite(np.arange(size), replace=False)
    keys = jax.random.split(jax.random.key(0), 4000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: source.plan(key, 0, size, 1)))(keys))[..., 0]
    for place in (0, 1, size - 1):
        counts = np.bincount(drawn[:, place], minlength=size)
        assert stats.chisquare(counts).pvalue > 1e-4
    gap = (drawn[:, 1] - drawn[:, 0]) % size
    assert stats.chisquare(np.bincount(gap, minlength=size)[1:]).pvalue > 1e-4


def test_draws_with_replacement_are_uniform_and_independent():
    source = hx.Finite(np.arange(8))
    drawn = rows(source, 2000, 4)
    assert drawn.shape == (2000, 4)
    assert stats.chisquare(np.bincount(drawn.ravel(), minlength=8)).pvalue > 1e-4
    pairs = np.bincount(drawn[:, 0] * 8 + drawn[:, 1], minlength=64)
    assert stats.chisquare(pairs).pvalue > 1e-4


def test_fetch_gathers_rows_of_every_leaf():
    data = (np.arange(12.0).reshape(6, 2), {"label": np.arange(6)})
    source = hx.Finite(data)
    batch = source.fetch(jnp.array([4, 0, 4]))
    np.testing.assert_array_equal(batch[0], data[0][[4, 0, 4]])
    np.testing.assert_array_equal(batch[1]["label"], [4, 0, 4])
    assert source.size == 6
    same(source.full(), (jnp.asarray(data[0]), {"label": jnp.asarray(data[1]["label"])}))


@pytest.mark.parametrize("size", [9, 1000])
def test_epochs_do_not_depend_on_the_blocks_they_are_drawn_in(size):
    source = hx.Finite(np.arange(size), replace=False)
    whole = rows(source, 12, 2)
    parts = [np.asarray(source.plan(KEY, block, 4, 2)) for block in range(3)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_sampler_plans_fresh_batches_per_block_and_repeats_by_key():
    source = hx.Sampler(lambda key, n: {"u": jax.random.normal(key, (n, 2)), "v": jax.random.uniform(key, (n,))})
    first, again, other = source.plan(KEY, 0, 3, 4), source.plan(KEY, 0, 3, 4), source.plan(KEY, 1, 3, 4)
    assert first["u"].shape == (3, 4, 2)
    assert first["v"].shape == (3, 4)
    same(first, again)
    assert np.all(np.asarray(first["u"]) != np.asarray(other["u"]))
    assert len(np.unique(np.asarray(first["u"]))) == 24


def test_the_three_streams_are_independent():
    keys = samples.streams(KEY)
    drawn = [np.asarray(jax.random.normal(key, (4000,))) for key in keys]
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        assert abs(np.corrcoef(drawn[a], drawn[b])[0, 1]) < 0.06


def test_default_batches():
    assert hx.Finite(np.zeros(7)).default_batch() == 7
    assert hx.Finite(np.zeros(70)).default_batch() == 32
    assert hx.Sampler(lambda key, n: jnp.zeros(n)).default_batch() == 1
    problem = hx.Problem(None, None, zeta=hx.Finite(np.zeros(70)), xi=hx.Sampler(lambda key, n: jnp.zeros(n)))
    sizes = hx.SALVF(inner=hx.SALM(batch=5)).batches(problem)
    assert (sizes.zeta, sizes.xi, sizes.inner_size) == (32, 1, 5)
    assert hx.SALVF(batch_xi=4).batches(problem).inner_size == 4
    filled = structured(hx.SALVF(inner=hx.SALM(batch=5)), problem)
    assert (filled.batch_zeta, filled.batch_xi, filled.inner.batch) == (32, 1, 5)
    assert structured(hx.SALVF(batch_xi=4), problem).inner.batch == 4
    assert filled.control_variate is True
    assert structured(hx.SALVF(inner=hx.SALM(steps=9)), problem).control_variate is False


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: hx.Finite((np.zeros(3), np.zeros(4))), r"same leading axis .* got \[\(3,\), \(4,\)\]"),
        (lambda: hx.Finite(np.zeros((0, 3))), "no rows"),
        (lambda: hx.Finite(1.0), "same leading axis"),
        (lambda: hx.Sampler(np.zeros(3)), r"needs a function draw\(key, n\), got ndarray"),
        (lambda: hx.Stream(3), "needs an iterable of batches, got int"),
        (lambda: hx.Stream([], prefetch=0), "needs a whole number >= 1"),
    ],
)
def test_bad_sources_are_refused(make, text):
    with pytest.raises(hx.InputError, match=text):
        make()


def test_a_draw_that_asks_the_host_for_random_numbers_is_refused():
    """No trace shows what a callback returns, so such a draw is called twice."""
    generator = np.random.default_rng(0)

    def draw(key, n):
        host = jax.pure_callback(
            lambda _: generator.normal(size=n).astype("f4"), jax.ShapeDtypeStruct((n,), "f4"), jnp.zeros(())
        )
        return host + jax.random.normal(key, (n,), "f4")

    with pytest.raises(hx.InputError, match="gives other samples"):
        samples.check_draw("zeta", hx.Sampler(draw))
    samples.check_draw("zeta", hx.Sampler(lambda key, n: jax.random.normal(key, (n,))))


def test_a_draw_with_a_random_number_deep_inside_is_refused():
    """Two traces differ in the arrays of their loops as well."""
    generator = np.random.default_rng(0)

    def draw(key, n):
        hidden = jnp.asarray(generator.normal(size=3).astype("f4"))
        return jax.lax.fori_loop(0, 3, lambda i, at: at + hidden[i], jax.random.normal(key, (n,), "f4"))

    with pytest.raises(hx.InputError, match="gives other samples"):
        samples.check_draw("zeta", hx.Sampler(draw))
