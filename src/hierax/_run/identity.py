"""What tells one call or problem from another: of a call each part by name, as a text or a hash; of a problem a hash.

A checkpoint belongs to problem, data, start, method and settings. Limits of a run (`max_steps`, `seconds`) and who
watches it are no part of it: a run may go on with others.

Two statements of a problem have the same hash where their functions have the same traces (the text of the jaxprs), the
same numbers and arrays in them, and the same sets and sources. The text is JAX's own: another version of JAX may write
another one. Names of variables, comments and files do not matter. Where a part has no such text, there is no hash, and
a reason.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.settings import is_number
from hierax._base.trees import split_variable
from hierax._compile.bound import FUNCTIONS, with_rests
from hierax._compile.configuration import doubled, float64
from hierax._compile.placement import read
from hierax._compile.tracing import Function, trace_function
from hierax._problem import samples
from hierax._problem.problem import Problem
from hierax._problem.samples import TRACED_SAMPLES, AbstractSource, Finite, FiniteFiles, Sampler, Stream
from hierax._run.call import Call
from hierax._run.checkpoints import FUNCTION, HASH, UNKNOWN, hash_of_arrays
from hierax._run.prepare import Prepared


def identity_of(prepared: Prepared, asked: object, call: Call) -> dict[str, str]:
    """The parts of a call by name; `asked`: the method, None for that of the state to go on from."""
    problem, (x, y) = prepared.problem, prepared.one_start()
    batches = {"upper": (prepared.few("zeta"),), "lower": (prepared.few("xi"),)}
    found = {
        f"{FUNCTION}{name}": hash_of_function(name, prepared.stated(name), (x, y, *batches.get(name, ())))
        for name in FUNCTIONS
    }
    found |= {f"problem {name}": described(getattr(problem, name)) for name in ("x_set", "y_set")}
    for name in ("zeta", "xi"):
        source = getattr(problem, name)
        text = _source(name, source)
        found[f"data {name}"] = (
            HASH + prepared.processes.hash_of_all(text) if samples.is_spread_over_processes(source) else text
        )
    found |= {"x0": hash_of_arrays(prepared.x), "y0": hash_of_arrays(prepared.y)}
    found["method"] = type(asked).__name__ if asked is not None else "that of the state"
    if dataclasses.is_dataclass(asked):
        settings = {field.name: getattr(asked, field.name) for field in dataclasses.fields(asked)}
        settings.pop("seconds", None)  # a limit of `Auto`
        found |= {f"method setting {name}": described(value) for name, value in settings.items()}
    seed = call.seed if isinstance(call.seed, int) else np.asarray(jax.random.key_data(call.seed)).tolist()
    return found | {
        "seed": str(seed),
        "output": call.output,
        "tol": str(call.tol),
        "record_every": str(call.record_every),
        "state": "none" if call.state is None else hash_of_arrays(call.state.run),
        "starts": "one" if prepared.count is None else str(prepared.count),
    }


def _source(name: str, source: object) -> str:
    if isinstance(source, Stream):
        return UNKNOWN
    if isinstance(source, FiniteFiles):
        return source.fingerprint()
    if isinstance(source, Sampler):
        draw = hash_of_function(f"{name}.draw", source.draw, (jax.random.key(0), TRACED_SAMPLES))
        return f"{draw} {hash_of_arrays(source.exact)}" if draw != UNKNOWN else UNKNOWN
    return described(source)


def described(value: object, around: tuple[object, ...] = ()) -> str:
    """A setting as a text that tells it from others: numbers as they are, functions by what they are made of.

    `around`: what the value is part of; a function may close over itself.
    """
    if value is None or isinstance(value, bool | str):
        return str(value)
    if is_number(value):
        return repr(float(value)) if np.asarray(value).dtype.kind == "f" else repr(int(value))
    if isinstance(value, np.ndarray | jax.Array):
        return hash_of_arrays(value)
    if any(value is one for one in around):
        return type(value).__name__
    inside = functools.partial(described, around=(*around, value))
    if isinstance(value, types.FunctionType):
        made_of = " ".join(_made_of(value, inside))
        return f"{value.__qualname__}({hashlib.sha256(made_of.encode()).hexdigest()[:12]})"
    if isinstance(value, functools.partial):
        return f"partial({inside(value.func)}, {inside(value.args)}, {inside(value.keywords)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [f"{field.name}={inside(getattr(value, field.name))}" for field in dataclasses.fields(value)]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {inside(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(inside, value))})"
    return type(value).__name__


def _made_of(function: types.FunctionType, inside: Callable[[object], str]) -> Iterator[str]:
    """A function's code, its defaults and what it closes over."""
    code = function.__code__
    yield code.co_code.hex()
    yield from (repr(one) for one in code.co_consts if not isinstance(one, types.CodeType))
    yield from (*code.co_names, inside(function.__defaults__))
    for cell in function.__closure__ or ():
        try:
            yield inside(cell.cell_contents)
        except ValueError:  # not set yet
            yield "empty"


# -- the hash of a problem ---------------------------------------------------------------------------------------------


class Fingerprint(NamedTuple):
    """The hash of a problem in hexadecimal digits, or None and the reason why there is none."""

    sha256: str | None
    why: str = ""


class _NoText(Exception):
    """A part of a problem that its text does not determine."""


def fingerprint(problem: Problem, x: PyTree, y: PyTree) -> Fingerprint:
    """The hash of a problem of variables shaped like x and y (their values do not matter).

    Examples:
        >>> import hierax as hx
        >>> def stated(slope):
        ...     return hx.Problem(upper=lambda x, y, zeta: (x - y) ** 2, lower=lambda x, y, xi: (y - slope * x) ** 2)
        >>> one, same, other = (fingerprint(stated(slope), 0.0, 0.0).sha256 for slope in (2.0, 2.0, 3.0))
        >>> one == same, one == other, len(one)
        (True, False, 64)
    """
    try:
        with float64(), jax.numpy_dtype_promotion("standard"):
            return Fingerprint(_hash_of(_parts(problem, x, y)))
    except _NoText as reason:
        return Fingerprint(None, str(reason))


def hash_of_function(name: str, function: Function, args: tuple[PyTree, ...]) -> str:
    """The hash of what a function computes on arguments shaped like `args` and of the data that it closes over;
    `UNKNOWN` where its trace does not determine that.
    """
    try:
        return HASH + _hash_of(_traced(name, function, args))
    except _NoText:
        return UNKNOWN


def _hash_of(parts: Iterator[bytes]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())  # of parts: where one ends is part of it
    return whole.hexdigest()


def _parts(problem: Problem, x: PyTree, y: PyTree) -> Iterator[bytes]:
    (x, x_rest), (y, y_rest) = split_variable("x", x), split_variable("y", y)
    x, y = doubled((x, y))
    batches = {"upper": (_batch("zeta", problem.zeta),), "lower": (_batch("xi", problem.xi),)}
    for name in FUNCTIONS:
        yield from _traced(name, with_rests(getattr(problem, name), x_rest, y_rest), (x, y, *batches.get(name, ())))
    for name in ("x_set", "y_set"):
        yield from _tree(name, getattr(problem, name))
    for name in ("zeta", "xi"):
        yield from _hashed_source(name, getattr(problem, name))


def _traced(name: str, function: Function, args: tuple[PyTree, ...]) -> Iterator[bytes]:
    """The text of a function's trace and the bytes of every array that it closes over, its numbers among them."""
    trace, arrays = trace_function(name, function, function, args, lambda identity: None)
    _, identity, *texts = cast(tuple[PyTree, ...], trace.key)
    if not isinstance(identity, str):
        raise _NoText(f"{name} calls back to Python, or closes over arrays inside of loops or derivative rules")
    yield "\n".join([name, identity, *map(str, texts)]).encode()
    for array in arrays:
        yield _bytes(read(array))


def _bytes(array: np.ndarray) -> bytes:
    """Shape, kind and numbers, the same on every machine."""
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    return f"{array.dtype.name}{array.shape}".encode() + little.tobytes()


def _tree(name: str, tree: PyTree) -> Iterator[bytes]:
    """The structure of a tree of sets or data, and its numbers in double precision."""
    leaves, structure = jax.tree.flatten(tree)
    text = str(structure)
    if " at 0x" in text or not all(
        isinstance(leaf, int | float | np.generic | np.ndarray | jax.Array) for leaf in leaves
    ):
        raise _NoText(f"{name} holds functions")
    yield f"{name}\n{text}".encode()
    for leaf in leaves:
        numbers = np.asarray(leaf)
        yield _bytes(numbers.astype(np.float64) if numbers.dtype.kind in "fiub" else numbers)


def _batch(name: str, source: AbstractSource | None) -> PyTree:
    """A batch of a source as shapes."""
    if source is None:
        return None
    if isinstance(source, Finite | Sampler):
        return source.shapes(TRACED_SAMPLES)
    raise _NoText(f"{name} comes from a stream, from files or a source of the user's own, which no text determines")


def _hashed_source(name: str, source: Finite | Sampler | None) -> Iterator[bytes]:
    if isinstance(source, Sampler):
        yield from _traced(f"{name}.draw", source.draw, (jax.random.key(0), TRACED_SAMPLES))
        yield from _tree(f"{name}.exact", source.exact)
    elif source is not None:
        yield from _tree(name, source.arrays)
