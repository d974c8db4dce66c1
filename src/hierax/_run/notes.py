"""What a call has done so far, by name, kept in checkpoints: the same call with the same folder takes it over.

Whoever does a piece of work asks for its record first (`take`), and leaves one behind (`put`). A run of steps has one
record, which it replaces as it goes; a search leaves one for every piece that is done. Without a folder nothing is
kept.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hierax._base.errors import HieraxWarning, InputError
from hierax._base.json_values import versions
from hierax._base.settings import is_number
from hierax._run.checkpoint_folder import Checkpoint, CheckpointFolder, Records, differences
from hierax._run.packing import from_bytes, packed, to_bytes, unpacked
from hierax._run.processes import Processes

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
