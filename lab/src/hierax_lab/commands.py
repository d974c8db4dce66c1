"""The commands of the lab: `hierax reproduce`, `hierax datasets` and `hierax bench`.

They parse options, call an experiment and print; the command line of hierax loads them by their entry points and turns
errors into one line each. Every experiment is imported here, so an experiment must be cheap to import: heavy
third-party modules only through `lazy`.
"""

import dataclasses
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hierax import InputError
from hierax.extend import METHODS
from hierax_lab import datasets
from hierax_lab.bench import (
    cleaning,
    cold,
    coverage,
    error,
    external,
    fuzz,
    fuzz_guard,
    leaderboard,
    medium,
    methods,
    own_method,
    race,
    sampled,
    samples,
    samples_rows,
    suites,
    unset,
)
from hierax_lab.bench.cold_calls import CALLS as COLD_CALLS
from hierax_lab.bench.fuzz_families import FAMILIES
from hierax_lab.bench.medium_problems import NAMES as MEDIUM_PROBLEMS
from hierax_lab.bench.medium_solvers import SOLVERS as MEDIUM_SOLVERS
from hierax_lab.bench.methods_problems import ENTRIES as METHOD_PROBLEMS
from hierax_lab.bench.samples_cases import CASES as SAMPLED_PROBLEMS
from hierax_lab.bench.solvers import SOLVERS as SMALL_SOLVERS
from hierax_lab.output import write_json, write_tables
from hierax_lab.problems import bolib
from hierax_lab.reproduce import decay_published, decay_run, rates_run, svm_published, svm_run, toy_published, toy_run
from hierax_lab.reproduce.comparison import report_console
from hierax_lab.reproduce.sweep import sweep, sweep_table
from hierax_lab.speed import toy_speed

reproduce_app = typer.Typer()
datasets_app = typer.Typer()
bench_app = typer.Typer(no_args_is_help=True, help="Benchmarks: collections of problems, random problems, speed.")

BENCH_WIDTH = 140  # characters that the tables of the benchmarks need, also where the output is a file

Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results.", show_default=False)]
DataDir = Annotated[Path | None, typer.Option(help="Folder with data sets; unset: HIERAX_DATA.")]

Problems = Annotated[
    list[str] | None, typer.Option("--problem", help="A problem, may be given again; unset: all.", show_default=False)
]
Methods = Annotated[
    list[str] | None, typer.Option("--method", help="A method, may be given again; unset: all.", show_default=False)
]
Solvers = Annotated[
    list[str] | None, typer.Option("--solver", help="A solver, may be given again; unset: all.", show_default=False)
]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds of Auto; the other solvers run once.")]


class Experiment(StrEnum):
    """What `hierax reproduce` can run."""

    toy = "toy"
    rates = "rates"
    svm = "svm"
    weight_decay = "weight-decay"
    all = "all"


OURS: dict[Experiment, ModuleType] = {
    Experiment.toy: toy_run,
    Experiment.rates: rates_run,
    Experiment.svm: svm_run,
    Experiment.weight_decay: decay_run,
}
PUBLISHED: dict[Experiment, ModuleType] = {
    Experiment.toy: toy_published,
    Experiment.svm: svm_published,
    Experiment.weight_decay: decay_published,
}


class ExperimentSetting(StrEnum):
    """By whose settings an experiment runs."""

    ours = "ours"
    published = "published"


class SampleWeights(StrEnum):
    """How the SVM experiment turns c into weights."""

    softmax = "softmax"
    exp = "exp"


@reproduce_app.command("reproduce", epilog="Example: hierax reproduce toy --quick")
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
    setting: Annotated[
        ExperimentSetting,
        typer.Option(help="Our settings, or the paper's with the algorithms as printed (toy, svm, weight-decay)."),
    ] = ExperimentSetting.ours,
) -> None:
    """Run an experiment of the paper and say which of its statements hold.

    The exit code is 1 where a number that the page on rates states is missed (rates alone).
    """
    published = setting is ExperimentSetting.published
    modules = PUBLISHED if published else OURS
    names = list(modules) if experiment is Experiment.all else [experiment]
    if weights and published:
        raise InputError("--weights belongs to --setting ours: the published weights are softmax(c).")
    if weights and Experiment.svm not in names:
        raise InputError(f"--weights belongs to the experiment svm, not to {experiment}.")
    if names[0] not in modules:
        raise InputError(f"--setting published: there is none of {experiment}, only of {', '.join(modules)}.")
    for name in names:
        options = {"weights": weights.value} if weights and name is Experiment.svm else {}
        folder = out / (f"{name}-published" if published else name)
        content = modules[name].run(folder, quick=quick, seeds=seeds, data_dir=data_dir, **options)
        if name is Experiment.rates and any(target["met"] is False for target in content["targets"]):
            raise typer.Exit(1)


@datasets_app.command("datasets", epilog="Example: hierax datasets --download fourclass")
def list_datasets(
    download: Annotated[
        str | None, typer.Option(metavar="NAME", help="First fetch this data set from its public home.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """List the data sets: size, origin, licence, hash, and whether each can be loaded now."""
    if download is not None:
        datasets.load(download, data_dir=data_dir, download=True)
    table = Table(show_header=False, box=None, pad_edge=False)  # downwards: a hash is as wide as a terminal
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for source in datasets.SOURCES.values():
        table.add_row("name", source.name)
        table.add_row("rows x columns", f"{source.rows} x {source.columns}")
        table.add_row("from", f"{source.origin}; {source.home}")
        table.add_row("licence", source.licence)
        table.add_row("sha256", source.sha256)
        table.add_row("available", datasets.availability(source, data_dir).text)
        table.add_row()
    Console().print(table, highlight=False, markup=False)


@bench_app.command("bolib", epilog="Example: hierax bench bolib --problem Bard1988Ex1")
def bench_bolib(
    seeds: Seeds = 1,
    solver: Solvers = None,
    problem: Problems = None,
    out: Out = None,
) -> None:
    """Solve the 71 problems of BOLIB with Auto and the other solvers; every answer is judged by SciPy's SLSQP."""
    solvers = _known("--solver", solver, list(SMALL_SOLVERS))
    problems = _known("--problem", problem, list(bolib.CASES))
    external.run(_wide_console(), seeds, solvers, problems, out or Path("out") / "bolib")


@bench_app.command("stochastic", epilog="Example: hierax bench stochastic --seeds 1 --starts 10")
def bench_stochastic(
    seeds: Annotated[int, typer.Option(min=1, help="Divisions of the data sets.")] = 3,
    starts: Annotated[int, typer.Option(min=1, max=200, help="Starts of the toy.")] = 200,
    data_dir: DataDir = None,
    out: Out = None,
) -> None:
    """Solve sampled problems with Auto, nothing set: toy, synthetic, SVM, weight decay with wrong labels."""
    sampled.run(_wide_console(), seeds, starts, data_dir, out or Path("out") / "stochastic")


@bench_app.command("samples", epilog="Example: hierax bench samples --only queue")
def bench_samples(
    seeds: Seeds = 1,
    only: Annotated[
        list[str] | None, typer.Option(help="A problem, may be given again; unset: all.", show_default=False)
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Limit of each solve by the clock.")] = samples.SECONDS,
    again: Annotated[bool, typer.Option("--again", help="Run also what results.json in the folder has.")] = False,
    out: Out = None,
) -> None:
    """Solve sampled problems with nothing set; what is said of the answers is judged by quadrature and moments."""
    names = _known("--only", only, list(SAMPLED_PROBLEMS))
    samples.run(_wide_console(), names, seeds, seconds, out or Path("out") / "samples", again)


@bench_app.command("rows", epilog="Example: hierax bench rows --rows 10000 --unknowns 10")
def bench_rows(
    rows: Annotated[
        list[int] | None, typer.Option(min=10, help="Rows of the data; unset: 1e4, 1e5, 1e6.", show_default=False)
    ] = None,
    unknowns: Annotated[
        list[int] | None, typer.Option(min=2, help="Entries of x and y together; unset: 2, 10, 50.", show_default=False)
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Run also what results.json in the folder has.")] = False,
    out: Out = None,
) -> None:
    """Measure CPU seconds on data sets of many rows against L-BFGS-B on F(x, y*(x)) in NumPy and SciPy."""
    sizes = rows or list(samples_rows.ROWS), unknowns or list(samples_rows.UNKNOWNS)
    samples_rows.run(_wide_console(), *sizes, out or Path("out") / "rows", again)


@bench_app.command("coverage", epilog="Example: hierax bench coverage --noise normal --repetitions 100")
def bench_coverage(
    noise: Annotated[
        list[str] | None, typer.Option(help="A kind of noise, may be given again; unset: all.", show_default=False)
    ] = None,
    samples: Annotated[
        list[int] | None, typer.Option(help="N, may be given again; unset: 1024 and 64.", show_default=False)
    ] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Seeds of each cell, from 0 on.")] = 1000,
    again: Annotated[bool, typer.Option("--again", help="Run also what results.json in the folder has.")] = False,
    out: Out = None,
) -> None:
    """Count how often the intervals stated for F, x, y and the gap of sampled problems hold."""
    names, sizes = _known("--noise", noise, list(coverage.NOISES)), samples or list(coverage.SIZES.values())
    coverage.run(_wide_console(), names, sizes, repetitions, out or Path("out") / "coverage", again)


@bench_app.command("cleaning", epilog="Example: hierax bench cleaning --seeds 1")
def bench_cleaning(
    seeds: Annotated[int, typer.Option(min=1, help="Divisions of the digits.")] = 5,
    seconds: Annotated[float, typer.Option(min=1, help="Limit of each call, by the clock.")] = 60.0,
    out: Out = None,
) -> None:
    """Hyper-cleaning of a network with Auto, beside training on trusted rows, on all rows, and a grid search."""
    cleaning.run(_wide_console(), seeds, seconds, out or Path("out") / "cleaning")


@bench_app.command("error", epilog="Example: hierax bench error --seeds 2")
def bench_error(
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every method on every problem.")] = 10,
    out: Out = None,
) -> None:
    """The error left after equal numbers of samples: SALVF, SALVF-VR, Auto's averages, plain gradients."""
    error.run(_wide_console(), seeds, out or Path("out") / "error")


@bench_app.command("unset", epilog="Example: hierax bench unset --out out/unset")
def bench_unset(data_dir: DataDir = None, out: Out = None) -> None:
    """How much F falls with nothing set: the toy, six kinds of problems, a noisy quadratic, the SVM in raw units."""
    unset.run(_wide_console(), data_dir, out or Path("out") / "unset")


@bench_app.command("fuzz", epilog="Example: hierax bench fuzz --n 20 --seed 1")
def bench_fuzz(
    n: Annotated[
        int | None,
        typer.Option("--n", min=1, help="How many problems; unset: 300, of families 9 each.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the problems.")] = 0,
    families: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help=f"Families of problems, with commas between: claims (all of them), {', '.join(FAMILIES)}.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few problems: 20, of families 2 each.")] = False,
    only: Annotated[
        int | None, typer.Option(min=0, help="Run this problem of the seed alone, with all details.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Limit of each solve by the clock, compilation included; unset: 20, of families 60.",
            show_default=False,
        ),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the counts to this file.")] = None,
    certify: Annotated[
        bool, typer.Option("--certify", help="Also ask for certificates of points that are no solutions.")
    ] = False,
) -> None:
    """Solve random problems with nothing set and judge every claim from outside; counts of wrong claims by kind."""
    if families is not None:
        if certify:
            raise InputError("--certify does not go with --families: they ask for certificates anyway.")
        chosen = _known("--families", families.split(","), ["claims", *FAMILIES])
        names = list(FAMILIES) if "claims" in chosen else chosen
        numbers = [only] if only is not None else list(range(n or (2 if quick else 9)))
        fuzz_guard.run(_wide_console(), names, numbers, seed, seconds or 60.0, json_file)
    elif only is not None:
        fuzz.run_one(_wide_console(), only, seed, seconds or 20.0, certify)
    else:
        fuzz.run(_wide_console(), n or (20 if quick else 300), seed, seconds or 20.0, json_file, certify)


@bench_app.command("medium", epilog="Example: hierax bench medium --seconds 30")
def bench_medium(
    problem: Problems = None,
    solver: Solvers = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, help="Limit of each run; unset: none for Auto, 30 for the others.", show_default=False),
    ] = None,
    seeds: Seeds = 1,
    data_dir: DataDir = None,
    out: Out = None,
) -> None:
    """Solve problems of ten to a thousand variables with Auto and outside solvers; every answer is judged outside."""
    problems = _known("--problem", problem, MEDIUM_PROBLEMS)
    solvers = _known("--solver", solver, list(MEDIUM_SOLVERS))
    medium.run(_wide_console(), problems, solvers, seconds, seeds, data_dir, out or Path("out") / "medium")


@bench_app.command("methods", epilog="Example: hierax bench methods --method salvf")
def bench_methods(problem: Problems = None, method: Methods = None, out: Out = None) -> None:
    """Run every method with nothing set on known-answer problems of six kinds, judged from outside; one table."""
    problems = _known("--problem", problem, list(METHOD_PROBLEMS))
    chosen = _known("--method", method, methods.NAMES)
    methods.run(_wide_console(), problems, chosen, out or Path("out") / "methods")


@bench_app.command("run", epilog="Example: hierax bench run my_method.py:Mine")
def bench_run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME",
            help="A subclass of hx.AbstractMethod in a Python file. The file is executed: run only what you trust.",
        ),
    ],
    problem: Problems = None,
    beside: Annotated[
        Path | None,
        typer.Option(
            help="Stored results; unset: out/methods/results.json, else those that come with hierax-lab.",
            show_default=False,
        ),
    ] = None,
    out: Out = None,
) -> None:
    """Run a method of your own through the table of `bench methods`. FILE.py is executed."""
    problems = _known("--problem", problem, list(METHOD_PROBLEMS))
    methods.run_own(_wide_console(), target, problems, beside, out or Path("out") / "own-method")


@bench_app.command("sweep", epilog="Example: hierax bench sweep model.py:problem --vary c1=2,5,20 --seeds 10")
def bench_sweep(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME", help="A function without arguments returning (problem, x0, y0). FILE.py is run."
        ),
    ],
    vary: Annotated[
        str, typer.Option(metavar="NAME=VALUES", help="A setting of the method and its values, with commas between.")
    ],
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "salvf",
    seeds: Annotated[int, typer.Option(min=2, help="Runs with every value, on the same samples.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Steps of every run.")] = 1000,
    out: Out = None,
) -> None:
    """Run a method with several values of a setting: F with bands, paired differences; tables as CSV and LaTeX."""
    name, _, values = vary.partition("=")
    _known("--method", [method], list(METHODS))
    fields = [field.name for field in dataclasses.fields(METHODS[method]())]
    _known("--vary", [name], fields)
    try:
        settings = {f"{name} = {value}": METHODS[method](**{name: float(value)}) for value in values.split(",")}
    except ValueError as error:
        raise InputError(f"--vary {vary}: {error}") from error
    made = own_method.named_in(target)
    problem, x0, y0 = (made() if callable(made) else made)[:3]  # type: ignore[index]  # a tuple, as the help says
    rows = sweep(problem, x0, y0, settings, seeds, max_steps=steps)
    console = report_console()
    console.print(sweep_table(f"F of {target} by {method}, {steps} steps, {seeds} seeds", rows))
    folder = out or Path("out") / "sweep"
    write_tables(folder, console.tables)
    write_json(folder / "sweep.json", rows)
    console.print(f"Written to {folder}", highlight=False, soft_wrap=True)


@bench_app.command("suite", epilog="Example: hierax bench suite smd --solver Auto")
def bench_suite(
    name: Annotated[str, typer.Argument(metavar=f"[{'|'.join(suites.PROBLEMS)}]", help="Which collection.")],
    seeds: Seeds = 1,
    solver: Solvers = None,
    data_dir: DataDir = None,
    out: Out = None,
) -> None:
    """Solve a public collection of problems with Auto and the other solvers; every answer is judged outside hierax."""
    _known("suite", [name], list(suites.PROBLEMS))
    solvers = _known("--solver", solver, suites.solvers_of(name))
    suites.run(_wide_console(), name, seeds, solvers, data_dir, out or Path("out") / "suites" / name)


@bench_app.command("leaderboard", epilog="Example: hierax bench leaderboard out/suites --page out/leaderboard.md")
def bench_leaderboard(
    folder: Annotated[Path, typer.Argument(help="Folder with SUITE/results.json.")] = Path("out") / "suites",
    page: Annotated[Path, typer.Option(help="The page to write.")] = Path("out") / "leaderboard.md",
) -> None:
    """Write a page with every solver's figures in every suite that was run, and points that beat published values."""
    leaderboard.write_page(folder, page)
    Console().print(f"Written to {page}", highlight=False, soft_wrap=True)


@bench_app.command("toy", epilog="Example: hierax bench toy")
def bench_toy() -> None:
    """Time a step of SALVF on the toy, 200 starts at once, against NumPy versions of the same algorithm."""
    toy_speed.run(_wide_console())


@bench_app.command("cold", epilog="Example: hierax bench cold --out out/cold")
def bench_cold(
    only: Annotated[
        list[str] | None, typer.Option(help="A call, may be given again; unset: all.", show_default=False)
    ] = None,
    out: Out = None,
) -> None:
    """Measure CPU seconds from a fresh Python process to the answer, compilation included, for eleven calls."""
    cold.run(_wide_console(), _known("--only", only, list(COLD_CALLS)), out or Path("out") / "cold")


@bench_app.command("race", epilog="Example: hierax bench race --quick")
def bench_race(
    problem: Problems = None,
    solver: Solvers = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two problems, two solvers; judges nothing.")] = False,
    ipopt: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="A Python with CasADi; unset: this one.", show_default=False)
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Run also what race.json in the folder has.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write the page of the results there.", show_default=False)] = None,
    out: Out = None,
) -> None:
    """Race `hx.solve` with nothing set against solvers by hand, SLSQP and Ipopt: CPU seconds, cold and warm."""
    names, solvers = _known("--problem", problem, race.NAMES), _known("--solver", solver, race.SOLVERS)
    if quick:
        names, solvers = race.QUICK
    race.run(_wide_console(), names, solvers, out or Path("out") / "race", again, ipopt, page)


def _known(option: str, given: list[str] | None, known: list[str]) -> list[str]:
    """The names given to an option, all of them known; every known name where none is given."""
    for name in given or []:
        if name not in known:
            raise InputError(f"{option} {name}: unknown; there are {', '.join(known)}.")
    return given or known


def _wide_console() -> Console:
    return Console(width=max(BENCH_WIDTH, Console().width))
