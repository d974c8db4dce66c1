"""`hierax doctor`: what hierax finds on this machine, and whether a small problem is solved and certified on it."""

import importlib.util
import os
import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import NamedTuple

import jax
import typer

import hierax
from hierax._base.imports import GET_THE_LAB
from hierax._base.text import text_table
from hierax._compile.configuration import default_folder
from hierax._problem.problem import Problem
from hierax._problem.sets import Box
from hierax.cli import group
from hierax.solving import solve

SECONDS = 5.0  # limit of the self-test
SETTING = "jax_compilation_cache_dir"  # JAX's name for where programs are kept, which its types do not know
# The packages that an extra brings, as they are imported:
EXTRAS = {"conic": ("clarabel",), "plot": ("matplotlib",), "sklearn": ("sklearn",), "cvxpy": ("cvxpy", "clarabel")}


class Line(NamedTuple):
    """What was found; `wrong`: something that has to be mended."""

    name: str
    text: str
    wrong: bool = False


def doctor() -> None:
    """Say what hierax finds on this machine, and solve and certify a small problem (five seconds at most).

    Exit codes:
      0  all is well; extras that are missing are named, and are no fault
      1  something is wrong
    """
    lines = [*_versions(), _devices(), _precision(), _programs(), *_extras(), _lab(), _self_test()]
    print(text_table("What hierax finds", [(line.name, "WRONG" if line.wrong else "", line.text) for line in lines]))
    wrong = [line.name for line in lines if line.wrong]
    print(f"\nWrong: {', '.join(wrong)}." if wrong else "\nAll is well.")
    raise typer.Exit(group.REFUSED if wrong else group.DONE)


def _versions() -> Iterator[Line]:
    yield Line("hierax", f"{hierax.__version__}, in {Path(hierax.__file__).parent}")
    yield Line("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    try:
        needed = requires("hierax") or []
    except PackageNotFoundError:
        yield Line("packages", "hierax is not installed as a package: what it needs is not known", wrong=True)
        return
    for requirement in needed:
        found = re.fullmatch(r"([\w.-]+)\s*>=\s*([\d.]+)", requirement)
        if found is not None:  # else it belongs to an extra
            yield _version(found[1], found[2])


def _version(name: str, least: str) -> Line:
    cure = f"pip install '{name}>={least}'"
    try:
        found = version(name)
    except PackageNotFoundError:
        return Line(name, f"is missing: {cure}", wrong=True)
    too_old = _numbers(found) < _numbers(least)
    return Line(name, f"{found} is too old: {cure}" if too_old else found, wrong=too_old)


def _numbers(text: str) -> list[int]:
    """The leading numbers of a version, for comparison.

    Examples:
        >>> _numbers("0.10.2.dev3") > _numbers("0.9.12")
        True
    """
    found = re.match(r"\d+(\.\d+)*", text)
    return [int(number) for number in found[0].split(".")] if found else []


def _devices() -> Line:
    try:
        found = jax.devices()
    except RuntimeError as error:  # a platform that was asked for and is not there
        return Line("devices", " ".join(str(error).split()), wrong=True)
    return Line("devices", f"{len(found)} {found[0].platform}: {', '.join(str(device) for device in found[:4])}")


def _precision() -> Line:
    alone = "float64" if os.environ.get("JAX_ENABLE_X64", "").lower() in ("1", "true", "yes", "on") else "float32"
    advice = "" if alone == "float64" else ', until jax.config.update("jax_enable_x64", True)'
    return Line("precision", f"float64 on the command line; {alone} in Python{advice}; certificates always float64")


def _programs() -> Line:
    """Where compiled programs are kept. `cache` has made the folder where that was possible."""
    chosen: str | None = getattr(jax.config, SETTING)
    folder = Path(chosen) if chosen else default_folder()
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return Line("compiled programs", f"{folder} cannot be written to: every command compiles anew", wrong=True)
    return Line("compiled programs", f"{len(list(folder.iterdir()))} files, in {folder}")


def _extras() -> Iterator[Line]:
    for extra, packages in EXTRAS.items():
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        cure = f"no {' nor '.join(missing)}: pip install 'hierax[{extra}]'"
        yield Line(f"extra {extra}", cure if missing else f"found {' and '.join(packages)}")


def _lab() -> Line:
    """The package of the experiments and benchmarks; it belongs to exactly one version of hierax."""
    try:
        found = version("hierax-lab")
    except PackageNotFoundError:
        return Line("hierax-lab", f"not installed (experiments, benchmarks, data sets): {GET_THE_LAB}")
    if found != hierax.__version__:
        cure = f"{GET_THE_LAB}=={hierax.__version__}"
        return Line("hierax-lab", f"{found} belongs to another version of hierax: {cure}", wrong=True)
    return Line("hierax-lab", f"{found}: hierax {', '.join(group.LAB)}")


def problem_of_the_readme() -> Problem:
    """The problem of README.md: x = y = 1/1.1."""
    return Problem(
        upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        constraints=lambda x, y: y - x,
        x_set=Box(0.0, 3.0),
        y_set=Box(0.0, 3.0),
    )


def _self_test() -> Line:
    """Solve and certify a problem whose answer is known."""
    try:
        solution = solve(problem_of_the_readme(), 0.5, 0.5, seconds=SECONDS, progress=False)
    except Exception as error:  # whatever it is, it is what the doctor is asked about
        return Line("self-test", f"failed: {type(error).__name__}: {' '.join(str(error).split())}", wrong=True)
    took = f"{solution.counts.seconds:.1f} s, and {solution.counts.compile_seconds:.1f} to compile"
    if solution.status.name == "seconds":
        return Line("self-test", f"not done in {SECONDS:g} s ({took}): call again, programs are kept", wrong=True)
    off = max(abs(1.1 * float(found) - 1) for found in (solution.x, solution.y))  # x = y = 1 / 1.1
    if not solution.status.ok or not solution.certificate.ok(solution.tol) or not off < solution.tol:
        return Line("self-test", f"{solution.status.message} Off the known answer by {off:.1g}.", wrong=True)
    return Line("self-test", f"solved and certified, off the known answer by {off:.0e}; {took}")
