"""Runs that fail or collapse are reported, not returned. One program serves all of them: only its numbers differ."""

import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx


def run(wall=np.inf, low=-np.inf, high=np.inf, steps=None, x0=0.5, y0=0.5, weight=1.0, **call):
    """F = weight ((x - 3)^2 + (y - 3)^2), G = (y - 2x)^2, y <= x + 10; NaN for x > wall; X = Y = [low, high]."""
    wall, weight = jnp.asarray(wall), jnp.asarray(weight)
    problem = hx.Problem(
        upper=lambda x, y, zeta: weight * (jnp.where(x > wall, jnp.nan, (x - 3.0) ** 2) + (y - 3.0) ** 2),
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        constraints=lambda x, y: y - x - 10.0,
        x_set=hx.Box(low, high),
        y_set=hx.Box(low, high),
    )
    x, y, z, eta = steps or (0.005, 0.005, 1.0, 0.1)
    method = hx.SALVF(
        c1=5.0, c2=10.0, gamma1=1.0, gamma2=1.0, steps=hx.Steps(x, y, z), inner=hx.SALM(eta=eta, eta_max=eta)
    )
    return hx.solve(problem, x0, y0, method, **{"max_steps": 2000, "record_every": 10, **call})


def test_the_problem_itself_is_solved():
    # y = 2x - small: minimise (x-3)^2 + (2x-3)^2 + O(1/c1): x = 9/5; tol is met, the bias of c1 = 5 exceeds it.
    sol = run(tol=1e-6)
    assert sol.status.name == "not_certified"
    np.testing.assert_allclose(sol.x, 1.8, atol=0.1)


def test_a_function_that_turns_nan():
    sol = run(wall=1.0, throw=False)
    assert sol.status.name == "nonfinite"
    assert not sol.status.ok
    assert sol.status.failed
    assert sol.status.message.startswith(f"nonfinite at step {sol.status.step}: a value is not finite")
    assert "the last point at which all are finite is returned" in sol.status.message
    # Up to there it is the run that meets no wall; its next point is beyond the wall.
    free = run(max_steps=sol.status.step)
    np.testing.assert_array_equal((sol.x, sol.y), (free.x, free.y))
    assert sol.x <= 1.0 < run(max_steps=sol.status.step + 1).x
    assert np.isfinite(sol.value)
    assert np.all(np.isfinite(sol.history["upper"]))


def test_a_failed_run_raises_with_its_solution():
    with pytest.raises(hx.RunFailed, match="nonfinite at step") as caught:
        run(wall=1.0)
    assert np.isfinite(caught.value.solution.x)
    assert caught.value.solution.status.name == "nonfinite"


@pytest.mark.parametrize(
    ("steps", "blamed"),
    [((0.005, 0.5, 1.0, 0.1), r"steps\.y=0\.5"), ((0.5, 0.005, 1.0, 0.1), r"steps\.x=0\.5")],
)
def test_steps_that_are_too_long_diverge_and_are_named(steps, blamed):
    sol = run(steps=steps, throw=False)
    assert sol.status.name == "diverged"
    assert np.isfinite(sol.x)
    assert abs(sol.x) < 1e12
    with pytest.raises(hx.RunFailed, match=rf"diverged at step \d+: the iterates run away.*{blamed} exceeds 2/L ~ "):
        run(steps=steps)


def test_a_lower_step_that_is_too_long_is_named():
    with pytest.raises(
        hx.RunFailed, match=r"first lower step eta/11=4\.55 exceeds 2/L ~ 0\.\d+ there; lower it or leave"
    ):
        run(steps=(0.005, 0.005, 1.0, 50.0))


def test_pinned_in_a_corner():
    sol = run(low=0.0, high=1.0, x0=0.9, y0=0.9)
    assert sol.status.name == "pinned"
    assert not sol.status.ok
    assert not sol.status.failed  # so it does not raise
    assert (sol.x, sol.y) == (1.0, 1.0)
    assert "held by the sets X and Y" in sol.status.message
    # A tolerance does not make it "converged".
    assert run(low=0.0, high=1.0, x0=0.9, y0=0.9, tol=1e-3).status.name == "pinned"


def test_a_direction_too_short_for_its_precision_is_not_held_by_the_sets():
    """Such a step does not change a digit of x and y: that was called pinned, also where there are no sets."""
    sol = run(weight=1e-20, y0=1.0)
    assert (sol.x, sol.y) == (0.5, 1.0)
    assert sol.status.name == "max_steps"


def test_a_start_outside_the_sets_is_projected_with_a_warning():
    with pytest.warns(hx.HieraxWarning, match=r"x0 lies outside Problem\(x_set\), by up to 0.5"):
        sol = run(low=0.0, high=2.0, x0=2.5)
    with pytest.warns(hx.HieraxWarning):
        first = run(low=0.0, high=2.0, x0=2.5, max_steps=1)
    np.testing.assert_array_equal(first.x, run(low=0.0, high=2.0, x0=2.0, max_steps=1).x)
    np.testing.assert_array_equal(sol.x, run(low=0.0, high=2.0, x0=2.0).x)


def test_not_finite_at_the_start():
    with pytest.raises(hx.InputError, match=r"upper is not finite at \(x0, y0\)\. Start from a point"):
        run(wall=0.0)
