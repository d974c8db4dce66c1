"""The short commands: `hierax new`, `hierax check`, `hierax report` and `hierax verify`."""

import shlex
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from hierax._base.errors import InputError
from hierax._base.interrupt import interruptible
from hierax._judge.check import check
from hierax._run import answers
from hierax.cli import group
from hierax.cli.user_file import Target, split, stated
from hierax.reports import report_folders


def new_problem(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="The file to write; it must not be there yet.")],
) -> None:
    """Write a commented problem to begin with, which can be solved as it is."""  # template.py of this folder
    if file.suffix != ".py":
        raise InputError(f"{file}: needs a name that ends in .py, for example problem.py.")
    text = resources.files("hierax.cli").joinpath("template.py").read_text("utf-8")
    try:
        with open(file, "x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError as error:
        raise InputError(f"{file}: is there already, and stays as it is; name another file.") from error
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror}); name another place.") from error
    target = shlex.quote(f"{file}:problem")
    print(f"Written to {file}. Read it, then:")
    print(f"  hierax check {target}    is it what the methods assume?")
    print(f"  hierax solve {target}    an answer, and whether it can be trusted")


def check_problem(
    target: Target,
    points: Annotated[
        int, typer.Option(min=1, help="Segments around y0, sampled for convexity; half as many more cover Y.")
    ] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampled points.")] = 0,
) -> None:
    """Look whether a problem is what the methods assume: finite, convex below, a Slater point, LICQ.

    Samples can refute an assumption, never prove it. A problem with an assumption that
    fails may still have a certified answer.

    Exit codes:
      0  nothing spoke against it
      1  the file cannot be read; 2: an option is misspelt
      3  an assumption fails
    """
    given = stated(*split(target))
    with interruptible() as interrupt:  # Ctrl-C ends the look, and what was seen is printed
        found = check(*given, points=points, seed=seed)
    print(found)
    if interrupt.asked:
        raise KeyboardInterrupt
    raise typer.Exit(group.DONE if found.ok else group.NOT_CERTIFIED)


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


def verify_answer(
    target: Target,
    answer: Annotated[Path, typer.Argument(metavar="ANSWER.json", help="x and y, as `hierax solve` writes them.")],
) -> None:
    """Check somebody's answer to a problem.

    Exit codes:
      0  the certificate says yes
      1  it says no, or F or the problem is not as claimed
      2  it is not decided (or an option is misspelt)
      3  the problem or the answer cannot be read
    """
    problem, x0, y0 = stated(*split(target))
    given = answers.read(answer, problem, x0, y0)
    found = answers.verify(problem, given)
    print(found.certificate)
    print(f"F        {found.upper:.10g}" + ("" if given.claimed is None else f" (claimed: {given.claimed:.10g})"))
    print(f"problem  {found.problem.sha256 or f'no hash: {found.problem.why}'}")
    print(f"answer   {given.sha256}")
    for line in (*found.objections, *found.remarks):
        print(line)
    print(f"verdict  {found.verdict}")
    raise typer.Exit(group.VERDICTS.index(found.verdict))
