"""The toy experiment: its measures against closed forms, its verdicts on made-up points, one small run of it all."""

import inspect
import io
import json
import re
import typing
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from formulas import psi
from rich.console import Console

import hierax as hx
from hierax.problems import toy, toy_inner_solution
from hierax.problems.toy import local_minimisers
from hierax_lab.problems import synthetic
from hierax_lab.reproduce import sweep, toy_report, toy_rows, toy_synthetic
from hierax_lab.reproduce import toy_run as experiment

STARTS = 3.0 * np.random.default_rng(1).random((6, 2))
STEPS = 60


@pytest.fixture(scope="module")
def plain():
    row = toy_rows.Row("plain", "group", "SALVF", hx.SALVF())
    return experiment.measure(row, STARTS, STEPS)


def test_rows_cover_the_experiment():
    rows = {row.key: row for row in toy_rows.all_rows(2500)}
    for name in ("SALVF", "SALVF-VR"):
        for start in ("given", "solve"):
            quadratic, multiplier = rows[f"quadratic/{start}/{name}"], rows[f"multiplier/{start}/{name}"]
            assert (quadratic.method.c1, quadratic.method.c2, quadratic.method.penalty) == (5.0, 1000.0, "quadratic")
            assert (multiplier.method.c1, multiplier.method.c2, multiplier.method.penalty) == (5.0, 100.0, "multiplier")
            assert quadratic.method.start == multiplier.method.start == start
        assert sum(bool(row.units) and row.key.endswith(f"/{name}") for row in rows.values()) == 7
        unset = rows[f"nothing set/{name}"].method
        assert (unset.c1, unset.c2, unset.steps, unset.batch_zeta, unset.start) == (None, None, None, None, "solve")


def test_metrics_of_a_row(plain):
    metrics = plain.metrics
    distance = np.abs(plain.x[:, None] - local_minimisers()).min(axis=1)
    assert metrics["finished"] == metrics["starts"] == len(STARTS)
    assert sum(metrics["shares"]) == pytest.approx(1.0)
    assert metrics["median_distance"] == np.median(distance)
    assert metrics["mean_gap"] == np.mean(np.abs(plain.x - plain.y))
    assert metrics["samples_zeta"] == STEPS
    assert sum(metrics["statuses"].values()) == len(STARTS)


def test_a_start_that_fails_is_in_no_mean(plain, monkeypatch):
    """It counts among the starts, and is at no minimiser."""
    solve_many = hx.solve_many

    def first_fails(*args, **call):
        found = solve_many(*args, **call)
        kinds = typing.get_type_hints(hx.Status)["kind"]
        found.status[0] = hx.Status(kinds.NONFINITE, "nonfinite at step 3", 3)
        return found

    monkeypatch.setattr(experiment, "solve_many", first_fails)
    found = experiment.measure(plain.row, STARTS, STEPS)
    metrics, distance = found.metrics, np.abs(plain.x[1:, None] - local_minimisers()).min(axis=1)
    assert metrics["finished"] == len(STARTS) - 1 == metrics["starts"] - 1
    assert metrics["median_distance"] == np.median(distance)
    assert sum(metrics["shares"]) == pytest.approx(1 - 1 / len(STARTS))
    assert np.isnan(found.points[0]).all() and np.isfinite(found.points[1:]).all()
    console = Console(width=160, record=True, file=io.StringIO())
    toy_report.print_tables(console, [found], judged=True)
    text = console.export_text()
    assert f"{len(STARTS) - 1}/{len(STARTS)}, 1 nonfinite" in text and "no start fails" in text


@pytest.mark.parametrize("unit", ["G x 100", "H x 0.01", "x, y x 10"])
def test_units_change_nothing(plain, unit):
    """Nothing being set, the method is the same in every unit, and so are all measures once converted back."""
    row = toy_rows.Row(unit, "group", unit, hx.SALVF(), (), toy_rows.UNITS[unit])
    other = experiment.measure(row, STARTS, STEPS)
    np.testing.assert_allclose(other.x, plain.x, atol=1e-8)
    np.testing.assert_allclose(other.y, plain.y, atol=1e-8)
    expected = plain.metrics["squared_stationarity"]
    assert other.metrics["squared_stationarity"] == pytest.approx(expected, rel=1e-5)


def test_stationarity_is_that_of_psi_with_the_exact_inner_solution():
    """Against finite differences of the value x, y, z -> Psi with (w*, lam*) solved again at every point."""
    problem = toy(0.0).problem
    method = hx.SALVF(c1=5.0, c2=100.0)
    solution = hx.solve_many(problem, np.array([1.3, 2.2]), np.array([1.0, 2.0]), method, max_steps=5, progress=False)
    found = experiment.exact_stationarity(solution, {})
    for i in range(2):
        at = jax.tree.map(lambda a, i=i: a[i], solution.state.run.state.point)
        used = jax.tree.map(lambda a, i=i: a[i], solution.method)
        weights = (used.c1, used.c2, used.gamma1, used.gamma2)

        def value(u, at=at, weights=weights):
            x, y, z = u
            w, lam = toy_inner_solution(x, z, *weights[2:])
            point = at._replace(x=x, y=y, z=experiment.Rows(z, None))
            return psi(problem, point, SimpleNamespace(w=w, lam=experiment.Rows(lam, None)), weights, None, None)

        u = jnp.array([at.x, at.y, at.z.inequalities])
        step = 1e-5 * jnp.eye(3)
        gradient = jnp.array([(value(u + d) - value(u - d)) / 2e-5 for d in step])
        length = 1 / used.smoothness
        landed = jnp.clip(u - length * gradient, 0.0, jnp.array([3.0, 3.0, jnp.inf]))
        np.testing.assert_allclose(found[i], jnp.linalg.norm(u - landed) / length, rtol=1e-5)


def test_bootstrap_interval_holds_the_deviation():
    values = np.random.default_rng(3).normal(0.0, 2.0, 400)
    low, high = experiment.bootstrap_interval(values)
    assert low < 2.0 < high
    # The standard error of a standard deviation is about sd / sqrt(2 n).
    assert high - low == pytest.approx(2 * 1.645 * 2.0 / np.sqrt(800), rel=0.25)
    assert np.isnan(experiment.bootstrap_interval(values[:1])).all()


def made_up(x):
    """A result whose points are x, for the verdicts."""
    x = np.asarray(x)
    nearest = np.abs(x[:, None] - local_minimisers()).argmin(axis=1)
    inside = x[nearest == experiment.GLOBAL]
    metrics = {
        "shares": [float(np.mean(nearest == i)) for i in range(4)],
        "sd_global": float(np.std(inside)),
        "sd_global_interval": experiment.bootstrap_interval(inside),
    }
    return toy_rows.Result(toy_rows.Row("", "", "", hx.SALVF()), x, x, metrics)


def test_verdicts_follow_the_numbers():
    rng = np.random.default_rng(0)
    best, other = local_minimisers()[1], local_minimisers()[2]
    keys = [row.key for row in toy_rows.all_rows(1)]
    wide, narrow = (made_up(best + sd * rng.normal(size=200)) for sd in (0.02, 0.002))
    good = {key: narrow if "VR" in key else wide for key in keys}
    close, gaussian, concentrated = experiment.verdicts(good)
    assert close.holds == gaussian.holds == "yes"
    assert concentrated.holds.startswith("in 7 of 7 settings")
    two = made_up(np.concatenate([best + 0.02 * rng.normal(size=100), other + 0.02 * rng.normal(size=100)]))
    close, gaussian, concentrated = experiment.verdicts(dict.fromkeys(keys, two))
    assert close.holds.startswith("no: 50%")
    assert gaussian.holds.startswith("only inside one basin")
    assert concentrated.holds.startswith("in 0 of 7 settings")


def test_targets_are_judged_both_ways():
    target = toy_rows.Target("mean_gap", "<=", 0.1)
    assert target.met(0.1) and not target.met(0.2) and not target.met(float("nan"))
    assert toy_rows.Target("share_within", ">=", 0.97).met(0.98)
    assert not toy_rows.Target("samples_zeta", "==", 5).met(6)


SYNTHETIC = [f"{noise}/{name}" for noise in ("additive", "multiplicative") for name in ("SALVF", "SALVF-VR")]


@pytest.fixture
def standing_still(monkeypatch):
    """Runs of the synthetic part end where they start, except those whose number is in the list that this gives."""
    for_real, seen = [], []
    ended = [SimpleNamespace(failed=False, name="max_steps")] * toy_synthetic.SEEDS

    def solve_many(*args, **call):
        inspect.signature(hx.solve_many).bind(*args, **call)
        seen.append(args)
        return hx.solve_many(*args, **call) if len(seen) in for_real else SimpleNamespace(x=args[1], status=ended)

    monkeypatch.setattr(sweep, "solve_many", solve_many)
    return for_real


def start_distance(key):
    example = synthetic(noise=key.split("/")[0])
    return np.linalg.norm(example.x0 - example.solutions[0].x)


@pytest.mark.slow  # the toy's own part above
def test_the_synthetic_part_measures_the_distance_to_the_solution(standing_still):
    standing_still.append(4)
    found = toy_synthetic.measure(experiment.QUICK_STEPS)
    assert list(found) == SYNTHETIC
    for row, distance in zip(list(found.values())[:3], map(start_distance, SYNTHETIC), strict=False):
        assert row["median_distance"] == row["largest_distance"] == pytest.approx(distance)
        assert row["met"] == (distance <= row["bound"])
    assert found[SYNTHETIC[3]]["median_distance"] < 0.9 * start_distance(SYNTHETIC[3])


@pytest.mark.slow  # the other three runs; above is one of the four
def test_every_run_of_the_synthetic_part_comes_closer_to_the_solution():
    found = toy_synthetic.measure(experiment.QUICK_STEPS)
    assert all(found[key]["median_distance"] < 0.9 * start_distance(key) for key in SYNTHETIC)


def test_a_small_run_writes_everything(plain, tmp_path, monkeypatch, standing_still):
    """All keys of the experiment, but one compiled method behind them: the settings are tested above."""
    rows = toy_rows.all_rows(experiment.QUICK_STEPS)

    def measured(row, starts, steps):
        return toy_rows.Result(row, plain.x, plain.y, plain.metrics)

    monkeypatch.setattr(experiment, "measure", measured)
    console = Console(width=160, record=True, file=io.StringIO())
    content = experiment.run(tmp_path, quick=True, seeds=6, console=console)
    text = console.export_text()
    saved = json.loads((tmp_path / "metrics.json").read_text())
    assert list(saved["rows"]) == [row.key for row in rows] == list(content["rows"])
    assert len(saved["statements"]) == 3
    assert saved["rows"]["nothing set/SALVF"]["targets"][0]["met"] is None
    assert "median distance <= 0.004" in text and "The paper says" in text
    assert {one["holds"] for one in saved["statements"]} == {"not judged: a quick run"}
    assert {one["met"] for one in saved["synthetic"].values()} == {None}
    assert not re.search(r": (yes|no|in \d)\b|\bmet\b|% of the starts", text.partition("The paper says")[2])
    names = {f"{kind}-{penalty}.png" for kind in ("distribution", "surface") for penalty in ("quadratic", "multiplier")}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == names
    assert np.load(tmp_path / "points.npz")["starts"].shape == (6, 2)
