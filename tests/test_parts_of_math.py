"""Unit tests of hierax._math: scatter, gap, lower_level, convexity, spectrum; and of the hull that GAM uses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg
import scipy.optimize
from cases import close, random_data, random_problem
from formulas import gap_value, proximal_lagrangian
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from test_exact import TOY
from test_linear_rows import line

import hierax as hx
from hierax import Exact
from hierax._compile.configuration import float64
from hierax._math import spectrum as estimate
from hierax._math.convexity import affine_rows
from hierax._math.lower_level import level_at, residual_at
from hierax._math.psi import Inner, Iterate, gap_gradient, inner_gradient, nonnegative
from hierax._math.scatter import cover, unit_cube
from hierax._math.spectrum import _ends, extreme_eigenvalues
from hierax._methods.implicit_gradient import least_norm_weights
from hierax.extend import INACCURATE


def test_scattered_points():
    box = hx.Box(np.array([0.0, -np.inf, 1.0]), np.array([2.0, np.inf, np.inf]))
    centre = jnp.array([1.0, 5.0, 2.0])
    points = np.asarray(cover(box, centre, unit_cube(3, 63)))
    np.testing.assert_array_equal(points[0], centre)
    assert (points[:, 0] >= 0).all() and (points[:, 0] <= 2).all() and (points[:, 2] >= 1).all()
    assert np.ptp(points[1:, 0]) > 1.8
    assert (points[:, 1] > 5).any() and (points[:, 1] < 5).any()
    again = np.asarray(cover(box, centre, unit_cube(3, 63)))
    np.testing.assert_array_equal(points, again)
    assert not np.array_equal(points, np.asarray(cover(box, centre, unit_cube(3, 63, seed=1))))
    ball = np.asarray(cover(hx.Ball(1.0), jnp.zeros(3), unit_cube(3, 31)))
    assert (np.linalg.norm(ball, axis=1) <= 1 + 1e-12).all()


@given(seed=st.integers(0, 2**20), level=st.floats(-1, 1), scale=st.floats(-1, 1))
def test_gradients_are_those_of_the_value(seed, level, scale):
    data = random_data(seed, 2, 3, 4, 2, level)
    found = _formula_and_autodiff(data, *(10.0 ** jnp.array([scale, -scale, scale / 2])))
    for name in ("outer", "values", "inner"):
        close(*found[name], rtol=1e-9, atol=1e-9)
    lam, slope, best, other = found["lam"]
    # lam maximises: the slope is zero where lam > 0 and for equalities, else not positive.
    for value, rise in zip(jax.tree.leaves(lam.inequalities), jax.tree.leaves(slope.inequalities), strict=True):
        np.testing.assert_allclose(jnp.where(value > 0, rise, jnp.maximum(rise, 0.0)), 0.0, atol=1e-9)
    close(slope.equalities, jax.tree.map(jnp.zeros_like, slope.equalities), atol=1e-9)
    assert best >= other - 1e-9


@pytest.mark.parametrize(("m", "n"), [(2, 1), (4, 3), (8, 5), (8, 20)])
def test_least_norm_weights(m: int, n: int) -> None:
    """d is the least-norm point of the hull exactly if <d_i, d> >= |d|^2 for every i; over a box: no d_i is better."""
    free = jax.jit(lambda g, t: least_norm_weights(g, lambda d: -t * d, t))
    boxed = jax.jit(lambda g, x, t: least_norm_weights(g, lambda d: jnp.clip(x - t * d, -1, 1) - x, t))
    rng = np.random.default_rng(m + n)
    for _ in range(10):
        gradients, t = rng.standard_normal((m, n)) + 0.5 * rng.standard_normal(n), 10 ** rng.uniform(-2, 2)
        weights = np.asarray(free(gradients, t))
        d = weights @ gradients
        assert weights.min() >= 0
        assert weights.sum() == pytest.approx(1)
        assert (gradients @ d).min() >= d @ d - 1e-10
        x = rng.choice([-1.0, 0.0, 1.0], n)
        weights = np.asarray(boxed(gradients, x, t))
        gone = np.clip(x - t * weights @ gradients, -1, 1) - x
        assert (gradients @ gone).max() <= weights @ gradients @ gone + 1e-10 * t


@pytest.mark.parametrize(
    ("problem", "affine"),
    [
        (line(constraints=lambda x, y: y - x), True),
        (line(equalities=lambda x, y: 3.0 * y - x + 1.0, y_set=hx.Box(-1.0, 5.0)), True),
        (line(constraints=lambda x, y: y - x**2), False),
        (line(constraints=lambda x, y: x * y - 1.0), False),  # affine in y alone
        (line(constraints=lambda x, y: 1e-5 * (y**2 - x)), False),  # in whatever units
        (line(y_set=hx.Ball(2.0)), False),  # the face of Y bends
        (line(), True),
    ],
)
def test_affine_rows_are_told_apart(problem: hx.Problem, affine: bool) -> None:
    assert bool(affine_rows(problem, jnp.asarray(0.3), jnp.asarray(0.2), jax.random.key(0))) == affine


@pytest.mark.parametrize("spectrum", [[2.0], [3.0, 3.0], [0.0, 0.0, 1.0], [-0.5, 1.0, 2.0], np.linspace(0.05, 1, 80)])
def test_extreme_eigenvalues(spectrum):
    spectrum = np.asarray(spectrum)
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((len(spectrum), len(spectrum))))
    matrix = jnp.asarray(basis @ np.diag(spectrum) @ basis.T)
    bottom, top = extreme_eigenvalues(lambda v: [matrix @ v[0]], [jnp.zeros(len(spectrum))])
    np.testing.assert_allclose(bottom, spectrum.min(), atol=2e-3)
    np.testing.assert_allclose(top, spectrum.max(), rtol=1e-3)


@pytest.mark.parametrize(("dtype", "scale"), [(np.float32, 1.0), (np.float32, 1e-25), (np.float64, 1e200)])
def test_ends_of_a_tridiagonal_spectrum(dtype, scale):
    """In any units, as LAPACK finds them; where something is not a number, neither are they."""
    rng = np.random.default_rng(0)
    for diagonal, links in (
        (rng.normal(size=24), np.abs(rng.normal(size=24))),
        (np.linspace(1e-3, 1.0, 24), np.full(24, 1e-9)),
        (np.ones(24), np.zeros(24)),
    ):
        with float64():
            rows = jnp.asarray(np.stack([scale * diagonal, scale * links, np.ones(24)], axis=1), dtype)
            bottom, top = (float(value) / scale for value in _ends(rows))
            nothing = _ends(rows.at[3, 0].set(jnp.nan))
        known = scipy.linalg.eigvalsh_tridiagonal(diagonal, links[:-1])
        close = 8 * np.finfo(dtype).eps * np.max(np.abs(known))
        assert abs(bottom - known[0]) <= close
        assert abs(top - max(known[0], known[-1], key=abs)) <= close
        assert np.isnan(nothing).all()


def test_norms_of_a_random_problem_against_dense_linear_algebra():
    data = random_data(0, 2, 3, 4, 1, 0.0)
    problem, x, y = random_problem(data), data["x"], data["y"]
    x, y = jax.tree.map(jnp.asarray, (x, y))
    zeta, xi, lam = data["zeta"], data["xi"], data["lam"]
    found = jax.jit(lambda x, y: estimate.curvature(problem, x, y, lam, zeta, xi))(x, y)
    (u, to_x), (v, to_y) = ravel_pytree(x), ravel_pytree(y)

    def lower(u, v):
        return problem.lower(to_x(u), to_y(v), xi)

    def rows(u, v):
        return ravel_pytree(problem.rows(to_x(u), to_y(v)))[0]

    @jax.jit
    def dense(u, v):
        return {
            "upper_xx": jax.hessian(lambda u: problem.upper(to_x(u), to_y(v), zeta))(u),
            "upper_yy": jax.hessian(lambda v: problem.upper(to_x(u), to_y(v), zeta))(v),
            "lower_yy": jax.hessian(lower, 1)(u, v),
            "jacobian_x": jax.jacobian(rows, 0)(u, v),
            "jacobian_y": jax.jacobian(rows, 1)(u, v),
            "constraint_yy": jax.hessian(lambda v: ravel_pytree(lam)[0] @ rows(u, v))(v),
            "outer_x": jax.jacobian(lambda u: problem.upper_constraints(to_x(u), to_y(v)))(u),
            "outer_y": jax.jacobian(lambda v: problem.upper_constraints(to_x(u), to_y(v)))(v),
        }

    expected = dense(u, v)
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(found, name), np.linalg.norm(value, 2), rtol=0.1, err_msg=name)
    np.testing.assert_allclose(found.lower_yy_min, np.linalg.eigvalsh(expected["lower_yy"])[0], rtol=0.5)


@pytest.mark.parametrize("p", [3, 200])
def test_scales_are_the_norms_of_the_constraints_gradients(p):
    rows = np.random.default_rng(0).standard_normal((p, 40)) * np.logspace(-2, 2, p)[:, None]
    problem = hx.Problem(None, None, lambda x, y: rows @ y)
    scales = estimate.constraint_scales(problem, jnp.zeros(1), jnp.zeros(40), jax.random.key(0))
    exact = np.linalg.norm(rows, axis=1)
    ratio = np.asarray(scales.inequalities) / exact
    if p <= 2 * estimate.PROBES:
        np.testing.assert_allclose(ratio, 1.0, rtol=1e-12)
    else:  # 32 random directions: relative error 1/8 in the norm, 5 sigma over 200 rows
        assert np.all((ratio > 0.4) & (ratio < 1.7))
        assert abs(np.mean(ratio**2) - 1) < 0.1


def test_a_constraint_that_does_not_depend_on_y_keeps_its_scale():
    problem = hx.Problem(None, None, lambda x, y: jnp.stack([2 * y, x]))
    scales = estimate.constraint_scales(problem, jnp.ones(()), jnp.ones(()), jax.random.key(0))
    np.testing.assert_allclose(scales.inequalities, [2.0, 1.0])


@jax.jit
def _formula_and_autodiff(data, c, g1, g2):
    """Values and gradients of F/c + gap at a random point, by formula and by automatic differentiation."""
    problem = random_problem(data)
    x, y, z, th, zeta, xi = (data[name] for name in ("x", "y", "z", "w", "zeta", "xi"))

    def inside(lam):
        values = problem.rows(x, y)
        return optax.tree.vdot(lam, values) - optax.tree.norm(optax.tree.sub(lam, z), squared=True) / (2 * g2)

    def total(x, y, z):
        return problem.upper(x, y, zeta) / c + gap_value(problem, x, y, z, th, g1, g2, xi)

    lam = nonnegative(jax.tree.map(lambda a, h: a + g2 * h, z, problem.rows(x, y)))
    formula = gap_gradient(problem, Iterate(x, y, z), th, c, g1, g2, zeta, xi)
    return {
        "outer": (formula[:3], jax.grad(total, (0, 1, 2))(x, y, z)),
        "values": ((formula.upper, formula.lower), (problem.upper(x, y, zeta), problem.lower(x, y, xi))),
        "inner": (
            inner_gradient(problem, Iterate(x, y, z), Inner(th, z), g1, g2, xi).w,
            jax.grad(lambda th: proximal_lagrangian(problem, x, y, z, th, g1, xi))(th),
        ),
        "lam": (lam, jax.grad(inside)(lam), inside(lam), inside(data["lam"])),
    }


def test_residual_is_about_the_point():
    """Zero at the solution; off it, what is wrong shows: stationarity, violation, complementarity, sign."""
    at = level_at(TOY, jnp.asarray(1.0), jnp.asarray(0.0), None)  # (y - 2)^2, rows y - 1, -y, y - 3
    measure = jax.jit(jax.vmap(lambda v, mu: residual_at(at, v, mu, jnp.asarray(1e-8))))
    y = jnp.array([[1.0], [1.0], [1.1], [2.0], [1.0]])
    mu = jnp.array([[2.0, 0, 0], [1.9, 0, 0], [1.8, 0, 0], [0, 0, 0], [2.0, -0.1, -0.1]])
    found = measure(y, mu)
    assert found[0] < 1e-15
    np.testing.assert_allclose(found[1:4], [0.05, 0.1, 1.0], rtol=0.2)
    assert found[4] > 0.01


def test_it_never_claims_what_it_did_not_reach():
    """After too few steps the residual is that of the point and the multipliers returned."""

    @jax.jit
    def solve(x, y):
        found = Exact(max_steps=1).solve(TOY, x, y)
        at = level_at(TOY, x, found.y, None)
        return found, residual_at(at, at.start, at.multipliers(found.multipliers), jnp.asarray(1e-8))

    found, again = solve(jnp.asarray(1.5), jnp.asarray(0.2))
    assert (found.status, found.iterations) == (INACCURATE, 1)
    assert found.residual > 1e-8
    np.testing.assert_allclose(found.residual, again, rtol=1e-10)  # no face is active, so no multiplier is missing
