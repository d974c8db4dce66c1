"""The gradient of F(x, y*(x)): against the formula with dy*/dx, finite differences, and where it does not exist.

Unit tests of hierax._math.hypergradient.
"""

from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from cases import EXACT, close, random_data, random_problem

import hierax as hx
from hierax._math.hypergradient import (
    active_rows,
    adjoint,
    fits,
    hypergradient,
    kkt_system,
    margins,
    upper_gradient_y,
)
from hierax._math.lower_level import rows_at
from hierax._problem import sets
from hierax.extend import Faces, LowerSolution, Rows
from hierax.problems.toy import hyper_objective


def found_at(y: Any, multipliers: Rows, faces: Faces) -> LowerSolution:
    """A lower level's solution as a solver would hand it over."""
    zero = jnp.zeros(())
    return LowerSolution(y, multipliers, faces, zero, zero, jnp.zeros((), int), jnp.zeros((), int))


class Seen(NamedTuple):
    """The gradient and the system behind it."""

    gradient: Any
    margin: jax.Array
    smallest: jax.Array
    singular: jax.Array
    flat: jax.Array
    active: jax.Array


def gradient_at(problem: hx.Problem, x: Any, found: LowerSolution, zeta: Any = None, xi: Any = None) -> Seen:
    """Compiled: op by op it takes seconds."""

    @jax.jit
    def seen(x: Any, found: LowerSolution) -> Seen:
        system = kkt_system(problem, x, found, xi)
        active = active_rows(system)
        solved = adjoint(system, active, upper_gradient_y(problem, x, found.y, zeta))
        margin = jnp.min(margins(system), initial=jnp.inf)
        gradient = hypergradient(problem, x, found, zeta, xi)
        return Seen(gradient, margin, solved.smallest, solved.singular, solved.flat, active)

    return seen(x, found)


def vector(tree: Any) -> jax.Array:
    return jax.flatten_util.ravel_pytree(tree)[0]


class Planted:
    """A random smooth problem whose lower solution at x is known: rows 0, 2, .. and one bound of Y are active."""

    def __init__(self, seed: int) -> None:
        data = random_data(seed, 3, 3, 4, 2, level=1.0)
        self.x, y, multipliers = data["x"], data["y"], data["lam"]
        bound = [jnp.array([-np.inf, y[0][1], -np.inf]), jnp.full((2, 1), -np.inf)]
        base = random_problem(data, y_set=hx.Box(bound, np.inf))
        self.active_rows = jnp.array([1.0, 0.0, 1.0, 0.0])
        rows = multipliers.inequalities["rows"] * self.active_rows
        multipliers = Rows({"rows": rows, "ball": jnp.zeros(())}, multipliers.equalities)
        zero_faces = jax.tree.map(jnp.zeros_like, sets.faces(base.y_set, y))
        pushed = zero_faces.inequalities[0]["lower"][0].at[1].set(0.7)
        zero_faces.inequalities[0]["lower"][0] = pushed
        self.found = found_at(y, multipliers, zero_faces)
        inactive = {"rows": self.active_rows - 1.0, "ball": jnp.asarray(-1.0)}
        at_h, at_e = base.constraints(self.x, y), base.equalities(self.x, y)

        def constraints(x: Any, y: Any) -> Any:
            return jax.tree.map(lambda a, b, c: a - b + c, base.constraints(x, y), at_h, inactive)

        def equalities(x: Any, y: Any) -> Any:
            return jax.tree.map(jnp.subtract, base.equalities(x, y), at_e)

        self.xi, self.zeta = data["xi"], data["zeta"]
        moved = hx.Problem(base.upper, base.lower, constraints, equalities, y_set=base.y_set)
        self.mu = vector((rows, 0.0 * pushed[0], multipliers.equalities))
        slope = jax.grad(lambda v: self.lagrangian(moved, self.x, v))(y)

        def lower(x: Any, y: Any, xi: Any) -> jax.Array:
            return base.lower(x, y, xi) - vector(slope) @ vector(y)

        self.problem = hx.Problem(base.upper, lower, constraints, equalities, y_set=base.y_set)

    def lagrangian(self, problem: hx.Problem, x: Any, y: Any) -> jax.Array:
        faces = vector(self.found.faces) @ vector(sets.faces(problem.y_set, y))
        return problem.lower(x, y, self.xi) + faces + vector(self.found.multipliers) @ vector(problem.rows(x, y))

    def conditions(self, x: Any, unknowns: jax.Array) -> jax.Array:
        """KKT conditions of the active set in (y, multipliers), flat: the reference that does not use the library."""
        unravel = jax.flatten_util.ravel_pytree(self.found.y)[1]
        n = vector(self.found.y).size
        y, lam = unknowns[:n], unknowns[n:]

        def active(v: jax.Array) -> jax.Array:
            at = unravel(v)
            rows = self.problem.constraints(x, at)["rows"]
            bound = self.found.y[0][1] - at[0][1]
            return jnp.concatenate([rows[jnp.array([0, 2])], bound[None], vector(self.problem.equalities(x, at))])

        slope = jax.grad(lambda v: self.problem.lower(x, unravel(v), self.xi) + lam @ active(v))(y)
        return jnp.concatenate([slope, active(y)])

    @property
    def unknowns(self) -> jax.Array:
        own = self.found.multipliers
        return jnp.concatenate(
            [vector(self.found.y), own.inequalities["rows"][jnp.array([0, 2])], jnp.array([0.7]), own.equalities[0]]
        )

    def moved(self, x: Any) -> Any:
        """y*(x) near the planted point, by Newton's method on the KKT conditions."""

        def newton(unknowns: jax.Array, _: None) -> tuple[jax.Array, None]:
            matrix = jax.jacobian(lambda u: self.conditions(x, u))(unknowns)
            return unknowns - jnp.linalg.solve(matrix, self.conditions(x, unknowns)), None

        unknowns, _ = jax.lax.scan(newton, self.unknowns, None, length=8)
        return jax.flatten_util.ravel_pytree(self.found.y)[1](unknowns[: vector(self.found.y).size])


@pytest.fixture(scope="module")
def planted() -> Planted:
    case = Planted(0)
    close(case.conditions(case.x, case.unknowns), 0.0 * case.unknowns, atol=1e-12)
    return case


@pytest.fixture(scope="module")
def result(planted: Planted) -> Any:
    return gradient_at(planted.problem, planted.x, planted.found, planted.zeta, planted.xi)


def test_it_is_grad_x_plus_dy_dx_times_grad_y(planted: Planted, result: Any) -> None:
    unravel_x = jax.flatten_util.ravel_pytree(planted.x)[1]
    conditions = jax.jit(jax.jacobian(lambda v, u: planted.conditions(unravel_x(v), u), (0, 1)))
    right, matrix = conditions(vector(planted.x), planted.unknowns)
    n = vector(planted.found.y).size
    dy_dx = -jnp.linalg.solve(matrix, right)[:n]
    grad_x, grad_y = jax.grad(planted.problem.upper, (0, 1))(planted.x, planted.found.y, planted.zeta)
    close(vector(result.gradient), vector(grad_x) + dy_dx.T @ vector(grad_y), rtol=1e-9)


def test_it_is_the_slope_of_f_along_the_solution(planted: Planted, result: Any) -> None:
    unravel_x = jax.flatten_util.ravel_pytree(planted.x)[1]
    direction, step = np.random.default_rng(9).standard_normal(vector(planted.x).size), 1e-5

    @jax.jit
    def value(t: float) -> jax.Array:
        x = unravel_x(vector(planted.x) + t * direction)
        return planted.problem.upper(x, planted.moved(x), planted.zeta)

    difference = (value(step) - value(-step)) / (2 * step)
    close(vector(result.gradient) @ direction, difference, rtol=1e-6)


def test_it_reports_the_active_set_and_that_it_is_regular(planted: Planted, result: Any) -> None:
    assert np.flatnonzero(result.active).tolist() == [1, 3, 6, 15, 16]  # "ball" is row 0, then the rows, then Y
    assert not result.singular
    assert 1e-4 < result.smallest < 2
    assert 0 < result.margin < 1


def test_units_do_not_matter(planted: Planted, result: Any) -> None:
    """G, h, e multiplied by positive numbers: the same gradient, active set, margin and singular value."""
    problem, found = planted.problem, planted.found
    other = hx.Problem(
        problem.upper,
        lambda x, y, xi: 1e5 * problem.lower(x, y, xi),
        lambda x, y: jax.tree.map(lambda a: 1e-3 * a, problem.constraints(x, y)),
        lambda x, y: jax.tree.map(lambda a: 1e4 * a, problem.equalities(x, y)),
        y_set=problem.y_set,
    )
    own = found.multipliers
    multipliers = Rows(
        jax.tree.map(lambda a: 1e8 * a, own.inequalities), jax.tree.map(lambda a: 10.0 * a, own.equalities)
    )
    faces = jax.tree.map(lambda a: 1e5 * a, found.faces)
    there = gradient_at(other, planted.x, found_at(found.y, multipliers, faces), planted.zeta, planted.xi)
    close(there, result, rtol=1e-7)


@pytest.mark.parametrize("x", [0.3, 1.7, 2.6])
def test_on_the_toy(x: float) -> None:
    """y*(x) = x, lam*(x) = 2x: the slope of F(x, x)."""
    at = jnp.asarray(x)
    found = found_at(at, Rows(2 * at, None), jax.tree.map(jnp.zeros_like, sets.faces(EXACT.problem.y_set, at)))
    result = gradient_at(EXACT.problem, at, found)
    close(result.gradient, jax.grad(hyper_objective)(at))
    assert result.active.tolist() == [True, False, False]


def test_an_active_bound_of_y_holds_it() -> None:
    """y in [0, 1], y*(x) = 1 for x > 1/2: nothing of F's slope in y comes through."""
    problem = hx.Problem(lambda x, y, zeta: x**2 + 3 * y, lambda x, y, xi: (y - 2 * x) ** 2, y_set=hx.Box(0.0, 1.0))
    x = jnp.asarray(0.8)
    faces = Faces([{"lower": jnp.zeros(()), "upper": 2 * (2 * x - 1)}], [None])
    result = gradient_at(problem, x, found_at(jnp.asarray(1.0), Rows(None, None), faces))
    close(result.gradient, 2 * x)


def test_without_any_row() -> None:
    problem = hx.Problem(lambda x, y, zeta: jnp.sum(y**2) + x, lambda x, y, xi: jnp.sum((y - x * jnp.arange(3.0)) ** 2))
    x = jnp.asarray(0.5)
    found = found_at(x * jnp.arange(3.0), Rows(None, None), Faces([None], [None]))
    result = gradient_at(problem, x, found)
    close(result.gradient, 2 * x * 5 + 1)
    assert np.isinf(result.margin)


def test_more_rows_than_variables() -> None:
    """|y - x| <= i for i = 1..4 with y pushed up: one of eight rows is active, and y*(x) = x + 1."""
    levels = jnp.arange(1.0, 5.0)
    problem = hx.Problem(
        lambda x, y, zeta: y**2, lambda x, y, xi: (y - 9.0) ** 2, lambda x, y: (y - x - levels, x - y - levels)
    )
    x, y = jnp.asarray(0.5), jnp.asarray(1.5)
    lam = (jnp.array([15.0, 0, 0, 0]), jnp.zeros(4))
    result = gradient_at(problem, x, found_at(y, Rows(lam, None), Faces([None], [None])))
    close(result.gradient, 2 * y)


def test_a_weakly_active_row_has_no_margin() -> None:
    """y*(x) = min(x, 1) at x = 1."""
    problem = hx.Problem(lambda x, y, zeta: y, lambda x, y, xi: (y - x) ** 2, lambda x, y: y - 1.0)
    one = jnp.asarray(1.0)
    result = gradient_at(problem, one, found_at(one, Rows(0 * one, None), Faces([None], [None])))
    assert result.margin == 0.0
    assert not result.singular


def test_a_flat_lower_level_is_singular_and_named_so() -> None:
    problem = hx.Problem(
        lambda x, y, zeta: jnp.sum(y),
        lambda x, y, xi: (y[0] - x) ** 2 + y[1] + y[2],
        equalities=lambda x, y: jnp.sum(y),
    )
    x = jnp.asarray(0.5)
    found = found_at(jnp.array([1.0, -0.5, -0.5]), Rows(None, -jnp.ones(())), Faces([None], [None]))
    result = gradient_at(problem, x, found)
    assert result.singular
    assert result.flat


def test_dependent_constraints_are_singular_and_named_so() -> None:
    """The toy at x = 3: H and the bound y <= 3 are both active, and any split of lam = 6 between them is right."""
    x = jnp.asarray(3.0)
    faces = Faces([{"lower": 0 * x, "upper": x}], [None])
    result = gradient_at(EXACT.problem, x, found_at(x, Rows(x, None), faces))
    assert result.singular
    assert not result.flat
    only_h = jax.grad(hyper_objective)(x)
    only_bound = jax.grad(lambda x: EXACT.problem.upper(x, jnp.asarray(3.0), None))(x)
    assert only_h - 1e-9 <= result.gradient <= only_bound + 1e-9


def test_more_active_rows_than_variables_are_dependent() -> None:
    problem = hx.Problem(
        lambda x, y, zeta: y, lambda x, y, xi: (y - 2.0) ** 2, lambda x, y: (y - x, 2 * (y - x), 3 * (y - x))
    )
    one = jnp.asarray(1.0)
    lam = (2 * one / 3, one / 3, 2 * one / 9)
    result = gradient_at(problem, one, found_at(one, Rows(lam, None), Faces([None], [None])))
    assert result.singular


def test_only_small_systems_are_dense() -> None:
    problem = hx.Problem(
        lambda x, y, zeta: x, lambda x, y, xi: jnp.sum(y**2), lambda x, y: jnp.outer(y, y), y_set=hx.Free()
    )
    shape = jax.ShapeDtypeStruct
    assert fits(problem, shape((), float), shape((1000,), float))
    assert not fits(problem, shape((), float), shape((1001,), float))


def test_rows_come_with_the_faces_of_y() -> None:
    problem = hx.Problem(
        lambda x, y, zeta: x,
        lambda x, y, xi: jnp.sum(y**2),
        lambda x, y: y[0] - x,
        lambda x, y: y[1] + x,
        y_set=hx.Simplex(),
    )
    y = jnp.array([0.25, 0.5])
    close(rows_at(problem, jnp.asarray(1.0), y), jnp.array([-0.75, -0.25, -0.5, 1.5, -0.25]))
    faces = Faces([jnp.zeros(2)], [jnp.zeros(())])
    system = kkt_system(problem, jnp.asarray(1.0), found_at(y, Rows(jnp.zeros(()), jnp.zeros(())), faces), None)
    assert system.equal.tolist() == [False, False, False, True, True]
    assert active_rows(system).tolist() == [False, False, False, True, True]
