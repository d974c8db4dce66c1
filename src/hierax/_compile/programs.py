"""How user functions become compiled programs: tracing, hoisting of closed-over arrays, the cache.

A fresh lambda would be retraced and recompiled on every call, and the arrays it closes over would become constants of
the compiled program: folded at compile time, and alive as long as the program. So each user function is traced once
per signature (shapes and dtypes of its arguments) into a jaxpr; the arrays it closes over are lifted out and passed as
arguments. Programs are kept in a bounded cache keyed on the jaxprs' text, so that problems of equal form share one.

Two kinds of function cannot be told apart by their text. Those with host callbacks (addresses are masked in the text)
are told apart by identity. Those whose custom derivative rules, or jitted parts deep inside loops, close over arrays
that tracing does not lift share with nobody, not even with their own next trace.
"""

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hierax._base.errors import InputError
from hierax._problem.problem import Problem
from hierax._problem.samples import Fed, Sampler, Stream

CACHE_SIZE = 64
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
FUNCTIONS = ("upper", "lower", "constraints", "equalities", "upper_constraints")


class MissingTrace(Exception):
    """A program called a user function with a signature that has not been traced yet."""

    def __init__(self, name: str, args: tuple) -> None:
        super().__init__(name)
        self.name, self.args_ = name, args


class Trace:
    """One user function traced at one signature; equal to another where the compiled code would be."""

    def __init__(self, jaxpr: Any, out_tree: Any, key: Hashable) -> None:
        self.jaxpr, self.out_tree, self.key = jaxpr, out_tree, key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self.key == other.key


class Hoisted(eqx.Module):
    """A user function as its traces: arrays it closed over are data, everything else is static."""

    arrays: tuple[tuple[Any, ...], ...]
    name: str = eqx.field(static=True)
    table: tuple[tuple[Hashable, Trace], ...] = eqx.field(static=True)

    def __call__(self, *args: PyTree) -> PyTree:
        """Evaluate the trace that fits the arguments."""
        signature, leaves = _signature(args)
        for (known, trace), arrays in zip(self.table, self.arrays, strict=True):
            if known == signature:
                flat = jex.jaxpr_as_fun(jex.ClosedJaxpr(trace.jaxpr, arrays))(*leaves)
                return jax.tree.unflatten(trace.out_tree, flat)
        raise MissingTrace(self.name, _abstract(args))


class Bound:
    """A problem made ready for compilation at given variables: the host's side of the hoisting.

    `problem` is the pytree that programs take as an argument; `run` compiles and calls them.
    """

    def __init__(self, problem: Problem, x_rest: PyTree, y_rest: PyTree) -> None:
        self._functions: dict[str, tuple[Callable, Callable]] = {}  # as called here, and as the user gave it
        self._known: dict[str, dict[Hashable, tuple[Trace, tuple]]] = {}
        self.compile_seconds = 0.0

        def whole(function: Callable) -> Callable:
            return lambda x, y, *batch: function(eqx.combine(x, x_rest), eqx.combine(y, y_rest), *batch)

        for name in FUNCTIONS:
            self._add(name, whole(getattr(problem, name)), getattr(problem, name))
        sources: dict[str, Any] = {}
        for name in ("zeta", "xi"):
            source = getattr(problem, name)
            if isinstance(source, Sampler):
                self._add(f"{name}.draw", source.draw, source.draw)
            sources[name] = source
        self._sources = sources
        self._sets = {name: getattr(problem, name) for name in ("x_set", "y_set")}

    def _add(self, name: str, function: Callable, given: Callable) -> None:
        self._functions[name] = (function, given)
        self._known[name] = {}

    def feed(self, name: str, batch: int) -> None:
        """Mark a source as fed by the host with batches of the given size."""
        self._sources[name] = Fed(batch)

    @property
    def problem(self) -> Problem:
        """The problem with every function replaced by its traces so far."""
        sources: dict[str, Any] = {
            name: Sampler(self._hoisted(f"{name}.draw"), source.exact) if isinstance(source, Sampler) else source
            for name, source in self._sources.items()
            if not isinstance(source, Stream)
        }
        functions: dict[str, Any] = {name: self._hoisted(name) for name in FUNCTIONS}
        return Problem(**functions, **self._sets, **sources)

    def _hoisted(self, name: str) -> Hoisted:
        known = self._known[name]
        table = tuple((signature, trace) for signature, (trace, _) in known.items())
        return Hoisted(tuple(arrays for _, arrays in known.values()), name, table)

    def trace(self, name: str, args: tuple) -> PyTree:
        """Trace a function at a signature, once; returns the shapes of its output."""
        signature, _ = _signature(args)
        if signature not in self._known[name]:
            self._known[name][signature] = _trace(name, *self._functions[name], args)
        trace, _ = self._known[name][signature]
        return jax.tree.unflatten(trace.out_tree, trace.jaxpr.outvars)

    def run(
        self,
        name: str,
        function: Callable,
        *args: PyTree,
        static: Hashable = (),
        donate: bool = False,
        quick: bool = False,
    ) -> PyTree:
        """Call `function(problem, *args)` compiled; with `donate` the first of args may be overwritten.

        `quick` spends a quarter of the time on compiling, for code that takes two to three times as long to run.

        `function` must be determined by `name` and `static`, the problem and the arguments (no hidden inputs). A call
        that meets a user function at a new signature is started again once that is traced.
        """
        call = _taken_apart(name, (self.problem, *args), static, donate)
        form, needed = call.key, list(_traces_needed.get(call.key, ()))
        for missing in needed:
            self.trace(*missing)
        while True:
            call = _taken_apart(name, (self.problem, *args), static, donate)
            try:
                result, seconds = _cached_call(function, call, donate, quick)
            except MissingTrace as missing:
                self.trace(missing.name, missing.args_)
                needed.append((missing.name, missing.args_))
            else:
                self.compile_seconds += seconds
                _remember(_traces_needed, form, tuple(needed))
                return result

    def ready(self, name: str, function: Callable, *args: PyTree, static: Hashable = ()) -> Callable[..., PyTree]:
        """The program of `run`, compiled quickly, as a function of arrays shaped like `args`, for many short calls."""
        self.run(name, function, *args, static=static, quick=True)
        call = _taken_apart(name, (self.problem, *args), static, False)
        compiled, other = _programs[call.key]
        own = call.rest[: len(jax.tree.leaves(self.problem, is_leaf=_is_number))]
        whole = not jax.tree.leaves(other)

        def quick(*args: PyTree) -> PyTree:
            result = compiled([], [*own, *jax.tree.leaves(args)])
            return result if whole else eqx.combine(result, other)

        return quick


_programs: OrderedDict[Hashable, Any] = OrderedDict()
# Signatures that a program of this form turned out to need: the next problem of the form is traced there at once.
_traces_needed: OrderedDict[Hashable, tuple] = OrderedDict()


def _remember(cache: OrderedDict, key: Hashable, value: Any) -> None:
    cache[key] = value
    while len(cache) > CACHE_SIZE:
        cache.popitem(last=False)


def compiled_programs() -> int:
    """How many programs the cache holds."""
    return len(_programs)


def forget_all() -> None:
    """Drop every compiled program."""
    _programs.clear()


class _Call(NamedTuple):
    """A call taken apart: the key of its program, and the arrays to call it with."""

    key: Hashable
    given: list  # arrays of the donated argument
    rest: list
    rebuild: Callable[[list, list], tuple]


def _taken_apart(name: str, args: tuple, static: Hashable, donate: bool) -> _Call:
    leaves, treedef = jax.tree.flatten(args, is_leaf=_is_number)
    dynamic = [_is_number(leaf) or eqx.is_array(leaf) or isinstance(leaf, np.ndarray) for leaf in leaves]
    arrays = [_strong(leaf) if flag else None for leaf, flag in zip(leaves, dynamic, strict=True)]
    fixed = tuple(None if flag else leaf for leaf, flag in zip(leaves, dynamic, strict=True))
    avals = tuple(None if a is None else (a.shape, a.dtype) for a in arrays)
    tables = tuple(node.table for node in jax.tree.leaves(args[0], is_leaf=_is_hoisted) if _is_hoisted(node))
    precision = jnp.result_type(float)  # a program compiled without x64 is another one
    key = (tables, name, static, treedef, fixed, avals, donate, precision)
    first = len(jax.tree.leaves(args[0], is_leaf=_is_number))
    last = first + (len(jax.tree.leaves(args[1], is_leaf=_is_number)) if donate else 0)

    def rebuild(given: list, rest: list) -> tuple:
        every = rest[:first] + given + rest[first:]
        joined = [part if flag else whole for part, whole, flag in zip(every, fixed, dynamic, strict=True)]
        return jax.tree.unflatten(treedef, joined)

    return _Call(key, arrays[first:last], arrays[:first] + arrays[last:], rebuild)


def _cached_call(function: Callable, call: _Call, donate: bool, quick: bool) -> tuple[PyTree, float]:
    """The result, and the seconds spent compiling."""
    seconds = 0.0
    if call.key not in _programs:
        begin = time.perf_counter()
        others: list[PyTree] = []

        def flat(given: list, rest: list) -> PyTree:
            result, other = eqx.partition(function(*call.rebuild(given, rest)), eqx.is_array)
            others.append(other)
            return result

        lowered = jax.jit(flat, donate_argnums=(0,) if donate else ()).lower(call.given, call.rest)
        compiled = _quickly(lowered) if quick else lowered.compile()
        _remember(_programs, call.key, (compiled, others[-1]))
        seconds = time.perf_counter() - begin
    _programs.move_to_end(call.key)
    compiled, other = _programs[call.key]
    return eqx.combine(compiled(call.given, call.rest), other), seconds


def _quickly(lowered: Any) -> Any:
    """Compiled without optimisation, where this XLA knows how."""
    try:
        return lowered.compile(compiler_options=QUICK)
    except Exception as error:
        if not any(name in str(error) for name in QUICK):
            raise
        return lowered.compile()


def _strong(leaf: Any) -> Any:
    """An array whose dtype does not yield to others: a Python number and an array must give the same program."""
    return (
        leaf if isinstance(leaf, jax.Array) and not getattr(leaf, "weak_type", False) else jnp.asarray(np.asarray(leaf))
    )


def _is_hoisted(node: Any) -> bool:
    return isinstance(node, Hoisted)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, float | complex | np.generic) or (isinstance(leaf, int) and not isinstance(leaf, bool))


def _signature(args: tuple) -> tuple[Hashable, list]:
    """What a trace depends on, and the array leaves it takes; Python numbers (a batch size) are static."""
    leaves, treedef = jax.tree.flatten(args)
    arrays = [leaf for leaf in leaves if not isinstance(leaf, int)]
    return (treedef, tuple(leaf if isinstance(leaf, int) else (leaf.shape, leaf.dtype) for leaf in leaves)), arrays


def _abstract(args: tuple) -> tuple:
    def shape(leaf: Any) -> Any:
        return leaf if isinstance(leaf, int) else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)

    return jax.tree.map(shape, args)


def _trace(name: str, function: Callable, identity: Callable, args: tuple) -> tuple[Trace, tuple]:
    leaves, treedef = jax.tree.flatten(args)
    place = [i for i, leaf in enumerate(leaves) if not isinstance(leaf, int)]

    def flat(*arrays: Any) -> PyTree:
        every = list(leaves)
        for i, array in zip(place, arrays, strict=True):
            every[i] = array
        return function(*jax.tree.unflatten(treedef, every))

    specs = [jax.ShapeDtypeStruct(leaves[i].shape, leaves[i].dtype) for i in place]
    try:
        closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*specs)
        if _inner_constants(closed.jaxpr):
            closed = jax.make_jaxpr(lambda *a: _inlined(closed.jaxpr, closed.consts, a))(*specs)
    except Exception as error:
        called = ", ".join(str(jax.tree.map(lambda a: getattr(a, "shape", a), arg)) for arg in args)
        raise InputError(
            f"{name} failed when it was traced with arguments of shapes ({called}): {type(error).__name__}: {error}"
        ) from error
    arrays = tuple(jnp.asarray(const) for const in closed.consts)
    out_tree = jax.tree.structure(shapes)
    key = (name, _identity(closed.jaxpr, arrays, specs, identity), str(closed.jaxpr), out_tree)
    return Trace(closed.jaxpr, out_tree, key), arrays


class _Identity:
    """Stands for a function, or for one trace of it, that is equal to nothing else."""


_identities: weakref.WeakKeyDictionary[Callable, _Identity] = weakref.WeakKeyDictionary()


def _identity(jaxpr: Any, arrays: tuple, specs: list, function: Callable) -> _Identity | str:
    """What tells a function apart beyond its jaxpr's text.

    The text of its custom rules; itself, where there are host callbacks; or this very trace, where arrays are hidden
    that the next trace may not share.
    """
    rules = _rules(jaxpr, arrays, specs)
    if rules is not None and "0xX" not in str(jaxpr):
        return rules
    try:
        if rules is not None and function in _identities:
            return _identities[function]
        identity = _Identity()
        weakref.finalize(function, _forget, identity)
        if rules is not None:
            _identities[function] = identity
    except TypeError:  # neither hashable nor weakly referable: the programs go when the cache drops them
        identity = _Identity()
    return identity


def _forget(identity: _Identity) -> None:
    for cache in (_programs, _traces_needed):
        for key in [key for key in cache if identity in _identities_in(key)]:
            del cache[key]


def _identities_in(key: Any) -> list[_Identity]:
    traces = [trace for hoisted in key[0] for _, trace in hoisted]
    return [trace.key[1] for trace in traces if isinstance(trace.key[1], _Identity)]


def _rules(jaxpr: Any, arrays: tuple, specs: list) -> str | None:
    """The text of the custom derivative rules in a jaxpr; None where they, or nested jaxprs, close over arrays.

    Custom rules are Python functions that run later. Differentiating once shows what they would compute, and any array
    found then is one that they close over.
    """
    if _inner_constants(jaxpr):
        return None
    text = str(jaxpr)
    if "custom_jvp_call" not in text and "custom_vjp_call" not in text:
        return ""
    inexact = [i for i, spec in enumerate(specs) if jnp.issubdtype(spec.dtype, jnp.inexact)]

    def derivative(arrays: tuple, leaves: list) -> Any:
        def total(parts: list) -> Any:
            every = list(leaves)
            for i, part in zip(inexact, parts, strict=True):
                every[i] = part
            outputs = jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, arrays))(*every)
            return sum(jnp.sum(out) for out in outputs if jnp.issubdtype(out.dtype, jnp.inexact))

        return jax.grad(total)([leaves[i] for i in inexact])

    differentiated = jax.make_jaxpr(derivative)(arrays, specs)
    if differentiated.consts or _inner_constants(differentiated.jaxpr):
        return None
    return str(differentiated)


def _inner_constants(jaxpr: Any) -> bool:
    """Whether a jaxpr nested in this one holds arrays of its own."""
    for equation in jaxpr.eqns:
        for nested in jex.jaxprs_in_params(equation.params):
            if _inner_constants(nested):
                return True
        for value in equation.params.values():
            for closed in value if isinstance(value, tuple | list) else (value,):
                if isinstance(closed, jex.ClosedJaxpr) and closed.consts:
                    return True
    return False


def _inlined(jaxpr: Any, constants: list, args: tuple) -> list:
    """Evaluate a jaxpr with its jitted calls inlined, so that the arrays they close over surface."""
    values = dict(zip(jaxpr.constvars, constants, strict=True)) | dict(zip(jaxpr.invars, args, strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, jex.Literal) else values[variable]

    for equation in jaxpr.eqns:
        inputs = [read(variable) for variable in equation.invars]
        if equation.primitive.name in ("jit", "pjit"):
            inner = equation.params["jaxpr"]
            outputs = _inlined(inner.jaxpr, inner.consts, tuple(inputs))
        else:
            outputs = _evaluate(jaxpr, equation, inputs)
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _evaluate(jaxpr: Any, equation: Any, inputs: list) -> list:
    """Evaluate a single equation, as a jaxpr of its own."""
    variables = {v: value for v, value in zip(equation.invars, inputs, strict=True) if not isinstance(v, jex.Literal)}
    alone = jaxpr.replace(
        constvars=[],
        invars=list(variables),
        outvars=equation.outvars,
        eqns=[equation],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return jex.jaxpr_as_fun(jex.ClosedJaxpr(alone, ()))(*variables.values())
