"""What a call has done so far, by name, kept in a folder: the same call with the same folder takes it over.

Whoever does a piece of work asks for its record first (`Notes.take`), and leaves one behind (`put`). A run of steps has
one record, which it replaces as it goes; a search leaves one for every piece that is done. Without a folder nothing is
kept.

Each checkpoint is one file, NumPy's .npz with JSON as its first entry, and the newest two are kept. It is written under
another name, flushed to the disk and renamed, so that a process may be killed at any moment; the checksums inside tell
a damaged one. Names of files come from here alone, never from what is read.

Values are kept as JSON and plain arrays. No pickle: reading runs nothing. Numbers, texts, lists, tuples, dictionaries,
NumPy arrays and bytes come back as they were; of named tuples and data classes those whose types the reader names.

Of the state of a run only arrays and numbers are kept, in the order of its leaves, with their paths. The structure
(which settings there are, functions, optax transformations) comes from the call that goes on. `gathered` is the one
place where arrays leave the devices, `placed` the one where they return to them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import io
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.errors import HieraxWarning, InputError, printable, warn
from hierax._base.files import FolderLock, Json, json_in, write_whole
from hierax._base.settings import is_number
from hierax._base.text import versions
from hierax._base.trees import is_key, on_device
from hierax._compile.placement import read

# -- values -----------------------------------------------------------------------------------------------------------

HASH = "sha256:"  # begins every hash


class Packed(NamedTuple):
    """A value as JSON, in which arrays are numbered, and these arrays."""

    content: Json
    arrays: list[np.ndarray]


def packed(value: object) -> Packed:
    """Take a value apart.

    Examples:
        >>> packed({"a": (1.0, np.arange(2))})
        Packed(content={'dict': [['a', {'tuple': [1.0, {'array': 0}]}]]}, arrays=[array([0, 1])])
    """
    arrays: list[np.ndarray] = []
    return Packed(_taken_apart(value, arrays), arrays)


def unpacked(found: Packed, types: Iterable[type] = ()) -> Any:
    """Put a value together again; `types` are the named tuples and data classes that may be in it."""
    return _put_together(found.content, found.arrays, {one.__name__: one for one in types})


def save(file: BinaryIO, found: Packed) -> None:
    """Write a value that was taken apart into a file, as one .npz."""
    text = np.frombuffer(json.dumps(found.content, indent=1).encode(), np.uint8)
    np.savez(file, text, *found.arrays, allow_pickle=False)


def load(file: BinaryIO) -> Packed:
    """What was saved in a file; ValueError where it holds more than its length, as compressed or shared entries do."""
    length = file.seek(0, os.SEEK_END)
    file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        if sum(entry.file_size for entry in stored.zip.infolist()) > length:
            raise ValueError("it holds more than its length")
        text, *arrays = (stored[name] for name in stored.files)
    return Packed(json_in(text.tobytes()), arrays)


def _taken_apart(value: object, arrays: list[np.ndarray]) -> Json:
    apart = functools.partial(_taken_apart, arrays=arrays)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin-1")}
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            raise InputError("an array of Python objects cannot be kept in a checkpoint.")
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, list):
        return [apart(entry) for entry in value]
    if isinstance(value, dict):
        return {"dict": [apart(list(pair)) for pair in value.items()]}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields = value._asdict()
    elif isinstance(value, tuple):
        return {"tuple": apart(list(value))}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    else:
        raise InputError(f"a {type(value).__name__} cannot be kept in a checkpoint.")
    return {type(value).__name__: {name: apart(part) for name, part in fields.items()}}


def _put_together(content: Any, arrays: list[np.ndarray], types: dict[str, type]) -> Any:
    together = functools.partial(_put_together, arrays=arrays, types=types)
    if isinstance(content, list):
        return [together(entry) for entry in content]
    if not isinstance(content, dict):
        return content
    ((kind, inside),) = content.items()
    match kind:
        case "bytes":
            return inside.encode("latin-1")
        case "array":
            return arrays[inside]
        case "tuple":
            return tuple(together(inside))
        case "dict":
            return dict(together(inside))
    return types[kind](**{name: together(part) for name, part in inside.items()})


class Gathered(NamedTuple):
    """Paths of a tree's arrays, the arrays on the host (of random keys, their data), and how keys are made, by path."""

    paths: list[str]
    arrays: list[np.ndarray]
    keys: dict[str, str]


def gathered(tree: PyTree) -> Gathered:
    """Copies of the arrays and numbers of a tree, on the host: a run overwrites its own."""
    named = _stored(tree)
    keys = {name: str(jax.random.key_impl(leaf)) for name, leaf in named if is_key(leaf)}
    return Gathered([name for name, _ in named], [np.array(_to_numpy(leaf)) for _, leaf in named], keys)


def placed(found: Gathered, like: PyTree) -> PyTree:
    """The tree `like` (its arrays may be shapes only) with the arrays that were gathered from one of the same form.

    Raises:
        InputError: they are those of another problem or method.
    """
    expected = _stored(like)
    names = [name for name, _ in expected]
    if found.paths != names:
        odd = sorted(set(found.paths) ^ set(names))[:3]
        raise InputError(
            "checkpoint: its state does not fit this problem and method: they differ in "
            f"{', '.join(odd) or 'the order of entries'}. Resume with those that it was made with."
        )
    pairs = zip(expected, found.arrays, strict=True)
    restored = iter([_like(leaf, array, name, found.keys.get(name)) for (name, leaf), array in pairs])
    return jax.tree.map(lambda leaf: next(restored) if _is_stored(leaf) else leaf, like)


def hash_of_arrays(tree: PyTree) -> str:
    """The hash of the structure of a tree and of its numbers, without a copy of them."""
    whole = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.ascontiguousarray(_to_numpy(leaf))
        whole.update(f"{jax.tree_util.keystr(path)} {array.dtype.name} {array.shape}\n".encode())
        whole.update(array.reshape(-1).view(np.uint8).data)
    return HASH + whole.hexdigest()


def _stored(tree: PyTree) -> list[tuple[str, PyTree]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if _is_stored(leaf)]


def _is_stored(leaf: object) -> bool:
    return eqx.is_array_like(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _to_numpy(leaf: PyTree) -> np.ndarray:
    """The numbers of an array, or of a random key, without a copy where they are on the host."""
    found: np.ndarray = np.asarray(read(jax.random.key_data(leaf) if is_key(leaf) else leaf))
    return found


def _like(leaf: PyTree, array: np.ndarray, name: str, key: str | None) -> PyTree:
    """The stored array as the kind of thing that `leaf` is."""
    keyed = key is not None and is_key(leaf)
    expected = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    if array.dtype.kind == "V":  # npz does not know the names of JAX's own types
        array = array.view(expected.dtype)
    found = jax.random.wrap_key_data(on_device(array), impl=key) if keyed else array
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        raise InputError(
            f"checkpoint: {name} has shape {found.shape} and dtype {found.dtype}, this problem needs {expected.shape} "
            f"and {expected.dtype}. Resume with the problem that it was made with."
        )
    if keyed:
        return found
    return type(leaf)(array) if isinstance(leaf, bool | int | float) else on_device(array)


# -- the folder -------------------------------------------------------------------------------------------------------

FORMAT = "hierax checkpoint 6"
UNKNOWN = "unknown"  # a part that no text determines: a Stream's data, a function that calls back to Python
FUNCTION = "function "  # begins the name of what a function computes, whose text is JAX's own
NAME = "checkpoint-"  # begins the name of a file; its number follows
CHECKPOINT_SECONDS = 60.0  # seconds of work that a kill may cost

logger = logging.getLogger("hierax")


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


def checkpoints_in(path: Path) -> list[Path]:
    """The checkpoints in a folder, the oldest first; none where there is no such folder."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = [name for name in sorted(os.listdir(path)) if name.startswith(NAME)]
        return [path / name for name in names if name.removeprefix(NAME).isdecimal()]
    return []


def clear(path: Path) -> None:
    """Remove the checkpoints of a folder that no other run is using; InputError where one is."""
    if path.exists():
        lock = FolderLock(path)
        for place in checkpoints_in(path):
            shutil.rmtree(place) if place.is_dir() else place.unlink()  # those of older formats are folders
        lock.release()


def newest_checkpoint(path: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole, None where there is none; a damaged one is told of.

    Raises:
        InputError: there are some, and all are damaged.
    """
    try:
        places = checkpoints_in(path)
    except OSError as error:
        raise InputError(f"checkpoint={str(path)!r}: cannot be read ({error}).") from error
    for place in reversed(places):
        try:
            return read_checkpoint(place)
        except InputError:
            raise
        except Exception as error:  # a flipped bit may raise almost anything
            damage = f"{type(error).__name__}: {error}"
            warn(f"checkpoint {place} is damaged ({damage}); the one before it is used, where there is one.")
    if places:
        raise InputError(
            f"checkpoint={str(path)!r}: every checkpoint in this folder is damaged. Remove the folder to begin anew, "
            "or name another one."
        )
    return None


def _hash_of(content: dict[str, Any]) -> str:
    """The hash of what a checkpoint says, its arrays apart: these have checksums of their own."""
    return HASH + hashlib.sha256(json.dumps(content).encode()).hexdigest()


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Add a checkpoint, and remove all but the newest two. Raises OSError; what was there then stays."""
    records, arrays = packed(checkpoint.records)
    written = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    content = {"format": FORMAT, "written": written, **checkpoint._asdict(), "records": records}
    content["sha256"] = _hash_of(content)
    number = max((int(place.name.removeprefix(NAME)) for place in checkpoints_in(path)), default=0) + 1
    write_whole(path / f"{NAME}{number:08d}", lambda file: save(file, Packed(content, arrays)))
    with contextlib.suppress(OSError):  # one too many is no harm
        for place in checkpoints_in(path)[:-2]:
            place.unlink(missing_ok=True)


def read_checkpoint(place: Path) -> Checkpoint:
    """The checkpoint in a file. Raises InputError where it has another format, and anything where it is damaged."""
    content: Any = {"format": "of an older version"}
    if not place.is_dir():
        with open(place, "rb") as file:
            content, arrays = load(file)
    if content["format"] != FORMAT:
        raise InputError(f"{place}: has the format {content['format']!r}; this hierax reads {FORMAT!r}.")
    if content.pop("sha256") != _hash_of(content):
        raise ValueError("its text does not fit its checksum")
    records = unpacked(Packed(content["records"], arrays), (Packed,))
    return Checkpoint(content["identity"], content["versions"], content["progress"], records)


# -- the call ---------------------------------------------------------------------------------------------------------


class Journal:
    """The records of one call, and the folder that they are written to."""

    def __init__(self, path: Path | None, every: float) -> None:
        self.path, self.every = path, every
        self.records: dict[str, Packed] = {}
        self.log_lines: list[str] = []  # for the log of the solution
        self.lock: FolderLock | None = None
        self._identity: dict[str, str] = {}
        self._progress = ""
        self._changed = False
        self._failed = ""  # why the latest checkpoint is not on the disk
        self._taken = self._put_at = time.monotonic()  # when the records of the last checkpoint, and the last one, were
        self._write_seconds = 0.0  # that the last checkpoint took

    def open(self, identity: dict[str, str]) -> None:
        """Lock the folder and take over what is in it, if it belongs to the same call."""
        assert self.path is not None
        self.lock, self._identity = FolderLock(self.path), identity
        try:
            self._take_over(self.path)
        except BaseException:
            self.close()
            raise
        self._taken = time.monotonic()

    def share(self, from_first: Callable[[bytes], bytes]) -> None:
        """Of several processes the first has opened the journal: the others get what it took over."""
        whole = io.BytesIO()
        save(whole, packed((self.records, self.log_lines)))
        self.records, self.log_lines = unpacked(load(io.BytesIO(from_first(whole.getvalue()))), (Packed,))

    def _take_over(self, path: Path) -> None:
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
            warn(
                f"checkpoint={str(path)!r}: was written with {', '.join(older)}: the last digits may differ from those "
                "of an uninterrupted run."
            )
        self.records, self._progress = dict(found.records), found.progress
        self.log_lines.append(printable(f"Resumed from the checkpoint {path} ({found.progress})."))
        logger.info("%s", self.log_lines[-1])

    @property
    def left(self) -> float:
        """Seconds until the next records have to be taken, for a kill to cost `every` seconds of work at most.

        A checkpoint counts when it is written: until then a kill costs all that was done since the one before. Where
        writing takes most of that time, as much time is left for the run.
        """
        if self.lock is None:
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
        if self.lock is None or self.path is None or not self._changed:
            return
        self._taken = self._put_at
        begin = time.monotonic()
        try:
            if not self.lock.there:  # the folder was deleted
                self.lock.release()
                self.lock = FolderLock(self.path)
            write_checkpoint(self.path, Checkpoint(self._identity, versions(), self._progress, self.records))
            self._failed, self._changed = "", False
        except Exception as error:
            self._fail(error)
        self._write_seconds = time.monotonic() - begin

    def _fail(self, error: Exception) -> None:
        """Say once that what was done is not in the checkpoint."""
        if not self._failed:
            with contextlib.suppress(HieraxWarning):  # who turns warnings into errors gets an answer too
                warn(
                    f"checkpoint={str(self.path)!r}: could not be written ({error}). The run goes on, and tries again "
                    "every checkpoint_every seconds; the last checkpoint that was written stays."
                )
        self._failed, self._taken = str(error) or type(error).__name__, time.monotonic()

    def close(self) -> None:
        """Let others in."""
        if self._failed:
            self.log_lines.append(f"The latest checkpoint could not be written ({self._failed}): {self.path} is older.")
        if self.lock is not None:
            self.lock.release()
            self.lock = None


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
    if not (is_number(every) and 0 < every < math.inf):
        raise InputError(f"checkpoint_every={every!r}: needs a positive, finite number of seconds.")
    return Notes(Journal(None if folder is None else Path(folder), float(every)))


NOTHING_KEPT = Notes(Journal(None, CHECKPOINT_SECONDS))
