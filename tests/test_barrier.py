"""Barrier: the central path in closed form, its interior, phase one, and what it refuses."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from cases import EXACT

import hierax as hx
from hierax_lab.problems import synthetic

LINE = hx.Problem(
    upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
    lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
    constraints=lambda x, y: y - x,
)


@pytest.mark.slow
@pytest.mark.parametrize("gap", [0.0, -1.0])
def test_no_interior_is_recognised(gap: float) -> None:
    """y <= x and y >= x meet in one point, y <= x and y >= x + 1 nowhere."""
    problem = hx.Problem(LINE.upper, LINE.lower, constraints=lambda x, y: jnp.stack([y - x, x - gap - y]))
    with pytest.raises(hx.InputError) as refusal:
        hx.solve(problem, 0.3, 9.0, hx.Barrier(), max_steps=3)
    assert str(refusal.value) == (
        "Barrier: no point was found at which every constraint of the lower level, and every bound of Y, holds "
        "strictly at the start x0. The barrier needs one (Slater's condition). Start at another x, or use "
        "hx.SALVF() or hx.GAM()."
    )


@pytest.mark.slow
def test_y_never_leaves_the_interior_and_t_falls() -> None:
    seen: list[tuple[float, float]] = []
    found = hx.solve(
        EXACT.problem,
        2.6,
        2.6,
        hx.Barrier(),
        max_steps=40,
        record_every=1,
        callback=lambda info: seen.append((float(info.x), float(info.y))),
    )
    x, y = np.array(seen).T
    assert np.all(y < x)
    assert np.all((y > 0) & (y < 3))
    method = found.method
    assert float(found.multipliers.inequalities) == pytest.approx(2 * float(found.x), abs=1e-4)
    assert float(found.state.run.state.look.distance) < 1e-6
    assert float(method.t_last) < 1e-6 * float(method.t)


@pytest.mark.slow
def test_nonlinear_coupled_constraints() -> None:
    """The setting of Jiang et al.: constraints that are nonlinear and depend on x."""
    case = synthetic(0.0)
    found = hx.solve(case.problem, case.x0, case.y0, hx.Barrier(), max_steps=60)
    (known,) = case.solutions
    np.testing.assert_allclose(found.x, known.x, atol=1e-3)
    np.testing.assert_allclose(found.y, known.y, atol=1e-3)


def test_equalities_are_refused() -> None:
    with pytest.raises(hx.InputError, match="the lower level has equality constraints"):
        hx.solve(hx.Problem(LINE.upper, LINE.lower, equalities=lambda x, y: y - x), 0.5, 0.5, hx.Barrier(), max_steps=3)
    simplex = hx.Problem(lambda x, y, _: jnp.sum(y) + x, lambda x, y, _: jnp.sum((y - x) ** 2), y_set=hx.Simplex())
    with pytest.raises(hx.InputError, match=r"Y \(a simplex, for example\) has equality constraints"):
        hx.solve(simplex, 0.5, jnp.full(3, 1 / 3), hx.Barrier(), max_steps=3)


@pytest.mark.parametrize("settings", [{"t": 0.0}, {"t_last": -1.0}, {"shrink": 1.0}, {"eta": -1.0}, {"batch_zeta": 0}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(hx.InputError, match=next(iter(settings))):
        hx.Barrier(**settings)
