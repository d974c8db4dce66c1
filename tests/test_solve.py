"""The loop: known solutions, seeds, records, stop tests, outputs, counts."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import EXACT, METHOD, TOY, VR, same
from scipy import optimize, stats

import hierax as hx
from hierax.problems.toy import local_minimisers

START_ROUNDS = 20  # of the inner loop before the first step


def run(example=TOY, method=METHOD, x0=1.5, **call):
    return hx.solve(example.problem, x0, x0, method, **{"max_steps": 40, **call})


# -- known solutions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("x0", "index"), [(0.2, 0), (1.05, 1), (1.95, 2), (2.9, 3)])
def test_exact_toy_reaches_its_local_minimisers(x0, index):
    sol = hx.solve(EXACT.problem, x0, x0, METHOD, max_steps=4000)
    known = EXACT.solutions[index]
    assert sol.status.name == "max_steps"
    np.testing.assert_allclose(sol.x, known.x, atol=1e-3)
    np.testing.assert_allclose(sol.y, known.y, atol=1e-3)
    np.testing.assert_allclose(sol.multipliers.inequalities, known.multipliers, atol=5e-3)
    np.testing.assert_allclose(sol.history["upper"][-1], known.upper, atol=1e-3)


def test_quadratic_problem_against_scipy():
    """F = 1/2|y - t|^2 + 1/2|x|^2, G = 1/2 y'Ay - (b + Cx)'y, D y <= e + x_1, against SLSQP on x -> F(x, y*(x))."""
    rng = np.random.default_rng(9)
    factor = rng.standard_normal((3, 3))
    a, b, c = factor @ factor.T + np.eye(3), rng.standard_normal(3), rng.standard_normal((3, 2))
    d, e, t = rng.standard_normal((2, 3)), np.array([0.3, 0.4]), np.array([1.0, -1.0, 0.5])
    problem = hx.Problem(
        upper=lambda x, y, zeta: 0.5 * jnp.sum((y - t) ** 2) + 0.5 * jnp.sum(x**2),
        lower=lambda x, y, xi: 0.5 * y @ a @ y - (b + c @ x) @ y,
        constraints=lambda x, y: d @ y - e - x[0],
        x_set=hx.Box(-1.0, 2.0),
    )

    # The single-level form: y, x and multipliers under the KKT conditions, complementarity relaxed to zero products.
    def split(u):
        return u[:2], u[2:5], u[5:]

    def kkt(u):
        x, y, lam = split(u)
        return a @ y - b - c @ x + d.T @ lam

    def slack(u):
        x, y, _ = split(u)
        return e + x[0] - d @ y

    best = None
    for start in np.random.default_rng(0).standard_normal((3, 7)):
        found = optimize.minimize(
            lambda u: 0.5 * np.sum((u[2:5] - t) ** 2) + 0.5 * np.sum(u[:2] ** 2),
            np.abs(start),
            bounds=[(-1, 2)] * 2 + [(None, None)] * 3 + [(0, None)] * 2,
            constraints=[
                {"type": "eq", "fun": kkt},
                {"type": "ineq", "fun": slack},
                {"type": "ineq", "fun": lambda u: 1e-9 - u[5:] @ slack(u)},
            ],
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        if found.success and (best is None or found.fun < best.fun):
            best = found
    x, y, lam = split(best.x)
    assert np.max(lam) > 0.05  # a constraint is active at the solution
    # The bias of the penalty method is of order 1/c1.
    for c1, steps, tol in [(10.0, 60_000, 2.5e-2), (50.0, 300_000, 5e-3)]:
        sol = hx.solve(problem, np.zeros(2), np.zeros(3), hx.SALVF(c1=c1), max_steps=steps)
        np.testing.assert_allclose(sol.x, x, atol=tol)
        np.testing.assert_allclose(sol.y, y, atol=tol)
        np.testing.assert_allclose(sol.multipliers.inequalities, lam, atol=tol)
        np.testing.assert_allclose(sol.history["upper"][-1], best.fun, atol=2 * tol)


# -- determinism and records -------------------------------------------------------------------------------------------


def test_one_seed_one_result():
    first, again, other = run(seed=3), run(seed=3), run(seed=4)
    same((first.x, first.y, first.state.run), (again.x, again.y, again.state.run))
    assert first.x != other.x
    assert first.y != other.y
    key = jax.random.fold_in(jax.random.key(3), 0)
    same(run(seed=key).x, first.x)


def test_history_has_a_row_per_period_and_the_last_step(tmp_path):
    sol = run(max_steps=25, record_every=10)
    np.testing.assert_array_equal(sol.history["step"], [10, 20, 25])
    assert len(sol.history) == 3
    assert np.all(np.diff(sol.history["seconds"]) >= 0)
    for name in ("upper", "lower", "violation", "stationarity", "inner_residual", "step_x", "step_y"):
        assert sol.history[name].shape == (3,)
        assert np.all(np.isfinite(sol.history[name]))
    assert sol.history["zeta"][-1] == sol.counts.zeta
    assert sol.history["xi"][-1] == sol.counts.xi
    sol.history.to_csv(tmp_path / "history.csv")
    table = np.genfromtxt(tmp_path / "history.csv", delimiter=",", names=True)
    np.testing.assert_allclose(table["upper"], sol.history["upper"], rtol=1e-12)
    with pytest.raises(KeyError, match="no column 'uper'; there are step, upper"):
        sol.history["uper"]
    assert len(run(max_steps=300).history) == 100


def test_callback_sees_every_record_and_may_stop():
    seen = []

    def callback(info):
        seen.append(info.step)
        assert info.record["step"] == info.step
        assert info.x.shape == ()
        return info.step >= 20

    sol = run(max_steps=50, record_every=10, callback=callback)
    assert seen == [10, 20]
    assert sol.status.name == "stopped"
    assert not sol.status.ok
    assert "after step 20" in sol.status.message
    assert int(sol.state.run.state.step) == 20
    same(sol.x, run(max_steps=20).x)
    # Only True stops: a callback that returns something else, such as the number of its records, does not.
    assert run(max_steps=20, record_every=10, callback=lambda info: 1).status.name == "max_steps"


def test_seconds_stop_the_run():
    sol = run(max_steps=10**7, seconds=1e-3)
    assert sol.status.name == "seconds"
    assert not sol.status.ok
    assert 0 <= sol.status.step < 10**7
    assert sol.counts.zeta == sol.status.step
    assert sol.counts.seconds > 0


def test_progress_bar_writes_to_stderr_only_when_asked(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the captured stream for a terminal
    run(progress=False)
    run()
    assert capsys.readouterr() == ("", "")
    run(progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "hierax" in err


def test_tolerance_stop():
    sol = hx.solve(EXACT.problem, 1.05, 1.05, METHOD, max_steps=20_000, tol=1e-3, record_every=50)
    assert sol.status.name == "converged"
    assert sol.status.ok
    assert "tol=0.001" in sol.status.message
    assert sol.status.step < 20_000
    last = {name: sol.history[name][-2:] for name in ("violation", "stationarity", "inner_residual")}
    assert all(np.all(column <= 1e-3) for column in last.values())
    met = np.max([sol.history[name] for name in last], axis=0) <= 1e-3
    assert not np.any(met[:-2] & met[1:-1])  # it stopped at the first two quiet records in a row
    assert sol.history["step"][-1] == sol.status.step == int(sol.state.run.state.step)
    assert sol.counts.lower_solves == sol.status.step + 1  # no step is counted after the stop
    np.testing.assert_allclose(sol.x, local_minimisers()[1], atol=5e-3)


# -- counts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "points"), [(METHOD, 1), (VR, 2)])
def test_counts_are_exact(method, points):
    sol, n, s = run(method=method), 40, 10
    assert sol.counts.zeta == n
    assert sol.counts.xi == n * (s + 1) + START_ROUNDS * s  # the start's samples are looked at twice, drawn once
    assert sol.counts.lower_solves == n + 1
    assert sol.counts.grad_upper - run(method=method, max_steps=39).counts.grad_upper == points
    assert (
        sol.counts.grad_lower - run(method=method, max_steps=39).counts.grad_lower == s + 2 * points + 2
    )  # a product watches the steps
    exact = run(EXACT)
    assert (exact.counts.zeta, exact.counts.xi) == (0, 0)


def test_counted_samples_are_the_drawn_ones():
    """The plans of three steps hold as many different numbers as are counted, and those of the start too."""
    method = dataclasses.replace(METHOD, batch_zeta=2, batch_xi=3, inner=hx.SALM(steps=4, batch=5))
    plan = method.batches(TOY.problem)
    start, costs, _ = method.costs(TOY.problem)
    assert (costs.zeta, costs.xi, start.xi) == (2, 3 + 4 * 5, START_ROUNDS * 4 * 5)
    before = types.SimpleNamespace(key=jax.random.key(0), step=jnp.zeros((), int))
    plans = jax.tree.map(lambda a: a[:3], plan.draws(TOY.problem, before))
    assert plans.zeta.shape == (3, 2, 2)
    assert plans.xi.shape == (3, 3, 2)
    assert plans.inner.shape == (3, 4, 5, 2)
    assert len(np.unique(np.concatenate([np.ravel(leaf) for leaf in plans]))) == 2 * 3 * (2 + 3 + 20)
    assert plan.first_look(TOY.problem, jax.random.key(0)).inner.shape == (START_ROUNDS * 4, 5, 2)


# -- outputs -----------------------------------------------------------------------------------------------------------


def iterates(steps, **call):
    """x, y after every step, from the callback."""
    seen = []
    sol = run(max_steps=steps, record_every=1, callback=lambda info: seen.append((info.x, info.y)), **call)
    return np.array(seen), sol


def test_last_and_tail_outputs():
    path, last = iterates(30)
    np.testing.assert_array_equal(path[-1], (last.x, last.y))
    average = np.array([1.5, 1.5])
    for k, point in enumerate(path, start=1):
        average = average + 4 / (k + 3) * (point - average)  # polynomial decay, power 3: the start has weight zero
    tail = run(max_steps=30, output="tail")
    np.testing.assert_allclose((tail.x, tail.y), average, rtol=1e-12)
    late = np.cumprod(1 - 4 / (np.arange(1, 31) + 3))
    assert late[0] == 0


def test_best_output_is_the_record_with_the_least_score():
    path, _ = iterates(65, x0=0.986)  # from the solution on, noise alone makes a record better or worse
    best = run(max_steps=65, record_every=5, output="best", x0=0.986)
    score = best.history["stationarity"] + 100.0 * best.history["violation"]
    chosen = int(np.argmin(score))
    np.testing.assert_allclose((best.x, best.y), path[5 * (chosen + 1) - 1], rtol=1e-12)
    assert 0 < chosen < len(score) - 1


def test_random_output_is_drawn_with_probability_alpha():
    """R = k with probability alpha_k / sum alpha: iterates 0..5 of a run, 3,000 seeds, chi-squared."""
    many, steps = 3000, 6
    method = dataclasses.replace(
        METHOD, steps=hx.Steps(x=0.01, y=hx.Decay(0.003, 1.0, 1.0)), inner=hx.SALM(steps=2), start="given"
    )
    starts = np.full(many, 1.5)
    seen = []
    sol = hx.solve_many(
        TOY.problem, starts, starts, method, max_steps=steps, record_every=1, output="random",
        callback=lambda info: seen.append(info.x),
    )  # fmt: skip
    path = np.stack([starts, *seen[:-1]], axis=1)
    chosen = np.argmax(path == np.asarray(sol.x)[:, None], axis=1)
    assert np.all(path[np.arange(many), chosen] == np.asarray(sol.x))
    weights = 1 / (np.arange(steps) + 1.0)
    counts = np.bincount(chosen, minlength=steps)
    assert stats.chisquare(counts, many * weights / weights.sum()).pvalue > 1e-3


def test_repair_makes_y_feasible_and_is_counted():
    """The quadratic penalty leaves y infeasible by about c1 |lam| / c2; the repair of eq. 2.14 removes that."""
    quadratic = hx.SALVF(c1=5.0, c2=100.0, penalty="quadratic", repair=400)
    sol = hx.solve(EXACT.problem, 1.0, 1.0, quadratic, max_steps=500)
    raw = sol.state.run.state.point
    assert raw.y - raw.x > 0.03
    assert abs(sol.y - sol.x) < 2e-3
    np.testing.assert_array_equal(sol.x, raw.x)
    assert sol.counts.lower_solves == 500 + 1 + 1


def test_an_active_bound_of_x_alone_is_not_a_corner():
    problem = hx.Problem(
        upper=lambda x, y, zeta: x + (y - 1.0) ** 2, lower=lambda x, y, xi: (y - 1.0) ** 2, x_set=hx.Box(0.0, 1.0)
    )
    sol = hx.solve(problem, 0.5, 0.0, hx.SALVF(), tol=1e-6, max_steps=3000, record_every=50)
    assert sol.status.name == "converged"
    assert sol.x == 0.0


def test_a_centre_that_lags_is_not_converged():
    problem = hx.Problem(
        upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        constraints=lambda x, y: y - x,
    )
    method = hx.SALVF(start="given", steps=hx.Steps(z=1e-9))
    sol = hx.solve(problem, 0.5, 0.5, method, tol=1e-3, max_steps=2000)
    assert sol.status.name == "max_steps"


def test_a_numpy_bool_from_the_callback_stops():
    seen = []
    sol = hx.solve(
        TOY.problem, 1.4, 0.5, METHOD, max_steps=20, record_every=5, callback=lambda i: seen.append(i) or np.bool_(True)
    )
    assert sol.status.name == "stopped"
    assert len(seen) == 1


def test_upper_multiplier_of_the_quadratic_penalty():
    problem = hx.Problem(
        upper=lambda x, y, zeta: -x + 0.5 * y**2,
        lower=lambda x, y, xi: (y - 1.0) ** 2,
        upper_constraints=lambda x, y: x - 2.0,
    )
    sol = hx.solve(problem, 0.0, 0.0, hx.SALVF(penalty="quadratic"), max_steps=3000)
    np.testing.assert_allclose(sol.multipliers.upper, 1.0, rtol=1e-3)
