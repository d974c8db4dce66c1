"""The weight-decay experiment at small size, and what its claims say of made-up numbers."""

import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

from hierax.experiments.reproduce import decay_claims, decay_report
from hierax.experiments.reproduce import decay_training as training
from hierax.experiments.reproduce.decay_methods import ENTRIES
from hierax.experiments.reproduce.decay_runs import Curve, Size, run_grid, run_method

SMALL = Size(seeds=2, records=2, training=40, grid=3, share=0.05)


@pytest.fixture(scope="module")
def small():
    return run_method("digits", 0.2, "SALVF", SMALL, None)


def test_runs_are_judged_by_retrained_networks(small):
    assert len(small) == 2
    for curve in small:
        assert curve.steps.tolist() == [0, 10, 20]
        assert curve.bounds.shape == (3, 1) and curve.bounds[-1] > curve.bounds[0]  # it starts too tight
        final = curve.final
        assert final["status"] == "max_steps"
        assert final["accuracy"] == pytest.approx(curve.accuracy[-1], abs=0.02)
        assert 0.1 < final["own_accuracy"] <= 1.0
    assert small[0].final["compile_seconds"] > 0 == small[1].final["compile_seconds"]


def test_the_grid_chooses_by_validation_loss():
    first, second = run_grid("digits", 0.0, SMALL, None)
    assert first["gradients"] == 3 * 40
    assert first["grid"]["bound"] == np.geomspace(2.0, 30.0, 3)[int(np.argmin(first["validation"]))]
    assert first["none"]["bound"] != second["none"]["bound"]


def made_up(accuracy: list[float], loss: float, gradients: int, seconds: float, failed=()) -> list[Curve]:
    def one(value: float, failed: bool) -> Curve:
        final = {
            "status": "nonfinite" if failed else "max_steps",
            "failed": failed,
            "bound": [9.0],
            "accuracy": value,
            "loss": loss,
            "own_accuracy": 0.9,
            "violation": 0.0,
            "gradients": gradients,
            "seconds": seconds,
            "compile_seconds": 0.0,
        }
        axis = np.arange(3.0)
        return Curve(axis, axis, axis, np.full((3, 1), 9.0), np.full(3, value), np.full(3, loss), final)

    return [one(value, seed in failed) for seed, value in enumerate(accuracy)]


def grids(none: list[float], grid: float) -> list[dict]:
    return [
        {
            "grid": {"bound": 9.0, "accuracy": grid, "loss": 0.5},
            "none": {"bound": 30.0, "accuracy": value, "loss": 1.0},
            "gradients": 36_000,
            "test": [0.0] * 12,
        }
        for value in none
    ]


def summaries(accuracy: list[float], loss: float, gradients: int) -> dict:
    curves = {entry.name: made_up(accuracy, loss, gradients, 1.0) for entry in ENTRIES}
    curves["SALVF"] = made_up(accuracy, loss, gradients, 0.5)
    table = decay_claims.summary(curves, grids([0.70, 0.72, 0.71], 0.80))
    return {("digits", "clean"): table, ("digits", "noisy"): table}


def test_targets_follow_the_numbers():
    good = decay_claims.targets(summaries([0.80, 0.81, 0.80], 0.8, 6000), 3000)
    assert [row["met"] for row in good] == [True, True, True, True]
    bad = decay_claims.targets(summaries([0.75, 0.70, 0.80], 0.95, 6001), 3000)
    assert [row["met"] for row in bad] == [False, False, False, False]


def test_a_failed_run_is_in_no_mean():
    """Differences are paired with the seeds that finished."""
    curves = {entry.name: made_up([0.80, 0.81, 0.80], 0.8, 6000, 1.0) for entry in ENTRIES}
    curves["SALVF"] = made_up([0.80, 0.0, 0.80], 0.8, 6000, 1.0, failed=[1])
    curves["BLOCC"] = made_up([0.0, 0.0, 0.0], 0.8, 6000, 1.0, failed=[0, 1, 2])
    table = decay_claims.summary(curves, grids([0.70, 0.72, 0.71], 0.80))
    ours, blocc = table["SALVF"], table["BLOCC"]
    assert (ours["finished"], ours["runs"], ours["statuses"]) == (2, 3, {"max_steps": 2, "nonfinite": 1})
    assert ours["accuracy"] == 0.80
    assert ours["gain"] == pytest.approx(np.mean([0.10, 0.09]))
    assert blocc["accuracy"] is blocc["gain"] is blocc["seconds"] is None
    found = {("digits", "noisy"): table}
    (judged,) = decay_claims.targets(found, 3000)
    assert (judged["measured"], judged["met"]) == ("2/3, 1 nonfinite", False)
    statements = decay_claims.verdicts(found, [entry.name for entry in ENTRIES])
    assert statements[0].holds.startswith("not always")
    assert "SALVF (2 of 3 finished) +0.095" in statements[0].evidence[0]
    console = Console(width=170, record=True, file=io.StringIO())
    decay_report.print_tables(console, found, [judged], statements)
    text = console.export_text()
    assert "2/3, 1 nonfinite" in text and "0/3, 3 nonfinite" in text


def test_the_grid_never_chooses_a_network_that_is_not_finite(monkeypatch):
    """The least of numbers with a NaN is the NaN."""
    score = training.score

    def first_is_nan(networks, part):
        found = score(networks, part)
        return found._replace(loss=np.concatenate([[np.nan], np.asarray(found.loss)[1:]]))

    monkeypatch.setattr(training, "score", first_is_nan)
    (found,) = run_grid("digits", 0.0, dataclasses.replace(SMALL, seeds=1), None)
    assert found["grid"]["bound"] > 2.0
    assert np.isfinite(found["grid"]["loss"])


def test_statements_tables_and_figures(tmp_path):
    found = summaries([0.80, 0.81, 0.80], 0.8, 6000)
    verdicts = decay_claims.verdicts(found, [entry.name for entry in ENTRIES])
    assert [verdict.holds for verdict in verdicts] == ["yes", "yes"]
    console = Console(width=170, record=True, file=io.StringIO())
    decay_report.print_tables(console, found, decay_claims.targets(found, 3000), verdicts)
    text = console.export_text()
    assert "no weight decay" in text and "SALVF, bound per array" in text and "met" in text
    curves = {entry.name: made_up([0.8, 0.81], 0.8, 6000, 1.0) for entry in ENTRIES}
    (path, _) = decay_report.draw(tmp_path, dict.fromkeys(found, curves), found)
    assert path.stat().st_size > 10_000
