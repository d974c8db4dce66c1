"""What a run leaves on disk, and figures that no window system sees. Thin: it writes numbers and computes none.

The folder of a run holds run.json (the facts that pages are made of: settings, versions, status, counts, problem,
certificate, starts), history.csv, arrays.npz and figures/.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.errors import MissingExtra
from hierax._base.files import write_whole
from hierax._base.imports import lazy
from hierax._base.text import as_json, versions
from hierax._run.solution import Solution
from hierax.reports.facts import certificate_facts, facts_of
from hierax.reports.folder import HISTORY, RUN, RUNNING, columns_in
from hierax.reports.panels import RunHistory, panels_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

figures = lazy("hierax.reports.figures")


def new_figure(width: float, height: float) -> "Figure":
    """An empty matplotlib figure that no window system ever sees."""
    figure: Figure = figures.empty_figure(width, height)
    return figure


def save_figure(figure: "Figure", path: Path) -> Path:
    """Write a figure as PNG; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
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
    """Write a single run's folder; run.json, which says that the others are there, comes last."""
    out.mkdir(parents=True, exist_ok=True)
    solution.history.to_csv(out / HISTORY)
    arrays = _named_arrays(solution)
    write_whole(out / "arrays.npz", lambda file: np.savez(file, allow_pickle=False, **arrays))
    write_json(out / RUN, facts_of(solution, settings))


def add_certificate(out: Path, solution: Solution) -> None:
    """Write the certificate into a run's folder, once it was made: it may take longer than the folder can wait."""
    facts = json.loads((out / RUN).read_text("utf-8"))
    write_json(out / RUN, {**facts, "certificate": certificate_facts(solution, certify=False)})


def _named_arrays(solution: Solution) -> dict[str, np.ndarray]:
    """Every array of the answer by its path, e.g. x, y['weights'], multipliers.inequalities."""
    parts: dict[str, PyTree] = {"x": solution.x, "y": solution.y, "multipliers": solution.multipliers}
    return {
        f"{name}{jax.tree_util.keystr(path)}": np.asarray(leaf)
        for name, tree in parts.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if eqx.is_array(leaf)
    }


def draw_history(out: Path) -> Path:
    """figures/history.png from history.csv: objective values, violation, residuals and steps, as on a page."""
    panels = panels_of([RunHistory("", columns_in(out / HISTORY), None)])
    return save_figure(figures.figure_of(panels, np.zeros(0), None), out / "figures" / "history.png")


def draw_or_say(draw: Callable[[], object], say: Callable[[str], None]) -> None:
    """Draw; where matplotlib is missing say how to get it, because the numbers are worth having without pictures."""
    try:
        draw()
    except MissingExtra as error:
        say(f"No figures: {error}")
