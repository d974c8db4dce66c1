"""`hierax solve`: a problem in a file, solved, certified, and left in a folder.

While a run is under way run.json says so; a run that was killed is gone on with or kept, never lost by beginning anew.
"""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, TextIO

import jax
import typer
from jax.sharding import Mesh

from hierax._auto.auto import Auto
from hierax._auto.session import GOES_ON
from hierax._base.errors import InputError, RunFailed
from hierax._base.interrupt import CTRL_C, interruptible
from hierax._base.text import as_json as plain
from hierax._judge.certificate import Certificate
from hierax._methods.registry import METHODS
from hierax._run import answers
from hierax._run.call import News, reporting
from hierax._run.checkpoints import CHECKPOINT_SECONDS, checkpoints_in, clear
from hierax._run.method import AbstractMethod
from hierax._run.prepare import Processes
from hierax._run.solution import Kind, Solution, certificate_or_why
from hierax.cli import group
from hierax.cli.user_file import Out, Target, split, stated
from hierax.reports import folder as run_folder
from hierax.solving import solve as run_solver

FORMAT = "hierax solve 1"  # of the document of --json
CHECKPOINT = "checkpoint"  # what a run leaves in its folder for --resume
SOLVERS: dict[str, Callable[[], AbstractMethod | Auto]] = {"auto": Auto, **METHODS}


def _solver_name(text: str) -> str:
    """The name of a method, as an option's value."""
    if text not in SOLVERS:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(SOLVERS)}.")
    return text


Asked = Mapping[str, str | int | None]
"""Options that a resumed run takes over from the run it goes on with, by name; None: not given."""

# The methods stand among the words of the help, which are never broken; a metavar as long as their list would be.
METHOD = f"The method: {', '.join(SOLVERS)}; unset: auto, or that of the run to resume."
MethodName = Annotated[str | None, typer.Option(parser=_solver_name, metavar="NAME", help=METHOD, show_default=False)]
SECONDS, SEED = "Time limit of the run by the clock.", "Seed of all random numbers (0 unless set)."
JSON = "Print one JSON document; everything else goes to stderr."
STEPS = "Outer steps of a method in all (10000 unless set), those before --resume included."
RESUME = "Go on with the run in the folder, whatever ended it, kill -9 too; without one, begin."
EVERY = "Seconds between checkpoints: the work that a kill may cost."
DISTRIBUTED = "One of several processes of a run, on all their devices: docs/guides/cluster.md."
COORDINATOR = "Address of process 0; under SLURM and Open MPI it is found."


def solve(
    target: Target,
    method: MethodName = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help=STEPS)] = None,
    seconds: Annotated[float | None, typer.Option(help=SECONDS, show_default=False)] = None,
    seed: Annotated[int | None, typer.Option(min=0, help=SEED, show_default=False)] = None,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help=JSON)] = False,
    resume: Annotated[bool, typer.Option("--resume", help=RESUME)] = False,
    checkpoint_every: Annotated[float, typer.Option(min=1e-3, help=EVERY)] = CHECKPOINT_SECONDS,
    distributed: Annotated[bool, typer.Option("--distributed", help=DISTRIBUTED)] = False,
    coordinator: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=COORDINATOR)] = None,
    num_processes: Annotated[int | None, typer.Option(min=1, help="How many processes there are.")] = None,
    process_id: Annotated[int | None, typer.Option(min=0, help="Which of them this one is.")] = None,
) -> None:
    """Solve a problem stated in a Python file, which is run as it is; results go to a folder (out/NAME unless set).

    Exit codes:
      0    the certificate says yes
      1    the call or the file is wrong; 2: an option is misspelt
      3    there is an answer, but the certificate says no or cannot decide
      4    the run failed: infeasible, unbounded, not finite, diverged, no data
      130  ended by Ctrl-C; 143: by SIGTERM
    """
    file, name = split(target)
    folder = out or Path("out") / name
    if not distributed and (coordinator, num_processes, process_id) != (None, None, None):
        raise InputError("--coordinator, --num-processes, --process-id: belong to --distributed; give it too.")
    if distributed and not resume and method in (None, "auto"):
        raise InputError("--distributed: needs a method that makes steps; give one, for example --method salvf.")
    with _stdout_kept_for_json(as_json) as stdout:
        mesh = _joined(coordinator, num_processes, process_id) if distributed else None
        processes = Processes(mesh)
        chosen = _chosen({"method": method, "max_steps": max_steps, "seed": seed}, folder, resume, processes)
        if processes.first:
            print(f"Running the Python file {file} for its {name}.")
        with processes.together():
            given = stated(file, name)
        settings = {"target": target, **chosen, "seconds": seconds, "resumed": resume}
        with interruptible() as interrupt:  # Ctrl-C ends the run, and what it has is written
            with _under_way(folder, settings, resume, processes):
                solution = run_solver(
                    *given,
                    SOLVERS[chosen["method"]](),
                    max_steps=chosen["max_steps"],
                    seconds=seconds,
                    seed=chosen["seed"],
                    progress=True,
                    throw=False,
                    checkpoint=folder / CHECKPOINT,
                    checkpoint_every=checkpoint_every,
                    mesh=mesh,
                )
            if processes.first:
                answer = answers.content_of(solution)
                _write(folder, solution, settings, answer)
        if not processes.first:
            raise typer.Exit(_exit_code(solution, "", interrupt.by))
        certificate = _certificate_or_why(solution)
        code = _exit_code(solution, certificate, interrupt.by)
        _tell(solution, certificate, target, folder)
        if as_json:
            told = {"format": FORMAT, "exit_code": code, **solution.to_dict(), "why_no_certificate": None}
            told |= {"certificate": None, "why_no_certificate": certificate} if isinstance(certificate, str) else {}
            told |= {"problem": answer["problem"], "settings": plain(settings), "folder": str(folder)}
            print(json.dumps(told, indent=2), file=stdout, flush=True)
    if code == group.FAILED:
        raise RunFailed(f"{solution.status.message} What was computed is in {folder}.", solution)
    raise typer.Exit(code)


@contextmanager
def _stdout_kept_for_json(wanted: bool) -> Iterator[TextIO]:
    """Where it is wanted, whatever is printed from now on goes to stderr; the stream it yields is the real stdout.

    Libraries that print from C write to the file descriptor, and may do so as late as at the end of the process. So
    the descriptor stays with stderr, and the document goes to a copy of it.
    """
    real = sys.stdout
    if not wanted:
        yield real
        return
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))
        try:
            descriptor, errors = real.fileno(), sys.stderr.fileno()
        except io.UnsupportedOperation:  # no files, but what a test has put there
            yield real
            return
        real.flush()
        copy = stack.enter_context(os.fdopen(os.dup(descriptor), "w", encoding="utf-8"))
        os.dup2(errors, descriptor)
        yield copy


@contextmanager
def _under_way(folder: Path, settings: Mapping[str, object], resume: bool, processes: Processes) -> Iterator[None]:
    """Within it the first process's folder says that a run is under way, and holds nothing that belongs to another.

    Where the run is refused, the folder says what it said before.
    """
    path, before = folder / run_folder.RUN, None
    with processes.together():
        if processes.first:
            if not resume:
                clear(folder / CHECKPOINT)  # of an earlier run
            try:
                before = path.read_bytes() if path.is_file() else None
                run_folder.begin_run(folder, settings)
            except OSError as error:
                raise InputError(f"--out {folder}: cannot be written to ({error}). Name another folder.") from error
    try:
        yield
    except InputError:
        if processes.first:
            path.unlink() if before is None else path.write_bytes(before)
        raise


def _write(folder: Path, solution: Solution, settings: Mapping[str, object], answer: Mapping[str, object]) -> None:
    """Everything that a run leaves in its folder; where that cannot be written, the answer is printed at least."""
    try:
        run_folder.write_json(folder / run_folder.ANSWER, answer)
        run_folder.write_run(folder, solution, settings)
        if isinstance(solution.method, AbstractMethod) and solution.state is not None:
            print(run_folder.save_plot(solution, folder / "figures" / "history.png"))
    except OSError:
        print(json.dumps(plain(answer)))
        raise


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


def _chosen(asked: Asked, folder: Path, resume: bool, processes: Processes) -> dict[str, Any]:
    """The options, as the run in the folder completes them; the same in all processes."""
    with processes.together():
        if processes.first:
            asked = _with_earlier(asked, folder, resume)
    chosen: dict[str, Any] = json.loads(processes.from_first(json.dumps(asked).encode()))
    chosen |= {"method": chosen["method"] or "auto", "seed": chosen["seed"] or 0}
    if chosen["method"] == "auto" and chosen["max_steps"] is not None:
        raise InputError("--max-steps: belongs to a method that makes steps; give one (--method salvf), or --seconds.")
    return chosen


def _with_earlier(asked: Asked, folder: Path, resume: bool) -> Asked:
    """The options, with `resume` those of the run in the folder where the command does not set them.

    Where there is no run to resume it begins: one command serves for the first time and after every kill, also after
    one that hit before there was a folder. Without `resume` a run that was killed and can go on is not written over.
    """
    path = folder / run_folder.RUN
    earlier = run_folder.read_json(path, status="name", settings="method") if path.is_file() else None
    killed = earlier is not None and earlier["status"]["name"] == run_folder.RUNNING
    can_go_on = bool(checkpoints_in(folder / CHECKPOINT))
    if not resume:
        if killed and can_go_on:
            raise InputError(
                f"--out {folder}: holds a run that was killed, or is under way. Add --resume to go on with it, name "
                f"another folder, or remove {folder / CHECKPOINT}."
            )
        return asked
    if earlier is None:
        print(f"Nothing to resume in {folder}: the run begins.")
        return asked
    if not killed and not can_go_on:
        raise InputError(f"{folder}: nothing to resume, {CHECKPOINT} is missing; run without --resume first.")
    known = earlier["settings"]
    if known["method"] not in list(SOLVERS):
        raise InputError(f"{path}: knows no method {known['method']!r}; it knows {', '.join(SOLVERS)}.")
    return {name: known.get(name) if value is None else value for name, value in asked.items()}


def _certificate_or_why(solution: Solution) -> Certificate | str:
    """The certificate; a run that failed or was interrupted is not judged any further than it was."""
    if solution.status.failed:
        return "the run failed."
    if solution.status.kind is Kind.INTERRUPTED:
        return "the run was interrupted; `hierax verify` makes one of the point so far."
    with reporting(News("making the certificate"), progress=True):
        return certificate_or_why(solution)


def _exit_code(solution: Solution, certificate: Certificate | str, interrupted_by: str) -> int:
    """0 where the certificate says yes; and of several processes, which make none, where the run has ended.

    Launchers of several processes take any other code for a crash, and end the others.
    """
    if solution.status.failed:
        return group.FAILED
    if solution.status.kind is Kind.INTERRUPTED:
        return group.INTERRUPTED if interrupted_by == CTRL_C else group.TERMINATED
    if solution.several_processes:
        return group.DONE
    confirmed = isinstance(certificate, Certificate) and certificate.ok(solution.tol)
    return group.CERTIFIED if confirmed else group.NOT_CERTIFIED


def _tell(solution: Solution, certificate: Certificate | str, target: str, folder: Path) -> None:
    """The certificate goes into the folder; the log, which says how global the answer is, and tables are printed."""
    if isinstance(certificate, Certificate):
        run_folder.add_certificate(folder, solution)
    failed = solution.status.failed  # then the error says the rest
    for line in solution.log:
        if not (failed and line == solution.status.message):
            print(line)
    if failed:
        return
    print(f"\n{solution}\n")
    print(f"No certificate: {certificate}" if isinstance(certificate, str) else certificate)
    print(f"\nWritten to {folder}" + (" (go on with --resume)" if solution.status.kind in GOES_ON else ""))
    print(f"Check it again: hierax verify {target} {folder / run_folder.ANSWER}")
