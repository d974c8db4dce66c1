"""Commands of other packages: found by their entry points, imported where they are called, and no harm to others."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from typer.testing import CliRunner

from hierax.cli import app, group

COMMANDS = """
import typer

import hierax as hx

app = typer.Typer()


@app.command(epilog="Example: hierax mine --times 2")
def mine(times: int = 1) -> None:
    \"\"\"Say something.\"\"\"
    if times > 9:
        raise hx.InputError("--times: at most 9.")
    print("said " * times)
"""


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Call the command line in an empty folder, as if two packages had commands: one that works, one that does not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("hierax.cli._keep_programs", lambda: None)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "other_package.py").write_text(COMMANDS)
    (tmp_path / "broken_package.py").write_text("import a_package_that_is_not_there\n")
    points = [
        EntryPoint("mine", "other_package:app", "hierax.commands"),
        EntryPoint("broken", "broken_package:app", "hierax.commands"),
        EntryPoint("new", "other_package:app", "hierax.commands"),  # hierax has one, which stays
    ]
    monkeypatch.setattr(group, "entry_points", lambda group: points)
    yield lambda *words: CliRunner().invoke(app, list(words))
    sys.modules.pop("other_package", None)


def test_a_command_of_another_package_runs_with_its_options(cli):
    done = cli("mine", "--times", "2")
    assert (done.exit_code, done.stdout.strip()) == (0, "said said")
    assert "Example: hierax mine" in cli("mine", "--help").stdout
    done = cli("mine", "--times", "10")
    assert (done.exit_code, done.stderr.strip()) == (group.REFUSED, "error: --times: at most 9.")


def test_the_help_lists_commands_without_importing_them(cli):
    done = cli("--help")
    assert done.exit_code == 0 and "A command of the package other_package." in done.stdout and "broken" in done.stdout
    assert "other_package" not in sys.modules


def test_a_broken_package_breaks_no_other_command(cli):
    done = cli("broken")
    said = "error: hierax broken: the package broken_package cannot be loaded: ModuleNotFoundError: No module named "
    assert done.exit_code == group.REFUSED and done.stderr.startswith(said) and len(done.stderr.splitlines()) == 1
    assert "Traceback" in cli("--debug", "broken").stderr
    assert cli("new", "problem.py").exit_code == 0 and cli("mine").exit_code == 0


@pytest.mark.parametrize("name", group.LAB)
def test_without_the_lab_its_commands_say_how_to_get_it(cli, name):
    done = cli(name, "toy", "--quick")
    line = f"error: hierax {name} is a command of the package hierax-lab: pip install hierax-lab"
    assert (done.exit_code, done.stdout, done.stderr.strip()) == (group.MISSPELT, "", line)
    assert name not in cli("--help").stdout


def test_a_misspelt_command_is_wrong_use(cli):
    done = cli("sovle")
    assert done.exit_code == group.MISSPELT and "No such command" in done.stderr


def test_the_library_imports_neither_the_lab_nor_its_entry_points_for_a_command_of_its_own():
    code = (
        "import sys, hierax.cli\n"
        "from hierax.cli import group\n"
        "group.entry_points = lambda group: sys.exit('looked for plugins')\n"
        "sys.argv = ['hierax', 'new', '--help']\n"
        "try:\n    hierax.cli.app()\nexcept SystemExit as error:\n    assert not error.code, error.code\n"
        "assert not [name for name in sys.modules if name.startswith('hierax_lab')]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
