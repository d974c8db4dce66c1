"""Unit tests of hierax._run.solution, .status, .solution, .processes, .host and .stepping."""

import string

import numpy as np
import pytest
from cases import METHOD, TOY, same
from test_solve import run
from test_solve_many import STARTS

import hierax as hx
from hierax._run import prepare, stepping
from hierax._run.prepare import Processes
from hierax._run.solution import Kind, Reason, Starts, changed, lowest_of_starts, with_certificate


def test_the_lowest_value_of_every_start():
    np.testing.assert_array_equal(lowest_of_starts([(1, 3.0), (1, 2.0), (5, 0.0)], 3), [np.nan, 2.0, np.nan])
    assert Starts((1.0,), "b.").after("a.").said == "a. b." and Starts().after("a.") == Starts()


def test_every_reason_has_a_kind_and_fills_its_text():
    details = {name: 1.0 for reason in Reason for _, name, _, _ in string.Formatter().parse(reason.template) if name}
    del details["step"], details["kind"]
    for reason in Reason:
        status = reason.status(3, **details)
        assert status.name == reason.kind.value
        assert "{" not in status.message
        assert status.step == 3
    of_stages = Reason.STAGES_ENDED.status(3, Kind.SAMPLES, **details)
    assert (of_stages.kind, of_stages.message[:9]) == (Kind.SAMPLES, "samples: ")
    assert {reason.kind for reason in Reason} == set(Kind)
    assert not any(status.ok and status.failed for status in (hx.Status(kind, "", 0) for kind in Kind))


def test_a_process_alone_agrees_with_itself():
    alone = Processes()
    assert alone.first
    assert alone.exchanged(3, True).tolist() == [[3, 1]]
    assert alone.from_first(b"abc") == b"abc"
    alone.check_alike({"x0": 1.0})
    with pytest.raises(ValueError, match="mine"), alone.together():
        raise ValueError("mine")


@pytest.mark.slow  # the mapped form in test_solve_many.py, and checkpoints of many starts
def test_starts_one_after_another(monkeypatch):
    many = hx.solve_many(TOY.problem, STARTS, STARTS, METHOD, max_steps=50, seed=11)
    monkeypatch.setattr(prepare, "MAX_VMAPPED_ENTRIES", 0)
    mapped = hx.solve_many(TOY.problem, STARTS, STARTS, METHOD, max_steps=50, seed=11)
    np.testing.assert_allclose(mapped.x, many.x, rtol=0, atol=1e-10)
    np.testing.assert_allclose(mapped.y, many.y, rtol=0, atol=1e-10)


def test_chunks_do_not_change_the_iterates(monkeypatch):
    whole = run(max_steps=150, record_every=7)
    monkeypatch.setattr(stepping, "CHUNK_SECONDS", 1e-9)  # one step per chunk
    single = run(max_steps=150, record_every=7)
    monkeypatch.setattr(stepping, "CHUNK_SECONDS", 1e9)
    large = run(max_steps=150, record_every=7)
    for other in (single, large):
        same((whole.x, whole.y, whole.state.run), (other.x, other.y, other.state.run))
        for name in ("step", "upper", "lower", "violation", "stationarity", "inner_residual", "zeta"):
            np.testing.assert_array_equal(whole.history[name], other.history[name])


def test_a_changed_solution_keeps_its_certificate():
    nothing = hx.Multipliers(None, None, None)
    sol = hx.Solution(0.0, 0.0, nothing, Reason.CALLBACK.status(1), None, None, None, None, None)
    known = with_certificate(sol, "a certificate")
    other = changed(known, status=Reason.CERTIFIED.status(7, tol=1e-4))
    assert other.known_certificate is known.known_certificate and other.status.ok
