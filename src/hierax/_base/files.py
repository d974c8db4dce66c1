"""Files and folders that are whole or not there, whatever kills the process; and a lock that dies with the process.

What is written goes to a new name, is flushed to the disk, and is renamed: a reader sees the old content or the new.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from hierax._base.errors import InputError
from hierax._base.lazy import lazy

fcntl, msvcrt = lazy("fcntl"), lazy("msvcrt")  # of Unix, and of Windows

UNFINISHED = ".unfinished"  # ends the name of what is being written


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Make or replace a file by what `write` puts into it; where that fails the old file stays."""
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        with open(unfinished, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def move_folder_into_place(unfinished: Path, path: Path) -> None:
    """Rename a folder whose files are flushed; it is there as a whole, or not."""
    flush_folder(unfinished)
    os.rename(unfinished, path)
    flush_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder and what is in it; its name goes first, so that nobody meets half of it."""
    going = path.with_name(path.name + UNFINISHED)
    with contextlib.suppress(OSError):
        shutil.rmtree(going, ignore_errors=True)
        os.rename(path, going)
    shutil.rmtree(going, ignore_errors=True)


def flush_folder(path: Path) -> None:
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
    """A lock on a folder, held through an open file in it: the system drops it when the process ends, however."""

    NAME = "lock"

    def __init__(self, folder: Path) -> None:
        """Make the folder where there is none, and lock it; InputError names who holds it."""
        self._path = folder / self.NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "a+", encoding="ascii")  # noqa: SIM115  # as long as the lock is held
        except OSError as error:
            raise InputError(f"checkpoint={str(folder)!r}: cannot be written to ({error}). Name another.") from error
        try:
            _lock(self._file.fileno())
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise InputError(
                f"checkpoint={str(folder)!r}: another run writes into this folder (process {holder}). Wait for its "
                "end, or name another folder."
            ) from None
        with contextlib.suppress(OSError):  # who holds it is good to know, on a full disk not more
            self._file.truncate(0)
            self._file.write(str(os.getpid()))
            self._file.flush()

    @property
    def there(self) -> bool:
        """Whether the lock is still in its folder: a folder that was deleted takes it along."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._path))
        except OSError:
            return False

    def release(self) -> None:
        """Let others in."""
        self._file.close()


def _lock(descriptor: int) -> None:
    """Lock an open file, or raise OSError at once."""
    if os.name == "nt":
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
