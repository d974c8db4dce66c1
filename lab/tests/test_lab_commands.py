"""The commands of the lab as the command line of hierax finds them: options, lost readers, missing figures."""

import io
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import hierax_lab
from hierax.cli import app
from hierax_lab import output
from hierax_lab.datasets import SOURCES


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Call the command line in an empty folder; programs are not kept, since JAX opens its cache once per process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("hierax.cli._keep_programs", lambda: None)

    def call(*args):
        return CliRunner().invoke(app, list(args))

    return call


def test_reproduce_hands_over_its_options(cli, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("hierax_lab.reproduce.toy_run.run", lambda out, **options: calls.append((out, options)))
    result = cli("reproduce", "toy", "--quick", "--seeds", "7", "--out", "there")
    assert result.exit_code == 0, result.output
    (out, options) = calls[0]
    assert (str(out), options) == ("there/toy", {"quick": True, "seeds": 7, "data_dir": None})
    assert cli("reproduce", "nonsense").exit_code == 2


def test_a_reader_that_leaves_is_not_the_users_file(cli, monkeypatch):
    """As in `hierax datasets | head -1`: rich ends the program."""

    def print_to_nobody(self, *args, **kwargs):
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904  # as rich does

    monkeypatch.setattr("rich.console.Console.print", print_to_nobody)
    done = cli("datasets")
    assert done.exit_code == 1 and done.stderr == ""


def test_no_experiment_loses_the_name_of_the_extra_to_rich(monkeypatch):
    """`Console.print` takes [plot] for markup, and pip would then install hierax once more."""
    files = Path(hierax_lab.__file__).parent.rglob("*.py")
    callers = [file for file in files if "draw_or_say(" in file.read_text("utf-8")]
    assert len(callers) == 4  # the definition, the frame of the experiments, the table of methods, the race
    for file in callers:
        assert not re.search(r"draw_or_say\([^#]*?console\.print\)?$", file.read_text("utf-8"), re.MULTILINE), file
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = io.StringIO()
    output.draw_or_say(lambda: output.new_figure(1.0, 1.0), Console(file=page).out)
    assert "pip install 'hierax[plot]'" in page.getvalue()


def test_what_is_downloaded_has_a_safe_address_and_a_hash():
    """That the hash is checked: test_datasets.py."""
    for source in SOURCES.values():
        assert source.home.startswith("https://")
        assert len(source.sha256) == 64 and int(source.sha256, 16) >= 0
        assert Path(source.file).name == source.file
