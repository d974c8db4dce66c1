"""Rows of .npy files that are read as they are needed: data larger than memory.

Rows are read from the file, not from a mapping of it: the operating system counts as much as a megabyte around every
row that is touched in a mapping as memory of the process (190 MB after 256 rows of a file of 400 MB), and a mapping
of a file that becomes shorter ends the process.
"""

import hashlib
import math
import os
from os import PathLike, fspath
from pathlib import Path
from typing import BinaryIO, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.errors import InputError

FEW = 64  # rows that tell the contents of a file from those of others
WHAT = "Finite.from_files(paths)"


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
        """These rows; `numbers` ascend, so that the file is read in one direction and neighbours at once."""
        rows = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        into = rows.reshape(-1).view(np.uint8).data
        ends = np.append(np.flatnonzero(np.diff(numbers) != 1) + 1, len(numbers)).tolist()
        try:
            with open(self.path, "rb") as file:
                self._check_size(file)
                for first, end in zip([0, *ends], ends, strict=False):
                    part = into[first * self.row_bytes : end * self.row_bytes]
                    file.seek(self.offset + int(numbers[first]) * self.row_bytes)
                    if file.readinto(part) < len(part):
                        self._check_size(file)  # it was cut off since the last look
                        raise OSError("it ends before its last row")
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
        different, where = np.unique(numbers.reshape(-1), return_inverse=True)

        def read(file: NpyFile) -> np.ndarray:
            return file.rows(different)[where].reshape(*numbers.shape, *file.shape[1:])

        return jax.tree.unflatten(self._structure, [read(file) for file in self._files])

    def some_rows(self, count: int, seed: tuple[int, ...]) -> PyTree:
        """So many different rows, chosen by a seed; all of them where there are no more."""
        if count >= self.size:
            return self.rows(np.arange(self.size))
        return self.rows(np.random.default_rng(seed).choice(self.size, count, replace=False))

    def shapes(self, n: int) -> PyTree:
        """The form of n rows."""
        each = [jax.ShapeDtypeStruct((n, *f.shape[1:]), jax.dtypes.canonicalize_dtype(f.dtype)) for f in self._files]
        return jax.tree.unflatten(self._structure, each)

    def fingerprint(self) -> str:
        """What tells these data from others: their form, and the hash of some rows that are spread over the files.

        Names of files do not matter: they may have moved. Reading all of a large file would take too long.
        """
        whole = hashlib.sha256()
        numbers = np.unique(np.linspace(0, self.size - 1, FEW).astype(np.int64))
        for file in self._files:
            whole.update(f"{self._structure} {file.dtype.name} {file.shape}".encode())
            whole.update(file.rows(numbers).tobytes())
        return f"files of {self.size} rows, replace={self.replace}, sha256:{whole.hexdigest()}"
