"""MaxMin, BLOCC's lower solver: known solutions, the order of its steps, units, warm starts, what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import hierax as hx
from hierax import MaxMin
from hierax.extend import INACCURATE, SOLVED, Rows
from hierax_lab.problems import ellipsoid_qp, lvhba_toy


def lower_level(lower, constraints=None, equalities=None, y_set=None):
    return hx.Problem(
        upper=lambda x, y, zeta: 0.0, lower=lower, constraints=constraints, equalities=equalities, y_set=y_set
    )


@pytest.fixture(scope="module")
def parallel():
    """1/2 y'Ay - b'y over 12 nearly parallel half-spaces in 30 dimensions; solved by non-negative least squares."""
    n, p = 30, 12
    rng = np.random.default_rng(1)
    normal = rng.standard_normal(n)
    normal /= np.linalg.norm(normal)
    rows, level = normal + 0.3 * rng.standard_normal((p, n)) / np.sqrt(n), np.full(p, 0.5)
    factor = rng.standard_normal((n, n))
    a = factor @ factor.T / n + 0.5 * np.eye(n)
    b = a @ (2 * normal + 0.3 * rng.standard_normal(n))
    # The dual is min 1/2 mu'Qmu - q'mu over mu >= 0, with Q = LL' the least-squares problem |L'mu - L^-1 q|.
    root = np.linalg.cholesky(rows @ np.linalg.solve(a, rows.T))
    mu, _ = optimize.nnls(root.T, np.linalg.solve(root, rows @ np.linalg.solve(a, b) - level))
    y = np.linalg.solve(a, b - rows.T @ mu)
    eigenvalues = np.linalg.eigvalsh(a)
    steps = 1 / eigenvalues[-1], eigenvalues[0] / np.linalg.norm(rows, 2) ** 2
    return {"a": a, "b": b, "rows": rows, "level": level, "y": y, "mu": mu, "steps": steps}


def parallel_problem(data):
    a, b, rows, level = (jnp.asarray(data[name]) for name in ("a", "b", "rows", "level"))
    return lower_level(lambda x, y, xi: 0.5 * y @ a @ y - b @ y, lambda x, y: rows @ y - level)


def plain_loop(data, dual_steps, primal_steps, at_half):
    """Equations of the paper in NumPy, mu_half kept >= 0; the y-steps at it, or at mu_t as its text can be read."""
    a, b, rows, level = (data[name] for name in ("a", "b", "rows", "level"))
    eta1, eta2 = data["steps"]
    y, mu = np.zeros(len(b)), np.zeros(len(level))
    before = mu
    for t in range(dual_steps):
        half = np.maximum(mu + (t - 1) / (t + 2) * (mu - before), 0.0)
        for _ in range(primal_steps):
            y = y - eta1 * (a @ y - b + rows.T @ (half if at_half else mu))
        before, mu = mu, np.maximum(half + eta2 * (rows @ y - level), 0.0)
    return y, mu


def test_momentum_comes_before_the_steps_in_y(parallel):
    eta1, eta2 = parallel["steps"]
    solver = MaxMin(500, 5, eta1=eta1, eta2=eta2, restart=False)
    found = jax.jit(lambda y: solver.solve(parallel_problem(parallel), 0.0, y))(jnp.zeros(30))
    y, mu = plain_loop(parallel, 500, 5, at_half=True)
    np.testing.assert_allclose(found.y, y, atol=1e-9)
    np.testing.assert_allclose(found.multipliers.inequalities, mu, atol=1e-9)
    wrong, _ = plain_loop(parallel, 500, 5, at_half=False)
    right_error, wrong_error = (np.max(np.abs(v - parallel["y"])) for v in (y, wrong))
    assert right_error < 1e-3
    assert wrong_error > 20 * right_error


@pytest.mark.parametrize(("dual_steps", "primal_steps", "error"), [(500, 5, 1e-6), (500, 20, 1e-8), (3000, 1, 1e-10)])
def test_nearly_parallel_constraints(parallel, dual_steps, primal_steps, error):
    """With everything estimated, and restarts. One step in y per dual step does not settle without them."""
    solver = MaxMin(dual_steps, primal_steps)
    found = jax.jit(lambda y: solver.solve(parallel_problem(parallel), 0.0, y))(jnp.zeros(30))
    assert np.max(np.abs(found.y - parallel["y"])) < error
    np.testing.assert_allclose(found.multipliers.inequalities, parallel["mu"], atol=1e3 * error)
    assert found.status == SOLVED
    assert found.iterations == dual_steps * primal_steps


def test_residual_measures_the_error(parallel):
    """Over eight orders of magnitude the residual stays within a factor of 30 of the relative distance to y*."""
    size = np.linalg.norm(parallel["y"])
    for dual_steps in (10, 100, 250, 400):
        solver = MaxMin(dual_steps, 20)
        found = jax.jit(lambda y, solver=solver: solver.solve(parallel_problem(parallel), 0.0, y))(jnp.zeros(30))
        error = np.linalg.norm(found.y - parallel["y"]) / size
        assert found.residual / 30 < error < 30 * found.residual
        assert found.status == (SOLVED if found.residual <= 1e-6 else INACCURATE)


def test_nonlinear_constraints():
    """Ellipsoids whose multipliers add as much curvature as G has: the primal step shortens as they grow."""
    example = ellipsoid_qp(6, 4, sigma=0.0)
    known = example.solutions[0]
    solve = jax.jit(lambda y: MaxMin(300, 20).solve(example.problem, 0.5, y))
    found = solve(jnp.zeros(6))
    np.testing.assert_allclose(found.y, known.y, atol=1e-7)
    np.testing.assert_allclose(found.multipliers.inequalities, known.multipliers, atol=1e-5)
    assert found.status == SOLVED
    np.testing.assert_allclose(found.value, example.problem.lower(0.5, jnp.asarray(known.y), None), rtol=1e-6)


def box_problem(scale_g=1.0, scale_h=1.0, stretch=1.0):
    """Trees, an equality with a negative multiplier, an inequality, a bound of Y, in any units.

    min (u1 - 3)^2 + (u2 - 1)^2 + v^2 with u1 <= 1 (by Y), u2 - 1/2 <= 0 and u1 + v - 3 = 0: u = (1, 1/2), v = 2,
    multipliers 1 and -4.
    """

    def lower(x, y, xi):
        u, v = y["u"] / stretch, y["v"] / stretch
        return scale_g * ((u[0] - 3.0) ** 2 + (u[1] - 1.0) ** 2 + v**2)

    return lower_level(
        lower,
        lambda x, y: [scale_h * (y["u"][1] / stretch - 0.5)],
        lambda x, y: scale_h * (y["u"][0] / stretch + y["v"] / stretch - 3.0),
        {"u": hx.Box(-5.0 * stretch, jnp.array([1.0, 5.0]) * stretch), "v": hx.Free()},
    )


def test_trees_equalities_bounds_and_units():
    solve = jax.jit(
        lambda units, y: MaxMin(100, 10).solve(box_problem(*units), 0.0, jax.tree.map(lambda a: units[2] * a, y))
    )
    start = {"u": jnp.zeros(2), "v": jnp.zeros(())}
    plain = solve(jnp.ones(3), start)
    np.testing.assert_allclose(plain.y["u"], [1.0, 0.5], atol=1e-8)
    np.testing.assert_allclose(plain.y["v"], 2.0, atol=1e-7)
    np.testing.assert_allclose(plain.multipliers.inequalities[0], 1.0, atol=1e-7)
    np.testing.assert_allclose(plain.multipliers.equalities, -4.0, atol=1e-6)
    assert plain.status == SOLVED
    units = jnp.array([100.0, 0.01, 7.0])
    other = solve(units, start)
    np.testing.assert_allclose(other.y["v"] / 7.0, plain.y["v"], rtol=1e-9)
    np.testing.assert_allclose(other.multipliers.equalities, plain.multipliers.equalities * 100 / 0.01, rtol=1e-8)
    np.testing.assert_allclose(other.residual, plain.residual, atol=1e-12)


def test_a_warm_start_goes_on(parallel):
    solve = jax.jit(lambda y, mu: MaxMin(20, 5).solve(parallel_problem(parallel), 0.0, y, None, mu))
    zero = Rows(jnp.zeros(12), None)
    found = solve(jnp.zeros(30), zero)
    first = float(found.residual)
    for _ in range(40):
        found = solve(found.y, found.multipliers)
    assert found.residual < 1e-2 * first
    np.testing.assert_allclose(found.y, parallel["y"], atol=1e-3)
    there = solve(jnp.asarray(parallel["y"]), Rows(jnp.asarray(parallel["mu"]), None))
    np.testing.assert_allclose(there.y, parallel["y"], atol=1e-12)
    assert there.residual < 1e-12


def test_without_constraints_and_in_single_precision():
    free = lower_level(lambda x, y, xi: jnp.sum((y - x) ** 2 * jnp.array([1.0, 10.0], y.dtype)))
    found = jax.jit(lambda x, y: MaxMin(20, 10).solve(free, x, y))(jnp.float32(2.0), jnp.zeros(2, jnp.float32))
    assert found.y.dtype == jnp.float32
    np.testing.assert_allclose(found.y, 2.0, rtol=1e-6)
    assert found.multipliers.inequalities is None
    assert found.status == SOLVED


def test_a_lower_level_that_is_not_strongly_convex_is_doubted():
    flat = lvhba_toy(3)
    y0 = jax.tree.map(jnp.asarray, flat.y0)
    ((text, doubt),) = MaxMin().doubts(flat.problem, jnp.asarray(flat.x0), y0, None).items()
    assert doubt and text.startswith("MaxMin: the lower objective is not strongly convex in y at the start")
    for curvature, doubted in [(1e-9, True), (-1.0, True), (1e-3, False), (1.0, False)]:
        bowl = lower_level(lambda x, y, xi, c=curvature: y[0] ** 2 + c * y[1] ** 2)
        assert bool(MaxMin().doubts(bowl, 0.0, jnp.ones(2), None)[text]) is doubted


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"dual_steps": 0}, r"MaxMin\(dual_steps=0\)"),
        ({"primal_steps": 1.5}, r"MaxMin\(primal_steps=1.5\)"),
        ({"eta1": -1.0}, r"MaxMin\(eta1=-1.0\)"),
        ({"eta2": np.nan}, r"MaxMin\(eta2=nan\)"),
    ],
)
def test_bad_settings(settings, text):
    with pytest.raises(hx.InputError, match=text):
        MaxMin(**settings)


def test_a_ball_from_inside():
    """The extrapolated multiplier must stay >= 0: below it the ball bends the minimum over y away to infinity."""
    target = jnp.array([0.5, 1.0])
    problem = lower_level(lambda x, y, xi: 0.5 * jnp.sum((y - target) ** 2), lambda x, y: jnp.sum(y**2) - 1.0)
    found = MaxMin(300, 20, eta2=0.25).solve(problem, 0.0, jnp.full(2, 0.3))
    np.testing.assert_allclose(found.y, target / jnp.linalg.norm(target), atol=1e-8)
    far = MaxMin(300, 20).solve(problem, 0.0, jnp.full(2, 0.3))  # a dual step that suits y, not the boundary
    assert float(jnp.linalg.norm(far.y)) < 2.0 and float(far.multipliers.inequalities) < 10.0
