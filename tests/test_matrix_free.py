"""Lower levels without matrices: unit tests of hierax._judge.matrix_free and hierax._lower.krylov."""

import jax.numpy as jnp
import numpy as np
import pytest
from banded import matrix, planted
from test_implicit_route import waterfilling

import hierax as hx
from hierax._judge.following import Follower
from hierax._judge.matrix_free import FreeFollower
from hierax._judge.programs import Programs
from hierax._judge.setting import Setting
from hierax._judge.table import Table
from hierax._lower.krylov import KrylovSystem, OutOfTime, Sizes


@pytest.fixture(scope="module")
def banded():
    return planted(5000)


def follower_of(problem, nx, shape):
    setting = Setting.of(problem, np.zeros(nx), np.zeros(shape), 4096, 0)
    return FreeFollower(setting)


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
    setting = Setting.of(problem, x, np.zeros(30), 4096, 0)
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


def test_water_filling_of_20_000_entries():
    problem, answer, _ = waterfilling(20_000)
    follower = follower_of(problem, 4, 20_000)
    found = follower.solve(np.zeros(4), np.zeros(20_000), np.zeros(follower.layout.rows))
    np.testing.assert_allclose(found.y, answer(np.zeros(4)), atol=1e-7)
    x = np.array([0.2, -0.1, 0.3, 0.05])
    np.testing.assert_allclose(follower.solve(x, found.y, found.mu, found).y, answer(x), atol=1e-7)
