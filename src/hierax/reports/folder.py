"""What is left of a run: its page, its figure, and the folder that pages can be made from. Nothing in it is run.

The folder holds run.json (the facts that pages are made of: settings, versions, status, counts, problem, certificate,
starts), history.csv, arrays.npz, figures/, and beside them answer.json of `hierax solve`.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.errors import InputError, MissingExtra
from hierax._base.files import json_in, write_whole
from hierax._base.imports import lazy
from hierax._base.text import as_json, versions
from hierax._run.solution import Solution, Solutions
from hierax.reports.facts import certificate_facts, facts_of, facts_of_many, rows_of_starts
from hierax.reports.page import STARTS_HEADINGS, RunContent, page_of
from hierax.reports.panels import RunHistory, panel_of_starts, panels_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["STARTS_HEADINGS", "rows_of_starts"]  # with what stands here, all that solutions and commands use

figures = lazy("hierax.reports.figures")

RUN, HISTORY, ANSWER = "run.json", "history.csv", "answer.json"
RUNNING = "running"  # status of a run that is under way


def report(result: Solution | Solutions, path: Path, certify: bool = False) -> Path:
    """Write the page of a run, or of the runs from many starts.

    Args:
        result: of `solve` or `solve_many`.
        path: of the page.
        certify: make the certificate of a single run where it is not known.
    """
    facts = facts_of_many(result) if isinstance(result, Solutions) else facts_of(result, result.arguments, certify)
    return _write_page([RunContent(path.stem, facts, result.history.columns)], path)


def plot(result: Solution | Solutions) -> "Figure":
    """The convergence of a run or of many, and F at the ends of the starts where there are several."""
    answer = result.value if isinstance(result, Solution) else None
    values = np.array(result.starts.values if isinstance(result, Solution) else result.values, float)
    panels = panels_of([RunHistory("", result.history.columns, answer)])
    if np.isfinite(values).sum() > 1:
        panels.append(panel_of_starts(values, answer))
    figure: Figure = figures.figure_of(panels)
    return figure


def report_folders(folders: Sequence[Path], path: Path) -> Path:
    """Write the page of one or several runs, from the folders that `hierax solve` wrote."""
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    if len(set(names)) < len(names):
        raise InputError("hierax report: the same folder is given twice.")
    try:
        return _write_page([run_in(folder, name) for folder, name in zip(folders, names, strict=True)], path)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        said = f"{type(error).__name__}: {error}"
        raise InputError(f"{' or '.join(names)}: run.json is damaged ({said}).") from error


def _write_page(runs: Sequence[RunContent], path: Path) -> Path:
    """Write a page; the file is whole or not there."""
    text = page_of(runs).encode("utf-8", "replace")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: file.write(text))
    return path


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
    arrays: dict[str, np.ndarray] = {}
    for name, tree in parts.items():
        leaves = [one for one in jax.tree_util.tree_leaves_with_path(tree) if eqx.is_array(one[1])]
        arrays |= {f"{name}{jax.tree_util.keystr(path)}": np.asarray(leaf) for path, leaf in leaves}
    write_whole(out / "arrays.npz", lambda file: np.savez(file, allow_pickle=False, **arrays))
    write_json(out / RUN, facts_of(solution, settings))


def add_certificate(out: Path, solution: Solution) -> None:
    """Write the certificate into a run's folder, once it was made: it may take longer than the folder can wait."""
    write_json(out / RUN, {**read_json(out / RUN), "certificate": certificate_facts(solution, certify=False)})


def save_plot(solution: Solution, path: Path) -> str:
    """Draw a run as PNG: where it is, or how to get matplotlib, because numbers are worth having without pictures."""
    try:
        figure = plot(solution)
    except MissingExtra as error:
        return f"No figures: {error}"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return f"Figure: {path}"


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
        found: dict[str, Any] = json_in(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it holds no object")
        _ = [found[part][field] for part, field in needed.items()]
    except (ValueError, KeyError, TypeError) as error:
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
