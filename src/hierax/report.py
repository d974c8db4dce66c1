"""What a run leaves on disk, and figures that no window system sees. Thin: it writes numbers and computes none.

The folder of a run holds run.json (settings, versions, status, counts), history.csv, arrays.npz and figures/. The
experiments write their own files with the same helpers: `write_json`, `new_figure`, `save_figure`.
"""

import csv
import dataclasses
import json
import math
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import PyTree

import hierax
from hierax._base.errors import MissingExtra
from hierax._base.files import write_whole
from hierax._run.solution import Solution

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
RUN = "run.json"
RUNNING = "running"  # status of a run that is under way
PIP_LINE = "pip install 'hierax[plot]'"


def new_figure(width: float, height: float) -> "Figure":
    """An empty matplotlib figure that no window system ever sees."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra(f"figures need matplotlib: {PIP_LINE}") from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", path: Path) -> Path:
    """Write a figure as PNG; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def plain(value: object) -> Json:
    """The value as JSON knows it: arrays become lists, modules and named tuples dictionaries, anything else text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no word for it
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return plain(np.asarray(value).tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | {
            f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return str(value)


def write_json(path: Path, content: object) -> Path:
    """Write `plain(content)`; makes the folder. The file is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(plain(content), indent=2) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))
    return path


def versions() -> dict[str, str]:
    """What the numbers may depend on."""
    names = ("jax", "jaxlib", "equinox", "optax", "numpy")
    system = {"python": platform.python_version(), "machine": platform.machine()}
    return {"hierax": hierax.__version__} | {name: version(name) for name in names} | system


def begin_run(out: Path, settings: Mapping[str, object]) -> None:
    """Say in a run's folder that it is under way: until `write_run` the other files there are older ones."""
    status = {"name": RUNNING, "message": "under way, or killed; --resume goes on", "step": 0}
    write_json(out / RUN, {"settings": settings, "versions": versions(), "status": status})


def write_run(out: Path, solution: Solution, settings: Mapping[str, object]) -> None:
    """Write a single run's folder; run.json, which says that the others are there, comes last."""
    out.mkdir(parents=True, exist_ok=True)
    solution.history.to_csv(out / "history.csv")
    arrays = _named_arrays(solution)
    write_whole(out / "arrays.npz", lambda file: np.savez(file, allow_pickle=False, **arrays))
    content = {
        "settings": settings,
        "method": solution.method,
        "versions": versions(),
        "status": {"name": solution.status.name, "message": solution.status.message, "step": solution.status.step},
        "counts": solution.counts,
        "log": solution.log,
    }
    write_json(out / RUN, content)


def _named_arrays(solution: Solution) -> dict[str, np.ndarray]:
    """Every array of the answer by its path, e.g. x, y['weights'], multipliers.inequalities."""
    parts: dict[str, PyTree] = {"x": solution.x, "y": solution.y, "multipliers": solution.multipliers}
    return {
        f"{name}{jax.tree_util.keystr(path)}": np.asarray(leaf)
        for name, tree in parts.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if isinstance(leaf, jax.Array | np.ndarray)
    }


def _rows(path: Path) -> list[list[str]]:
    with open(path, newline="") as file:
        return list(csv.reader(file))


def draw_history(out: Path) -> Path:
    """figures/history.png from history.csv: objective values, violation, stationarity and inner residual by step."""
    header, *rows = _rows(out / "history.csv")
    table = np.asarray(rows, float).reshape(-1, len(header)).T
    columns = dict(zip(header, table, strict=True))
    figure = new_figure(9.0, 3.4)
    values, residuals = figure.subplots(1, 2)
    for name in ("upper", "lower"):
        values.plot(columns["step"], columns[name], label=f"{name} objective")
    for name in ("violation", "stationarity", "inner_residual"):
        seen = columns[name] > 0  # a logarithm has no place for zero
        residuals.semilogy(columns["step"][seen], columns[name][seen], label=name.replace("_", " "))
    for axes, title in ((values, "Sampled objective values"), (residuals, "Residuals")):
        axes.set(xlabel="outer step", title=title)
        axes.legend(frameon=False)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return save_figure(figure, out / "figures" / "history.png")


def draw_or_say(draw: Callable[[], object], say: Callable[[str], None]) -> None:
    """Draw; where matplotlib is missing say how to get it, because the numbers are worth having without pictures."""
    try:
        draw()
    except MissingExtra as error:
        say(f"No figures: {error}")
