"""`hierax bench race`: the solvers by hand are right, and what is made of the measurements."""

import io
import json

import numpy as np
import pytest
from rich.console import Console
from scipy import optimize
from typer.testing import CliRunner

from hierax.cli import app
from hierax_lab.bench import race, race_by_hand, race_child
from hierax_lab.bench.race_data import DATA
from hierax_lab.bench.race_statements import STATEMENTS, Words

SMALL = ["ridge", "group logistic", "SVM weights", "pricing", "tolls", "portfolio", "hyper-cleaning", "QCQP 20+20"]
NUMPY = Words(np.exp, np.dot, lambda u: np.logaddexp(0, u), lambda u: np.exp(u) / np.exp(u).sum())


def between(name, numbers, seed=0):
    """A point inside the bounds of x, near its start."""
    (low, high), x = STATEMENTS[name].box(numbers), STATEMENTS[name].starts(numbers)[0]
    step = 0.1 * np.random.default_rng(seed).normal(size=x.size)
    return np.clip(x + step, low + 1e-3, high - 1e-3)


@pytest.mark.parametrize("name", SMALL)
def test_gradients_by_hand_are_those_of_differences(name):
    numbers = DATA[name](2)
    x, along = between(name, numbers), np.random.default_rng(1).normal(size=STATEMENTS[name].sizes(numbers)[0])
    phi, step = race_by_hand.BY_HAND[name](numbers), 1e-5
    difference = (phi(x + step * along)[0] - phi(x - step * along)[0]) / (2 * step)
    assert phi(x)[1] @ along == pytest.approx(difference, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("name", ["ridge", "tolls", "portfolio", "QCQP 20+20"])
def test_lower_solutions_by_hand_are_those_of_the_statement(name):
    """F(x, y) at the y that SciPy's SLSQP finds for the statement is what the solver by hand says."""
    numbers, stated = DATA[name](3), STATEMENTS[name]
    x, y0 = between(name, numbers), stated.starts(numbers)[1]
    constraints = [
        {"type": kind, "fun": lambda y, of=of, sign=sign: np.atleast_1d(sign * of(x, y, numbers, NUMPY))}
        for kind, of, sign in (("ineq", stated.rows, -1), ("eq", stated.equal, 1))
        if of is not None
    ]
    found = optimize.minimize(
        lambda y: stated.lower(x, y, numbers, NUMPY),
        y0,
        bounds=[(stated.y_low if np.isfinite(stated.y_low) else None, None)] * y0.size,
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 500},
    )
    value = stated.upper(x, found.x, numbers, NUMPY)
    assert race_by_hand.BY_HAND[name](numbers)(x)[0] == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize("held", [None, "all", "none"])
def test_the_quadratic_program(held):
    """The KKT conditions hold, whatever the first guess of the active rows is."""
    rng = np.random.default_rng(0)
    root, rows, b = rng.normal(size=(8, 8)), rng.normal(size=(12, 8)), rng.uniform(0.1, 0.5, 12)
    matrix, c = root @ root.T + np.eye(8), 5 * rng.normal(size=8)
    guess = {None: None, "all": np.ones(12, bool), "none": np.arange(12) < 1}[held]
    qp = race_by_hand.QP(np.linalg.inv(matrix), rows, 1, guess)
    y, multipliers = qp.solve(c, b)
    np.testing.assert_allclose(matrix @ y + c + rows.T @ multipliers, 0, atol=1e-9)
    assert abs(rows[0] @ y - b[0]) < 1e-9 and (rows @ y <= b + 1e-9).all() and (multipliers[1:] >= 0).all()
    assert abs(multipliers[1:] * (rows @ y - b)[1:]).max() < 1e-9 and qp.held.sum() > 1


def test_a_process_solves_twice(tmp_path, capsys):
    for seed in (0, 1):
        np.savez(tmp_path / f"{seed}.npz", **DATA["tolls"](seed))
    race_child.main("by hand", "tolls", str(tmp_path / "0.npz"), str(tmp_path / "1.npz"))
    cold, warm = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(cold["x"]) == len(warm["x"]) == 8 and cold["seconds"] > warm["seconds"] > 0


def rows_of(name, hand=0.2, first=0.4, call=1.0, value=1.0, **changes):
    """What is kept of a problem: by hand F is 1."""
    by_hand = [{"seconds": 1.0 + hand, "x": [0.0], "value": 1.0}, {"seconds": hand, "x": [0.0], "value": 1.0}]
    row = {"seconds": call, "x": [0.0], "value": value, "status": "converged", "certified": True, "tol": 1e-4}
    row |= {"points": [[first / 2, value + 0.5], [first, value], [call, value]]}
    return {f"{name}, by hand": by_hand, f"{name}, hierax": [row | changes, row | changes]}


def test_targets():
    rows = {key: row for name in race.NAMES for key, row in rows_of(name).items()}
    assert [met for *_, met in race.targets(rows)] == [True] * 6
    assert race.times(rows, "tolls") == pytest.approx((2.0, 1 / 3, 2.0, 5.0))
    rows |= rows_of("tolls", first=2.5, call=3.0) | rows_of("ridge", value=1.001)
    judged = race.targets(rows)
    assert judged[1][1] == "tolls" and judged[4][1] == "ridge" and [met for *_, met in judged].count(False) == 2
    for name in race.NAMES[:3]:
        rows |= rows_of(name, certified=False, points=[])
    judged = race.targets(rows)
    assert judged[1][1] == ", ".join([*race.NAMES[:3], "tolls"]) and judged[5][1:] == ("9 of 12", False)


def test_a_point_as_good_as_by_hand_may_come_before_the_answer():
    (row, _) = rows_of("tolls", value=0.5)["tolls, hierax"]
    assert race.held(row) == 0.4 and race.held(row, 1.0) == 0.2


def test_what_is_there_is_not_measured_again(tmp_path, monkeypatch):
    made = []

    def measure(problem, solver, folder, python):
        made.append((problem, solver))
        return rows_of(problem).get(f"{problem}, {solver}", [{"not_run": "No module named 'casadi'"}])

    monkeypatch.setattr(race, "measure", measure)
    console, page = Console(file=io.StringIO(), width=240), tmp_path / "page.md"
    race.run(console, ["tolls"], ["by hand", "hierax"], tmp_path, False, None, None)
    assert race.run(console, ["tolls"], race.SOLVERS, tmp_path, False, None, page)
    assert made == [("tolls", solver) for solver in race.SOLVERS]
    assert "No module named 'casadi'" in console.file.getvalue() and (tmp_path / "race.png").is_file()
    text = page.read_text()
    assert "| tolls | 1.20 | 0.200 | 0.40 | 0.40 | 2.0 | 2.0 | 1.0 | 1.00 | 5 |" in text and "## Targets" not in text


def test_lines_of_code_are_counted_without_texts():
    own, shared = race.lines_by_hand("tolls")
    assert 15 < own < 30 and 5 < shared < 15 and race.lines_by_hand("ridge")[1] > 40


def test_the_command_takes_known_names_only():
    told = CliRunner().invoke(app, ["bench", "race", "--problem", "other"])
    assert told.exit_code == 1 and "QCQP 20+20" in told.output
