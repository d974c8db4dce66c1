"""BLOCC: known solutions, its gradient, the x-step, samples, exact solvers, what it refuses."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import EXACT, TOY, same

import hierax as hx
from hierax import BLOCC, Exact, MaxMin
from hierax.problems import toy
from hierax.problems.toy import local_minimisers
from hierax_lab.problems import gaffa_toy, random_qp, synthetic

STARTS = np.array([0.1, 0.5, 0.8, 1.2, 1.6, 2.0, 2.6, 2.95])
SHORT = MaxMin(dual_steps=20, primal_steps=5)
QUICK = BLOCC(lower=SHORT, penalised=SHORT)


# -- known solutions ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy_runs():
    return hx.solve_many(EXACT.problem, STARTS, STARTS, QUICK, max_steps=60)


def test_every_start_of_the_toy_ends_at_a_minimiser(toy_runs):
    sol = toy_runs
    away = np.abs(np.asarray(sol.x)[:, None] - local_minimisers())
    assert np.max(np.min(away, axis=1)) <= 1e-3  # x = 3 is 0.0092 from the last one: not accepted
    assert set(np.argmin(away, axis=1)) == {0, 1, 2, 3}
    np.testing.assert_allclose(sol.y, sol.x, atol=1e-6)
    np.testing.assert_allclose(sol.multipliers.inequalities, 2 * sol.x, atol=1e-5)
    np.testing.assert_allclose(sol.history["distance"][-1], 0.0, atol=1e-6)


def test_units_do_not_matter(toy_runs):
    """The same problem in other units, with everything estimated: the same answers."""
    units = {"scale_upper": 100.0, "scale_lower": 0.01, "scale_constraint": 30.0, "stretch": 5.0}
    other = hx.solve_many(toy(0.0, **units).problem, 5 * STARTS, 5 * STARTS, QUICK, max_steps=60)
    np.testing.assert_allclose(other.x / 5, toy_runs.x, rtol=1e-6)
    np.testing.assert_allclose(other.multipliers.inequalities * 3000, toy_runs.multipliers.inequalities, rtol=1e-6)
    np.testing.assert_allclose(other.method.eta.first / toy_runs.method.eta.first, 25 / 100, rtol=1e-8)


@pytest.fixture(scope="module")
def ellipsoids():
    example = synthetic(0.0)
    return example, hx.solve(example.problem, example.x0, example.y0, BLOCC(), max_steps=60)


def test_nonlinear_constraints(ellipsoids):
    example, sol = ellipsoids
    known = example.solutions[0]
    np.testing.assert_allclose(sol.x, known.x, atol=3e-3)
    np.testing.assert_allclose(sol.y, known.y, atol=1e-2)
    np.testing.assert_allclose(sol.multipliers.inequalities, known.multipliers, atol=1e-2)
    np.testing.assert_allclose(sol.history["upper"][-1], known.upper, rtol=1e-2)
    assert sol.history["inner_residual"][-1] < 1e-8
    assert sol.history["stationarity"][-1] < 1e-6


def test_the_bias_is_one_over_c(ellipsoids):
    """Ten times c, a tenth of the error; the same compiled step, and as many of them."""
    example, sol = ellipsoids
    known, c = example.solutions[0], float(sol.method.c)
    more = hx.solve(example.problem, example.x0, example.y0, BLOCC(c=10 * c), max_steps=60)
    ratio = np.linalg.norm(sol.x - known.x) / np.linalg.norm(more.x - known.x)
    assert 9 < ratio < 11


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 3))])
def test_random_qp_with_equalities(seed):
    """Affine constraints of both kinds, one x on its bound; the three problems share their program."""
    example = random_qp(seed, p=4, equalities=3)
    known = example.solutions[0]
    sol = hx.solve(example.problem, example.x0, example.y0, BLOCC(c=1000.0), max_steps=200)
    np.testing.assert_allclose(sol.x, known.x, atol=1e-3)
    np.testing.assert_allclose(sol.y, known.y, atol=1e-3)
    np.testing.assert_allclose(sol.multipliers.equalities, known.equality_multipliers, atol=1e-2)


@pytest.mark.slow  # Exact under BLOCC: a cycle in test_claims.py
def test_exact_solvers_where_the_lower_level_is_not_strongly_convex():
    """MaxMin cannot solve it and says so before the first step; Exact can, and is told of F + c G alone."""
    example = gaffa_toy(4)
    method = BLOCC(lower=Exact(), penalised=Exact())
    sol = hx.solve(example.problem, example.x0, example.y0, method, max_steps=100)
    known = example.solutions[0]
    np.testing.assert_allclose(sol.x, known.x, atol=1e-3)
    np.testing.assert_allclose(sol.y["y2"], known.y["y2"], atol=1e-3)
    x0, y0 = jax.tree.map(jnp.asarray, (example.x0, example.y0))
    for one in (BLOCC(lower=Exact()), BLOCC(penalised=Exact())):
        assert any(eqx.filter_jit(one.begin)(example.problem, x0, y0, jax.random.key(0)).doubts.values())
    with pytest.raises(hx.InputError, match="MaxMin: the lower objective is not strongly convex in y at the start"):
        hx.solve(example.problem, x0, y0, QUICK)


# -- the gradient ------------------------------------------------------------------------------------------------------


def test_the_direction_is_the_gradient_of_the_penalised_value():
    """F_c(x) = min {F + c G} - c min G by an exact solver, against the last of ten steps that hardly move."""
    example, c, eta = synthetic(0.0), jnp.asarray(7.0), 1e-7
    problem, x = example.problem, jnp.asarray(example.x0)
    path = []
    hx.solve(
        problem, x, example.y0, BLOCC(c=c, eta=eta), max_steps=10, record_every=1, callback=lambda i: path.append(i.x)
    )
    d = (path[-2] - path[-1]) / eta

    @jax.jit
    def value(x):
        both = lambda x, y, xi: problem.upper(x, y, None) + c * problem.lower(x, y, None)
        y = jnp.asarray(example.y0)
        penalised = Exact().solve(hx.Problem(problem.upper, both, problem.constraints, y_set=problem.y_set), x, y)
        return penalised.value - c * Exact().solve(problem, x, y).value

    for direction in np.random.default_rng(0).standard_normal((3, x.size)):
        h = 1e-4
        slope = (value(x + h * direction) - value(x - h * direction)) / (2 * h)
        np.testing.assert_allclose(jnp.vdot(d, direction), slope, rtol=1e-5)


# -- the x-step --------------------------------------------------------------------------------------------------------


def test_other_rules_for_x_and_what_a_state_allows():
    first = hx.solve(EXACT.problem, 1.2, 1.2, QUICK, max_steps=5)
    assert type(first.method.eta).__name__ == "Adaptive"  # by which the refusal below calls it
    adam = BLOCC(lower=SHORT, penalised=SHORT, eta=optax.adam(0.02))
    np.testing.assert_allclose(
        hx.solve(EXACT.problem, 1.2, 1.2, adam, max_steps=300).x, local_minimisers()[1], atol=1e-2
    )
    with pytest.raises(hx.InputError, match=r"whose eta is Adaptive\(\), which does not fit a number or schedule"):
        hx.solve(EXACT.problem, 1.2, 1.2, BLOCC(eta=0.02), state=first.state)
    on = hx.solve(EXACT.problem, 1.2, 1.2, BLOCC(lower=SHORT, penalised=SHORT), max_steps=5, state=first.state)
    same(on.x, hx.solve(EXACT.problem, 1.2, 1.2, QUICK, max_steps=10).x)


def test_a_step_that_is_too_long_is_named():
    """Where the lower level is solved with steps beyond 2/L the run fails, and the message says which step it was."""
    free = hx.Problem(upper=lambda x, y, zeta: (x - 1.0) ** 2 + y**2, lower=lambda x, y, xi: (y - x) ** 2)
    long = BLOCC(lower=MaxMin(20, 5, eta1=3.0), penalised=SHORT)
    with pytest.raises(hx.RunFailed, match=r"lower\.eta1=3 exceeds 2/L ~ 1"):
        hx.solve(free, 0.0, 0.0, long, max_steps=10)


# -- samples -----------------------------------------------------------------------------------------------------------


def test_samples_do_not_cost_more_noise_as_c_grows():
    """Eight seeds at c and 10 c: the spread of x is that of grad f, not c times that of g."""
    starts, spread = np.full(8, 1.2), []
    for c in (100.0, 1000.0):
        method = BLOCC(c=c, lower=SHORT, penalised=SHORT)
        sol = hx.solve_many(TOY.problem, starts, starts, method, max_steps=400)
        np.testing.assert_allclose(sol.x, local_minimisers()[1], atol=2e-2)
        spread.append(np.std(sol.x))
        assert sol.counts.zeta == sol.counts.xi == 400
    assert 0.5 < spread[1] / spread[0] < 2.0


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_a_penalised_problem_that_is_not_convex_is_refused():
    """F = -5 y^2: F + c G is concave for c = 1, and convex for the c that is estimated."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: -5.0 * y**2 + x**2, lower=lambda x, y, xi: (y - x) ** 2, y_set=hx.Box(-3.0, 3.0)
    )
    with pytest.raises(hx.InputError, match=r"on F \+ c G .* a larger c may help: MaxMin"):
        hx.solve(problem, 0.5, 0.5, BLOCC(c=1.0, lower=SHORT, penalised=SHORT))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"c": -1.0}, r"BLOCC\(c=-1.0\)"),
        ({"lower": hx.SALM()}, r"BLOCC\(lower\): needs hx.MaxMin\(\) or hx.Exact\(\), got SALM"),
        ({"penalised": None}, r"BLOCC\(penalised\): needs .* got NoneType"),
        ({"eta": -0.1}, r"^eta: needs a positive number"),
        ({"start": "cold"}, r"BLOCC\(start='cold'\)"),
        ({"batch_zeta": 0}, r"BLOCC\(batch_zeta=0\)"),
    ],
)
def test_bad_settings(settings, text):
    with pytest.raises(hx.InputError, match=text):
        BLOCC(**settings)
