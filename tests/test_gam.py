"""GAM: known minimisers, kinks, solvers that fail, and problems it refuses."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import EXACT, TOY

import hierax as hx
from hierax import GAM, AbstractLowerSolver, Exact
from hierax.extend import INACCURATE, INFEASIBLE, SOLVED, LowerSolution, Rows
from hierax.problems.toy import local_minimisers
from hierax_lab.problems import kinked, lvhba_toy, random_qp, synthetic

STARTS = np.linspace(0.1, 2.95, 8)


class ToySolution(AbstractLowerSolver):
    """The toy's y*(x) = x, lam*(x) = 2x; between `bad` it answers what `status` says, with y off by 0.036."""

    bad: tuple[float, float] = eqx.field(static=True, default=(9.0, 9.0))
    status: int = eqx.field(static=True, default=SOLVED)

    def solve(self, problem: hx.Problem, x: Any, y: Any, xi: Any = None, multipliers: Any = None) -> LowerSolution:
        lost = (x > self.bad[0]) & (x < self.bad[1])
        wrong = lost.astype(x.dtype)
        h = jnp.ones_like(problem.constraints(x, y))
        return LowerSolution(
            y=x + 0.036 * wrong,
            multipliers=Rows(2 * x * h, None),
            faces=jax.tree.map(jnp.zeros_like, problem.y_set.faces(y)),
            value=x**2,
            residual=1e-12 + 0.01 * wrong,
            status=jnp.where(lost, self.status, SOLVED),
            iterations=jnp.ones((), int),
        )


class KinkedSolution(AbstractLowerSolver):
    """y*(x) = min(x, 1), lam*(x) = 2 [x - 1]_+: compiles faster than a solver."""

    def solve(self, problem: hx.Problem, x: Any, y: Any, xi: Any = None, multipliers: Any = None) -> LowerSolution:
        zero = jnp.zeros(())
        rows, faces = Rows(2 * jnp.maximum(x - 1, 0.0), None), problem.y_set.faces(y)
        return LowerSolution(jnp.minimum(x, 1.0), rows, faces, zero, zero, jnp.zeros((), int), jnp.ones((), int))


def distances(x: Any) -> np.ndarray:
    """To the nearest true local minimiser of the toy."""
    return np.abs(np.asarray(x)[:, None] - local_minimisers()).min(axis=1)


@pytest.fixture(scope="module")
def toy_runs() -> hx.Solution:
    return hx.solve_many(EXACT.problem, STARTS, STARTS, GAM(), max_steps=40)


def test_every_start_of_the_toy_ends_at_a_local_minimiser(toy_runs: hx.Solution) -> None:
    assert distances(toy_runs.x).max() < 1e-7
    nearest = np.abs(np.asarray(toy_runs.x)[:, None] - local_minimisers()).argmin(axis=1)
    assert sorted(set(nearest)) == [0, 1, 2, 3]  # in particular 2.99077, not the corner x = 3
    np.testing.assert_allclose(toy_runs.y, toy_runs.x, atol=1e-7)
    np.testing.assert_allclose(toy_runs.multipliers.inequalities, 2 * toy_runs.x, atol=1e-6)
    assert toy_runs.history["stationarity"][-1].max() < 1e-7


def test_a_capped_first_step_stays_in_the_basin(toy_runs: hx.Solution) -> None:
    np.testing.assert_allclose(toy_runs.x[0], 0.14889, atol=1e-4)  # the start 0.1


def test_a_step_is_one_lower_solve(toy_runs: hx.Solution) -> None:
    assert toy_runs.counts.lower_solves == 40 + 1  # the start; the check for a singular system uses the same solution
    assert toy_runs.counts.zeta == toy_runs.counts.xi == 0


@pytest.mark.slow  # known solutions: test_nonlinear_constraints
@pytest.mark.parametrize("seed", [0, 1, 2, 7])
def test_random_quadratic_problems(seed: int) -> None:
    """Against the planted solution (one entry of x on its bound)."""
    case = random_qp(seed)
    found = hx.solve(case.problem, case.x0, case.y0, GAM(), max_steps=60)
    (known,) = case.solutions
    np.testing.assert_allclose(found.x, known.x, atol=1e-6)
    np.testing.assert_allclose(found.y, known.y, atol=1e-6)
    np.testing.assert_allclose(found.multipliers.inequalities, known.multipliers, atol=1e-6)


def test_nonlinear_constraints() -> None:
    case = synthetic(0.0)
    found = hx.solve(case.problem, case.x0, case.y0, GAM(), max_steps=60, tol=1e-6, record_every=1)
    (known,) = case.solutions
    assert found.status.name == "converged"
    np.testing.assert_allclose(found.x, known.x, atol=1e-6)
    np.testing.assert_allclose(found.y, known.y, atol=1e-6)


def test_a_minimiser_at_a_kink() -> None:
    """y = min(x, 1): no gradient vanishes at the solution, but the hull's least-norm point does."""
    case = kinked()
    found = hx.solve(case.problem, case.x0, case.y0, GAM(lower=KinkedSolution()), max_steps=80, record_every=1)
    np.testing.assert_allclose(found.x, 1.0, atol=1e-5)
    assert found.history["stationarity"][-1] < 1e-8
    assert found.state.run.state.memory < 1e-6  # it was made finer at every stall


def test_inaccurate_lower_solves_shorten_the_step() -> None:
    """A stretch between start and minimiser where the solver fails: its points are never taken."""
    method = GAM(lower=ToySolution(bad=(1.05, 1.15), status=INACCURATE))
    found = hx.solve(EXACT.problem, 1.3, 1.3, method, max_steps=60, record_every=1)
    assert found.x == found.y
    assert not 1.05 < found.x < 1.15
    assert float(found.history["inner_residual"].max()) < 1e-6


def test_a_lower_level_that_becomes_infeasible_is_reported() -> None:
    """Left of 1.1 there is no lower solution, and the descent leads there."""
    method = GAM(lower=ToySolution(bad=(-1.0, 1.1), status=INFEASIBLE))
    found = hx.solve(EXACT.problem, 1.3, 1.3, method, max_steps=300, throw=False)
    assert found.status.name == "infeasible"
    assert found.x == pytest.approx(1.1, abs=1e-6)
    with pytest.raises(hx.RunFailed, match="no y in Y"):
        hx.solve(EXACT.problem, 0.9, 0.9, method, max_steps=300)


@pytest.mark.slow  # sampled upper levels: tests/test_methods.py
@pytest.mark.parametrize("eta", [None, optax.adam(0.01)])
def test_sampled_upper_level(eta: Any) -> None:
    method = GAM(lower=ToySolution(), eta=eta)
    found = hx.solve(TOY.problem, 1.3, 1.3, method, max_steps=1000, output="tail")
    assert found.x == pytest.approx(local_minimisers()[1], abs=0.01)
    assert found.counts.zeta == 1000
    assert found.counts.lower_solves == 1000 + 2


def test_a_state_of_another_kind_of_step_is_refused() -> None:
    first = hx.solve(EXACT.problem, 1.3, 1.3, GAM(lower=ToySolution()), max_steps=3)
    with pytest.raises(hx.InputError, match="Armijo's, which does not fit a number"):
        hx.solve(EXACT.problem, 1.3, 1.3, GAM(lower=ToySolution(), eta=0.1), max_steps=3, state=first.state)
    both = hx.solve(EXACT.problem, 1.3, 1.3, max_steps=3, state=first.state)
    assert both.x == hx.solve(EXACT.problem, 1.3, 1.3, GAM(lower=ToySolution()), max_steps=6).x


def test_lower_levels_without_a_unique_solution_are_refused() -> None:
    case = lvhba_toy(3)
    with pytest.raises(hx.InputError, match="flat along the active constraints") as refusal:
        hx.solve(case.problem, case.x0, case.y0, GAM(), max_steps=3)
    assert str(refusal.value) == (
        "GAM: the KKT system of the lower level is singular at the start because the lower objective is flat along the "
        "active constraints: y*(x) is not unique and has no derivative. Use hx.SALVF(), hx.LVHBA() or hx.BiCGAFFA(), "
        "or add a small multiple of the squared norm of y to the lower objective."
    )


def test_dependent_constraints_at_the_start_are_refused(toy_runs: hx.Solution) -> None:
    """At x = 3 both y <= x and y <= 3 hold y."""
    starts = np.append(STARTS[:-1], 3.0)
    with pytest.raises(hx.InputError, match="LICQ fails") as refusal:
        hx.solve_many(EXACT.problem, starts, starts, GAM(), max_steps=3)
    assert str(refusal.value) == (
        "GAM: the KKT system of the lower level is singular at the start because the gradients of its active "
        "constraints (active bounds of Y included) are linearly dependent: LICQ fails, and multipliers are not unique. "
        "Start at another x, drop redundant constraints, or use hx.SALVF()."
    )


def test_problems_out_of_reach_are_refused() -> None:
    large = hx.Problem(lambda x, y, zeta: x**2 + y[0], lambda x, y, xi: jnp.sum((y - x) ** 2))
    with pytest.raises(hx.InputError, match="larger than 2000 x 2000"):
        hx.solve(large, 1.0, jnp.zeros(2001), GAM(), max_steps=3)
    above = hx.Problem(large.upper, large.lower, upper_constraints=lambda x, y: y[0] - 1)
    with pytest.raises(hx.InputError, match="GAM: the published method has no constraints at the upper level"):
        hx.solve(above, 1.0, jnp.zeros(2), GAM(), max_steps=3)


@pytest.mark.parametrize(
    "settings", [{"lower": hx.SALM()}, {"eta": -1.0}, {"tol_active": 0.0}, {"candidates": 0}, {"batch_zeta": 0}]
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(hx.InputError, match=next(iter(settings))):
        GAM(**settings)


def test_the_solver_is_accurate_enough_for_armijos_rule() -> None:
    assert GAM().lower.tol == Exact(tol=1e-10).tol
