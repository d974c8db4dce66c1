"""`hierax bench samples`, `rows` and `coverage`: truths in two ways, what counts as false, what is kept."""

import io
import json
import math

import jax
import numpy as np
import pytest
from rich.console import Console
from scipy import optimize, stats
from typer.testing import CliRunner

from hierax.cli import app
from hierax_lab.bench import coverage, samples, samples_rows
from hierax_lab.bench.samples_cases import CASES, PENALTIES, robust
from hierax_lab.bench.samples_truth import Robust, Truth, in_ball, quadrature

ROW: samples.Row = {
    "status": "converged",
    "share": 1.0,
    "x": [1.0],
    "truth": 2.0,
    "best": 2.0,
    "violation": 0.0,
    "stated": 2.0,
    "standard_error": 0.01,
    "error": 0.0,
    "true_gap": 0.0,
    "stated_gap": 0.01,
    "cpu": 1.0,
    "seconds": 1.0,
    "obeyed": True,
    "samples": 10,
    "false_claims": [],
    "log": [],
}


def test_the_quadrature_has_the_moments_of_the_distribution():
    for distribution in (stats.norm(10, 2), stats.gamma(2, scale=5), stats.t(5), stats.uniform(0.5, 1.0)):
        found = quadrature(distribution)
        assert found.mean(found.points) == pytest.approx(distribution.mean(), abs=1e-8)
        assert found.mean((found.points - distribution.mean()) ** 2) == pytest.approx(distribution.var(), rel=1e-5)


def test_lower_solutions_in_a_ball():
    rng = np.random.default_rng(0)
    root = rng.standard_normal((4, 4))
    matrix, slope = root.T @ root, 10 * rng.standard_normal(4)
    for radius in (0.5, 1e3):
        found = optimize.minimize(
            lambda y: (y @ matrix @ y / 2 - slope @ y, matrix @ y - slope),
            np.zeros(4),
            jac=True,
            constraints={"type": "ineq", "fun": lambda y, r=radius: r**2 - y @ y},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        np.testing.assert_allclose(in_ball(matrix, slope, radius), found.x, rtol=1e-4)


def test_the_best_point_of_a_problem_with_one_x_and_a_limit():
    truth = Truth(lambda x: float((x[0] - 1) ** 2), np.array([[-2.0, 3.0]]), np.zeros(1), lambda x: float(1.5 - x[0]))
    x, value = truth.best()
    assert x[0] == pytest.approx(1.5, abs=1e-6) and value == pytest.approx(0.25, abs=1e-5)
    assert truth.violation(np.array([1.0])) == 0.5 and truth.violation(np.array([3.5])) == 0.5


def _rows(count, size):
    rng = np.random.default_rng(1)
    above, below = (rng.standard_normal((count, size)) for _ in range(2))
    return Robust((above, above @ np.ones(size)), (below, below @ np.arange(size) + rng.standard_normal(count)))


def test_gradients_of_nested_scipy_are_those_of_differences():
    data, x, y = _rows(50, 3), np.array([-1.0, 0.0, 0.5]), np.zeros(3)
    _, slope, _ = data.phi(x, y)
    for i, step in enumerate(1e-5 * np.eye(3)):
        difference = (data.phi(x + step, y)[0] - data.phi(x - step, y)[0]) / 2e-5
        assert slope[i] == pytest.approx(difference, abs=1e-8)
    assert data.phi(samples_rows.nested(data, np.zeros(3)), y)[0] < data.phi(np.zeros(3), y)[0]


def test_the_start_is_not_the_best_point_of_any_problem():
    for name in ("newsvendor, kinks", "queue", "chance above", "rare events", "regression 6"):
        truth = CASES[name]().truth
        x, best = truth.best()
        assert truth.violation(x) < 1e-6 and best < truth.phi(truth.x0) - 1e-3 * (1 + abs(best))


def test_both_forms_of_the_large_regression_agree():
    problem, x0, data = robust(20, 4)
    x, y = x0 + 0.3, np.array([0.2, -0.7])
    a, b = data.below
    mine = np.mean(np.sqrt(1 + (a @ y - b) ** 2)) + np.sum(np.exp(x) * y**2) / 2
    assert float(problem.lower(x, y, problem.xi.full())) == pytest.approx(mine, rel=1e-5)
    assert PENALTIES[0] < 0 < PENALTIES[1]


@pytest.mark.parametrize(
    ("change", "claims", "found"),
    [
        ({}, True, []),
        ({"stated": 2.3}, False, ["value"]),
        ({"stated": 2.03}, False, []),
        ({"stated": 2.01, "standard_error": None}, False, ["value"]),
        ({"true_gap": 0.5}, True, ["gap", "solved"]),
        ({"true_gap": 0.5, "stated_gap": None}, False, []),
        ({"violation": 0.1}, True, ["feasible"]),
        ({"share": -0.1}, False, ["worse than the start"]),
    ],
)
def test_what_counts_as_a_false_claim(change, claims, found):
    assert samples.false_claims({**ROW, **change}, claims, decrease=1.0) == found


def test_runs_that_are_done_are_not_made_again(tmp_path, monkeypatch):
    made = []

    def measure(name, seed, seconds):
        made.append((name, seed))
        return {**ROW, "stated_gap": None, "error": math.nan}

    monkeypatch.setattr(samples, "measure", measure)
    console = Console(file=io.StringIO(), width=200)
    for seeds in (1, 2):
        samples.run(console, ["queue"], seeds, 1.0, tmp_path, parallel=False)
    assert made == [("queue", 0), ("queue", 1)]
    assert list(json.loads((tmp_path / "results.json").read_text())) == ["queue, seed 0", "queue, seed 1"]
    assert "2 runs: 0 with false claims" in console.file.getvalue()


def test_a_call_that_raises_is_an_answer_too(monkeypatch):
    def refuse(*_, **__):
        raise ValueError("no")

    monkeypatch.setattr(samples, "solve", refuse)
    wide = jax.config.values["jax_enable_x64"]
    try:
        row = samples.measure("rare events", 0, 1.0)
    finally:
        jax.config.update("jax_enable_x64", wide)
    assert row["status"] == "raised ValueError: no" and row["share"] == 0.0 and row["true_gap"] > 0.1


def test_which_coverages_are_allowed():
    assert coverage.fine("F", 1024, 950, 1000) and coverage.fine("x", 1024, 920, 1000)
    assert not coverage.fine("F", 1024, 890, 1000) and not coverage.fine("y", 1024, 999, 1000)
    assert coverage.fine("gap", 1024, 1000, 1000) and not coverage.fine("gap", 1024, 900, 1000)
    assert coverage.fine("F", 64, 890, 1000) and not coverage.fine("F", 64, 800, 1000)


def test_the_truth_of_the_coverage_problems():
    """The lower level's answer and F are those of a large sample of the same noise."""
    case, rng = coverage.cell("gamma"), np.random.default_rng(0)
    z = (rng.gamma(2.0, size=(10**6, 2)) - 2) / 2**0.5
    y = case.answer(case.x)
    slope = y - case.x + z[:, 0] + 1 / (1 + np.exp(-(y + z[:, 1])))
    upper = (y - 1 + z[:, 0]) ** 2 / 2 + 0.1 * case.x**2 + 0.3 * case.x * z[:, 1]
    for values, mean in ((slope, 0.0), (upper, case.value)):
        assert abs(values.mean() - mean) < 4 * values.std() / 1e3


@pytest.mark.slow  # smaller: the cell below
def test_intervals_hold_about_as_often_as_stated():
    found = coverage.repetitions("normal", 1024, 0, 40)
    for quantity in coverage.QUANTITIES:
        held = sum(one.held[quantity] for one in found)
        assert coverage.fine(quantity, 1024, held, len(found))


def test_a_repetition_states_every_interval():
    found = coverage.repetition("normal", 64, 0)
    assert set(found.held) == set(found.off) == set(coverage.QUANTITIES)
    assert all(abs(found.off[name]) < 6 for name in ("F", "x", "y"))


def test_coverage_is_counted_from_what_is_kept(tmp_path, monkeypatch):
    made = []

    def repetitions(name, samples, first, count):
        made.append(first)
        held = dict.fromkeys(coverage.QUANTITIES, True)
        return [coverage.Repetition({**held, "F": i % 20 > 0}, dict.fromkeys(held, 0.0), {}) for i in range(count)]

    monkeypatch.setattr(coverage, "repetitions", repetitions)
    console = Console(file=io.StringIO(), width=200)
    for count in (50, 100):
        coverage.run(console, ["normal"], [1024], count, tmp_path, parallel=False)
    assert made == [0, 50] and "94.0%" in console.file.getvalue()


def test_the_commands_take_known_names_only():
    for arguments, name in ((["samples", "--only", "x"], "queue"), (["coverage", "--noise", "x"], "gamma")):
        told = CliRunner().invoke(app, ["bench", *arguments])
        assert told.exit_code == 1 and name in told.output
