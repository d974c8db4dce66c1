"""`python -m hierax_lab.speed.reference_bits`: what counts as a difference, and which exit status it gives."""

import copy
import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from hierax_lab.repository import ROOT
from hierax_lab.speed import reference_bits as bits

X = np.array([0.1, -20.0, 3.0])
MACHINE = {"jax": "1.0", "processor": "x86_64", "XLA_FLAGS": ""}


def kept(**changed: Any) -> dict[str, Any]:
    """A result with two calls, as a file gives it back; `changed` replaces arrays of the second."""
    answers = {"one": {"x": X}, "two": {"x": X, "y": np.zeros((2, 2)), "steps": np.array([5, 10])} | changed}
    result = {"machine": MACHINE, "calls": {name: bits.record(answer) for name, answer in answers.items()}}
    return json.loads(bits.as_text(result))


def test_equal_results_are_equal() -> None:
    assert bits.verdict(kept(), kept()) == (0, ["all 2 calls agree, bit for bit"])


def test_the_last_bit_counts_and_the_call_is_named() -> None:
    other = X.copy()
    other[0] = np.nextafter(other[0], 1.0)
    status, lines = bits.verdict(kept(), kept(x=other))
    assert status == 1
    size = (other[0] - X[0]) / 20.0
    assert lines == [f"two: 1 of 3 arrays differ; largest relative difference {size:.2g}, x"]


@pytest.mark.parametrize(
    ("array", "relative"),
    [
        (np.array([[0.0, 0.0], [0.0, -0.0]]), 0.0),  # the sign of a zero
        (np.zeros((2, 2), np.float32), 0.0),
        (np.zeros(4), 0.0),  # another shape
        (np.zeros((2, 3)), math.inf),
        (np.array([[0.0, math.nan], [0.0, 0.0]]), math.inf),
    ],
)
def test_other_bits_types_and_shapes_differ(array: np.ndarray, relative: float) -> None:
    status, (line,) = bits.verdict(kept(), kept(y=array))
    assert status == 1
    assert line.endswith(f"largest relative difference {relative:.2g}, y")


def test_the_array_that_differs_most_is_named() -> None:
    _, (line,) = bits.verdict(kept(), kept(x=X * (1 + 1e-9), y=np.full((2, 2), 1e-3), steps=np.array([5, 11])))
    assert line == "two: 3 of 3 arrays differ; largest relative difference 0.091, steps"


def test_numbers_that_are_not_finite_are_kept_and_equal_themselves() -> None:
    strange = np.array([math.nan, math.inf, -math.inf, 1.0])
    assert bits.verdict(kept(y=strange), kept(y=strange))[0] == 0
    assert bits.relative_difference(["nan", "inf", 1.0], ["nan", "inf", 1.5]) == 0.5 / 1.5
    assert bits.relative_difference(["nan", 1.0], ["inf", 1.0]) == math.inf
    assert bits.relative_difference([], []) == 0.0


def test_calls_and_arrays_that_are_gone_or_new() -> None:
    fewer = kept()
    del fewer["calls"]["one"]
    assert bits.verdict(kept(), fewer) == (1, ["one: not computed any more"])
    assert bits.verdict(fewer, kept()) == (1, ["one: not in the reference"])
    more = kept(z=X)
    assert bits.verdict(kept(), more)[1] == ["two: 1 of 3 arrays differ; largest relative difference inf, z"]
    assert bits.verdict(more, kept())[1] == ["two: 1 of 4 arrays differ; largest relative difference inf, z"]


def test_on_another_kind_of_machine_numbers_are_compared_within_a_tolerance() -> None:
    here = kept(x=X * (1 + 1e-8))
    here["machine"] = MACHINE | {"jax": "2.0"}
    status, lines = bits.verdict(kept(), here)
    assert status == 3
    assert lines[0].startswith("Bits cannot be compared: the reference was made with jax 1.0 (here 2.0).")
    assert lines[1] == "all 2 calls agree within 1e-06"
    far = kept(x=X * (1 + 1e-4))
    far["machine"] = here["machine"]
    status, lines = bits.verdict(kept(), far)
    assert status == 1
    assert lines[1] == "two: 1 of 3 arrays differ; largest relative difference 0.0001, x"


def test_decimals_give_back_the_bits() -> None:
    drawn = np.random.default_rng(0).normal(size=(3, 4)) * 10.0 ** np.arange(-150, 150, 75)
    values = json.loads(json.dumps(bits.record({"a": drawn})))["a"]["values"]
    np.testing.assert_array_equal(np.array(values).reshape(3, 4), drawn)


def test_the_stored_reference_holds_every_call_and_its_hashes_fit_its_numbers() -> None:
    stored = json.loads(bits.REFERENCE.read_text())
    assert list(stored["calls"]) == list(bits.CALLS)
    assert len(stored["calls"]) == 12
    assert stored["machine"]["XLA_FLAGS"] == ""
    for call in stored["calls"].values():
        for name in ("y", "coef", "history upper"):
            if name in call:
                values = np.array(call[name]["values"])
                shapes = [values.shape, (1, values.size), (3, values.size // 3)]
                assert call[name]["sha256"] in [
                    bits.digest(values.reshape(s)) for s in shapes if math.prod(s) == values.size
                ]
    damaged = copy.deepcopy(stored)
    damaged["calls"]["GAM ball"]["y"]["sha256"] = "0"
    assert list(bits.differences(stored["calls"], damaged["calls"])) == ["GAM ball"]


def test_an_estimator_repeats_its_bits() -> None:
    first, second = bits.record(bits.cleaner_answer()), bits.record(bits.cleaner_answer())
    assert bits.differences({"HyperCleaner": first}, {"HyperCleaner": second}) == {}
    assert {"hyperparams C", "coef", "history upper"} <= set(first)


@pytest.mark.slow  # the comparing is tested above; that methods repeat their runs, in test_methods.py
def test_the_whole_comparison() -> None:
    command = [sys.executable, "-m", "hierax_lab.speed.reference_bits"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stdout
    assert "two fresh processes agree in all 12 calls, bit for bit" in done.stdout
