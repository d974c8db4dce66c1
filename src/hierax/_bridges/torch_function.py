"""`from_torch`: an upper objective written in PyTorch, called from compiled JAX programs on the host.

    d F(u)[t] = <grad F(u), t>,    d grad F(u)[t] = Hess F(u) t

A custom rule for tangents serves both directions: forward mode uses it as it is, and reverse mode transposes the inner
product. grad F comes from torch's autograd in the same call as F, Hess F t from a second backward pass through it.
Third derivatives, and reverse mode through the Hessian, do not exist here, and nothing in hierax asks for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from hierax._base.errors import InputError, MissingExtra
from hierax._base.imports import lazy
from hierax._base.trees import dtype_of
from hierax._compile.tracing import accepts

if TYPE_CHECKING:
    from torch import Tensor

    Call: TypeAlias = Callable[[list[Tensor], list[Tensor]], Tensor]

torch = lazy("torch")

Arrays = list[Array]
Valued = tuple[Scalar, Arrays]

PRECISION = (
    "hierax calls it in the precision of x and y, and its certificate in double precision: convert inside of the "
    "function, y.to(torch.float32), or keep the model's weights in double precision, model.double()."
)


def from_torch(function: Callable[..., Tensor]) -> Callable[[PyTree, PyTree, PyTree], Scalar]:
    """An upper objective from a function of PyTorch tensors.

        d F(u)[t] = <grad F(u), t>,    d grad F(u)[t] = Hess F(u) t,     u = (x, y)

    are the derivatives that JAX is given; torch computes grad F and products with Hess F.

    The function is called on the host, on the processor, and differentiated by torch's autograd: it may use modules,
    `.to(device)` inside, and anything that autograd follows. It must be a function of its arguments: no dropout, no
    state that changes from call to call. A gradient costs one backward pass and a trip to the host
    (docs/guides/bridges.md has the figures), and calls that JAX would vectorise are made one after
    another; objectives that can be written in `jax.numpy` are faster there.

    Args:
        function: function(x, y, zeta) -> a tensor with one entry; x, y and zeta are tensors, in dictionaries, lists or
            tuples like those given to `solve`; zeta is None where nothing is sampled. A function of (x, y) is called
            without zeta.

    Returns:
        A function for `hx.Problem(upper=...)`.

    Raises:
        InputError: where the function cannot be called or returns no tensor that depends on x or y.
        MissingExtra: where PyTorch is not installed.

    Examples:
        The upper objective of the README's problem (run where PyTorch is installed):

            def upper(x, y):
                return (y - 1.0) ** 2 + 0.1 * x**2

            problem = hx.Problem(upper=hx.from_torch(upper), lower=..., constraints=...)

    References:
        docs/guides/bridges.md, An upper objective in PyTorch
    """
    if not callable(function):
        raise InputError(f"function: needs a function of torch tensors, got {type(function).__name__}.")
    try:
        torch.tensor  # noqa: B018  the first use of the module imports it
    except ImportError as error:
        raise MissingExtra("from_torch needs PyTorch, which is in no extra of hierax: pip install torch") from error
    takes_batch = accepts(function, 3)

    def upper(x: PyTree, y: PyTree, zeta: PyTree) -> Scalar:
        leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, (x, y)))
        data, of_data = jax.tree.flatten(jax.tree.map(jnp.asarray, zeta))

        def call(variables: list[Tensor], batch: list[Tensor]) -> Tensor:
            at, below = jax.tree.unflatten(structure, variables)
            return function(at, below, *([jax.tree.unflatten(of_data, batch)] if takes_batch else []))

        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):  # what fails later fails inside of XLA
            _try_out(function, call, leaves, data)
        return _differentiable(call, dtype_of(leaves))(leaves, [jax.lax.stop_gradient(one) for one in data])

    return upper


# -- in JAX -----------------------------------------------------------------------------------------------------------


def _differentiable(call: Call, dtype: jnp.dtype) -> Callable[[Arrays, Arrays], Scalar]:
    """The function of arrays with its rules for tangents."""
    number = jax.ShapeDtypeStruct((), dtype)

    def on_host(what: Callable[..., PyTree], result: PyTree, *args: PyTree) -> PyTree:
        return jax.pure_callback(functools.partial(what, call), result, *args, vmap_method="sequential")

    @jax.custom_jvp
    def value(leaves: Arrays, data: Arrays) -> Scalar:
        return on_host(_value, number, leaves, data)

    @jax.custom_jvp
    def value_and_slope(leaves: Arrays, data: Arrays) -> tuple[Scalar, Arrays]:
        return on_host(_value_and_slope, (number, leaves), leaves, data)

    @value.defjvp
    def value_rule(primals: tuple[PyTree, ...], tangents: tuple[PyTree, ...]) -> tuple[Scalar, Scalar]:
        found, slope = value_and_slope(*primals)
        return found, along(slope, tangents[0])

    @value_and_slope.defjvp
    def slope_rule(primals: tuple[PyTree, ...], tangents: tuple[PyTree, ...]) -> tuple[Valued, Valued]:
        found, slope = value_and_slope(*primals)
        bend = on_host(_curvature_times, primals[0], *primals, tangents[0])
        return (found, slope), (along(slope, tangents[0]), bend)

    def along(slope: Arrays, tangent: Arrays) -> Scalar:
        return functools.reduce(jnp.add, [jnp.vdot(a, b).astype(dtype) for a, b in zip(slope, tangent, strict=True)])

    return value


# -- in torch ---------------------------------------------------------------------------------------------------------


def _value(call: Call, leaves: Arrays, data: Arrays) -> np.ndarray:
    return _number(call([_tensor(leaf) for leaf in leaves], [_tensor(one) for one in data]), leaves)


def _value_and_slope(call: Call, leaves: Arrays, data: Arrays) -> tuple[np.ndarray, list[np.ndarray]]:
    with torch.enable_grad():
        variables, found = _followed(call, leaves, data)
        slope = torch.autograd.grad(found, variables, allow_unused=True)
    return _number(found, leaves), [_like(part, leaf) for part, leaf in zip(slope, leaves, strict=True)]


def _curvature_times(call: Call, leaves: Arrays, data: Arrays, tangents: Arrays) -> list[np.ndarray]:
    """The Hessian times the tangents: the gradient of <grad F, tangents>."""
    with torch.enable_grad():
        variables, found = _followed(call, leaves, data)
        slope = torch.autograd.grad(found, variables, allow_unused=True, create_graph=True)
        pairs = zip(slope, tangents, strict=True)
        terms = [(part * _tensor(tangent)).sum() for part, tangent in pairs if part is not None and part.requires_grad]
        if not terms:  # linear: nothing left to differentiate
            return [np.zeros_like(np.asarray(leaf)) for leaf in leaves]
        bend = torch.autograd.grad(functools.reduce(lambda a, b: a + b, terms), variables, allow_unused=True)
    return [_like(part, leaf) for part, leaf in zip(bend, leaves, strict=True)]


def _followed(call: Call, leaves: Arrays, data: Arrays) -> tuple[list[Tensor], Tensor]:
    """Tensors that autograd follows, and the value at them as a tensor without axes."""
    variables = [_tensor(leaf).requires_grad_(True) for leaf in leaves]
    return variables, call(variables, [_tensor(one) for one in data]).sum()


def _tensor(array: Array) -> Tensor:
    return torch.tensor(np.asarray(array))  # a copy: what JAX hands over must not be written to


def _numbers(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.detach().cpu().numpy())


def _like(part: Tensor | None, leaf: Array) -> np.ndarray:
    """A gradient as JAX expects it; zero where the function does not depend on the variable."""
    like = np.asarray(leaf)
    return np.zeros_like(like) if part is None else _numbers(part).astype(like.dtype).reshape(like.shape)


def _number(tensor: Tensor, leaves: Arrays) -> np.ndarray:
    """A value in the widest precision of the variables."""
    return np.asarray(_numbers(tensor), np.result_type(*[np.asarray(leaf).dtype for leaf in leaves])).reshape(())


def _try_out(function: Callable[..., Tensor], call: Call, leaves: Arrays, data: Arrays) -> None:
    """Call the function with numbers, and refuse what would only fail, or mislead, inside of a compiled program."""
    name = getattr(function, "__name__", type(function).__name__)

    def numbers(array: Array) -> Tensor:  # ones; of whole numbers, which may be indices, zeros
        fill = np.ones if np.issubdtype(array.dtype, np.floating) else np.zeros
        return torch.tensor(fill(array.shape, array.dtype))

    variables = [numbers(leaf).requires_grad_(True) for leaf in leaves]
    batch = [numbers(one) for one in data]
    try:
        with torch.enable_grad():
            found, again = call(variables, batch), call(variables, batch)
    except Exception as error:
        kinds = ", ".join(sorted({str(leaf.dtype) for leaf in leaves}))
        hint = f" {PRECISION}" if any(word in str(error).lower() for word in ("dtype", "scalar type", "double")) else ""
        raise InputError(
            f"from_torch: {name} failed with tensors of shapes {[leaf.shape for leaf in leaves]} in {kinds}: "
            f"{type(error).__name__}: {error}{hint}"
        ) from error
    if not torch.is_tensor(found) or found.numel() != 1:
        shape = f"a tensor of shape {tuple(found.shape)}" if torch.is_tensor(found) else type(found).__name__
        raise InputError(f"from_torch: {name} must return a tensor with one entry, got {shape}; take its mean or sum.")
    if not found.requires_grad:
        raise InputError(
            f"from_torch: what {name} returns does not depend on x or y in a way that torch's autograd follows. Leave "
            "out .detach(), .item(), .numpy() and torch.no_grad()."
        )
    if not np.array_equal(_numbers(found), _numbers(again), equal_nan=True):
        raise InputError(
            f"from_torch: {name} gives different values for the same arguments. Put modules with dropout or batch "
            "normalisation into model.eval(), and give samples as zeta."
        )
