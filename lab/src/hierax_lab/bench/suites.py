"""`hierax bench suite NAME`: public collections of bilevel problems, every solver's answers judged outside hierax.

A suite is run by the benchmark that its kind of problem has: small ones with a judge that tries many starts below
(`external`), larger ones with convex lower levels by `medium`. There is no judge here.
"""

from pathlib import Path

from rich.console import Console

from hierax_lab.bench import external, macmpec, medium
from hierax_lab.bench.medium_problems import OWN, QPECS
from hierax_lab.bench.medium_solvers import SOLVERS as MEDIUM_SOLVERS
from hierax_lab.bench.solvers import SOLVERS as SMALL_SOLVERS

MEDIUM = {
    "qpec": list(QPECS),
    "portfolio": [name for name in OWN if name.startswith("portfolio")],
    "macmpec": macmpec.NAMES,
}
SECONDS = {"macmpec": 60.0}  # limit of every run, where a suite has one
PROBLEMS: dict[str, list[str]] = {**external.NAMES, **MEDIUM}


def solvers_of(suite: str) -> list[str]:
    """The solvers that a suite can be run with."""
    return list(MEDIUM_SOLVERS if suite in MEDIUM else SMALL_SOLVERS)


def run(
    console: Console,
    suite: str,
    seeds: int,
    solvers: list[str],
    data_dir: Path | None,
    out: Path,
    parallel: bool = True,
) -> bool:
    """Run a suite, print its tables, write results.json into the folder; whether every target is met."""
    names = PROBLEMS[suite]
    if suite in MEDIUM:
        return medium.run(console, names, solvers, SECONDS.get(suite), seeds, data_dir, out, parallel)
    return external.run(console, seeds, solvers, names, out, parallel)
