"""What a release rests on: one version everywhere, types that users can check against, what the package ships."""

import os
import re
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest

import hierax as hx
from hierax.cli.doctor_command import EXTRAS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_one_version_everywhere():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == PROJECT["version"] == hx.__version__


def test_the_doctor_knows_every_extra():
    assert set(EXTRAS) == set(PROJECT["optional-dependencies"]) - {"all"}


def test_the_package_says_that_it_is_typed():
    assert resources.files("hierax").joinpath("py.typed").is_file()


@pytest.mark.parametrize("name", ["bug", "feature", "wrong-claim"])
def test_issue_templates_ask_for_what_is_needed(name):
    text = (ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text("utf-8")
    assert re.search(r"^name: .+\ndescription: .+\nlabels: \[.+\]\nbody:\n", text)
    assert ("hierax doctor" in text) == (name != "feature")


# `make lint` checks the same file on every run, with the settings of --strict that can be said of one module.
@pytest.mark.slow
def test_a_typed_users_file_passes_mypy_strict(tmp_path):
    """As a user's checker sees it: their own settings; of an installed package only what it exports is looked at."""
    call = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file", os.devnull]
    files = ["--cache-dir", str(tmp_path), str(ROOT / "examples" / "typed.py")]
    environment = os.environ | {"MYPYPATH": str(ROOT / "src")}
    done = subprocess.run([*call, *files], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import hierax as hx\n\nsolution: hx.Solution = hx.check\nhx.solve(problem=1, x0=0.0)\n")
    done = subprocess.run([*call, *files[:2], str(wrong)], capture_output=True, text=True, check=False, env=environment)
    assert "[assignment]" in done.stdout and "[call-arg]" in done.stdout and done.returncode == 1
