"""What is recorded of a run beside x and y: steps of z, what a callback sees, its own numbers; and `max_samples`."""

import dataclasses

import jax
import numpy as np
import pytest
from cases import METHOD, TOY

import hierax as hx

BATCHES = hx.SALVF(c1=5.0, c2=100.0, batch_zeta=2, batch_xi=3, inner=hx.SALM(steps=4))
PER_STEP = {"zeta": 2, "xi": 3 + 4 * 3}
FIRST = 20 * 4 * 3  # of the first lower solve


def run(**call):
    return hx.solve(TOY.problem, TOY.x0, TOY.y0, call.pop("method", METHOD), **{"max_steps": 6, **call})


@pytest.fixture(scope="module")
def told():
    """Every step of a run: what its callback saw, and its history."""
    seen = []
    sol = run(method=dataclasses.replace(METHOD, follow=False), record_every=1, callback=seen.append, seed=2)
    return seen, sol


def test_a_callback_sees_z_w_and_lam_in_the_users_units(told):
    seen, sol = told
    state, scale = sol.state.run.state, float(sol.method.scales.inequalities)
    assert scale == pytest.approx(1.0)
    np.testing.assert_array_equal(seen[-1].w, state.w)
    np.testing.assert_array_equal(seen[-1].lam.inequalities, state.lam.inequalities / scale)
    np.testing.assert_array_equal(seen[-1].z.inequalities, state.point.z.inequalities / scale)
    assert len({float(info.w) for info in seen}) == len(seen)  # chunks do not overwrite what was seen


def test_methods_without_z_have_none():
    seen = []
    sol = run(method=hx.GAM(), max_steps=1, callback=seen.append)
    assert seen[0].w is seen[0].z is seen[0].lam is None
    assert sol.history["step_z"] == 0


def test_the_papers_measure_of_a_step_can_be_formed(told):
    """||u^{k+1} - u^k||^2 from the history's columns, u = (x, y, z)."""
    seen, sol = told
    points = np.array([[float(info.x), float(info.y), float(info.z.inequalities)] for info in seen])
    squares = np.sum(np.diff(points, axis=0) ** 2, axis=1)
    columns = sum(sol.history[f"step_{name}"] ** 2 for name in "xyz")
    np.testing.assert_allclose(columns[1:], squares, rtol=1e-9)
    assert np.all(sol.history["step_z"] > 0)


def test_numbers_of_a_callback_become_columns(tmp_path):
    def numbers(info):
        return {"error": abs(info.x - 1.0)} if info.step != 4 else None

    sol = run(record_every=2, callback=numbers)
    assert list(sol.history["step"]) == [2, 4, 6]
    assert np.isnan(sol.history["error"][1])
    assert sol.history["error"][2] == abs(float(sol.state.run.state.point.x) - 1.0)
    half = run(max_steps=4, record_every=2, callback=lambda info: {"n": info.step}, checkpoint=tmp_path)
    whole = run(record_every=2, callback=lambda info: {"n": 10 * info.step}, checkpoint=tmp_path)
    assert list(half.history["n"]) == [2, 4]
    assert list(whole.history["n"]) == [2, 4, 60]
    many = hx.solve_many(
        TOY.problem, np.ones(3), np.ones(3), METHOD, max_steps=1, callback=lambda info: {"far": np.asarray(info.x) - 1}
    )
    np.testing.assert_array_equal(many.history["far"], np.asarray(many.state.run.state.point.x)[None] - 1)


@pytest.mark.parametrize("answer", [{"upper": 1.0}, {"mine": "text"}, {"mine": np.ones(2)}])
def test_columns_that_cannot_be_are_refused_with_the_solution(answer):
    with pytest.raises(hx.InputError, match="callback: ") as caught:
        run(max_steps=1, callback=lambda info: answer)
    assert caught.value.solution.status.step == 1


@pytest.mark.parametrize("steps", [0, 3])
def test_a_run_ends_before_it_takes_more_than_max_samples(steps):
    spent = FIRST + steps * sum(PER_STEP.values())
    for more, made in ((0, steps), (sum(PER_STEP.values()) - 1, steps), (sum(PER_STEP.values()), steps + 1)):
        sol = run(method=BATCHES, max_samples=spent + more, output="last")
        assert sol.counts.zeta + sol.counts.xi == FIRST + made * sum(PER_STEP.values()) <= spent + more
        assert (sol.status.name, sol.status.step) == ("samples", made)
    assert f"max_samples={spent + more:,}" in sol.status.message


def test_max_samples_of_a_continued_run_are_further_ones():
    first = run(method=BATCHES, max_samples=FIRST + 40)
    more = run(max_samples=40, method=None, state=first.state)
    assert more.status.name == "samples" and more.status.step == first.status.step + 2
    assert more.counts.zeta + more.counts.xi == first.counts.zeta + first.counts.xi + 34
    enough = run(method=BATCHES, max_samples=10**9)
    assert enough.status.name == "max_steps"


def test_max_samples_counts_stages_and_a_repair():
    sizes = hx.Staircase({0: 1, 2: 5})
    method = hx.SALVF(c1=5.0, c2=100.0, batch_zeta=sizes, batch_xi=3, inner=hx.SALM(steps=4), repair=2)
    sol = run(method=method, max_samples=FIRST + 2 * 16 + 20 + 19 + 6)
    assert (sol.status.name, sol.status.step) == ("samples", 3)
    assert sol.counts.zeta + sol.counts.xi == FIRST + 2 * 16 + 20 + 6


def test_max_samples_belongs_to_named_methods():
    with pytest.raises(hx.InputError, match="max_samples: belongs to methods that make steps"):
        hx.solve(TOY.problem, TOY.x0, TOY.y0, max_samples=100)
    with pytest.raises(hx.InputError, match="max_samples=0: needs a whole number"):
        run(max_samples=0)
    assert jax.tree.leaves(run(max_samples=10**6, max_steps=1).x)
