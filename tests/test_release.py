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
import hierax_lab
from hierax.cli.doctor_command import EXTRAS

ROOT = Path(__file__).parent.parent
PROJECT, LAB = (
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))["project"] for folder in (".", "lab")
)


def test_one_version_everywhere():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == PROJECT["version"] == hx.__version__
    assert LAB["version"] == hierax_lab.__version__ == hx.__version__
    (needed,) = [line for line in LAB["dependencies"] if line.startswith("hierax")]
    assert needed.endswith(f"]=={hx.__version__}")


def test_the_lab_needs_what_the_library_needs_of_shared_packages():
    """One lower bound for each package, whichever of the two names it."""
    least = {line.partition(">=")[0]: line for line in PROJECT["dependencies"]}
    extras = [line for name in ("data", "conic", "plot") for line in PROJECT["optional-dependencies"][name]]
    known = {*least.values(), *extras}
    assert [line for line in LAB["dependencies"][1:] if line not in known] == []


def test_both_packages_have_the_same_licence():
    assert (ROOT / "lab" / "LICENSE").read_text("utf-8") == (ROOT / "LICENSE").read_text("utf-8")


def test_the_library_holds_no_results_data_or_collections():
    """They are the lab's: a user of the library alone need not carry them."""
    listed = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=False)
    files = [ROOT / name for name in listed.stdout.split()] or list((ROOT / "src").rglob("*"))
    kinds = {file.suffix for file in files if file.is_file() and "__pycache__" not in file.parts}
    assert kinds - {".py", ".typed", "", ".css", ".html"} == set()
    assert max(file.stat().st_size for file in files if file.suffix == ".py") < 40_000


def test_the_lab_is_forbidden_every_private_module():
    """The contract of import-linter names them one by one, because it has no wildcard for a part of a name."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (contract,) = [one for one in config["contracts"] if one["name"].startswith("The lab uses")]
    public = {"hierax.extend", "hierax.problems", "hierax.estimators", "hierax.__init__", "hierax.__main__"}
    files = (ROOT / "src" / "hierax").iterdir()
    there = {f"hierax.{path.stem}" for path in files if path.suffix == ".py" or (path / "__init__.py").is_file()}
    private = {f"hierax.problems.{path.stem}" for path in (ROOT / "src/hierax/problems").glob("_[!_]*.py")}
    assert (there - public) | private <= set(contract["forbidden_modules"])


def test_the_doctor_knows_every_extra():
    assert set(EXTRAS) == set(PROJECT["optional-dependencies"]) - {"all", "data"}  # data: deprecated


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
    files = ["--cache-dir", str(tmp_path), str(ROOT / "gallery" / "integrations" / "typed.py")]
    environment = os.environ | {"MYPYPATH": str(ROOT / "src")}
    done = subprocess.run([*call, *files], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import hierax as hx\n\nsolution: hx.Solution = hx.check\nhx.solve(problem=1, x0=0.0)\n")
    done = subprocess.run([*call, *files[:2], str(wrong)], capture_output=True, text=True, check=False, env=environment)
    assert "[assignment]" in done.stdout and "[call-arg]" in done.stdout and done.returncode == 1
