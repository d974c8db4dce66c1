"""The tools behind `hierax reproduce rates`, and a tiny run of it from end to end."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hierax import SALM
from hierax.problem import Rows
from hierax.reproduce import rates, rates_floors, rates_inner, rates_outer, rates_vr
from hierax.reproduce.rates_fit import fit
from hierax.reproduce.rates_sizes import Sizes, choose


def test_fit_recovers_slope_and_its_error() -> None:
    rng = np.random.default_rng(0)
    at = np.geomspace(1.0, 100.0, 6)
    found = fit(at, 3.0 / at * rng.gamma(4.0, 0.25, (400, 6)))
    assert abs(found.slope + 1.0) < 3 * found.error
    assert abs(found.factor - 3.0) < 0.2
    # Var(slope) = Var(log mean) / sum (log at - mean)^2; a gamma(4) mean of 400 has relative variance 1/1600.
    spread = np.sum((np.log(at) - np.log(at).mean()) ** 2)
    np.testing.assert_allclose(found.error, np.sqrt(1 / 1600 / spread), rtol=0.25)


@pytest.mark.parametrize("solver", [SALM(warm=False), SALM(warm=False, dual_free=True), SALM(rule="paper")])
def test_tracked_errors_are_those_of_the_librarys_solver(solver: SALM) -> None:
    target = rates_inner.qp_target(5, 2)
    found = rates_inner.errors(target, solver, 200, seeds=2)
    ready = dataclasses.replace(rates_inner.with_steps(target, solver, 1.0), steps=200)
    key = jax.random.split(jax.random.key(round(1000 * float(target.x))), 2)[1]
    plan = jnp.concatenate([target.problem.xi.plan(key, block, 100, 1) for block in range(2)])
    one, z = jnp.ones(()), Rows(target.lam, None)
    end = jax.jit(ready.solve, static_argnums=0)(target.problem, target.x, z, target.start, z, plan, one, one)
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

    z, gamma = Rows(jnp.asarray(1.0), None), jnp.ones(())
    point = case.envelope_point(case.problem, jnp.asarray(0.7), z, jnp.asarray(0.7), gamma, gamma)
    newton = rates_outer.newton_point(*(case.problem, jnp.asarray(0.7), z), jnp.asarray([0.7])[0], gamma, gamma)
    np.testing.assert_allclose(point, newton, atol=1e-12)


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
    assert choose(True, 7).toy_seeds == 7
    assert [seeds for *_, seeds in choose(False, 7).qps] == [7, 7, 7]


def test_a_tiny_run_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Sizes(
        quick=True,
        inner_steps=1500,
        inner_toy_seeds=8,
        qps=((5, 2, 4),),
        variant_seeds=4,
        synthetic=False,
        toy_seeds=8,
        floor_steps=500,
        batches=(1, 4),
        sigmas=(0.5,),
        repeats=2,
        run_steps=500,
        long_seeds=4,
        checkpoints=(1000, 3000, 3500),
        weights=(5.0,),
    )
    monkeypatch.setattr(rates, "choose", lambda quick, seeds: tiny)
    content = rates.run(tmp_path, quick=True)
    stored = json.loads((tmp_path / "metrics.json").read_text())
    assert stored["targets"] and stored["statements"]
    assert stored["floors"]["ratios"]["toy"] == content["floors"]["ratios"]["toy"]
    assert 2.0 < content["floors"]["ratios"]["toy"]["S(a=1)/S(a=0.5)"] * 2 < 20.0
    figures = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"inner.png", "floors.png", "stability.png", "penalties.png", "variance_reduction.png"} <= figures
