"""Many starts in one program: the same as single runs, vectorised or one after another."""

import os
import signal

import jax
import numpy as np
import pytest
from cases import METHOD, TOY, same

import hierax as hx

STARTS = np.array([0.4, 1.3, 2.6])


@pytest.fixture(scope="module")
def many():
    return hx.solve_many(TOY.problem, STARTS, STARTS, METHOD, max_steps=50, seed=11)


def test_every_start_equals_its_single_run(many):
    for i, x0 in enumerate(STARTS):
        key = jax.random.fold_in(jax.random.key(11), i)
        one = hx.solve(TOY.problem, x0, x0, METHOD, max_steps=50, seed=key)
        np.testing.assert_allclose(many.x[i], one.x, rtol=0, atol=1e-10)
        np.testing.assert_allclose(many.y[i], one.y, rtol=0, atol=1e-10)
        np.testing.assert_allclose(many.multipliers.inequalities[i], one.multipliers.inequalities, atol=1e-9)
        for name in ("upper", "violation", "stationarity"):
            np.testing.assert_allclose(many.history[name][:, i], one.history[name], rtol=1e-8, atol=1e-9)
    assert many.counts.zeta == one.counts.zeta == 50
    assert many.counts.xi == one.counts.xi


def test_result_has_an_axis_of_starts(many):
    assert many.x.shape == many.y.shape == many.multipliers.inequalities.shape == (3,)
    assert [status.name for status in many.status] == ["max_steps"] * 3
    assert many.history["upper"].shape == (50, 3)
    assert many.history["step"].shape == many.history["seconds"].shape == many.history["zeta"].shape == (50,)
    assert many.method.inner.eta.shape == (3,)
    assert len({float(x) for x in many.x}) == 3


def test_equal_starts_with_many_seeds_differ():
    sol = hx.solve_many(TOY.problem, np.full(3, 1.3), np.full(3, 1.3), METHOD, max_steps=50, seed=11)
    assert len({float(x) for x in sol.x}) == 3


def test_continues_bit_for_bit(many):
    first = hx.solve_many(TOY.problem, STARTS, STARTS, METHOD, max_steps=20, seed=11)
    second = hx.solve_many(TOY.problem, STARTS, STARTS, METHOD, max_steps=30, state=first.state)
    same(second.state.run.state, many.state.run.state)


def test_one_start_may_fail_alone():
    """A start whose functions overflow is reported by name; the others go on, and throw=True raises."""
    sol = hx.solve_many(TOY.problem, STARTS, STARTS, METHOD, max_steps=5, seed=11)
    broken = sol.state.run._replace(limit=sol.state.run.limit.at[1].set(-1.0))  # any step now leads too far
    on = hx.solve_many(TOY.problem, STARTS, STARTS, METHOD, max_steps=5, state=sol.state._replace(run=broken))
    assert [status.name for status in on.status] == ["max_steps", "diverged", "max_steps"]
    assert [status.step for status in on.status] == [10, 5, 10]
    assert on.x[1] == sol.x[1]
    assert on.x[0] != sol.x[0]
    with pytest.raises(hx.RunFailed, match="diverged at step 5") as caught:
        hx.solve_many(
            TOY.problem, STARTS, STARTS, METHOD, max_steps=5, state=sol.state._replace(run=broken), throw=True
        )
    assert caught.value.solution.x.shape == (3,)


@pytest.mark.parametrize(
    ("x0s", "y0s", "text"),
    [
        (np.zeros(3), np.zeros(2), r"same leading axis of starts; got shapes \[\(3,\), \(2,\)\]"),
        (1.0, 1.0, "same leading axis of starts"),
        (np.zeros(0), np.zeros(0), "x0s: has no entries"),
    ],
)
def test_starts_must_agree(x0s, y0s, text):
    with pytest.raises(hx.InputError, match=text):
        hx.solve_many(TOY.problem, x0s, y0s, METHOD)


# -- without a method: Auto from every start --------------------------------------------------------------------------

PROBLEM = hx.Problem(
    upper=lambda x, y, zeta: (y["a"] - 1.0) ** 2 + 0.1 * x**2,
    lower=lambda x, y, xi: (y["a"] - 2.0 * x) ** 2,
    constraints=lambda x, y: y["a"] - x,
)
X0S, Y0S = np.array([0.2, 0.8, 0.5]), {"a": np.array([0.2, 0.8, 0.5])}


@pytest.fixture(scope="module")
def searched():
    return hx.solve_many(PROBLEM, X0S, Y0S, seed=4)


def test_without_a_method_every_start_is_what_solve_finds(searched):
    assert isinstance(searched, hx.Solutions)
    assert isinstance(searched.method, hx.Auto)
    for i in range(3):
        one = hx.solve(PROBLEM, X0S[i], {"a": Y0S["a"][i]}, seed=4 + i)
        assert searched.status[i].name == searched[i].status.name == one.status.name == "converged"
        same((searched.x[i], searched.y["a"][i]), (one.x, one.y["a"]))
        same((searched[i].x, searched[i].multipliers), (one.x, one.multipliers))
        assert searched[i].log == one.log
        same(searched.history["upper"][: len(one.history), i], one.history["upper"])
        assert np.all(searched.history["upper"][len(one.history) :, i] == one.history["upper"][-1])


def test_the_result_of_auto_has_what_solutions_have(searched):
    assert len(searched) == 3
    assert searched.multipliers.inequalities.shape == searched.x.shape == (3,)
    assert searched.state is None
    assert searched.log[0].startswith("start 0: Route small")
    assert searched.counts.seconds == pytest.approx(sum(one.counts.seconds for one in searched))
    assert all(certificate.ok(1e-4) for certificate in searched.certificate)
    assert "3 converged" in repr(searched)


def test_auto_with_settings_runs_from_every_start():
    found = hx.solve_many(PROBLEM, X0S[:2], {"a": Y0S["a"][:2]}, hx.Auto(starts=2))
    assert [one.method.starts for one in found] == [2, 2]
    np.testing.assert_allclose(found.x, 1 / 1.1, atol=1e-5)


def test_starts_without_a_turn_are_returned_as_they_are(monkeypatch, clock):
    """Time is up, or Ctrl-C was pressed, while the first start runs."""
    run = hx.Auto.run

    def slow(self, *args):
        found = run(self, *args)
        happens()
        return found

    first = hx.solve(PROBLEM, X0S[0], {"a": Y0S["a"][0]})
    happens = lambda: os.kill(os.getpid(), signal.SIGINT)
    monkeypatch.setattr(hx.Auto, "run", slow)
    found = hx.solve_many(PROBLEM, X0S, Y0S)
    assert [status.name for status in found.status] == [first.status.name, "interrupted", "interrupted"]
    same(found.x, np.array([first.x, 0.8, 0.5]))
    assert "had its turn" in found.status[2].message
    assert np.isfinite(found.multipliers.inequalities[0])
    assert np.isnan(found.multipliers.inequalities[1:]).all()
    happens = lambda: clock.forward(200.0)
    found = hx.solve_many(PROBLEM, X0S, Y0S, seconds=100.0)
    assert [status.name for status in found.status] == [first.status.name, "seconds", "seconds"]
    assert found.counts.seconds > 0
