"""The command line and the files it leaves: what is printed, what is written, how mistakes are reported."""

import csv
import json
import sys

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import hierax as hx
from hierax.cli import _keep_programs, app
from hierax.cli.group import CERTIFIED, FAILED, NOT_CERTIFIED
from hierax.extend import METHODS
from hierax.reports import folder

STATED = """
import hierax as hx

problem = hx.Problem(
    upper=lambda x, y, zeta: (y["a"] - 1.0) ** 2 + 0.1 * x**2,
    lower=lambda x, y, xi: (y["a"] - 2.0 * x) ** 2,
    constraints=lambda x, y: y["a"] - x,
)
x0, y0 = 0.5, {"a": 0.5}


def stated():
    return problem, x0, y0


def broken():
    return 1 / 0


def needless(size):
    return problem, x0, y0


def other():
    return problem


alone = 3.0
"""


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Call the command line in an empty folder; programs are not kept, since JAX opens its cache once per process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("hierax.cli._keep_programs", lambda: None)
    (tmp_path / "model.py").write_text(STATED)

    def call(*args):
        return CliRunner().invoke(app, list(args))

    return call


def test_version(cli):
    result = cli("--version")
    assert result.exit_code == 0
    assert result.stdout.strip() == f"hierax {hx.__version__}"


def test_programs_are_kept_where_possible(monkeypatch, tmp_path):
    updates = {}
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", None)  # conftest.py has set it
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    _keep_programs()
    assert updates == {}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _keep_programs()
    assert updates["jax_compilation_cache_dir"] == str(tmp_path / "hierax")
    assert (tmp_path / "hierax").is_dir()


def test_demo_finds_the_global_minimiser_and_draws_it(cli, tmp_path):
    result = cli("demo", "--out", "shown")
    assert result.exit_code == 0, result.output
    x, known = (float(word) for word in result.stdout.split("upper variable x")[1].split()[:2])
    assert known == 0.98622
    assert abs(x - known) < 1e-4
    assert "Certificate at x = 0.986" in result.stdout and "verdict at tol 0.0001" in result.stdout
    assert "converged" in result.stdout and "Globality: " in result.stdout and "hierax new problem.py" in result.stdout
    assert (tmp_path / "shown" / "figures" / "demo.png").stat().st_size > 10_000


def test_solve_writes_the_run_and_resumes_it_exactly(cli, tmp_path):
    whole = cli("solve", "model.py:stated", "--method", "salvf", "--max-steps", "40", "--out", "whole")
    assert whole.exit_code == NOT_CERTIFIED, whole.output  # so few steps do not solve it
    first = cli("solve", "model.py:problem", "--method", "salvf", "--max-steps", "20", "--out", "parts")
    assert first.exit_code == NOT_CERTIFIED, first.output
    assert "Running the Python file model.py" in first.stdout
    again = cli("solve", "model.py:problem", "--max-steps", "40", "--out", "parts", "--resume")
    assert again.exit_code == NOT_CERTIFIED, again.output
    whole, parts = (np.load(tmp_path / name / "arrays.npz") for name in ("whole", "parts"))
    assert set(parts.files) == {"x", "y['a']", "multipliers.inequalities"}
    for name in parts.files:
        assert whole[name] == parts[name]
    saved = json.loads((tmp_path / "parts" / "run.json").read_text())
    assert saved["settings"]["resumed"] is True
    assert saved["status"] == {"name": "max_steps", "step": 40, "ok": False, "message": saved["status"]["message"]}
    assert (
        saved["counts"]["grad_upper"]
        == json.loads((tmp_path / "whole" / "run.json").read_text())["counts"]["grad_upper"]
    )
    assert saved["versions"]["hierax"] == hx.__version__
    with open(tmp_path / "parts" / "history.csv") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    assert steps == list(range(1, 41))
    assert (tmp_path / "parts" / "figures" / "history.png").exists()


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["model.py"], "FILE.py:NAME"),
        (["absent.py:problem"], "no such file"),
        (["model.py:missing"], "has no 'missing'; it defines problem, stated"),
        (["model.py:alone"], "alone is 3.0; needs a Problem"),
        (["model.py:broken"], "line 17: broken() failed: ZeroDivisionError"),
        (["model.py:needless"], "needless() failed: TypeError"),
        (["model.py:other"], "other() must return (problem, x0, y0), got Problem"),
        (["syntax.py:problem"], "syntax.py: SyntaxError"),
        (["bare.py:problem"], "define y0 beside it"),
        (["integer.py:problem"], "x0 has dtype int"),
    ],
)
def test_mistakes_are_one_line(cli, tmp_path, args, text):
    (tmp_path / "syntax.py").write_text("def problem(:\n")
    (tmp_path / "bare.py").write_text(STATED.replace("x0, y0 = 0.5", "x0 = 0.5"))
    (tmp_path / "integer.py").write_text(STATED.replace("x0, y0 = 0.5", "x0, y0 = __import__('numpy').array(1)"))
    result = cli("solve", *args)
    assert result.exit_code == 1
    assert text in result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.strip().splitlines()) == 1


def test_every_method_of_the_registry_can_be_chosen(cli):
    help_text = cli("solve", "--help").stdout
    for name in ("auto", *METHODS):
        assert name in help_text
        # The method is accepted: what is wrong is the file.
        assert "absent.py: there is no such file" in cli("solve", "absent.py:problem", "--method", name).stderr
    unknown = cli("solve", "model.py:problem", "--method", "newton")
    assert unknown.exit_code == 2 and "'newton' is not one of auto, salvf" in " ".join(unknown.stderr.split())


def test_solve_without_a_method_is_auto_and_says_what_it_did(cli, tmp_path):
    result = cli("solve", "model.py:problem", "--out", "auto")
    assert result.exit_code == 0, result.output
    assert "Route " in result.stdout and "Globality: " in result.stdout
    saved = json.loads((tmp_path / "auto" / "run.json").read_text())
    assert saved["settings"]["method"] == "auto" and saved["log"][0].startswith("Route ")
    refused = cli("solve", "model.py:problem", "--max-steps", "5")
    assert refused.exit_code == 1
    assert "--max-steps: belongs to a method that makes steps; give one (--method salvf)" in refused.stderr


def test_options_of_several_processes_that_say_too_little(cli):
    for options, said in (
        (("--distributed",), "--distributed: needs a method that makes steps"),
        (("--method", "salvf", "--process-id", "1"), "belong to --distributed; give it too"),
        (("--method", "salvf", "--distributed"), "Give each of them --coordinator HOST:PORT"),
    ):
        result = cli("solve", "model.py:problem", *options)
        assert result.exit_code == 1
        assert said in result.stderr.replace("\n", " ")


def test_a_failed_run_is_written_and_reported(cli, tmp_path):
    (tmp_path / "runs_off.py").write_text(
        "import hierax as hx, jax.numpy as jnp\n"
        "problem = hx.Problem(upper=lambda x, y, _: jnp.sqrt(x), lower=lambda x, y, _: (y - x) ** 2)\n"
        "x0, y0 = 0.05, 0.0\n"
    )
    result = cli("solve", "runs_off.py:problem", "--method", "salvf", "--max-steps", "300", "--out", "off", "--json")
    assert result.exit_code == FAILED
    document = json.loads(result.stdout)
    assert document["exit_code"] == FAILED and document["status"]["name"] == "nonfinite"
    assert document["certificate"] is None and document["why_no_certificate"] == "the run failed."
    assert "nonfinite" in result.stderr and "What was computed is in off" in result.stderr
    assert json.loads((tmp_path / "off" / "run.json").read_text())["status"]["name"] == "nonfinite"


def test_resume_takes_over_what_is_not_said_and_refuses_what_differs(cli, tmp_path):
    options = ("--method", "salvf", "--max-steps", "20", "--seed", "3", "--resume")
    first = cli("solve", "model.py:problem", *options, "--out", "there")
    assert first.exit_code == NOT_CERTIFIED and "Nothing to resume in there: the run begins." in first.stdout
    done = cli("solve", "model.py:problem", "--resume", "--out", "there")  # all 20 steps are made: nothing is done
    assert done.exit_code == NOT_CERTIFIED and "Resumed from the checkpoint" in done.stdout
    saved = json.loads((tmp_path / "there" / "run.json").read_text())
    assert (saved["settings"]["method"], saved["settings"]["seed"], saved["status"]["step"]) == ("salvf", 3, 20)
    other = cli("solve", "model.py:problem", "--resume", "--seed", "4", "--out", "there")
    assert other.exit_code == 1 and "seed (3 then, 4 now)" in other.stderr
    (tmp_path / "model.py").write_text(STATED.replace("0.1 * x**2", "0.2 * x**2"))
    other = cli("solve", "model.py:problem", "--resume", "--out", "there")
    assert other.exit_code == 1 and "Different are: function upper." in other.stderr


def test_a_run_that_was_killed_is_not_overwritten(cli, tmp_path):
    run = ("solve", "model.py:problem", "--method", "salvf", "--max-steps", "20", "--out", "killed")
    assert cli(*run).exit_code == NOT_CERTIFIED
    saved = json.loads((tmp_path / "killed" / "run.json").read_text())
    folder.begin_run(tmp_path / "killed", saved["settings"])  # as the file is while a run is under way
    refused = cli(*run)
    assert refused.exit_code == 1 and "Add --resume" in refused.stderr
    assert cli(*run, "--resume").exit_code == NOT_CERTIFIED
    assert cli(*run).exit_code == NOT_CERTIFIED  # a run that has ended may be replaced


def test_the_folder_is_looked_at_before_the_run(cli, tmp_path):
    (tmp_path / "file").write_text("")
    refused = cli("solve", "model.py:problem", "--out", "file/there")
    assert refused.exit_code == 1 and "--out file/there: cannot be written to" in refused.stderr
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("no json")
    refused = cli("solve", "model.py:problem", "--resume", "--out", "bad")
    assert refused.exit_code == 1 and "run.json: is damaged" in refused.stderr
    ended = {"status": {"name": "max_steps"}, "settings": {"method": "salvf"}}  # of a version without checkpoints
    (tmp_path / "bad" / "run.json").write_text(json.dumps(ended))
    refused = cli("solve", "model.py:problem", "--resume", "--out", "bad")
    assert refused.exit_code == 1 and "nothing to resume, checkpoint is missing" in refused.stderr


def test_an_answer_that_cannot_be_written_is_printed(cli, monkeypatch):
    def full(out, solution, settings):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hierax.reports.folder.write_run", full)
    done = cli("solve", "model.py:problem", "--method", "salvf", "--max-steps", "5", "--out", "full")
    assert done.exit_code == 1 and "No space left" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["format"] == "hierax answer 1"


def test_without_matplotlib_the_pip_line_is_said(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "hierax.reports.figures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(folder, "plot", lambda solution: folder.figures.figure_of([]))
    said = folder.save_plot(None, tmp_path / "history.png")
    assert said == "No figures: figures need matplotlib: pip install 'hierax[plot]'"


def test_json_holds_plain_values_only(tmp_path):
    content = {"array": np.array([1.0, np.nan]), "key": hx.Decay(0.5), "number": np.float64(np.inf), "many": (1, "a")}
    folder.write_json(tmp_path / "some" / "file.json", content)
    assert json.loads((tmp_path / "some" / "file.json").read_text(), parse_constant=pytest.fail) == {
        "array": [1.0, None],
        "key": {"type": "Decay", "scale": 0.5, "a": 1.5, "power": 1 / 3},
        "number": None,
        "many": [1, "a"],
    }


def test_ctrl_c_saves_what_there_is(cli, tmp_path):
    """The file presses Ctrl-C a second after it was read; the run would take for ever."""
    pressing = "import os, signal, threading\nthreading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
    (tmp_path / "model.py").write_text(pressing + STATED)
    done = cli("solve", "model.py:stated", "--method", "salvf", "--max-steps", "2000000000", "--out", "saved")
    assert done.exit_code == 130
    assert "interrupted" in done.output
    assert "Written to saved (go on with --resume)" in done.output
    assert {"run.json", "history.csv", "arrays.npz", "checkpoint"} <= {
        file.name for file in (tmp_path / "saved").iterdir()
    }
    saved = json.loads((tmp_path / "saved" / "run.json").read_text())
    assert saved["status"]["name"] == "interrupted"
    (tmp_path / "model.py").write_text(STATED)
    more = str(saved["status"]["step"] + 5)
    on = cli("solve", "model.py:stated", "--resume", "--max-steps", more, "--out", "saved")
    assert on.exit_code in (CERTIFIED, NOT_CERTIFIED)
    assert json.loads((tmp_path / "saved" / "run.json").read_text())["status"]["step"] == int(more)


def test_few_seconds_for_many_steps_leave_a_whole_folder(cli, tmp_path):
    """No record fell into such a run, and the figure of its history ended in an IndexError."""
    done = cli(
        "solve", "model.py:stated", "--method", "salvf", "--max-steps", "100000000", "--seconds", "2", "--out", "short"
    )
    assert done.exit_code in (CERTIFIED, NOT_CERTIFIED)
    assert (tmp_path / "short" / "figures" / "history.png").is_file()


def test_a_negative_seed_is_refused(cli):
    done = cli("solve", "model.py:stated", "--seed", "-3")
    assert done.exit_code == 2
    assert "--seed" in done.output
