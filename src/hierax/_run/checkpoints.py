"""What a call has done so far, by name, kept in a folder: the same call with the same folder takes it over.

Whoever does a piece of work asks for its record first (`Notes.take`), and leaves one behind (`put`). A run of steps has
one record, which it replaces as it goes; a search leaves one for every piece that is done. Without a folder nothing is
kept.

Each checkpoint is a folder of its own, arrays.npz and checkpoint.json, and the newest two are kept. It is written under
another name, flushed to the disk and renamed, so that a process may be killed at any moment; hashes inside tell a
damaged one. Names of files come from here alone, never from what is read.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import logging
import math
import os
import re
import shutil
import time
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from hierax._base.errors import HieraxWarning, InputError
from hierax._base.files import UNFINISHED, FolderLock, flush_folder, move_folder_into_place, remove_folder
from hierax._base.settings import is_number
from hierax._base.text import versions
from hierax._run.packing import HASH, Packed, from_bytes, hash_of_json, packed, to_bytes, unpacked
from hierax._run.processes import Processes

FORMAT = "hierax checkpoint 4"
UNKNOWN = "unknown"  # a part that no text determines: a Stream's data, a function that calls back to Python
FUNCTION = "function "  # begins the name of what a function computes, whose text is JAX's own
NAME = re.compile(r"checkpoint-(\d{8})")
ARRAYS, CONTENT = "arrays.npz", "checkpoint.json"
CHECKPOINT_SECONDS = 60.0  # seconds of work that a kill may cost

logger = logging.getLogger("hierax")


# -- the folder -------------------------------------------------------------------------------------------------------


class Checkpoint(NamedTuple):
    """What one checkpoint holds.

    Attributes:
        identity: what it belongs to: problem, data and settings by name, as texts.
        versions: of hierax, JAX and what else the numbers may depend on.
        progress: how far the run was, in words.
        records: what was done, by name.
    """

    identity: dict[str, str]
    versions: dict[str, str]
    progress: str
    records: dict[str, Packed]


class Damaged(Exception):
    """A checkpoint that is not what was written."""


def numbers_in(path: Path) -> list[int]:
    """The numbers of the checkpoints in a folder, in their order; none where there is no such folder."""
    with contextlib.suppress(OSError):
        found = [NAME.fullmatch(name) for name in os.listdir(path)]
        return sorted(int(match.group(1)) for match in found if match)
    return []


def clear(path: Path) -> None:
    """Remove the checkpoints of a folder that no other run is using; InputError where one is."""
    if path.exists():
        lock = FolderLock(path)
        for number in numbers_in(path):
            remove_folder(_place(path, number))
        lock.release()


def _place(path: Path, number: int) -> Path:
    return path / f"checkpoint-{number:08d}"


def newest_checkpoint(path: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole, None where there is none; a damaged one is told of.

    Raises:
        InputError: there are some, and all are damaged.
    """
    numbers = numbers_in(path)
    for number in reversed(numbers):
        place = _place(path, number)
        try:
            return read_checkpoint(place)
        except Damaged as damage:
            text = f"checkpoint {place} is damaged ({damage}); the one before it is used, where there is one."
            warnings.warn(text, HieraxWarning, stacklevel=2)
    if numbers:
        raise InputError(
            f"checkpoint={str(path)!r}: every checkpoint in this folder is damaged. Remove the folder to begin anew, "
            "or name another one."
        )
    return None


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Add a checkpoint, and remove all but the newest two. Raises OSError; what was there then stays."""
    place = _place(path, max(numbers_in(path), default=0) + 1)
    unfinished = place.with_name(place.name + UNFINISHED)
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        _write_into(unfinished, checkpoint)
        move_folder_into_place(unfinished, place)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    for number in numbers_in(path)[:-2]:
        remove_folder(_place(path, number))


def _write_into(folder: Path, checkpoint: Checkpoint) -> None:
    records, arrays = packed(checkpoint.records)
    with open(folder / ARRAYS, "wb+") as file:
        np.savez(file, *arrays, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    written = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    content = {"format": FORMAT, "written": written, **checkpoint._asdict(), "records": records}
    content["sha256_of_arrays"] = sha256
    with open(folder / CONTENT, "w", encoding="utf-8") as text:
        json.dump({**content, "sha256": hash_of_json(content)}, text, indent=1, allow_nan=False)
        text.flush()
        os.fsync(text.fileno())
    flush_folder(folder)


def read_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in a folder. Raises `Damaged`."""
    try:
        content: dict[str, Any] = json.loads((folder / CONTENT).read_text("utf-8"))
        if content.pop("sha256") != hash_of_json(content):
            raise Damaged(f"the hash of {CONTENT} is another one")
        if content["format"] != FORMAT:
            raise InputError(f"{folder}: has the format {content['format']!r}; this hierax reads {FORMAT!r}.")
        with open(folder / ARRAYS, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != content["sha256_of_arrays"]:
                raise Damaged(f"the hash of {ARRAYS} is another one")
            file.seek(0)
            with np.load(file, allow_pickle=False) as stored:
                arrays = [stored[name] for name in stored.files]
        records = unpacked(Packed(content["records"], arrays), (Packed,))
        return Checkpoint(content["identity"], content["versions"], content["progress"], records)
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error


# -- the call ---------------------------------------------------------------------------------------------------------


class Journal:
    """The records of one call, and the folder that they are written to."""

    def __init__(self, path: Path | None, every: float) -> None:
        self.path, self.every = path, every
        self.records: dict[str, Packed] = {}
        self.log_lines: list[str] = []  # for the log of the solution
        self._lock: FolderLock | None = None
        self._identity: dict[str, str] = {}
        self._progress = ""
        self._changed = False
        self._failed = ""  # why the latest checkpoint is not on the disk
        self._taken = self._put_at = time.monotonic()  # when the records of the last checkpoint, and the last one, were
        self._write_seconds = 0.0  # that the last checkpoint took

    def open(self, identity: dict[str, str], processes: Processes) -> None:
        """Lock the folder and take over what is in it, if it belongs to the same call.

        Of several processes the first does so, and tells the others.
        """
        if self.path is None:
            return
        with processes.together():
            if processes.first:
                self._lock, self._identity = FolderLock(self.path), identity
                try:
                    self._take_over(self.path)
                except BaseException:
                    self.close()
                    raise
        if processes.shared:
            whole = processes.from_first(to_bytes((self.records, self.log_lines)))
            self.records, self.log_lines = from_bytes(whole, (Packed,))
        self._taken = time.monotonic()

    def _take_over(self, path: Path) -> None:
        for name in os.listdir(path):
            if name.endswith(UNFINISHED) and NAME.fullmatch(name.removesuffix(UNFINISHED)):
                shutil.rmtree(path / name, ignore_errors=True)  # left by a process that was killed while it wrote
        found = newest_checkpoint(path)
        if found is None:
            return
        odd = _differences(found, self._identity)
        if odd:
            raise InputError(
                f"checkpoint={str(path)!r}: belongs to another call. Different are: {'; '.join(odd)}. Call with what "
                "it was made with, or name another folder."
            )
        now = versions()
        older = [f"{name} {was} (now {now.get(name)})" for name, was in found.versions.items() if now.get(name) != was]
        if older:
            warnings.warn(
                f"checkpoint={str(path)!r}: was written with {', '.join(older)}: the last digits may differ from those "
                "of an uninterrupted run.",
                HieraxWarning,
                stacklevel=2,
            )
        self.records, self._progress = dict(found.records), found.progress
        self.log_lines.append(f"Resumed from the checkpoint {path} ({found.progress}).")
        logger.info("%s", self.log_lines[-1])

    @property
    def is_open(self) -> bool:
        """Whether the folder is locked for this call."""
        return self._lock is not None

    @property
    def left(self) -> float:
        """Seconds until the next records have to be taken, for a kill to cost `every` seconds of work at most.

        A checkpoint counts when it is written: until then a kill costs all that was done since the one before. Where
        writing takes most of that time, as much time is left for the run.
        """
        if self._lock is None:
            return math.inf
        reserve = 2 * self._write_seconds  # the next one may take longer to be written than the last
        between = max(self.every / 2 - reserve, self._write_seconds)  # half: a busy machine may take twice as long
        return self._taken + between - time.monotonic()

    def put(self, name: str, value: object, progress: str) -> None:
        """Keep a record; an earlier one of the same name is replaced. A record that cannot be kept ends no run."""
        self._put_at = time.monotonic()
        try:
            self.records[name] = packed(value)
            self._progress, self._changed = progress, True
        except Exception as error:
            self._fail(error)

    def write(self) -> None:
        """Write a checkpoint, if anything has changed. A failure ends no run, whatever it is: the last one stays."""
        if self._lock is None or self.path is None or not self._changed:
            return
        self._taken = self._put_at
        begin = time.monotonic()
        try:
            if not self._lock.there:  # the folder was deleted
                self._lock.release()
                self._lock = FolderLock(self.path)
            write_checkpoint(self.path, Checkpoint(self._identity, versions(), self._progress, self.records))
            self._failed, self._changed = "", False
        except Exception as error:
            self._fail(error)
        self._write_seconds = time.monotonic() - begin

    def _fail(self, error: Exception) -> None:
        """Say once that what was done is not in the checkpoint."""
        if not self._failed:
            warnings.warn(
                f"checkpoint={str(self.path)!r}: could not be written ({error}). The run goes on, and tries again "
                "every checkpoint_every seconds; the last checkpoint that was written stays.",
                HieraxWarning,
                stacklevel=2,
            )
        self._failed, self._taken = str(error) or type(error).__name__, time.monotonic()

    def close(self) -> None:
        """Let others in."""
        if self._failed:
            self.log_lines.append(f"The latest checkpoint could not be written ({self._failed}): {self.path} is older.")
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _differences(found: Checkpoint, now: dict[str, str]) -> list[str]:
    """In what a checkpoint and a call differ, in words; functions are compared where both have the same JAX."""
    same_jax = found.versions["jax"] == jax.__version__
    odd = []
    for name in dict.fromkeys([*found.identity, *now]):
        then, here = found.identity.get(name, "not set"), now.get(name, "not set")
        incomparable = UNKNOWN in (then, here) or (name.startswith(FUNCTION) and not same_jax)
        if then != here and not incomparable:
            odd.append(name if HASH in then + here else f"{name} ({then} then, {here} now)")
    return odd


class Notes:
    """A part of a journal: the records whose names begin alike."""

    def __init__(self, journal: Journal, prefix: str = "") -> None:
        self.journal, self._prefix = journal, prefix

    @property
    def kept(self) -> bool:
        """Whether there is a folder at all."""
        return self.journal.path is not None

    def under(self, name: str) -> Notes:
        """The notes of a part of the work."""
        return Notes(self.journal, f"{self._prefix}{name}/")

    def take(self, name: str, types: Iterable[type] = ()) -> Any:
        """What was put under this name by this call or an earlier one; None: nothing."""
        found = self.journal.records.get(self._prefix + name)
        return None if found is None else unpacked(found, types)

    def put(self, name: str, value: object, progress: str = "") -> None:
        """Keep a record, and write a checkpoint where it is time to."""
        if self.kept:
            self.journal.put(self._prefix + name, value, progress or f"{self._prefix}{name} done")
            if self.journal.left <= 0:
                self.journal.write()

    def drop(self) -> None:
        """Forget the records of this part: what came of them is kept elsewhere."""
        for name in [name for name in self.journal.records if name.startswith(self._prefix)]:
            del self.journal.records[name]


def notes_in(folder: object, every: object) -> Notes:
    """The notes of a call with these arguments `checkpoint` and `checkpoint_every`."""
    if folder is not None and not (isinstance(folder, str | Path) and str(folder)):
        raise InputError(f"checkpoint={folder!r}: needs the name of a folder, or None.")
    if not (is_number(every) and every > 0):
        raise InputError(f"checkpoint_every={every!r}: needs a positive number of seconds.")
    return Notes(Journal(None if folder is None else Path(folder), float(every)))


NOTHING_KEPT = Notes(Journal(None, CHECKPOINT_SECONDS))
