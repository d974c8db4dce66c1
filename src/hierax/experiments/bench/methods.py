"""`hierax bench methods`: every method of the registry, nothing set, on known-answer problems of six kinds.

`hierax bench run FILE.py:NAME` puts a method of the user's through the same problems, beside stored results. How a run
is made and judged is told in `methods_measure`, the problems in `methods_problems`.
"""

import json
from pathlib import Path
from typing import cast

from rich.console import Console

from hierax._base.errors import InputError
from hierax._methods.registry import METHODS
from hierax.experiments.bench.methods_measure import AUTO, Run, measure, method_called
from hierax.experiments.bench.methods_report import draw_profiles, print_report
from hierax.experiments.reproduce.workers import Name, Task, run_tasks
from hierax.report import draw_or_say

NAMES = [*METHODS, AUTO]
STORED = (Path("out/methods/results.json"), Path("benchmarks/results/methods.json"))  # own figures before the others'


def run(console: Console, problems: list[str], methods: list[str], out: Path, parallel: bool = True) -> list[Run]:
    """Run, print the tables, write results.json after every task and the profiles at the end; the runs.

    Args:
        console: where to print.
        problems: names of `methods_problems.ENTRIES`.
        methods: names of the registry, `auto`, or FILE.py:NAME.
        out: folder of results.json and figures/profiles.png.
        parallel: a process for every core; else all in this one.
    """
    tasks: dict[Name, Task[list[Run]]] = {
        (problem, method): (measure, (problem, method)) for problem in problems for method in methods
    }
    out.mkdir(parents=True, exist_ok=True)
    found: list[Run] = []

    def keep(results: dict[Name, list[Run]]) -> None:
        found[:] = [run for name in tasks if name in results for run in results[name]]
        (out / "results.json").write_text(json.dumps({"runs": found}, indent=1) + "\n")

    try:
        run_tasks(tasks, console, parallel, keep)
    finally:  # Ctrl-C keeps what there is
        print_report(console, found)
    draw_or_say(lambda: draw_profiles(out / "figures" / "profiles.png", found), console.print)
    return found


def run_own(
    console: Console, target: str, problems: list[str], beside: Path | None, out: Path, parallel: bool = True
) -> list[Run]:
    """The same for FILE.py:NAME alone, which is executed; its row is then printed among the stored ones.

    Args:
        console: where to print.
        target: FILE.py:NAME, a subclass of `hx.AbstractMethod` or one of its instances.
        problems: names of `methods_problems.ENTRIES`.
        beside: results of `hierax bench methods`; None: those in out/methods or benchmarks/results, if any.
        out: folder of results.json and of the profiles.
        parallel: a process for every core.
    """
    method_called(target)  # a mistake in it is told before anything runs
    others = [run for run in stored(console, beside) if run["problem"] in problems]
    own = run(console, problems, [target], out, parallel)
    if others:
        console.print("Beside the stored results (seconds compare on one and the same machine only):")
        print_report(console, [*others, *own])
        draw_or_say(lambda: draw_profiles(out / "figures" / "profiles.png", [*others, *own]), console.print)
    return own


def stored(console: Console, beside: Path | None) -> list[Run]:
    """The runs of an earlier `hierax bench methods`; none, with a word about it, where there are none."""
    file = beside or next((path for path in STORED if path.is_file()), None)
    if file is None:
        console.print("No stored results here: `hierax bench methods` makes them, or name a file with --beside.")
        return []
    try:
        return cast(list[Run], json.loads(file.read_text())["runs"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: is not what `hierax bench methods` writes ({error}).") from error
