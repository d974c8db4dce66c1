"""What is traced: a problem in units as functions of vectors, and the programs that are made of it.

Units are lengths of x and y, what F and G change over them, and sizes of the rows: in units a problem is of order one.
Whoever computes in them may use absolute tolerances: multiplying F, G or a row by a number, adding one to F or G, or
measuring an entry of x or y in another unit changes the units, and nothing else. `lengths.py` finds them.

Programs take and return single arrays, because every array costs as much as a small problem's functions.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from hierax._base.trees import size
from hierax._engine.float64_problem import Data, upper_faces
from hierax._lower.exact import Exact, State, begun, continued
from hierax._lower.newton import conjugate_gradients
from hierax._math import lower_level
from hierax._math.lower_level import Level, continued_outside, level_at
from hierax._math.spectrum import extreme_eigenvalues
from hierax._problem import sets
from hierax._problem.problem import Problem

TANGENTS = 16  # directions that are pushed through a program at a time: all at once may not fit into memory

Vector = TypeVar("Vector", np.ndarray, Array)
"""NumPy's arrays on the host, JAX's inside a program."""

Jacobian = Callable[[Callable[[Array], Array]], Callable[[Array], Array]]
"""`jax.jacfwd`, or what does the same."""


class Scale(NamedTuple):
    """(value - origin) / unit is of order one."""

    unit: Scalar | np.ndarray
    origin: Scalar | np.ndarray


class RowUnits(NamedTuple):
    """Units of what the functions of constraints return, as trees like theirs."""

    constraints: PyTree
    equalities: PyTree
    upper_constraints: PyTree


class Units(NamedTuple):
    """Everything that a problem is measured in; a tree of arrays, so that programs take it as an argument.

    Attributes:
        x: length of every entry of x.
        y: likewise.
        upper: of F.
        lower: of G.
        rows: of the constraints.
    """

    x: PyTree
    y: PyTree
    upper: Scale
    lower: Scale
    rows: RowUnits


def in_units(problem: Problem, units: Units) -> Problem:
    """The problem of x / lengths and y / lengths, all of whose values are in units (inside programs)."""

    def at(x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        return jax.tree.map(jnp.multiply, x, units.x), jax.tree.map(jnp.multiply, y, units.y)

    def value(function: object, scale: Scale, x: PyTree, y: PyTree, batch: PyTree) -> Array:
        return (function(*at(x, y), batch) - scale.origin) / scale.unit  # type: ignore[operator]

    def rows(function: object, sizes: PyTree, x: PyTree, y: PyTree) -> PyTree:
        return jax.tree.map(jnp.divide, function(*at(x, y)), sizes)  # type: ignore[operator]

    return Problem(
        upper=lambda x, y, zeta: value(problem.upper, units.upper, x, y, zeta),
        lower=lambda x, y, xi: value(problem.lower, units.lower, x, y, xi),
        constraints=lambda x, y: rows(problem.constraints, units.rows.constraints, x, y),
        equalities=lambda x, y: rows(problem.equalities, units.rows.equalities, x, y),
        upper_constraints=lambda x, y: rows(problem.upper_constraints, units.rows.upper_constraints, x, y),
        x_set=sets.in_units(problem.x_set, units.x),
        y_set=sets.in_units(problem.y_set, units.y),
        zeta=problem.zeta,
        xi=problem.xi,
    )


def upper_rows(problem: Problem, x: PyTree, y: PyTree) -> Array:
    """The upper constraints, then the inequalities of X."""
    return joined((problem.upper_constraints(x, y), upper_faces(problem.x_set, x).inequalities))


def joined(tree: PyTree) -> Array:
    """All leaves of a tree as one vector."""
    return jnp.concatenate([jnp.zeros(0), *(jnp.ravel(leaf) for leaf in jax.tree.leaves(tree))])


class Trees(NamedTuple):
    """The start as trees, which give programs the structure of x and y."""

    x: PyTree
    y: PyTree

    def x_of(self, vector: Array) -> PyTree:
        """x as the problem's functions take it."""
        return jax.flatten_util.ravel_pytree(self.x)[1](vector)

    def y_of(self, vector: Array) -> PyTree:
        """y likewise."""
        return jax.flatten_util.ravel_pytree(self.y)[1](vector)


class Traced(NamedTuple):
    """A problem in units as functions of vectors, inside a program."""

    problem: Problem
    data: Data
    trees: Trees

    def level(self, x: Array, y: Array) -> Level:
        """The lower level at x, started at y."""
        return level_at(self.problem, self.trees.x_of(x), self.trees.y_of(y), self.data.xi)

    def upper(self, x: Array, y: Array) -> Array:
        """F, the upper constraints with the faces of X, and the equalities of X."""
        at = self.trees.x_of(x), self.trees.y_of(y)
        value, rows = self.problem.upper(*at, self.data.zeta), upper_rows(self.problem, *at)
        return jnp.concatenate([value[None], rows, joined(upper_faces(self.problem.x_set, at[0]).equalities)])

    def lower(self, x: Array, y: Array, mu: Array) -> Array:
        """The gradient of L = G + mu.rows in y, then the rows."""
        level = self.level(x, y)
        rows, pull = jax.vjp(level.rows, level.start)
        return jnp.concatenate([jax.grad(level.objective)(level.start) + pull(mu)[0], rows])


# -- programs ---------------------------------------------------------------------------------------------------------


def boxes(problem: Problem, data: Data, start: Trees) -> tuple[sets.Bounds, sets.Bounds]:
    """The boxes around X and Y."""
    del data
    return sets.bounds(problem.x_set, start.x), sets.bounds(problem.y_set, start.y)


def land(traced: Traced, x: Array, y: Array) -> Array:
    """The nearest points of X and Y, one after the other."""
    problem, trees = traced.problem, traced.trees
    landed = sets.project(problem.x_set, trees.x_of(x)), sets.project(problem.y_set, trees.y_of(y))
    return jnp.concatenate([jax.flatten_util.ravel_pytree(part)[0] for part in landed])


def values(traced: Traced, x: Array, y: Array, mu: Array) -> Array:
    """All functions, in the order of `hierax._engine.programs.Values`."""
    level, upper = traced.level(x, y), traced.upper(x, y)
    rows, pull = jax.vjp(level.rows, level.start)
    lower, slope = jax.value_and_grad(level.objective)(level.start)
    return jnp.concatenate([upper[:1], lower[None], upper[1:], rows, slope + pull(mu)[0]])


def table(jacobian: Jacobian, traced: Traced, everything: Array) -> Array:
    """One line per function: its value, then its derivatives in (x, y); `everything` are x, y and mu."""
    nx, n = size(traced.trees.x), size(traced.trees)

    def functions(point: Array) -> Array:
        return values(traced, point[:nx], point[nx:], everything[n:])

    point = everything[:n]
    return jnp.concatenate([functions(point)[:, None], jacobian(functions)(point)], axis=1)


def slopes(traced: Traced, x: Array, y: Array, mu: Array) -> Array:
    """G, the gradient of L in x and in y, and the rows, one after the other."""

    def lagrangian(x: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
        level = traced.level(x, y)
        value, rows = level.objective(level.start), level.rows(level.start)
        return value + mu @ rows, (value, rows)

    (of_x, of_y), (value, rows) = jax.grad(lagrangian, (0, 1), has_aux=True)(x, y)
    return jnp.concatenate([value[None], of_x, of_y, rows])


def along(traced: Traced, x: Array, y: Array, mu: Array, directions: Array) -> Array:
    """The derivatives of `Traced.lower` along directions of y, one line for each."""
    return _pushed(lambda y: traced.lower(x, y, mu), y, directions)


def _pushed(function: Callable[[Array], Array], at: Array, directions: Array) -> Array:
    """The derivatives of a function along some directions, one line for each."""
    _, push = jax.linearize(function, at)
    return jax.lax.map(push, directions, batch_size=TANGENTS)


def in_blocks(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The same as `jax.jacfwd`, for functions of much data: a few tangents at a time."""
    return lambda at: _pushed(function, at, jnp.eye(at.size, dtype=at.dtype)).T


def matrices(jacobian: Jacobian, traced: Traced, x: Array, y: Array, mu: Array) -> Array:
    """The Hessian of L in y, and below it the Jacobian of the rows."""
    return jacobian(lambda y: traced.lower(x, y, mu))(y)


def mixed(traced: Traced, x: Array, y: Array, mu: Array) -> Array:
    """The derivatives in x of the gradient of L in y, then of the rows."""
    return in_blocks(lambda x: traced.lower(x, y, mu))(x)


def upper_table(traced: Traced, x: Array, y: Array) -> Array:
    """One line per function of the upper level: its value, then its derivatives in (x, y)."""
    return jnp.concatenate([traced.upper(x, y)[:, None], *jax.jacrev(traced.upper, (0, 1))(x, y)], axis=1)


def pulled_back(traced: Traced, x: Array, y: Array, mu: Array, adjoints: Array) -> Array:
    """Each of the adjoints times the derivatives in x of `Traced.lower`."""
    return jax.jacrev(lambda x: adjoints @ traced.lower(x, y, mu))(x)


def product(traced: Traced, x: Array, y: Array, mu: Array, a: Array, b: Array) -> Array:
    """H a + J'b, then J a."""
    level = traced.level(x, y)
    _, pull = jax.vjp(level.rows, level.start)
    _, both = jax.jvp(lambda y: traced.lower(x, y, mu), (y,), (a,))
    return both.at[: y.size].add(pull(b)[0])


def least_curvature(traced: Traced, x: Array, y: Array, mu: Array, free: Array) -> Array:
    """About the smallest eigenvalue of L_yy on some entries (Lanczos: never below it)."""

    def times(u: Array) -> Array:
        _, both = jax.jvp(lambda y: traced.lower(x, y, mu), (y,), (jnp.where(free, u, 0.0),))
        return jnp.where(free, both[: y.size], u)

    return extreme_eigenvalues(times, y)[0]


def sizes(traced: Traced, x: Array, y: Array) -> tuple[Array, Array, Array]:
    """F, G and the typical size of its curvature; norms of the gradients of the upper functions, and of the rows."""
    level = traced.level(x, y)
    gradient = jax.grad(level.objective)(level.start)
    found = lower_level.units_at(level, level.start, level.rows(level.start), gradient, jnp.asarray(1e-8))
    squares = sum(jnp.sum(part**2, axis=1) for part in jax.jacrev(traced.upper, (0, 1))(x, y))
    values = traced.upper(x, y)[0], level.objective(level.start), found.curvature
    return jnp.stack(values), jnp.sqrt(squares), found.row


# -- the lower level solved -------------------------------------------------------------------------------------------


def branches(starts: int, traced: Traced, x: Array, points: Array, mu: Array) -> Array:
    """One line per start of the lower level: point, multipliers, and the numbers.

    With `starts` > 1 Newton steps take negative curvature into account.
    """
    problem, trees, data = traced.problem, traced.trees, traced.data
    found = Exact(starts=starts).branches(problem, trees.x_of(x), trees.y, data.xi, points, mu)
    return jnp.concatenate([part if part.ndim == 2 else part[:, None].astype(x.dtype) for part in found], axis=1)


def begin(traced: Traced, y: Array, mu: Array) -> State:
    """The state of the loop of `Exact` that starts at y."""
    return begun(jax.flatten_util.ravel_pytree(sets.project(traced.problem.y_set, traced.trees.y_of(y)))[0], mu)


def advance(traced: Traced, x: Array, y: Array, state: State, tol: Array, until: Array) -> State:
    """A few Newton steps of the loop that started at y."""
    y_set, trees = traced.problem.y_set, traced.trees
    level = level_at(traced.problem, trees.x_of(x), sets.project(y_set, trees.y_of(y)), traced.data.xi)
    level = continued_outside(level, y_set)
    return continued(level, state, level.start, tol, Exact().max_steps, conjugate_gradients, until)
