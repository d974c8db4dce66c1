"""`hx.psi`, `hx.envelope`, `hx.dual`: against values written down once more and closed forms; `hx.gradient_errors`."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from formulas import psi as known_psi
from formulas import saddle_value as known_ell

import hierax as hx
from hierax.extend import Rows
from hierax.problems import toy, toy_inner_solution

NUMBERS = {"c1": 5.0, "c2": 40.0, "gamma1": 0.7, "gamma2": 0.4}
METHOD = hx.SALVF(**NUMBERS)
GAMMAS = 0.7, 0.4
PROBLEM = toy(0.0).problem
SIGMA = 0.1
NOISY = toy(SIGMA).problem


def rows_of_all_kinds():
    """Two inequalities, an equality and an upper constraint, all curved."""
    return hx.Problem(
        lambda x, y, zeta: jnp.sum((y - 1.0) ** 2) + jnp.sum(x**2) * y[0] + jnp.mean(zeta),
        lambda x, y, xi: jnp.sum((y - x[0]) ** 2) + 0.1 * y[0] * y[1] + jnp.mean(xi) * y[2],
        constraints=lambda x, y: {"cap": jnp.stack([y[0] ** 2 + y[1] - x[1], y[2] - 0.5])},
        equalities=lambda x, y: y[0] + y[1] + y[2] - x[0],
        upper_constraints=lambda x, y: x[0] + y[0] ** 2 - 1.0,
        y_set=hx.Box(-2.0, 2.0),
        zeta=hx.Finite(np.array([0.5, 1.5])),
        xi=hx.Finite(np.array([-0.1, 0.3])),
    )


X, Y = np.array([0.4, 0.3]), np.array([0.2, 0.5, 0.7])
Z = hx.Multipliers({"cap": np.array([0.3, 0.8])}, np.array(0.4), None)
NU = hx.Multipliers({"cap": np.array([1.0, 0.5])}, np.array(-0.3), np.array(0.6))


def test_psi_is_the_value_written_down_once_more_and_its_gradient():
    problem = rows_of_all_kinds()
    w, lam = np.array([0.1, 0.2, 0.3]), Rows({"cap": np.array([0.6, 0.1])}, np.array(-0.2))
    found = hx.psi(problem, X, Y, Z, METHOD, nu=NU, inner=(w, lam))
    zeta, xi = problem.zeta.full(), problem.xi.full()

    def value(x, y, z):
        return known_psi(problem, (x, y, z, NU), SimpleNamespace(w=w, lam=lam), NUMBERS.values(), zeta, xi)

    at = X, Y, Rows(*Z[:2])
    np.testing.assert_allclose(found.value, value(*at), rtol=1e-12)
    slopes = jax.grad(value, (0, 1, 2))(*at)
    for name, slope in zip("xyz", slopes, strict=True):
        for a, b in zip(jax.tree.leaves(getattr(found, name)), jax.tree.leaves(slope), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    ell = known_ell(problem, X, at[2], w, lam, *GAMMAS, xi)
    np.testing.assert_allclose(found.envelope.value, ell, rtol=1e-12)
    np.testing.assert_allclose(found.gap, problem.lower(X, Y, xi) - ell, rtol=1e-12)
    h, e = problem.constraints(X, Y)["cap"], problem.equalities(X, Y)
    np.testing.assert_allclose(found.infeasibility, 0.5 * (np.sum(np.maximum(h, 0) ** 2) + e**2), rtol=1e-12)


def test_psi_on_batches_is_the_stochastic_gradient():
    """Eq. 2.10 and 2.11: the batches stand for both expectations."""
    problem = rows_of_all_kinds()
    inner = (Y, Rows({"cap": np.zeros(2)}, np.zeros(())))
    mean = hx.psi(problem, X, Y, Z, METHOD, inner=inner)
    batches = [(np.array([0.5]), np.array([-0.1])), (np.array([1.5]), np.array([0.3]))]
    rows = [hx.psi(problem, X, Y, Z, METHOD, inner=inner, zeta=zeta, xi=xi) for zeta, xi in batches]
    noise = METHOD.c1 * (0.3 + 0.1)  # of c1 grad_y g, which lets y_2 vary
    np.testing.assert_allclose(rows[1].y - rows[0].y, [0, 0, noise], atol=1e-12)
    np.testing.assert_allclose(rows[1].x, rows[0].x, atol=1e-12)  # both g-terms share the batch, and w = y
    np.testing.assert_allclose(np.mean([one.value for one in rows]), mean.value, rtol=1e-12)


def test_scales_change_numbers_only():
    """With rows divided by s, gammas by s^2 and c2 times s^2 it is the same Psi, in the user's z."""
    s = hx.Multipliers(np.array(3.0), None, None)
    one = hx.psi(PROBLEM, 1.2, 1.4, 0.9, hx.SALVF(**NUMBERS), nu=0.3)
    two = hx.psi(PROBLEM, 1.2, 1.4, 0.9, hx.SALVF(c1=5.0, c2=360.0, gamma1=0.7 / 9, gamma2=0.4 / 9, scales=s), nu=0.3)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("x", "z"), [(0.4, 0.0), (1.0, 2.0), (2.5, 7.0)])
def test_the_envelope_on_the_toy(x, z):
    """The saddle point in closed form, the gradient by central differences, E <= v = x^2."""
    found = hx.envelope(PROBLEM, x, x, z, METHOD)
    w, lam = toy_inner_solution(jnp.asarray(x), jnp.asarray(z), *GAMMAS)
    np.testing.assert_allclose([found.w, found.lam.inequalities], [w, lam], rtol=1e-8)
    assert found.value <= x**2 + 1e-12

    def value(x, z):
        w, lam = toy_inner_solution(jnp.asarray(x), jnp.asarray(z), *GAMMAS)
        return known_ell(PROBLEM, x, Rows(z, None), w, Rows(lam, None), *GAMMAS, None)

    np.testing.assert_allclose(found.value, value(x, z), rtol=1e-10)
    h = 1e-5
    np.testing.assert_allclose(found.x, (value(x + h, z) - value(x - h, z)) / (2 * h), atol=1e-6)
    np.testing.assert_allclose(found.z.inequalities, (value(x, z + h) - value(x, z - h)) / (2 * h), atol=1e-6)
    assert found.solved


def test_the_dual_function_on_the_toy():
    """D = min over y of (y - 2x)^2 + A(x, y, z), a quadratic where the row is pushed; its slope by differences."""
    x, z, gamma = 1.0, 1.5, 0.7

    def value(z):
        y = (2 * x + (x / gamma - z) / 2) / (1 + 1 / (2 * gamma))
        assert gamma * z + y - x > 0
        return (y - 2 * x) ** 2 + ((gamma * z + y - x) ** 2 - (gamma * z) ** 2) / (2 * gamma)

    found = hx.dual(PROBLEM, x, 0.3, z, hx.SALVF(gamma1=gamma))
    np.testing.assert_allclose(found.value, value(z), rtol=1e-9)
    np.testing.assert_allclose(found.z.inequalities, (value(z + 1e-5) - value(z - 1e-5)) / 2e-5, atol=1e-8)
    assert found.lam.inequalities == z
    assert hx.envelope(PROBLEM, x, x, z, METHOD).value >= found.value - 1e-12  # E(x, z) >= D(x, z)


@pytest.mark.parametrize("method", [hx.SALVF(gamma2=0.0), hx.SALVF(inner=hx.Exact())])
def test_with_gamma2_zero_the_envelope_is_the_value(method):
    found = hx.envelope(PROBLEM, 1.3, 0.2, 9.0, method)
    np.testing.assert_allclose([found.value, found.w, found.lam.inequalities], [1.69, 1.3, 2.6], rtol=1e-7)
    assert found.z.inequalities == 0


def test_distance_to_the_normal_cone():
    """Faces hold back what points out of them; a gradient mapping with a long step sees more of the set."""
    square = hx.Problem(
        lambda x, y, _: 3.0 * x[0] - 2.0 * x[1] + x[2],
        lambda x, y, _: (y - 1.0) ** 2,
        lambda x, y: y - 2.0,
        x_set=hx.Box(0.0, 1.0),
        y_set=hx.Box(-5.0, 5.0),
    )
    method = hx.SALVF(c1=1.0, c2=1.0, gamma1=1.0, gamma2=1.0)
    found = hx.psi(square, [0.0, 1.0, 0.5], 1.0, 0.0, method)  # the first two entries of x are held
    np.testing.assert_allclose(found.stationarity, 1.0, rtol=1e-6)
    assert hx.psi(square, [0.0, 1.0, 0.0], 1.0, 0.0, method).stationarity < 1e-6
    np.testing.assert_allclose(hx.psi(square, [0.0, 1.0, 0.5], 1.0, 0.0, method, step=2.0).stationarity, 0.25)
    np.testing.assert_allclose(hx.psi(square, [0.5, 0.5, 0.5], 1.0, 0.0, method).stationarity, 14**0.5, rtol=1e-6)
    ball = hx.Problem(square.upper, square.lower, square.constraints, x_set=hx.Ball(1.0))
    on_it = np.array([0.0, 1.0, 0.0])  # -grad = (-3, 2, -1): its part along the normal is held
    np.testing.assert_allclose(hx.psi(ball, on_it, 1.0, 0.0, method).stationarity, 10**0.5, rtol=1e-5)


def test_unset_numbers_are_those_of_a_run():
    sol = hx.solve(NOISY, 1.0, 1.0, hx.SALVF(), max_steps=1, seed=4)
    found = hx.psi(NOISY, 1.0, 1.0, 2.0, hx.SALVF(), seed=4)
    given = hx.psi(NOISY, 1.0, 1.0, 2.0, sol.method, seed=4)
    np.testing.assert_allclose(found.value, given.value, rtol=1e-12)


def test_errors_of_the_gradient_with_an_exact_inner_solver():
    """b = noise of f over r plus c1 times that of g in y over q; it has no bias, and delta is 0."""
    r, q, c1 = 4, 2, 5.0
    method = hx.SALVF(c1=c1, c2=40.0, inner=hx.Exact(), batch_zeta=r, batch_xi=q, control_variate=False)
    found = hx.gradient_errors(NOISY, 1.2, 1.3, 2.0, method, draws=1000)
    expected = 2 * SIGMA**2 / r + c1**2 * SIGMA**2 / q
    assert abs(found.variance.value - expected) < 4 * found.variance.se < 0.3 * expected
    assert abs(found.mean_square.value - expected) < 4 * found.mean_square.se
    assert found.bias.value < 3 * found.bias.se
    parts = found.bias.value**2 + found.variance.value * (1 - 1 / 1000)
    np.testing.assert_allclose(found.mean_square.value, parts, rtol=1e-9)
    assert max(found.delta.value, found.w_error.value, found.lam_error.value) < 1e-12


def test_errors_of_the_gradient_with_salm_fall_with_its_steps():
    """Theorem 3.3: both errors fall with s, and with them delta and the bias; more draws shrink the standard error."""
    few, many = (
        hx.gradient_errors(
            NOISY, 1.2, 1.3, 2.0, hx.SALVF(**NUMBERS, inner=hx.SALM(steps=s, rule="paper", warm=False)), draws=256
        )
        for s in (20, 400)
    )
    for name in ("w_error", "lam_error", "delta"):
        assert getattr(many, name).value < 0.2 * getattr(few, name).value
    assert few.delta.value > 4 * few.delta.se and few.bias.value > 4 * few.bias.se
    assert many.bias.value < 0.5 * few.bias.value
    assert many.exact.value == few.exact.value


def test_errors_do_not_depend_on_how_rows_are_scaled():
    """The same lower level with its row times 8: a run's own scales make it the same run, and the errors agree."""
    steep = hx.Problem(
        NOISY.upper, NOISY.lower, lambda x, y: 8.0 * (y - x), zeta=NOISY.zeta, xi=NOISY.xi, x_set=NOISY.x_set,
        y_set=NOISY.y_set,
    )  # fmt: skip
    method = hx.SALVF(c1=5.0, inner=hx.SALM(steps=20))
    one = hx.gradient_errors(NOISY, 1.2, 1.2, 2.0, method, draws=64)
    two = hx.gradient_errors(steep, 1.2, 1.2, 0.25, method, draws=64)
    np.testing.assert_allclose([one.delta, one.w_error], [two.delta, two.w_error], rtol=1e-4)
    np.testing.assert_allclose(one.lam_error, 64 * np.array(two.lam_error), rtol=1e-4)


REFUSED = {
    "z": (lambda: hx.psi(PROBLEM, 1.0, 1.0, np.ones(2), METHOD), "z: needs numbers shaped like"),
    "inner": (lambda: hx.psi(PROBLEM, 1.0, 1.0, 1.0, METHOD, inner=(1.0, [1.0, 2.0])), "inner: needs numbers shaped"),
    "method": (lambda: hx.envelope(PROBLEM, 1.0, 1.0, 1.0, hx.BLOCC()), "method: needs a hx.SALVF, whose Psi it is"),
    "draws": (lambda: hx.gradient_errors(PROBLEM, 1.0, 1.0, 1.0, METHOD, draws=0), r"gradient_errors\(draws=0\)"),
    "stream": (
        lambda: hx.dual(
            hx.Problem(PROBLEM.upper, PROBLEM.lower, PROBLEM.constraints, xi=hx.Stream([np.ones(2)])), 1.0, 1.0, 1.0,
            METHOD,
        ), "a Stream is never seen as a whole",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "text"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_asked_is_refused_by_name(make, text):
    with pytest.raises(hx.InputError, match=text):
        make()
