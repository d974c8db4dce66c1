"""The short commands: `hierax new`, `hierax check`, `hierax report`, `hierax verify` and `hierax demo`."""

import shlex
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from hierax._base.errors import InputError, RunFailed, printable
from hierax._base.interrupt import interruptible
from hierax._base.text import text_table
from hierax._engine.segments import SEGMENTS
from hierax._judge.check import check
from hierax._run import answers
from hierax._run.solution import Kind, Solution
from hierax.cli import group
from hierax.cli.user_file import Out, Target, split, stated
from hierax.problems import toy
from hierax.problems.example import Known
from hierax.reports.folder import report_folders, save_plot
from hierax.solving import solve

STATED = """\
min over x in [0,3] of F(x, y*(x)),  y*(x) = argmin (y - 2x)^2  s.t.  y <= x
F(x, y*(x)) has four local minimisers. hx.solve(problem, {x0:g}, {y0:g}) is called, no setting is given.
"""
NEW = "The file to write; it must not be there yet."
POINTS = "Segments around y0, sampled for convexity; half as many more cover Y."
FOLDERS = "Folders that `hierax solve --out` wrote."
PAGE = "The page; unset: DIR/report.html, or report.html here for several runs."
NEXT = (
    "Next: hierax new problem.py (state your own problem), README.md, docs/guides/certificate.md (the table);\n"
    "or run: hierax reproduce toy (the paper's experiment, 200 starts; of the package hierax-lab)."
)


def new_problem(file: Annotated[Path, typer.Argument(metavar="FILE.py", help=NEW)]) -> None:
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
    points: Annotated[int, typer.Option(min=1, help=POINTS)] = SEGMENTS,
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
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help=FOLDERS, show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", help=PAGE)] = None,
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
    try:
        found = answers.verify(problem, given)
    except RuntimeError as error:  # of a function that runs on the host, for example
        raise InputError(f"{target}: the answer cannot be judged: {error}") from error
    print(found.certificate)
    print(f"F        {found.upper:.10g}" + ("" if given.claimed is None else f" (claimed: {given.claimed:.10g})"))
    print(f"problem  {found.problem.sha256 or f'no hash: {found.problem.why}'}")
    print(f"answer   {given.sha256}")
    for line in (*found.objections, *found.remarks):
        print(printable(line))
    print(f"verdict  {found.verdict}")
    raise typer.Exit(group.VERDICTS.index(found.verdict))


def demo(out: Out = None) -> None:
    """Solve the paper's toy problem with nothing set, in seconds; print answer and certificate, and draw it."""
    folder, example = out or Path("out") / "demo", toy()
    solution = solve(example.problem, example.x0, example.y0)
    print(STATED.format(x0=float(example.x0), y0=float(example.y0)))
    print(_beside(solution, min(example.solutions, key=lambda known: known.upper)))
    print(f"\n{solution.certificate}\n", *solution.log[-2:], "", sep="\n")
    print(save_plot(solution, folder / "figures" / "demo.png"))
    print(f"Report: {solution.report(folder / 'report.html')}\n{NEXT}")
    if solution.status.kind is Kind.INTERRUPTED:
        raise KeyboardInterrupt
    if not solution.status.ok:
        raise RunFailed(f"the demo has no certified answer: {solution.status.message}", solution)


def _beside(solution: Solution, known: Known) -> str:
    """A table of the answer beside the known one."""
    multiplier, counts = solution.multipliers.inequalities, solution.counts
    rows = [
        ("", "found", "known"),
        ("upper variable x", f"{solution.x:.5f}", f"{known.x:.5f}"),
        ("lower variable y", f"{solution.y:.5f}", f"{known.y:.5f}"),
        ("multiplier of y <= x", f"{multiplier:.4f}", f"{known.multipliers:.4f}"),
        ("upper objective F(x, y)", f"{solution.value:.5f}", f"{known.upper:.5f}"),
        ("seconds", f"{counts.seconds:.2f}, and {counts.compile_seconds:.2f} to compile", ""),
    ]
    return text_table(f"Solution: {solution.status.name}", rows)
