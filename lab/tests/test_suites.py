"""`hierax bench suite` and `hierax bench leaderboard`: which benchmark runs what, and what the page says."""

import json

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from hierax.cli import app
from hierax_lab.bench import external, leaderboard, medium, suites
from hierax_lab.problems.smd import smd_case


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("hierax.cli._keep_programs", lambda: None)
    return lambda *args: CliRunner().invoke(app, list(args))


def test_every_suite_goes_to_its_benchmark(cli, monkeypatch):
    calls = []
    monkeypatch.setattr(external, "run", lambda console, *args: calls.append(args))
    monkeypatch.setattr(medium, "run", lambda console, *args: calls.append(args))
    assert [len(names) for names in suites.PROBLEMS.values()] == [71, 11, 4, 3, 11]
    assert cli("bench", "suite", "smd", "--seeds", "3", "--solver", "Auto").exit_code == 0
    assert cli("bench", "suite", "qpec", "--out", "there").exit_code == 0
    assert calls[0][:2] == (3, ["Auto"]) and calls[0][2][0] == "SMD1" and str(calls[0][3]) == "out/suites/smd"
    assert calls[1][0] == [f"qpec-100-{i}" for i in (1, 2, 3, 4)] and "phi-LBFGS" in calls[1][1]
    assert cli("bench", "suite", "macmpec").exit_code == 0 and calls[2][2] == 60.0
    assert "there are bolib, smd, qpec, portfolio, macmpec" in cli("bench", "suite", "other").stderr
    assert "--solver phi-LBFGS: unknown" in cli("bench", "suite", "smd", "--solver", "phi-LBFGS").stderr


def small(problem, seed, **changes):
    case = external.load(problem)
    x, y = case.best
    row = {"solver": "Auto", "problem": problem, "upper": case.values[0], "violation": 0.0, "gap": 0.0, "solved": True}
    row |= {"better": False, "known": case.values[0], "x": x, "y": y, "seed": seed, "ended": "converged"}
    return row | {"seconds": 2.0 + seed, "compiled": 0.5} | changes


def larger(problem, **changes):
    row = {"problem": problem, "solver": "Auto", "sizes": "5+100, 0", "known": -3.98212, "published": True}
    row |= {"sampled": False, "start": 0.0, "not_run": "", "seed": 0, "upper": -4.0453, "violation": 0.0, "gap": 0.0}
    row |= {"gap_allowed": 1e-4, "cold": 9.0, "compiled": 3.0, "status": "converged", "x": [0.25, 1 / 3]}
    return row | changes


def test_the_page(cli, tmp_path):
    assert "has no SUITE/results.json" in cli("bench", "leaderboard").stderr
    smds = [small("SMD1", 0), small("SMD1", 1), small("SMD12", 0), small("SMD12", 1, solved=False, gap=0.1, upper=12.0)]
    smds.append(small("SMD1", 0, solver="SLSQP", solved=False))
    del smds[-1]["compiled"]
    qpecs = [larger("qpec-100-4"), larger("qpec-100-4", solver="BLOCC", violation=1.0, upper=-9.0)]
    qpecs.append(larger("qpec-100-1", known=0.099, upper=0.0990028))
    qpecs.append(larger("qpec-100-1", known=0.099, solver="trust-constr-KKT", not_run="too large"))
    for name, rows in (("smd", smds), ("qpec", qpecs)):
        (tmp_path / "found" / name).mkdir(parents=True)
        (tmp_path / "found" / name / "results.json").write_text(json.dumps(rows))
    (tmp_path / "found" / "notes.md").write_text("Made by hand.\n")
    assert cli("bench", "leaderboard", "found", "--page", "page.md").exit_code == 0
    page = (tmp_path / "page.md").read_text()
    assert "| Auto | 2, 1 | 2 | 2.00 | 0.50 | SMD12 | 4 converged |" in page
    assert "| SLSQP | 0 | 1 | 2.00 | - | SMD1 | 1 converged |" in page
    assert "| Auto | 2 | 2 | 9.00 | 3.00 |  | 2 converged |" in page and "| BLOCC | 0 | 1 |" in page
    assert "trust-constr-KKT" not in page and "## bolib" not in page
    assert page.endswith("Made by hand.\n")
    beaten = page.split("## Better than published")[1]
    assert "**SMD12** (Auto): F = 12.11603, published 12.16421." in beaten
    assert "**qpec-100-4** (Auto): F = -4.0453, published -3.98212." in beaten and "x = (0.25, 0.3333333333)" in beaten
    assert "BLOCC" not in beaten and "qpec-100-1" not in beaten and "SMD1*" not in beaten
    assert "No published value is beaten" in leaderboard._points([])


def test_printed_points_can_be_checked():
    """The digits that the page gives are enough for F and for feasibility."""
    case = smd_case(12)
    x, y = (np.array([float(number) for number in leaderboard._numbers(part)[1:-1].split(",")]) for part in case.best)
    assert abs(float(case.upper(x, y)) - case.values[0]) < 1e-8
    assert max(float(row) for row in [*case.rows(x, y), *case.upper_rows(x, y)]) < 1e-8


@pytest.mark.slow  # solves and judges for real
def test_a_suite_runs(tmp_path):
    met = external.run(Console(quiet=True), 1, ["Auto", "SLSQP"], ["SMD1", "SMD2"], tmp_path, parallel=False)
    rows = json.loads((tmp_path / "results.json").read_text())
    assert met and [row["solved"] for row in rows if row["solver"] == "Auto"] == [True, True]
    assert len(rows[0]["x"]) == 5 and rows[0]["known"] == 0.0
