"""Noise of the examples' sources, and the form of their functions: dtypes, refusals."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hierax.problems import toy
from hierax_lab.problems import ellipsoid_qp, synthetic
from hierax_lab.problems.synthetic import _plant

STRETCHED = {"scale_upper": 1e-3, "scale_lower": 50.0, "scale_constraint": 0.1, "stretch": 0.03}

NOISY = {
    "toy": lambda: toy(0.4),
    "toy-units": lambda: toy(0.4, **STRETCHED),
    "qp": lambda: ellipsoid_qp(6, 3),
    "synthetic-additive": lambda: synthetic(),
    "synthetic-multiplicative": lambda: synthetic(noise="multiplicative"),
}


def shapes_of_draw(source: Any, n: int) -> Any:
    return jax.eval_shape(lambda: source.draw(jax.random.key(0), n))


@pytest.mark.parametrize("level", ["upper", "lower"])
@pytest.mark.parametrize("name", NOISY)
def test_noise_has_mean_zero_and_the_stated_variance(name: str, level: str) -> None:
    example = NOISY[name]()
    problem = example.problem
    source = problem.zeta if level == "upper" else problem.xi
    if source is None:
        assert (name, level) == ("qp", "upper")
        return
    samples, sigma = 20_000, 0.4 if name.startswith("toy") else 0.3 if name == "qp" else 0.5
    batch = np.asarray(source.draw(jax.random.key(0), samples))
    assert batch.shape[0] == samples and shapes_of_draw(source, 1).shape == (1, batch.shape[1])
    # The entries have the stated moments up to five standard errors; a normal variance has the error sigma^2 sqrt(2/n),
    # a uniform one a smaller one.
    np.testing.assert_allclose(np.mean(batch, axis=0), 0.0, atol=5.0 * sigma / samples**0.5)
    np.testing.assert_allclose(np.var(batch, axis=0), sigma**2, atol=5.0 * sigma**2 * (2.0 / samples) ** 0.5)
    correlation = np.corrcoef(batch.T) - np.eye(batch.shape[1])
    assert np.max(np.abs(correlation)) < 6.0 / samples**0.5

    rng = np.random.default_rng(4)
    x, y = (start + 0.3 * rng.standard_normal(np.shape(start)) for start in (example.x0, example.y0))

    def gradient(batch: Any) -> jax.Array:
        d_x, d_y = jax.grad(getattr(problem, level), (0, 1))(x, y, batch)
        return jnp.concatenate([jnp.ravel(d_x), jnp.ravel(d_y)])

    @jax.jit
    def gradients(batch: Any) -> tuple[jax.Array, ...]:
        rows = jax.vmap(lambda one: gradient(one[None]))(batch)
        return gradient(None), gradient(source.exact), rows, gradient(batch[:7])

    # The exact batch gives the expectation, and no batch gives the same function.
    without, mean, per_sample, of_seven = map(np.asarray, gradients(batch))
    np.testing.assert_allclose(without, mean, atol=1e-12)
    error = np.std(per_sample, axis=0) / samples**0.5
    assert np.all(np.abs(np.mean(per_sample, axis=0) - mean) <= 5.0 * error + 1e-12)
    # A batch means the average over its rows.
    np.testing.assert_allclose(of_seven, np.mean(per_sample[:7], axis=0), rtol=1e-9, atol=1e-12)
    if "multiplicative" not in name:
        # Additive noise: the gradient's noise is the sample itself, in the problem's units.
        units = {"toy-units": {"upper": 1e-3, "lower": 50.0}[level] / 0.03}.get(name, 1.0)
        noise = per_sample - mean
        np.testing.assert_allclose(noise[:100, -batch.shape[1] :], units * batch[:100], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("level", ["upper", "lower"])
def test_multiplicative_noise_follows_its_formula(level: str) -> None:
    problem = synthetic(0.5, "multiplicative").problem
    data = _plant(np.random.default_rng(0))
    rng = np.random.default_rng(5)
    x, y, noise = rng.uniform(-1.0, 1.0, 10), rng.standard_normal(20), rng.uniform(-0.8, 0.8, 40)
    if level == "upper":
        u, v = 1.0 + noise[:10], 1.0 + noise[10:30]
        value = problem.upper(x, y, noise[None, :30])
        wanted = 0.5 * u @ (x - data.target_x) ** 2 + 0.5 * v @ (y - data.target_y) ** 2
    else:
        u, v = 1.0 + noise[:20], 1.0 + noise[20:]
        value = problem.lower(x, y, noise[None])
        wanted = 0.5 * u @ (data.factor @ y) ** 2 - v @ ((data.linear + data.coupling @ x) * y)
    np.testing.assert_allclose(value, wanted, rtol=1e-12)


def test_multiplicative_samples_are_convex_at_the_default_sigma() -> None:
    problem = synthetic(noise="multiplicative").problem
    batch = problem.xi.draw(jax.random.key(1), 20)
    hessian = jax.jit(lambda one: jax.hessian(problem.lower, 1)(jnp.zeros(10), jnp.zeros(20), one[None]))
    assert all(np.linalg.eigvalsh(hessian(one))[0] > 0.0 for one in batch)


def test_no_noise_means_no_source() -> None:
    for example in [toy(0.0), ellipsoid_qp(3, 2, 0.0), synthetic(0.0), synthetic(0.0, "multiplicative")]:
        assert example.problem.zeta is None and example.problem.xi is None


# --- form ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NOISY)
def test_functions_keep_the_dtype_and_never_promote(name: str) -> None:
    example = NOISY[name]()
    problem = example.problem
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for dtype in (jnp.float32, jnp.float64):
            x, y = jnp.asarray(example.x0, dtype), jnp.asarray(example.y0, dtype)
            assert jax.eval_shape(problem.constraints, x, y).dtype == dtype
            for function, source in [(problem.upper, problem.zeta), (problem.lower, problem.xi)]:
                batches = [None] if source is None else [None, source.exact, shapes_of_draw(source, 3)]
                for batch in batches:
                    value = jax.eval_shape(function, x, y, batch)
                    assert value.dtype == dtype and value.shape == ()


def test_functions_work_without_x64() -> None:
    with jax.enable_x64(False):
        for example in [toy(), ellipsoid_qp(4, 2), synthetic(noise="multiplicative")]:
            x, y = jnp.asarray(example.x0), jnp.asarray(example.y0)
            batch = example.problem.xi.draw(jax.random.key(0), 2)
            value = jax.jit(example.problem.lower)(x, y, batch)
            assert batch.dtype == value.dtype == jnp.float32 and jnp.isfinite(value)


def test_wrong_arguments_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="sigma"):
        toy(-0.1)
    with pytest.raises(ValueError, match="stretch"):
        toy(stretch=0.0)
    with pytest.raises(ValueError, match="scale_lower"):
        toy(scale_lower=-1.0)
    with pytest.raises(ValueError, match="n=1"):
        ellipsoid_qp(1, 1)
    with pytest.raises(ValueError, match="p=7"):
        ellipsoid_qp(3, 7)
    with pytest.raises(ValueError, match="p=0"):
        ellipsoid_qp(3, 0)
    with pytest.raises(ValueError, match="noise"):
        synthetic(noise="gaussian")  # type: ignore[arg-type]
