"""`from_torch`: values and derivatives against JAX's of the same formula; with PyTorch where it is installed, and with
a stand-in (tests/fake_torch.py) everywhere.
"""

import importlib.util
import itertools
import sys

import fake_torch
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx

REAL = importlib.util.find_spec("torch") is not None
COUNTER = itertools.count(1.0)
WHY = "torch is in no extra of hierax; the stand-in is tested instead"


@pytest.fixture(params=["stand-in", pytest.param("torch", marks=pytest.mark.skipif(not REAL, reason=WHY))])
def torch(request, monkeypatch):
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "torch", fake_torch.module())
    return sys.modules.get("torch") or importlib.import_module("torch")


def formula(x, y, zeta):
    """In the words that torch, the stand-in and JAX share: dictionaries, a batch, and an x that is not used fully."""
    first = ((y["a"] - 1.0) ** 2).sum() * (y["b"] * y["b"]).sum() + (x["u"] * y["a"]).sum()
    return first + 0.1 * (x["u"] ** 3).sum() + (zeta * (y["b"] ** 2)).sum()


POINT = (
    {"u": jnp.array([0.3, -0.7]), "unused": jnp.array(2.0)},
    {"a": jnp.array([1.5, 0.2]), "b": jnp.array(0.8)},
)
BATCH = jnp.array([1.0, 2.0, 4.0])


def leaves_agree(ours, theirs):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), ours, theirs)


@pytest.mark.usefixtures("torch", "promotion")  # the formula leaves broadcasting to the libraries
def test_values_and_derivatives_are_those_of_jax():
    ours = hx.from_torch(formula)
    along = jax.tree.map(lambda a: jnp.cos(3.0 * a + 1.0), POINT)

    def of_point(function):
        return lambda point: function(*point, BATCH)

    f, g = of_point(ours), of_point(formula)
    leaves_agree(f(POINT), g(POINT))  # outside of jit
    leaves_agree(jax.jit(jax.value_and_grad(f))(POINT), jax.value_and_grad(g)(POINT))
    leaves_agree(jax.jit(jax.jacfwd(f))(POINT), jax.grad(g)(POINT))
    leaves_agree(
        jax.jit(lambda p, t: jax.jvp(jax.grad(f), (p,), (t,)))(POINT, along), jax.jvp(jax.grad(g), (POINT,), (along,))
    )
    many = jax.tree.map(lambda a: jnp.stack([a, 2.0 * a, -a]), POINT)
    leaves_agree(jax.jit(jax.vmap(jax.grad(f)))(many), jax.vmap(jax.grad(g))(many))
    jax.tree.map(lambda a: np.testing.assert_array_equal(a, 0.0), jax.grad(ours, 2)(*POINT, BATCH))  # as documented


@pytest.mark.usefixtures("torch")
def test_the_readme_problem_is_solved_and_certified():
    problem = hx.Problem(
        upper=hx.from_torch(lambda x, y: (y - 1.0) ** 2 + 0.1 * x**2),
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        constraints=lambda x, y: y - x,
        x_set=hx.Box(0.0, 3.0),
        y_set=hx.Box(0.0, 3.0),
    )
    sol = hx.solve(problem, 0.5, 0.5)
    assert sol.status.name == "converged" and sol.certificate.ok(1e-4)
    assert float(sol.x) == pytest.approx(1 / 1.1, rel=1e-5)
    assert float(sol.multipliers.inequalities) == pytest.approx(2 / 1.1, rel=1e-4)


@pytest.mark.slow  # products with the Hessian, which is what a method asks for beyond gradients, are tested above
@pytest.mark.usefixtures("torch")
def test_a_method_makes_the_same_steps_as_with_jax():
    """SALVF estimates its steps from products with the Hessian of F."""

    def solved(upper):
        problem = hx.Problem(
            upper=upper,
            lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
            constraints=lambda x, y: y - x,
            x_set=hx.Box(0.0, 3.0),
            y_set=hx.Box(0.0, 3.0),
        )
        return hx.solve(problem, 0.5, 0.5, hx.SALVF(), max_steps=20)

    def upper(x, y, zeta):
        return (y - 1.0) ** 2 + 0.1 * x**2

    ours, theirs = solved(hx.from_torch(upper)), solved(upper)
    assert float(ours.x) == pytest.approx(float(theirs.x), rel=1e-9)
    assert float(ours.x) != 0.5


@pytest.mark.parametrize(
    "function, text",
    [
        (lambda x, y: 3.0, "must return a tensor with one entry, got float"),
        (lambda x, y: x * y, r"must return a tensor with one entry, got a tensor of shape \(2,\)"),
        (lambda x, y: (x + y).sum().detach(), "does not depend on x or y"),
        (lambda x, y: x + y.nothing, "failed with tensors of shapes .* in float64: AttributeError"),
        (lambda x, y: (x * y * next(COUNTER)).sum(), "different values for the same arguments"),
    ],
    ids=["a number", "a vector", "detached", "an error", "not a function"],
)
@pytest.mark.usefixtures("torch")
def test_wrong_functions_are_refused(function, text):
    with pytest.raises(hx.InputError, match=text):
        jax.eval_shape(hx.from_torch(function), jnp.array([0.5, 1.0]), jnp.array(0.5), None)


def test_without_torch_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(hx.MissingExtra, match="pip install torch"):
        hx.from_torch(lambda x, y: x)
    with pytest.raises(hx.InputError, match="needs a function"):
        hx.from_torch(3)


@pytest.mark.skipif(not REAL, reason="precision is checked by torch itself, not by the stand-in")
def test_weights_in_another_precision_are_told_with_the_cure():
    import torch

    model = torch.nn.Linear(2, 1)
    arguments = jnp.array(0.5), jnp.array([0.5, 1.0]), None
    with pytest.raises(hx.InputError, match=r"y\.to\(torch\.float32\)"):
        jax.eval_shape(hx.from_torch(lambda x, y: model(y).sum() + x), *arguments)
    slope = jax.grad(hx.from_torch(lambda x, y: model(y.to(torch.float32)).sum() + x), 1)(*arguments)
    np.testing.assert_allclose(slope, model.weight.detach().numpy()[0], rtol=1e-6)
    assert slope.dtype == jnp.float64
