"""Compiled programs, in a bounded cache shared by problems of equal form, and calls of them taken apart.

A fresh lambda would be retraced and recompiled on every call. So each user function is traced once per signature
(shapes and dtypes of its arguments, see `hierax._compile.tracing`), and programs are kept under the traces' text. A
program compiled without x64 is another one: precision is part of the key.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.stages import Compiled, Lowered
from jaxtyping import Array, ArrayLike, PyTree

from hierax._base.constants import LITTLE_DATA
from hierax._base.trees import Infinite, on_device
from hierax._compile.placement import Placement
from hierax._compile.tracing import Function, Identity, Place, is_hoisted, unpacked


class Call(NamedTuple):
    """A call taken apart: the key of its program, and the arrays to call it with."""

    key: Hashable
    given: list[PyTree]  # arrays of the donated argument
    rest: list[PyTree]
    of_problem: int  # how many of the rest are the problem's
    rebuild: Callable[[list[PyTree], list[PyTree]], tuple[PyTree, ...]]


class Form:
    """What of a tree a program depends on; its hash, of hundreds of parts, is computed once."""

    def __init__(self, tables: tuple[PyTree, ...], *rest: Hashable) -> None:
        self.tables = tables  # the traces of the tree's functions
        self._all = (tables, *rest)
        self._hash = hash(self._all)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Form) and self._all == other._all)


class Flat(NamedTuple):
    """A tree taken apart.

    Attributes:
        arrays: its arrays, None where a leaf is none.
        fixed: its other leaves, None where a leaf is an array.
        form: what of it a program depends on.
        treedef: its structure.
    """

    arrays: list[PyTree]
    fixed: tuple[PyTree, ...]
    form: Form
    treedef: jax.tree_util.PyTreeDef

    def whole(self, arrays: list[PyTree]) -> PyTree:
        """The tree with other arrays."""
        leaves = [leaf if array is None else array for leaf, array in zip(self.fixed, arrays, strict=True)]
        return jax.tree.unflatten(self.treedef, leaves)


def flattened(tree: PyTree, placement: Placement | None) -> Flat:
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_number)
    dynamic = [is_number(leaf) or eqx.is_array(leaf) or isinstance(leaf, np.ndarray) for leaf in leaves]
    arrays = [_strong(leaf) if flag else None for leaf, flag in zip(leaves, dynamic, strict=True)]
    if placement is not None:
        arrays = [None if a is None else placement.put(a) for a in arrays]
    fixed = tuple(None if flag else leaf for leaf, flag in zip(leaves, dynamic, strict=True))
    avals = tuple(None if a is None else (a.shape, a.dtype, _layout(a)) for a in arrays)
    tables = tuple(node.table for node in jax.tree.leaves(tree, is_leaf=is_hoisted) if is_hoisted(node))
    return Flat(arrays, fixed, Form(tables, treedef, fixed, avals), treedef)


def _layout(array: Array | np.ndarray) -> Hashable:
    """How an array is spread over several devices, which a program is compiled for; None: it is not."""
    return array.sharding if isinstance(array, jax.Array) and isinstance(array.sharding, NamedSharding) else None


def taken_apart(problem: Flat, flat: Flat, own: int, kind: tuple[PyTree, ...]) -> Call:
    """The call of a program of this kind with the arguments `flat`, of which the first `own` leaves are donated."""
    first = len(problem.arrays)

    def rebuild(given: list[PyTree], rest: list[PyTree]) -> tuple[PyTree, ...]:
        return unpacked(problem.whole(rest[:first])), *flat.whole(given + rest[first:])

    given = [None if array is None else jnp.asarray(array) for array in flat.arrays[:own]]  # NumPy's cannot be donated
    return Call((problem.form, *kind), given, problem.arrays + flat.arrays[own:], first, rebuild)


def precision() -> np.dtype:
    """The dtype that double precision has now: `jnp.result_type(float)`, a hundred times as quick."""
    return jax.dtypes.canonicalize_dtype(np.float64)


def _strong(leaf: ArrayLike) -> Array | np.ndarray:
    """An array whose dtype does not yield to others: a Python number and an array must give the same program.

    NumPy's arrays in the precision of now stay as they are: a program takes them quicker than they are converted.
    """
    if isinstance(leaf, jax.Array):
        return on_device(leaf) if getattr(leaf, "weak_type", False) else leaf
    array = np.asarray(leaf)
    return array if array.dtype == np.float64 == precision() else on_device(array)


def is_number(leaf: object) -> bool:
    if isinstance(leaf, Infinite):
        return False
    return isinstance(leaf, float | complex | np.generic) or (isinstance(leaf, int) and not isinstance(leaf, bool))


MAX_PROGRAMS = 64
Options = dict[str, str | bool]
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
_programs: OrderedDict[Hashable, Program] = OrderedDict()
_compiling: dict[Hashable, threading.Event] = {}  # what a thread compiles now; set when it is done
# The traces that the last program of a form was compiled with. A run that goes on meets its programs in another order
# than one that begins: by this it finds those that are there.
_compiled_with: OrderedDict[Hashable, tuple[Place, ...]] = OrderedDict()
Value = TypeVar("Value")


def traces_for(form: Hashable) -> tuple[Place, ...] | None:
    """The traces that the last program of this form was compiled with."""
    with _lock:
        return _compiled_with.get(form)


def remember_traces(form: Hashable, places: tuple[Place, ...]) -> None:
    """A program of this form was compiled with these traces."""
    _remember(_compiled_with, form, places)


def _remember(cache: OrderedDict[Hashable, Value], key: Hashable, value: Value) -> None:
    with _lock:
        cache[key] = value
        while len(cache) > MAX_PROGRAMS:
            cache.popitem(last=False)


def forget_programs() -> None:
    """Drop every compiled program that hierax holds in this process: the next call compiles anew.

    What JAX itself keeps goes with `jax.clear_caches()`, and programs on disk (`hx.cache`) stay.

    Examples:
        >>> import hierax as hx
        >>> hx.extend.forget_programs()
    """
    with _lock:
        _programs.clear()


def forget(identity: Identity) -> None:
    """Drop the programs of a function that is told apart by identity, and is gone."""
    with _lock:
        for cache in (_programs, _compiled_with):
            for key in [key for key in cache if _holds(key, identity)]:
                del cache[key]


def _holds(key: PyTree, identity: Identity) -> bool:
    return any(trace.key[1] is identity for table in key[0].tables for _, trace in table)


def known_program(key: Hashable) -> Program | None:
    """A program that was compiled before, which is the youngest of the cache from now on."""
    with _lock:
        if key not in _programs:
            return None
        _programs.move_to_end(key)
        return _programs[key]


def shapes_of(function: Function, call: Call) -> PyTree:
    """The result's shapes, and what in it is no array; known without tracing where the program is."""
    known = known_program(call.key)
    if known is not None:
        compiled, other = known
        return eqx.combine(compiled.out_info, other)
    of_arrays, others = _of_arrays(function, call, None)
    return eqx.combine(jax.eval_shape(of_arrays, call.given, call.rest), others[-1])


def program_of(
    function: Function, call: Call, donate: bool, quick: bool, placement: Placement | None
) -> tuple[Program, float]:
    """The program, and the seconds spent compiling it. What another thread compiles is waited for."""
    known, begin = known_program(call.key), time.perf_counter()
    if known is not None:
        return known, 0.0
    while known is None:
        with _lock:
            other_thread = _compiling.get(call.key)
            if other_thread is None:
                done = _compiling[call.key] = threading.Event()
        if other_thread is not None:
            other_thread.wait()
            known = known_program(call.key)  # None: it failed there, or was dropped again
            continue
        try:
            of_arrays, others = _of_arrays(function, call, placement)
            lowered = jax.jit(of_arrays, donate_argnums=(0,) if donate else ()).lower(call.given, call.rest)
            known = _compiled(lowered, QUICK if quick else _usual_options(call)), others[-1]
            _remember(_programs, call.key, known)
        finally:
            with _lock:
                del _compiling[call.key]
            done.set()
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
