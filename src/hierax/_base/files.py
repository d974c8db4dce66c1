"""Files that are whole or not there, whatever kills the process; and a lock that dies with the process.

What is written goes to a new name, is flushed to the disk, and is renamed: a reader sees the old content or the new.
"""

import contextlib
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from hierax._base.errors import InputError
from hierax._base.imports import lazy

filelock = lazy("filelock")

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""What a file of JSON holds."""


BYTES_OF_A_PART = 100  # that Python takes for a list, an object or an entry of them
ALLOWED_BYTES = 100_000_000  # for what is read from a file, beside ten times its length


def json_in(text: bytes, **options: Any) -> Any:
    """What a text of JSON says; ValueError where it is none, or would take far more memory than its own length.

    A name that stands twice in one object is refused. `options`: of `json.loads`.
    """
    parts = sum(map(text.count, (b"[", b"{", b",")))
    if 2 * len(text) + BYTES_OF_A_PART * parts > 10 * len(text) + ALLOWED_BYTES:
        raise ValueError("it has too many parts for its length")
    try:
        return json.loads(text, object_pairs_hook=_without_doubles, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Make or replace a file by what `write` puts into it; where that fails the old file stays."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        unfinished.unlink(missing_ok=True)  # what a killed process left, or a link, which is not followed
        with open(unfinished, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def _flush_folder(path: Path) -> None:
    """Flush the names in a folder to the disk, where the system has a way to do so."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that know nothing of the kind
            raise
    finally:
        os.close(descriptor)


class FolderLock:
    """A lock on a folder, held through a file in it: the system drops it when the process ends, however.

    A file that is a symbolic link is refused, and processes that this one forks do not hold the lock.
    """

    def __init__(self, folder: Path) -> None:
        """Make the folder where there is none, and lock it; InputError where that cannot be done."""
        self._path = folder / "lock"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = filelock.FileLock(self._path, blocking=False, thread_local=False)
            self._lock.acquire()
            self._file = os.stat(self._path)
        except filelock.Timeout:
            raise InputError(
                f"checkpoint={str(folder)!r}: another run writes into this folder. Wait for its end, or name another "
                "folder."
            ) from None
        except OSError as error:
            raise InputError(f"checkpoint={str(folder)!r}: cannot be written to ({error}). Name another.") from error

    @property
    def there(self) -> bool:
        """Whether the lock is still in its folder: a folder that was deleted takes it along."""
        try:
            return os.path.samestat(self._file, os.stat(self._path))
        except OSError:
            return False

    def release(self) -> None:
        """Let others in."""
        with contextlib.suppress(OSError):  # the process's end releases it too
            self._lock.release()
