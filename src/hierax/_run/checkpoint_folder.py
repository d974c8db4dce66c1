"""The folder of a run's checkpoints: each a folder of its own, arrays.npz and checkpoint.json, the newest two kept.

A checkpoint is written under another name, flushed to the disk and renamed, so that a process may be killed at any
moment; hashes inside tell a damaged one. Names of files come from here alone, never from what is read.
"""

import contextlib
import datetime
import hashlib
import json
import os
import re
import shutil
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from hierax._base.errors import HieraxWarning, InputError
from hierax._base.files import UNFINISHED, FolderLock, flush_folder, move_folder_into_place, remove_folder
from hierax._run.packing import Packed
from hierax._run.state_arrays import HASH

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
