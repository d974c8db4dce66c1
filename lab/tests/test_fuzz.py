"""The judge of `hierax bench fuzz`: right on problems with known answers, and planted false claims are caught."""

import dataclasses
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize
from typer.testing import CliRunner

from hierax.cli import app
from hierax_lab.bench import fuzz, fuzz_claims
from hierax_lab.bench.fuzz_case import (
    Case,
    as_problem,
    equalities_value,
    lower_value,
    rows_value,
    to_core,
    to_user,
    upper_value,
)
from hierax_lab.bench.fuzz_draw import draw, draw_case, draw_units
from hierax_lab.bench.fuzz_forms import FORMS, Form, truth_of
from hierax_lab.bench.fuzz_grid import landscape, phi
from hierax_lab.bench.fuzz_judge import judge, worst_violation
from hierax_lab.bench.fuzz_lower import solve_lower
from hierax_lab.bench.fuzz_solvers import Rows, all_rows, quadratic_program, solve_one

SMALL = [form for form in FORMS if form.planted is None]
PLANTED = [form for form in FORMS if form.planted is not None]
BOX = np.array([[-1.0], [1.0]])


def solvable(form, seed=0, decades=None):
    twist = next(twist for twist in form.twists if truth_of(twist) == "solvable")
    return draw_case(form, twist, np.random.default_rng(seed), decades)


def stated(form, x_bounds=BOX, y_bounds=BOX, **numbers):
    """A problem with given numbers, in core units."""
    units = draw_units(form, np.random.default_rng(0), 0.0)
    drawn = draw_case(form, "plain", np.random.default_rng(0)).numbers
    given = {name: np.asarray(value, float) for name, value in numbers.items()}
    start = np.zeros(form.n), np.zeros(form.m)
    return Case(form, "plain", "solvable", drawn | given, units, x_bounds, y_bounds, start)


# -- the lower level --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", SMALL, ids=lambda form: form.name)
def test_no_run_of_slsqp_is_below_the_exact_lower_solutions(form):
    rng = np.random.default_rng(3)
    for seed in range(2):
        case = solvable(form, seed)
        for x in rng.uniform(-0.9, 0.9, (4, form.n)):
            if form.x_set == "simplex":
                x = np.abs(x) / np.abs(x).sum()
            found = solve_lower(case, x[None])
            if not found.optimal.any():
                continue
            for y in found.y[0][found.optimal[0]]:
                inside = worst_violation(dataclasses.replace(case, numbers=case.numbers | no_upper(form)), x, y)
                assert inside[0] < 1e-7
                assert lower_value(form, case.numbers, x, y) == pytest.approx(found.value[0], abs=2e-9)
            assert slsqp(case, x, rng) > found.value[0] - 1e-6


def no_upper(form):
    return {"U": np.zeros((0, form.n + form.m)), "u": np.zeros(0)}


def slsqp(case, x, rng):
    """The least G of a few runs that end feasible."""
    form, c = case.form, case.numbers
    rows = []
    if form.rows or form.balls:
        rows.append({"type": "ineq", "fun": lambda y: -rows_value(form, c, x, y)})
    if form.equalities:  # dependent rows stop SLSQP: two inequalities instead
        rows.append({"type": "ineq", "fun": lambda y: 1e-9 - np.abs(equalities_value(form, c, x, y))})
    if form.y_set == "simplex":
        rows.append({"type": "eq", "fun": lambda y: y.sum() - 1.0})
    if form.y_set == "ball":
        rows.append({"type": "ineq", "fun": lambda y: 1.0 - y @ y})
    best = np.inf
    for start in rng.uniform(-1.0, 1.0, (6, form.m)):
        run = optimize.minimize(
            lambda y: lower_value(form, c, x, y), start, method="SLSQP", bounds=case.y_bounds.T, constraints=rows
        )
        if run.success and worst_violation(case, x, run.x)[0] < 1e-8:
            best = min(best, run.fun)
    return best


@pytest.mark.parametrize("name", ["rows", "disc", "equality", "two equalities", "tree", "boxes"])
def test_two_ways_to_solve_a_quadratic_program_agree(name):
    form = next(form for form in FORMS if form.name == name)
    case = draw_case(form, "plain", np.random.default_rng(5))
    for x in np.random.default_rng(1).uniform(-0.6, 0.6, (20, form.n)):
        many = solve_lower(case, x[None])
        equal = Rows(case.numbers["E"], case.numbers["e"] - case.numbers["D"] @ x)
        rows = all_rows(case, x)
        one = quadratic_program(case.numbers["M"], case.numbers["q"] + case.numbers["N"] @ x, rows, equal).y
        assert (one is None) == (not many.optimal.any())
        if one is not None:
            assert many.y[0][many.optimal[0]] == pytest.approx(
                np.broadcast_to(one, (many.optimal.sum(), form.m)), abs=1e-7
            )


def test_an_infeasible_quadratic_program_is_recognised():
    rows = Rows(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([-0.3, -0.3]))
    assert quadratic_program(np.eye(2), np.ones(2), rows).y is None


# -- known answers ----------------------------------------------------------------------------------------------------


def test_the_readme_problem():
    """(y-1)^2 + x^2/10 with y = min(x, 2x): x = y = 1/1.1."""
    case = stated(
        Form("toy", 1, 1, rows=1), f0=[1.0], f=[0.0, -2.0], Q=np.diag([0.2, 2.0]), M=[[2.0]],
        q=[0.0], N=[[-4.0]], A=[[1.0]], B=[[-1.0]], b=[0.0],
    )  # fmt: skip
    best = landscape(case).best
    assert best.x == pytest.approx([1 / 1.1], abs=1e-5) and best.value == pytest.approx(0.1 / 1.1, abs=1e-9)


def test_an_optimum_inside_an_edge_that_is_optimal_at_one_x_only():
    """Lower level x y on [-1, 1]: at x = 0 every y is optimal, and only there F = y^2 + (x - 0.1)^2 can be small."""
    case = stated(Form("tie", 1, 1, "linear"), f0=[0.01], f=[-0.2, 0.0], Q=np.diag([2.0, 2.0]), q=[0.0], N=[[1.0]])
    best = landscape(case).best
    assert best.value == pytest.approx(0.01, abs=1e-9) and best.y == pytest.approx([0.0], abs=1e-6)


def test_a_well_that_is_lower_for_some_x_only():
    """G = (y^2 - 1/2)^2 + x y: y is in the right well for x < 0 only; F = -y + x wants it at the smallest x."""
    case = stated(
        Form("tilt", 1, 1, "wells"), f0=[0.0], f=[-0.1, -1.0], Q=np.zeros((2, 2)), q=[0.0], N=[[1.0]], d=[1.0], r=[0.5]
    )
    wells = solve_lower(case, np.array([[-1e-3], [1e-3]]))
    signs = [wells.y[i][wells.optimal[i]].ravel() for i in range(2)]
    assert signs[0] == pytest.approx([np.sqrt(0.5)], abs=1e-3) and signs[1] == pytest.approx([-np.sqrt(0.5)], abs=1e-3)
    assert landscape(case).best.x == pytest.approx([-1.0], abs=1e-6)


@pytest.mark.parametrize("form", SMALL, ids=lambda form: form.name)
def test_no_random_search_beats_the_grid(form):
    case = solvable(form, 7)
    best = landscape(case).best
    x = np.random.default_rng(0).uniform(-1.3, 1.3, (3000, form.n))
    if form.x_set == "simplex":
        x = np.abs(x) / np.abs(x).sum(1, keepdims=True)
    if form.x_set == "ball":
        x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    values, _ = phi(case, np.clip(x, *case.x_bounds))
    assert best.value <= values.min() + 1e-9
    assert judge(case, best.x, best.y).faults() == [] and not judge(case, best.x, best.y).missed()


@pytest.mark.parametrize("form", PLANTED, ids=lambda form: form.name)
def test_planted_points_are_solutions(form):
    for seed in range(3):
        case = solvable(form, seed)
        verdict = judge(case, *case.planted)
        assert verdict.faults() == [] and not verdict.missed()
        assert verdict.optimum.value == pytest.approx(0.0, abs=1e-12)


def test_problems_named_infeasible_are():
    for seed in range(2):
        for number in range(4 * len(FORMS)):
            case = draw(seed, number)
            if case.truth == "infeasible" and case.form.planted is None:
                assert landscape(case).best.value == np.inf, (seed, number)
            if case.truth == "infeasible" and case.form.planted is not None:
                assert solve_one(case, case.start[0]) is None


def test_problems_named_unbounded_are():
    for number in range(6 * len(FORMS)):
        case = draw(0, number)
        far = case.form.n * [50.0] if case.form.x_set == "nonnegative" else None
        if case.truth == "unbounded_upper" and case.form.planted is None:
            x = np.array([far]) if far else np.array([[50.0]])
            assert phi(case, x)[0][0] < phi(case, x / 50)[0][0] - 10.0
        if case.truth == "unbounded_lower":
            assert np.linalg.eigvalsh(case.numbers["M"])[0] < 0 or case.form.lower == "linear"


# -- planted false claims ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [*SMALL, *PLANTED], ids=lambda form: form.name)
def test_a_y_that_is_not_optimal_below_is_caught(form):
    case = solvable(form, 2)
    best = landscape(case).best if form.planted is None else None
    x, y = (best.x, best.y) if best is not None else case.planted
    wrong = y + 0.05 * np.ones(form.m) / np.sqrt(form.m)
    assert not judge(case, x, wrong).possible()


def test_a_point_that_is_not_stationary_is_caught():
    for name in ("bare", "rows", "disc", "wells", "four wells", "planted QP", "planted ball", "planted equalities"):
        form = next(form for form in FORMS if form.name == name)
        case = solvable(form, 4)
        best = landscape(case).best.x if form.planted is None else case.planted[0]
        caught = 0
        for shift in (-0.3, 0.3):
            x = np.clip(best + shift, *case.x_bounds) if form.x_set == "box" else 0.7 * (best + shift)
            value, y = phi(case, x[None]) if form.planted is None else (np.zeros(1), [solve_one(case, x)])
            if np.isfinite(value[0]) and y[0] is not None:
                verdict = judge(case, x, y[0])
                assert verdict.possible()
                caught += bool(verdict.faults())
        assert caught, name


def test_a_violated_row_and_a_point_outside_the_sets_are_caught():
    case = solvable(next(form for form in FORMS if form.name == "rows"))
    best = landscape(case).best
    assert "set X" in judge(case, best.x + 5.0, best.y).faults()[0]
    assert "row" in judge(case, best.x, best.y + 5.0).faults()[0]
    assert judge(case, np.array([np.nan]), best.y).faults()


# -- units and the problem that hierax gets ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_problem_is_the_same_in_the_users_units(form):
    case = solvable(form, 1, 6.0)
    problem, (x, y) = as_problem(case), case.start
    user = to_user(case, x, y)
    assert to_core(case, *user) == (pytest.approx(x, abs=1e-9), pytest.approx(y, abs=1e-9))
    for given, of, (scale, offset) in (
        (problem.upper, upper_value, case.units.upper),
        (problem.lower, lower_value, case.units.lower),
    ):
        assert float(given(*user, None)) == pytest.approx(scale * of(form, case.numbers, x, y) + offset, rel=1e-9)
    for one, point, bounds in ((problem.x_set, user[0], case.x_bounds), (problem.y_set, user[1], case.y_bounds)):
        assert bounds.shape[0] == 2 and bool(one.contains(point, 1e-6 * float(np.max(np.abs(flat(point))))))


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def test_a_problem_depends_on_seed_and_number_alone():
    first, second = draw(3, 40), draw(3, 40)
    assert all(np.array_equal(first.numbers[name], second.numbers[name]) for name in first.numbers)
    assert not np.array_equal(draw(4, 40).numbers["f"], first.numbers["f"])


# -- what is counted --------------------------------------------------------------------------------------------------


def pretend(monkeypatch, case, point, status, certified, log=(), title=None, shown=""):
    """Let hx.solve return this answer."""

    class Answer:
        x, y = to_user(case, *point)

        def __str__(self):
            return f"Solution: {title or status}\ncertificate  {shown}"

    answer = Answer()
    answer.status = types.SimpleNamespace(name=status)
    answer.counts = types.SimpleNamespace(compile_seconds=0.0)
    answer.certificate = types.SimpleNamespace(ok=lambda tol: certified, reasons=lambda tol: ["no"])
    answer.log = log
    scale, offset = case.units.upper
    answer.value = scale * float(upper_value(case.form, case.numbers, *point)) + offset
    monkeypatch.setattr(fuzz_claims.hx, "solve", lambda *args, **kwargs: answer)
    return fuzz_claims.examine(0, case, 1.0)


def test_right_and_wrong_claims_about_a_solvable_problem(monkeypatch):
    case = solvable(next(form for form in FORMS if form.name == "rows"))
    best = landscape(case).best
    right, wrong = (best.x, best.y), case.start
    assert pretend(monkeypatch, case, right, "converged", True, shown="ok at tol 1e-3").wrong == {}
    assert set(pretend(monkeypatch, case, wrong, "converged", True).wrong) == {"false_converged", "false_ok"}
    honest = pretend(monkeypatch, case, wrong, "not_certified", False)
    assert honest.wrong == {} and honest.missed
    assert set(pretend(monkeypatch, case, right, "infeasible", False).wrong) == {"wrong_status"}


def test_answers_that_contradict_themselves(monkeypatch):
    case = solvable(next(form for form in FORMS if form.name == "rows"))
    best = landscape(case).best
    right = best.x, best.y
    for arguments in (
        {"status": "converged", "certified": False},
        {"status": "not_certified", "certified": True},
        {"status": "converged", "certified": True, "title": "seconds"},
        {"status": "converged", "certified": True, "shown": "no: not stationary"},
        {"status": "seconds", "certified": False, "shown": "ok at tol 1e-3"},
        {"status": "seconds", "certified": False, "log": ("converged: F = 1",)},
    ):
        assert set(pretend(monkeypatch, case, right, **arguments).wrong) == {"contradiction"}, arguments


def test_statuses_of_problems_without_a_solution(monkeypatch):
    form = next(form for form in FORMS if form.name == "rows")
    case = draw_case(form, "false_row", np.random.default_rng(0))
    assert pretend(monkeypatch, case, case.start, "infeasible", False).wrong == {}
    assert set(pretend(monkeypatch, case, case.start, "not_certified", False).wrong) == {"wrong_status"}
    found = pretend(monkeypatch, case, case.start, "converged", True).wrong
    assert set(found) == {"wrong_status", "false_converged", "false_ok"}


def test_crashes_are_counted(monkeypatch):
    case = draw(0, 1)

    def fail(*args, **kwargs):
        raise ZeroDivisionError("no")

    monkeypatch.setattr(fuzz_claims.hx, "solve", fail)
    result = fuzz_claims.examine(1, case, 1.0)
    assert result.wrong == {"crash": "ZeroDivisionError: no"} and "Traceback" in result.trace
    counts = fuzz.summary([result], 0, 1.0)
    assert counts["wrong"]["crash"] == 1 and counts["numbers"]["crash"] == [1] and json.dumps(counts)


@pytest.mark.slow  # sharing itself: tests/test_program.py
def test_problems_of_a_form_share_their_programs():
    form = next(form for form in FORMS if form.name == "rows")
    cases = [draw_case(form, "plain", np.random.default_rng(i)) for i in (0, 1, 2, 2)]
    found = [fuzz_claims.examine(0, case, 5.0) for case in cases]
    assert all(one.status != "crash" for one in found)
    assert min(one.times.compilation for one in found[1:3]) == 0.0  # each compiles only what those before did not need
    assert found[3].times.compilation == 0.0


def test_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr("hierax.cli._keep_programs", lambda: None)
    out = tmp_path / "counts.json"
    run = CliRunner().invoke(app, ["bench", "fuzz", "--n", "2", "--seed", "0", "--json", str(out)])
    assert run.exit_code == 0, run.output
    assert json.loads(out.read_text())["problems"] == 2
    run = CliRunner().invoke(app, ["bench", "fuzz", "--only", "1", "--seed", "0"])
    assert run.exit_code == 0 and "The judge, in core units" in run.output
    assert jnp.zeros(1).dtype == jnp.float64
