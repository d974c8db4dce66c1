"""Claims that were false once, each as its reproducer: what `certify` and `solve` say of it now."""

import time

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import hierax as hx
from hierax_lab.problems import bolib


def scalar(upper=(1.0, 0.1, 0.0, 0.0), lower=(1.0, 2.0, 0.0), row=(1.0, -1.0, 0.0), wave=0.0, x_set=None):
    """One form for many problems, so that they share their programs: a (y - 1)^2 + b x^2 + c x + d y above,

    e (y - f x)^2 + g + wave ((y^2 - 1)^2 + 0.3 y) below, p y + q x + r <= 0. As it stands x = y = 1 / 1.1.
    """
    a, b, c = (np.asarray(part, float) for part in (upper, lower, row))
    bent = np.array([wave])
    low, high = x_set or (-np.inf, np.inf)

    def below(x, y, xi):
        return b[0] * (y - b[1] * x) ** 2 + b[2] + bent[0] * ((y**2 - 1) ** 2 + 0.3 * y)

    return hx.Problem(
        upper=lambda x, y, zeta: a[0] * (y - 1) ** 2 + a[1] * x**2 + a[2] * x + a[3] * y,
        lower=below,
        constraints=lambda x, y: c[0] * y + c[1] * x + c[2],
        x_set=hx.Box(*(np.array(bound) for bound in (low, high))),
    )


BEST = 1 / 1.1

# -- the certificate ---------------------------------------------------------------------------------------------------

WRONG_POINTS = {
    "S3: G in small units, y not optimal": (scalar(lower=(1e-4, 2.0, 0.0)), BEST, 0.0),
    "S3: G and H in small units, y infeasible": (
        scalar(lower=(1e-4, 2.0, 0.0), row=(1e-4, -1e-4, 0.0)),
        BEST,
        BEST + 0.9,
    ),
    "S3: a constant in G, y not optimal": (scalar(lower=(1.0, 2.0, 1e4)), BEST, BEST - 1.5),
    "S3: a constant in G, the wrong well": (
        scalar((0.0, 1.0, -2.0, 0.0), (0.0, 0.0, 1e3), (0, 0, -1.0), 1.0),
        1.0,
        0.96,
    ),
    "S3: parts of F that cancel": (scalar((0.0, 0.0, 10001.0, -1e4), (1.0, 1.0, 0.0), (0.0, 0.0, -1.0)), 1.0, 1.0),
    "S3: the maximiser on a tiny box": (
        scalar((0.0, 0.0, 1e6, 0.0), (1.0, 1.0, 0.0), (0.0, 0.0, -1.0), x_set=(0.0, 1e-6)),
        1e-6,
        1e-6,
    ),
    "M9: a concave kink, -|x|": (scalar((0, 0, 1.0, -2.0), (1.0, 1.0, 0.0), (-1.0, 0, 0), x_set=(-1.0, 1.0)), 0.0, 0.0),
    "M9: a smooth maximum": (scalar((-1.0, 0, 0, 0), (1.0, 0.3, 0.0), (0, 0, -1.0), x_set=(-5.0, 5.0)), 1 / 0.3, 1.0),
}


@pytest.mark.parametrize("name", WRONG_POINTS)
def test_wrong_points_are_refused(name):
    certificate = hx.certify(*WRONG_POINTS[name])
    assert certificate.verdict(1e-3) == "no", str(certificate)
    assert certificate.reasons(1e-3)


RIGHT_POINTS = {
    "as it stands": (scalar(), BEST, BEST),
    "M8: rows in small units, F in large ones": (scalar((1e6, 1e5, 0, 0), row=(1e-4, -1e-4, 0.0)), BEST, BEST),
    "M9: near a kink, |x|": (scalar((0, 0, -1.0, 2.0), (1.0, 1.0, 0.0), (-1.0, 0, 0), x_set=(-1.0, 1.0)), 1e-4, 1e-4),
    "M9: at a kink": (scalar((0, 0, -1.0, 2.0), (1.0, 1.0, 0.0), (-1.0, 0, 0), x_set=(-1.0, 1.0)), 0.0, 0.0),
}


@pytest.mark.parametrize("name", RIGHT_POINTS)
def test_right_points_are_accepted(name):
    certificate = hx.certify(*RIGHT_POINTS[name])
    assert certificate.verdict(1e-3) == "yes", str(certificate)


def test_s3_many_entries_that_are_all_off():
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.mean((x - 1.0) ** 2) + 0.0 * y, lower=lambda x, y, xi: (y - x[0]) ** 2
    )
    assert hx.certify(problem, np.full(1000, 0.6), 0.6).verdict(1e-3) == "no"
    assert hx.certify(problem, np.ones(1000), 1.0).verdict(1e-3) == "yes"


def test_s4_active_sets_that_nothing_realises_do_not_count():
    problem = hx.Problem(
        upper=lambda x, y, zeta: x - 3 * y[0] + 3 * y[1],
        lower=lambda x, y, xi: jnp.sum((y - x) ** 2),
        constraints=lambda x, y: y,
        x_set=hx.Box(-1.0, 1.0),
    )
    assert hx.certify(problem, 0.0, np.zeros(2)).verdict(1e-3) == "no"
    sol = hx.solve(problem, 0.5, np.zeros(2), hx.GAM(), max_steps=200, tol=1e-3)
    assert sol.status.name != "converged" or float(sol.x) == pytest.approx(-1.0, abs=1e-3)


def test_m9_a_row_given_twice_is_decidable():
    problem = hx.Problem(
        upper=lambda x, y, zeta: (y - 1) ** 2 + 0.1 * x**2,
        lower=lambda x, y, xi: (y - 2 * x) ** 2,
        constraints=lambda x, y: jnp.stack([y - x, y - x]),
    )
    assert hx.certify(problem, BEST, BEST).verdict(1e-4) == "yes"
    assert hx.certify(problem, 0.5, 0.5).verdict(1e-4) == "no"


# -- Auto --------------------------------------------------------------------------------------------------------------


def never_contradicts(sol):
    """Status, log, print and certificate say the same."""
    verdict = sol.certificate.verdict(sol.tol)
    assert sol.status.ok == (verdict == "yes")
    assert sol.log[-1] == sol.status.message
    assert f"{verdict} at tol" in str(sol)
    return sol


def test_s1_b_the_time_is_up():
    begin = time.perf_counter()
    sol = never_contradicts(hx.solve(scalar(), 0.5, 0.5, hx.Auto(route="penalty", seconds=0.05)))
    assert sol.status.name in ("seconds", "converged")
    if sol.status.name == "converged":
        assert float(sol.x) == pytest.approx(BEST, abs=1e-3)
    assert time.perf_counter() - begin < 1.05 * 0.05 + 1.0 + sol.counts.compile_seconds + 1.0  # imports of SciPy


def test_s1_a_fifty_variables():
    n = 50
    a = np.random.default_rng(0).normal(size=(n, n)) / np.sqrt(n)
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((y - 1) ** 2) + 0.1 * jnp.sum(x**2),
        lower=lambda x, y, xi: jnp.sum((y - 2 * a @ x) ** 2),
        constraints=lambda x, y: y - a @ x - 0.5,
    )
    sol = never_contradicts(hx.solve(problem, jnp.zeros(n), jnp.zeros(n)))
    assert sol.status.name == "converged"
    assert sol.value == pytest.approx(5.0955, abs=1e-3)  # by L-BFGS on the closed form


@pytest.mark.parametrize("of_upper, of_lower", [(1e12, 1e-9), (1e-12, 1e-12), (1e-6, 1e6)])
def test_s11_units_of_both_objectives(of_upper, of_lower):
    problem = scalar((of_upper, 0.1 * of_upper, 0.0, 0.0), (of_lower, 2.0, 0.0))
    sol = never_contradicts(hx.solve(problem, 0.5, 0.5))
    assert sol.status.name == "converged"
    assert float(sol.x) == pytest.approx(BEST, abs=1e-4)


def with_equalities(equalities):
    return hx.Problem(
        upper=lambda x, y, zeta: (y - 1) ** 2 + 0.1 * x**2,
        lower=lambda x, y, xi: (y - 2 * x) ** 2,
        equalities=equalities,
        x_set=hx.Box(-3.0, 3.0),
        y_set=hx.Box(-3.0, 3.0),
    )


@pytest.mark.parametrize(
    "equalities",
    [lambda x, y: jnp.stack([y - x, y - x]), lambda x, y: jnp.stack([y - x, 0 * y])],
    ids=["twice", "and 0 = 0"],
)
def test_s10_redundant_equalities(equalities):
    sol = never_contradicts(hx.solve(with_equalities(equalities), 0.5, 0.5))
    assert sol.status.name == "converged"
    assert sol.value == pytest.approx(1 / 11, abs=1e-5)


def test_s10_a_simplex_and_its_equality():
    goal = np.array([0.2, 0.3, 0.5])
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((y - goal) ** 2) + 0.1 * jnp.sum(x**2),
        lower=lambda x, y, xi: jnp.sum((y - x) ** 2),
        equalities=lambda x, y: jnp.sum(y) - 1,
        y_set=hx.Simplex(),
    )
    sol = never_contradicts(hx.solve(problem, jnp.zeros(3), jnp.full(3, 1 / 3)))
    assert sol.status.name == "converged"
    x = np.asarray(sol.x, float)  # y = x + (1 - sum x) / 3: minimise over x with sum x = 0
    np.testing.assert_allclose(x, (goal - 1 / 3) / 1.1, atol=1e-3)


@pytest.mark.parametrize(
    "constraints, status",
    [
        (lambda x, y: jnp.stack([y - x, 0 * y + 1]), "infeasible"),
        (lambda x, y: jnp.stack([2 * (y - 0.5) ** 2, 3 * (y + 0.5) ** 2]), "infeasible"),
    ],
    ids=["a constant row", "rows that exclude each other"],
)
def test_s6_infeasible_problems_are_called_so(constraints, status):
    problem = hx.Problem(
        upper=lambda x, y, zeta: (y - 1) ** 2 + 0.1 * x**2,
        lower=lambda x, y, xi: (y - 2 * x) ** 2,
        constraints=constraints,
    )
    begin = time.perf_counter()
    sol = hx.solve(problem, 0.5, 0.5, seconds=20, throw=False)
    assert sol.status.name == status
    assert time.perf_counter() - begin < 20


def test_s7_functions_are_evaluated_inside_the_set():
    cost = np.array([1.0, 2.0, 3.0])
    problem = hx.Problem(  # Beckmann's costs: v**5 falls without limit for negative v
        upper=lambda x, y, zeta: jnp.sum((y - 1) ** 2) + jnp.sum(x**2),
        lower=lambda x, y, xi: jnp.sum(cost * y + 0.03 * y**5 + x * y),
        equalities=lambda x, y: jnp.sum(y) - 3.0,
        x_set=hx.Box(0.0, 5.0),
        y_set=hx.NonNegative(),
    )
    certificate = hx.certify(problem, np.ones(3), np.ones(3))
    assert certificate.reference.status == 0 and np.all(np.asarray(certificate.reference.y) >= 0)
    found = hx.Exact().solve(problem, jnp.zeros(3), jnp.ones(3))
    flows = np.asarray(found.y)
    used = flows > 1e-4
    marginal = cost + 0.15 * flows**4
    assert (
        int(found.status) == 0
        and np.ptp(marginal[used]) < 1e-3
        and np.all(marginal[~used] > marginal[used].max() - 1e-3)
    )


def test_s7_logarithms_on_the_simplex():
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((y - 0.3) ** 2),
        lower=lambda x, y, xi: jnp.sum(y * jnp.log(y)) + x @ y,
        x_set=hx.Box(-3.0, 3.0),
        y_set=hx.Simplex(),
    )
    x = np.array([1.0, 0.0, -1.0])
    certificate = hx.certify(problem, x, np.exp(-x) / np.exp(-x).sum())
    assert certificate.ok(1e-6, stationarity=np.inf), str(certificate)


def test_s14_no_hang_where_the_lower_level_is_infeasible_and_steep():
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((x - 5) ** 4 + (2 * y + 1) ** 4),
        lower=lambda x, y, xi: jnp.sum(jnp.exp(y - x) + (x + y) ** 2 + 2 * x + 6 * y),
        constraints=lambda x, y: jnp.concatenate([y - x - 2, -y]),
        upper_constraints=lambda x, y: jnp.concatenate([x + y - 4, -x]),
    )
    begin = time.perf_counter()
    sol = never_contradicts(hx.solve(problem, jnp.array([4.0]), jnp.array([0.0]), seconds=30))
    assert time.perf_counter() - begin < 33
    assert sol.value == pytest.approx(2.0, abs=1e-3)
    infeasible = hx.certify(problem, np.array([-34.877]), np.array([0.0]))
    assert infeasible.verdict() == "no"


def test_m1_the_clock_of_larger_problems():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(1000, 2)), rng.uniform(1, 2, 1000)
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((y - 2) ** 2) + (x[0] - 2) ** 2,
        lower=lambda x, y, xi: jnp.sum((y - x[0]) ** 2),
        constraints=lambda x, y: a @ y - b,
    )
    begin = time.perf_counter()
    sol = never_contradicts(hx.solve(problem, jnp.zeros(1), jnp.zeros(2), seconds=5))
    assert time.perf_counter() - begin < 5 * 1.05 + 1.0 + sol.counts.compile_seconds


def test_auto_takes_tol_callback_and_max_steps():
    seen = []
    sol = hx.solve(scalar(), 0.5, 0.5, tol=1e-6, callback=lambda info: seen.append(info) and None)
    assert sol.status.name == "converged" and sol.tol == 1e-6 and sol.certificate.ok(1e-6)
    assert [info.step for info in seen] == list(range(1, len(seen) + 1))
    assert set(seen[0].record) == {"upper", "violation", "gap", "start"}
    assert any(line.startswith("Globality: ") for line in sol.log)
    stopped = never_contradicts(hx.solve(scalar(), 0.5, 0.5, callback=lambda info: True))
    assert (stopped.status.name, stopped.status.step) == ("stopped", 1) or stopped.status.name == "converged"
    few = never_contradicts(hx.solve(scalar(), 0.5, 0.5, max_steps=1))
    assert few.status.name in ("max_steps", "converged")
    with pytest.raises(hx.InputError, match=r"Auto\(samples=10\): nothing is sampled"):
        hx.solve(scalar(), 0.5, 0.5, hx.Auto(samples=10))


def test_s15_nothing_is_owed_to_a_gap():
    """F below the optimum by a gap of the square of its size: of one basin the point without a gap wins."""
    case = bolib.load("ShimizuAiyoshi1981Ex1")
    sol = never_contradicts(hx.solve(case.problem(), *case.x0y0()))
    assert sol.status.name == "converged"
    assert sol.value == pytest.approx(100.0, abs=1e-3)


def planted_qp(nx, n, rows, seed):
    """Lower 1/2 y'My + (Nx + q)'y over A y <= b + B x, y >= 0; F has a local minimiser of value 0 at the planted x."""
    rng = np.random.default_rng(seed)
    root, mixed, push = rng.normal(size=(n, n)), rng.normal(size=(n, nx)), rng.normal(size=n)
    hessian = root @ root.T / n + 0.1 * np.eye(n)
    a, b_x, b = rng.normal(size=(rows, n)) / n**0.5, 0.3 * rng.normal(size=(rows, nx)), rng.uniform(0.05, 0.5, rows)
    x, g = rng.uniform(-0.5, 0.5, nx), rng.normal(size=n) / n**0.5

    def solved(at):
        return by_nnls(
            hessian, mixed @ at + push, np.vstack([a, -np.eye(n)]), np.concatenate([b + b_x @ at, np.zeros(n)])
        )

    y, step = solved(x), 1e-6
    moves = np.stack([(solved(x + step * e) - solved(x - step * e)) / (2 * step) for e in np.eye(nx)], axis=1)
    tilt = moves.T @ g
    problem = hx.Problem(
        upper=lambda u, v, zeta: g @ (v - y) + 0.5 * jnp.sum((v - y) ** 2) - tilt @ (u - x) + 2 * jnp.sum((u - x) ** 2),
        lower=lambda u, v, xi: 0.5 * v @ (hessian @ v) + (mixed @ u + push) @ v,
        constraints=lambda u, v: a @ v - b - b_x @ u,
        x_set=hx.Box(-1.0, 1.0),
        y_set=hx.NonNegative(),
    )
    return problem


def by_nnls(hessian, push, rows, levels):
    """min 1/2 y'My + q'y subject to rows y <= levels, from its dual, a non-negative least squares problem."""
    factor = np.linalg.cholesky(hessian)
    scaled = np.linalg.solve(factor, rows.T)
    free = -np.linalg.solve(hessian, push)
    left = levels - rows @ free
    stacked = np.vstack([scaled, left[None]])
    mu, _ = scipy.optimize.nnls(stacked, np.append(np.zeros(len(scaled)), -1.0), maxiter=10000)
    rest = 1 + left @ mu  # by least-distance programming (Lawson and Hanson, chapter 23)
    return free - np.linalg.solve(hessian, rows.T @ (mu / rest))


@pytest.mark.slow
def test_s1_c_the_planted_qp():
    problem = planted_qp(5, 100, 50, 0)
    sol = never_contradicts(hx.solve(problem, jnp.zeros(5), jnp.zeros(100)))
    assert sol.status.name == "converged"
    assert sol.value <= 1e-5  # the planted local minimiser, or one below it
