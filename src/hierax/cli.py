"""The command line: `hierax solve` and `hierax verify`, and the commands of the experiments, which are mounted here.

Thin: it parses, calls and prints. What every command shares is here too: float64, compiled programs kept between calls,
and mistakes of the user told in one line.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated, NamedTuple

import jax
import typer
from jaxtyping import PyTree
from rich.console import Console

import hierax
from hierax import report
from hierax._auto.auto import Auto
from hierax._base.errors import InputError, MissingExtra, RunFailed
from hierax._base.interrupt import interruptible
from hierax._compile.kept import cache
from hierax._methods.registry import METHODS
from hierax._problem.problem import Problem
from hierax._run import answers, checkpoint
from hierax._run.method import AbstractMethod
from hierax._run.solution import Solution
from hierax._run.status import Kind
from hierax._run.verifying import Verification, verify
from hierax.experiments import commands, user_file
from hierax.experiments.commands import Out
from hierax.solving import solve as run_solver

INTERRUPTED = 130  # exit code of a command that Ctrl-C ended, as shells have it
STATE, SETTINGS = "state.npz", "run.json"  # what a run leaves in its folder for --resume
ANSWER = "answer.json"  # and for `hierax verify`
VERIFIED = {"yes": 0, "no": 1, "unknown": 2}  # exit codes of `hierax verify`
BAD_INPUT = 3

SOLVERS: dict[str, Callable[[], AbstractMethod | Auto]] = {"auto": Auto, **METHODS}


class OneLineErrors(typer.core.TyperGroup):
    """Mistakes of the caller, failed runs and missing files are one line each; anything else is our bug and shows."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # the base names a private class
        """Run a command."""
        try:
            return super().invoke(ctx)
        except (InputError, RunFailed, MissingExtra, OSError) as error:
            _print_error(error)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted")
            raise typer.Exit(INTERRUPTED) from None


def _print_error(error: Exception) -> None:
    Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)


app = typer.Typer(
    cls=OneLineErrors,
    help="Bilevel optimisation with a constrained lower level, from noisy samples.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(commands.app)


def _solver_name(text: str) -> str:
    """The name of a method, as an option's value."""
    if text not in SOLVERS:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(SOLVERS)}.")
    return text


MethodName = Annotated[
    str | None,
    typer.Option(
        parser=_solver_name,
        metavar="NAME",
        # Among the words of the help, which are never broken; a metavar as long as this list would be, anywhere.
        help=f"The method: {', '.join(SOLVERS)}; unset: auto, or that of the run to resume.",
        show_default=False,
    ),
]


class Stated(NamedTuple):
    """A problem from a user's file, with its start."""

    problem: Problem
    x0: PyTree
    y0: PyTree


def _version(wanted: bool) -> None:
    if wanted:
        print(f"hierax {hierax.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Bilevel optimisation with a constrained lower level, from noisy samples."""
    jax.config.update("jax_enable_x64", True)
    _keep_programs()


def _keep_programs() -> None:
    """Keep compiled programs between calls, unless the user has chosen a folder for them or ours cannot be made."""
    setting = "jax_compilation_cache_dir"
    if getattr(jax.config, setting) is None:
        with suppress(InputError):
            cache()


# -- solve ------------------------------------------------------------------------------------------------------------


Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py:NAME",
        help="A function without arguments returning (problem, x0, y0), or a Problem beside x0 and y0.",
    ),
]


@app.command()
def solve(
    target: Target,
    method: MethodName = None,
    max_steps: Annotated[
        int | None,
        typer.Option(min=1, help="Outer steps of a method (10000 unless set); with --resume, further ones."),
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Time limit by the clock.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the state saved in the folder.")] = False,
) -> None:
    """Solve a problem stated in a Python file; results go to a folder (out/NAME unless set)."""
    file, name = user_file.split(target)
    folder = out or Path("out") / name
    chosen = method if method else _earlier_method(folder) if resume else "auto"
    if chosen == "auto" and max_steps is not None:
        raise InputError("--max-steps: belongs to a method that makes steps; give one (--method salvf), or --seconds.")
    stated = _stated(user_file.loaded(file), file, name)
    with interruptible():  # Ctrl-C ends the run, and what it has is written
        state = _saved_state(folder, stated, chosen, seed) if resume else None
        solution = run_solver(
            *stated, SOLVERS[chosen](), max_steps=max_steps, seconds=seconds, seed=seed, throw=False, state=state
        )
        settings = {"target": target, "method": chosen, "max_steps": max_steps, "seed": seed, "resumed": resume}
        _write(folder, solution, settings, resume)
    if solution.status.failed:
        raise RunFailed(f"{solution.status.message} What was computed is in {folder}.", solution)
    _print_solution(solution, folder)
    if solution.status.kind is Kind.INTERRUPTED:
        raise typer.Exit(INTERRUPTED)


def _write(folder: Path, solution: Solution, settings: Mapping[str, object], resume: bool) -> None:
    """Everything that a run leaves in its folder."""
    report.write_run(folder, solution, settings, resume)
    report.write_json(folder / ANSWER, answers.content_of(solution))
    if isinstance(solution.method, AbstractMethod) and solution.state is not None:
        checkpoint.save(folder / STATE, solution.state)
        report.draw_or_say(lambda: report.draw_history(folder), print)


def _stated(module: ModuleType, file: Path, name: str) -> Stated:
    found = getattr(module, name, None)
    if found is None:
        raise InputError(f"{file}: has no {name!r}; it defines {', '.join(_candidates(module)) or 'nothing public'}.")
    if isinstance(found, Problem):
        missing = [start for start in ("x0", "y0") if not hasattr(module, start)]
        if missing:
            raise InputError(f"{file}: {name} is a Problem, but {' and '.join(missing)} is not defined beside it.")
        return Stated(found, module.x0, module.y0)
    if not callable(found):
        raise InputError(f"{file}: {name} is a {type(found).__name__}; needs a Problem or a function returning one.")
    try:
        answer = found()
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{file}{user_file.line_in(file, error)}: {name}() failed: {user_file.shown(error)}"
        ) from error
    if not isinstance(answer, tuple) or len(answer) < 3 or not isinstance(answer[0], Problem):
        raise InputError(f"{file}: {name}() must return (problem, x0, y0), got {type(answer).__name__}.")
    return Stated(*answer[:3])  # an Example has further fields


def _candidates(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (isinstance(value, Problem) or (callable(value) and getattr(value, "__module__", None) == module.__name__))
    ]


def _earlier_method(folder: Path) -> str:
    if not (folder / SETTINGS).is_file():
        raise InputError(f"{folder}: nothing to resume, {SETTINGS} is missing; run without --resume first.")
    try:
        chosen = json.loads((folder / SETTINGS).read_text())["settings"]["method"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / SETTINGS}: is damaged ({error}); run without --resume.") from error
    if chosen not in SOLVERS:
        raise InputError(f"{folder / SETTINGS}: knows no method {chosen!r}; give --method {' or '.join(SOLVERS)}.")
    return str(chosen)


def _saved_state(folder: Path, stated: Stated, chosen: str, seed: int) -> PyTree:
    """The saved arrays in the structure of a fresh run's state (whose programs the run needs anyway)."""
    path = folder / STATE
    if not path.is_file():
        raise InputError(f"{folder}: nothing to resume, {STATE} is missing; run without --resume first.")
    fresh = run_solver(*stated, SOLVERS[chosen](), max_steps=1, seed=seed, progress=False, throw=False)
    return checkpoint.load(path, fresh.state)


def _print_solution(solution: Solution, folder: Path) -> None:
    """The log, the table of `print(sol)` with the certificate where one can be had, and where everything is."""
    for line in solution.log:
        print(line)
    seen = solution.judgement is not None  # a Stream is never seen as a whole
    if seen and solution.status.kind is not Kind.INTERRUPTED:
        _ = solution.certificate
    print(solution)
    resumes = "" if isinstance(solution.method, Auto) else " (go on with --resume)"
    print(f"Written to {folder}{resumes}")


# -- verify -----------------------------------------------------------------------------------------------------------


@app.command("verify")
def verify_answer(
    target: Target,
    answer: Annotated[Path, typer.Argument(metavar="ANSWER.json", help="x and y, as `hierax solve` writes them.")],
) -> None:
    """Check somebody's answer to a problem.

    Exit code: 0: the certificate says yes; 1: it says no, or F or the problem is not as claimed; 2: it is not decided;
    3: the problem or the answer cannot be read.
    """
    try:
        file, name = user_file.split(target)
        stated = _stated(user_file.loaded(file), file, name)
        given = answers.read(answer, *stated)
        found = verify(stated.problem, given)
    except (InputError, OSError) as error:
        _print_error(error)
        raise typer.Exit(BAD_INPUT) from None
    _print_verification(found, given)
    raise typer.Exit(VERIFIED[found.verdict])


def _print_verification(found: Verification, given: answers.Answer) -> None:
    print(found.certificate)
    print(f"F        {found.upper:.10g}" + ("" if given.claimed is None else f" (claimed: {given.claimed:.10g})"))
    print(f"problem  {found.problem.sha256 or f'no hash: {found.problem.why}'}")
    print(f"answer   {given.sha256}")
    for line in (*found.objections, *found.remarks):
        print(line)
    print(f"verdict  {found.verdict}")
