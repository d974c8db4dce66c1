"""`hierax bench medium`: its problems, its outside solvers and its judge, on the smallest members."""

import json
import os
from functools import partial

import jax
import numpy as np
import pytest
from rich.console import Console

import hierax as hx
from hierax.experiments.bench import medium, medium_report
from hierax.experiments.bench.medium_case import Functions
from hierax.experiments.bench.medium_data import ridge, svm_weights
from hierax.experiments.bench.medium_judge import Judge
from hierax.experiments.bench.medium_lower import LowerLevel, Unsolved
from hierax.experiments.bench.medium_models import followers, portfolio, traffic
from hierax.experiments.bench.medium_phi import Phi
from hierax.experiments.bench.medium_planted import (
    ellipsoid_numbers,
    ellipsoids,
    noisy_quadratic,
    planted_numbers,
    planted_qp,
    qpec,
)
from hierax.experiments.bench.medium_problems import NAMES, missing
from hierax.experiments.bench.medium_solvers import SOLVERS, NotApplicable
from hierax.experiments.reproduce.workers import run_tasks

pytestmark = pytest.mark.slow  # problems of the benchmarks, solvers outside hierax, processes of their own

QP, BODIES = (2, 6, 4), (2, 5, 3)


@pytest.mark.parametrize(
    ("build", "draw", "sizes"), [(planted_qp, planted_numbers, QP), (ellipsoids, ellipsoid_numbers, BODIES)]
)
def test_the_planted_point_is_a_local_minimiser_with_value_zero(build, draw, sizes):
    functions, numbers = Functions(build(*sizes)), draw(*sizes)
    judge, x, y = Judge(functions), numbers["x"], numbers["y"]
    judged, descent = judge(x, y), judge.descent(x)
    assert abs(judged.upper) < 1e-12 and judged.violation < 1e-9 and abs(judged.gap) < 1e-9 and descent < 1e-9
    assert not judge.false_claim(judged, descent)
    assert judge.descent(x + 0.1) > 1e-3  # elsewhere there is a way down
    assert np.linalg.norm(functions.upper(x, y)[1][1]) > 0.1  # although F has a slope in y at the planted point


def test_false_claims_are_seen():
    numbers, judge = planted_numbers(*QP), Judge(Functions(planted_qp(*QP)))
    x, y = numbers["x"], numbers["y"]
    assert judge.false_claim(judge(x + 0.1, y), 0.0)  # y belongs to another x
    assert judge.false_claim(judge(x + 2.0, y), 0.0)  # outside X
    assert judge.false_claim(judge(x, y), 1e-3)
    assert judge(np.full(2, np.nan), y).upper == np.inf


@pytest.mark.parametrize("build", [partial(followers, 2, 3), traffic, partial(portfolio, 3), ridge])
def test_lower_solutions_and_their_derivatives(build):
    """The KKT residual vanishes, and F's change along y*(x) is that of differences (y* itself need not be unique)."""
    functions = Functions(build())
    level, phi = LowerLevel(functions), Phi(functions)
    x = functions.x0 + (functions.case.x_equalities is None) * 0.01
    assert level.residual(x, level.solve(x)) < 1e-9
    way, step = np.random.default_rng(0).normal(size=x.size), 1e-5
    ends = [phi(x + side * step * way).value for side in (1, -1)]
    np.testing.assert_allclose(phi(x).gradient @ way, (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-7)


def test_the_worst_return_of_a_portfolio_is_the_closed_form():
    functions = Functions(portfolio(4))
    i, w = np.arange(1, 5), functions.x0[1:]
    centre, spread = 1.15 + 0.05 * i / 4, 0.05 / 12 * np.sqrt(8.0 * i * 5)
    worst = centre - 1.5 * spread**2 * w / np.linalg.norm(spread * w)
    np.testing.assert_allclose(LowerLevel(functions).solve(functions.x0).y, worst, atol=1e-9)
    best = Judge(functions)(np.append(1.15, np.full(4, 0.25)), centre)
    assert best.upper == -1.15
    found = SOLVERS["phi-LBFGS"](functions, 0, None)
    assert Judge(functions)(found.x, found.y).upper == pytest.approx(-1.15, abs=1e-6)


def test_an_infeasible_lower_level_is_no_solution():
    functions = Functions(followers(2, 3))
    with pytest.raises(Unsolved):
        LowerLevel(Functions(_contradictory())).solve(np.zeros(1))
    assert np.isfinite(Phi(functions)(functions.x0).value)


def _contradictory():
    case = planted_qp(1, 2, 2)
    problem = hx.Problem(
        upper=case.problem.upper,
        lower=case.problem.lower,
        constraints=lambda x, y: y + 1.0,  # y <= -1 and y >= 0
        x_set=case.problem.x_set,
        y_set=case.problem.y_set,
    )
    return type(case)(problem, problem, case.x0, case.y0, case.x_bounds, case.y_bounds)


@pytest.mark.parametrize("solver", ["SLSQP-KKT", "trust-constr-KKT", "phi-LBFGS"])
def test_outside_solvers_agree(solver):
    functions = Functions(planted_qp(*QP))
    found = SOLVERS[solver](functions, 0, None)
    judged = Judge(functions)(found.x, found.y)
    assert judged.upper <= 1e-4 and judged.violation <= 1e-5 and judged.gap <= 1e-5


def test_the_way_down_at_5_and_100():
    functions = Functions(planted_qp(5, 100, 50))
    found = SOLVERS["phi-LBFGS"](functions, 0, None)
    assert Judge(functions)(found.x, found.y).upper <= 1e-8
    with pytest.raises(NotApplicable, match="255 unknowns"):
        SOLVERS["trust-constr-KKT"](functions, 0, None)


def test_the_noise_has_mean_zero_and_no_exact_batch():
    case = noisy_quadratic(3, 3, 2)
    assert case.problem.zeta.exact is None and case.problem.xi.exact is None
    batch = case.problem.zeta.draw(jax.random.key(0), 40_000)
    np.testing.assert_allclose(np.std(batch, axis=0), 0.5, rtol=0.02)
    x, y = case.x0 + 1.0, case.y0 + 1.0
    assert float(case.problem.upper(x, y, batch)) == pytest.approx(float(case.exact.upper(x, y, None)), abs=0.05)


def test_svm_reference_is_the_lower_solution():
    functions = Functions(svm_weights("synthetic", None))
    x = functions.x0
    np.testing.assert_allclose(functions.case.lower_solution(x), LowerLevel(functions).solve(x).y, atol=1e-9)


def test_qpec_files(tmp_path):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    arrays = {"Pxx": np.eye(2), "Pxy": rng.normal(size=(2, 3)), "Pyy": np.eye(3), "c": np.ones(2), "d": np.ones(3)}
    arrays |= {"Ax": np.ones((1, 2)), "a": -np.ones(1), "M": root @ root.T, "N": np.ones((3, 2)), "q": -np.ones(3)}
    folder = tmp_path / "qpec"
    folder.mkdir()
    assert "qpec-100-1.npz is not in the folder" in missing("qpec-100-1", tmp_path)
    np.savez(folder / "qpec-100-1.npz", **arrays)
    assert missing("qpec-100-1", tmp_path) == ""
    case = qpec(1, folder)
    x, y = np.array([1.0, 2.0]), np.array([1.0, 0.0, 2.0])
    expected = 0.5 * x @ x + x @ arrays["Pxy"] @ y + 0.5 * y @ y + x.sum() + y.sum()
    assert float(case.problem.upper(x, y, None)) == pytest.approx(expected)
    assert float(case.problem.upper_constraints(x, y)[0]) == 2.0


def record(**changes):
    row = {"sizes": "1+1, 1", "known": 0.0, "published": False, "sampled": False, "start": 1.0, "not_run": ""}
    row |= {"seed": 0, "upper": 0.0, "violation": 0.0, "gap": 0.0, "descent": 0.0, "false_claim": False}
    row |= {"gap_allowed": 1e-4, "cold": 2.0, "compiled": 1.0, "status": "converged", "claims": True}
    return row | {"certificate": "yes", "slope": 0.0, "standard_error": False} | changes


def test_what_counts_as_solved():
    found = {("one", "Auto"): [record(upper=0.3)], ("one", "other"): [record(upper=-0.2, known=None)]}
    assert medium_report.best_value(found, "one") == -0.2
    found["one", "other"][0]["violation"] = 1e-3  # an infeasible answer is no reference
    assert medium_report.best_value(found, "one") == 0.0
    assert medium_report.share(record(upper=0.25), 0.0) == 0.75
    assert medium_report.solved(record(upper=9e-5), 0.0) and not medium_report.solved(record(upper=2e-4), 0.0)
    assert not medium_report.solved(record(gap=1e-3), 0.0)
    assert not medium_report.solved(record(status="nonfinite"), 0.0)  # a failed run is no answer
    assert medium_report.solved(record(sampled=True, upper=0.004), 0.0)
    assert not medium_report.solved(record(sampled=True, upper=0.006), 0.0)
    assert medium_report.solved(record(published=True, upper=9e-4), 0.0)


def test_targets_see_a_false_claim_and_slow_runs(capsys):
    console = Console(width=140)
    fine = {("ridge", "Auto"): [record(sampled=True)]}
    assert medium_report.print_report(console, fine)
    assert not medium_report.print_report(console, {("ridge", "Auto"): [record(sampled=True, compiled=4.0)]})
    assert not medium_report.print_report(console, {("ridge", "Auto"): [record(sampled=True, false_claim=True)]})
    assert "converged (false)" in capsys.readouterr().out


def test_a_run_writes_what_it_found(tmp_path):
    met = medium.run(Console(quiet=True), ["ridge"], ["phi-LBFGS"], None, 1, None, tmp_path, parallel=False)
    (row,) = json.loads((tmp_path / "results.json").read_text())
    assert met and row["problem"] == "ridge" and row["solver"] == "phi-LBFGS" and row["upper"] < row["start"]
    assert row["compiled"] > 0 and row["cold"] > 0


def test_every_task_has_a_process_of_its_own():
    tasks = {(str(number),): (os.getpid, ()) for number in range(2)}
    found = run_tasks(tasks, Console(quiet=True), True, fresh=True)
    assert len({*found.values(), os.getpid()}) == 3
    with pytest.raises(RuntimeError, match="dies: its process ended without a result"):
        run_tasks({("dies",): (os._exit, (3,))}, Console(quiet=True), True, fresh=True)


def test_names():
    assert len(NAMES) == 21 and len(set(NAMES)) == 21
