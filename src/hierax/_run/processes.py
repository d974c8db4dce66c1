"""Several processes that make one run together (`jax.distributed`): what they have to agree on, and how.

Every process executes the same programs in the same order, or all of them wait for ever. So whatever a process finds
out by itself (the time, Ctrl-C, an answer of a callback, a batch that does not come, a refusal of its data) is told to
the others at fixed places, and all of them act on the same numbers. A run on devices of one process agrees with itself.
"""

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from hierax._base.errors import InputError
from hierax._base.imports import lazy
from hierax._run.packing import hash_of_arrays

multihost_utils = lazy("jax.experimental.multihost_utils")


class Processes:
    """The processes whose devices a mesh has; without a mesh, or where all are its own, this one alone."""

    def __init__(self, mesh: object = None) -> None:
        owners = {device.process_index for device in mesh.devices.flat} if isinstance(mesh, Mesh) else set()
        self.shared = len(owners) > 1 or (bool(owners) and owners != {jax.process_index()})
        self.count = len(owners) if self.shared else 1
        if self.shared and len(owners) < jax.process_count():
            raise InputError(
                f"mesh: has devices of {len(owners)} of the {jax.process_count()} processes. Make it of all devices, "
                'jax.make_mesh((jax.device_count(),), ("data",)), or of this process alone (jax.local_devices()).'
            )

    @property
    def index(self) -> int:
        """The number of this one."""
        return jax.process_index() if self.shared else 0

    @property
    def first(self) -> bool:
        """Whether this is the process that writes, shows and decides."""
        return self.index == 0

    def exchanged(self, *numbers: int) -> np.ndarray:
        """Whole numbers of every process, one row each, known to all: here the processes wait for one another."""
        own = np.array(numbers, np.int32)
        return np.asarray(multihost_utils.process_allgather(own)) if self.shared else own[None]

    def from_first(self, content: bytes) -> bytes:
        """What the first process has; what the others give does not matter."""
        if not self.shared:
            return content
        length = self.exchanged(*np.array([len(content)]).view(np.int32))[0].view(np.int64)  # in numbers of 32 bits
        whole = np.zeros(int(length[0]), np.uint8)
        if self.first:
            whole[:] = np.frombuffer(content, np.uint8)
        return np.asarray(multihost_utils.broadcast_one_to_all(whole)).tobytes()

    def hash_of_all(self, text: str) -> str:
        """A hash of the texts of all processes, in their order."""
        own = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.int32)
        return hashlib.sha256(self.exchanged(*own.tolist()).tobytes()).hexdigest()

    def any(self, flag: bool) -> bool:
        """Whether some process says so."""
        return bool(self.exchanged(int(flag)).any())

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work without exchange that may fail: where it fails in one process, all of them leave it with an error."""
        if not self.shared:
            yield
            return
        try:
            yield
        except BaseException:
            self.exchanged(1)
            raise
        failed = np.flatnonzero(self.exchanged(0)[:, 0])
        if failed.size:
            raise InputError(f"process {failed[0]} could not go on; its own error says why. This one ends with it.")

    def check_alike(self, given: Mapping[str, object]) -> None:
        """Refuse arguments, by name, that are not the same in every process."""
        if not self.shared:
            return
        told = self.exchanged(*(_digest(value) for value in given.values()))
        for name, column in zip(given, told.T, strict=True):
            odd = np.flatnonzero(column != column[0])
            if odd.size:
                raise InputError(
                    f"{name}: is another one in process {odd[0]} than in process 0. All processes have to make the "
                    "same calls with the same arguments; only Finite(..., local=True) and Stream hold a part each."
                )


def _digest(value: PyTree) -> int:
    """A number of 31 bits that differs where a text, or the numbers in a tree, do."""
    text = value if isinstance(value, str) else hash_of_arrays(value)
    return zlib.crc32(text.encode()) >> 1
