"""Barrier: the central path in closed form, its interior, phase one, and what it refuses."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from cases import EXACT

import hierax as hx
from hierax._math.lower_level import INFEASIBLE, SOLVED
from hierax._methods.barrier import NO_INTERIOR
from hierax._methods.central import central_point
from hierax.problems import synthetic

LINE = hx.Problem(
    upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
    lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
    constraints=lambda x, y: y - x,
)


@pytest.mark.parametrize("t", [1.0, 1e-2, 1e-6])
@pytest.mark.parametrize("start", [-4.0, 1.4999, 1.5, 7.0])  # inside, nearly outside, on the boundary, outside
def test_the_central_point_in_closed_form(t: float, start: float) -> None:
    """2 (y - 2x) + t/(x - y) = 0: with s = x - y > 0, 2 s^2 + 2 x s - t = 0."""
    found = central_point(LINE, jnp.asarray(1.5), jnp.asarray(start), None, jnp.asarray(t), jnp.asarray(1.0))
    slack = t / (1.5 + np.sqrt(1.5**2 + 2 * t))  # no cancellation
    assert int(found.status) == SOLVED
    np.testing.assert_allclose(1.5 - found.y, slack, rtol=1e-7)
    np.testing.assert_allclose(found.multipliers.inequalities, t / slack, rtol=1e-7)


def test_faces_of_y_are_rows_of_the_barrier() -> None:
    """min -y on [0, 2] and y <= 5: 1/(2 - y) - 1/y + 1/(5 - y) = 1/t."""
    problem = hx.Problem(
        lambda x, y, _: y, lambda x, y, _: -y + 0 * x, constraints=lambda x, y: y - 5.0, y_set=hx.Box(0.0, 2.0)
    )
    found = central_point(problem, jnp.asarray(0.0), jnp.asarray(2.0), None, jnp.asarray(0.1), jnp.asarray(1.0))
    y = float(found.y)
    assert 0 < y < 2
    np.testing.assert_allclose(1 / (2 - y) - 1 / y + 1 / (5 - y), 10.0, rtol=1e-6)


@pytest.mark.slow
def test_no_interior_is_recognised() -> None:
    """y <= x and y >= x meet in one point, y <= x and y >= x + 1 nowhere; y <= x and y >= x - 1e-3 hardly."""
    for gap, status in ((0.0, INFEASIBLE), (-1.0, INFEASIBLE), (1e-3, SOLVED)):
        rows = lambda x, y, gap=gap: jnp.stack([y - x, x - gap - y])
        problem = hx.Problem(LINE.upper, LINE.lower, constraints=rows)
        found = central_point(problem, jnp.asarray(0.3), jnp.asarray(9.0), None, jnp.asarray(1e-3), jnp.asarray(1.0))
        assert int(found.status) == status
        if status == INFEASIBLE:
            with pytest.raises(hx.InputError, match="no point was found at which every constraint") as refusal:
                hx.solve(problem, 0.3, 9.0, hx.Barrier(), max_steps=3)
            assert str(refusal.value) == NO_INTERIOR


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
