"""A problem in words: which functions it has, its sets, and where its samples come from."""

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.text import numbers_of, shown
from hierax._problem.files import FiniteFiles
from hierax._problem.samples import Finite, Sampler, Stream
from hierax._problem.sets import Ball, Box, Free, NonNegative, Simplex, is_set

LISTED = 8  # sets of a tree that are told one by one


def set_text(sets: PyTree) -> str:
    """A set, or a tree prefix of sets, in words.

    Examples:
        >>> set_text(Box(0.0, 3.0))
        'entries from 0 to 3'
        >>> set_text({"a": NonNegative(), "b": Free()})
        "['a']: entries >= 0; ['b']: the whole space"
    """
    leaves = jax.tree_util.tree_leaves_with_path(sets, is_leaf=is_set)
    if len(leaves) == 1 and not leaves[0][0]:
        return _one_set(leaves[0][1])
    told = [f"{jax.tree_util.keystr(path)}: {_one_set(one)}" for path, one in leaves[:LISTED]]
    return "; ".join(told + [f"and {len(leaves) - LISTED} more"] * (len(leaves) > LISTED))


def _one_set(one: object) -> str:
    match one:
        case Free():
            return "the whole space"
        case Box():
            return f"entries from {_bound(one.lower)} to {_bound(one.upper)}"
        case NonNegative():
            return "entries >= 0"
        case Ball():
            return f"a ball of radius {float(np.asarray(one.radius)):g} around zero"
        case Simplex():
            return f"entries >= 0 that sum to {float(np.asarray(one.scale)):g}"
    return type(one).__name__


def _bound(bound: PyTree) -> str:
    """A bound in words: one number where it is the same for all entries."""
    numbers = np.unique(numbers_of(bound))
    return shown(numbers) if numbers.size == 1 else shown(bound)


def source_text(source: object) -> str:
    """Where samples come from, in words.

    Examples:
        >>> source_text(None)
        'no samples: it is exact'
        >>> source_text(Finite(np.zeros((10, 3))))
        '10 rows of data, drawn independently'
    """
    if source is None:
        return "no samples: it is exact"
    if isinstance(source, Finite | FiniteFiles):
        where = "data in files" if isinstance(source, FiniteFiles) else "data"
        return f"{source.size:,} rows of {where}, drawn {'independently' if source.replace else 'in shuffled epochs'}"
    if isinstance(source, Sampler):
        return "a sampler" + ("" if source.exact is None else " whose expectation is known")
    return "a stream of batches" if isinstance(source, Stream) else type(source).__name__


def function_text(function: object) -> str:
    """What a function is called.

    Examples:
        >>> function_text(set_text), function_text(lambda x, y: x)
        ('the function set_text', 'a lambda')
    """
    name = getattr(function, "__name__", type(function).__name__)
    return "a lambda" if name == "<lambda>" else f"the function {name}"
