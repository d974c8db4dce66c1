"""`from_cvxpy`: objective, rows, solutions and dual values against CVXPY's own, at several parameter values."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax.extend import INACCURATE, INFEASIBLE, UNBOUNDED

cp = pytest.importorskip("cvxpy", reason="the extra cvxpy is not installed")
pytest.importorskip("clarabel", reason="the extra cvxpy is not installed")

RNG = np.random.default_rng(0)
MEANS = np.array([0.1, 0.2, 0.15, 0.05])
ROOT = RNG.normal(size=(5, 4))
COVARIANCE = ROOT.T @ ROOT / 5 + 0.1 * np.eye(4)


def quadratic():
    """A portfolio: maximise, a quadratic form times a parameter, an equality, bounds by attribute and by constraint."""
    weights = cp.Variable(4, name="weights", nonneg=True)
    risk, cap = cp.Parameter(name="risk", nonneg=True, value=1.0), cp.Parameter(4, name="cap", value=np.full(4, 0.5))
    objective = cp.Maximize(MEANS @ weights - risk * cp.quad_form(weights, COVARIANCE))
    problem = cp.Problem(objective, [cp.sum(weights) == 1, weights <= cap])
    return problem, [risk, cap], [weights]


def matrices():
    """A matrix of variables, Fortran's order, a fixed parameter, and a parameter that multiplies a variable."""
    flows, slope = cp.Variable((2, 3), name="flows"), cp.Parameter((2, 2), name="slope", value=np.eye(2))
    fixed = cp.Parameter(3, name="fixed", value=np.array([1.0, 2.0, 3.0]))
    cost = 0.5 * cp.sum_squares(flows) + cp.sum(cp.multiply(slope @ flows, np.arange(6.0).reshape(2, 3)))
    return cp.Problem(cp.Minimize(cost), [cp.sum(flows, axis=0) == fixed, flows[0] >= -0.5]), [slope], [flows]


def residuals():
    """Least squares: CVXPY adds the residuals as variables, of which the lower level needs none."""
    y, shift = cp.Variable(3, name="y"), cp.Parameter(5, name="shift", value=np.ones(5))
    scale = cp.Parameter(name="scale", value=0.5)
    cost = cp.sum_squares(scale * (ROOT[:, :3] @ y) - shift) + 0.1 * cp.sum_squares(y)
    return cp.Problem(cp.Minimize(cost), [cp.sum(y) == 1, y <= 2]), [shift, scale], [y]


def linear():
    """A linear program with an absolute value, so with variables of CVXPY's own."""
    y, price = cp.Variable(3, name="y"), cp.Parameter(3, name="price", value=np.array([1.0, 2.0, -0.5]))
    problem = cp.Problem(cp.Minimize(price @ y + cp.norm1(y - 1.0)), [y >= 0, y <= 4, cp.sum(y) >= 1.5])
    return problem, [price], [y]


def ball():
    """A norm below a parameter: the cone's top does not depend on the variables."""
    y, radius = cp.Variable(3, name="y"), cp.Parameter(name="radius", nonneg=True, value=1.0)
    shift = np.array([1.0, 2.0, -2.0])
    bound = cp.norm(np.diag([1.0, 2.0, 0.5]) @ y) <= 2.0 * radius
    return cp.Problem(cp.Minimize(cp.sum_squares(y - shift)), [bound, y[0] <= 0.2]), [radius], [y]


def cone():
    """The same with a cone that the user writes, and so with a dual vector."""
    problem, parameters, (y,) = ball()
    stated = cp.SOC(2.0 * parameters[0], np.diag([1.0, 2.0, 0.5]) @ y)
    return cp.Problem(problem.objective, [stated, problem.constraints[1]]), parameters, [y]


def slope():
    """A norm below something that depends on the variables."""
    y, rate = cp.Variable(2, name="y"), cp.Parameter(name="rate", nonneg=True, value=0.5)
    bound = cp.norm(y - np.array([1.0, 3.0])) <= rate * y[0] + 1.0
    return cp.Problem(cp.Minimize(cp.sum_squares(y)), [bound]), [rate], [y]


def parabola():
    """Squares below a parameter: CVXPY writes them with a variable of its own."""
    y, budget = cp.Variable(3, name="y"), cp.Parameter(name="budget", nonneg=True, value=1.0)
    goal = np.array([1.0, 2.0, -2.0])
    problem = cp.Problem(cp.Minimize(cp.sum_squares(y - goal)), [cp.sum_squares(ROOT[:, :3] @ y) <= budget])
    return problem, [budget], [y]


def norm():
    """A norm in the objective, which is not zero at the solution."""
    y, weight = cp.Variable(3, name="y"), cp.Parameter(name="weight", nonneg=True, value=0.3)
    goal = np.array([1.0, 2.0, -2.0])
    problem = cp.Problem(cp.Minimize(cp.sum_squares(y - goal) + weight * cp.norm(y, 2)), [cp.sum(y) == 1])
    return problem, [weight], [y]


CASES = {case.__name__: case for case in (quadratic, matrices, residuals, linear, ball, cone, slope, parabola, norm)}
FORMS = {"ball": ["ball"], "cone": ["ball"], "slope": ["norm"], "parabola": ["parabola"], "norm": ["norm"]}
OTHER = {
    "quadratic": [(0.3, np.full(4, 0.4)), (5.0, np.array([0.6, 0.2, 0.5, 0.5]))],
    "matrices": [(np.array([[1.0, 0.5], [-0.3, 2.0]]),)],
    "residuals": [(np.array([3.0, -1.0, 2.0, 0.0, 1.0]), 2.0)],
    "linear": [(np.array([0.5, 3.0, -2.0]),), (np.array([-3.0, 0.2, 0.1]),)],
    "cone": [(0.5,), (20.0,)],
    "slope": [(0.1,), (2.0,)],
    "ball": [(0.5,), (1.0,), (20.0,)],  # the last is so large that the cone is not active
    "parabola": [(0.5,), (3.0,), (100.0,)],
    "norm": [(0.1,), (1.0,)],
}


TIGHT = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-9)


@pytest.fixture(scope="module")
def levels():
    return {name: hx.from_cvxpy(*case()) for name, case in CASES.items()}


def at(level, values):
    return {name: jnp.asarray(value, float) for name, value in zip(level.parameters, values, strict=True)}


def set_values(level, x):
    for name, parameter in level.parameters.items():
        parameter.value = np.asarray(x[name])


@pytest.mark.parametrize("name", CASES)
def test_the_start_is_cvxpys_solution(levels, name):
    level = levels[name]
    set_values(level, level.x0)
    level.cvxpy_problem.solve(solver=cp.CLARABEL)
    for key, variable in level.variables.items():
        np.testing.assert_allclose(level.y0[key], variable.value, atol=1e-6)
    sign = -1.0 if isinstance(level.cvxpy_problem.objective, cp.Maximize) else 1.0
    assert float(level.lower(level.x0, level.y0)) == pytest.approx(sign * level.cvxpy_problem.value, abs=1e-6)
    assert [one.form for one in level.program.cones] == FORMS.get(name, [])
    assert ("auxiliary" in level.y0) == (name in ("linear", "norm"))  # other variables of CVXPY's own are given by y


@pytest.mark.parametrize("name", ["quadratic", "matrices", "residuals"])
def test_objective_and_rows_are_cvxpys_anywhere(levels, name):
    """Where no variables of CVXPY's own are left, its expressions can be evaluated at any point."""
    level = levels[name]
    rng = np.random.default_rng(1)
    assert "auxiliary" not in level.y0
    for _ in range(3):
        x = {key: jnp.asarray(rng.uniform(0.1, 1.0, value.shape)) for key, value in level.x0.items()}
        y = {key: jnp.asarray(rng.normal(size=value.shape)) for key, value in level.y0.items()}
        set_values(level, x)
        for key, variable in level.variables.items():
            variable.save_value(np.asarray(y[key]))
        sign = -1.0 if isinstance(level.cvxpy_problem.objective, cp.Maximize) else 1.0
        assert float(level.lower(x, y)) == pytest.approx(sign * level.cvxpy_problem.objective.value, rel=1e-9)
        equal, *below = [np.ravel(one.expr.value, order="F") for one in level.cvxpy_problem.constraints]
        np.testing.assert_allclose(level.equalities(x, y), equal, atol=1e-9)
        rows = np.asarray(level.constraints(x, y)["linear"])
        for row in np.concatenate(below):  # among them, whatever their order
            assert np.isclose(rows, row, atol=1e-9).any()
        if name == "quadratic":
            np.testing.assert_allclose(np.sort(rows), np.sort(np.concatenate([*below, -np.asarray(y["weights"])])))


# The slow ones are compared at their start, and at random points, by the tests above; each costs seconds to compile.
QUICK = ("quadratic", "parabola")


@pytest.mark.parametrize("name", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES])
def test_solutions_and_duals_are_cvxpys(levels, name):
    """Solved by `Exact`, written back, and compared with CVXPY's own solve: values, duals, status."""
    level = levels[name]
    problem = level.problem(upper=lambda x, y, zeta: 0.0)
    for values in OTHER[name]:
        x = at(level, values)
        set_values(level, x)
        level.cvxpy_problem.solve(solver=cp.CLARABEL, **TIGHT)
        theirs = {key: np.array(variable.value) for key, variable in level.variables.items()}
        duals = [np.concatenate([np.ravel(d.value) for d in c.dual_variables]) for c in level.cvxpy_problem.constraints]
        best = level.cvxpy_problem.value
        found = hx.Exact(tol=1e-10).solve(problem, x, level.y0)
        level.write_back(found, x)
        assert level.cvxpy_problem.status == "optimal"
        assert level.cvxpy_problem.value == pytest.approx(best, rel=1e-6, abs=1e-7)
        for key, variable in level.variables.items():
            np.testing.assert_allclose(variable.value, theirs[key], atol=2e-5)
        for constraint, dual in zip(level.cvxpy_problem.constraints, duals, strict=True):
            own = np.concatenate([np.ravel(d.value) for d in constraint.dual_variables])
            np.testing.assert_allclose(own, dual, atol=1e-4, err_msg=f"{name} {values} {constraint}")


def test_conic_takes_squares(levels):
    """`Conic` reads the same program off the functions."""
    level = levels["parabola"]
    problem = level.problem(upper=lambda x, y, zeta: 0.0)
    solve = jax.jit(lambda x, y: hx.Conic().solve(problem, x, y))
    found = solve(level.x0, jax.tree.map(jnp.zeros_like, level.y0))
    np.testing.assert_allclose(found.y["y"], level.y0["y"], atol=1e-5)


def test_statuses_are_written_back(levels):
    """As CVXPY calls them; with no solution there are no values."""
    level = levels["quadratic"]
    found = hx.Exact(tol=1e-10).solve(level.problem(upper=lambda x, y, zeta: 0.0), level.x0, level.y0)
    for status, name in ((INFEASIBLE, "infeasible"), (UNBOUNDED, "unbounded")):
        assert level.write_back(found._replace(status=jnp.asarray(status)), level.x0).status == name
        assert level.variables["weights"].value is None
    with pytest.warns(UserWarning, match="inaccurate"):
        level.write_back(found._replace(status=jnp.asarray(INACCURATE)), level.x0)
    assert level.cvxpy_problem.status == "optimal_inaccurate"
    assert level.write_back(found, level.x0).status == "optimal"


@pytest.mark.slow  # statuses as they are written back: the test above
def test_what_has_no_solution_is_found_out(levels):
    level = levels["quadratic"]
    x = at(level, (1.0, np.full(4, 0.2)))  # at most 0.8 in all, but the sum is one
    found = hx.Exact(tol=1e-10).solve(level.problem(upper=lambda x, y, zeta: 0.0), x, level.y0)
    assert level.write_back(found, x).status == "infeasible"
    price, y = cp.Parameter(name="price", value=1.0), cp.Variable(name="y")
    other = hx.from_cvxpy(cp.Problem(cp.Minimize(price * y), [y >= 0]), [price], [y])
    x = {"price": jnp.asarray(-1.0)}
    found = hx.Exact().solve(other.problem(upper=lambda x, y, zeta: 0.0), x, other.y0)
    assert other.write_back(found, x).status == "unbounded"


@pytest.fixture(scope="module")
def portfolio(levels):
    """The upper level looks for the risk aversion and the caps that lead to a wanted portfolio."""
    level = levels["quadratic"]
    wanted = at(level, (0.3, np.full(4, 0.45)))
    set_values(level, wanted)
    level.cvxpy_problem.solve(solver=cp.CLARABEL, **TIGHT)
    target = jnp.asarray(level.variables["weights"].value)
    problem = level.problem(
        upper=lambda x, y, zeta: jnp.sum((y["weights"] - target) ** 2) + jnp.sum((x["cap"] - wanted["cap"]) ** 2),
        x_set={"risk": hx.Box(0.1, 10.0), "cap": hx.Box(0.0, 1.0)},
    )
    return hx.solve(problem, level.x0, level.y0)


def test_a_portfolio_is_solved_certified_and_written_back(levels, portfolio):
    level = levels["quadratic"]
    assert portfolio.status.name == "converged" and portfolio.certificate.ok(1e-4)
    assert float(portfolio.x["risk"]) == pytest.approx(0.3, rel=1e-2)
    assert level.write_back(portfolio).status == "optimal"
    duals = [np.array(c.dual_value) for c in level.cvxpy_problem.constraints]
    level.cvxpy_problem.solve(solver=cp.CLARABEL, **TIGHT)
    np.testing.assert_allclose(portfolio.y["weights"], level.variables["weights"].value, atol=1e-5)
    for own, constraint in zip(duals, level.cvxpy_problem.constraints, strict=True):
        np.testing.assert_allclose(own, constraint.dual_value, atol=1e-4)


def test_a_y_that_is_not_optimal_below_is_not_called_optimal(levels, portfolio):
    """The same x with weights that are feasible, and no more: CVXPY is told so, and warns."""
    off = dataclasses.replace(portfolio, y={"weights": jnp.array([0.4, 0.2, 0.2, 0.2])})
    with pytest.warns(UserWarning, match="inaccurate"):
        assert levels["quadratic"].write_back(off).status == "optimal_inaccurate"


def test_what_has_no_smooth_form_is_refused():
    y, p = cp.Variable(2, name="y"), cp.Parameter(2, name="p", value=np.ones(2))
    whole, square = cp.Variable(2, name="n", integer=True), cp.Variable((2, 2), name="S", symmetric=True)

    def refused(objective, constraints=(), parameters=(p,), variables=(y,)):
        with pytest.raises(hx.InputError) as error:
            hx.from_cvxpy(cp.Problem(cp.Minimize(objective), list(constraints)), parameters, variables)
        return str(error.value)

    assert "exponential cones" in refused(cp.sum(cp.exp(y)) + p @ y)
    assert "semidefinite" in refused(p @ y + cp.lambda_max(square), [square >> 0, y >= 0])
    assert "power cones" in refused(p @ y, [cp.PowCone3D(y[0], 1.0, y[1], 0.3), y <= 1])
    assert "not in DPP form" in refused(cp.sum_squares(cp.multiply(cp.square(p), y)))
    assert "not convex" in refused(-cp.sum_squares(y) + p @ y)
    assert "n is boolean or integer" in refused(p @ whole, [whole >= 0], variables=[whole])
    assert "attribute symmetric" in refused(p @ y + cp.sum_squares(square - 1), [y >= 0], variables=[y, square])
    assert "is unbounded at the parameters' values" in refused(p @ y)
    assert "is infeasible at the parameters' values" in refused(p @ y, [y >= 1, y <= 0])


def test_wrong_calls_are_refused():
    y, p, q = cp.Variable(2, name="y"), cp.Parameter(2, name="p", value=np.ones(2)), cp.Parameter(name="q")
    problem = cp.Problem(cp.Minimize(cp.sum_squares(y - p)), [y >= 0])
    wide = cp.Problem(cp.Minimize(cp.sum_squares(y - p) + q * cp.sum(y)), [y >= 0])
    stranger = cp.Variable(name="z")
    for call, text in [
        ((3, [p], [y]), "needs a cvxpy.Problem"),
        ((problem, p, [y]), "parameters: needs a list"),
        ((problem, [], [y]), "parameters: is empty"),
        ((problem, [y], [y]), "needs cvxpy.Parameters, got Variable"),
        ((problem, [p], [stranger]), "z is not in the problem"),
        ((problem, [p], {"a": y, "b": y}), "b is there twice"),
        ((problem, [p], {"auxiliary": y}), "is taken"),
        ((wide, [p, q], [y]), "q has no value; set q.value"),
        ((wide, [p], [y]), "its parameter q has no value"),
    ]:
        with pytest.raises(hx.InputError, match=text):
            hx.from_cvxpy(*call)
    level = hx.from_cvxpy(problem, [p], [y])
    with pytest.raises(hx.InputError, match="answer: needs a Solution"):
        level.write_back(3)
    risk = cp.Parameter(name="risk", nonneg=True, value=1.0)
    level = hx.from_cvxpy(cp.Problem(cp.Minimize(risk * cp.sum_squares(y - 1.0))), {"r": risk}, {"mine": y})
    assert list(level.x0) == ["r"] and list(level.y0) == ["mine"]
    with pytest.raises(hx.InputError, match="x_set: allows values"):
        level.problem(upper=lambda x, y, zeta: x["r"], x_set=hx.Box(-1.0, 1.0))


def test_without_cvxpy_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(hx.MissingExtra, match=r"hierax\[cvxpy\]"):
        hx.from_cvxpy(None, [], [])


def test_import_of_hierax_brings_none_of_the_bridged_packages():
    names = ("cvxpy", "torch", "flax", "pandas", "clarabel", "sklearn")
    code = f"import hierax, sys; print([name for name in {names} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.slow  # minutes of search in vain; what is said of a y that is not certified: above
def test_a_norm_that_is_zero_at_the_answer_is_solved_or_not_claimed():
    """y*(w) = max(0, 1 - w/3) a, so that F is zero at w = 4, where the norm has no derivative."""
    y, w = cp.Variable(3, name="y"), cp.Parameter(name="w", nonneg=True, value=1.0)
    lower = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(y - np.array([1.0, 2.0, -2.0])) + w * cp.norm(y, 2)))
    level = hx.from_cvxpy(lower, [w], [y])
    problem = level.problem(
        upper=lambda x, y, zeta: jnp.sum(y["y"] ** 2) + 0.01 * (x["w"] - 4.0) ** 2, x_set=hx.Box(0.01, 6.0)
    )
    sol = hx.solve(problem, level.x0, level.y0, seconds=15.0, throw=False)
    assert not sol.status.ok or sol.value < 1e-4, sol.status.message
