"""LV-HBA: its value function's gradients, the projection on the joint set, known solutions, refusals.

Unit tests of hierax._math.psi, hierax._math.convexity and hierax._math.convexity among them.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
from cases import EXACT, TOY, close, random_data, random_problem
from formulas import saddle_function

import hierax as hx
from hierax import LVHBA, Exact
from hierax._math.convexity import is_linear_space, joint_convexity, onto_linear_space, projection_problem
from hierax._math.psi import Inner, Iterate, inner_gradient, outer_gradient
from hierax.extend import SOLVED, Rows
from hierax.problems import toy
from hierax.problems.toy import local_minimisers
from hierax_lab.problems import gaffa_toy, lvhba_toy, random_qp, synthetic

STARTS = np.linspace(0.1, 2.95, 8)


# -- the value function ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def case() -> Any:
    data = random_data(3, 3, 3, 4, 2, level=0.5)
    centre = Iterate(data["x"], data["y"], data["z"])
    return random_problem(data), centre, Inner(data["w"], data["lam"]), data["zeta"], data["xi"]


def test_inner_gradients_by_formula_are_those_of_the_saddle_function(case: Any) -> None:
    problem, centre, inner, _, xi = case
    formula = jax.jit(lambda inner: inner_gradient(problem, centre, inner, 0.7, 0.3, xi))(inner)
    close(formula, jax.jit(jax.grad(lambda inner: saddle_function(problem, centre, inner, 0.7, 0.3, xi)))(inner))


def test_outer_gradients_by_formula_are_those_of_f_over_c_plus_g_minus_the_saddle_function(case: Any) -> None:
    """With (th, lam) held, which is the envelope theorem."""
    problem, centre, inner, zeta, xi = case

    def value(at: Iterate) -> jax.Array:
        gap = problem.lower(at.x, at.y, xi) - saddle_function(problem, at, inner, 0.7, 0.3, xi)
        return problem.upper(at.x, at.y, zeta) / 2.5 + gap

    formula = jax.jit(lambda at: outer_gradient(problem, at, inner, 2.5, 0.7, 0.3, zeta, xi))(centre)
    close(Iterate(formula.x, formula.y, formula.z), jax.jit(jax.grad(value))(centre))
    close(formula.upper, problem.upper(centre.x, centre.y, zeta))
    close(formula.lower, problem.lower(centre.x, centre.y, xi))


def test_the_value_function_has_these_gradients() -> None:
    """On G = (y - 2x)^2, H = y - x the saddle point is a linear system; differences of its value against d_x, d_y."""
    g1, g2, x, y, z = 0.8, 0.6, 1.1, 0.9, 1.5

    def saddle(x: float, y: float, z: float) -> Inner:
        # 2 (th - 2x) + lam + (th - y)/g1 = 0 and th - x = (lam - z)/g2, with lam inside [0, r].
        matrix = np.array([[2 + 1 / g1, 1.0], [1.0, -1 / g2]])
        th, lam = np.linalg.solve(matrix, [4 * x + y / g1, x - z / g2])
        return Inner(jnp.asarray(th), Rows(jnp.asarray(lam), None))

    def centre(x: float, y: float, z: float) -> Iterate:
        return Iterate(jnp.asarray(x), jnp.asarray(y), Rows(jnp.asarray(z), None))

    def value(x: float, y: float, z: float) -> float:
        at = centre(x, y, z)
        below = saddle_function(EXACT.problem, at, saddle(x, y, z), g1, g2, None)
        return float(EXACT.problem.upper(at.x, at.y, None) / 3 + EXACT.problem.lower(at.x, at.y, None) - below)

    inner = saddle(x, y, z)
    still = inner_gradient(EXACT.problem, centre(x, y, z), inner, g1, g2, None)
    close(still.w, 0.0 * still.w, atol=1e-12)
    formula = outer_gradient(EXACT.problem, centre(x, y, z), inner, 3.0, g1, g2, None, None)
    step = 1e-5
    differences = [
        (value(x + step, y, z) - value(x - step, y, z)) / (2 * step),
        (value(x, y + step, z) - value(x, y - step, z)) / (2 * step),
        (value(x, y, z + step) - value(x, y, z - step)) / (2 * step),
    ]
    np.testing.assert_allclose([formula.x, formula.y, formula.z.inequalities], differences, rtol=1e-8)


# -- the joint set ---------------------------------------------------------------------------------------------------


def test_projection_on_a_linear_space() -> None:
    """Against the least-squares solution, also where an equation is stated twice."""
    rng = np.random.default_rng(0)
    a, b, level = rng.standard_normal((2, 4)), rng.standard_normal((2, 3)), rng.standard_normal(2)

    def equalities(x: Any, y: Any) -> Any:
        return a @ x + b @ y - level, 2 * (a[0] @ x + b[0] @ y - level[0])

    problem = hx.Problem(lambda x, y, zeta: 0.0, lambda x, y, xi: 0.0, equalities=equalities)
    x, y = rng.standard_normal(4), rng.standard_normal(3)
    assert is_linear_space(problem, x, y)
    landed = jax.jit(lambda pair: onto_linear_space(problem, pair))((jnp.asarray(x), jnp.asarray(y)))
    both = np.hstack([a, b])
    expected = np.append(x, y) - np.linalg.pinv(both) @ (both @ np.append(x, y) - level)
    np.testing.assert_allclose(np.concatenate(landed), expected, atol=1e-12)


def test_projection_on_the_toys_set() -> None:
    """C = {0 <= y <= x <= 3}: the half-plane's projection is the mean of both, the corner is (3, 3)."""
    problem = projection_problem(EXACT.problem)
    project = jax.jit(lambda target: Exact().solve(problem, target, (jnp.ones(()), jnp.ones(()))))
    for target, expected in [((1.0, 2.0), (1.5, 1.5)), ((2.0, 1.0), (2.0, 1.0)), ((5.0, 4.0), (3.0, 3.0))]:
        found = project(tuple(map(jnp.asarray, target)))
        assert found.status == SOLVED
        np.testing.assert_allclose(found.y, expected, atol=1e-7)
    assert not is_linear_space(EXACT.problem, jnp.ones(()), jnp.ones(()))


def test_projection_on_ellipsoids() -> None:
    """Against SLSQP, from a point outside."""
    case = synthetic(0.0)
    target = np.concatenate([case.solutions[0].x, case.solutions[0].y]) * 1.5
    pair = jnp.asarray(target[:10]), jnp.asarray(target[10:])
    start = jnp.zeros(10), jnp.zeros(20)
    found = jax.jit(lambda pair: Exact().solve(projection_problem(case.problem), pair, start))(pair)
    rows = jax.jit(lambda v: case.problem.constraints(v[:10], v[10:]))
    assert rows(target).max() > 0.1
    best = scipy.optimize.minimize(
        lambda v: (0.5 * np.sum((v - target) ** 2), v - target),
        np.zeros(30),
        jac=True,
        method="SLSQP",
        bounds=[(-2, 2)] * 10 + [(-10, 10)] * 20,
        constraints={
            "type": "ineq",
            "fun": lambda v: -np.asarray(rows(v)),
            "jac": jax.jit(lambda v: -jax.jacobian(rows)(v)),
        },
        options={"ftol": 1e-14},
    )
    assert found.status == SOLVED
    np.testing.assert_allclose(np.concatenate(found.y), best.x, atol=1e-6)


CONVEXITY = {
    "affine": (lambda x, y: y[0] - 2 * x + 1e3, None, True, True),
    "jointly convex": (lambda x, y: jnp.sum(y**2) + x**2 + x * y[0] - 1, None, True, True),
    "bilinear": (lambda x, y: x * y[0] - 1.0, None, False, True),
    "convex in y only": (lambda x, y: jnp.sum(y**2) - x**2, None, False, True),
    "one direction of many": (lambda x, y: jnp.sum(y**2) - 0.1 * (x - y[3]) ** 2 - 1, None, False, True),
    "linear equality": (None, lambda x, y: jnp.sum(y) + x, True, True),
    "cubic equality": (None, lambda x, y: jnp.sum(y) + x**3, True, False),
}


@pytest.mark.parametrize("name", CONVEXITY)
def test_joint_convexity(name: str) -> None:
    constraints, equalities, convex, affine = CONVEXITY[name]
    problem = hx.Problem(lambda x, y, zeta: 0.0, lambda x, y, xi: 0.0, constraints, equalities)
    check = jax.jit(lambda x, y: joint_convexity(problem, x, y, jax.random.key(0)))
    assert check(jnp.asarray(0.3), jnp.linspace(-1.0, 1.0, 20)) == (convex, affine)


# -- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy_runs() -> hx.Solution:
    return hx.solve_many(EXACT.problem, STARTS, STARTS, LVHBA(), max_steps=3000)


def test_every_start_of_the_toy_ends_at_a_local_minimiser(toy_runs: hx.Solution) -> None:
    away = np.abs(np.asarray(toy_runs.x)[:, None] - local_minimisers())
    assert away.min(axis=1).max() < 1e-3
    assert sorted(set(away.argmin(axis=1))) == [0, 1, 2, 3]  # in particular 2.99077, not the corner x = 3
    np.testing.assert_allclose(toy_runs.y, toy_runs.x, atol=1e-3)
    np.testing.assert_allclose(toy_runs.multipliers.inequalities, 2 * toy_runs.x, atol=0.01)


def test_the_rules_for_the_steps_hold(toy_runs: hx.Solution) -> None:
    method = toy_runs.method
    assert (method.alpha <= method.eta).all()
    np.testing.assert_allclose(method.g1, 1.0, rtol=1e-6)  # 2/L_G
    assert (method.r > 2 * toy_runs.x).all()
    assert toy_runs.counts.lower_solves == 3000 + 1


def test_its_own_toy() -> None:
    """n = 100, equality multiplier -1, y*(x) not unique."""
    case = lvhba_toy()
    found = hx.solve(case.problem, case.x0, case.y0, LVHBA(), max_steps=10_000)
    (known,) = case.solutions
    np.testing.assert_allclose(found.x, known.x, atol=1e-2)
    close(found.y, known.y, atol=1e-2)
    assert found.multipliers.equalities == pytest.approx(-1.0, abs=1e-2)
    assert found.history["violation"][-1] < 1e-10


@pytest.mark.slow  # its own toy above
def test_the_linear_toy_of_gaffa() -> None:
    case = gaffa_toy()
    found = hx.solve(case.problem, case.x0, case.y0, LVHBA(start="given"), max_steps=3000)
    np.testing.assert_allclose(found.x, case.solutions[0].x, atol=1e-3)


@pytest.mark.slow  # known solutions: the toy above, and tests/test_methods.py
@pytest.mark.parametrize("seed", [0, 1])
def test_random_quadratic_problems(seed: int) -> None:
    """Near the planted solution: the error is that of c_k, about 0.01 after 8,000 steps."""
    case = random_qp(seed)
    found = hx.solve(case.problem, case.x0, case.y0, LVHBA(), max_steps=8000)
    np.testing.assert_allclose(found.x, case.solutions[0].x, atol=0.02)
    np.testing.assert_allclose(found.y, case.solutions[0].y, atol=0.05)
    assert found.history["violation"][-1] < 1e-7


def test_samples() -> None:
    """One batch of zeta and of xi per step, and decaying steps."""
    found = hx.solve(TOY.problem, 1.3, 1.3, LVHBA(), max_steps=2000, output="tail")
    assert found.x == pytest.approx(local_minimisers()[1], abs=0.02)
    assert isinstance(found.method.alpha, hx.Decay)
    assert found.counts.xi == found.counts.zeta == 2000


# -- settings --------------------------------------------------------------------------------------------------------


NOT_CONVEX = (
    "LVHBA: the set {H(x, y) <= 0} is not jointly convex in (x, y): between two points near the start a constraint "
    "lies above its chord, or its curvature is negative. LV-HBA projects on this set at every step. Use hx.BiCGAFFA(), "
    "hx.SALVF() or hx.BLOCC(), which need convexity in y only."
)
NOT_AFFINE = (
    "LVHBA: an equality is not jointly affine in (x, y), so the set of feasible (x, y) is not jointly convex. LV-HBA "
    "projects on this set at every step. Use hx.BiCGAFFA() or hx.SALVF()."
)


@pytest.mark.parametrize(
    ("problem", "x", "y", "text"),
    [
        (hx.Problem(EXACT.problem.upper, EXACT.problem.lower, lambda x, y: x * y - 1.0), 0.5, 0.5, NOT_CONVEX),
        (gaffa_toy(3, cubic=True).problem, gaffa_toy(3).x0, gaffa_toy(3).y0, NOT_AFFINE),
    ],
    ids=["bilinear", "cubic"],
)
def test_a_set_that_is_not_jointly_convex_is_refused(problem: hx.Problem, x: Any, y: Any, text: str) -> None:
    x, y = jax.tree.map(jnp.asarray, (x, y))
    with pytest.raises(hx.InputError, match="not jointly convex") as refusal:
        hx.solve(problem, x, y, LVHBA(), max_steps=1)
    assert str(refusal.value) == text


def test_given_numbers_are_in_the_users_units() -> None:
    """With eta given lam takes the same step, as in the paper, and constraints are not rescaled."""
    x, y = jnp.asarray(1.0), jnp.asarray(0.5)
    problem = toy(0.0, scale_constraint=7.0).problem
    asked = LVHBA(c=1.0, eta=0.2, alpha=0.05, start="given")
    method, state, _ = eqx.filter_jit(lambda x, y: asked.begin(problem, x, y, jax.random.key(0)))(x, y)
    assert method.scales.inequalities == 1.0
    assert method.rho == method.eta == 0.2
    assert method.alpha == 0.05
    assert state.point.y == 0.5
    assert state.point.z.inequalities == 0.0


@pytest.mark.parametrize(
    "settings", [{"c": 0.0}, {"q": 0.5}, {"q": 0.0}, {"alpha": optax.sgd(0.1)}, {"projection": 1}, {"start": "warm"}]
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(hx.InputError, match=next(iter(settings))):
        LVHBA(**settings)


def test_upper_constraints_are_refused() -> None:
    problem = hx.Problem(EXACT.problem.upper, EXACT.problem.lower, upper_constraints=lambda x, y: y - 1)
    with pytest.raises(hx.InputError, match="LVHBA: the published method has no constraints at the upper level"):
        hx.solve(problem, 1.0, 1.0, LVHBA(), max_steps=3)
