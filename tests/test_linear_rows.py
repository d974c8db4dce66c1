"""SIGD and IG-AL: linear constraints only, the perturbation, and the augmented Lagrangian lower solver."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from cases import EXACT

import hierax as hx
from hierax.extend import INACCURATE, SOLVED
from hierax_lab.bench.medium_planted import planted_qp
from hierax_lab.problems import kinked, lvhba_toy


def line(**rest: Any) -> hx.Problem:
    return hx.Problem(lambda x, y, _: (y - 1.0) ** 2 + 0.1 * x**2, lambda x, y, _: (y - 2.0 * x) ** 2, **rest)


@pytest.mark.parametrize("name", ["SIGD", "IGAL"])
def test_rows_that_bend_are_refused(name: str) -> None:
    with pytest.raises(hx.InputError, match=f"{name}: a constraint of the lower level, or a face of Y, is not affine"):
        hx.solve(line(constraints=lambda x, y: y - x**2), 0.5, 0.1, getattr(hx, name)(), max_steps=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGD", "IGAL"])
def test_what_the_methods_assume_is_looked_at(name: str) -> None:
    case, method = lvhba_toy(3), getattr(hx, name)()
    with pytest.raises(hx.InputError, match=f"{name}: .*(not strongly convex in y|flat along the active)"):
        hx.solve(case.problem, case.x0, case.y0, method, max_steps=3)
    with pytest.raises(hx.InputError, match=f"{name}: .* LICQ fails"):
        hx.solve(line(constraints=lambda x, y: jnp.stack([y - x, 2 * y - 2 * x])), 0.5, 0.1, method, max_steps=3)


@pytest.mark.slow
def test_sigma_makes_complementarity_strict() -> None:
    """At x = 1 the row y <= 1 of y = min(x, 1) is weakly active; with q it is active or it is not."""
    case = kinked()
    wide = hx.SIGD(sigma=0.1)
    found = [hx.solve(case.problem, 1.0, 1.0, wide, max_steps=1, seed=seed).state.run.state.look for seed in range(4)]
    rows = [(float(look.y) - 1.0, float(look.multipliers.inequalities)) for look in found]
    assert all(max(-slack, force) > 1e-4 for slack, force in rows)
    assert any(force > 0 for _, force in rows)
    assert any(slack < -1e-4 for slack, _ in rows)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_augmented_lagrangian_method_against_exact(seed: int) -> None:
    """A planted quadratic program with 20 variables, 10 rows and y >= 0: y, multipliers of rows and of faces."""
    case = planted_qp(5, 20, 10, seed)
    x = np.linspace(-0.4, 0.5, 5)
    known = hx.Exact(tol=1e-10).solve(case.exact, x, case.y0)
    found = hx.ALM().solve(case.exact, x, case.y0)
    assert int(found.status) == SOLVED
    np.testing.assert_allclose(found.y, known.y, atol=1e-6)
    np.testing.assert_allclose(found.multipliers.inequalities, known.multipliers.inequalities, atol=1e-5)
    np.testing.assert_allclose(found.faces.inequalities[0], known.faces.inequalities[0], atol=1e-5)
    again = hx.ALM().solve(case.exact, x, found.y, None, found.multipliers)
    assert int(again.iterations) < int(found.iterations) / 5  # warm
    short = hx.ALM(max_steps=5).solve(case.exact, x, case.y0)
    assert int(short.status) == INACCURATE


def test_the_augmented_lagrangian_method_knows_equalities_and_units() -> None:
    """min (y0 - 2)^2 + (y1 - 3)^2 s.t. y0 + y1 = 1: y = (0, 1), multiplier 4; the row in units of 1/1000."""
    for unit in (1.0, 1e3):
        problem = hx.Problem(
            lambda x, y, _: x + y[0],
            lambda x, y, _: jnp.sum((y - jnp.array([2.0, 3.0])) ** 2),
            equalities=lambda x, y, unit=unit: unit * (y[0] + y[1] - x),
        )
        found = hx.ALM().solve(problem, 1.0, np.zeros(2))
        np.testing.assert_allclose(found.y, [0.0, 1.0], atol=1e-7)
        np.testing.assert_allclose(found.multipliers.equalities, 4.0 / unit, rtol=1e-6)


@pytest.mark.slow
def test_a_sampled_upper_level() -> None:
    """[S]SIGD, on the toy with noise in F: one lower solve per step."""
    noisy = hx.problems.toy(0.1).problem
    found = hx.solve(noisy, 1.3, 1.3, hx.SIGD(), max_steps=400, output="tail")
    assert float(found.x) == pytest.approx(0.98622, abs=0.01)
    assert found.counts.lower_solves == 400 + 2


@pytest.mark.parametrize(("name", "solves"), [("SIGD", 2), ("IGAL", 1)])
def test_a_step_of_armijos_rule_costs_so_many_lower_solves(name: str, solves: int) -> None:
    """SIGD needs y_q of the next q too."""
    assert getattr(hx, name)().costs(EXACT.problem).step.lower_solves == solves


@pytest.mark.parametrize("method", [hx.SIGD, hx.IGAL, hx.ALM])
@pytest.mark.parametrize("settings", [{"sigma": 0.0}, {"lower": hx.SALM()}, {"tol": 0.0}, {"max_steps": 0}])
def test_settings_that_make_no_sense_are_refused(method: Any, settings: dict[str, Any]) -> None:
    name = next(iter(settings))
    if name in set(method.__dataclass_fields__):
        with pytest.raises(hx.InputError, match=name):
            method(**settings)
