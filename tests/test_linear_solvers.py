"""Linear solvers, y*(x) and gradients through it where matrices do not fit.

Unit tests of hierax._lower.linear and hierax._engine.vectors.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from banded import matrix, planted

import hierax as hx
from hierax._engine.columns import Places
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.lengths import lengths_at, units_at
from hierax._engine.programs import Programs
from hierax._engine.vectors import Linearised, Point, VectorProblem
from hierax._lower.linear import KKTSystem, OutOfTime, Products


def vectors_of(problem, x, y, linear="products", stop=lambda: False):
    programs = Programs(Float64Problem.of(problem, x, y, 4096, 0))
    programs.large = linear != "dense"
    lengths = np.concatenate([part.values for part in lengths_at(programs, x, y)])
    vectors = VectorProblem(programs, units_at(programs, lengths, [(x, y)]), y, 0, stop=stop)
    assert vectors.follower is not None
    if linear == "products":
        vectors.programs.setting.once("places of entries", Places).too_dense = True
    return vectors


class Followed:
    """Lower solves in the user's units."""

    def __init__(self, vectors):
        self.vectors, self.follower, self.last = vectors, vectors.follower, None

    def solve(self, x, y=None):
        units = self.vectors
        mu = np.zeros(units.layout.rows) if self.last is None else self.last.mu
        y = self.last.y if y is None else y / units.y_unit
        self.last = self.follower.solve_from_anywhere(x / units.x_unit, y, mu)
        return self.last.y * units.y_unit

    def multipliers(self, x):
        units = self.vectors
        return self.last.mu * units.lower_unit / units.row_units(x / units.x_unit, self.last.y)

    def total(self, x):
        """F and its gradient at the last solution."""
        units, found = self.vectors, self.follower.total(x / self.vectors.x_unit, self.last)
        return found.values.upper * units.upper_unit + float(
            units.units.upper.origin
        ), found.slopes.upper * units.upper_unit / units.x_unit


# -- the system --------------------------------------------------------------------------------------------------------


def system_of(hessian, jacobian, active):
    product = lambda a, b: (hessian @ a + jacobian.T @ b, jacobian @ a)
    return KKTSystem(Products(product, len(hessian), len(jacobian), lambda: False), active)


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
    assert np.isnan(system.solve(np.array([1.0, 1.0, 1.0]), np.zeros(0))[0]).all()
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
    """At x = 0, and on to the planted x."""
    followed = Followed(vectors_of(banded.problem, np.zeros(5), np.zeros(5000)))
    y = followed.solve(np.zeros(5), np.zeros(5000))
    mu = followed.multipliers(np.zeros(5))
    return followed, y, mu


def test_planted_solution_is_found(banded, followed):
    follower, _, _ = followed
    np.testing.assert_allclose(follower.solve(banded.x), banded.y, atol=1e-7)


def test_the_first_answer_keeps_the_kkt_conditions(banded, followed):
    """By SciPy's sparse matrix, which the problem has never seen."""
    _, y, mu = followed
    parts = banded.parts
    own, faces = mu[:3], mu[3:]
    slope = matrix(5000) @ y + parts["linear"] + parts["own"].T @ own - faces
    assert np.abs(slope).max() <= 1e-6
    assert mu.min() >= -1e-9
    assert (parts["own"] @ y - parts["limits"]).max() <= 1e-7
    assert np.abs(faces * y).max() <= 1e-6


def test_hypergradient_of_the_planted_problem(banded, followed):
    """F's gradient at x* is zero."""
    follower, _, _ = followed
    follower.solve(banded.x)
    upper, slope = follower.total(banded.x)
    assert np.abs(slope).max() <= 1e-6
    assert abs(upper) <= 1e-6


def test_hypergradient_against_differences(banded, followed):
    follower, _, _ = followed
    x = np.array([0.1, -0.2, 0.05, 0.3, -0.1])
    follower.solve(x)
    slope = follower.total(x)[1]
    for entry in range(2):
        values = []
        for sign in (1, -1):
            follower.solve(x + sign * 1e-5 * np.eye(5)[entry])
            values.append(follower.total(x + sign * 1e-5 * np.eye(5)[entry])[0])
        assert (values[0] - values[1]) / 2e-5 == pytest.approx(slope[entry], rel=1e-4, abs=1e-4)


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


@pytest.mark.parametrize("other", ["sparse", "products"])
def test_the_linear_solvers_agree(other):
    """Dense factors, sparse ones and MINRES: solutions, multipliers, active rows, gradients, responses."""
    problem, x = curved_problem(), np.array([0.3, -0.2])
    solvers = ("dense", other)
    ways = [Followed(vectors_of(problem, x, np.zeros(30), solver)) for solver in solvers]
    for at in (x, x + 0.01):
        ys = [way.solve(at, np.zeros(30)) if way.last is None else way.solve(at) for way in ways]
        np.testing.assert_allclose(*ys, atol=1e-7)
        np.testing.assert_allclose(*(way.multipliers(at) for way in ways), atol=1e-6)
        np.testing.assert_array_equal(*(way.last.system.active for way in ways))
        np.testing.assert_allclose(*(way.total(at)[1] for way in ways), atol=1e-6)
    points = [Point(at / way.vectors.x_unit, way.last.y, way.last.mu) for way in ways]
    linear = [Linearised.at(way.vectors, point) for way, point in zip(ways, points, strict=True)]
    answers = [one.response(one.active).y * way.vectors.y_unit[:, None] for one, way in zip(linear, ways, strict=True)]
    np.testing.assert_allclose(*(a / way.vectors.x_unit for a, way in zip(answers, ways, strict=True)), atol=1e-5)


def test_the_time_is_looked_at_in_every_step(banded):
    looks = []
    vectors = vectors_of(banded.problem, np.zeros(5), np.zeros(5000), stop=lambda: looks.append(0) or len(looks) > 2)
    with pytest.raises(OutOfTime):
        Followed(vectors).solve(np.zeros(5), np.zeros(5000))
