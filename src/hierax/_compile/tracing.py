"""User functions as jaxprs: how a function is traced at a signature, and what makes two traces the same program.

The arrays that a function closes over are lifted out of its trace and passed as arguments (`Hoisted`), so that they are
neither folded at compile time nor kept alive by compiled programs. Traces are compared by their text. Numbers that a
function closes over, Python's or NumPy's, are literals of its trace. They are lifted too, packed into an array for each
dtype, so that a fresh lambda for every value compiles once.

Two kinds of function cannot be told apart by their text. Those with host callbacks (addresses are masked in the text)
are told apart by identity. Those whose custom derivative rules, or jitted parts deep inside loops, close over arrays
that tracing does not lift share with nobody, not even with their own next trace.
"""

import functools
import inspect
import itertools
import weakref
from collections.abc import Callable, Hashable

import equinox as eqx
import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.errors import InputError
from hierax._base.jaxprs import nested_constants
from hierax._base.trees import on_device, shape_of
from hierax._compile.placement import Placement

Function = Callable[..., PyTree]


def cure(name: str, function: Function, arguments: int, error: Exception) -> str:
    """What to do, as the beginning of a sentence that ends with the error itself; empty where the error says it all."""
    if isinstance(error, TypeError) and not accepts(function, arguments):
        sample = {"upper": ", zeta", "lower": ", xi"}.get(name, "")
        call = "draw(key, n)" if name.endswith(".draw") else f"{name}(x, y{sample})"
        batch = " (the batch is None where nothing is sampled)" if arguments == 3 else ""
        return f"it is always called as {call}, so it must take {arguments} arguments{batch}. "
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return (
            "it branches on a value (if, while, and, or, min, max): use jnp.where, jnp.minimum, jnp.maximum or "
            "jax.lax.cond. "
        )
    if isinstance(error, jax.errors.TracerArrayConversionError | jax.errors.ConcretizationTypeError):
        return (
            "it hands a traced value to NumPy, or to float() or int(), which need numbers: use jax.numpy in the place "
            "of numpy (import jax.numpy as jnp), and keep results as arrays. "
        )
    return ""


def accepts(function: Function, arguments: int) -> bool:
    """Whether the function takes that number of arguments, as far as its signature tells."""
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError)  # no signature to look at
    return True


# Operations on numbers that are what they are whether an operand is known or not; the others keep their literals.
# fmt: off
NUMERIC = frozenset((
    "add", "add_any", "atan2", "broadcast_in_dim", "clamp", "convert_element_type", "div", "dot_general", "eq", "ge",
    "gt", "jit", "le", "lt", "max", "min", "mul", "ne", "pjit", "pow", "rem", "select_n", "sub",
))
# fmt: on


class Keyed:
    """Equal to what has the same key and is of the same class; the hash of the key, of many parts, is computed once."""

    def __init__(self, key: Hashable) -> None:
        self.key, self._hash = key, hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Keyed) and type(self) is type(other) and self.key == other.key)


class Place(Keyed):
    """Where a user function is traced: its name, and the shapes and dtypes of its arguments."""

    def __init__(self, name: str, args: tuple[PyTree, ...]) -> None:
        self.name, self.signature = name, signature_of(args)[0]
        self.args = jax.tree.map(lambda leaf: leaf if isinstance(leaf, int) else shape_of(leaf), args)
        super().__init__((name, self.signature))


class MissingTrace(Exception):
    """A program called a user function at a place where it has not been traced yet."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.name)
        self.place = place


class Trace(Keyed):
    """One user function traced at one signature; equal to another where the compiled code would be.

    `numbers` are the dtypes of the literals that were lifted out: the last constants of the jaxpr.
    """

    def __init__(
        self, jaxpr: jex.Jaxpr, out_tree: jax.tree_util.PyTreeDef, key: Hashable, numbers: list[jnp.dtype]
    ) -> None:
        super().__init__(key)
        self.jaxpr, self.out_tree, self.numbers = jaxpr, out_tree, numbers

    @property
    def returned(self) -> PyTree:
        """What the function returns, with variables of the jaxpr in the place of arrays."""
        return jax.tree.unflatten(self.out_tree, self.jaxpr.outvars)

    def __call__(self, constants: tuple[Array, ...], leaves: list[PyTree]) -> PyTree:
        """Evaluate it; `constants` are the arrays that it closes over and, at the end, its numbers one by one."""
        return jax.tree.unflatten(self.out_tree, jex.jaxpr_as_fun(jex.ClosedJaxpr(self.jaxpr, constants))(*leaves))

    def unpacked(self, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """The constants from the arrays that it closes over and, at the end, its packed numbers."""
        kinds = list(dict.fromkeys(self.numbers))
        own = len(arrays) - len(kinds)
        packs = dict(zip(kinds, arrays[own:], strict=True))
        places = {kind: itertools.count() for kind in kinds}
        pairs = [(packs[kind], next(places[kind])) for kind in self.numbers]
        return (*arrays[:own], *(jax.lax.index_in_dim(pack, place, keepdims=False) for pack, place in pairs))


class Hoisted(eqx.Module):
    """A user function as its traces: arrays it closed over are data, everything else is static.

    On a mesh (`placement`) a batch, its third argument, is spread over the devices. Programs take numbers `packed` and
    unpack them once, at their beginning: a function is called dozens of times in a program.
    """

    arrays: tuple[tuple[Array, ...], ...]
    name: str = eqx.field(static=True)
    table: tuple[tuple[Hashable, Trace], ...] = eqx.field(static=True)
    placement: Placement | None = eqx.field(static=True, default=None)
    packed: bool = eqx.field(static=True, default=True)

    def unpacked(self) -> "Hoisted":
        """The same with its numbers one by one."""
        pairs = zip(self.table, self.arrays, strict=True)
        apart = tuple(trace.unpacked(arrays) for (_, trace), arrays in pairs)
        return Hoisted(apart, self.name, self.table, self.placement, packed=False)

    def __call__(self, *args: PyTree) -> PyTree:
        """Evaluate the trace that fits the arguments."""
        if self.placement is not None:
            args = (*args[:2], *(self.placement.batch(batch) for batch in args[2:]))
        signature, leaves = signature_of(args)
        for (known, trace), arrays in zip(self.table, self.arrays, strict=True):
            if known == signature:
                return trace(trace.unpacked(arrays) if self.packed else arrays, leaves)
        raise MissingTrace(Place(self.name, args))


def unpacked(tree: PyTree) -> PyTree:
    """A tree of a program's arguments with the numbers of its functions one by one."""
    return jax.tree.map(lambda one: one.unpacked() if _is_hoisted(one) else one, tree, is_leaf=_is_hoisted)


def tables_of(tree: PyTree) -> tuple[PyTree, ...]:
    """The traces of every user function in a tree."""
    return tuple(node.table for node in jax.tree.leaves(tree, is_leaf=_is_hoisted) if _is_hoisted(node))


def _is_hoisted(node: object) -> bool:
    return isinstance(node, Hoisted)


def signature_of(args: tuple[PyTree, ...]) -> tuple[Hashable, list[PyTree]]:
    """What a trace depends on, and the array leaves it takes; Python numbers (a batch size) are static."""
    leaves, treedef = jax.tree.flatten(args)
    arrays = [leaf for leaf in leaves if not isinstance(leaf, int)]
    return (treedef, tuple(leaf if isinstance(leaf, int) else (leaf.shape, leaf.dtype) for leaf in leaves)), arrays


def trace_function(
    name: str, function: Function, given: Function, args: tuple[PyTree, ...], forget: Callable[["Identity"], None]
) -> tuple[Trace, tuple[PyTree, ...]]:
    """The trace of a function at the signature of `args`, and the arrays that it closes over.

    `given` is the function as the user wrote it: where it is told apart by identity, `forget` is called at its end.
    """
    leaves, treedef = jax.tree.flatten(args)
    place = [i for i, leaf in enumerate(leaves) if not isinstance(leaf, int)]

    def of_arrays(*arrays: Array) -> PyTree:
        every = list(leaves)
        for i, array in zip(place, arrays, strict=True):
            every[i] = array
        return function(*jax.tree.unflatten(treedef, every))

    specs = [jax.ShapeDtypeStruct(leaves[i].shape, leaves[i].dtype) for i in place]
    try:
        closed, shapes = jax.make_jaxpr(of_arrays, return_shape=True)(*specs)
        if nested_constants(closed.jaxpr):
            closed = jax.make_jaxpr(jex.jaxpr_as_fun(_inlined(closed)))(*specs)
    except Exception as error:
        called = ", ".join(str(jax.tree.map(lambda a: getattr(a, "shape", a), arg)) for arg in args)
        raise InputError(
            f"{name} failed when it was traced with arguments of shapes ({called}): "
            f"{cure(name, given, len(args), error)}{type(error).__name__}: {error}"
        ) from error
    jaxpr, numbers = _without_numbers(closed.jaxpr)
    arrays = (*(c if isinstance(c, jax.Array) else on_device(c) for c in closed.consts), *_packed(numbers))
    dtypes, out_tree = [number.dtype for number in numbers], jax.tree.structure(shapes)
    text = str(jaxpr)
    identity = _identity(jaxpr, text, specs, given, forget)
    return Trace(jaxpr, out_tree, (name, identity, text, out_tree), dtypes), arrays


def _without_numbers(jaxpr: jex.Jaxpr) -> tuple[jex.Jaxpr, list[np.ndarray]]:
    """The jaxpr with its floating-point literals as further constants, and their values.

    Literals of nested jaxprs (inside of loops, branches and jitted parts) stay where they are.
    """
    numbers: list[np.ndarray] = []
    variables: list[jex.Var] = []

    def lifted(variable: jex.Var | jex.Literal) -> jex.Var | jex.Literal:
        if not isinstance(variable, jex.Literal):
            return variable
        number = np.asarray(variable.val, getattr(variable.aval, "dtype", None))
        if not jnp.issubdtype(number.dtype, jnp.floating):
            return variable
        numbers.append(number)
        variables.append(jex.Var(jax.core.ShapedArray((), number.dtype)))
        return variables[-1]

    def without(equation: jex.JaxprEqn) -> jex.JaxprEqn:
        numeric = equation.primitive.name in NUMERIC
        return equation.replace(invars=[lifted(v) for v in equation.invars]) if numeric else equation

    equations = list(map(without, jaxpr.eqns))
    return jaxpr.replace(constvars=[*jaxpr.constvars, *variables], eqns=equations), numbers


def _packed(numbers: list[np.ndarray]) -> list[Array]:
    """Numbers of equal dtype as one array: an argument more costs a call more than a slice."""
    dtypes = dict.fromkeys(number.dtype for number in numbers)
    return [on_device(np.stack([number for number in numbers if number.dtype == dtype])) for dtype in dtypes]


class Identity:
    """Stands for a function, or for one trace of it, that is equal to nothing else."""


_identities: weakref.WeakKeyDictionary[Function, Identity] = weakref.WeakKeyDictionary()


def _identity(
    jaxpr: jex.Jaxpr, text: str, specs: list[PyTree], function: Function, forget: Callable[[Identity], None]
) -> Identity | str:
    """What tells a function apart beyond its jaxpr's text.

    The text of its custom rules; itself, where there are host callbacks; or this very trace, where arrays are hidden
    that the next trace may not share.
    """
    rules = _rules(jaxpr, text, specs)
    if rules is not None and "0xX" not in text:
        return rules
    try:
        if rules is not None and function in _identities:
            return _identities[function]
        identity = Identity()
        weakref.finalize(function, forget, identity)
        if rules is not None:
            _identities[function] = identity
    except TypeError:  # neither hashable nor weakly referable: the programs go when the cache drops them
        identity = Identity()
    return identity


def _rules(jaxpr: jex.Jaxpr, text: str, specs: list[PyTree]) -> str | None:
    """The text of the custom derivative rules in a jaxpr; None where they, or nested jaxprs, close over arrays.

    Custom rules are Python functions that run later. Differentiating once shows what they would compute, and any array
    found then is one that they close over.
    """
    if nested_constants(jaxpr):
        return None
    if "custom_jvp_call" not in text and "custom_vjp_call" not in text:
        return ""
    inexact = [i for i, spec in enumerate(specs) if jnp.issubdtype(spec.dtype, jnp.inexact)]

    def derivative(arrays: list[PyTree], leaves: list[PyTree]) -> list[PyTree]:
        def total(parts: list[PyTree]) -> Array:
            every = list(leaves)
            for i, part in zip(inexact, parts, strict=True):
                every[i] = part
            outputs = jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, arrays))(*every)
            sums = [jnp.sum(out) for out in outputs if jnp.issubdtype(out.dtype, jnp.inexact)]
            return functools.reduce(jnp.add, sums)

        return jax.grad(total)([leaves[i] for i in inexact])

    inputs = [*jaxpr.constvars, *jaxpr.invars]  # JAX 0.12: those without a value are all among the latter
    differentiated = jax.make_jaxpr(derivative)([_shape(v) for v in inputs[: len(inputs) - len(specs)]], specs)
    if differentiated.consts or nested_constants(differentiated.jaxpr):
        return None
    return str(differentiated)


def _shape(variable: jex.Var) -> jax.ShapeDtypeStruct:
    assert isinstance(variable.aval, jax.core.ShapedArray)
    return jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype)


def _inlined(closed: jex.ClosedJaxpr) -> jex.ClosedJaxpr:
    """A jaxpr whose jitted calls are inlined where it is traced again, so that the arrays they close over surface."""

    def inlined(equation: jex.JaxprEqn) -> jex.JaxprEqn:
        if equation.primitive.name not in ("jit", "pjit"):
            return equation
        inner = _inlined(equation.params["jaxpr"])
        return equation.replace(params={**equation.params, "inline": True, "jaxpr": inner})

    return jex.ClosedJaxpr(closed.jaxpr.replace(eqns=[inlined(one) for one in closed.jaxpr.eqns]), closed.consts)
