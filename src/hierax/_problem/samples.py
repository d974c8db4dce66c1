"""Where batches of zeta and xi come from.

A source splits the making of a batch in two: `plan` draws everything random about many batches at once (row numbers,
or the samples themselves), `fetch` turns one row of a plan into a batch inside the compiled step. Plans are keyed by a
stream's key and a block number, so that a run can be cut into chunks, resumed or repeated without changing what it
draws. `Stream` and data in files (`files.FiniteFiles`) are fed by the host instead (`_run.feeding`): what it hands over
already are batches.
"""

import abc
from collections.abc import Callable, Iterable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from hierax._base.constants import FRESH_SAMPLES
from hierax._base.errors import InputError
from hierax._base.jaxprs import calls_the_host, depends_on_arguments, same_numbers, same_when_traced_again
from hierax._base.settings import COUNT_GIVEN, TRUE_OR_FALSE, check_setting
from hierax._problem.files import FiniteFiles

TRACED_SAMPLES = 2  # samples of a batch that a function, or a `draw`, is traced with to see what it is


class Tickets(NamedTuple):
    """The planned samples of one outer step: zeta, xi~ of the outer gradient, xi of the inner loop (leading axis s).

    Attributes:
        zeta: samples of the upper gradient: row numbers of a `Finite`, draws of a `Sampler`; None without a source.
        xi: samples of the lower level for the outer gradient (the paper's xi~), likewise.
        inner: samples of the lower level for the inner loop, with a leading axis of inner steps.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> hx.extend.Tickets(zeta=jnp.arange(4), xi=None, inner=None).zeta.shape
        (4,)
    """

    zeta: PyTree
    xi: PyTree
    inner: PyTree


class AbstractSource(eqx.Module):
    """A source of batches."""

    @abc.abstractmethod
    def plan(self, key: PRNGKeyArray, block: Int[Array, ""] | int, count: int, n: int) -> PyTree:
        """Everything random about the `block`-th group of `count` batches of n samples; leading axis `count`."""

    def fetch(self, planned: PyTree) -> PyTree:
        """The batch for one row of a plan."""
        return planned

    @abc.abstractmethod
    def default_batch(self) -> int:
        """The batch size used where none is given."""


class Finite(AbstractSource):
    """A finite data set: the expectation is the mean over the rows of `arrays`.

        E f(x, y; zeta) = 1/N sum_i f(x, y; row_i),    i = 1..N

    A batch is n rows of it, drawn so that its mean has this expectation.

    Args:
        arrays: a pytree whose leaves share their leading axis.
        replace: draw rows independently (True) or walk through reshuffled epochs (False).
        local: the arrays are this process's part of the data set, which several processes read together
            (docs/guides/cluster.md); alone it changes nothing.

    Examples:
        >>> import hierax as hx, numpy as np
        >>> hx.Finite((np.zeros((10, 3)), np.arange(10))).size
        10

    References:
        docs/guides/using.md, docs/guides/data.md
    """

    arrays: PyTree
    replace: bool = eqx.field(static=True)
    local: bool = eqx.field(static=True)

    def __init__(self, arrays: PyTree, replace: bool = True, *, local: bool = False) -> None:
        try:
            self.arrays = jax.tree.map(jnp.asarray, arrays)
        except (TypeError, ValueError) as error:
            raise InputError(f"Finite(arrays): needs arrays of numbers; {error} Encode texts as numbers.") from error
        for name, value in (("replace", replace), ("local", local)):
            check_setting("Finite", name, value, TRUE_OR_FALSE)
        self.replace, self.local = replace, local
        shapes = [leaf.shape for leaf in jax.tree.leaves(self.arrays)]
        if not shapes or any(not shape for shape in shapes) or len({shape[0] for shape in shapes}) != 1:
            raise InputError(f"Finite(arrays): every leaf needs the same leading axis (the samples); got {shapes}.")
        if shapes[0][0] == 0:
            raise InputError("Finite(arrays): the data set has no rows.")

    @property
    def size(self) -> int:
        """Number of rows."""
        return int(jax.tree.leaves(self.arrays)[0].shape[0])

    def shapes(self, n: int) -> PyTree:
        """The form of n rows."""
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((n, *leaf.shape[1:]), leaf.dtype), self.arrays)

    def full(self) -> PyTree:
        """All rows as one batch."""
        return self.arrays

    @staticmethod
    def from_files(paths: PyTree, replace: bool = True) -> FiniteFiles:
        """A data set in .npy files that stay on disk: the rows of every batch are read as they are needed.

        The draws are those of `Finite` with the same arrays, and memory is bounded whatever the size of the files.
        All starts of `solve_many` see the same rows. Methods that solve the lower level on all of xi refuse it;
        certificates and `Auto` judge on `samples` different rows, with a standard error. See docs/guides/data.md.

        Args:
            paths: the path of a .npy file of numbers, or a pytree of them; the files share their leading axis.
            replace: draw rows independently (True) or walk through reshuffled epochs (False).

        Examples:
            >>> import hierax as hx, numpy as np, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     np.save(f"{folder}/features.npy", np.zeros((10, 3)))
            ...     np.save(f"{folder}/labels.npy", np.arange(10))
            ...     hx.Finite.from_files((f"{folder}/features.npy", f"{folder}/labels.npy")).size
            10
        """
        check_setting("Finite.from_files", "replace", replace, TRUE_OR_FALSE)
        return FiniteFiles(paths, replace)

    def plan(self, key: PRNGKeyArray, block: Int[Array, ""] | int, count: int, n: int) -> Int[Array, "count n"]:
        """Row numbers."""
        return RowNumbers(self.size, self.replace).plan(key, block, count, n)

    def default_batch(self) -> int:
        """min(n, 32)."""
        return RowNumbers(self.size, self.replace).default_batch()

    def fetch(self, planned: Int[Array, " n"]) -> PyTree:
        """Gather the rows."""
        return jax.tree.map(lambda leaf: leaf[planned], self.arrays)


class RowNumbers(AbstractSource):
    """The numbers of the rows that batches of a finite data set are made of."""

    size: int = eqx.field(static=True)
    replace: bool = eqx.field(static=True)

    def default_batch(self) -> int:
        """min(n, 32)."""
        return min(self.size, 32)

    def plan(self, key: PRNGKeyArray, block: Int[Array, ""] | int, count: int, n: int) -> Int[Array, "count n"]:
        """Drawn independently, or from reshuffled epochs."""
        if self.replace:
            return jax.random.randint(jax.random.fold_in(key, block), (count, n), 0, self.size)
        per_epoch = self.size // n  # a remainder shorter than a batch is left out of its epoch
        whole = jnp.result_type(block)
        batch = block * count + jnp.arange(count, dtype=whole)
        place = (batch % per_epoch)[:, None] * n + jnp.arange(n, dtype=whole)[None, :]
        keys = jax.vmap(lambda epoch: jax.random.fold_in(key, epoch))(batch // per_epoch)
        return jax.vmap(lambda one, where: _shuffled(one, where, self.size))(keys, place)


class Sampler(AbstractSource):
    """A source that can be sampled at will.

        E f(x, y; zeta) ~ 1/n sum_j f(x, y; zeta_j),    zeta_1, ..., zeta_n independent samples of draw

    Args:
        draw: `draw(key, n)` returns a pytree whose leaves have leading axis n, one independent sample per row.
        exact: a batch whose mean of f or g is the expectation itself, where one is known. Certificates judge by it, and
            exact solvers of the lower level see it as xi; methods that make steps from samples never do.

    Examples:
        >>> import hierax as hx, jax
        >>> noise = hx.Sampler(lambda key, n: 0.1 * jax.random.normal(key, (n, 2)))

    References:
        docs/guides/using.md, docs/start/samples.md
    """

    draw: Callable[[PRNGKeyArray, int], PyTree]
    exact: PyTree = None

    def __post_init__(self) -> None:
        """Refuse a `draw` that cannot be called."""
        if not callable(self.draw):
            raise InputError(f"Sampler(draw): needs a function draw(key, n), got {type(self.draw).__name__}.")

    def shapes(self, n: int) -> PyTree:
        """The form of n samples."""
        return jax.eval_shape(lambda key: self.draw(key, n), jax.random.key(0))

    def default_batch(self) -> int:
        """1, as in the paper's toy."""
        return 1

    def plan(self, key: PRNGKeyArray, block: Int[Array, ""] | int, count: int, n: int) -> PyTree:
        """The samples themselves, all batches in one draw."""
        return folded(self.draw(jax.random.fold_in(key, block), count * n), count, n)


def check_draw(name: str, source: Sampler) -> None:
    """Refuse a `draw` that gives other samples for the same key (it has random numbers of its own, which would be
    drawn once and repeated for ever in a compiled program), or the same samples for different keys.
    """

    def draw(key: PRNGKeyArray) -> PyTree:
        return source.draw(key, TRACED_SAMPLES)

    key = jax.eval_shape(lambda: jax.random.key(0))
    try:
        repeats = same_when_traced_again(draw, key)
        if calls_the_host(draw, key):  # whose numbers no trace shows
            one, other = (jax.tree.leaves(draw(jax.random.key(0))) for _ in range(2))
            repeats = len(one) == len(other) and all(map(same_numbers, one, other))
    except Exception:  # it will fail again where it is traced, with an error that names it
        return
    if not repeats:
        raise InputError(
            f"Sampler(draw) of {name}: draw(key, n) gives other samples when it is called again with the same key, so "
            "it draws numbers of its own (np.random, random), which a compiled program would draw once and repeat. "
            "Use the key: jax.random.normal(key, (n, 2)); or give the batches as hx.Stream(iterable)."
        )
    if not depends_on_arguments(draw, key):  # noise of size zero does, too
        raise InputError(
            f"Sampler(draw) of {name}: draw(key, n) does not use its key, so that every batch is the same. Draw from "
            "the key, jax.random.normal(key, (n, 2)); fixed data are hx.Finite(arrays), a known expectation is exact=."
        )


class HostBatches(AbstractSource):
    """What stands for a `Stream` or files inside compiled programs: batches come from the host, never from a plan."""

    batch: int = eqx.field(static=True)

    def default_batch(self) -> int:
        """The stream's own batch size, or what files suggest."""
        return self.batch

    def plan(self, key: PRNGKeyArray, block: Int[Array, ""] | int, count: int, n: int) -> PyTree:
        """Nothing to draw."""
        return None


class Stream:
    """Batches from a host iterator: a PyTorch DataLoader or any iterable of pytrees of arrays.

        E f(x, y; zeta) ~ 1/n sum_j f(x, y; zeta_j),    zeta_1, ..., zeta_n a batch of the iterable

    The iterable sets the batch size. A re-iterable (a list, a DataLoader) restarts when it ends; an exhausted
    generator ends the run with status "data_error". A short last batch is dropped with one warning. Batches are
    fetched ahead by a background thread.

    Args:
        iterable: yields batches, pytrees whose leaves have a leading axis.
        prefetch: how many batches to hold ready.

    Examples:
        >>> import hierax as hx
        >>> import numpy as np
        >>> batches = [np.zeros((4, 2)), np.ones((4, 2))]  # or a DataLoader
        >>> hx.Stream(batches, prefetch=4).prefetch
        4

    References:
        docs/guides/using.md, docs/guides/data.md
    """

    def __init__(self, iterable: Iterable[PyTree], prefetch: int = 16) -> None:
        if not isinstance(iterable, Iterable):
            raise InputError(f"Stream(iterable): needs an iterable of batches, got {type(iterable).__name__}.")
        check_setting("Stream", "prefetch", prefetch, COUNT_GIVEN)
        self.iterable = iterable
        self.prefetch = int(prefetch)


def is_spread_over_processes(source: AbstractSource | Stream | None) -> bool:
    """Whether other processes have rows of a data set that this one has not."""
    return isinstance(source, Finite) and source.local and jax.process_count() > 1


def streams(key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray]:
    """Independent keys for zeta, the outer xi~ and the inner xi."""
    zeta, xi, inner = jax.random.split(key, 3)
    return zeta, xi, inner


def plan(source: AbstractSource | None, key: PRNGKeyArray, block: Int[Array, ""] | int, count: int, n: int) -> PyTree:
    """`source.plan`; without a source there is nothing to draw."""
    return None if source is None else source.plan(key, block, count, n)


def fetch(source: AbstractSource | None, planned: PyTree) -> PyTree:
    """`source.fetch`; without a source the batch is None.

    Args:
        source: `Finite`, `Sampler` or None.
        planned: a part of `Tickets`, for example `tickets.zeta`.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> hx.extend.fetch(hx.Finite(jnp.arange(5.0)), jnp.array([0, 2]))
        Array([0., 2.], dtype=float32)
        >>> hx.extend.fetch(None, None) is None
        True
    """
    return None if source is None else source.fetch(planned)


def whole(source: AbstractSource | None, key: PRNGKeyArray) -> PyTree:
    """A batch whose mean stands for the expectation: all rows, the exact batch, or a sample fixed by the run's key.

        1/n sum_j g(x, y; batch_j) = E g(x, y; xi)     (without `exact`: approximately)

    Args:
        source: `Finite`, `Sampler` or None; a `Stream` is refused.
        key: the key of the run, which fixes the sample of a `Sampler` without `exact`.

    Examples:
        >>> import hierax as hx, jax, jax.numpy as jnp
        >>> hx.extend.whole(hx.Finite(jnp.arange(3.0)), jax.random.key(0))
        Array([0., 1., 2.], dtype=float32)

    References:
        docs/guides/own-method.md
    """
    if isinstance(source, Finite):
        return source.full()
    if isinstance(source, Sampler):
        return source.draw(jax.random.fold_in(key, 5), FRESH_SAMPLES) if source.exact is None else source.exact
    if source is not None:
        raise InputError(
            "a Stream and data in files are never seen as a whole; this needs xi (and zeta) as hx.Finite or hx.Sampler."
        )
    return None


def folded(tree: PyTree, *shape: int) -> PyTree:
    """Reshape the leading axis of every leaf to `shape`."""
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), tree)


def joined(tree: PyTree) -> PyTree:
    """Merge the two leading axes of every leaf: several planned batches become one."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)


def _shuffled(key: PRNGKeyArray, place: Int[Array, " n"], size: int) -> Int[Array, " n"]:
    """Entries `place` of a pseudo-random permutation of range(size), without building the permutation.

    An eight-round Feistel network permutes the numbers of `2 * half` bits; numbers beyond the data set are sent through
    it again until they fall inside (cycle walking), which keeps it a permutation. The cost is O(n) whatever the size,
    where shuffling all rows at every step would be O(size log size).
    """
    half = max(1, (int(size - 1).bit_length() + 1) // 2)
    mask = np.uint32(2**half - 1)
    rounds = jax.random.bits(key, (8,), jnp.uint32)  # four show in a chi-squared test below 100 rows

    def permute(value: Array) -> Array:
        left, right = value >> half, value & mask
        for salt in rounds:
            mixed = (right + salt) * np.uint32(0x9E3779B1)
            mixed = (mixed ^ (mixed >> 15)) * np.uint32(0x85EBCA77)
            left, right = right, left ^ ((mixed ^ (mixed >> 13)) & mask)
        return (left << half) | right

    def again(value: Array) -> Array:
        return jnp.where(value >= size, permute(value), value)

    start = permute(place.astype(jnp.uint32))
    inside = jax.lax.while_loop(lambda value: jnp.any(value >= size), again, start)
    return inside.astype(jnp.int32)


def default_size(source: AbstractSource | None, asked: int | None) -> int:
    """The batch size: as asked for, or what the source suggests."""
    return asked or (1 if source is None else source.default_batch())
