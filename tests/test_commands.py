"""The command line as people and scripts use it: help that teaches, `new`, `check`, `doctor`, --json, --debug."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import jax
import numpy as np
import pytest
import typer
from pages import EVERY
from scipy.optimize import minimize_scalar
from typer.testing import CliRunner

import hierax as hx
from hierax.cli import app, doctor_command, group, template
from hierax.cli.group import CERTIFIED, DONE, FAILED, NOT_CERTIFIED, REFUSED, UNREADABLE

ROOT = Path(__file__).parent.parent
README_PROBLEM = """
import hierax as hx

print("a word of the user's file")
problem = hx.Problem(
    upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
    lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
    constraints=lambda x, y: y - x,
    x_set=hx.Box(0.0, 3.0),
    y_set=hx.Box(0.0, 3.0),
)
bent = hx.Problem(problem.upper, problem.lower, lambda x, y: 1.0 - y**2, x_set=problem.x_set, y_set=problem.y_set)
x0, y0 = 0.5, 2.0
"""


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Call the command line in an empty folder; programs are not kept, since JAX opens its cache once per process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("hierax.cli._keep_programs", lambda: None)
    (tmp_path / "model.py").write_text(README_PROBLEM)

    def call(*args):
        return CliRunner().invoke(app, list(args))

    return call


# -- help -------------------------------------------------------------------------------------------------------------


def leaves(command, path=()):
    """Every command with the words that lead to it."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, one in below.items():
        yield from leaves(one, (*path, name))


COMMANDS = dict(leaves(typer.main.get_command(app)))
COMMANDS |= {path: one for name in group.LAB for path, one in leaves(group.loaded(name), (name,))}
SHARED = {"--debug", "--help", "--version"}


def unknown_words(line):
    """What is wrong with a line `hierax ...`: a command or an option that is not there."""
    words = line.split()[1:]
    path = next((path for path in COMMANDS if path == tuple(words[: len(path)])), None)
    if path is None and any(path[: len(words)] == tuple(words) for path in COMMANDS):  # a group of commands
        return []
    if path is None:
        return [] if not words or words[0].startswith("-") or words[0] == "COMMAND" else [line]
    options = {option for parameter in COMMANDS[path].params for option in (*parameter.opts, *parameter.secondary_opts)}
    return [word for word in words if word.startswith("--") and word not in options | SHARED]


def test_the_help_teaches_with_three_commands_that_are_there(cli):
    said = cli("--help").stdout
    assert cli().output.split() == said.split()
    shown = [line.strip(" │").split("  ")[0] for line in said.splitlines() if line.strip(" │").startswith("hierax ")]
    assert shown[:3] == ["hierax demo", "hierax new problem.py", "hierax solve problem.py:problem"]
    assert "--debug" in said and "docs/guides/commands.md" in said


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_that_it_understands(path):
    example = COMMANDS[path].epilog or ""
    assert example.startswith(f"Example: hierax {' '.join(path)}")
    assert unknown_words(example.removeprefix("Example: ")) == []


PAGES = [ROOT / "README.md", ROOT / "RELEASING.md", *EVERY]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_are_there(page):
    """Those in backquotes, and those on lines of their own that are set in."""
    text = page.read_text("utf-8")
    lines = re.findall(r"`(hierax [^`]*)`", text) + re.findall(r"^ {4}(hierax .*?)(?:  .*)?$", text, re.MULTILINE)
    assert [line for line in lines if unknown_words(line.partition(" (")[0])] == []
    targets = set(re.findall(r"^([a-z-]+)[ :]", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)) | {"test-newest"}
    assert set(re.findall(r"(?:`|^ {4})make ([a-z-]+)", text, re.MULTILINE)) <= targets


# -- new --------------------------------------------------------------------------------------------------------------


def known_bound():
    """The best bound of the template's problem, by SciPy; bisection finds the multiplier of a fit under a bound."""
    gram, right = template.train.T @ template.train, template.train.T @ template.train_target

    def loss(bound):
        low, high = 0.0, 1e4
        for _ in range(100):
            weight = (low + high) / 2
            y = np.linalg.solve(gram + weight * np.eye(8), right)
            low, high = (weight, high) if y @ y > bound**2 else (low, weight)
        return np.mean((template.validation @ y - template.validation_target) ** 2)

    return minimize_scalar(loss, bounds=(0.5, 1.9), method="bounded", options={"xatol": 1e-8})


def test_what_new_writes_is_solved_and_certified_as_it_is(cli, tmp_path):
    made = cli("new", "problem.py")
    assert made.exit_code == DONE, made.output
    assert (tmp_path / "problem.py").read_text() == Path(template.__file__).read_text("utf-8")
    (line,) = re.findall(r"hierax (solve problem\.py:problem)", made.stdout)
    done = cli(*line.split(), "--json")
    assert done.exit_code == CERTIFIED, done.output
    document, known = json.loads(done.stdout), known_bound()
    assert document["format"] == "hierax solve 1" and document["exit_code"] == CERTIFIED
    assert document["status"]["name"] == "converged" and document["status"]["ok"]
    assert document["certificate"]["verdict"] == "yes" and document["why_no_certificate"] is None
    assert "starts ran to an end" in document["globality"]
    assert document["x"] == pytest.approx(known.x, abs=1e-4) and document["F"] == pytest.approx(known.fun, abs=1e-6)
    assert np.shape(document["y"]) == (8,)
    for said in ("Running the Python file", "Certificate at x", "Globality", "hierax verify problem.py:problem"):
        assert said in done.stderr
    assert json.loads((tmp_path / "out/problem/answer.json").read_text())["x"] == document["x"]


def test_new_takes_nothing_away(cli, tmp_path):
    (tmp_path / "mine.py").write_text("precious = 1\n")
    for name, said in (
        ("mine.py", "mine.py: is there already, and stays as it is"),
        ("mine.txt", "needs a name that ends in .py"),
        ("there/mine.py", "cannot be written (No such file or directory)"),
    ):
        refused = cli("new", name)
        assert refused.exit_code == REFUSED and said in refused.stderr
    assert (tmp_path / "mine.py").read_text() == "precious = 1\n"
    assert "hierax solve 'my problem.py:problem'" in cli("new", "my problem.py").stdout


# -- solve --json -----------------------------------------------------------------------------------------------------


def test_json_is_alone_on_stdout_whoever_prints(tmp_path):
    """In a process of its own: what comes from C goes to the file descriptor, and the exit code is the shell's."""
    late = "import atexit, os\nos.write(1, b'from C\\n')\natexit.register(os.write, 1, b'late\\n')\n"
    (tmp_path / "model.py").write_text(late + README_PROBLEM)
    few = ["--method", "salvf", "--max-steps", "5"]
    call = [sys.executable, "-m", "hierax", "solve", "model.py:problem", *few, "--json"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == NOT_CERTIFIED, done.stderr
    document = json.loads(done.stdout)
    assert document["exit_code"] == NOT_CERTIFIED and document["certificate"]["verdict"] == "no"
    assert document["settings"] == {
        "seconds": None,
        "target": "model.py:problem",
        "method": "salvf",
        "max_steps": 5,
        "seed": 0,
        "resumed": False,
    }
    for said in ("from C", "late", "a word of the user's file", "Solution: max_steps"):
        assert said in done.stderr


def test_no_document_where_the_call_is_wrong(cli):
    done = cli("solve", "model.py:missing", "--json")
    assert done.exit_code == REFUSED and done.stdout == "" and "has no 'missing'" in done.stderr


# -- check ------------------------------------------------------------------------------------------------------------


def test_check_says_what_fails(cli):
    fine = cli("check", "model.py:problem")
    assert fine.exit_code == DONE and "FAILS" not in fine.stdout and "Slater point" in fine.stdout
    bent = cli("check", "model.py:bent", "--points", "16")
    assert bent.exit_code == NOT_CERTIFIED
    assert re.search(r"convex constraints +FAILS", bent.stdout)
    absent = cli("check", "absent.py:problem")
    assert absent.exit_code == REFUSED and "there is no such file" in absent.stderr


# -- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_finds_all_well(cli, monkeypatch):
    monkeypatch.setattr(doctor_command, "SECONDS", 60.0)  # of a busy machine
    done = cli("doctor")
    assert done.exit_code == DONE, done.output
    assert "solved and certified" in done.stdout and "All is well." in done.stdout and "WRONG" not in done.stdout
    for said in (hx.__version__, jax.__version__, "precision", "hierax-lab", "extra plot", "compiled programs"):
        assert said in done.stdout


def test_doctor_notices_an_answer_that_is_not_the_known_one(cli, monkeypatch):
    other = hx.Problem(
        upper=lambda x, y, zeta: (y - 2.0) ** 2 + 0.1 * x**2,
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        constraints=lambda x, y: y - x,
        x_set=hx.Box(0.0, 3.0),
        y_set=hx.Box(0.0, 3.0),
    )
    monkeypatch.setattr(doctor_command, "problem_of_the_readme", lambda: other)
    monkeypatch.setattr(doctor_command, "SECONDS", 60.0)
    done = cli("doctor")
    assert done.exit_code == REFUSED and "Wrong: self-test." in done.stdout


def test_doctor_names_a_lab_of_another_version(cli, monkeypatch):
    """It belongs to exactly one version of hierax; without it nothing is wrong."""

    def without(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor_command, "version", lambda name: "0.0.1")
    found = doctor_command._lab()
    assert found.wrong and f"pip install hierax-lab=={hx.__version__}" in found.text
    monkeypatch.setattr(doctor_command, "version", without)
    found = doctor_command._lab()
    assert not found.wrong and found.text.endswith("pip install hierax-lab")


def test_doctor_names_what_is_wrong(cli, monkeypatch, tmp_path):
    def no_devices():
        raise RuntimeError("Unable to initialize backend 'cuda'")

    def broken(*args, **kwargs):
        raise ArithmeticError("no such luck")

    monkeypatch.setattr(doctor_command, "solve", broken)
    monkeypatch.setattr(doctor_command, "requires", lambda name: ["jax>=99.0", "absent-package>=1", "rich>=1"])
    monkeypatch.setattr(jax, "devices", no_devices)
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", str(tmp_path / "nowhere"))
    monkeypatch.setattr(doctor_command, "EXTRAS", {"plot": ("matplotlib",), "conic": ("absent_package",)})
    done = cli("doctor")
    assert done.exit_code == REFUSED
    assert "Wrong: jax, absent-package, devices, compiled programs, self-test." in done.stdout
    assert "ArithmeticError: no such luck" in done.stdout and "is too old: pip install 'jax>=99.0'" in done.stdout
    assert "pip install 'hierax[conic]'" in done.stdout  # which is no fault


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["first", "last", "nowhere"])
def test_debug_shows_the_traceback_and_changes_nothing_else(cli, where):
    for words, code in (
        (["solve", "absent.py:problem"], REFUSED),
        (["verify", "absent.py:problem", "answer.json"], UNREADABLE),
    ):
        words = {"first": ["--debug", *words], "last": [*words, "--debug"], "nowhere": words}[where]
        done = cli(*words)
        assert done.exit_code == code
        assert done.stderr.splitlines()[-1] == "error: absent.py: there is no such file."
        assert ("Traceback" in done.stderr and "user_file.py" in done.stderr) == (where != "nowhere")


@pytest.mark.parametrize("left", ["sys.exit()", "problem = sys.exit", "raise SystemExit(3)"])
def test_a_file_that_leaves_is_no_success(cli, tmp_path, left):
    (tmp_path / "leaves.py").write_text(f"import sys\n{left}\n")
    for command in (["solve"], ["check"]):
        done = cli(*command, "leaves.py:problem")
        assert done.exit_code == REFUSED and "left Python by sys.exit(" in done.stderr
    assert cli("verify", "leaves.py:problem", "answer.json").exit_code == UNREADABLE


def test_a_failure_is_no_certificate(cli, tmp_path):
    """Auto's own failures have a code of their own, and no table that could be taken for an answer."""
    (tmp_path / "empty.py").write_text(README_PROBLEM.replace("y - x,", "y - x + 10.0,"))
    done = cli("solve", "empty.py:problem", "--json")
    assert done.exit_code == FAILED, done.output
    document = json.loads(done.stdout)
    assert document["status"]["name"] == "infeasible" and document["certificate"] is None
    assert "Solution" not in done.stderr and "What was computed is in out/problem" in done.stderr
