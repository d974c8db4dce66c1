"""Conic against SciPy, Clarabel itself and Exact; its statuses, the forms it refuses, and how it is called."""

import dataclasses
import operator
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lower_levels import INSTANCES, STACKED, START, by_clarabel, by_exact, by_scipy, problem_of, same_as

import hierax as hx
from hierax import Conic, InputError
from hierax.extend import INACCURATE, INFEASIBLE, SOLVED, UNBOUNDED
from hierax.problems import toy

TOY = toy(0.0).problem


def level(lower=None, constraints=None, equalities=None, y_set=None):
    """A lower level in y alone; 1/2 |y|^2 where no objective is given."""

    def of_y(function):
        return None if function is None else lambda x, y: function(y)

    objective = lower or (lambda y: 0.5 * jnp.sum(y**2))
    return hx.Problem(
        upper=lambda x, y, zeta: 0.0,
        lower=lambda x, y, xi: objective(y),
        constraints=of_y(constraints),
        equalities=of_y(equalities),
        y_set=y_set,
    )


@pytest.fixture(scope="module")
def found():
    """All random problems by one compiled program."""
    return jax.jit(jax.vmap(lambda one: Conic().solve(problem_of(one), None, START)))(STACKED)


@pytest.mark.parametrize("solver", [by_scipy, by_clarabel])
def test_agrees_with_others_on_random_problems(found, solver):
    assert np.all(found.status == SOLVED)
    assert np.max(found.residual) <= 1e-12  # interior point, then Newton
    for place, one in enumerate(INSTANCES):
        same_as(solver(one), jax.tree.map(operator.itemgetter(place), found), one)


def test_agrees_with_exact_on_points_multipliers_and_faces(found):
    exact = by_exact()
    np.testing.assert_allclose(found.value, exact.value, rtol=1e-7, atol=1e-7)
    unique = np.array([place for place, one in enumerate(INSTANCES) if one.E.any()])
    mine, other = (jax.tree.leaves((part.y, part.multipliers, part.faces)) for part in (found, exact))
    for a, b in zip(mine, other, strict=True):
        np.testing.assert_allclose(a[unique], b[unique], atol=1e-5 * (1 + np.max(np.abs(b[unique]))))


CASES = {
    "half-spaces": (level(constraints=lambda y: jnp.stack([y[0] - y[1] + 1, y[1] - y[0] + 1])), INFEASIBLE),
    "ellipsoids": (level(constraints=lambda y: jnp.stack([y @ y - 1, (y - 3) @ (y - 3) - 1])), INFEASIBLE),
    "empty row": (level(constraints=lambda y: y @ y + 1), INFEASIBLE),
    "beyond Y": (level(equalities=lambda y: jnp.sum(y) - 4, y_set=hx.Box(-jnp.inf, 1.0)), INFEASIBLE),
    "ray": (level(lambda y: 0.5 * y[0] ** 2 - y[1], lambda y: y[0] - 1), UNBOUNDED),
    "no constraints": (level(lambda y: 0.5 * y @ y - jnp.sum(y)), SOLVED),
}


@pytest.mark.parametrize("name", CASES)
def test_infeasible_and_unbounded_have_their_own_status(name):
    problem, status = CASES[name]
    assert jax.jit(lambda y: Conic().solve(problem, None, y).status)(jnp.zeros(2)) == status


REFUSED = {
    "lower(x, y, xi) is not quadratic in y": level(lambda y: jnp.sum(jnp.exp(y))),
    "lower(x, y, xi) is not convex in y": level(lambda y: y[0] ** 2 - y[1] ** 2),
    "constraints(x, y), or the faces of y_set, are neither affine nor quadratic in y": level(
        constraints=lambda y: jnp.stack([jnp.exp(y[0]) - 2, y[1]])
    ),
    "a quadratic row of constraints(x, y) is not convex in y": level(constraints=lambda y: 1 - y @ y),
    "equalities(x, y) are not affine in y": level(equalities=lambda y: 1 - y @ y),
}


def test_other_forms_are_doubted():
    """Inside jit the check is a part of the program."""
    found = jax.jit(lambda y: [Conic().doubts(problem, None, y) for problem in REFUSED.values()])(jnp.array([0.3, 0.4]))
    for text, flags in zip(REFUSED, found, strict=True):
        (name,) = [name for name, flag in flags.items() if flag]
        assert name.startswith(f"Conic: {text}")


def test_outside_jit_other_forms_are_refused():
    y = jnp.array([0.3, 0.4])
    with pytest.raises(InputError, match="not quadratic in y"):
        Conic().solve(REFUSED["lower(x, y, xi) is not quadratic in y"], None, y)
    found = Conic().solve(level(constraints=lambda y: 1 - y[0]), None, y)
    assert found.status == SOLVED
    np.testing.assert_allclose(found.y, [1.0, 0.0], atol=1e-9)
    np.testing.assert_allclose(found.multipliers.inequalities, 1.0, atol=1e-9)


def test_what_is_accepted_raises_no_doubts():
    """Nor does rounding: in single precision."""
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (STACKED, START))
    flags = jax.jit(jax.vmap(lambda one: Conic().doubts(problem_of(one), None, single[1])))(single[0])
    assert not any(np.any(flag) for flag in flags.values())


def test_a_wrong_form_inside_jit_is_never_called_solved():
    """The quadratic model at the start has another minimiser: the KKT residual tells."""
    problem = level(lambda y: jnp.sum(jnp.exp(y)) - 5 * y[0] - y[1])
    assert jax.jit(lambda y: Conic().solve(problem, None, y).status)(jnp.zeros(2)) == INACCURATE


def test_weakly_active_point_at_a_tolerance_out_of_reach():
    """Row and multiplier both vanish at the solution: asked for 1e-13 an interior-point method gives up near it."""
    problem = level(
        lambda y: 0.5 * y @ y - jnp.sum(y), lambda y: jnp.stack([jnp.sum(y) - 2, y[0] - 1]), y_set=hx.Ball(2**0.5)
    )
    found = jax.jit(lambda y: Conic(tol=1e-13).solve(problem, None, y))(jnp.array([0.3, -2.0]))
    assert found.status == SOLVED
    np.testing.assert_allclose(found.y, np.ones(2), atol=1e-9)
    np.testing.assert_allclose(found.multipliers.inequalities, np.zeros(2), atol=1e-9)


def svm(data, x, y):
    """The lower level of the SVM example, small: rows and slack in units of sqrt(N)."""
    size = y["slack"].size
    problem = hx.Problem(
        upper=lambda x, y, zeta: 0.0,
        lower=lambda x, y, xi: 0.5 * y["w"] @ y["w"] + 0.5 * jnp.sum(size * jax.nn.softmax(x) * y["slack"] ** 2),
        constraints=lambda x, y: 1 - data[1] * (data[0] @ y["w"] + y["b"]) - size**0.5 * y["slack"],
    )
    return problem, x, y


def test_svm_under_nested_vmap():
    """Batched weights, data seen through another vmap; G is flat in the intercept b."""
    rng = np.random.default_rng(0)
    points = jnp.asarray(rng.standard_normal((2, 20, 3)))
    labels = jnp.sign(points[..., 0] + 0.3)
    weights = jnp.asarray(rng.standard_normal((3, 20)))
    y = {"b": jnp.zeros(()), "slack": jnp.zeros(20), "w": jnp.zeros(3)}

    def solve(data, x):
        return Conic().solve(*svm(data, x, y))

    nested = jax.jit(jax.vmap(jax.vmap(solve, in_axes=(None, 0)), in_axes=(0, None)))((points, labels), weights)
    assert nested.value.shape == (2, 3)
    assert np.all(nested.status == SOLVED)
    assert np.max(nested.residual) < 1e-12  # G and the rows are convex: this proves optimality
    assert np.all(np.sum(nested.multipliers.inequalities > 1e-6, axis=-1) > 3)
    one = jax.jit(solve)((points[1], labels[1]), weights[2])
    np.testing.assert_allclose(one.value, nested.value[1, 2], rtol=1e-10)
    np.testing.assert_allclose(one.y["w"], nested.y["w"][1, 2], atol=1e-9)


def test_single_precision():
    """The host computes in double precision; what comes back has y's."""
    problem = dataclasses.replace(TOY, lower=lambda x, y, xi: jnp.mean((y - xi) ** 2))
    solve = jax.jit(lambda x, y, xi: Conic().solve(problem, x, y, xi))
    found = solve(jnp.float32(1.1), jnp.float32(0.0), jnp.array([2.0, 2.4], jnp.float32))
    assert {leaf.dtype for leaf in jax.tree.leaves(found[:5])} == {jnp.dtype("float32")}
    assert found.status == SOLVED
    np.testing.assert_allclose((found.y, found.multipliers.inequalities), (1.1, 2.2), rtol=1e-6)


def test_a_missing_solver_names_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "clarabel", None)
    with pytest.raises(hx.MissingExtra, match=r"hierax\[conic\]"):
        Conic().solve(TOY, jnp.asarray(1.0), jnp.asarray(0.0))


@pytest.mark.parametrize("settings", [{"solver": "ecos"}, {"tol": -1.0}, {"tol": None}, {"max_steps": 1.5}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(InputError, match=f"Conic.{next(iter(settings))}="):
        Conic(**settings)
