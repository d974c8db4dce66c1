"""Files and figures of experiments. Thin: numbers are written here, and none is computed."""

import csv
import dataclasses
import json
import math
import os
import platform
import re
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hierax import MissingExtra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME_LENGTH = 40  # characters of a table's title in the name of its file


def new_figure(width: float, height: float) -> "Figure":
    """An empty matplotlib figure that no window system ever sees."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("figures need matplotlib: pip install 'hierax[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", path: Path) -> Path:
    """Write a figure as PNG; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def draw_or_say(draw: Callable[[], object], say: Callable[[str], None]) -> None:
    """Draw; where matplotlib is missing say how to get it, because the numbers are worth having without pictures."""
    try:
        draw()
    except MissingExtra as error:
        say(f"No figures: {error}")


class TableConsole(Console):
    """A console that keeps the tables that are printed on it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.tables: list[Table] = []

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print, and keep what is a table."""
        self.tables += [one for one in objects if isinstance(one, Table)]
        super().print(*objects, **settings)


def write_tables(folder: Path, tables: Sequence[Table]) -> None:
    """Every table as CSV and as a LaTeX tabular (booktabs), named by the first words of its title; makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables, 1):
        words = re.sub(r"[^a-z0-9]+", "-", Text.from_markup(str(table.title)).plain.lower()).strip("-")
        stem = folder / f"{number:02}-{words[:NAME_LENGTH].rstrip('-')}"
        columns = [[column.header, *column.cells] for column in table.columns]
        rows = [[Text.from_markup(str(cell)).plain for cell in row] for row in zip(*columns, strict=True)]
        with stem.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
        head, *body = [" & ".join(map(_latex, row)) + r" \\" for row in rows]
        lines = [rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}", r"\toprule", head, r"\midrule", *body]
        text = "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])
        stem.with_suffix(".tex").write_text(f"% {table.title}\n{text}", "utf-8")


def _latex(text: str) -> str:
    escaped = re.sub(r"([&%$#_{}])", r"\\\1", text)
    return re.sub(r"\^", r"\\textasciicircum{}", escaped).replace("+-", r"$\pm$")


def versions() -> dict[str, str]:
    """Versions of what the numbers of a run may depend on."""
    names = ("hierax", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy")
    system = {"python": platform.python_version(), "machine": platform.machine()}
    return {name: version(name) for name in names} | system


def write_json(path: Path, content: object) -> Path:
    """Write `plain(content)`; makes the folder. The file is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(json.dumps(plain(content), indent=2) + "\n", "utf-8")
    os.replace(unfinished, path)
    return path


def write_results(folder: Path, rows: object) -> None:
    """Write results.json into the folder of a benchmark; makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(rows, indent=1) + "\n")


def plain(value: object) -> object:
    """The value as JSON knows it: arrays become lists, modules and named tuples dictionaries, anything else text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no word for it
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return plain(np.asarray(value).tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__} | fields
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return str(value)
