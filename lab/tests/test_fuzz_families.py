"""The families of `hierax bench fuzz --families`: their known answers against SciPy, and how claims are counted."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize
from typer.testing import CliRunner

from hierax.cli import app
from hierax_lab.bench import fuzz_guard
from hierax_lab.bench.fuzz_families import FAMILIES, draw_family

FAR = "from every solution of the lower level"


# -- the lower level by SciPy, from the functions that hierax gets ----------------------------------------------------


def on_grid(case, x):
    """One or two y in [-3, 3]: the best point of a fine grid, polished."""
    size, axis = len(case.start[1]), np.linspace(-3.0, 3.0, 401)
    if "width" in case.parameters:
        axis = np.concatenate([axis, case.parameters["centre"] + case.parameters["width"] * np.linspace(-2, 2, 301)])
    grid = np.stack(np.meshgrid(*[axis] * size), axis=-1).reshape(-1, size)
    lower = lambda y: case.problem.lower(x, y, None)
    best = grid[int(jnp.argmin(jax.vmap(lower)(grid)))]
    bounds = np.clip(np.stack([best - 0.02, best + 0.02], axis=1), -3.0, 3.0)
    return optimize.minimize(lambda y: float(lower(y)), best, bounds=bounds, options={"ftol": 1e-14}).x


def by_linear_program(case, x):
    zero = np.zeros(2)
    rows, cost = jax.jacobian(case.problem.constraints, 1)(x, zero), jax.grad(case.problem.lower, 1)(x, zero, None)
    run = optimize.linprog(cost, rows, -case.problem.constraints(x, zero), bounds=(None, None))
    assert run.status == 0
    return run.x


def by_scalar_search(case, x):
    lower = jax.jit(lambda y: case.problem.lower(x, jnp.array([y]), None))
    found = optimize.minimize_scalar(lambda y: float(lower(y)), bounds=(-8.0, 8.0), options={"xatol": 1e-9})
    return np.array([found.x])


def by_split_lasso(case, x):
    """|y| = p + q with y = p - q and p, q >= 0: a smooth problem."""
    rows, target = case.parameters["A"], case.parameters["b"]

    def loss(z):
        return 0.5 * ((rows @ (z[:4] - z[4:]) - target) ** 2).mean() + x[0] * z.sum()

    run = optimize.minimize(loss, np.ones(8), bounds=[(0.0, None)] * 8, method="SLSQP", options={"ftol": 1e-14})
    assert loss(run.x) == pytest.approx(float(case.problem.lower(x, run.x[:4] - run.x[4:], None)), abs=1e-7)
    return run.x[:4] - run.x[4:]


REFERENCES = [
    ("hidden-wells", 0, on_grid),
    ("many-minima", 0, on_grid),
    ("parallel-costs", None, by_linear_program),
    ("kinks", 0, by_scalar_search),
    ("kinks", 1, by_scalar_search),
    ("kinks", 2, by_split_lasso),
    ("shifted-units", 0, by_linear_program),
]


def drawn(family, number):
    """A case; with None the first whose small cost is above the tolerances of SciPy's linear programs."""
    if number is None:
        number = next(i for i in range(50) if draw_family(0, family, i).parameters["eps"] > 3e-6)
    return draw_family(0, family, number)


@pytest.mark.parametrize(("family", "number", "follower"), REFERENCES)
def test_lower_solutions_and_optimum_agree_with_scipy(family, number, follower):
    case = drawn(family, number)
    best_x, best_y = case.points["optimum"]
    box = case.problem.x_set
    span = np.asarray(box.upper) - np.asarray(box.lower)
    for share in (0.21, 0.83):
        x = np.asarray(box.lower + share * span).reshape(1)
        y = follower(case, x)
        assert FAR not in case.fault(x, y).words and FAR in case.fault(x, y + 0.1).words
        assert float(case.problem.upper(x, y, None)) >= case.best - 1e-6
    assert float(case.problem.upper(best_x, best_y, None)) == pytest.approx(case.best, abs=1e-9)
    assert case.fault(best_x, best_y) == ("", False)
    inward = best_x + 1e-4 * np.sign(np.asarray(box.lower) + 0.5 * span - best_x)  # an optimum may be on an edge of X
    below = [follower(case, x) for x in (best_x, inward, 2.0 * best_x - inward)]  # or at a jump of the follower
    assert min(np.abs(y - best_y).max() for y in below) < 1e-3


def test_units_of_the_older_forms_have_their_judge():
    case = draw_family(0, "shifted-units", 1)
    assert case.fault(*case.start).words
    assert np.ptp(np.log10(np.concatenate([case.parameters[name] for name in ("x", "y")]))) > 0.1


def test_followers_of_flat_infinity_have_no_minimum():
    for number in range(6):
        case = draw_family(0, "flat-infinity", number)
        far = [float(case.problem.lower(jnp.array([1.0]), jnp.array([y]), None)) for y in (5.0, 8.0, 12.0, 16.0)]
        assert np.all(np.diff(far) < 0) and case.fault(*case.start).words


def test_the_answer_of_rare_events_is_that_of_the_expectation():
    case = draw_family(0, "rare-events", 3)
    noise = case.problem.zeta.draw(jax.random.key(0), 200_000)
    assert set(np.unique(noise).round(3)) <= {-1.0, float((1.0 / case.parameters["p"] - 1.0).round(3))}
    zero = jnp.zeros(1)  # the mean of the noise

    def below(x):
        lower = lambda y: float(case.problem.lower(np.array([x]), np.array([y]), zero))
        return optimize.minimize_scalar(lower, bounds=(0.0, x), options={"xatol": 1e-7}).x

    upper = lambda x: float(case.problem.upper(np.array([x]), np.array([below(x)]), zero))
    best = optimize.minimize_scalar(upper, bounds=(0.0, 3.0), options={"xatol": 1e-4})
    x = np.array([best.x])
    assert best.fun == pytest.approx(case.best, abs=1e-4)
    assert case.fault(x, x).words == "" and case.fault(x + 0.25, x + 0.25).words


def test_saddles_have_a_direction_down_and_minima_none():
    for number, falls in ((0, True), (1, True), (2, False)):
        case = draw_family(0, "saddles", number)
        (zero, _), *_ = case.points.values()
        along = jax.jit(lambda y, case=case: case.problem.upper(y, y, None))  # y = x below
        bend = np.linalg.eigh(jax.hessian(along)(zero))
        assert (float(along(0.1 * bend.eigenvectors[:, 0])) < 0) is falls and (bend.eigenvalues[0] > 0) is not falls
        assert bool(case.fault(zero, zero).words) is falls


# -- what is counted --------------------------------------------------------------------------------------------------


def pretend(monkeypatch, case, point, status, verdict):
    """Let hx.solve return this answer, and hx.certify this verdict."""
    certificate = types.SimpleNamespace(verdict=lambda: verdict)
    ended = types.SimpleNamespace(name=status, ok=status in ("converged", "best_of_branches"))
    answer = types.SimpleNamespace(x=point[0], y=point[1], value=0.0, status=ended, certificate=certificate)
    monkeypatch.setattr(fuzz_guard.hx, "solve", lambda *args, **kwargs: answer)
    monkeypatch.setattr(fuzz_guard.hx, "certify", lambda *args, **kwargs: certificate)
    return {row.asked: row.outcome for row in fuzz_guard.examine("hidden-wells", 0, case, 1.0)}


def test_claims_are_told_apart(monkeypatch):
    case = draw_family(0, "hidden-wells", 0)
    right, wrong = case.points["optimum"], case.points["outside the well"]
    assert pretend(monkeypatch, case, right, "converged", "yes") == {
        "solve": "true", "certify: optimum": "true", "certify: outside the well": "false",
    }  # fmt: skip
    assert pretend(monkeypatch, case, wrong, "converged", "no")["solve"] == "false"
    assert pretend(monkeypatch, case, wrong, "seconds", "yes")["solve"] == "false"
    assert set(pretend(monkeypatch, case, wrong, "not_certified", "unknown").values()) == {"not claimed"}
    assert pretend(monkeypatch, case, (right[0] - 0.3, right[1]), "best_of_branches", "yes")["solve"] == "false"


def test_a_minimum_that_is_not_the_global_one_is_no_false_claim():
    for number in range(20):
        case = draw_family(0, "parallel-costs", number)
        k, p = case.parameters["k"], case.parameters["p"]
        x = np.linspace(-2.0, 2.0, 4001)
        value = np.array(case.problem.upper(np.zeros(1), np.stack([np.sin(k * x + p), x], -1), None))
        local = np.flatnonzero((value[1:-1] < value[:-2]) & (value[1:-1] < value[2:])) + 1
        for i in local[value[local] > case.best + 0.05 * np.ptp(value)]:
            fault = case.fault(x[i : i + 1], np.array([np.sin(k * x[i] + p), x[i]]))
            assert fault == ("", True)
            return
    raise AssertionError("no case with a second minimum")


def test_errors_and_refusals(monkeypatch):
    case = draw_family(0, "rare-events", 0)
    for error, outcome in ((ZeroDivisionError("no"), "error"), (fuzz_guard.hx.InputError("no"), "not claimed")):
        monkeypatch.setattr(fuzz_guard.hx, "solve", lambda *args, error=error, **kwargs: (_ for _ in ()).throw(error))
        (row,) = fuzz_guard.examine("rare-events", 0, case, 1.0)
        assert row.outcome == outcome and "no" in row.answer
    assert fuzz_guard.summary([row])[-1]["not_claimed"] == 1


def test_a_case_depends_on_seed_family_and_number_alone():
    for family in FAMILIES:
        first, second = (draw_family(3, family, 2).parameters for _ in range(2))
        assert str(first) == str(second) and str(draw_family(4, family, 2).parameters) != str(first)


def test_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr("hierax.cli._keep_programs", lambda: None)
    out = tmp_path / "rows.json"
    run = CliRunner().invoke(app, ["bench", "fuzz", "--families", "saddles", "--only", "2", "--json", str(out)])
    assert run.exit_code == 0, run.output
    written = json.loads(out.read_text())
    assert written["summary"][-1]["cases"] == 1 and written["rows"][0]["outcome"] == "true"
    run = CliRunner().invoke(app, ["bench", "fuzz", "--families", "saddles,sadles"])
    assert run.exit_code != 0
    said = " ".join(str(run.output).split()) + str(run.exception)
    assert "sadles" in said and all(name in said for name in ("claims", *FAMILIES))
