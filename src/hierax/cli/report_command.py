"""`hierax report`: one HTML page about runs that `hierax solve` left in folders."""

from pathlib import Path
from typing import Annotated

import typer

from hierax.reports import report_folders

EXAMPLE = "Example: hierax report out/problem"


def write_report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Folders that `hierax solve --out` wrote.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The page; unset: DIR/report.html, or report.html here for several runs."),
    ] = None,
) -> None:
    """Write one HTML page about a run, or about several side by side.

    It needs no network; nothing is computed anew.
    """
    unset = folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
    print(f"Written to {report_folders(folders, out or unset)}")
