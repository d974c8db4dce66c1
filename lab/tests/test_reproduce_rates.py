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
from typer.testing import CliRunner

from hierax import SALM
from hierax.cli import app
from hierax.extend import Rows
from hierax_lab.reproduce import rates_exponents, rates_floors, rates_inner, rates_outer, rates_vr
from hierax_lab.reproduce import rates_run as rates
from hierax_lab.reproduce.rates_claims import exponents
from hierax_lab.reproduce.rates_fit import fit, interval, stable
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


RECORDED = Path(__file__).parents[1] / "results" / "rates.json"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict]:
    """The measurements of the last full run, in place of minutes of runs."""
    recorded = json.loads(RECORDED.read_text("utf-8"))
    content = {name: recorded[name] for name in rates.PARTS}
    monkeypatch.setattr(rates, "PARTS", {name: lambda sizes, part=part: part for name, part in content.items()})
    return content


def failing(measured: dict[str, dict]) -> None:
    """Measurements of SALVF-VR on which its exponent fails: those at the low curvature, where S grows with K."""
    measured["exponents"]["SALVF-VR"]["fixed c"] = measured["exponents"]["SALVF-VR"]["low curvature"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_exit_code_says_whether_a_claim_fails(
    fails: bool, measured: dict[str, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates.rates_figures, "draw", lambda *args: None)
    if fails:
        failing(measured)
    answer = CliRunner().invoke(app, ["reproduce", "rates", "--out", str(tmp_path)])
    assert answer.exit_code == fails, answer.output
    quick = CliRunner().invoke(app, ["reproduce", "rates", "--quick", "--out", str(tmp_path)])
    assert quick.exit_code == 0, quick.output


def test_run_writes_numbers_and_figures_and_says_what_is_seen(measured: dict[str, dict], tmp_path: Path) -> None:
    content = rates.run(tmp_path)
    stored = json.loads((tmp_path / "metrics.json").read_text())
    assert len(stored["targets"]) == len(content["targets"]) and all(target["met"] for target in stored["targets"])
    seen = {one["claim"]: one["seen"] for one in stored["statements"]}
    assert seen["variance reduction as printed never helps in Theorem 3.2's regime"]
    assert not seen["the rate carries a factor log s"]
    assert not seen["the printed schedule is stable in long runs (VR, printed)"]
    assert seen["VR with beta = min(1, 10 c1 alpha) is stable in long runs"]
    figures = {path.stem for path in (tmp_path / "figures").iterdir()}
    names = {
        "inner",
        "inner_variants",
        "floors",
        "without_noise",
        "variance_reduction",
        "stability",
        "penalties",
        "exponents",
    }
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
    failing(measured)
    missed = [target["name"] for target in rates.run(tmp_path)["targets"] if not target["met"]]
    assert len(missed) >= 4 and all(name.startswith("SALVF-VR: ") for name in missed)


def test_the_page_has_the_exponents_of_the_last_run() -> None:
    recorded = json.loads(RECORDED.read_text("utf-8"))
    page = (Path(__file__).parents[2] / "docs" / "benchmarks" / "rates.md").read_text("utf-8")
    for row in exponents(recorded["inner"], recorded["exponents"]):
        assert f"| {' | '.join(rates.exponent_cells(row))} |" in page
    for name in ("SALVF", "SALVF-VR"):
        values = recorded["exponents"][name]["regime"]["mean"]
        assert f"| S, {name} | {' | '.join(f'{value:.3g}' for value in values)} |" in page
    ratios = recorded["exponents"]["VR over SALVF in the regime"]
    assert f"| ratio | {' | '.join(f'{value:.2f}' for value in ratios)} |" in page
    for law, name in {"floor of S against r": "r", "against q": "q", "against c1": "c1"}.items():
        found = [recorded["floors"][case][name] for case in ("toy", "synthetic")]
        cells = " | ".join(f"{one['slope']:.2f} +- {one['error']:.2f}" for one in found)
        assert re.search(rf"\| {law} \| -?\d \| {re.escape(cells)} \|", page)


def test_an_exponent_is_identified_where_the_last_decade_has_one_slope() -> None:
    rng = np.random.default_rng(2)
    at = np.geomspace(1.0, 1000.0, 13)
    spread = rng.uniform(0.99, 1.01, (50, 13))
    straight, bent = fit(at, spread / at), fit(at, spread * (1 / at + 1e-3))
    assert stable(straight) and not stable(bent)
    low, high = interval(straight)
    assert low < -1 < high and high - low == pytest.approx(2 * 1.96 * straight["error"])
    assert straight["halves"] is not None and bent["halves"] is not None
    np.testing.assert_allclose(straight["halves"][:2], [-1, -1], atol=0.02)
    assert bent["halves"][0] < -0.8 and bent["halves"][1] > -0.7
    against_eps = fit(1 / at, spread / at)["halves"]  # what falls with eps ends at the smallest eps
    assert against_eps is not None
    np.testing.assert_allclose(against_eps[:2], -np.array(straight["halves"][:2]), rtol=1e-9)
    assert fit(at[::6], spread[:, ::6] / at[::6])["halves"] is None


def test_the_hessian_of_the_level_is_that_of_psi() -> None:
    """By differences, which are exact for a quadratic; E = min over w of G + A, 1/gamma' = 2; then (w, lam) held."""
    c1, c2, curvature = 2.0, 3.0, 0.7

    def inner(x: float, z: float) -> tuple[float, float]:
        w = (4 * x - z) / 3  # of (w - 2x)^2/2 + z (w - x) + (w - x)^2
        return w, z + w - x

    def psi(u: np.ndarray, held: bool) -> float:
        x, y, z = u
        w, lam = inner(at[0], at[2]) if held else inner(x, z)
        ell = (w - 2 * x) ** 2 / 2 + lam * (w - x) + (w - x) ** 2 / 2 - (lam - z) ** 2 / 2
        upper = curvature / 2 * (x - 1) ** 2 + (y - 5) ** 2
        return upper + c1 * ((y - 2 * x) ** 2 / 2 - ell) + c2 / 2 * (y - x) ** 2

    at, unit = np.array([1.0, 2.0, 0.5]), np.eye(3)
    for held in (False, True):
        base = psi(at, held)
        alone = np.array([psi(at + one, held) for one in unit])
        both = np.array([[psi(at + one + other, held) for one in unit] for other in unit])
        found = both - alone[:, None] - alone + base
        np.testing.assert_allclose(rates_exponents.hessian(c1, c2, curvature, held), found, atol=1e-9)


def test_printed_runs_come_to_rest_where_psi_does() -> None:
    """Without noise and with long inner loops; both algorithms, at the curvature where both are stable."""
    case = rates_exponents.level_case(rates_exponents.CURVATURE)
    smooth = float(np.linalg.norm(rates_exponents.hessian(1.0, 1.0, rates_exponents.CURVATURE), 2))
    method = rates_exponents.printed(case, smooth, 1.0, 1.0, False, 1, 1, 200)
    assert isinstance(method.inner, SALM)
    assert (method.penalty, method.inner.rule, method.inner.warm, method.follow) == ("quadratic", "paper", False, False)
    points = rates_outer.follow(case, method, rates_outer.Noise(), 500, seeds=1)
    values = rates_outer.squared_stationarity(case, method, points)
    assert values[0, 0] > 1 and values[0, -1] < 1e-3


def test_the_envelopes_error_has_a_size_only_where_its_sign_is_known() -> None:
    rng = np.random.default_rng(3)
    s = 100.0 * np.arange(1, 101)
    for mean, known in ((1.0, True), (-1.0, True), (0.0, False)):
        gap = (mean + 0.5 * rng.normal(size=(400, 100))) / s
        found = rates_inner.envelope_error(rates_inner.Errors(s, gap, gap, gap))
        assert (found is not None) is known
        assert found is None or abs(found["slope"] + 1) < 3 * found["error"]
