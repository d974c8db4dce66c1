"""Lower solves on the host, and gradients through them, against other solvers and differences.

Unit tests of hierax._lower.active_set, hierax._lower.linear, hierax._engine.vectors and hierax._engine.lengths.
"""

import numpy as np
import pytest

import hierax as hx
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.lengths import lengths_at, units_at
from hierax._engine.programs import Programs, raveled
from hierax._engine.vectors import VectorProblem
from hierax._lower import linear
from hierax._lower.active_set import Level, Slopes, Tracker, residual
from hierax._lower.linear import KKTSystem, Matrices
from hierax.extend import lazy

clarabel, sparse = lazy("clarabel"), lazy("scipy.sparse")


def quadratic_level(rng, n, rows, shift=0.0):
    """min 1/2 y'My + q'y, A y <= b, y >= 0 as the tracker sees it, and its data."""
    factor = rng.normal(size=(n, n))
    m, q = factor @ factor.T / n + 0.1 * np.eye(n), rng.normal(size=n) + shift
    a, b = rng.normal(size=(rows, n)) / np.sqrt(n), rng.uniform(0.05, 0.5, rows)
    jacobian, right = np.concatenate([a, -np.eye(n)]), np.concatenate([b, np.zeros(n)])

    def slopes(y, mu):
        return Slopes(0.5 * y @ m @ y + q @ y, np.zeros(1), m @ y + q + mu @ jacobian, jacobian @ y - right)

    level = Level(np.zeros(rows + n, bool), slopes, lambda y, mu: Matrices(jacobian, m), lambda y: np.maximum(y, 0.0))
    return level, (m, q, jacobian, right)


def by_clarabel(m, q, jacobian, right):
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    cones = [clarabel.NonnegativeConeT(len(right))]
    upper = sparse.csc_matrix(np.triu(m))
    return np.array(clarabel.DefaultSolver(upper, q, sparse.csc_matrix(jacobian), right, cones, settings).solve().x)


@pytest.mark.parametrize("seed", range(6))
def test_quadratic_programs_are_solved_like_clarabel(seed):
    pytest.importorskip("clarabel")
    rng = np.random.default_rng(seed)
    level, data = quadratic_level(rng, 30, 15)
    found = Tracker().solve(level, np.zeros(30), np.zeros(45))
    assert found is not None
    assert residual(found.slopes.gradient, found.slopes.rows, found.mu, level.equal) <= 1e-9
    assert np.allclose(found.y, by_clarabel(*data), atol=1e-7)


def test_what_is_kept_between_solves_does_not_change_the_answers():
    rng = np.random.default_rng(3)
    tracker = Tracker()
    for n in (12, 12, 12):
        level, _ = quadratic_level(rng, n, 5)
        kept, fresh = (one.solve(level, np.zeros(n), np.zeros(5 + n)) for one in (tracker, Tracker()))
        assert kept is not None and fresh is not None
        assert np.allclose(kept.y, fresh.y, atol=1e-9)


def test_where_matrices_are_costly_the_last_system_is_tried_first():
    """min sum exp(y - t) + |y|^2 / 2, y <= 1, as t grows: the same answers and systems, with fewer matrices."""

    def followed(costly):
        formed, tracker, found = [], Tracker(), []
        for t in np.linspace(0.0, 1.0, 11):

            def slopes(y, mu, t=t):
                rise = np.exp(y - t)
                return Slopes(float(np.sum(rise + 0.5 * y**2)), np.zeros(1), rise + y + mu, y - 1.0)

            def matrices(y, mu, t=t):
                formed.append(t)
                return Matrices(np.eye(3), np.diag(np.exp(y - t) + 1.0))

            level = Level(np.zeros(3, bool), slopes, matrices, lambda y: y, costly=costly)
            found.append(tracker.solve(level, found[-1].y if found else np.zeros(3), np.zeros(3)))
        return found, len(formed)

    (plain, many), (tried, few) = followed(False), followed(True)
    for one, other in zip(plain, tried, strict=True):
        assert np.allclose(one.y, other.y, atol=1e-9)
        assert np.allclose(one.system.matrices.hessian, other.system.matrices.hessian, atol=1e-9)
    assert few <= 0.6 * many


def test_steps_that_lead_nowhere_end_at_once():
    """y <= 0 and y >= 1: both rows stay active, and every step is the same."""
    asked, jacobian, right = [], np.array([[1.0], [-1.0]]), np.array([0.0, -1.0])

    def slopes(y, mu):
        asked.append(y)
        return Slopes(0.5 * y @ y, np.zeros(1), y + mu @ jacobian, jacobian @ y - right)

    level = Level(np.zeros(2, bool), slopes, lambda y, mu: Matrices(jacobian, np.eye(1)), lambda y: y)
    assert Tracker().solve(level, np.full(1, 5.0), np.zeros(2)) is None
    assert len(asked) <= 30


@pytest.mark.parametrize("seed", range(4))
def test_without_rows_a_step_is_taken_whole_where_g_falls(seed):
    """A squared hinge on data in many units: far away the gradient grows where G falls, and G alone leads on."""
    rng, asked = np.random.default_rng(seed), []
    truth, features = rng.normal(size=6), rng.normal(size=(200, 6))
    labels = np.sign(features @ truth + 0.5 * rng.normal(size=200))
    rows = labels[:, None] * features * np.logspace(-1, 3, 6)

    def slopes(y, mu):
        asked.append(y)
        missing = np.maximum(1.0 - rows @ y, 0.0)
        return Slopes(0.5 * y @ y + 2.0 * missing @ missing, np.zeros(1), y - 4.0 * missing @ rows, np.zeros(0))

    def matrices(y, mu):
        missing = rows[rows @ y < 1.0]
        return Matrices(np.zeros((0, 6)), np.eye(6) + 4.0 * missing.T @ missing)

    found = Tracker().solve(Level(np.zeros(0, bool), slopes, matrices, lambda y: y, 1e-6), np.zeros(6), np.zeros(0))
    assert found is not None
    assert np.max(np.abs(found.slopes.gradient)) <= 1e-6
    assert len(asked) <= 10  # 73 where the gradient has to fall in every step


def test_an_infeasible_level_is_left_to_others():
    def slopes(y, mu):
        return Slopes(0.5 * float(y @ y), np.zeros(1), y + mu @ [[1.0], [-1.0]], np.array([y[0] + 1, 1 - y[0]]))

    level = Level(np.zeros(2, bool), slopes, lambda y, mu: Matrices(np.array([[1.0], [-1.0]]), np.eye(1)), lambda y: y)
    assert Tracker().solve(level, np.zeros(1), np.zeros(2)) is None


# -- through the problem ----------------------------------------------------------------------------------------------


def coupled(n=6, m=4, seed=0):
    """A strongly convex lower level with linear and curved rows that depend on x, and an upper constraint."""
    rng = np.random.default_rng(seed)
    mix, tilt, a = rng.normal(size=(n, m)), rng.normal(size=n), rng.normal(size=(3, n))
    return hx.Problem(
        upper=lambda x, y, zeta: ((y - tilt) ** 2).sum() + 0.1 * (x**2).sum() + (x[0] * y[1]),
        lower=lambda x, y, xi: ((y - mix @ x) ** 2).sum() + 0.1 * (y**4).sum(),
        constraints=lambda x, y: [a @ y - x[:3] ** 2 - 0.2, (y**2).sum() - 2.0 - x[3]],
        upper_constraints=lambda x, y: x.sum() + y.sum() - 1.0,
        x_set=hx.Box(-1.0, 1.0),
        y_set=hx.Box(-1.5, 1.5),
    )


def follower_of(problem, x, y):
    with_programs = Programs(Float64Problem.of(problem, x, y, 1024, 0))
    inside = with_programs.landed(raveled(x), raveled(y))
    lengths = np.concatenate([part.values for part in lengths_at(with_programs, *inside)])
    vectors = VectorProblem(with_programs, units_at(with_programs, lengths, [inside]), inside[1], 0)
    assert vectors.follower is not None
    return vectors, vectors.follower


def following(sizes):
    n, m = sizes
    x = np.random.default_rng(1).uniform(-0.6, 0.6, m)
    vectors, follower = follower_of(coupled(n, m), x, np.zeros(n))
    at = x / vectors.x_unit
    found = follower.solve(at, np.zeros(n), np.zeros(vectors.layout.rows))
    assert found is not None
    return vectors, follower, at, found


@pytest.mark.parametrize("sizes", [(6, 4), (40, 4)])  # by the table of all derivatives, and by programs of their own
def test_gradients_through_the_lower_level_are_those_of_differences(sizes):
    vectors, follower, at, found = following(sizes)
    assert vectors.programs.by_table == (sizes[0] == 6)
    total = follower.total(at, found)
    own = vectors.layout.own_above
    for entry in range(at.size):
        step = 1e-5 * np.eye(at.size)[entry]
        ends = []
        for side in (1, -1):
            there = follower.solve(at + side * step, found.y, found.mu)
            moved = follower.total(at + side * step, there)
            ends.append(np.append(moved.values.above[:own], moved.values.upper))
        slopes = (ends[0] - ends[1]) / 2e-5
        assert np.allclose(slopes, np.append(total.slopes.above[:own, entry], total.slopes.upper[entry]), atol=1e-5)


@pytest.mark.parametrize("sizes", [(6, 4), (40, 4)])
def test_the_sides_of_rows_move_as_differences_say(sizes):
    _, follower, at, found = following(sizes)
    active = found.system.active
    near = np.concatenate([np.flatnonzero(active)[:2], np.flatnonzero(~active)[:2]])
    values, slopes = follower.sides(at, found, near)
    assert (values[active[near]] > 0).all() and (values[~active[near]] > 0).all()
    for entry in range(at.size):
        step = 1e-5 * np.eye(at.size)[entry]
        ends = []
        for side in (1, -1):
            there = follower.held(at + side * step, found.y, found.mu, active)
            ends.append(follower.sides(at + side * step, there, near)[0])
        assert np.allclose((ends[0] - ends[1]) / 2e-5, slopes[:, entry], atol=1e-5)


def test_the_lower_level_is_solved_like_exact():
    vectors, _, at, found = following((6, 4))
    problem = coupled()
    exact = hx.Exact().solve(problem, at * vectors.x_unit, np.zeros(6))
    assert np.allclose(np.asarray(exact.y), found.y * vectors.y_unit, atol=1e-4)  # single precision


def test_lengths_do_not_come_from_the_centre_of_a_ball():
    # Next to the centre the row's slope is tiny, and |row| / |slope| would say that y is 1e6 long.
    problem = hx.Problem(
        upper=lambda x, y, zeta: (y**2).sum() + x,
        lower=lambda x, y, xi: x * y.sum(),
        constraints=lambda x, y: ((y / 0.01) ** 2).sum() - 1.0,
        x_set=hx.Box(0.5, 1.0),
    )
    programs = Programs(Float64Problem.of(problem, np.float64(0.7), np.full(3, 1e-9), 1024, 0))
    _, of_y = lengths_at(programs, np.array([0.7]), np.full(3, 1e-9))
    assert (of_y.values < 1.0).all()


def test_derivatives_that_are_not_finite_are_left_to_others():
    def slopes(y, mu):
        return Slopes(0.0, np.zeros(1), np.ones(1), np.zeros(0))

    level = Level(
        np.zeros(0, bool), slopes, lambda y, mu: Matrices(np.zeros((0, 1)), np.full((1, 1), np.inf)), lambda y: y
    )
    with np.errstate(invalid="ignore"):
        assert Tracker().solve(level, np.zeros(1), np.zeros(0)) is None


def slack_matrices(rng, slacks, others, bare_rows):
    """Matrices of a lower level with a slack in most rows, and bounds on some entries."""
    factor = rng.normal(size=(others, others))
    ny = slacks + others
    hessian = np.zeros((ny, ny))
    hessian[:others, :others] = factor @ factor.T / others
    hessian[np.arange(others, ny), np.arange(others, ny)] = np.exp(rng.uniform(-8, 8, slacks))
    rows = np.zeros((slacks + bare_rows, ny))
    rows[:, :others] = rng.normal(size=(slacks + bare_rows, others))
    rows[np.arange(slacks), others + np.arange(slacks)] = -rng.uniform(0.1, 10, slacks)
    bounds = np.eye(ny)[rng.choice(ny, 5, replace=False)]
    return np.concatenate([rows, bounds]), hessian


@pytest.mark.parametrize("share", [1.0, 0.6, 0.1])
def test_sparse_factors_are_dense_ones(share, monkeypatch):
    """Also where many rows are not active, with several right-hand sides, and of matrices that are sparse."""
    rng = np.random.default_rng(0)
    jacobian, hessian = slack_matrices(rng, 300, 12, 4)
    rows, ny = jacobian.shape
    active = rng.uniform(size=rows) < share
    right = rng.normal(size=(ny, 3)), rng.normal(size=(rows, 3)) * active[:, None]
    quick, given = Matrices(jacobian, hessian), Matrices(sparse.csr_array(jacobian), sparse.csr_array(hessian))
    systems = [KKTSystem(quick, active), KKTSystem(given, active)]
    assert quick._sparse is not None
    monkeypatch.setattr(linear, "SMALL_ORDER", 10_000)
    whole = Matrices(jacobian, hessian)
    dy, dmu = KKTSystem(whole, active).solve(*right)
    assert whole._sparse is None
    assert not dmu[~active].any()
    for system in systems:
        for one, other in zip(system.solve(*right), (dy, dmu), strict=True):
            assert np.allclose(one, other, rtol=1e-6, atol=1e-8 * np.max(np.abs(other)))
        single = system.solve(right[0][:, 0].copy(), right[1][:, 0].copy())
        assert np.allclose(single[0], dy[:, 0], rtol=1e-6) and np.allclose(single[1], dmu[:, 0], rtol=1e-6)
    left = hessian @ dy + jacobian.T @ dmu - right[0]
    assert np.max(np.abs(left)) <= 1e-6 * np.max(np.abs(hessian @ dy))
    off = jacobian @ dy - right[1]
    assert np.max(np.abs(off[active])) <= 1e-6 + 2 * linear.SHIFT * np.max(np.abs(dmu))  # the shift's
