"""The command line: `hierax solve` and `hierax verify`, and the commands of the experiments, which are mounted here.

Thin: it parses, calls and prints. What every command shares is here too: float64, compiled programs kept between calls,
and mistakes of the user told in one line.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NamedTuple

import jax
import typer
from jax.sharding import Mesh
from jaxtyping import PyTree
from rich.console import Console

import hierax
from hierax import report
from hierax._auto.auto import Auto
from hierax._auto.kept_answer import GOES_ON
from hierax._base.errors import InputError, MissingExtra, RunFailed
from hierax._base.interrupt import CTRL_C, interruptible
from hierax._compile.kept import cache
from hierax._methods.registry import METHODS
from hierax._problem.problem import Problem
from hierax._run import answers
from hierax._run.checkpoint_folder import clear, numbers_in
from hierax._run.method import AbstractMethod
from hierax._run.notes import EVERY
from hierax._run.processes import Processes
from hierax._run.solution import Solution
from hierax._run.status import Kind
from hierax._run.verifying import Verification, verify
from hierax.experiments import commands, user_file
from hierax.experiments.commands import Out
from hierax.reports import report_folders
from hierax.solving import solve as run_solver

INTERRUPTED = 130  # exit code of a command that Ctrl-C ended, as shells have it
TERMINATED = 143  # and of one that SIGTERM ended
CHECKPOINT = "checkpoint"  # what a run leaves in its folder for --resume
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
        typer.Option(min=1, help="Outer steps of a method in all (10000 unless set), those before --resume included."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Time limit of this command by the clock.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of all random numbers (0 unless set).", show_default=False)
    ] = None,
    out: Out = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the run in the folder, whatever ended it, kill -9 too; without one, begin."
        ),
    ] = False,
    checkpoint_every: Annotated[
        float, typer.Option(min=1e-3, help="Seconds between checkpoints: so much work a kill may cost.")
    ] = EVERY,
    distributed: Annotated[
        bool,
        typer.Option("--distributed", help="One of several processes of a run, on all their devices: docs/cluster.md."),
    ] = False,
    coordinator: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address of process 0; under SLURM and Open MPI it is found."),
    ] = None,
    num_processes: Annotated[int | None, typer.Option(min=1, help="How many processes there are.")] = None,
    process_id: Annotated[int | None, typer.Option(min=0, help="Which of them this one is.")] = None,
) -> None:
    """Solve a problem stated in a Python file, which is run as it is; results go to a folder (out/NAME unless set)."""
    file, name = user_file.split(target)
    folder = out or Path("out") / name
    if not distributed and (coordinator, num_processes, process_id) != (None, None, None):
        raise InputError("--coordinator, --num-processes, --process-id: belong to --distributed; give it too.")
    if distributed and not resume and method in (None, "auto"):
        raise InputError("--distributed: needs a method that makes steps; give one, for example --method salvf.")
    mesh = _joined(coordinator, num_processes, process_id) if distributed else None
    processes = Processes(mesh)
    chosen = Settings(method, max_steps, seed)
    with processes.together():
        if resume and processes.first:
            chosen = _with_earlier(chosen, folder)
    chosen = Settings(*json.loads(processes.from_first(json.dumps(chosen).encode())))
    chosen = chosen._replace(method=chosen.method or "auto", seed=chosen.seed or 0)
    if chosen.method == "auto" and chosen.max_steps is not None:
        raise InputError("--max-steps: belongs to a method that makes steps; give one (--method salvf), or --seconds.")
    if processes.first:
        print(f"Running the Python file {file} for its {name}.")
    with processes.together():
        stated = _stated(user_file.loaded(file), file, name)
    settings = {"target": target, **chosen._asdict(), "resumed": resume}
    with interruptible() as interrupt:  # Ctrl-C ends the run, and what it has is written
        with ExitStack() as stack:
            with processes.together():
                if processes.first:
                    if not resume:
                        _refuse_to_lose(folder)
                        clear(folder / CHECKPOINT)
                    stack.enter_context(_under_way(folder, settings))
            solution = run_solver(
                *stated,
                SOLVERS[str(chosen.method)](),
                max_steps=chosen.max_steps,
                seconds=seconds,
                seed=chosen.seed or 0,
                throw=False,
                checkpoint=folder / CHECKPOINT,
                checkpoint_every=checkpoint_every,
                mesh=mesh,
            )
        if processes.first:
            _write(folder, solution, settings)
    if solution.status.failed:
        raise RunFailed(f"{solution.status.message} What was computed is in {folder}.", solution)
    if processes.first:
        _print_solution(solution, folder)
    if solution.status.kind is Kind.INTERRUPTED:
        raise typer.Exit(INTERRUPTED if interrupt.by == CTRL_C else TERMINATED)


def _joined(coordinator: str | None, num_processes: int | None, process_id: int | None) -> Mesh:
    """The devices of all processes of the run, once they have found each other."""
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"--distributed: the processes did not find each other. {error} Give each of them --coordinator HOST:PORT "
            "(the same, of process 0), --num-processes and a --process-id of its own."
        ) from error
    return jax.make_mesh((jax.device_count(),), ("data",))


class Settings(NamedTuple):
    """Options that a resumed run takes over from the run it goes on with; None: not given."""

    method: str | None
    max_steps: int | None
    seed: int | None


@contextmanager
def _under_way(folder: Path, settings: Mapping[str, object]) -> Iterator[None]:
    """The folder says that a run is under way; where the run is refused, it says what it said before."""
    path = folder / report.RUN
    try:
        before = path.read_bytes() if path.is_file() else None
        report.begin_run(folder, settings)
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written to ({error}). Name another folder.") from error
    try:
        yield
    except InputError:
        path.unlink() if before is None else path.write_bytes(before)
        raise


def _write(folder: Path, solution: Solution, settings: Mapping[str, object]) -> None:
    """Everything that a run leaves in its folder; where that cannot be written, the answer is printed at least."""
    try:
        report.write_json(folder / ANSWER, answers.content_of(solution))
        report.write_run(folder, solution, settings)
        if isinstance(solution.method, AbstractMethod) and solution.state is not None:
            report.draw_or_say(lambda: report.draw_history(folder), print)
    except OSError:
        print(json.dumps(report.plain(answers.content_of(solution))))
        raise


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


def _earlier(folder: Path) -> dict[str, Any] | None:
    """What run.json says of the run in the folder; None: there is none."""
    path = folder / report.RUN
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        _ = found["status"]["name"], found["settings"]["method"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: is damaged ({error}). Name another folder, or remove it.") from error
    return found


def _with_earlier(asked: Settings, folder: Path) -> Settings:
    """The options of the run to resume, where the command does not set them.

    Where there is no run it begins: one command serves for the first time and after every kill, also after one that hit
    before there was a folder.
    """
    earlier = _earlier(folder)
    if earlier is None:
        print(f"Nothing to resume in {folder}: the run begins.")
        return asked
    if earlier["status"]["name"] != report.RUNNING and not numbers_in(folder / CHECKPOINT):
        raise InputError(f"{folder}: nothing to resume, {CHECKPOINT} is missing; run without --resume first.")
    known = Settings(*(earlier["settings"].get(name) for name in Settings._fields))
    if known.method not in SOLVERS:
        raise InputError(f"{folder / report.RUN}: knows no method {known.method!r}; it knows {', '.join(SOLVERS)}.")
    return Settings(
        asked.method or known.method,
        asked.max_steps or known.max_steps,
        known.seed if asked.seed is None else asked.seed,
    )


def _refuse_to_lose(folder: Path) -> None:
    """Refuse to begin anew where a run that was killed can go on."""
    earlier = _earlier(folder)
    if earlier is not None and earlier["status"]["name"] == report.RUNNING and numbers_in(folder / CHECKPOINT):
        raise InputError(
            f"--out {folder}: holds a run that was killed, or is under way. Add --resume to go on with it, name "
            f"another folder, or remove {folder / CHECKPOINT}."
        )


def _print_solution(solution: Solution, folder: Path) -> None:
    """The log, the table of `print(sol)` with the certificate where one can be had, and where everything is."""
    for line in solution.log:
        print(line)
    seen = solution.judgement is not None  # a Stream is never seen as a whole
    if seen and solution.status.kind is not Kind.INTERRUPTED:
        _ = solution.certificate
        report.add_certificate(folder, solution)
    print(solution)
    print(f"Written to {folder} (go on with --resume)" if solution.status.kind in GOES_ON else f"Written to {folder}")


# -- report -----------------------------------------------------------------------------------------------------------


@app.command("report")
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
    """Write one HTML page about a run, or about several side by side. It needs no network; nothing is computed anew."""
    unset = folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
    print(f"Written to {report_folders(folders, out or unset)}")


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
