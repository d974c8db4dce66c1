"""Double precision: the one place that enters it, and casts in both directions.

JAX computes in float32 unless it is told otherwise, and an array of float64 that is used outside of `float64()` is
silently rounded. So what is computed inside leaves as NumPy arrays (`on_host`), which keep their precision wherever
they go. Whoever judges points uses `hierax._engine.float64_problem.Float64Problem`, which does both by itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.trees import on_device


@contextmanager
def float64() -> Iterator[None]:
    """Compute in double precision inside the block, whatever the caller's configuration."""
    with jax.enable_x64(True):
        yield


def doubled(tree: PyTree) -> PyTree:
    """Floating-point arrays as JAX arrays of float64, everything else as it is; only inside of `float64()`."""

    def cast(leaf: PyTree) -> PyTree:
        if isinstance(leaf, jax.Array) and leaf.dtype == np.float64 and not leaf.weak_type:
            return leaf
        return on_device(leaf, np.float64) if _is_real(leaf) else leaf

    return jax.tree.map(cast, tree)


def on_host(tree: PyTree) -> PyTree:
    """Arrays as NumPy's."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, tree)


def doubled_on_host(tree: PyTree) -> PyTree:
    """Floating-point arrays as NumPy arrays of float64, everything else as it is; anywhere."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) if _is_real(leaf) else leaf, tree)


def as_answer(tree: PyTree) -> PyTree:
    """Numbers as a user gets them: NumPy arrays of float64, and a single number as NumPy's float64, which is a float.

    Examples:
        >>> as_answer({"a": np.float32(0.5), "b": np.ones(2, np.float32)})
        {'a': np.float64(0.5), 'b': array([1., 1.])}
    """
    return jax.tree.map(lambda leaf: np.array(leaf, np.float64)[()] if _is_real(leaf) else leaf, tree)


def is_double(*trees: PyTree) -> bool:
    """Whether every floating-point array is float64 already."""
    return all(np.asarray(leaf).dtype == np.float64 for leaf in jax.tree.leaves(trees) if _is_real(leaf))


def _is_real(leaf: PyTree) -> bool:
    return eqx.is_inexact_array_like(leaf) and isinstance(leaf, jax.Array | np.ndarray | np.generic)
