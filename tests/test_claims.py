"""What a run says of itself is true: cycles, values that are not finite, x that does not move, certificates."""

import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TOY

import hierax as hx

BASE = hx.Problem(
    upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
    lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
    constraints=lambda x, y: y - x,
)


def steep(sigma=None):
    """F = 50 x^2 + (y-1)^2 over X = [-1, 1]: an x-step of 1 jumps between -1 and 1 for ever."""
    noise = None if sigma is None else hx.Sampler(lambda key, n: sigma * jax.random.normal(key, (n,)))
    return hx.Problem(
        upper=lambda x, y, zeta: 50.0 * x**2 + (y - 1.0) ** 2 + (0.0 if sigma is None else jnp.mean(zeta) * x),
        lower=lambda x, y, xi: (y - 1.0) ** 2,
        x_set=hx.Box(-1.0, 1.0),
        y_set=hx.Box(-2.0, 2.0),
        zeta=noise,
    )


# -- stationarity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [None, 0.1], ids=["exact", "sampled"])
@pytest.mark.parametrize("output", ["last", "best"])
def test_a_cycle_of_two_points_is_not_stationary(sigma, output):
    """Finding S2: the mean of the gradient mapping is zero, and x = 1 is the worst point of X."""
    method = hx.SALVF(steps=hx.Steps(x=1.0))
    sol = hx.solve(steep(sigma), 0.9, 0.5, method, max_steps=400, tol=1e-3, record_every=20, output=output)
    assert sol.status.name == "max_steps"
    assert sol.history["stationarity"][-1] > 1.0
    assert "jump to and fro in a cycle" in sol.status.message
    assert "Shorten the steps" in sol.status.message


@pytest.mark.parametrize(
    "method", [hx.GAM(eta=1.0), hx.BLOCC(eta=1.0, lower=hx.Exact(), penalised=hx.Exact())], ids=["GAM", "BLOCC"]
)
def test_a_cycle_of_another_method_is_not_stationary(method):
    sol = hx.solve(steep(), 0.9, 0.5, method, max_steps=60, tol=1e-3, record_every=20)
    assert sol.status.name == "max_steps"
    assert "cycle" in sol.status.message


def test_noise_around_the_solution_is_no_cycle():
    """Short steps in noise: the residual is averaged as before, and no cycle is told of."""
    sol = hx.solve(steep(1.0), 0.0, 1.0, hx.SALVF(steps=hx.Steps(x=1e-4)), max_steps=4000, record_every=1000)
    assert sol.history["stationarity"][-1] < 0.15  # one sample has a standard deviation of 1
    assert "cycle" not in sol.status.message


# -- values that are not finite ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["last", "best"])
def test_the_returned_point_is_one_where_every_function_is_finite(output):
    """Finding S12: x = 1.011, where sqrt(1 - x) is NaN, was returned as the last finite point."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: (x - 2.0) ** 2 - 0.001 * jnp.sqrt(1.0 - x), lower=lambda x, y, xi: (y - 2.0 * x) ** 2
    )
    sol = hx.solve(problem, 0.5, 0.5, hx.SALVF(), record_every=1, output=output, throw=False)
    assert sol.status.name == "nonfinite"
    assert sol.x <= 1.0
    assert np.isfinite(sol.value)


def test_a_run_that_ends_on_its_last_step_does_not_return_nan():
    """The step that leaves the domain is undone also where it is the last."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: (x - 2.0) ** 2, lower=lambda x, y, xi: (y - 2.0 * x) ** 2 - 0.001 * jnp.sqrt(1.0 - x)
    )
    whole = hx.solve(problem, 0.5, 0.5, hx.SALVF(), throw=False)
    assert whole.status.name == "nonfinite"
    again = hx.solve(problem, 0.5, 0.5, hx.SALVF(), max_steps=whole.status.step + 1, throw=False)
    assert np.isfinite(float(problem.lower(again.x, again.y, None)))


# -- x that does not move ----------------------------------------------------------------------------------------------


def test_a_run_whose_x_has_hardly_moved_says_so_with_the_cure():
    sol = hx.solve(BASE, 0.5, 0.5, hx.SALVF(steps=hx.Steps(x=1e-7)), max_steps=200)
    assert sol.status.name == "max_steps"
    assert "direction is not zero" in sol.status.message
    assert "hx.Steps(x=" in sol.status.message


def test_an_x_that_moves_or_need_not_move_is_not_told_of():
    assert "direction" not in hx.solve(BASE, 0.5, 0.5, hx.SALVF(), max_steps=2000).status.message
    there = hx.solve(BASE, 1 / 1.1, 1 / 1.1, hx.GAM(), max_steps=10)
    assert "direction" not in there.status.message
    noisy = hx.solve(TOY.problem, 0.986, 0.986, hx.SALVF(steps=hx.Steps(x=1e-6)), max_steps=200, record_every=100)
    assert "direction" not in noisy.status.message


# -- what the certificate is asked for ---------------------------------------------------------------------------------


def test_converged_means_that_the_certificate_agrees_at_the_same_tolerance():
    sol = hx.solve(BASE, 0.5, 0.5, hx.GAM(), tol=1e-4)
    assert sol.status.name == "converged"
    assert sol.status.ok
    assert "certificate" in sol.__dict__  # made by the run, and not made again
    assert sol.certificate.ok(1e-4)


def test_small_residuals_of_a_biased_reformulation_are_not_converged():
    easy = hx.Problem(upper=lambda x, y, zeta: (x - 1.0) ** 2 + y**2, lower=lambda x, y, xi: (y - x) ** 2)
    sol = hx.solve(easy, 0.0, 0.0, hx.SALVF(), tol=1e-2, max_steps=5000, record_every=50)
    assert sol.status.name == "not_certified"
    assert not sol.status.ok
    assert not sol.status.failed
    assert sol.certificate.reasons(1e-2)[0] in sol.status.message


def test_what_cannot_be_judged_is_unproved():
    problem = hx.Problem(
        upper=lambda x, y, zeta: (x - 1.0) ** 2 + (y - 1.0) ** 2 + jnp.mean(zeta),
        lower=lambda x, y, xi: (y - 1.0) ** 2,
        zeta=hx.Stream([np.zeros(4)]),
    )
    sol = hx.solve(problem, 0.5, 0.5, hx.SALVF(), tol=1e-2, record_every=50)
    assert sol.status.name == "unproved"
    assert not sol.status.ok
    assert not sol.status.failed
    assert "Stream" in sol.status.message


def test_a_large_problem_is_left_unproved():
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.mean((y - 1.0) ** 2) + 0.1 * x**2,
        lower=lambda x, y, xi: jnp.sum((y - x) ** 2),
    )
    sol = hx.solve(problem, 0.5, np.full(2001, 0.5), hx.SALVF(), tol=1e-2, record_every=50, max_steps=5000)
    assert sol.status.name == "unproved"
    assert sol.known_certificate is None
    assert "2,001 entries" in sol.status.message


def test_many_starts_are_certified_when_asked():
    sols = hx.solve_many(BASE, [0.5, 0.6], [0.5, 0.6], hx.GAM(), tol=1e-4)
    assert [status.name for status in sols.status] == ["unproved", "unproved"]
    assert "sols[i].certificate tells" in sols.status[0].message
    assert sols[0].certificate.ok(1e-4)


def test_only_two_names_claim_to_have_solved_the_problem():
    Kind = typing.get_type_hints(hx.Status)["kind"]
    statuses = {kind: hx.Status(kind, "", 0) for kind in Kind}
    assert {status.name for status in statuses.values() if status.ok} == {"converged", "best_of_branches"}
    assert not any(statuses[kind].failed for kind in (Kind.INTERRUPTED, Kind.UNPROVED, Kind.NOT_CERTIFIED))


# -- a lower level that has no solution --------------------------------------------------------------------------------


@pytest.mark.parametrize("lower", [hx.MaxMin(), hx.Exact()], ids=["MaxMin", "Exact"])
@pytest.mark.parametrize("eta", [None, 0.2])
def test_an_x_without_a_feasible_y_is_not_called_solved(lower, eta):
    """Finding S9: BLOCC's infeasible y was said to be 0.0001 from the lower level's solution."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: (x + 2.0) ** 2 + y**2,  # draws x to where 1 <= y <= x is impossible
        lower=lambda x, y, xi: y**2,
        constraints=lambda x, y: jnp.stack([1.0 - y, y - x]),
        x_set=hx.Box(-3.0, 3.0),
    )
    method = hx.BLOCC(eta=eta, lower=lower, penalised=lower)
    sol = hx.solve(problem, 2.0, 1.5, method, max_steps=200, record_every=20, throw=False)
    assert not sol.status.ok
    assert "from the lower level's solution" not in sol.status.message
    if sol.status.name == "infeasible":
        assert "the run has come to where no y in Y satisfies" in sol.status.message
    elif sol.history["violation"][-1] > 1e-3:
        assert "which is not the lower level's solution: it is not feasible" in sol.status.message
    if sol.x < 1.0 - 1e-3:
        assert not sol.certificate.ok()
