"""`hierax bench error`: the committed figures, and a run today."""

import json
from pathlib import Path

import pytest

from hierax_lab.bench import error
from hierax_lab.bench.methods_measure import Judge

FIGURES = json.loads((Path(__file__).parents[1] / "results" / "error.json").read_text("utf-8"))


def median(problem: str, method: str, samples: int) -> float:
    (row,) = (
        row for row in FIGURES["rows"] if (row["problem"], row["method"], row["samples"]) == (problem, method, samples)
    )
    assert len(row["errors"]) == FIGURES["seeds"] == 10
    return row["quartiles"][1]


@pytest.mark.parametrize("problem", error.PROBLEMS)
def test_the_committed_errors_fall_with_the_samples(problem):
    for method in ("SALVF", "SALVF-VR", "plain gradients"):
        assert median(problem, method, error.SAMPLES[1]) < 1.5 * median(problem, method, error.SAMPLES[0])
    assert median(problem, "SALVF", error.SAMPLES[1]) < 1e-4


def test_a_run_today():
    judge = Judge("toy", error.PROBLEMS["toy"])
    assert error.Run(judge, "SALVF", 12_000, 0).error() < 1e-4
