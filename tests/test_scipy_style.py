"""`minimize_bilevel`: SciPy's conventions in and out, judged by SciPy itself where it can solve the lower level."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize
from scipy.optimize import Bounds, LinearConstraint, NonlinearConstraint

import hierax as hx


def upper(x, y):
    return (y - 1.0) ** 2 + 0.1 * x**2


def lower(x, y):
    return (y - 2.0 * x) ** 2


README = {"constraints": {"type": "ineq", "fun": lambda x, y: x - y}, "bounds_x": [(0, 3)], "bounds_y": [(0.0, None)]}


@pytest.fixture(scope="module")
def readme():
    return hx.minimize_bilevel(upper, lower, 0.5, [0.5], **README)


def test_the_readme_problem(readme):
    """Its answer in closed form: x = y = 1/1.1 with the multiplier 2/1.1."""
    assert isinstance(readme, optimize.OptimizeResult)
    assert readme.success is True and readme.status == 0
    np.testing.assert_allclose([readme.x[0], readme.y[0]], 1 / 1.1, rtol=1e-5)
    np.testing.assert_allclose(readme.multipliers[0], [2 / 1.1], rtol=1e-4)
    assert readme.fun == pytest.approx(float(upper(readme.x, readme.y)[0]), rel=1e-12)
    assert readme.lower_fun == pytest.approx(float(lower(readme.x, readme.y)[0]), rel=1e-12)
    assert readme.certificate.ok(1e-4) and readme.certificate is readme.solution.certificate
    assert readme.message == readme.solution.status.message
    assert readme.upper_multipliers == []


# Every kind of constraint at once: an equality, one side, two sides of which one is active, and a linear row.
def two_by_two():
    def f(x, y):
        return (y[0] - x[0]) ** 2 + 2.0 * (y[1] - x[1]) ** 2 + 0.5 * y[0] * y[1] + y[2] ** 2

    constraints = [
        {"type": "eq", "fun": lambda x, y: y[0] + y[2] - x[0]},
        NonlinearConstraint(lambda x, y: jnp.stack([y[0] ** 2 + y[1] ** 2, y[1] - x[0]]), [-np.inf, -1.0], [1.0, 5.0]),
        LinearConstraint([[0.0, 0.0, 1.0, -1.0, 0.0]], -0.1, 0.3),
        {"type": "ineq", "fun": lambda x, y, most: most - y, "args": (2.0,)},
    ]
    return f, constraints


def as_scipy_alone(x, constraints):
    """The same constraints on y alone, for SciPy."""
    eq, curved, linear, most = constraints
    part = np.asarray(linear.A)
    return [
        {"type": "eq", "fun": lambda y: np.asarray(eq["fun"](x, y))},
        NonlinearConstraint(lambda y: np.asarray(curved.fun(x, y)), curved.lb, curved.ub),
        LinearConstraint(part[:, x.size :], linear.lb - part[:, : x.size] @ x, linear.ub - part[:, : x.size] @ x),
        {"type": "ineq", "fun": lambda y: np.asarray(most["fun"](x, y, *most["args"]))},
    ]


def test_every_kind_of_constraint_means_what_it_means_in_scipy():
    f, constraints = two_by_two()
    x0, wanted = np.array([1.4, 0.9]), jnp.array([1.0, 0.9])
    res = hx.minimize_bilevel(
        lambda x, y: jnp.sum((x - wanted) ** 2) + 0.1 * y[1],
        f,
        x0,
        np.array([0.4, 0.2, 1.0]),
        constraints=constraints,
        bounds_x=Bounds([-2.0, -2.0], 2.0),
        bounds_y=Bounds(-3.0, 3.0),
        upper_constraints=[{"type": "eq", "fun": lambda x, y: x[0] - 1.4}],
    )
    assert res.success, res.message
    assert res.x[0] == pytest.approx(1.4, abs=1e-6)
    np.testing.assert_allclose(res.upper_multipliers[0], 2 * (1.4 - 1.0), atol=1e-3)  # y[1] does not move with x[0]

    def value(y):
        return float(f(res.x, y))

    below = optimize.minimize(
        value,
        np.array([0.5, 0.3, 0.9]),
        jac=lambda y: np.asarray(jax.grad(f, 1)(res.x, y)),
        method="SLSQP",
        bounds=Bounds(-3.0, 3.0),
        constraints=as_scipy_alone(res.x, constraints),
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert below.success
    np.testing.assert_allclose(res.y, below.x, atol=1e-5)
    assert res.lower_fun == pytest.approx(below.fun, abs=1e-6)

    # The gradient of f is the sum of multipliers times gradients: no bound of y is active.
    pulled = np.zeros(3)
    for one, multipliers in zip(constraints, res.multipliers, strict=True):
        if isinstance(one, dict):
            fun = lambda y, one=one: one["fun"](res.x, y, *one.get("args", ()))
        elif isinstance(one, LinearConstraint):
            fun = lambda y, one=one: jnp.asarray(one.A) @ jnp.concatenate([jnp.asarray(res.x), y])
        else:
            fun = lambda y, one=one: one.fun(res.x, y)
        shape = jax.eval_shape(fun, jnp.asarray(res.y)).shape
        assert np.shape(multipliers) == shape
        pulled += np.asarray(jax.vjp(fun, jnp.asarray(res.y))[1](jnp.asarray(multipliers))[0])
    np.testing.assert_allclose(pulled, np.asarray(jax.grad(f, 1)(res.x, jnp.asarray(res.y))), atol=1e-4)
    assert res.multipliers[1][0] < -1e-3 and res.multipliers[1][1] == 0.0  # the upper side of the first entry holds it
    assert res.multipliers[3] == pytest.approx(np.zeros(3))


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"F": 3}, "F: needs a function"),
        ({"F": lambda x: x[0]}, r"F failed .* called as F\(x, y\)"),
        ({"F": lambda x, y: x * jnp.ones(2)}, r"F: must return a single number, got an array of shape \(2,\)"),
        ({"f": lambda x, y: np.sin(y)[0] + float(x[0])}, "use jax.numpy"),
        ({"f": lambda x, y: 1}, "f: must return a real number"),
        ({"x0": [[0.5]]}, "x0: needs one dimension"),
        ({"x0": "half"}, "x0: needs a number"),
        ({"y0": []}, "y0: needs finite numbers"),
        ({"y0": np.nan}, "y0: needs finite numbers"),
        ({"constraints": 3}, "constraints: needs a dictionary"),
        ({"constraints": [lambda x, y: y]}, r"constraints\[0\]: needs a dictionary"),
        ({"constraints": {"fun": lambda x, y: y}}, "needs a type, 'ineq'"),
        ({"constraints": {"type": "le", "fun": lambda x, y: y}}, "got 'le'"),
        ({"constraints": {"type": "eq"}}, "needs 'fun'"),
        ({"constraints": {"type": "eq", "fun": lambda x, y: y, "jac": None}}, "leave jac out"),
        ({"constraints": {"type": "eq", "fun": lambda x, y: y, "tol": 1}}, "does not know 'tol'"),
        ({"constraints": {"type": "eq", "fun": lambda y: y}}, r"called as fun\(x, y\)"),
        ({"constraints": LinearConstraint([[1.0]], 0.0, 1.0)}, "1 for x and then 1 for y"),
        ({"constraints": NonlinearConstraint(lambda x, y: y, 1.0, 0.0)}, "must be <= ub"),
        ({"constraints": NonlinearConstraint(lambda x, y: y, [0.0, 0.0], 1.0)}, "has 2 bounds"),
        ({"constraints": NonlinearConstraint(lambda x, y: y, 0.0, 1.0, keep_feasible=True)}, "keep_feasible"),
        ({"bounds_x": [(0, 1), (0, 1)]}, "2 pairs"),
        ({"bounds_x": (0, 1)}, r"bounds_x\[0\]: needs a pair"),
        ({"bounds_x": 3.0}, "needs pairs"),
        ({"bounds_y": [(1, 0)]}, "no number is between the bounds 1 and 0"),
        ({"bounds_y": [(np.inf, np.inf)]}, "no number is between the bounds inf and inf"),
        ({"bounds_y": [("a", 0)]}, "numbers or None"),
        ({"bounds_y": Bounds([0.0, 0.0], 1.0)}, "2 bounds"),
        ({"method": "SLSQP"}, "is unknown; choose auto, salvf"),
        ({"options": {"ftol": 1e-3}}, "does not know 'ftol'; there are maxiter"),
        ({"options": 3}, "needs a dictionary"),
    ],
)
def test_wrong_calls_are_refused(changes, text):
    call = {"F": upper, "f": lower, "x0": 0.5, "y0": 0.5} | changes
    with pytest.raises(ValueError, match=text):
        hx.minimize_bilevel(call.pop("F"), call.pop("f"), call.pop("x0"), call.pop("y0"), **call)


def test_a_limit_is_no_success(readme):
    """The point may be as good as it likes: nothing was certified in the time."""
    res = hx.minimize_bilevel(upper, lower, 0.5, [0.5], **README, options={"seconds": 1e-3})
    assert readme.success and not res.success
    assert res.status == 1 and res.message.startswith("seconds")


@pytest.mark.parametrize(
    "f, constraints, status",
    [
        (lower, [{"type": "ineq", "fun": lambda x, y: x - y}, {"type": "ineq", "fun": lambda x, y: y - x - 1.0}], 3),
        (lambda x, y: (y - 2.0 * x) + 0.0 * y**2, [{"type": "ineq", "fun": lambda x, y: x - y}], 4),
    ],
    ids=["infeasible", "unbounded"],
)
def test_what_has_no_solution_is_no_success(f, constraints, status):
    res = hx.minimize_bilevel(upper, f, 0.5, 0.5, constraints=constraints, bounds_x=[(0, 3)])
    assert not res.success and res.status == status, res.message
