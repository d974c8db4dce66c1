"""Reports on runs: one HTML page that needs no network, and figures for notebooks.

`sol.report(path)`, `sol.plot()` and `hierax report DIR ...` come here. The facts of a run (`facts`) are the JSON that
`hierax solve` writes too; `content` makes typed data of them, `page` and `svg` the page.
"""

from collections.abc import Sequence
from pathlib import Path

from hierax._base.errors import InputError
from hierax._base.files import write_whole
from hierax._run.solution import Solution, Solutions
from hierax.reports.content import STARTS_HEADINGS, RunContent, content_of
from hierax.reports.facts import facts_of, facts_of_many
from hierax.reports.folder import run_in
from hierax.reports.page import page_of
from hierax.reports.plotting import plot, plot_many

__all__ = ["STARTS_HEADINGS", "plot", "plot_many", "report", "report_folders", "report_many", "rows_of_starts"]


def report(solution: Solution, path: Path, certify: bool) -> Path:
    """Write the page of a solution; `certify`: make its certificate where it is not known."""
    facts = facts_of(solution, solution.arguments, certify)
    return write_page([content_of(path.stem, facts, solution.history.columns)], path)


def report_many(solutions: Solutions, path: Path) -> Path:
    """Write the page of many starts."""
    return write_page([content_of(path.stem, facts_of_many(solutions), solutions.history.columns)], path)


def report_folders(folders: Sequence[Path], path: Path) -> Path:
    """Write the page of one or several runs, from the folders that `hierax solve` wrote."""
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    if len(set(names)) < len(names):
        raise InputError("hierax report: the same folder is given twice.")
    return write_page([run_in(folder, name) for folder, name in zip(folders, names, strict=True)], path)


def write_page(runs: Sequence[RunContent], path: Path) -> Path:
    """Write a page; the file is whole or not there."""
    text = page_of(runs).encode("utf-8", "replace")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: file.write(text))
    return path


def rows_of_starts(solutions: Solutions) -> list[tuple[str, ...]]:
    """Number, status, F, violation and verdict of every start."""
    return content_of("starts", facts_of_many(solutions), {}).each
