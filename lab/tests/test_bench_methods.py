"""`hierax bench methods` and `bench run`: known answers, the judge, and the table on the smallest problems."""

import dataclasses
import json
import logging
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from scipy import optimize
from typer.testing import CliRunner

import hierax as hx
from hierax.cli import app
from hierax_lab.bench import methods, methods_measure
from hierax_lab.bench.medium_case import Functions
from hierax_lab.bench.medium_lower import LowerLevel
from hierax_lab.bench.medium_phi import Phi
from hierax_lab.bench.methods_measure import LEVELS, Judge, judge_of, measure, method_called, reached
from hierax_lab.bench.methods_problems import ENTRIES, KINDS, Entry, affine, flat_valley, free_cubes, kinks
from hierax_lab.bench.methods_report import cell, kinds_solved, markdown, profile
from hierax_lab.reproduce import workers

EXACT = {name: entry for name, entry in ENTRIES.items() if not entry.sigma}
LARGE = {"ellipsoids 20+130", "equalities 100+400", "kinks 250+250", "rows 20+80"}
SMALL = [name for name in EXACT if name not in LARGE]


def test_every_kind_has_problems_with_and_without_samples():
    assert {entry.kind for entry in EXACT.values()} == set(KINDS)
    assert {entry.kind for entry in ENTRIES.values() if entry.sigma} == set(KINDS)
    assert 14 <= len(ENTRIES) <= 18


def _known_answer_holds(name):
    """At x* phi is F*, the start is above it, and no point near x* is below; phi by lower solutions from outside."""
    judge = judge_of(name)
    answer, bounds = judge.answer, judge.answer.case.x_bounds
    assert abs(judge.gap(answer.x)) < 1e-9
    assert judge.gap(judge.functions.x0) == pytest.approx(1.0)
    rng, reach = np.random.default_rng(0), np.maximum(1.0, np.abs(answer.x).max())
    for size in (1e-3, 1e-2):
        near = np.clip(answer.x + size * reach * rng.standard_normal(answer.x.size), *bounds)
        assert judge.gap(near) > 0


@pytest.mark.parametrize("name", SMALL)
def test_known_answers(name):
    _known_answer_holds(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LARGE))
def test_known_answers_of_the_larger_ones(name):
    _known_answer_holds(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows 5+8", "rows 20+80", "ellipsoids 10+20", "ellipsoids 20+130", "equalities 5+8"])
def test_descent_from_the_start_ends_at_the_known_answer(name):
    """Otherwise a method that ends at another local minimiser would count as one that failed."""
    judge = judge_of(name)
    case = judge.answer.case
    phi = Phi(judge.functions)
    phi.minimised(np.clip(judge.functions.x0, *case.x_bounds), case.x_bounds)
    assert abs(judge.gap(phi.best[1])) < 1e-6


def test_lower_solutions_given_by_formulas_are_those_of_a_solver():
    for table in (affine(3, 3, 5, 0, 2), kinks(4)):
        functions, rng = Functions(table.case), np.random.default_rng(0)
        for _ in range(2):
            x = np.clip(table.x + rng.standard_normal(table.x.size), *table.case.x_bounds)
            np.testing.assert_allclose(table.case.lower_solution(x), LowerLevel(functions).solve(x).y, atol=1e-7)


@pytest.mark.parametrize(("table", "lower"), [(flat_valley(3), "sum"), (free_cubes(2), "kkt")])
def test_the_best_of_many_lower_solutions(table, lower):
    """The optimistic y by SLSQP: the best for F among those that the lower level's optimality conditions allow."""
    functions = Functions(table.case)
    x = table.x + 0.3
    low, high = table.case.y_bounds

    def optimal(y):
        if lower == "sum":
            return np.array([y.sum() - x[0]])
        return np.concatenate([y[:2] - x - 1.0, functions.equal(x, y)[0]])

    found = optimize.minimize(
        lambda y: functions.upper(x, y)[0],
        np.zeros(functions.sizes.y),
        jac=lambda y: functions.upper(x, y)[1][1],
        bounds=np.stack([low, high], axis=1),
        constraints=[{"type": "eq", "fun": optimal}],
        method="SLSQP",
        options={"ftol": 1e-14},
    )
    best = table.case.lower_solution(x)
    assert found.success and np.abs(optimal(best)).max() < 1e-9
    assert float(functions.upper(x, best)[0]) == pytest.approx(float(found.fun), rel=1e-6)


def test_the_judge_marks_wrong_points_as_unsolved():
    judge = judge_of("rows 5+8")
    x = judge.answer.x
    assert judge.gap(x) <= LEVELS[-1]
    assert judge.gap(x + np.array([0, 0, 0, 0.5, 0])) > LEVELS[0]  # another point of X
    beyond = np.where(np.abs(x) == 2.0, 1.001 * x, x)
    assert judge.gap(beyond) == math.inf  # lower phi is worth nothing outside of X
    assert judge.gap(np.full(5, np.nan)) == math.inf


def test_the_judge_sees_upper_rows_at_the_exact_lower_solution():
    def limited():
        table = affine(0, 2, 3, 0, 1)
        problem = table.case.problem
        limit = float(table.case.lower_solution(table.x)[0]) - 0.1
        rows = hx.Problem(
            problem.upper, problem.lower, equalities=problem.equalities, upper_constraints=lambda x, y: y[:1] - limit
        )
        return table._replace(case=dataclasses.replace(table.case, exact=rows))

    judge = Judge("limited", Entry("equality", limited))
    assert judge.gap(judge.answer.x) == math.inf


def _record(gap, **costs):
    return {"step": 1, "seconds": 1.0, "gradients": 10, "lower_solves": 0, "gap": gap} | costs


def test_a_level_is_reached_where_the_next_record_agrees():
    passing = [_record(1.0), _record(1e-5), _record(0.5), _record(0.009, step=4), _record(0.008, step=5)]
    assert reached(passing, 1e-2)["step"] == 4
    assert reached(passing[:3], 1e-2) is None
    assert reached(passing[:2], 1e-2) is None  # nobody knows whether it passes by
    assert reached(passing[1:2], 1e-2)["gap"] == 1e-5  # an answer
    assert reached([], 1e-2) is None


@pytest.mark.parametrize(("status", "counts"), [("max_steps", True), ("nonfinite", False), ("diverged", False)])
def test_a_run_that_failed_reaches_no_level(status, counts):
    ended = methods_measure._Ended(status, [_record(1e-4), _record(1e-4)])
    judge = SimpleNamespace(
        name="p", entry=SimpleNamespace(kind="toy", sigma=0.0), functions=SimpleNamespace(sizes="1+1, 1")
    )
    assert [bool(level) for level in methods_measure._run(judge, "salvf", 0, ended)["levels"]] == [counts, counts]


def _run(method, problem, records, refused="", kind="toy"):
    return {
        "problem": problem,
        "kind": kind,
        "sampled": False,
        "size": "1+1, 1",
        "method": method,
        "seed": 0,
        "refused": refused,
        "status": "max_steps",
        "levels": [reached(records, level) for level in LEVELS],
        "end": records[-1] if records else None,
        "records": records,
    }


def test_refusals_are_no_failures_and_profiles_are_ratios_to_the_best():
    runs = [
        _run("a", "p", [_record(1e-4, seconds=2.0)]),
        _run("b", "p", [_record(1e-4, seconds=6.0)]),
        _run("a", "q", [_record(0.5)]),
        _run("b", "q", [_record(5e-3, seconds=1.0)]),
        _run("c", "p", [], "needs equalities"),
        _run("c", "q", [], "needs equalities"),
    ]
    assert cell([run for run in runs if run["method"] == "c"]) == ["refuses"]
    assert cell([run for run in runs if run["method"] == "b"]) == ["2/2 3.5s 10", "1/2 6s 10"]
    assert cell([run for run in runs if run["method"] == "a"]) == ["1/2 2s 10"] * 2
    assert cell([run for run in runs if run["problem"] == "q"]) == ["1/3 1s 10", "0/3", "(refuses some)"]
    assert kinds_solved(runs, "b") == ["toy"] and kinds_solved(runs, "a") == [] == kinds_solved(runs, "c")
    ratios = profile(runs, 1e-2, "seconds")
    np.testing.assert_array_equal(ratios["a"], [1.0, np.inf])
    np.testing.assert_array_equal(ratios["b"], [1.0, 3.0])
    np.testing.assert_array_equal(ratios["c"], [np.inf, np.inf])
    assert "| `c` | refuses |" in markdown(runs)


def test_what_a_method_refuses_and_what_it_breaks_on_are_told_apart(monkeypatch):
    def refusing():
        raise hx.InputError("needs equalities")

    monkeypatch.setattr(methods_measure, "METHODS", {"refusing": refusing, "broken": lambda: 1 / 0})
    (refused,), (broken,) = measure("kinks 2+2", "refusing"), measure("kinks 2+2", "broken")
    assert refused["refused"] == "needs equalities" and refused["records"] == []
    assert not broken["refused"] and broken["status"].startswith("raised ZeroDivisionError")


@pytest.mark.parametrize("shares", [(1.0,), (0.25,), (*(1.0,) * 7, 0.2)])  # the last: a leg is cut short, and made good
def test_a_run_is_bounded_by_processor_seconds_whatever_share_of_the_processor_it_has(shares, monkeypatch):
    """Steps that take half a processor second each, and more by the clock; the last share is that of all later legs."""
    left, cut = list(shares), []

    def timed(judge, seed, *, max_steps, state=None, seconds=1e9, **_):
        share = left.pop(0) if len(left) > 1 else left[0]
        begin, spent = state or (0, 0.0)
        made = min(max_steps, max(1, int(seconds * share / 0.5)))
        end = (begin + made, spent + made * 0.5 / share)
        cut.append(made < max_steps)
        status = SimpleNamespace(name="seconds" if cut[-1] else "max_steps", failed=False, message="", step=end[0])
        found = SimpleNamespace(status=status, counts=SimpleNamespace(seconds=end[1], compile_seconds=0.0), state=end)
        return methods_measure._Timed(found, share)

    judge = SimpleNamespace(record=lambda solution, seconds: _record(0.5, step=solution.status.step, seconds=seconds))
    monkeypatch.setattr(methods_measure, "_timed", timed)
    ended = methods_measure._legs(judge, hx.SALVF, 0)
    assert ended.status == "out of time" and any(cut)
    assert [record["step"] for record in ended.records] == [1, 2, 3, 4, 7, 11, 12]  # 12 steps are six seconds
    assert ended.records[-1]["seconds"] == pytest.approx(methods_measure.SECONDS)


def test_workers_share_small_programs_too(monkeypatch):
    """JAX by itself keeps those that take a second to compile; those of the judge do not."""
    kept = []
    monkeypatch.setattr(workers, "keep_programs", kept.append)
    monkeypatch.setattr(workers.signal, "signal", lambda *_: None)
    monkeypatch.setattr(logging.getLogger("hierax"), "level", logging.NOTSET)
    for folder in ("folder", None):
        workers._settle(folder)
    assert kept == ["folder"]
    monkeypatch.undo()
    assert workers.keep_programs is hx.cache


def test_the_stored_table_is_complete_and_salvf_solves_five_kinds():
    runs = methods.stored(methods.STORED)
    assert {run["method"] for run in runs} == set(methods.NAMES)
    expected = {(name, seed) for name, entry in ENTRIES.items() for seed in range(entry.seeds)}
    for name in methods.NAMES:
        assert {(run["problem"], run["seed"]) for run in runs if run["method"] == name} == expected
        assert not [run["status"] for run in runs if run["status"].startswith("raised")]
    assert len(kinds_solved(runs, "salvf")) >= 5
    assert markdown(runs) in (Path(__file__).parents[2] / "docs" / "start" / "which-method.md").read_text()


@pytest.mark.slow  # smaller: the stored table above, and what a run is made of in the tests before it
def test_the_bench_on_two_problems_with_two_methods(tmp_path, monkeypatch):
    monkeypatch.setattr(methods_measure, "STEPS", (1, 11, 30, 48))
    console = Console(record=True, width=160)
    runs = methods.run(console, ["toy", "kinks 2+2"], ["salvf", "bic-gaffa"], tmp_path, parallel=False)
    stored = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert [(run["problem"], run["method"]) for run in stored] == [
        (problem, method) for problem in ("toy", "kinks 2+2") for method in ("salvf", "bic-gaffa")
    ]
    toy = {run["method"]: run for run in runs if run["problem"] == "toy"}
    assert toy["salvf"]["levels"][-1] and toy["salvf"]["status"] == "at the finest level"
    assert toy["bic-gaffa"]["levels"] == [None, None] and 0.01 < toy["bic-gaffa"]["end"]["gap"] < 1.0
    for run in runs:
        for name in ("step", "seconds", "gradients"):
            spent = [record[name] for record in run["records"]]
            assert spent[0] > 0 and all(np.diff(spent) > 0)
    assert (tmp_path / "figures" / "profiles.png").is_file()
    assert "salvf" in console.export_text()


def _method_of_the_docs(folder):
    page = (Path(__file__).parents[2] / "docs" / "guides" / "own-method.md").read_text()
    file = folder / "my_method.py"
    file.write_text(page.split("```python\n")[1].split("```")[0])
    return f"{file}:Perturbed"


@pytest.mark.slow  # smaller: test_files_that_are_no_methods, and tests/test_methods.py runs the method of the page
def test_a_method_of_the_users_own_beside_stored_results(tmp_path, monkeypatch):
    monkeypatch.setattr(methods_measure, "STEPS", (1, 11, 30))
    beside = tmp_path / "stored.json"
    beside.write_text(json.dumps({"runs": [_run("salvf", "toy", [_record(1e-4)])]}))
    console = Console(record=True, width=160)
    (run,) = methods.run_own(console, _method_of_the_docs(tmp_path), ["toy"], beside, tmp_path / "out", parallel=False)
    assert len(run["records"]) >= 2 and run["records"][-1]["gap"] < run["records"][0]["gap"] < 1.0
    printed = console.export_text()
    assert "Perturbed" in printed and "salvf" in printed


def test_files_that_are_no_methods(tmp_path):
    file = tmp_path / "other.py"
    file.write_text(
        "import hierax as hx\nnumber = 3\nmethod = hx.SALVF()\n"
        "class Half(hx.AbstractMethod):\n    def begin(self, *_): ...\n"
        "class Broken(hx.SALVF):\n    def __post_init__(self):\n        1 / 0\n"
    )
    assert isinstance(method_called(f"{file}:method")(), hx.SALVF)
    for target, words in (
        (f"{file}:number", "AbstractMethod"),
        (f"{file}:missing", "missing"),
        ("nothing", "FILE.py"),
        (f"{file}:Half", "Half() failed: TypeError"),
        (f"{file}:Broken", "line 8: Broken() failed: ZeroDivisionError"),
    ):
        told = CliRunner().invoke(app, ["bench", "run", target])
        assert told.exit_code == 1 and words in told.output


def test_an_error_in_a_users_method_is_told_with_its_line_and_without_folders(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import hierax as hx\nclass Mine(hx.SALVF):\n    def check(self, problem, *rest):\n        self.nowhere\n"
    )
    (run,) = measure("kinks 2+2", f"{file}:Mine")
    assert run["method"] == "mine.py:Mine" and run["records"] == [] and not run["refused"]
    assert run["status"].startswith("mine.py:Mine, line 4: AttributeError")


def test_the_help_says_that_the_file_is_executed():
    assert "is executed" in CliRunner().invoke(app, ["bench", "run", "--help"]).output
