"""`hierax bench methods`: every method of the registry, nothing set, on known-answer problems of six kinds.

`hierax bench run FILE.py:NAME` puts a method of the user's through the same problems, beside stored results. How a run
is made and judged is told in `methods_measure`, the problems in `methods_problems`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

from rich.console import Console

from hierax import InputError
from hierax.extend import METHODS
from hierax_lab.bench.methods_measure import AUTO, Run, called, measure, method_called
from hierax_lab.bench.methods_report import draw_profiles, print_report
from hierax_lab.bench.own_method import line_in, shown, split
from hierax_lab.output import draw_or_say, write_results
from hierax_lab.reproduce.workers import Name, Task, run_tasks

NAMES = [*METHODS, AUTO]
OWN = Path("out/methods/results.json")  # of an earlier `hierax bench methods` here, on the machine of now
STORED = Path(__file__).with_name(
    "methods_results.json"
)  # those of docs/start/which-method.md, which come with the lab


def run(console: Console, problems: list[str], methods: list[str], out: Path, parallel: bool = True) -> list[Run]:
    """Run, print the tables, write results.json after every task and the profiles at the end; the runs.

    Args:
        console: where to print.
        problems: names of `methods_problems.ENTRIES`.
        methods: names of the registry, `auto`, or FILE.py:NAME.
        out: folder of results.json and figures/profiles.png.
        parallel: a process for every core; else all in this one.
    """
    return _reported(console, problems, methods, out, parallel, lambda found: print_report(console, found))


def run_own(
    console: Console, target: str, problems: list[str], beside: Path | None, out: Path, parallel: bool = True
) -> list[Run]:
    """The same for FILE.py:NAME alone, which is executed; its row is printed below the stored ones.

    Args:
        console: where to print.
        target: FILE.py:NAME, a subclass of `hx.AbstractMethod` or one of its instances.
        problems: names of `methods_problems.ENTRIES`.
        beside: results of `hierax bench methods`; None: those in out/methods, else those that come with hierax-lab.
        out: folder of results.json (the own runs) and of the profiles (all).
        parallel: a process for every core.
    """
    _built(target)
    others = [run for run in stored(beside) if run["problem"] in problems]

    def report(own: list[Run]) -> None:
        print_report(console, [*others, *own], detailed=[called(target)])
        console.print("Seconds compare on one and the same machine only; gradients and runs solved on all.")

    return _reported(console, problems, [target], out, parallel, report, others)


def _reported(
    console: Console,
    problems: list[str],
    methods: list[str],
    out: Path,
    parallel: bool,
    report: Callable[[list[Run]], None],
    others: list[Run] | None = None,
) -> list[Run]:
    """The runs of all methods on all problems, reported and drawn, with `others` in the figure."""
    tasks: dict[Name, Task[list[Run]]] = {
        (problem, method): (measure, (problem, method)) for problem in problems for method in methods
    }
    found: list[Run] = []

    def keep(results: dict[Name, list[Run]]) -> None:
        found[:] = [run for name in tasks if name in results for run in results[name]]
        write_results(out, {"runs": found})

    try:
        run_tasks(tasks, console, parallel, keep)
    finally:  # Ctrl-C keeps what there is
        report(found)
    draw_or_say(lambda: draw_profiles(out / "figures" / "profiles.png", [*(others or []), *found]), console.out)
    return found


def _built(target: str) -> None:
    """A mistake in the file, or a class that cannot be made with nothing set, is told before anything runs."""
    build = method_called(target)
    try:
        build()
    except Exception as error:
        file, name = split(target)
        raise InputError(
            f"{file}{line_in(file, error)}: {name}() failed: {shown(error)}. The table calls it with nothing set: give "
            "every setting a default, or name an instance."
        ) from error


def stored(beside: Path | None) -> list[Run]:
    """The runs of an earlier `hierax bench methods`."""
    file = beside or (OWN if OWN.is_file() else STORED)
    try:
        return cast(list[Run], json.loads(file.read_text())["runs"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: is not what `hierax bench methods` writes ({error}).") from error
