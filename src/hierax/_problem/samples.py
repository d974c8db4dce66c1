"""Where batches of zeta and xi come from.

A source splits the making of a batch in two: `plan` draws everything random about many batches at once (row numbers,
or the samples themselves), `fetch` turns one row of a plan into a batch inside the compiled step. Plans are keyed by a
stream's key and a block number, so that a run can be cut into chunks, resumed or repeated without changing what it
draws. `Stream` and data in files (`FiniteFiles`) are fed by the host instead (`_run.feeding`): what it hands over
already are batches.

Rows of files are read from the file, not from a mapping of it: the operating system counts as much as a megabyte around
every row that is touched in a mapping as memory of the process (190 MB after 256 rows of a file of 400 MB), and a
mapping of a file that becomes shorter ends the process.
"""

import abc
import errno
import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator
from os import PathLike, fspath
from pathlib import Path
from typing import BinaryIO, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from hierax._base.constants import FRESH_SAMPLES
from hierax._base.errors import InputError
from hierax._base.jaxprs import calls_the_host, depends_on_arguments, same_numbers, same_when_traced_again
from hierax._base.settings import COUNT_GIVEN, TRUE_OR_FALSE, check_setting
from hierax._base.trees import on_device

PAGE_BYTES = 4096  # between two rows of a file that are still read together
FINGERPRINT_ROWS = 64  # that tell the contents of a file from those of others
WHAT = "Finite.from_files(paths)"
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
            self.arrays = jax.tree.map(lambda a: on_device(a) if isinstance(a, np.ndarray) else jnp.asarray(a), arrays)
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

    def parts(self) -> Iterator[PyTree]:
        """All rows, in one piece."""
        yield self.arrays

    @staticmethod
    def from_files(paths: PyTree, replace: bool = True) -> "FiniteFiles":
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


class NpyFile(NamedTuple):
    """A .npy file as it was when it was opened first.

    Attributes:
        path: where it is.
        shape: of the array inside.
        dtype: likewise.
        offset: bytes before the first number.
        nbytes: size of the file.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int
    nbytes: int

    @staticmethod
    def opened(path: str | PathLike[str]) -> "NpyFile":
        """The file at a path; InputError where its rows cannot be read one by one."""
        where = Path(path).absolute()
        try:
            if where.exists() and not where.is_file():  # a FIFO would be waited for without end
                raise OSError(errno.EINVAL, "it is no plain file")
            mapped = np.lib.format.open_memmap(where, mode="r")
        except OSError as error:
            raise InputError(f"{WHAT}: cannot read {where}: {error.strerror or error}.") from error
        except ValueError as error:  # no .npy file, one that is cut off, or one of Python objects
            raise InputError(
                f"{WHAT}: {where} is no .npy file of numbers ({error}). Write it by np.save, or by "
                "np.lib.format.open_memmap where the array does not fit into memory."
            ) from error
        if mapped.dtype.kind not in "biufc":
            raise InputError(f"{WHAT}: {where} holds {mapped.dtype}, not numbers. Encode texts as numbers.")
        if mapped.ndim == 0 or not mapped.size:
            raise InputError(f"{WHAT}: {where} has no rows (shape {mapped.shape}).")
        if not mapped.flags.c_contiguous:
            raise InputError(
                f"{WHAT}: {where} is in Fortran order, where a row is scattered over the whole file. Write it by "
                "np.save(path, np.ascontiguousarray(array))."
            )
        return NpyFile(where, mapped.shape, mapped.dtype, mapped.offset, where.stat().st_size)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """These rows, in their order; the file is read in one direction, and neighbours at once."""
        order = np.argsort(numbers, kind="stable")
        there = numbers[order]
        rows, places = np.empty((len(numbers), *self.shape[1:]), self.dtype), self.offset + there * self.row_bytes
        # Rows that are close are read together, a megabyte at most: what lies between is copied faster than skipped.
        apart = (np.diff(places) > self.row_bytes + PAGE_BYTES) | (np.diff(places // 2**20) > 0)
        ends = np.append(np.flatnonzero(apart) + 1, len(numbers)).tolist()
        try:
            with open(self.path, "rb") as file:
                self._check_size(file)
                for first, end in zip([0, *ends], ends, strict=False):
                    file.seek(int(places[first]))
                    length = int(places[end - 1] - places[first]) + self.row_bytes
                    if len(part := file.read(length)) < length:
                        self._check_size(file)  # it was cut off since the last look
                        raise OSError("it ends before its last row")
                    found = np.frombuffer(part, self.dtype).reshape(-1, *self.shape[1:])
                    rows[order[first:end]] = found[there[first:end] - there[first]]
        except OSError as error:
            raise InputError(f"{WHAT}: cannot read {self.path} any more: {error.strerror or error}.") from error
        return rows.astype(self.dtype.newbyteorder("="), copy=False)

    def _check_size(self, file: BinaryIO) -> None:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes != self.nbytes:
            raise InputError(
                f"{WHAT}: {self.path} has {nbytes} bytes, and had {self.nbytes} when it was opened: it was written to "
                "in the meantime. Put the file back as it was."
            )


class FiniteFiles:
    """A finite data set in files, `hx.Finite.from_files`: the host reads the rows of every batch as they are needed.

    Attributes:
        replace: rows are drawn independently (True), or by reshuffled epochs (False).
    """

    def __init__(self, paths: PyTree, replace: bool) -> None:
        leaves, self._structure = jax.tree.flatten(paths)
        wrong = [leaf for leaf in leaves if not isinstance(leaf, str | PathLike)]
        if wrong or not leaves:
            got = type(wrong[0]).__name__ if wrong else "none"
            raise InputError(f"{WHAT}: needs a path of a .npy file, or a pytree of them; got {got}.")
        self._files = [NpyFile.opened(fspath(leaf)) for leaf in leaves]
        self.replace = replace
        lengths = {str(file.path): file.shape[0] for file in self._files}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{path} has {rows}" for path, rows in lengths.items())
            raise InputError(f"{WHAT}: every file needs the same number of rows (the samples); {told}.")

    @property
    def size(self) -> int:
        """Number of rows."""
        return self._files[0].shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of all files together."""
        return sum(file.row_bytes for file in self._files)

    def default_batch(self) -> int:
        """min(n, 32), as of `hx.Finite`."""
        return min(self.size, 32)

    def rows(self, numbers: np.ndarray) -> PyTree:
        """The rows with these numbers, of any shape, as arrays with the axes of `numbers` in front."""
        parts = [file.rows(numbers.reshape(-1)).reshape(*numbers.shape, *file.shape[1:]) for file in self._files]
        return jax.tree.unflatten(self._structure, parts)

    def some_rows(self, count: int, seed: tuple[int, ...]) -> PyTree:
        """`count` different rows, chosen by a seed; all rows where there are no more."""
        if count >= self.size:
            return self.rows(np.arange(self.size))
        return self.rows(np.random.default_rng(seed).choice(self.size, count, replace=False))

    def parts(self) -> Iterator[PyTree]:
        """All rows, in pieces of so many as are usual."""
        for first in range(0, self.size, FRESH_SAMPLES):
            yield self.rows(np.arange(first, min(first + FRESH_SAMPLES, self.size)))

    def shapes(self, n: int) -> PyTree:
        """The form of n rows."""
        each = [jax.ShapeDtypeStruct((n, *f.shape[1:]), jax.dtypes.canonicalize_dtype(f.dtype)) for f in self._files]
        return jax.tree.unflatten(self._structure, each)

    def fingerprint(self) -> str:
        """What tells these data from others: their form, and the hash of some rows that are spread over the files.

        Names of files do not matter: they may have moved. Reading all of a large file would take too long.
        """
        whole = hashlib.sha256()
        numbers = np.unique(np.linspace(0, self.size - 1, FINGERPRINT_ROWS).astype(np.int64))
        for file in self._files:
            whole.update(f"{self._structure} {file.dtype.name} {file.shape}".encode())
            whole.update(file.rows(numbers).tobytes())
        return f"files of {self.size} rows, replace={self.replace}, sha256:{whole.hexdigest()}"


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
    return jax.lax.while_loop(lambda value: jnp.any(value >= size), again, start).astype(jnp.int32)


def default_size(source: AbstractSource | None, asked: int | None) -> int:
    """The batch size: as asked for, or what the source suggests."""
    return asked or (1 if source is None else source.default_batch())
