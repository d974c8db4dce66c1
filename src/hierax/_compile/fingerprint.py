"""A hash of a problem: of what its functions compute, the data that they close over, its sets and its samples.

Two statements have the same hash where their functions have the same traces (the text of the jaxprs), the same numbers
and arrays in them, and the same sets and sources. The text is JAX's own: another version of JAX may write another one.
Names of variables, comments and files do not matter. Where a part has no such text, there is no hash, and a reason.
"""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple, cast

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.trees import split_variable
from hierax._compile.bound import FUNCTIONS, with_rests
from hierax._compile.configuration import doubled, float64
from hierax._compile.placement import read
from hierax._compile.tracing import Function, trace_function
from hierax._problem.problem import Problem
from hierax._problem.samples import TRACED_SAMPLES, AbstractSource, Finite, Sampler


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


def hash_of_function(name: str, function: Function, args: tuple[PyTree, ...]) -> str | None:
    """The hash of what a function computes on arguments shaped like `args` and of the data that it closes over.

    None where its trace does not determine that.
    """
    try:
        return f"sha256:{_hash_of(_traced(name, function, args))}"
    except _NoText:
        return None


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
        yield from _source(name, getattr(problem, name))


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


def _source(name: str, source: Finite | Sampler | None) -> Iterator[bytes]:
    if isinstance(source, Sampler):
        yield from _traced(f"{name}.draw", source.draw, (jax.random.key(0), TRACED_SAMPLES))
        yield from _tree(f"{name}.exact", source.exact)
    elif source is not None:
        yield from _tree(name, source.arrays)
