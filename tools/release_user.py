"""What a stranger does with an installed hierax without extras; run by `check_release.py` in a clean environment.

Imports, solves, certifies; calls the commands; and looks that whatever needs an extra, or the package hierax-lab, says
so in the words of pip.
"""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import metadata
from importlib.util import find_spec
from pathlib import Path

import hierax as hx
from hierax.reports.folder import figures


def solve_and_certify() -> None:
    """The README's ten lines."""
    problem = stated()
    solution = hx.solve(problem, 0.5, 0.5)
    assert solution.status.name == "converged" and abs(float(solution.x) - 1 / 1.1) < 1e-4, solution
    assert hx.certify(problem, solution.x, solution.y).ok(1e-3)


def stated() -> hx.Problem:
    """The README's problem."""
    return hx.Problem(
        upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        constraints=lambda x, y: y - x,
        x_set=hx.Box(0.0, 3.0),
        y_set=hx.Box(0.0, 3.0),
    )


NEEDING: dict[str, list[Callable[[], object]]] = {  # by extra, calls that need it; a new extra gets its line here
    "conic": [lambda: hx.Conic().solve(stated(), 0.5, 0.5)],
    "plot": [lambda: figures.empty_figure(1.0, 1.0)],
    "sklearn": [lambda: hx.estimators.BilevelSVC()],
    "cvxpy": [lambda: hx.from_cvxpy(object(), [], [])],
}
MOVED: list[Callable[[], object]] = [lambda: hx.datasets.load, lambda: hx.problems.svm]  # to hierax-lab
PACKAGES = ("hierax_lab", "clarabel", "matplotlib", "pooch", "sklearn", "cvxpy")  # of the extras: not to be there


def extras_are_named() -> None:
    """Every call that needs an extra fails with the line that installs it."""
    there = [package for package in PACKAGES if find_spec(package) is not None]
    assert not there, f"the environment is not clean: {there}"
    for extra, calls in NEEDING.items():
        for call in calls:
            try:
                call()
            except hx.MissingExtra as error:
                assert f"pip install 'hierax[{extra}]'" in str(error), error
            else:
                raise AssertionError(f"extra {extra}: a call did without it")
    for call in MOVED:
        try:
            call()
        except hx.MissingExtra as error:
            assert "pip install hierax-lab" in str(error), error
        else:
            raise AssertionError("a name that has moved to hierax-lab is there without it")
    without = set(metadata("hierax").get_all("Provides-Extra") or []) - set(NEEDING) - {"all", "data"}
    print("extras that no call here needs:", ", ".join(sorted(without)) or "none")


COMMANDS = (  # and what each must say
    (["--version"], f"hierax {hx.__version__}"),
    (["new", "problem.py"], "hierax solve problem.py:problem"),
    (["check", "problem.py:problem"], "Slater point"),
    (["solve", "problem.py:problem"], "Solution: converged"),
    (["report", "out/problem"], "Written to out/problem/report.html"),
    (["verify", "problem.py:problem", "out/problem/answer.json"], "verdict  yes"),
    (["demo"], "No figures: figures need matplotlib: pip install 'hierax[plot]'"),
    (["doctor"], "All is well."),
)


def commands_work() -> None:
    """The commands of docs/guides/commands.md, in order; each ends with 0."""
    program = Path(sys.executable).with_name("hierax")
    for words, said in COMMANDS:
        done = subprocess.run([str(program), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"hierax {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert said in done.stdout, f"hierax {' '.join(words)} does not say {said!r}:\n{done.stdout}"
        print("hierax", *words, "is fine", flush=True)


def the_lab_is_missed_in_one_line() -> None:
    """The commands of hierax-lab say how to get it; 2 is the exit code of a command that is not there."""
    program = Path(sys.executable).with_name("hierax")
    for words in (["bench", "toy"], ["reproduce", "toy", "--quick"], ["datasets"]):
        done = subprocess.run([str(program), *words], capture_output=True, text=True, check=False)
        line = f"error: hierax {words[0]} is a command of the package hierax-lab: pip install hierax-lab"
        assert (done.returncode, done.stdout, done.stderr.strip()) == (2, "", line), done
        print("hierax", *words, "says what is missing", flush=True)


if __name__ == "__main__":
    solve_and_certify()
    extras_are_named()
    commands_work()
    the_lab_is_missed_in_one_line()
