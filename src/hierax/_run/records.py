"""Records of a run: collected chunk by chunk, told as a `History`."""

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from hierax._base.files import write_whole
from hierax._base.imports import lazy
from hierax._run.device import Record
from hierax._run.method import Costs

if TYPE_CHECKING:
    from pandas import DataFrame

pandas = lazy("pandas")

FOR_MESSAGES = ("pinned", "cycling", "slope_x")  # fields of a record that are no columns of the history


class History(Mapping[str, np.ndarray]):
    """Records of a run: one NumPy array per name, one row per record; `len` is the number of records.

    `dict(history)` gives the columns by name, `to_frame()` a table for pandas, `to_csv(path)` a file.

    Examples:
        >>> history = History({"step": np.array([1, 2]), "upper": np.array([0.5, 0.25])})
        >>> float(history["upper"].min())
        0.25
        >>> list(dict(history)), len(history)
        (['step', 'upper'], 2)
    """

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self.columns = columns

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.columns)}")
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns["step"])

    def __repr__(self) -> str:
        return f"History({len(self)} records of {', '.join(self.columns)})"

    def to_csv(self, path: str | Path) -> None:
        """Write the records of a single run as a table; the file is whole or not there."""
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(self.columns)
        writer.writerows(zip(*(column.tolist() for column in self.columns.values()), strict=True))
        write_whole(Path(path), lambda file: file.write(text.getvalue().encode()))

    def to_frame(self) -> "DataFrame":
        """The records as a `pandas.DataFrame`, one row per record (needs pandas).

        Records of many starts get one row per record and start, with the number of the start as a column.
        """
        many = [column for column in self.columns.values() if column.ndim > 1]
        if not many:
            return pandas.DataFrame(self.columns)
        starts = many[0].shape[1]
        flat = {
            name: column.reshape(-1) if column.ndim > 1 else np.repeat(column, starts)
            for name, column in self.columns.items()
        }
        return pandas.DataFrame({"start": np.tile(np.arange(starts), len(self)), **flat})


class Spending:
    """Costs of the steps of a run, part after part; `before`: what was spent before its first one."""

    def __init__(self, before: Costs) -> None:
        self.before = before
        self.parts: list[tuple[int, Costs]] = []  # the first step of a part, and what each step of it costs

    def begin(self, step: int, each: Costs) -> None:
        """From this step on every step costs `each`."""
        self.parts.append((step, each))

    def until(self, step: int | np.ndarray) -> dict[str, Any]:
        """Costs by name after `steps` steps."""
        ends = [first for first, _ in self.parts[1:]] + [np.iinfo(np.int64).max]
        made = [np.clip(step, first, end) - first for (first, _), end in zip(self.parts, ends, strict=True)]
        costs = zip(self.before, *(each for _, each in self.parts), strict=True)
        totals = [before + sum(n * each for n, each in zip(made, parts, strict=True)) for before, *parts in costs]
        return dict(zip(Costs._fields, totals, strict=True))


class Records:
    """The records of a run so far."""

    def __init__(self) -> None:
        self._tables: list[tuple[Record, np.ndarray]] = []

    def __len__(self) -> int:
        """Number of chunks that brought records."""
        return len(self._tables)

    def add(self, table: Record, count: int, begin: float, end: float) -> None:
        """Add the first `count` rows of a chunk's table, made between two times in seconds."""
        if count:
            rows = jax.tree.map(lambda a: np.asarray(a)[:count].copy(), table)  # not the rest of the table
            self._tables.append((rows, np.linspace(begin, end, count + 1)[1:]))

    def kept(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """All records as columns by name, and their times: what a checkpoint keeps."""
        if not self._tables:
            return {}, np.zeros((0,))
        tables, times = zip(*self._tables, strict=True)
        columns = {name: np.concatenate([getattr(table, name) for table in tables]) for name in Record._fields}
        return columns, np.concatenate(times)

    def restore(self, columns: dict[str, Any], times: np.ndarray) -> None:
        """Begin with what was `kept`."""
        self._tables = [(Record(**columns), times)] if columns else []

    def last(self, at: int = -1) -> dict[str, np.ndarray]:
        """The latest record (`at` 0: the first); empty where there is none yet."""
        return {name: column[at] for name, column in self._tables[at][0]._asdict().items()} if self._tables else {}

    def of(self, start: int, at: int = -1) -> dict[str, float]:
        """The same of one start."""
        return {name: float(np.ravel(number)[start]) for name, number in self.last(at).items()}

    def path(self, start: int, first: int) -> float:
        """How far a start's x has travelled since step `first`, every step counted."""
        columns, times = self.kept()
        steps, moved = (columns[name].reshape(len(times), -1)[:, start] for name in ("step", "step_x"))
        return float(np.diff(steps, prepend=first) @ moved.astype(float))

    def history(self, spending: Spending, many: bool) -> History:
        """All records, with the costs up to each."""
        kept, times = self.kept()
        columns = {name: kept.get(name, np.zeros(0)) for name in Record._fields if name not in FOR_MESSAGES}
        if many and kept:
            columns["step"] = columns["step"].max(axis=1)
        return History({**columns, "seconds": times, **spending.until(columns["step"].astype(int))})
