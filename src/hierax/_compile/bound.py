"""User functions as compiled programs: a problem bound to its variables, and the programs that problems share.

A fresh lambda would be retraced and recompiled on every call. So each user function is traced once per signature
(shapes and dtypes of its arguments, see `hierax._compile.tracing`), and programs are kept, in a bounded cache shared by
problems of equal form, under the traces' text. A program compiled without x64 is another one: precision is part of the
key.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.stages import Compiled, Lowered
from jaxtyping import Array, ArrayLike, PyTree

from hierax._base.constants import LITTLE_DATA
from hierax._base.errors import InputError
from hierax._base.trees import Infinite, on_device
from hierax._compile import tracing
from hierax._compile.placement import Placement
from hierax._compile.tracing import Function, Hoisted, Keyed, MissingTrace, Place, Trace, trace_function
from hierax._problem.problem import CONSTRAINTS, Problem, nothing
from hierax._problem.samples import AbstractSource, Sampler

Result = TypeVar("Result")
Value = TypeVar("Value")
Options = dict[str, str | bool]
FUNCTIONS = ("upper", "lower", *CONSTRAINTS)

# -- calls taken apart ------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """A call taken apart: the key of its program, and the arrays to call it with."""

    key: Hashable
    given: list[PyTree]  # arrays of the donated argument
    rest: list[PyTree]
    of_problem: int  # how many of the rest are the problem's
    rebuild: Callable[[list[PyTree], list[PyTree]], tuple[PyTree, ...]]


class Asked(NamedTuple):
    """A program that is asked for: what its function is determined by beside the problem, and how it is compiled."""

    name: str
    function: Function
    args: tuple[PyTree, ...]
    static: Hashable
    donate: bool = False
    options: Options | None = None


class Flat(NamedTuple):
    """A tree taken apart.

    Attributes:
        arrays: its arrays, None where a leaf is none.
        fixed: its other leaves, None where a leaf is an array.
        form: what of it a program depends on; the traces of its functions come first in the key.
        treedef: its structure.
    """

    arrays: list[PyTree]
    fixed: tuple[PyTree, ...]
    form: Keyed
    treedef: jax.tree_util.PyTreeDef

    def whole(self, arrays: list[PyTree]) -> PyTree:
        """The tree with other arrays."""
        leaves = [leaf if array is None else array for leaf, array in zip(self.fixed, arrays, strict=True)]
        return jax.tree.unflatten(self.treedef, leaves)


def flattened(tree: PyTree, placement: Placement | None) -> Flat:
    leaves, treedef = jax.tree.flatten(tree, is_leaf=_is_number)
    dynamic = [_is_number(leaf) or eqx.is_array(leaf) or isinstance(leaf, np.ndarray) for leaf in leaves]
    arrays = [_strong(leaf) if flag else None for leaf, flag in zip(leaves, dynamic, strict=True)]
    if placement is not None:
        arrays = [None if a is None else placement.put(a) for a in arrays]
    fixed = tuple(None if flag else leaf for leaf, flag in zip(leaves, dynamic, strict=True))
    avals = tuple(None if a is None else (a.shape, a.dtype, _layout(a)) for a in arrays)
    return Flat(arrays, fixed, Keyed((tracing.tables_of(tree), treedef, fixed, avals)), treedef)


def _layout(array: Array | np.ndarray) -> Hashable:
    """How an array is spread over several devices, which a program is compiled for; None: it is not."""
    return array.sharding if isinstance(array, jax.Array) and isinstance(array.sharding, NamedSharding) else None


def _taken_apart(problem: Flat, flat: Flat, own: int, kind: tuple[PyTree, ...]) -> Call:
    """The call of a program of this kind with the arguments `flat`, of which the first `own` leaves are donated."""
    first = len(problem.arrays)

    def rebuild(given: list[PyTree], rest: list[PyTree]) -> tuple[PyTree, ...]:
        return tracing.unpacked(problem.whole(rest[:first])), *flat.whole(given + rest[first:])

    given = [None if array is None else jnp.asarray(array) for array in flat.arrays[:own]]  # NumPy's cannot be donated
    return Call((problem.form, *kind), given, problem.arrays + flat.arrays[own:], first, rebuild)


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


def _is_number(leaf: object) -> bool:
    if isinstance(leaf, Infinite):
        return False
    return isinstance(leaf, float | complex | np.generic) or (isinstance(leaf, int) and not isinstance(leaf, bool))


# -- programs ---------------------------------------------------------------------------------------------------------

MAX_PROGRAMS = 64
# In one piece: cutting a small program up for several threads takes longer than compiling it (the toy's first call with
# SALVF: 3.9 instead of 4.6 CPU seconds).
_SMALL: Options = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": "1"}
QUICK: Options = {"xla_backend_optimization_level": "0", **_SMALL}
# Two thirds of the time to compile, and as fast where little is computed at once: loops over long arrays are not.
LIGHT: Options = {"xla_backend_optimization_level": "1", **_SMALL}

Program = tuple[Compiled, PyTree]
"""What was compiled, and the parts of its result that are no arrays."""

# The caches belong to all threads: `_lock` is held by whoever looks into one or changes it, never while something is
# traced or compiled.
_lock = threading.RLock()  # of one thread: forgetting a function may come in between
_compiled_since: dict[str, float] = {}  # the names of programs that are being compiled, with their beginnings
_programs: OrderedDict[Hashable, Program] = OrderedDict()
_compiling: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()  # a lock for each that is being compiled
# The traces that the last program of a form was compiled with. A run that goes on meets its programs in another order
# than one that begins: by this it finds those that are there.
_compiled_with: OrderedDict[Hashable, tuple[Place, ...]] = OrderedDict()


def _recalled(cache: OrderedDict[Hashable, Value], key: Hashable) -> Value | None:
    """What a cache has under a key, which is the youngest of it from now on."""
    with _lock:
        if key in cache:
            cache.move_to_end(key)
        return cache.get(key)


def _remember(cache: OrderedDict[Hashable, Value], key: Hashable, value: Value) -> None:
    with _lock:
        cache[key] = value
        while len(cache) > MAX_PROGRAMS:
            cache.popitem(last=False)


def compiling() -> str:
    """What this process is compiling now, and for how long, in words; empty: nothing."""
    now = time.perf_counter()
    return "".join(f", compiling {name}, {now - begin:.0f} s" for name, begin in _compiled_since.copy().items())


def forget_programs() -> None:
    """Drop every compiled program that hierax holds in this process: the next call compiles anew.

    What JAX itself keeps goes with `jax.clear_caches()`, and programs on disk (`hx.cache`) stay.

    Examples:
        >>> import hierax as hx
        >>> hx.extend.forget_programs()
    """
    with _lock:
        _programs.clear()


def _forget(identity: tracing.Identity) -> None:
    """Drop the programs of a function that is told apart by identity, and is gone."""

    def holds(key: PyTree) -> bool:
        return any(trace.key[1] is identity for table in key[0].key[0] for _, trace in table)

    with _lock:
        for cache in (_programs, _compiled_with):
            for key in filter(holds, list(cache)):
                del cache[key]


def _shapes_of(asked: Asked, call: Call) -> PyTree:
    """The result's shapes, and what in it is no array; known without tracing where the program is."""
    known = _recalled(_programs, call.key)
    if known is not None:
        compiled, other = known
        return eqx.combine(compiled.out_info, other)
    of_arrays, others = _of_arrays(asked.function, call, None)
    return eqx.combine(jax.eval_shape(of_arrays, call.given, call.rest), others[-1])


def _program_of(asked: Asked, call: Call, placement: Placement | None) -> tuple[Program, float]:
    """The program, and the seconds spent compiling it. What another thread compiles is waited for."""
    known, begin = _recalled(_programs, call.key), time.perf_counter()
    if known is not None:
        return known, 0.0
    with _lock:
        one_at_a_time = _compiling.setdefault(call.key, threading.RLock())
    with one_at_a_time:
        known = _recalled(_programs, call.key)  # None: no other thread has, it failed there, or it was dropped again
        if known is None:
            _compiled_since[asked.name] = begin
            try:
                of_arrays, others = _of_arrays(asked.function, call, placement)
                lowered = jax.jit(of_arrays, donate_argnums=(0,) if asked.donate else ()).lower(call.given, call.rest)
                options = _usual_options(call) if asked.options is None else asked.options
                known = _compiled(lowered, options), others[-1]
            finally:
                _compiled_since.pop(asked.name, None)
            _remember(_programs, call.key, known)
    return known, time.perf_counter() - begin


def _of_arrays(
    function: Function, call: Call, placement: Placement | None
) -> tuple[Callable[[list[PyTree], list[PyTree]], PyTree], list[PyTree]]:
    """The function of a call's arrays that gives the arrays of its result, and a list that takes up the other parts."""
    others: list[PyTree] = []

    def of_arrays(given: list[PyTree], rest: list[PyTree]) -> PyTree:
        result, other = eqx.partition(function(*call.rebuild(given, rest)), eqx.is_array)
        others.append(other)
        return result if placement is None else jax.tree.map(placement.constrained, result)

    return of_arrays, others


def _usual_options(call: Call) -> Options:
    """How hard a program is optimised, by what it computes on."""
    numbers = sum(array.size for array in (*call.given, *call.rest) if array is not None)
    return LIGHT if jax.default_backend() == "cpu" and numbers <= LITTLE_DATA else {}


def _compiled(lowered: Lowered, options: Options) -> Compiled:
    """Compiled with the options, or with none where this XLA does not know one of them."""
    try:
        return lowered.compile(compiler_options=options)
    except Exception as error:
        if not any(name in str(error) for name in options):
            raise
        return lowered.compile()


# -- problems ---------------------------------------------------------------------------------------------------------


def with_rests(function: Function, x_rest: PyTree, y_rest: PyTree) -> Function:
    """A user's function of the arrays of x and y alone; the rests are what else the variables hold."""
    return lambda x, y, *batch: function(eqx.combine(x, x_rest), eqx.combine(y, y_rest), *batch)


class Bound:
    """A problem made ready for compilation at given variables: the host's side of the hoisting.

    `problem` is the pytree that programs take as an argument; `run` compiles and calls them. With `mixed`, functions
    may combine arrays of different precision even where the user forbids it: it is us who change the precision then.
    With a `placement` programs run on all devices of its mesh.
    """

    def __init__(
        self, problem: Problem, x_rest: PyTree, y_rest: PyTree, mixed: bool = False, placement: Placement | None = None
    ) -> None:
        self._mixed, self._placement = mixed, placement
        self._known: dict[Place, tuple[Trace, tuple[PyTree, ...]]] = {}  # in the order of tracing
        self._flat: dict[Hashable, Flat] = {}  # the problem, by the traces that it has and by precision
        self._first_forms: dict[Hashable, Keyed] = {}  # what the first program saw, by precision
        self.compile_seconds = 0.0
        stated = {name: getattr(problem, name) for name in FUNCTIONS}
        # As called here, and as the user gave it:
        self._functions = {name: (with_rests(one, x_rest, y_rest), one) for name, one in stated.items()}
        self._sources: dict[str, Any] = {"zeta": problem.zeta, "xi": problem.xi}
        for name, source in self._sources.items():
            if isinstance(source, Sampler):
                self._functions[f"{name}.draw"] = source.draw, source.draw
        self._sets = {name: getattr(problem, name) for name in ("x_set", "y_set")}

    def replace_source(self, name: str, source: AbstractSource) -> None:
        """What programs see as zeta or xi: data that lie on a mesh, or what stands for a Stream."""
        self._sources[name] = source
        self._flat.clear()
        self._first_forms.clear()

    @property
    def problem(self) -> Problem:
        """The problem with every function replaced by its traces so far."""
        return self._problem_with(tuple(self._known))

    def _problem_with(self, places: tuple[Place, ...]) -> Problem:
        functions = {name: self._hoisted(name, places) for name in FUNCTIONS}
        sources: dict[str, Any] = {name: self._source(name, places) for name in self._sources}
        return Problem(**functions, **self._sets, **sources)

    def _flattened(self, places: tuple[Place, ...]) -> Flat:
        """The problem with these traces as programs take it, in the precision of now."""
        key = places, _precision()
        if key not in self._flat:
            self._flat[key] = flattened(self._problem_with(places), self._placement)
        return self._flat[key]

    def _source(self, name: str, places: tuple[Place, ...]) -> AbstractSource | None:
        """A source as programs see it; a Stream or files that the host has not been asked to feed are none."""
        source = self._sources[name]
        if isinstance(source, Sampler):
            return Sampler(self._hoisted(f"{name}.draw", places), source.exact)
        return source if isinstance(source, AbstractSource) else None

    def _hoisted(self, name: str, places: tuple[Place, ...]) -> Hoisted:
        own = {place.signature: self._known[place] for place in places if place.name == name}
        table = tuple((signature, trace) for signature, (trace, _) in own.items())
        return Hoisted(tuple(arrays for _, arrays in own.values()), name, table, self._placement)

    def trace(self, name: str, args: tuple[PyTree, ...]) -> PyTree:
        """Trace a function at a signature, once; returns the shapes of its output."""
        return self._traced(Place(name, args)).returned

    def _traced(self, place: Place) -> Trace:
        if place not in self._known:
            function, given = self._functions[place.name]
            with jax.numpy_dtype_promotion("standard") if self._mixed else nullcontext():
                traced = trace_function(place.name, function, given, place.args, _forget)
            if given is not nothing:
                _refuse_none(place.name, traced[0].returned)
            self._known[place] = traced
        return self._known[place][0]

    def run(
        self,
        name: str,
        function: Function,
        *args: PyTree,
        static: Hashable = (),
        donate: bool = False,
        quick: bool = False,
        light: bool = False,
    ) -> PyTree:
        """Call `function(problem, *args)` compiled; with `donate` the first of args may be overwritten.

        `quick` spends a quarter of the time on compiling, for code that takes two to three times as long to run;
        `light` compiles as for little data, for code that looks at few of many data at once.

        `function` must be determined by `name` and `static`, the problem and the arguments (no hidden inputs). A call
        that meets a user function at a new signature is started again once that is traced.
        """
        options = QUICK if quick else LIGHT if light else None
        call, (compiled, other) = self._with_traces(Asked(name, function, args, static, donate, options), self._program)
        return eqx.combine(compiled(call.given, call.rest), other)

    def shapes(self, name: str, function: Function, *args: PyTree, static: Hashable = ()) -> PyTree:
        """What `run` would return with shapes in the place of arrays; nothing is compiled."""
        return self._with_traces(Asked(name, function, args, static), _shapes_of)[1]

    def ready(self, name: str, function: Function, *args: PyTree) -> "Ready":
        """The program of `run`, compiled quickly, as a function of arrays shaped like `args`, for many short calls."""
        call, (compiled, other) = self._with_traces(Asked(name, function, args, (), options=QUICK), self._program)
        return Ready(compiled, call.rest[: call.of_problem], other)

    def _program(self, asked: Asked, call: Call) -> Program:
        program, seconds = _program_of(asked, call, self._placement)
        self.compile_seconds += seconds
        return program

    def _with_traces(self, asked: Asked, attempt: Callable[[Asked, Call], Result]) -> tuple[Call, Result]:
        """A call and the result of an attempt: with a program that is there, however its problem was traced; else with
        all traces so far, started again until every function is traced wherever it is called.
        """
        flat, now = flattened(asked.args, self._placement), _precision()
        own = len(jax.tree.leaves(asked.args[0], is_leaf=_is_number)) if asked.donate else 0
        kind = (flat.form, asked.name, asked.static, asked.donate, now)  # a program compiled without x64 is another one
        if now not in self._first_forms:  # functions as the first program meets them, at the shapes of checks
            self._first_forms[now] = self._flattened(tuple(self._known)).form
        form = (self._first_forms[now], *kind)
        known = _recalled(_compiled_with, form)
        if known is not None:
            for place in known:
                self._traced(place)
            call = _taken_apart(self._flattened(known), flat, own, kind)
            if _recalled(_programs, call.key) is not None:
                return call, attempt(asked, call)
        while True:
            places = tuple(self._known)
            call = _taken_apart(self._flattened(places), flat, own, kind)
            try:
                result = attempt(asked, call)
            except MissingTrace as missing:
                self._traced(missing.place)
            else:
                _remember(_compiled_with, form, places)
                return call, result


def _refuse_none(name: str, returned: PyTree) -> None:
    """Raise InputError where a user's function gives None instead of numbers, as one without a `return` does."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(returned, is_leaf=lambda node: node is None):
        if leaf is None:
            where = f" at {jax.tree_util.keystr(path)}" if path else ""
            raise InputError(
                f"{name}: gives None{where} where numbers are needed. Is its `return` missing? A problem that has no "
                "such function leaves the argument out."
            )


class Ready:
    """A compiled program with its first arguments: the problem, and what else stays the same from call to call."""

    def __init__(self, compiled: Compiled, first: list[PyTree], other: PyTree) -> None:
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
