"""The SVM's sample weights: the reference solver and the hyper-gradient against Clarabel and differences."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import contains
from test_problems_more import Quadratic, clarabel_qp, quadratic

from hierax import InputError, Problem
from hierax_lab.problems import svm, svm_hypergradient, svm_reference


def classes(n: int, d: int, seed: int, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Two overlapping classes (for noise > 0) with a random plane between them."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, d))
    plane = np.random.default_rng(1000 + d).standard_normal(d)
    labels = np.where(features @ plane + 0.3 + noise * rng.standard_normal(n) > 0.0, 1.0, -1.0)
    return features, labels


TRAIN, VALIDATION = classes(60, 5, 0), classes(40, 5, 1)


def weights_at(scale: float, weights: str, n: int = 60) -> np.ndarray:
    """c around the start of either form."""
    start = 0.0 if weights == "softmax" else -np.log(n)
    return start + scale * np.random.default_rng(7).standard_normal(n)


def svm_quadratic(problem: Problem, c: np.ndarray, n: int, d: int) -> Quadratic:
    """The lower level with y = (w, b, slack) as one vector."""

    def tree(y: Any) -> dict[str, Any]:
        return {"w": y[:d], "b": y[d], "slack": y[d + 1 :]}

    flat = Problem(
        upper=problem.upper,
        lower=lambda c, y, xi: problem.lower(c, tree(y), xi),
        constraints=lambda c, y: problem.constraints(c, tree(y)),
    )
    return quadratic(flat)(c, np.zeros(d + 1 + n))


@pytest.mark.parametrize("weights", ["softmax", "exp"])
@pytest.mark.parametrize("scale", [0.0, 1.0, 2.5])
def test_svm_reference_agrees_with_clarabel(scale: float, weights: Any) -> None:
    c = weights_at(scale, weights)
    qp = svm_quadratic(svm(TRAIN, VALIDATION, weights).problem, c, 60, 5)
    found = clarabel_qp(qp)
    known = svm_reference(TRAIN, c, weights)
    value = 0.5 * found.y @ qp.matrix @ found.y + qp.linear @ found.y
    np.testing.assert_allclose(known.value, value, rtol=1e-8)
    np.testing.assert_allclose(known.multipliers, found.lam, atol=1e-6)
    np.testing.assert_allclose(jnp.concatenate([known.w, known.b[None], known.slack]), found.y, atol=1e-5)


@pytest.mark.parametrize("weights", ["softmax", "exp"])
@pytest.mark.parametrize("scale", [0.0, 1.0, 2.5])
def test_svm_reference_satisfies_the_problems_kkt_conditions(scale: float, weights: Any) -> None:
    problem = svm(TRAIN, VALIDATION, weights).problem
    c = weights_at(scale, weights)
    w, b, slack, lam, value = svm_reference(TRAIN, c, weights)
    y = {"w": w, "b": b, "slack": slack}
    slope = jax.grad(lambda y: problem.lower(c, y, None) + jnp.vdot(lam, problem.constraints(c, y)))(y)
    assert max(float(jnp.max(jnp.abs(part))) for part in slope.values()) < 1e-12
    rows = problem.constraints(c, y)
    assert jnp.all(lam >= 0.0) and jnp.max(rows) < 1e-12 and jnp.max(jnp.abs(lam * rows)) < 1e-12
    np.testing.assert_allclose(problem.lower(c, y, None), value, rtol=1e-13)
    if weights == "softmax":
        assert jnp.linalg.norm(w) <= 0.5


def test_svm_reference_on_hard_data() -> None:
    """Separable classes, large weights, weights of one class near zero, features in bad units."""
    separable = classes(80, 3, 2, noise=0.0)
    one_sided = np.where(separable[1] > 0.0, 0.0, -12.0)
    cases = [(separable, np.full(80, 5.0)), (separable, one_sided), (TRAIN, weights_at(5.0, "exp") + 10.0)]
    cases += [((TRAIN[0] * np.array([1e-3, 1.0, 30.0, 1.0, 1.0]) + 5.0, TRAIN[1]), weights_at(1.0, "exp"))]
    for (features, labels), c in cases:
        known = svm_reference((features, labels), c, "exp")
        margin = jnp.maximum(1.0 - labels * (features @ known.w + known.b), 0.0)
        pull = np.exp(c) * margin * labels
        # Rounding in the sums is proportional to their terms.
        assert jnp.max(jnp.abs(known.w - pull @ features)) < 1e-12 * (1.0 + jnp.sum(jnp.abs(pull)) * np.max(features))
        assert abs(jnp.sum(pull)) < 1e-12 * (1.0 + jnp.sum(jnp.abs(pull)))
        assert jnp.isfinite(known.value)


def test_svm_reference_under_vmap_equals_one_at_a_time() -> None:
    cs = np.stack([weights_at(scale, "softmax") for scale in (0.0, 0.5, 4.0)])
    many = jax.jit(jax.vmap(lambda c: svm_reference(TRAIN, c)))(cs)
    values, gradients = jax.vmap(lambda c: svm_hypergradient(TRAIN, VALIDATION, c))(cs)
    for i, c in enumerate(cs):
        one = svm_reference(TRAIN, c)
        for part, whole in zip(one, many, strict=True):
            np.testing.assert_allclose(whole[i], part, atol=1e-13)
        value, gradient = svm_hypergradient(TRAIN, VALIDATION, c)
        np.testing.assert_allclose(values[i], value, rtol=1e-13)
        np.testing.assert_allclose(gradients[i], gradient, atol=1e-13)


@pytest.mark.parametrize("weights", ["softmax", "exp"])
@pytest.mark.parametrize("scale", [0.0, 2.0])
def test_svm_hypergradient_agrees_with_differences(scale: float, weights: Any) -> None:
    c = weights_at(scale, weights)
    problem = svm(TRAIN, VALIDATION, weights).problem
    value, gradient = svm_hypergradient(TRAIN, VALIDATION, c, weights)
    w, b, slack, _, _ = svm_reference(TRAIN, c, weights)
    np.testing.assert_allclose(
        value, problem.upper(c, {"w": w, "b": b, "slack": slack}, problem.zeta.full()), rtol=1e-13
    )
    step = 1e-5
    moved = c + step * np.concatenate([np.eye(60), -np.eye(60)])
    values = np.asarray(jax.vmap(lambda c: svm_hypergradient(TRAIN, VALIDATION, c, weights)[0])(moved))
    np.testing.assert_allclose(gradient, (values[:60] - values[60:]) / (2.0 * step), atol=1e-9)
    assert jnp.max(jnp.abs(gradient)) > 1e-4
    if weights == "softmax":  # phi does not change when c is shifted
        assert abs(jnp.sum(gradient)) < 1e-14


@pytest.mark.parametrize("weights", ["softmax", "exp"])
def test_svm_starts_with_equal_weights_at_a_feasible_point_inside_the_box(weights: Any) -> None:
    example = svm(TRAIN, VALIDATION, weights)
    problem, y0 = example.problem, example.y0
    np.testing.assert_allclose(problem.constraints(example.x0, y0), 0.0, atol=1e-14)
    np.testing.assert_allclose(problem.lower(example.x0, y0, None), 0.5, rtol=1e-14)  # sum_i s_i = 1, xi_i = 1
    curvature = jax.grad(lambda slack: problem.lower(example.x0, y0 | {"slack": slack}, None))(jnp.ones(60))
    np.testing.assert_allclose(curvature, 1.0, rtol=1e-13)
    assert contains(problem.x_set, jnp.asarray(example.x0 + 4.9))
    assert not contains(problem.x_set, jnp.asarray(example.x0 + 5.1))
    assert not contains(svm(TRAIN, VALIDATION, weights, bound=1.0).problem.x_set, jnp.asarray(example.x0 - 1.1))
    np.testing.assert_allclose(problem.upper(example.x0, y0, problem.zeta.full()), np.e, rtol=1e-14)
    assert example.solutions == [] and example.source


def test_svm_gradients_of_batches_have_the_full_gradient_as_mean() -> None:
    problem = svm(TRAIN, VALIDATION).problem
    w, b, slack, _, _ = svm_reference(TRAIN, np.zeros(60))
    y = {"w": w, "b": b, "slack": slack}
    slope = jax.jit(jax.grad(problem.upper, 1))
    rows = [
        slope(np.zeros(60), y, jax.tree.map(lambda a, i=i: a[i : i + 8], problem.zeta.full())) for i in range(0, 40, 8)
    ]
    mean = jax.tree.map(lambda *parts: jnp.mean(jnp.stack(parts), axis=0), *rows)
    full = slope(np.zeros(60), y, problem.zeta.full())
    for name in ("w", "b", "slack"):
        np.testing.assert_allclose(mean[name], full[name], atol=1e-14)


def test_svm_functions_keep_single_precision() -> None:
    example = svm(TRAIN, VALIDATION)
    c, y = jax.tree.map(lambda part: jnp.asarray(part, jnp.float32), (example.x0, example.y0))
    batch = example.problem.zeta.full()
    values = example.problem.upper(c, y, batch), example.problem.lower(c, y, None), example.problem.constraints(c, y)
    assert {value.dtype for value in values} == {jnp.dtype("float32")}
    with jax.enable_x64(False):
        single = svm_reference(TRAIN, example.x0)
    assert single.w.dtype == jnp.float32
    np.testing.assert_allclose(single.value, svm_reference(TRAIN, example.x0).value, rtol=1e-5)


def test_svm_in_another_unit_is_the_same_problem() -> None:
    plain, other = svm(TRAIN, VALIDATION).problem, svm(TRAIN, VALIDATION, unit=8.0).problem
    c = np.random.default_rng(4).standard_normal(60)
    y = {"w": jnp.ones(5), "b": jnp.ones(()), "slack": jnp.linspace(0.0, 1.0, 60)}
    np.testing.assert_allclose(plain.lower(c, y, None), other.lower(c / 8.0, y, None), rtol=1e-12)
    np.testing.assert_allclose(plain.x_set.upper, 8.0 * other.x_set.upper)


def test_svm_names_what_is_wrong_with_its_data() -> None:
    features, labels = TRAIN
    for train, validation, text in [
        ((features, labels[:-1]), VALIDATION, "train: needs features"),
        ((features[:, 0], labels), VALIDATION, "train: needs features"),
        ((features, (labels + 1) / 2), VALIDATION, "labels must be -1 or"),
        ((features, np.ones(60)), VALIDATION, "both labels occur"),
        (TRAIN, (VALIDATION[0][:, :4], VALIDATION[1]), "validation: has 4 features"),
    ]:
        with pytest.raises(InputError, match=text):
            svm(train, validation)
    with pytest.raises(InputError, match="weights="):
        svm(TRAIN, VALIDATION, "linear")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="bound="):
        svm(TRAIN, VALIDATION, bound=0.0)
