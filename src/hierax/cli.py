"""The command line: `hierax demo`, `hierax reproduce`, `hierax solve`. Thin: it parses, calls and prints."""

import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import hierax
from hierax import report
from hierax._auto.auto import Auto
from hierax._base.errors import InputError, MissingExtra, RunFailed
from hierax._methods.blocc import BLOCC
from hierax._methods.gaffa import BiCGAFFA
from hierax._methods.gam import GAM
from hierax._methods.lvhba import LVHBA
from hierax._methods.salvf import SALVF, SALVF_VR
from hierax._problem.problem import Problem
from hierax._run import checkpoint
from hierax._run.method import AbstractMethod
from hierax._run.solution import Solution
from hierax.solving import solve as run_solver

app = typer.Typer(
    help="Bilevel optimisation with a constrained lower level, from noisy samples.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench_app = typer.Typer(no_args_is_help=True, help="Benchmarks on external problems.")
app.add_typer(bench_app, name="bench")

COMPILE_SECONDS = 0.5  # programs that compile faster than this are not worth a file
METHODS: dict[str, Callable[[], AbstractMethod | Auto]] = {
    "auto": Auto,
    "salvf": SALVF,
    "salvf-vr": SALVF_VR,
    "blocc": BLOCC,
    "lv-hba": LVHBA,
    "bic-gaffa": BiCGAFFA,
    "gam": GAM,
}
STATE, SETTINGS = "state.npz", "run.json"
RUNNERS = {"toy": "toy_run", "rates": "rates_run", "svm": "svm_run", "weight-decay": "decay_run"}


class Experiment(StrEnum):
    """What `hierax reproduce` can run."""

    toy = "toy"
    rates = "rates"
    svm = "svm"
    weight_decay = "weight-decay"
    all = "all"


class SampleWeights(StrEnum):
    """How the SVM experiment turns c into weights."""

    softmax = "softmax"
    exp = "exp"


class Method(StrEnum):
    """The methods of `hierax solve`."""

    auto = "auto"
    salvf = "salvf"
    salvf_vr = "salvf-vr"
    blocc = "blocc"
    lv_hba = "lv-hba"
    bic_gaffa = "bic-gaffa"
    gam = "gam"


class Stated(NamedTuple):
    """A problem from a user's file, with its start."""

    problem: Problem
    x0: Any
    y0: Any


Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results.", show_default=False)]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.")]


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
    if getattr(jax.config, setting) is not None:
        return
    folder = _cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update(setting, str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", COMPILE_SECONDS)


def _cache_folder() -> Path:
    """Where the platform keeps what can be computed again."""
    if os.environ.get("XDG_CACHE_HOME"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        base = Path(os.environ["LOCALAPPDATA"])
    else:
        base = Path.home() / ".cache"
    return base / "hierax"


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Mistakes of the caller, failed runs and missing files are one line each; anything else is our bug and shows."""
    try:
        yield
    except (InputError, RunFailed, MissingExtra, OSError) as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None


# -- demo -------------------------------------------------------------------------------------------------------------


@app.command()
def demo(out: Out = None) -> None:
    """Solve the paper's toy problem with nothing set, in seconds; print the solution and draw it."""
    from hierax.experiments.reproduce import demo as example

    with _one_line_errors():
        example.run(out or Path("out") / "demo", Console())


# -- reproduce --------------------------------------------------------------------------------------------------------


@app.command()
def reproduce(
    experiment: Annotated[Experiment, typer.Argument(help="Which experiment.")],
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: shows that it works, judges nothing.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of random starts or seeds.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results; each experiment gets a folder in it.")] = Path(
        "out"
    ),
    data_dir: Annotated[Path | None, typer.Option(help="Folder with data sets, where one is needed.")] = None,
    weights: Annotated[
        SampleWeights | None,
        typer.Option(help="svm: sample weights softmax(c), or exp(c) unnormalised.", show_default=False),
    ] = None,
) -> None:
    """Run an experiment of the paper and say which of its statements hold."""
    # Imported here: one experiment's imports should not delay, or break, the others.
    every = [name for name in Experiment if name is not Experiment.all]
    names = every if experiment is Experiment.all else [experiment]
    with _one_line_errors():
        if weights and Experiment.svm not in names:
            raise InputError(f"--weights belongs to the experiment svm, not to {experiment}.")
        for name in names:
            module = importlib.import_module(f"hierax.experiments.reproduce.{name.name}")
            more = {"weights": str(weights)} if weights and name is Experiment.svm else {}
            module.run(out / name, quick=quick, seeds=seeds, data_dir=data_dir, **more)


# -- datasets ---------------------------------------------------------------------------------------------------------


@app.command()
def datasets(
    download: Annotated[
        str | None, typer.Option(metavar="NAME", help="First fetch this data set from its public home.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with data sets; unset: HIERAX_DATA.")] = None,
) -> None:
    """List the data sets: size, origin, licence, hash, and whether each can be loaded now."""
    from hierax.experiments import datasets as data

    with _one_line_errors():
        if download is not None:
            data.load(download, data_dir=data_dir, download=True)
        table = Table(show_header=False, box=None, pad_edge=False)  # downwards: a hash is as wide as a terminal
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for source in data.SOURCES.values():
            table.add_row("name", source.name)
            table.add_row("rows x columns", f"{source.rows} x {source.columns}")
            table.add_row("from", f"{source.origin}; {source.home}")
            table.add_row("licence", source.licence)
            table.add_row("sha256", source.sha256)
            table.add_row("available", data.availability(source, data_dir).text)
            table.add_row()
        Console().print(table, highlight=False, markup=False)


# -- bench ------------------------------------------------------------------------------------------------------------


@bench_app.command("bolib")
def bench_bolib(
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of Auto; the other solvers run once.")] = 1,
    solver: Annotated[
        list[str] | None, typer.Option(help="A solver, may be given again; unset: all.", show_default=False)
    ] = None,
    problem: Annotated[
        list[str] | None, typer.Option(help="A problem, may be given again; unset: all 71.", show_default=False)
    ] = None,
    out: Out = None,
) -> None:
    """Solve the 71 problems of BOLIB with Auto and the other solvers; every answer is judged by SciPy's SLSQP."""
    from hierax.experiments.bench import external as suite
    from hierax.problems import bolib

    with _one_line_errors():
        for given, known, what in ((solver, suite.SOLVERS, "solver"), (problem, bolib.CASES, "problem")):
            for name in given or []:
                if name not in known:
                    raise InputError(f"--{what} {name}: unknown; there are {', '.join(known)}.")
        folder = out or Path("out") / "bolib"
        console = Console()
        console = Console(width=max(140, console.width))  # the table needs the room, also in a file
        suite.run(console, seeds, solver or list(suite.SOLVERS), problem or list(bolib.CASES), folder)


@bench_app.command("stochastic")
def bench_stochastic(
    seeds: Annotated[int, typer.Option(min=1, help="Divisions of the data sets.")] = 3,
    starts: Annotated[int, typer.Option(min=1, max=200, help="Starts of the toy.")] = 200,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with data sets; unset: HIERAX_DATA.")] = None,
    out: Out = None,
) -> None:
    """Solve sampled problems with Auto, nothing set: toy, synthetic, SVM, weight decay with wrong labels."""
    from hierax.experiments.bench import sampled as suite

    with _one_line_errors():
        console = Console()
        console = Console(width=max(140, console.width))
        suite.run(console, seeds, starts, data_dir, out or Path("out") / "stochastic")


# -- solve ------------------------------------------------------------------------------------------------------------


@app.command()
def solve(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME",
            help="A function without arguments returning (problem, x0, y0), or a Problem beside x0 and y0.",
        ),
    ],
    method: Annotated[
        Method | None, typer.Option(help="The method; unset: auto, or that of the run to resume.", show_default=False)
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(min=1, help="Outer steps of a method (10000 unless set); with --resume, further ones."),
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Time limit, compilation apart.", show_default=False)] = None,
    seed: Seed = 0,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the state saved in the folder.")] = False,
) -> None:
    """Solve a problem stated in a Python file; results go to a folder (out/NAME unless set)."""
    with _one_line_errors():
        file, name = _split(target)
        folder = out or Path("out") / name
        chosen = str(method) if method else _earlier_method(folder) if resume else "auto"
        if chosen == "auto" and max_steps is not None:
            raise InputError(
                "--max-steps: belongs to a method that makes steps; give one (--method salvf), or --seconds."
            )
        stated = _stated(_loaded(file), file, name)
        state = _saved_state(folder, stated, chosen, seed) if resume else None
        solution = run_solver(
            *stated, METHODS[chosen](), max_steps=max_steps, seconds=seconds, seed=seed, throw=False, state=state
        )
        settings = {"target": target, "method": chosen, "max_steps": max_steps, "seed": seed, "resumed": resume}
        report.write_run(folder, solution, settings, resume)
        if not isinstance(solution.method, Auto):
            checkpoint.save(folder / STATE, solution.state)
            report.draw_or_say(lambda: report.draw_history(folder), print)
        if solution.status.failed:
            raise RunFailed(f"{solution.status.message} What was computed is in {folder}.", solution)
        _print_solution(solution, folder)


def _split(target: str) -> tuple[Path, str]:
    file, colon, name = target.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise InputError(f"{target!r}: needs a file and a name in it, FILE.py:NAME, for example model.py:problem.")
    if not Path(file).is_file():
        raise InputError(f"{file}: there is no such file.")
    return Path(file), name


def _loaded(file: Path) -> ModuleType:
    """Import a user's file as Python would run it: its own folder comes first in the search path."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file}: is not a Python file (its name must end in .py).")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{file}{_line_in(file, error)}: {_shown(error)}") from error
    finally:
        sys.path.pop(0)
    return module


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
        raise InputError(f"{file}{_line_in(file, error)}: {name}() failed: {_shown(error)}") from error
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


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _line_in(file: Path, error: Exception) -> str:
    """`, line N` of the user's file, as deep in the traceback as it is on it."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file.resolve()]
    return f", line {lines[-1]}" if lines else ""


def _earlier_method(folder: Path) -> str:
    if not (folder / SETTINGS).is_file():
        raise InputError(f"{folder}: nothing to resume, {SETTINGS} is missing; run without --resume first.")
    try:
        chosen = json.loads((folder / SETTINGS).read_text())["settings"]["method"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / SETTINGS}: is damaged ({error}); run without --resume.") from error
    if chosen not in METHODS:
        raise InputError(f"{folder / SETTINGS}: knows no method {chosen!r}; give --method {' or '.join(METHODS)}.")
    return str(chosen)


def _saved_state(folder: Path, stated: Stated, chosen: str, seed: int) -> Any:
    """The saved arrays in the structure of a fresh run's state (whose programs the run needs anyway)."""
    path = folder / STATE
    if not path.is_file():
        raise InputError(f"{folder}: nothing to resume, {STATE} is missing; run without --resume first.")
    fresh = run_solver(*stated, METHODS[chosen](), max_steps=1, seed=seed, progress=False, throw=False)
    return checkpoint.load(path, fresh.state)


def _print_solution(solution: Solution, folder: Path) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, tree in (("x", solution.x), ("y", solution.y), ("multipliers", solution.multipliers)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if isinstance(leaf, jax.Array | np.ndarray):
                shown = np.array2string(np.asarray(leaf), precision=6, threshold=8, edgeitems=3)
                table.add_row(f"{name}{jax.tree_util.keystr(path)}", shown)
    counts = solution.counts
    table.add_row("violation", f"{solution.history['violation'][-1]:.3g}")
    table.add_row("samples", f"{counts.zeta} of zeta, {counts.xi} of xi")
    table.add_row("seconds", f"{counts.seconds:.2f}, and {counts.compile_seconds:.2f} to compile")
    table.add_row("status", f"{solution.status.name}: {solution.status.message}")
    table.add_row("results", str(folder) if isinstance(solution.method, Auto) else f"{folder} (go on with --resume)")
    for line in solution.log:
        print(line)
    Console().print(table, highlight=False, markup=False)
