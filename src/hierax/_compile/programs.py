"""Compiled programs: a problem made ready at given variables (`Bound`), and the cache shared by problems of equal form.

A fresh lambda would be retraced and recompiled on every call. So each user function is traced once per signature
(shapes and dtypes of its arguments, see `hierax._compile.tracing`), and programs are kept in a bounded cache keyed on
the traces' text. A program compiled without x64 is another one: precision is part of the key.
"""

import gc
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.stages import Compiled, Lowered
from jaxtyping import Array, ArrayLike, PyTree

from hierax._base.trees import Infinite, on_device
from hierax._compile.placement import Placement
from hierax._compile.tracing import Hoisted, Identity, MissingTrace, Trace, signature_of, trace_function
from hierax._problem.files import FiniteFiles
from hierax._problem.problem import Problem, nothing
from hierax._problem.samples import AbstractSource, Sampler, Stream

CACHE_SIZE = 64
Options = dict[str, str | bool]
# In one piece: cutting a small program up for several threads takes longer than compiling it (the toy's first call with
# SALVF: 3.9 instead of 4.6 CPU seconds).
_SMALL: Options = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": "1"}
QUICK: Options = {"xla_backend_optimization_level": "0", **_SMALL}
# Two thirds of the time to compile, and as fast where little is computed at once: loops over long arrays are not.
LIGHT: Options = {"xla_backend_optimization_level": "1", **_SMALL}
LIGHT_NUMBERS = 100_000  # in the arguments of a program, up to which it is compiled with LIGHT
FUNCTIONS = ("upper", "lower", "constraints", "equalities", "upper_constraints")


class Bound:
    """A problem made ready for compilation at given variables: the host's side of the hoisting.

    `problem` is the pytree that programs take as an argument; `run` compiles and calls them. With `mixed`, functions
    may combine arrays of different precision even where the user forbids it: it is us who change the precision then.
    With a `placement` programs run on all devices of its mesh.
    """

    def __init__(
        self,
        problem: Problem,
        x_rest: PyTree,
        y_rest: PyTree,
        mixed: bool = False,
        placement: Placement | None = None,
    ) -> None:
        self._mixed, self._placement = mixed, placement
        self._functions: dict[str, tuple[Callable, Callable]] = {}  # as called here, and as the user gave it
        self._known: dict[str, dict[Hashable, tuple[Trace, tuple]]] = {}
        self._problem: Problem | None = None  # as it is with the traces so far
        self._flat: dict[Hashable, _Flat] = {}  # the same, by precision
        self.compile_seconds = 0.0

        def whole(function: Callable) -> Callable:
            return lambda x, y, *batch: function(eqx.combine(x, x_rest), eqx.combine(y, y_rest), *batch)

        for name in FUNCTIONS:
            self._add(name, whole(getattr(problem, name)), getattr(problem, name))
        self._sources: dict[str, AbstractSource | FiniteFiles | Stream | None] = {
            "zeta": problem.zeta,
            "xi": problem.xi,
        }
        for name, source in self._sources.items():
            if isinstance(source, Sampler):
                self._add(f"{name}.draw", source.draw, source.draw)
        self._sets = {name: getattr(problem, name) for name in ("x_set", "y_set")}

    def _add(self, name: str, function: Callable, given: Callable) -> None:
        self._functions[name] = (function, given)
        self._known[name] = {}

    def replace_source(self, name: str, source: AbstractSource) -> None:
        """What programs see as zeta or xi: data that lie on a mesh, or what stands for a Stream."""
        self._sources[name] = source
        self._grown()

    def _grown(self) -> None:
        """The problem is another one from now on."""
        self._problem = None
        self._flat.clear()

    @property
    def problem(self) -> Problem:
        """The problem with every function replaced by its traces so far."""
        if self._problem is None:
            upper, lower, constraints, equalities, upper_constraints = map(self._hoisted, FUNCTIONS)
            zeta, xi = (self._source(name) for name in ("zeta", "xi"))
            sources = {"zeta": zeta, "xi": xi}
            self._problem = Problem(upper, lower, constraints, equalities, upper_constraints, **self._sets, **sources)
        return self._problem

    def _flattened(self) -> "_Flat":
        """The problem as programs take it, in the precision of now."""
        precision = _precision()
        if precision not in self._flat:
            self._flat[precision] = _flattened(self.problem, self._placement)
        return self._flat[precision]

    def _source(self, name: str) -> AbstractSource | None:
        """A source as programs see it; a Stream or files that the host has not been asked to feed are none."""
        source = self._sources[name]
        if isinstance(source, Sampler):
            return Sampler(self._hoisted(f"{name}.draw"), source.exact)
        return source if isinstance(source, AbstractSource) else None

    def _hoisted(self, name: str) -> Hoisted:
        known = self._known[name]
        table = tuple((signature, trace) for signature, (trace, _) in known.items())
        return Hoisted(tuple(arrays for _, arrays in known.values()), name, table, self._placement)

    def trace(self, name: str, args: tuple) -> PyTree:
        """Trace a function at a signature, once; returns the shapes of its output."""
        signature, _ = signature_of(args)
        if signature not in self._known[name] and self._functions[name][1] is nothing:
            with _lock:
                traced = _of_nothing.get((name, signature))
            if traced is None:
                traced = trace_function(name, *self._functions[name], args, _forget)
                with _lock:
                    _remember(_of_nothing, (name, signature), traced)
            self._known[name][signature] = traced
            self._grown()
        elif signature not in self._known[name]:
            self._grown()
            with jax.numpy_dtype_promotion("standard") if self._mixed else nullcontext():
                self._known[name][signature] = trace_function(name, *self._functions[name], args, _forget)
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

        def attempt(call: _Call) -> PyTree:
            result, seconds = _cached_call(function, call, donate, quick, self._placement)
            self.compile_seconds += seconds
            return result

        return self._with_traces(attempt, name, args, static, donate)

    def shapes(self, name: str, function: Callable, *args: PyTree, static: Hashable = ()) -> PyTree:
        """What `run` would return with shapes in the place of arrays; nothing is compiled."""
        return self._with_traces(lambda call: _shapes_of(function, call), name, args, static, False)

    def _with_traces(
        self, attempt: Callable[["_Call"], PyTree], name: str, args: tuple, static: Hashable, donate: bool
    ) -> PyTree:
        """The result of an attempt, started again until every function is traced wherever it is called."""
        call = _taken_apart(name, self._flattened(), args, static, donate, self._placement)
        with _lock:
            form, needed = call.key, list(_traces_needed.get(call.key, ()))
        while True:
            if needed:
                for missing in needed:
                    self.trace(*missing)
                call = _taken_apart(name, self._flattened(), args, static, donate, self._placement)
            try:
                result = attempt(call)
            except MissingTrace as missing:
                needed.append((missing.name, missing.args_))
            else:
                with _lock:
                    _remember(_traces_needed, form, tuple(needed))
                return result

    def ready(self, name: str, function: Callable, *args: PyTree, static: Hashable = ()) -> "Ready":
        """The program of `run`, compiled quickly, as a function of arrays shaped like `args`, for many short calls."""

        def attempt(call: _Call) -> Program:
            program, seconds = _program_of(function, call, False, True, self._placement)
            self.compile_seconds += seconds
            return program

        compiled, other = self._with_traces(attempt, name, args, static, False)
        return Ready(compiled, self._flattened().arrays, other)


class Ready:
    """A compiled program with its first arguments: the problem, and what else stays the same from call to call."""

    def __init__(self, compiled: Compiled, first: list, other: PyTree) -> None:
        self._compiled, self._first, self._other = compiled, first, other
        self._whole = not jax.tree.leaves(other)

    def __call__(self, *args: PyTree) -> PyTree:
        """The result for the other arguments."""
        result = self._compiled([], [*self._first, *jax.tree.leaves(args)])
        return result if self._whole else eqx.combine(result, self._other)

    def given(self, *args: PyTree) -> "Ready":
        """The same program with its next arguments fixed: handing over a NumPy array costs 4 us, every time."""
        arrays = [on_device(leaf) for leaf in jax.tree.leaves(args)]
        return Ready(self._compiled, [*self._first, *arrays], self._other)


Program = tuple[Compiled, PyTree]
"""What was compiled, and the parts of its result that are no arrays."""

# The caches belong to all threads: `_lock` is held by whoever looks into one or changes it, never while something is
# traced or compiled.
_lock = threading.RLock()  # of one thread: forgetting a function may come in between
_programs: OrderedDict[Hashable, Program] = OrderedDict()
_compiling: dict[Hashable, threading.Event] = {}  # what a thread compiles now; set when it is done
# Signatures that a program of this form turned out to need: the next problem of the form is traced there at once.
_traces_needed: OrderedDict[Hashable, tuple] = OrderedDict()
# The traces of constraints that there are none of, by name and signature.
_of_nothing: OrderedDict[Hashable, tuple[Trace, tuple]] = OrderedDict()


Value = TypeVar("Value")


def _remember(cache: OrderedDict[Hashable, Value], key: Hashable, value: Value) -> None:
    cache[key] = value
    while len(cache) > CACHE_SIZE:
        cache.popitem(last=False)


def forget_all() -> None:
    """Drop every compiled program."""
    with _lock:
        _programs.clear()


class _Call(NamedTuple):
    """A call taken apart: the key of its program, and the arrays to call it with."""

    key: Hashable
    given: list  # arrays of the donated argument
    rest: list
    rebuild: Callable[[list, list], tuple]


class _Flat(NamedTuple):
    """A tree taken apart.

    Attributes:
        arrays: its arrays, None where a leaf is none.
        fixed: its other leaves, None where a leaf is an array.
        form: what of it a program depends on.
        treedef: its structure.
    """

    arrays: list
    fixed: tuple
    form: Hashable
    treedef: jax.tree_util.PyTreeDef

    def whole(self, arrays: list) -> PyTree:
        """The tree with other arrays."""
        leaves = [leaf if array is None else array for leaf, array in zip(self.fixed, arrays, strict=True)]
        return jax.tree.unflatten(self.treedef, leaves)


def _flattened(tree: PyTree, placement: Placement | None) -> _Flat:
    leaves, treedef = jax.tree.flatten(tree, is_leaf=_is_number)
    dynamic = [_is_number(leaf) or eqx.is_array(leaf) or isinstance(leaf, np.ndarray) for leaf in leaves]
    arrays = [_strong(leaf) if flag else None for leaf, flag in zip(leaves, dynamic, strict=True)]
    if placement is not None:
        arrays = [None if a is None else placement.put(a) for a in arrays]
    fixed = tuple(None if flag else leaf for leaf, flag in zip(leaves, dynamic, strict=True))
    avals = tuple(None if a is None else (a.shape, a.dtype, _layout(a)) for a in arrays)
    tables = tuple(node.table for node in jax.tree.leaves(tree, is_leaf=_is_hoisted) if _is_hoisted(node))
    return _Flat(arrays, fixed, (tables, treedef, fixed, avals), treedef)


def _layout(array: Array | np.ndarray) -> Hashable:
    """How an array is spread over several devices, which a program is compiled for; None: it is not."""
    return array.sharding if isinstance(array, jax.Array) and isinstance(array.sharding, NamedSharding) else None


def _taken_apart(
    name: str, problem: _Flat, args: tuple, static: Hashable, donate: bool, placement: Placement | None
) -> _Call:
    flat = _flattened(args, placement)
    precision = _precision()  # a program compiled without x64 is another one
    key = (problem.form, flat.form, name, static, donate, precision)
    first = len(problem.arrays)
    own = len(jax.tree.leaves(args[0], is_leaf=_is_number)) if donate else 0

    def rebuild(given: list, rest: list) -> tuple:
        return problem.whole(rest[:first]), *flat.whole(given + rest[first:])

    given = [None if array is None else jnp.asarray(array) for array in flat.arrays[:own]]  # NumPy's cannot be donated
    return _Call(key, given, problem.arrays + flat.arrays[own:], rebuild)


def _shapes_of(function: Callable, call: _Call) -> PyTree:
    """The result's shapes, and what in it is no array; known without tracing where the program is."""
    known = _known_program(call.key)
    if known is not None:
        compiled, other = known
        return eqx.combine(compiled.out_info, other)
    others: list[PyTree] = []

    def of_arrays(given: list, rest: list) -> PyTree:
        result, other = eqx.partition(function(*call.rebuild(given, rest)), eqx.is_array)
        others.append(other)
        return result

    return eqx.combine(jax.eval_shape(of_arrays, call.given, call.rest), others[-1])


def _cached_call(
    function: Callable, call: _Call, donate: bool, quick: bool, placement: Placement | None
) -> tuple[PyTree, float]:
    """The result, and the seconds spent compiling."""
    (compiled, other), seconds = _program_of(function, call, donate, quick, placement)
    return eqx.combine(compiled(call.given, call.rest), other), seconds


def _program_of(
    function: Callable, call: _Call, donate: bool, quick: bool, placement: Placement | None
) -> tuple[Program, float]:
    """The program, and the seconds spent compiling it. What another thread compiles is waited for."""
    known = _known_program(call.key)
    if known is not None:
        return known, 0.0
    begin = time.perf_counter()
    while known is None:
        with _lock:
            other_thread = _compiling.get(call.key)
            if other_thread is None:
                done = _compiling[call.key] = threading.Event()
        if other_thread is not None:
            other_thread.wait()
            known = _known_program(call.key)  # None: it failed there, or was dropped again
            continue
        try:
            known = _newly_compiled(function, call, donate, quick, placement)
            with _lock:
                _remember(_programs, call.key, known)
        finally:
            with _lock:
                del _compiling[call.key]
            done.set()
    return known, time.perf_counter() - begin


def _known_program(key: Hashable) -> Program | None:
    """A program that was compiled before, which is the youngest of the cache from now on."""
    with _lock:
        if key not in _programs:
            return None
        _programs.move_to_end(key)
        return _programs[key]


def _newly_compiled(function: Callable, call: _Call, donate: bool, quick: bool, placement: Placement | None) -> Program:
    others: list[PyTree] = []

    def of_arrays(given: list, rest: list) -> PyTree:
        result, other = eqx.partition(function(*call.rebuild(given, rest)), eqx.is_array)
        others.append(other)
        return result if placement is None else jax.tree.map(placement.constrained, result)

    with _without_collecting():
        lowered = jax.jit(of_arrays, donate_argnums=(0,) if donate else ()).lower(call.given, call.rest)
        compiled = _compiled(lowered, QUICK if quick else _usual_options(call))
    return compiled, others[-1]


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Python's search for cyclic garbage put off: tracing makes many small objects that live on, and looking through
    all of them again and again takes a twentieth of the time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _usual_options(call: _Call) -> Options:
    """How hard a program is optimised, by what it computes on."""
    numbers = sum(array.size for array in (*call.given, *call.rest) if array is not None)
    return LIGHT if jax.default_backend() == "cpu" and numbers <= LIGHT_NUMBERS else {}


def _compiled(lowered: Lowered, options: Options) -> Compiled:
    """Compiled with those of the options that this XLA knows."""
    while options:
        try:
            return lowered.compile(compiler_options=options)
        except Exception as error:
            unknown = [name for name in options if name in str(error)]
            if not unknown:
                raise
            options = {name: value for name, value in options.items() if name not in unknown}
    return lowered.compile()


def _precision() -> np.dtype:
    """The dtype that double precision has now: `jnp.result_type(float)`, a hundred times as quick."""
    return jax.dtypes.canonicalize_dtype(np.float64)


def _strong(leaf: ArrayLike) -> Array | np.ndarray:
    """An array whose dtype does not yield to others: a Python number and an array must give the same program.

    NumPy's arrays in the precision of now stay as they are: a program takes them quicker than they are converted.
    """
    if isinstance(leaf, jax.Array):
        return on_device(leaf) if getattr(leaf, "weak_type", False) else leaf
    array = np.asarray(leaf)
    return array if array.dtype == np.float64 == _precision() else on_device(array)


def _is_hoisted(node: object) -> bool:
    return isinstance(node, Hoisted)


def _is_number(leaf: object) -> bool:
    if isinstance(leaf, Infinite):
        return False
    return isinstance(leaf, float | complex | np.generic) or (isinstance(leaf, int) and not isinstance(leaf, bool))


def _forget(identity: Identity) -> None:
    with _lock:
        for cache in (_programs, _traces_needed):
            for key in [key for key in cache if identity in _identities_in(key)]:
                del cache[key]


def _identities_in(key: PyTree) -> list[Identity]:
    traces = [trace for hoisted in key[0][0] for _, trace in hoisted]
    return [trace.key[1] for trace in traces if isinstance(trace.key[1], Identity)]
