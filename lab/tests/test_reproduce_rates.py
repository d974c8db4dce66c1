"""The tools behind `hierax reproduce rates`, and what it writes and says about given measurements."""

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from hierax import SALM
from hierax.extend import Rows
from hierax_lab.reproduce import rates_floors, rates_inner, rates_outer, rates_vr
from hierax_lab.reproduce import rates_run as rates
from hierax_lab.reproduce.rates_fit import fit
from hierax_lab.reproduce.rates_sizes import Sizes, choose


def test_fit_recovers_slope_and_its_error() -> None:
    rng = np.random.default_rng(0)
    at = np.geomspace(1.0, 100.0, 6)
    found = fit(at, 3.0 / at * rng.gamma(4.0, 0.25, (400, 6)))
    assert abs(found["slope"] + 1.0) < 3 * found["error"]
    assert abs(found["factor"] - 3.0) < 0.2
    # Var(slope) = Var(log mean) / sum (log at - mean)^2; a gamma(4) mean of 400 has relative variance 1/1600.
    spread = np.sum((np.log(at) - np.log(at).mean()) ** 2)
    np.testing.assert_allclose(found["error"], np.sqrt(1 / 1600 / spread), rtol=0.25)


@pytest.mark.parametrize("solver", [SALM(warm=False), SALM(warm=False, dual_free=True)])
def test_tracked_errors_are_those_of_the_librarys_solver(solver: SALM) -> None:
    target = rates_inner.qp_target(5, 2)
    found = rates_inner.errors(target, solver, 200, seeds=2)
    ready = dataclasses.replace(rates_inner.with_steps(target, solver, 1.0), steps=200)
    key = jax.random.split(jax.random.key(round(1000 * float(target.x))), 2)[1]
    plan = jnp.concatenate([target.problem.xi.plan(key, block, 100, 1) for block in range(2)])
    one, z = jnp.ones(()), Rows(target.lam, None)
    end = eqx.filter_jit(ready.solve)(target.problem, target.x, z, target.start, z, plan, one, one)
    assert found.w.shape == (2, 2)
    np.testing.assert_allclose(found.w[1, 1], np.sum((end.w - target.w) ** 2), rtol=1e-6)
    np.testing.assert_allclose(found.lam[1, 1], np.sum((end.lam.inequalities - target.lam) ** 2), rtol=1e-6)


def test_stationarity_vanishes_at_a_rest_point_and_newton_is_exact() -> None:
    case = rates_outer.toy_case()
    method = rates_outer.make_method(case, 5.0, 100.0, 1.0, rates_outer.exact_inner(case))
    points = rates_outer.follow(case, method, rates_outer.Noise(), 1200, seeds=4)
    assert points.x.shape == (4, 1200)
    values = rates_outer.squared_stationarity(case, method, points)
    assert values[:, 0].min() > 1e-3
    assert values[:, -1].max() < 1e-6


def test_newton_finds_the_envelopes_minimiser() -> None:
    case = rates_outer.synthetic_case()
    gamma, z = jnp.ones(()), Rows(case.lam, None)

    def largest(x: jax.Array, w: jax.Array) -> jax.Array:
        """The maximum over lam of ell(x, z, w, lam) with both gammas 1, by its definition; its maximiser is held."""
        h = case.problem.constraints(x, w)
        lam = jax.lax.stop_gradient(rates_outer.best_multiplier(case.problem, x, w, z, gamma, gamma).inequalities)
        term = jnp.maximum(lam + h, 0.0) ** 2 - lam**2 - (lam - case.lam) ** 2
        return case.problem.lower(x, w, None) + jnp.sum(term) / 2

    @jax.jit
    def there(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        w = rates_outer.newton_point(case.problem, x, z, case.y, gamma, gamma)
        return w, jax.grad(lambda v: largest(x, v))(w)

    # At z = lam* the envelope touches the value function.
    np.testing.assert_allclose(there(case.x)[0], case.y, atol=1e-10)
    assert np.abs(there(case.x + 0.3)[1]).max() < 1e-10


def test_noise_levels_scale_the_samples() -> None:
    case = rates_outer.toy_case()
    method = rates_outer.make_method(case, 5.0, 200.0, 0.5, SALM(steps=2, batch=1), penalty="quadratic")
    quiet, loud = (rates_outer.follow(case, method, rates_outer.Noise(xi=level), 1, 3) for level in (0.0, 1.0))
    twice = rates_outer.follow(case, method, rates_outer.Noise(xi=2.0), 1, 3)
    # One step is affine in its samples where no bound of [0, 3] is met.
    np.testing.assert_allclose(twice.y - quiet.y, 2 * (loud.y - quiet.y), atol=1e-12)
    assert np.abs(loud.y - quiet.y).max() > 0


def test_growth_is_judged_by_size_or_corners() -> None:
    steady: dict[str, Any] = {"k": [1, 2, 3], "S": [1.0, 1.0, 0.5], "corner": [0.0, 0.0, 0.0]}
    assert not rates_vr.grown(steady, 10.0, 1)
    assert rates_vr.grown(steady | {"S": [1.0, 50.0, 0.0]}, 10.0, 1)
    assert rates_vr.grown(steady | {"corner": [0.0, 0.0, 1.0]}, 10.0, 1)


def test_ratio_of_a_sweep() -> None:
    sweep = {"at": [1.0, 4.0, 16.0], "mean": [16.0, 4.0, 1.0]}
    assert rates_floors.ratio(sweep, 1, 16) == 16.0
    assert rates_floors.ratio(sweep, 1, 64) is None


def test_sizes() -> None:
    assert choose(False, None) == Sizes()
    quick = choose(True, 7)
    assert quick.toy_seeds == quick.synthetic_seeds == quick.inner.toy_seeds == quick.comparison.long_seeds == 7
    assert quick.quick and not quick.synthetic and quick.floors.batches == (1, 16)
    assert [seeds for *_, seeds in choose(False, 7).inner.qps] == [7, 7, 7]


def slope(value: float) -> dict[str, Any]:
    at = np.geomspace(100.0, 1000.0, 4)
    return fit(at, np.random.default_rng(1).uniform(0.9, 1.1, (8, 4)) * at**value)


def long_run(values: list[float], corner: float = 0.0) -> dict[str, Any]:
    corners = [0.0, 0.0, corner]
    grid = [1000, 3000, 30_000]
    return {"k": grid, "S": values, "corner": corners, "grid": grid, "S_on_grid": values, "corner_on_grid": corners}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict]:
    """Invented measurements in place of minutes of runs: they satisfy every target."""
    names = ("capped", "no cap (as printed)", "rho = 0.25/gamma2", "dual-free")
    inner = {
        "slopes": {"QP, n = 20": {"w": slope(-1.0), "lam": slope(-1.0)}},
        "log_factor": {"QP, n = 20": {"measured": 1.0, "error": 0.1, "log_s_would_give": 1.5}},
        "variants_on": "QP",
        "variants": {name: {"w": slope(-1.0), "lam": slope(-0.5 if "rho" in name else -1.0)} for name in names},
        "uncapped_over_capped_at_1000": 1e6,
    }
    sweeps = {"r": slope(-1.0), "q": slope(-1.0), "a": slope(1.0), "s": slope(-1.0), "c1": slope(2.0)}
    ratios = {"S(r=1)/S(r=16)": 16.0, "S(q=1)/S(q=16)": 16.0, "S(s=10)/S(s=100)": None, "S(s=30)/S(s=100)": 3.0}
    floors = {
        "toy": sweeps,
        "ratios": {"toy": ratios | {"S(c1=20)/S(c1=5)": None, "S(a=1)/S(a=0.5)": 2.0}},
        "random_output": {
            f"mean over {part}, r = {r}": 1.0 for part in ("all steps", "the last tenth") for r in (1, 4)
        },
        "without_noise": {
            "k": [1, 11, 21],
            "S": [1.0, 0.1, 1e-9],
            "S_end": 1e-9,
            "log_log_slope_of_the_last_four_fifths": -9.0,
        },
    }
    row = {"mean distance error": 1e-3, "mean |y - x| error": 1e-4, "c1": 5.0, "c2": 100.0}
    four = {"S ratio, equal samples": 5.0, "S ratio, equal gradients": 4.0}
    four |= {"mean distance, VR over SALVF": 1.0, "sd in the global basin, VR over SALVF": 1.1}
    outer = {
        "toy": {sigma: {name: {"mean": v, "error": 0.1} for name, v in four.items()} for sigma in ("0.1", "1.0")},
        "stability": {"VR, default": long_run([3.0, 2.0, 1.0]), "VR, printed": long_run([1.0, 1.0, 1e3])},
        "penalties": {
            "quadratic": [row | {"mean distance": 0.1, "mean |y - x|": 0.1}],
            "multiplier": [row | {"mean distance": 0.01, "mean |y - x|": 0.001}],
        },
    }
    content = {"inner": inner, "floors": floors, "outer": outer}
    parts = {name: lambda sizes, part=part: part for name, part in content.items()}
    monkeypatch.setattr(rates, "PARTS", parts)
    return content


def test_run_writes_numbers_and_figures_and_says_what_is_seen(measured: dict[str, dict], tmp_path: Path) -> None:
    content = rates.run(tmp_path)
    stored = json.loads((tmp_path / "metrics.json").read_text())
    assert len(stored["targets"]) == len(content["targets"]) and all(target["met"] for target in stored["targets"])
    seen = {one["claim"]: one["seen"] for one in stored["statements"]}
    assert not seen["the rate carries a factor log s"]
    assert not seen["the printed schedule is stable in long runs (VR, printed)"]
    assert seen["VR with beta = min(1, 10 c1 alpha) is stable in long runs"]
    figures = {path.stem for path in (tmp_path / "figures").iterdir()}
    names = {"inner", "inner_variants", "floors", "without_noise", "variance_reduction", "stability", "penalties"}
    assert figures == names


def test_a_quick_run_is_not_judged(measured: dict[str, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates.rates_figures, "draw", lambda *args: None)
    console = Console(width=200, record=True, file=io.StringIO())
    content = rates.run(tmp_path, quick=True, console=console)
    assert {target["met"] for target in content["targets"]} == {one["seen"] for one in content["statements"]} == {None}
    text = console.export_text()
    assert text.count("not judged: a quick run") == len(content["statements"]) > 5
    assert not re.search(r"\bmet\b|\bseen$|not seen", text, re.MULTILINE)


def test_run_says_what_is_missed(measured: dict[str, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates.rates_figures, "draw", lambda *args: None)
    measured["inner"]["slopes"]["QP, n = 20"]["w"]["slope"] = -0.5
    measured["outer"]["stability"]["VR, printed"] = long_run([1.0, 1.0, 0.5])
    missed = [target["name"] for target in rates.run(tmp_path)["targets"] if not target["met"]]
    assert missed == ["inner slope of w, QP, n = 20", "VR, printed: largest later S over S at 3e3"]
