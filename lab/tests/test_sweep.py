"""Sweeps over settings and seeds: pairs, failures, and tables as files."""

import csv
import io
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from rich.table import Table
from typer.testing import CliRunner

import hierax as hx
from hierax.cli import app
from hierax.problems import toy
from hierax_lab.output import TableConsole, write_tables
from hierax_lab.reproduce import sweep as module
from hierax_lab.reproduce.experiment import experiment
from hierax_lab.reproduce.sweep import paired, sweep, sweep_table

FIRST, SECOND = (hx.SALVF(c1=c1, c2=100.0) for c1 in (2.0, 5.0))


def test_a_setting_differs_from_itself_by_nothing_and_its_numbers_are_those_of_solve_many():
    rows = sweep(*toy(0.1)[:3], {"a": FIRST, "again": FIRST, "b": SECOND}, 4, max_steps=30)
    assert rows["again"]["difference"] == rows["again"]["difference_se"] == rows["a"]["difference"] == 0.0
    problem, x0, y0 = toy(0.1)[:3]
    known = hx.solve_many(problem, np.full(4, x0), np.full(4, y0), SECOND, max_steps=30, progress=False)
    np.testing.assert_allclose(rows["b"]["values"], known.values)
    differences = np.subtract(rows["b"]["values"], rows["a"]["values"])
    assert rows["b"]["difference"] == pytest.approx(differences.mean())
    assert rows["b"]["difference_se"] == pytest.approx(differences.std(ddof=1) / 2)
    assert rows["b"]["finished"] == rows["b"]["runs"] == 4


def test_a_run_that_fails_is_in_no_mean_and_in_no_difference(monkeypatch):
    bad = {"a": [2], "b": [0]}
    names = iter(bad)

    def solve_many(problem, x0s, y0s, method, **call):
        failed = bad[next(names)]
        kinds = ["nonfinite" if i in failed else "max_steps" for i in range(4)]
        status = [SimpleNamespace(failed=kind == "nonfinite", name=kind) for kind in kinds]
        return SimpleNamespace(status=status, values=method * np.arange(1.0, 5.0))

    monkeypatch.setattr(module, "solve_many", solve_many)
    rows = sweep(None, 0.0, 0.0, {"a": 1.0, "b": 10.0}, 4)
    assert rows["a"]["values"] == [1.0, 2.0, None, 4.0] and rows["a"]["statuses"] == {"max_steps": 3, "nonfinite": 1}
    assert rows["b"]["mean"] == pytest.approx(30.0) and rows["b"]["median"] == 30.0
    assert rows["b"]["difference"] == pytest.approx((18 + 36) / 2)  # seeds 1 and 3
    console = TableConsole(width=140, file=io.StringIO())
    console.print(sweep_table("title", rows))
    assert [*console.tables[0].columns[-1].cells] == ["3/4, 1 nonfinite"] * 2


def test_differences_are_over_the_seeds_that_have_both():
    nan = math.nan
    np.testing.assert_array_equal(paired(np.array([1.0, nan, 5.0]), np.array([0.5, 2.0, nan])), [0.5])


def test_tables_as_csv_and_latex(tmp_path):
    table = Table("", "a_b", title="The share, 50 %")
    table.add_row("x^2 & y", "[green]met[/green]")
    table.add_row("z", "1 +- 2")
    write_tables(tmp_path / "tables", [table])
    stem = tmp_path / "tables" / "01-the-share-50"
    rows = csv.reader(stem.with_suffix(".csv").read_text().splitlines())
    assert [*rows] == [["", "a_b"], ["x^2 & y", "met"], ["z", "1 +- 2"]]
    lines = stem.with_suffix(".tex").read_text().splitlines()
    assert lines[0] == "% The share, 50 %" and lines[1] == r"\begin{tabular}{lr}"
    assert lines[3] == r" & a\_b \\" and lines[5] == r"x\textasciicircum{}2 \& y & met \\"
    assert r"1 $\pm$ 2" in lines[6]


def test_an_experiment_writes_the_tables_that_it_prints(tmp_path):
    @experiment
    def run(run):
        run.console.print(Table("one", title="numbers"))
        return {}

    run(tmp_path)
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {"01-numbers.csv", "01-numbers.tex"}


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr("hierax.cli._keep_programs", lambda: None)
    file = tmp_path / "model.py"
    file.write_text("from hierax.problems import toy\n\n\ndef problem():\n    return toy(0.1)\n")
    given = ["bench", "sweep", f"{file}:problem", "--out", str(tmp_path / "out"), "--seeds", "4", "--steps", "30"]
    answer = CliRunner().invoke(app, [*given, "--vary", "c1=2,5"])
    assert answer.exit_code == 0, answer.output
    rows = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert [*rows] == ["c1 = 2", "c1 = 5"] and rows["c1 = 5"]["runs"] == 4
    assert len([*(tmp_path / "out").glob("*.tex")]) == 1
    for vary, word in (("c7=1", "--vary c7"), ("c1=a", "--vary c1=a")):
        wrong = CliRunner().invoke(app, [*given, "--vary", vary])
        assert wrong.exit_code == 1 and word in wrong.output
