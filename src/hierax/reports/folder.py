"""The folder of a run: what is written there, and what pages read from it again. Nothing in it is run.

It holds run.json (the facts that pages are made of: settings, versions, status, counts, problem, certificate, starts),
history.csv, arrays.npz, figures/, and beside them answer.json of `hierax solve`.
"""

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.errors import InputError, MissingExtra
from hierax._base.files import write_whole
from hierax._base.imports import lazy
from hierax._base.text import as_json, versions
from hierax._run.solution import Solution
from hierax.reports.facts import certificate_facts, facts_of
from hierax.reports.page import RunContent
from hierax.reports.panels import RunHistory, panels_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

figures = lazy("hierax.reports.figures")

RUN, HISTORY, ANSWER = "run.json", "history.csv", "answer.json"
RUNNING = "running"  # status of a run that is under way


def write_json(path: Path, content: object) -> Path:
    """Write `as_json(content)`; makes the folder. The file is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(as_json(content), indent=2) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))
    return path


def begin_run(out: Path, settings: Mapping[str, object]) -> None:
    """Say in a run's folder that it is under way: until `write_run` the other files there are older ones."""
    status = {"name": RUNNING, "message": "under way, or killed; --resume goes on", "step": 0}
    write_json(out / RUN, {"settings": settings, "versions": versions(), "status": status})


def write_run(out: Path, solution: Solution, settings: Mapping[str, object]) -> None:
    """Write a single run's folder; run.json, which says that the others are there, comes last.

    Arrays are named by their path, e.g. x, y['weights'], multipliers.inequalities.
    """
    out.mkdir(parents=True, exist_ok=True)
    solution.history.to_csv(out / HISTORY)
    parts: dict[str, PyTree] = {"x": solution.x, "y": solution.y, "multipliers": solution.multipliers}
    arrays = {
        f"{name}{jax.tree_util.keystr(path)}": np.asarray(leaf)
        for name, tree in parts.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if eqx.is_array(leaf)
    }
    write_whole(out / "arrays.npz", lambda file: np.savez(file, allow_pickle=False, **arrays))
    write_json(out / RUN, facts_of(solution, settings))


def add_certificate(out: Path, solution: Solution) -> None:
    """Write the certificate into a run's folder, once it was made: it may take longer than the folder can wait."""
    write_json(out / RUN, {**read_json(out / RUN), "certificate": certificate_facts(solution, certify=False)})


def draw_history(out: Path) -> Path:
    """figures/history.png from history.csv: objective values, violation, residuals and steps, as on a page."""
    panels = panels_of([RunHistory("", columns_in(out / HISTORY), None)])
    return save_figure(figures.figure_of(panels, np.zeros(0), None), out / "figures" / "history.png")


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


def run_in(folder: Path, name: str) -> RunContent:
    """The run in a folder; raises InputError where there is none, or where its files are damaged."""
    if not (folder / RUN).is_file():
        raise InputError(f"{folder}: holds no {RUN}; give a folder that `hierax solve --out` wrote.")
    facts = read_json(folder / RUN, status="name")
    if facts["status"]["name"] == RUNNING:  # the other files are of an earlier run
        return RunContent(name, facts, {})
    answer = read_json(folder / ANSWER) if (folder / ANSWER).is_file() else {}
    columns = columns_in(folder / HISTORY) if (folder / HISTORY).is_file() else {}
    stated = answer.get("problem")
    problem_hash = str(stated.get("sha256") or "") if isinstance(stated, dict) else ""
    return RunContent(name, {"value": answer.get("F"), **facts}, columns, problem_hash)


def read_json(path: Path, **needed: str) -> dict[str, Any]:
    """The object in a file; InputError where it is damaged, or has no such field in a part that is needed."""
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no object")
        _ = [found[part][field] for part, field in needed.items()]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise InputError(f"{path}: is damaged ({error}). Name another folder, or remove it.") from error
    return found


def columns_in(path: Path) -> dict[str, np.ndarray]:
    """The columns of a history.csv by name."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file)) or [[]]
        table = np.asarray(rows, float).reshape(len(rows), len(header))
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}: is damaged ({error}).") from error
    return dict(zip(header, table.T, strict=True))
