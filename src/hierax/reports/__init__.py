"""Reports on runs: one HTML page that needs no network, and figures for notebooks.

`sol.report(path)`, `sol.plot()` and `hierax report DIR ...` come here. The facts of a run (`facts`) are the JSON that
`hierax solve` writes too (`folder`); `page` makes the page of them, `figures` its charts of the `panels`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hierax._base.errors import InputError
from hierax._base.files import write_whole
from hierax._base.imports import lazy
from hierax._run.solution import Solution, Solutions
from hierax.reports.facts import facts_of, facts_of_many, rows_of_starts
from hierax.reports.folder import run_in
from hierax.reports.page import STARTS_HEADINGS, RunContent, page_of
from hierax.reports.panels import RunHistory, panels_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["STARTS_HEADINGS", "plot", "report", "report_folders", "rows_of_starts"]

drawing = lazy("hierax.reports.figures")  # not "figures": importing that module would replace it


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
    figure: Figure = drawing.figure_of(panels_of([RunHistory("", result.history.columns, answer)]), values, answer)
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
    except (KeyError, TypeError, ValueError, AttributeError) as error:
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
