"""What a run returns, as a person meets it: `print`, the value, the history as a mapping and a table, many starts."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import EXACT, METHOD, TOY

import hierax as hx

NAMED = hx.Problem(
    upper=lambda x, y, zeta: (y["low"] - 1.0) ** 2 + (y["high"] - 2.0) ** 2 + 0.1 * x["price"] ** 2,
    lower=lambda x, y, xi: (y["low"] - 2.0 * x["price"]) ** 2 + (y["high"] - x["price"]) ** 2,
    constraints=lambda x, y: {"cap": y["low"] - x["price"]},
)
START = {"price": 0.5}, {"low": 0.5, "high": 0.5}


@pytest.fixture(scope="module")
def named():
    return hx.solve(NAMED, *START, hx.SALVF(), max_steps=200)


def test_print_is_a_short_table(named):
    text = str(named)
    assert len(text.splitlines()) <= 12
    for word in (
        "Solution: max_steps",
        "200 steps done",
        "F (value)",
        "violation",
        "seconds",
        "x['price']",
        "y['low']",
    ):
        assert word in text
    assert f"{named.value:.8g}" in text
    assert "sol.certificate" in text  # not computed yet


def test_print_says_what_the_certificate_says_once_it_is_known():
    sol = hx.solve(NAMED, *START, hx.GAM(), max_steps=100)
    assert sol.certificate.ok()
    text = str(sol)
    assert "yes at tol 0.0001" in text
    assert "G(x, y) - v(x)" in text
    early = hx.solve(NAMED, *START, hx.GAM(), max_steps=1)
    assert not early.certificate.ok()
    assert "no at tol 0.0001: not stationary above" in str(early)


def test_samples_are_printed_where_there_are_any():
    sol = hx.solve(TOY.problem, 1.5, 1.5, METHOD, max_steps=10)
    assert f"{sol.counts.zeta} of zeta, {sol.counts.xi} of xi" in str(sol)
    assert "samples" not in str(hx.solve(EXACT.problem, 1.5, 1.5, METHOD, max_steps=10))


def test_value_is_the_upper_objective_at_the_point(named):
    np.testing.assert_allclose(named.value, NAMED.upper(named.x, named.y, None), rtol=1e-12)
    sampled = hx.solve(TOY.problem, 1.5, 1.5, METHOD, max_steps=10)
    exact = TOY.problem.upper(sampled.x, sampled.y, TOY.problem.zeta.exact)
    np.testing.assert_allclose(sampled.value, exact, rtol=1e-12)


def test_value_of_a_stream_is_that_of_the_last_record():
    batches = [np.full((4, 2), 0.1) for _ in range(3)]
    stated = hx.Problem(
        lambda x, y, zeta: (y - 1.0 + zeta.mean()) ** 2 + 0.1 * x**2,
        lambda x, y, xi: (y - x) ** 2,
        zeta=hx.Stream(batches),
    )
    sol = hx.solve(stated, 0.5, 0.5, hx.SALVF(), max_steps=10, record_every=1)
    assert sol.value == sol.history["upper"][-1]
    assert "F (value)" in str(sol)


def test_history_is_a_mapping(named):
    columns = dict(named.history)
    assert list(columns) == list(named.history)
    np.testing.assert_array_equal(columns["upper"], named.history["upper"])
    assert "upper" in named.history
    assert "lambda" not in named.history
    with pytest.raises(KeyError, match="no column 'lambda'; there are step, upper"):
        named.history["lambda"]


def test_history_as_a_data_frame(named):
    pytest.importorskip("pandas", reason="to_frame needs pandas, which is no dependency of hierax")
    frame = named.history.to_frame()
    assert list(frame.columns) == list(named.history)
    assert len(frame) == len(named.history)
    many = hx.solve_many(EXACT.problem, [0.5, 1.0, 2.0], [0.5, 1.0, 2.0], METHOD, max_steps=10, record_every=5)
    long = many.history.to_frame()
    assert len(long) == 2 * 3
    for start in range(3):
        np.testing.assert_array_equal(long[long.start == start].upper, many.history["upper"][:, start])
    each = many.to_frame()
    assert each.status.tolist() == ["max_steps"] * 3 and not each.ok.any() and each.step.tolist() == [10] * 3
    np.testing.assert_allclose(each.value, EXACT.problem.upper(many.x, many.y, None), rtol=1e-12)
    counts = many.counts.to_frame()
    assert len(counts) == 1 and counts.grad_upper.item() == many.counts.grad_upper > 0


def test_one_of_many_solutions_is_a_solution():
    starts = np.array([0.5, 1.0, 2.0])
    many = hx.solve_many(EXACT.problem, starts, starts, METHOD, max_steps=10, record_every=5)
    assert isinstance(many, hx.Solutions)
    assert len(many) == 3
    assert repr(many) == "Solutions(3 starts: 3 max_steps)"
    for i, sol in enumerate(many):
        assert isinstance(sol, hx.Solution)
        assert sol.x == many.x[i]
        assert sol.status is many.status[i]
        np.testing.assert_array_equal(sol.history["upper"], many.history["upper"][:, i])
        assert float(sol.method.c1) == float(many.method.c1[i])
    assert many[-1].y == many.y[2]
    with pytest.raises(IndexError):
        many[3]
    on = hx.solve(EXACT.problem, 0.5, 0.5, max_steps=5, state=many[1].state)
    assert on.status.step == 15


def test_public_names_only():
    assert set(hx.__all__) <= set(dir(hx))
    assert all(not name.startswith("_") or name in ("__doc__", "__version__") for name in dir(hx))
    for name in hx.__all__:
        assert getattr(hx, name) is not None
    assert hx.problems.toy(0.0).problem is not None


@pytest.mark.usefixtures("as_users_start")
@pytest.mark.parametrize("route", ["small", "implicit", "large"])
def test_answers_of_auto_are_numbers_of_double_precision(route):
    problem = hx.Problem(
        upper=lambda x, y, zeta: (y["a"] - 1.0) ** 2 + jnp.sum(y["b"] ** 2) + 0.1 * x**2,
        lower=lambda x, y, xi: (y["a"] - 2.0 * x) ** 2 + jnp.sum((y["b"] - x) ** 2),
        constraints=lambda x, y: y["a"] - x,
        x_set=hx.Box(0.1, 0.3),
        y_set={"a": hx.Free(), "b": hx.Box(-0.2, 0.1)},
    )
    sol = hx.solve(problem, 0.2, {"a": 0.2, "b": np.zeros(2, np.float32)}, hx.Auto(route=route, seconds=20.0, starts=1))
    assert isinstance(sol.x, np.float64) and isinstance(sol.y["a"], np.float64)
    assert type(sol.y["b"]) is np.ndarray and sol.y["b"].dtype == np.float64
    assert isinstance(sol.multipliers.inequalities, np.float64) and isinstance(sol.value, float)
    assert 0.1 <= sol.x <= 0.3 and (sol.y["b"] <= 0.1).all()  # not 0.1 in single precision
    assert json.loads(json.dumps(sol.x)) == float(sol.x) and f"{sol.x:.2f}" == f"{float(jnp.asarray(sol.x)):.2f}"
    assert hx.certify(problem, sol.x, sol.y).violation <= sol.certificate.violation
    if route != "small":
        return
    again = hx.solve(problem, sol.x, sol.y, hx.SALVF(), max_steps=3)
    assert again.x.dtype == jnp.float32 and again.y["b"].dtype == jnp.float32  # a run has the precision of JAX
    both = hx.solve_many(problem, np.full(2, sol.x), jax.tree.map(lambda a: np.stack([a, a]), sol.y))
    assert both.x.dtype == np.float64 and both.x.shape == (2,) and both[1].x == both.x[1]


@pytest.mark.usefixtures("as_users_start")
def test_a_kept_answer_of_auto_is_the_same(tmp_path):
    first = hx.solve(NAMED, *START, checkpoint=tmp_path)
    again = hx.solve(NAMED, *START, checkpoint=tmp_path)
    for one, other in zip(jax.tree.leaves((first.x, first.y)), jax.tree.leaves((again.x, again.y)), strict=True):
        assert one == other and type(one) is type(other) is np.float64


def test_to_dict_is_plain(named):
    found = json.loads(json.dumps(named.to_dict(), allow_nan=False))
    assert found == named.to_dict()
    assert found["x"] == {"price": float(named.x["price"])} and set(found["y"]) == {"low", "high"}
    assert found["multipliers"]["inequalities"].keys() == {"cap"} and found["multipliers"]["upper"] == {}
    assert found["F"] == named.value and found["status"]["name"] == "max_steps" and found["status"]["ok"] is False
    assert found["certificate"] is None and found["globality"] is None and found["starts"]["values"] == []
    assert found["settings"]["max_steps"] == 200 and found["method"]["type"] == "SALVF"
    assert found["counts"]["grad_upper"] == named.counts.grad_upper and found["versions"]["hierax"] == hx.__version__


def test_to_dict_has_the_certificate_once_it_is_made():
    sol = hx.solve(NAMED, *START)
    found = sol.to_dict()
    assert found["certificate"]["verdict"] == "yes" and found["certificate"]["tol"] == sol.tol
    assert found["certificate"]["lower_gap"] == sol.certificate.lower_gap
    assert found["globality"] and f"Globality: {found['globality']}" in found["log"]


def test_to_dict_of_numbers_that_are_not_finite():
    streamed = dataclasses.replace(NAMED, xi=hx.Stream([np.zeros(1)]))
    sol = hx.solve(streamed, *START, hx.SALVF(inner=hx.SALM()), max_steps=1)
    no_records = type(sol.history)({"step": np.zeros(0)})
    found = dataclasses.replace(sol, x={"price": jnp.array(jnp.nan)}, history=no_records).to_dict()
    assert found["x"] == {"price": None} and found["F"] is None
