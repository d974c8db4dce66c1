"""Lower levels without matrices: y*(x), gradients through it, the route of `Auto`, and what the certificate says."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize as optimize
from banded import matrix, planted

import hierax as hx
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.following import Follower
from hierax._engine.matrix_free import FreeFollower
from hierax._engine.programs import Programs
from hierax._engine.table import Table
from hierax._lower.krylov import KrylovSystem, OutOfTime, Sizes


def follower_of(problem, nx, shape):
    setting = Float64Problem.of(problem, np.zeros(nx), np.zeros(shape), 4096, 0)
    return FreeFollower(setting)


# -- the system --------------------------------------------------------------------------------------------------------


def system_of(hessian, jacobian, active):
    sizes = Sizes(np.linalg.norm(jacobian, axis=1), float(np.abs(np.diag(hessian)).max()), 1.0)
    product = lambda a, b: (hessian @ a + jacobian.T @ b, jacobian @ a)
    return KrylovSystem(product, active, sizes, len(hessian), lambda: False)


def test_the_system_is_that_of_a_dense_solver():
    """Bounds (one of them scaled), coupled rows and inactive ones, against numpy.linalg.solve."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(12, 12))
    hessian = root @ root.T + np.eye(12)
    jacobian = np.concatenate([-np.eye(12)[:4], 3.0 * np.eye(12)[7:8], rng.normal(size=(3, 12))])
    active = np.array([True, False, True, True, True, True, False, True])
    system = system_of(hessian, jacobian, active)
    assert list(np.flatnonzero(system.bounded)) == [0, 2, 3, 7]
    assert list(np.flatnonzero(system.coupled)) == [5, 7]
    push, move = rng.normal(size=12), rng.normal(size=8)
    rows = jacobian[active]
    whole = np.block([[hessian, rows.T], [rows, np.zeros((6, 6))]])
    wanted = np.linalg.solve(whole, np.concatenate([push, move[active]]))
    a, b = system.solve(push, move)
    np.testing.assert_allclose(a, wanted[:12], atol=1e-9)
    np.testing.assert_allclose(b[active], wanted[12:], atol=1e-8)
    assert not b[~active].any()
    assert system.independent(10, 1000)
    assert system.independent(1, 1000) is None


def test_a_flat_direction_that_is_pushed_has_no_answer():
    hessian = np.diag([1.0, 2.0, 0.0])
    system = system_of(hessian, np.zeros((0, 3)), np.zeros(0, bool))
    assert system.solve(np.array([1.0, 1.0, 1.0]), np.zeros(0)) is None
    a, _ = system.solve(np.array([1.0, 1.0, 0.0]), np.zeros(0))  # what is not pushed does not matter
    np.testing.assert_allclose(a, [1.0, 0.5, 0.0], atol=1e-12)


def test_rows_that_depend_on_each_other_are_told():
    jacobian = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0]])
    assert system_of(np.eye(3), jacobian, np.ones(2, bool)).independent(10, 100) is False
    assert system_of(np.eye(3), np.eye(3)[[0, 0]], np.ones(2, bool)).doubled


# -- y*(x) and gradients -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def banded():
    return planted(5000)


@pytest.fixture(scope="module")
def followed(banded):
    follower = follower_of(banded.problem, 5, 5000)
    first = follower.solve(np.zeros(5), np.zeros(5000), np.zeros(follower.layout.rows))
    return follower, first, follower.solve(banded.x, first.y, first.mu, first)


def test_planted_solution_is_found(banded, followed):
    _, first, found = followed
    assert first.solved
    assert found.solved
    assert found.residual <= 1e-8
    assert found.steps <= 6  # systems, not steps of the loop
    np.testing.assert_allclose(found.y, banded.y, atol=1e-8)


def test_the_first_answer_keeps_the_kkt_conditions(banded, followed):
    """By SciPy's sparse matrix, which the problem has never seen."""
    _, first, _ = followed
    parts = banded.parts
    own, faces = first.mu[:3], first.mu[3:]
    slope = matrix(5000) @ first.y + parts["linear"] + parts["own"].T @ own - faces
    assert np.abs(slope).max() <= 1e-6
    assert first.mu.min() >= -1e-9
    assert (parts["own"] @ first.y - parts["limits"]).max() <= 1e-7
    assert np.abs(faces * first.y).max() <= 1e-6


def test_hypergradient_of_the_planted_problem(banded, followed):
    """F's gradient at x* is zero; with F = g'y it is D'g."""
    follower, _, found = followed
    total = follower.total(banded.x, found)
    assert np.abs(total.slope).max() <= 1e-7
    assert abs(total.upper) <= 1e-7
    system = follower.system(banded.x, found)
    a, b = system.solve(banded.parts["push"], np.zeros(follower.layout.rows))
    pulled = follower.pulled(banded.x, found, np.zeros((1, 1)), np.concatenate([a, b])[None])[0]
    np.testing.assert_allclose(pulled, banded.jacobian.T @ banded.parts["push"], atol=1e-8)


def test_hypergradient_against_differences(banded, followed):
    follower, first, _ = followed
    x = np.array([0.1, -0.2, 0.05, 0.3, -0.1])
    here = follower.solve(x, first.y, first.mu, first)
    slope = follower.total(x, here).slope
    for entry in range(2):
        step = 1e-6 * np.eye(5)[entry]
        ends = [follower.solve(x + sign * step, here.y, here.mu, here) for sign in (1, -1)]
        values = [follower.upper(x + sign * step, end.y)[0][0] for sign, end in zip((1, -1), ends, strict=True)]
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(slope[entry], rel=1e-4, abs=1e-4)


def curved_problem():
    """A lower level that is not quadratic, with a coupled row, own bounds that depend on x, and an equality."""
    rng = np.random.default_rng(3)
    goal, push = jnp.asarray(rng.normal(size=30)), jnp.asarray(rng.normal(size=(30, 2)))
    return hx.Problem(
        upper=lambda x, y, zeta: jnp.sum(jnp.sin(y)) + x @ x,
        lower=lambda x, y, xi: jnp.sum(jnp.cosh(y - goal)) + (push @ x) @ y,
        constraints=lambda x, y: {"cap": y - 0.8 - 0.1 * x[0], "ball": jnp.sum(y**2) - 8.0 - x[1]},
        equalities=lambda x, y: jnp.sum(y[:5]) - x[0],
        y_set=hx.Box(-1.5, 1.5),
    )


def test_agreement_with_the_dense_follower():
    problem, x = curved_problem(), np.array([0.3, -0.2])
    setting = Float64Problem.of(problem, x, np.zeros(30), 4096, 0)
    free, programs = FreeFollower(setting), Programs(setting)
    dense = Follower(programs, programs.raw, Table(programs, programs.raw))
    none = np.zeros(free.layout.rows)
    ours = free.solve(x, np.zeros(30), none)
    theirs = dense.solve(x, ours.y, ours.mu)
    assert ours.solved
    np.testing.assert_allclose(ours.y, theirs.y, atol=1e-7)
    np.testing.assert_allclose(ours.mu, theirs.mu, atol=1e-6)
    np.testing.assert_array_equal(free.active(ours), theirs.system.active)
    np.testing.assert_allclose(free.total(x, ours).slope, dense.total(x, theirs).slope, atol=1e-6)
    again = free.solve(x + 0.01, ours.y, ours.mu, ours)
    np.testing.assert_allclose(again.y, dense.solve(x + 0.01, theirs.y, theirs.mu).y, atol=1e-7)


def test_the_time_is_looked_at_in_every_step(banded):
    follower = follower_of(banded.problem, 5, 5000)
    looks = []
    follower.stop = lambda: looks.append(0) or len(looks) > 2
    with pytest.raises(OutOfTime):
        follower.solve(np.zeros(5), np.zeros(5000), np.zeros(follower.layout.rows))


# -- the route ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # the search itself: test_planted_solution_is_found
def test_auto_solves_the_planted_problem_with_nothing_set(banded):
    sol = hx.solve(banded.problem, np.zeros(5), np.zeros(5000))
    assert sol.log[0].startswith("Route implicit")
    assert sol.status.name == "converged", sol.status.message
    np.testing.assert_allclose(sol.x, banded.x, atol=1e-5)
    assert abs(sol.value) <= 1e-6
    certificate = sol.certificate
    assert certificate.hypergradient_norm <= 1e-3
    assert certificate.around.complete
    off = hx.certify(banded.problem, banded.x + 0.02, sol.y)
    assert off.verdict() == "no"


def waterfilling(n, nx=4):
    """min 1/2 |y - q - B x|^2 over sum y <= c, y >= 0: y = [q + B x - t]_+ with the level t of a bisection."""
    rng = np.random.default_rng(1)
    base, along = rng.uniform(0.0, 1.0, n), rng.normal(size=(n, nx))
    limit, goal = 0.2 * n, rng.uniform(0.0, 0.5, n)
    base_, along_, goal_ = map(jnp.asarray, (base, along, goal))
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((y - goal_) ** 2) / n + 0.1 * jnp.sum((x - 0.3) ** 2),
        lower=lambda x, y, xi: 0.5 * jnp.sum((y - base_ - along_ @ x) ** 2),
        constraints=lambda x, y: jnp.sum(y) - limit,
        x_set=hx.Box(-1.0, 1.0),
        y_set=hx.NonNegative(),
    )

    def answer(x):
        heights, low, high = base + along @ x, -10.0, 10.0
        for _ in range(200):
            level = 0.5 * (low + high)
            low, high = (level, high) if np.maximum(heights - level, 0.0).sum() > limit else (low, level)
        return np.maximum(heights - max(low, 0.0), 0.0)

    def value(x):
        return np.sum((answer(x) - goal) ** 2) / n + 0.1 * np.sum((x - 0.3) ** 2)

    return problem, answer, value


def test_water_filling_of_20_000_entries():
    problem, answer, _ = waterfilling(20_000)
    follower = follower_of(problem, 4, 20_000)
    found = follower.solve(np.zeros(4), np.zeros(20_000), np.zeros(follower.layout.rows))
    np.testing.assert_allclose(found.y, answer(np.zeros(4)), atol=1e-7)
    x = np.array([0.2, -0.1, 0.3, 0.05])
    np.testing.assert_allclose(follower.solve(x, found.y, found.mu, found).y, answer(x), atol=1e-7)


@pytest.mark.slow
def test_auto_on_water_filling_against_scipy_on_the_closed_form():
    problem, answer, value = waterfilling(20_000)
    best = optimize.minimize(value, np.zeros(4), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14})
    sol = hx.solve(problem, np.zeros(4), np.zeros(20_000))
    assert sol.log[0].startswith("Route implicit")
    assert float(sol.value) <= best.fun + 1e-7 * (1 + abs(best.fun))
    np.testing.assert_allclose(sol.y, answer(np.asarray(sol.x)), atol=1e-6)
    assert sol.status.name in ("converged", "unproved"), sol.status.message


@pytest.mark.slow
def test_the_same_answer_as_with_matrices():
    """A size that both routes can do."""
    example = planted(60, nx=3, rows=2, seed=2)
    free = hx.solve(example.problem, np.zeros(3), np.zeros(60), hx.Auto(route="implicit"))
    np.testing.assert_allclose(free.x, example.x, atol=1e-5)
    assert free.status.ok
    dense = hx.solve(example.problem, np.zeros(3), np.zeros(60), hx.Auto(starts=1))
    np.testing.assert_allclose(free.x, dense.x, atol=1e-5)


def upper_rows():
    """x >= 0.7 by an upper constraint on y = x / 2 (>= 0.35): minimises |x|^2, so F = 0.49 a entry."""
    return hx.Problem(
        upper=lambda x, y, zeta: x @ x,
        lower=lambda x, y, xi: jnp.sum((y - 0.5 * x[0]) ** 2),
        upper_constraints=lambda x, y: 0.35 - jnp.mean(y),
        x_set=hx.Box(-2.0, 2.0),
    )


def test_upper_constraints_through_y():
    sol = hx.solve(upper_rows(), np.ones(2), np.zeros(50), hx.Auto(route="implicit"))
    np.testing.assert_allclose(sol.x, [0.7, 0.0], atol=1e-5)
    np.testing.assert_allclose(sol.multipliers.upper, 2.8, atol=1e-3)  # 2 x / (d mean(y) / dx)


@pytest.mark.slow
def test_no_answer_leads_to_another_route():
    """A lower level without a minimum at the start."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: x**2 + y @ y,
        lower=lambda x, y, xi: jnp.sum(y) * (1.0 + x),
        x_set=hx.Box(-0.5, 0.5),
    )
    sol = hx.solve(problem, 0.0, np.zeros(10), hx.Auto(route="implicit", seconds=10.0), throw=False)
    assert "It has no answer" in sol.log[0]
    assert sol.status.name == "unbounded_lower"


def test_max_steps_and_callback_end_the_route(banded):
    sol = hx.solve(banded.problem, np.zeros(5), np.zeros(5000), max_steps=2)
    assert sol.status.name == "max_steps"
    assert len(sol.history) == 2
    seen = []
    sol = hx.solve(banded.problem, np.zeros(5), np.zeros(5000), callback=lambda info: seen.append(info) or True)
    assert sol.status.name == "stopped"
    assert len(seen) == 1
    assert seen[0].y.shape == (5000,)


# -- kinks -------------------------------------------------------------------------------------------------------------


def kinked(n, slope):
    """y_i = [x - c_i]_+ with kinks c_i spread around zero, at which phi = slope * mean(y) + x^2 / 2 bends up."""
    places = jnp.linspace(-1e-3, 1e-3, n)
    return hx.Problem(
        upper=lambda x, y, zeta: slope * jnp.mean(y) + 0.5 * x**2 - 0.5 * slope * x,
        lower=lambda x, y, xi: 0.5 * jnp.sum((y - x + places) ** 2),
        x_set=hx.Box(-1.0, 1.0),
        y_set=hx.NonNegative(),
    )


@pytest.mark.parametrize("slope", [pytest.param(1e-6, marks=pytest.mark.slow), 1.0])
def test_many_kinks_are_bounded_or_left_open(slope):
    """2,400 rows change sides within 1e-3 of x = 0, the minimum: it is called one where they matter little."""
    n = 2401
    problem = kinked(n, slope)
    y = np.maximum(-np.linspace(-1e-3, 1e-3, n), 0.0)
    certificate = hx.certify(problem, 0.0, y)
    assert certificate.hypergradient_norm is not None
    assert certificate.radius <= 1e-5
    assert certificate.verdict(1e-3) == ("yes" if slope < 1e-3 else "unknown"), certificate.reasons(1e-3)
    assert hx.certify(problem, 0.3, np.maximum(0.3 - np.linspace(-1e-3, 1e-3, n), 0.0)).verdict(1e-3) == "no"


def test_a_maximum_is_refuted():
    """Slope zero, and F bends down: the descent test sees it."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: -jnp.mean(y**2),
        lower=lambda x, y, xi: jnp.sum((y - x) ** 2),
        x_set=hx.Box(-1.0, 1.0),
    )
    certificate = hx.certify(problem, 0.0, np.zeros(2100))
    assert certificate.verdict() == "no"
    assert "not a minimum above" in certificate.reasons()[0]
