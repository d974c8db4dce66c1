"""What a call has done so far, by name, kept in checkpoints: the same call with the same folder takes it over.

Whoever does a piece of work asks for its record first (`take`), and leaves one behind (`put`). A run of steps has one
record, which it replaces as it goes; a search leaves one for every piece that is done. Without a folder nothing is
kept.
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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from hierax._base.errors import HieraxWarning, InputError
from hierax._base.files import UNFINISHED, FolderLock, flush_folder, move_folder_into_place, remove_folder
from hierax._base.settings import is_number
from hierax._base.text import versions
from hierax._run.packing import HASH, Packed, from_bytes, packed, to_bytes, unpacked
from hierax._run.processes import Processes

FORMAT = "hierax checkpoint 3"
KEPT_CHECKPOINTS = 2  # checkpoints
UNKNOWN = "unknown"  # a part that no text determines: a Stream's data, a function that calls back to Python
FUNCTION = "function "  # begins the name of what a function computes, whose text is JAX's own
NAME = re.compile(r"checkpoint-(\d{8})")
ARRAYS, CONTENT = "arrays.npz", "checkpoint.json"

Records = dict[str, Packed]


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
    records: Records


class Damaged(Exception):
    """A checkpoint that is not what was written."""


class CheckpointFolder:
    """A folder of checkpoints, locked for this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FolderLock(path)
        for name in os.listdir(path):
            if name.endswith(UNFINISHED) and NAME.fullmatch(name.removesuffix(UNFINISHED)):
                shutil.rmtree(path / name, ignore_errors=True)  # left by a process that was killed while it wrote
        self._last = max(numbers_in(path), default=0)

    def close(self) -> None:
        """Let others in."""
        self._lock.release()

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, None where there is none; a damaged one is told of.

        Raises:
            InputError: there are some, and all are damaged.
        """
        numbers = sorted(numbers_in(self.path), reverse=True)
        for number in numbers:
            place = self._place(number)
            try:
                return read_checkpoint(place)
            except Damaged as damage:
                text = f"checkpoint {place} is damaged ({damage}); the one before it is used, where there is one."
                warnings.warn(text, HieraxWarning, stacklevel=2)
        if numbers:
            raise InputError(
                f"checkpoint={str(self.path)!r}: every checkpoint in this folder is damaged. Remove the folder to "
                "begin anew, or name another one."
            )
        return None

    def write(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint, and remove all but the newest ones. Raises OSError; what was there then stays."""
        if not self._lock.there:  # the folder was deleted
            self._lock.release()
            self._lock = FolderLock(self.path)
        place = self._place(self._last + 1)
        unfinished = place.with_name(place.name + UNFINISHED)
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            _write_into(unfinished, checkpoint)
            move_folder_into_place(unfinished, place)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        self._last += 1
        for number in sorted(numbers_in(self.path))[:-2]:
            remove_folder(self._place(number))

    def _place(self, number: int) -> Path:
        return self.path / f"checkpoint-{number:08d}"


def clear(path: Path) -> None:
    """Remove the checkpoints of a folder that no other run is using; InputError where one is."""
    if not path.exists():
        return
    lock = FolderLock(path)
    for number in numbers_in(path):
        remove_folder(path / f"checkpoint-{number:08d}")
    lock.release()


def numbers_in(path: Path) -> list[int]:
    """The numbers of the checkpoints in a folder; none where there is no such folder."""
    with contextlib.suppress(OSError):
        found = [NAME.fullmatch(name) for name in os.listdir(path)]
        return [int(match.group(1)) for match in found if match]
    return []


def _write_into(folder: Path, checkpoint: Checkpoint) -> None:
    arrays = {
        f"{number}.{i}": array
        for number, record in enumerate(checkpoint.records.values())
        for i, array in enumerate(record.arrays)
    }
    with open(folder / ARRAYS, "wb+") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    content = {
        "format": FORMAT,
        "versions": checkpoint.versions,
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "progress": checkpoint.progress,
        "identity": checkpoint.identity,
        "records": [
            {"name": name, "arrays": len(record.arrays), "content": record.content}
            for name, record in checkpoint.records.items()
        ],
        "sha256_of_arrays": sha256,
    }
    with open(folder / CONTENT, "w", encoding="utf-8") as text:
        json.dump({**content, "sha256": _hash_of(content)}, text, indent=1, allow_nan=False)
        text.flush()
        os.fsync(text.fileno())
    flush_folder(folder)


def read_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in a folder. Raises `Damaged`."""
    try:
        content: dict[str, Any] = json.loads((folder / CONTENT).read_text("utf-8"))
        stated = content.pop("sha256")
        if stated != _hash_of(content):
            raise Damaged(f"the hash of {CONTENT} is another one")
        if content["format"] != FORMAT:
            raise InputError(f"{folder}: has the format {content['format']!r}; this hierax reads {FORMAT!r}.")
        with open(folder / ARRAYS, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != content["sha256_of_arrays"]:
                raise Damaged(f"the hash of {ARRAYS} is another one")
            file.seek(0)
            with np.load(file, allow_pickle=False) as stored:
                records = {
                    one["name"]: Packed(one["content"], [stored[f"{number}.{i}"] for i in range(one["arrays"])])
                    for number, one in enumerate(content["records"])
                }
        return Checkpoint(content["identity"], content["versions"], content["progress"], records)
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error


def _hash_of(content: Mapping[str, object]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(found: Checkpoint, now: dict[str, str]) -> list[str]:
    """In what a checkpoint and a call differ, in words; functions are compared where both have the same JAX."""
    same_jax = found.versions["jax"] == jax.__version__
    odd = []
    for name in dict.fromkeys([*found.identity, *now]):
        then, here = found.identity.get(name, "not set"), now.get(name, "not set")
        incomparable = UNKNOWN in (then, here) or (name.startswith(FUNCTION) and not same_jax)
        if then != here and not incomparable:
            plain = HASH not in then + here
            odd.append(f"{name} ({then} then, {here} now)" if plain else name)
    return odd


CHECKPOINT_SECONDS = 60.0  # seconds of work that a kill may cost
ON_TIME_SHARE = 0.8  # share of it after which the records are taken: a busy machine may be slower than it was

logger = logging.getLogger("hierax")


class Journal:
    """The records of one call, and the folder that they are written to."""

    def __init__(self, path: Path | None, every: float) -> None:
        self.path, self.every = path, every
        self.records: Records = {}
        self.log_lines: list[str] = []  # for the log of the solution
        self._folder: CheckpointFolder | None = None
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
                self._open(identity)
        if processes.shared:
            self.records = from_bytes(processes.from_first(to_bytes(self.records)))
            self.log_lines = processes.from_first("\n".join(self.log_lines).encode()).decode().splitlines()

    def _open(self, identity: dict[str, str]) -> None:
        assert self.path is not None
        self._folder, self._identity = CheckpointFolder(self.path), identity
        try:
            found = self._folder.newest()
            if found is not None:
                self._take_over(found)
        except BaseException:
            self.close()
            raise
        self._taken = time.monotonic()

    def _take_over(self, found: Checkpoint) -> None:
        odd = differences(found, self._identity)
        if odd:
            raise InputError(
                f"checkpoint={str(self.path)!r}: belongs to another call. Different are: {'; '.join(odd)}. Call with "
                "what it was made with, or name another folder."
            )
        now = versions()
        older = {name: was for name, was in found.versions.items() if now.get(name) != was}
        if older:
            text = ", ".join(f"{name} {was} (now {now.get(name)})" for name, was in older.items())
            warnings.warn(
                f"checkpoint={str(self.path)!r}: was written with {text}: the last digits may differ from those of an "
                "uninterrupted run.",
                HieraxWarning,
                stacklevel=2,
            )
        self.records, self._progress = dict(found.records), found.progress
        self.log_lines.append(f"Resumed from the checkpoint {self.path} ({found.progress}).")
        logger.info("%s", self.log_lines[-1])

    @property
    def is_open(self) -> bool:
        """Whether the folder is locked for this call."""
        return self._folder is not None

    @property
    def left(self) -> float:
        """Seconds until the next records have to be taken, for a kill to cost `every` seconds of work at most.

        A checkpoint counts when it is written: until then a kill costs all that was done since the one before. Where
        writing takes most of that time, as much time is left for the run.
        """
        if self._folder is None:
            return math.inf
        reserve = 2 * self._write_seconds  # the next one may take longer to be written than the last
        between = max(ON_TIME_SHARE * self.every - reserve, self._write_seconds)
        return self._taken + between - time.monotonic()

    def put(self, name: str, value: object, progress: str) -> None:
        """Keep a record; an earlier one of the same name is replaced. A record that cannot be kept ends no run."""
        self._put_at = time.monotonic()
        try:
            self.records[name] = packed(value)
        except Exception as error:
            self._fail(error)
        else:
            self._progress, self._changed = progress, True

    def write(self) -> None:
        """Write a checkpoint, if anything has changed. A failure ends no run, whatever it is: the last one stays."""
        if self._folder is None or not self._changed:
            return
        self._taken = self._put_at
        begin = time.monotonic()
        try:
            self._folder.write(Checkpoint(self._identity, versions(), self._progress, self.records))
        except Exception as error:
            self._fail(error)
        else:
            self._failed, self._changed = "", False
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
        if self._folder is not None:
            self._folder.close()
            self._folder = None


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

    @property
    def left(self) -> float:
        """Seconds until what is under way should be put and written."""
        return self.journal.left

    def put(self, name: str, value: object, progress: str = "") -> None:
        """Keep a record, and write a checkpoint where it is time to."""
        if self.kept:
            self.journal.put(self._prefix + name, value, progress or f"{self._prefix}{name} done")
            if self.left <= 0:
                self.write()

    def write(self) -> None:
        """Write a checkpoint now."""
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
