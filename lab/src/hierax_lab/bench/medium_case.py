"""A problem of `hierax bench medium`: what hierax gets, the same with every sample replaced by its mean, what is known.

`Functions` are the derivatives of the latter in flat NumPy vectors and float64. The outside solvers and the outside
judge know a problem through them alone.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hierax import Problem


class Bounds(NamedTuple):
    """Bounds of a flat vector, infinite where there are none."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def free(cls, size: int) -> "Bounds":
        """No bounds."""
        return cls(np.full(size, -np.inf), np.full(size, np.inf))

    @classmethod
    def between(cls, low: float, high: float, size: int) -> "Bounds":
        """The same two bounds for every entry."""
        return cls(np.full(size, low), np.full(size, high))

    def beyond(self, point: np.ndarray) -> float:
        """By how much the worst entry is outside."""
        return float(np.max([self.low - point, point - self.high, np.zeros_like(point)]))


class Affine(NamedTuple):
    """The equations matrix x = rhs."""

    matrix: np.ndarray
    rhs: np.ndarray

    def residual(self, x: np.ndarray) -> np.ndarray:
        """Zero where they hold."""
        return self.matrix @ x - self.rhs


@dataclasses.dataclass(frozen=True)
class MediumCase:
    """A problem, its start and what an outside judge has to know about it.

    Attributes:
        problem: as hierax gets it.
        exact: the same with the expectation instead of samples: its functions take None as third argument.
        x0: start of the upper variable.
        y0: start of the lower variable.
        x_bounds: bounds of the flat x.
        y_bounds: bounds of the flat y.
        x_equalities: equations of the flat x that hold in X beside its bounds; none: no rows.
        quadratic_rows: whether some constraints of the lower level are quadratic in y (else all are affine).
        quadratic: whether the lower objective is quadratic in y.
        best: the lowest value known from the way the problem is made or published; None: none.
        sampled: whether hierax sees samples; success is then a share of the possible decrease.
        least_share: of the possible decrease from a feasible start, what a solved problem has; None: no share is asked.
        published: whether `best` is a published value: answers are compared with it alone, not with other solvers'.
        lower_solution: y*(x), flat, where the problem brings an exact solver of its own.
        phi: value and gradient of F(x, y*(x)), likewise.
    """

    problem: Problem
    exact: Problem
    x0: PyTree
    y0: PyTree
    x_bounds: Bounds
    y_bounds: Bounds
    x_equalities: Affine | None = None
    quadratic_rows: bool = False
    quadratic: bool = True
    best: float | None = None
    sampled: bool = False
    least_share: float | None = None
    published: bool = False
    lower_solution: Callable[[np.ndarray], np.ndarray] | None = None
    phi: Callable[[np.ndarray], tuple[float, np.ndarray]] | None = None


class Sizes(NamedTuple):
    """Entries of x and y, rows of the lower level (bounds of y not counted)."""

    x: int
    y: int
    rows: int

    def __str__(self) -> str:
        return f"{self.x}+{self.y}, {self.rows}"


class Functions:
    """F, G, the rows and all derivatives that the outside solvers need, of flat vectors, as NumPy arrays.

    `rows` are the inequalities of the lower level without the bounds of y, `equal` its equalities, `upper_rows` the
    inequalities of the upper level.
    """

    def __init__(self, case: MediumCase) -> None:
        self.case = case
        with jax.enable_x64(True):
            self.x0, self._x_tree = _flat(case.x0)
            self.y0, self._y_tree = _flat(case.y0)
            start = jnp.asarray(self.x0), jnp.asarray(self.y0)
            self.sizes = Sizes(self.x0.size, self.y0.size, self._rows(*start).size + self._equal(*start).size)
        self.upper = _numpy(jax.value_and_grad(self._upper, (0, 1)))
        self.lower = _numpy(jax.value_and_grad(self._lower, 1))
        self.lower_hessian = _numpy(jax.hessian(self._lower, 1))
        self.rows = _numpy(lambda x, y: (self._rows(x, y), jax.jacfwd(self._rows, 1)(x, y)))
        self.rows_hessian = _numpy(jax.hessian(self._rows, 1))
        self.equal = _numpy(lambda x, y: (self._equal(x, y), jax.jacfwd(self._equal, 1)(x, y)))
        self.upper_rows = _numpy(
            lambda x, y: (self._upper_rows(x, y), *(jax.jacfwd(self._upper_rows, k)(x, y) for k in (0, 1)))
        )
        self.sensitivities = _numpy(self._sensitivities)
        self.kkt = _numpy(self._kkt)
        self.kkt_jacobian = _numpy(lambda *point: jax.jacrev(self._kkt, (0, 1, 2, 3))(*point))

    def flat(self, x: PyTree, y: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """Trees of x and y as vectors."""
        with jax.enable_x64(True):
            return _flat(x)[0], _flat(y)[0]

    def _upper(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return self.case.exact.upper(self._x_tree(x), self._y_tree(y), None)

    def _lower(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return self.case.exact.lower(self._x_tree(x), self._y_tree(y), None)

    def _rows(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return _vector(self.case.exact.constraints(self._x_tree(x), self._y_tree(y)))

    def _equal(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return _vector(self.case.exact.equalities(self._x_tree(x), self._y_tree(y)))

    def _upper_rows(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return _vector(self.case.exact.upper_constraints(self._x_tree(x), self._y_tree(y)))

    def _lagrangian(self, x: jax.Array, y: jax.Array, rows: jax.Array, equal: jax.Array) -> jax.Array:
        return self._lower(x, y) + rows @ self._rows(x, y) + equal @ self._equal(x, y)

    def _kkt(self, x: jax.Array, y: jax.Array, rows: jax.Array, equal: jax.Array) -> jax.Array:
        """The gradient in y of the Lagrangian, bounds of y not included."""
        return jax.grad(self._lagrangian, 1)(x, y, rows, equal)

    def _sensitivities(self, x: jax.Array, y: jax.Array, rows: jax.Array, equal: jax.Array) -> tuple[jax.Array, ...]:
        """Of the Lagrangian's gradient: derivatives in y and in x; of rows and equalities: derivatives in x."""
        slopes = (jax.jacfwd(self._kkt, k)(x, y, rows, equal) for k in (1, 0))
        return (*slopes, jax.jacfwd(self._rows, 0)(x, y), jax.jacfwd(self._equal, 0)(x, y))


def _numpy(function: Callable) -> Callable[..., Any]:
    """The function compiled, in float64, with NumPy arrays as its results."""
    compiled = jax.jit(function)

    def call(*arguments: np.ndarray) -> Any:
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, compiled(*(jnp.asarray(argument, float) for argument in arguments)))

    return call


def _flat(tree: PyTree) -> tuple[np.ndarray, Callable[[jax.Array], PyTree]]:
    vector, back = jax.flatten_util.ravel_pytree(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree))
    return np.asarray(vector, float), back


def _vector(tree: PyTree) -> jax.Array:
    """All entries of a tree of constraints; of None, an empty vector."""
    return jnp.concatenate([jnp.zeros(0), *(jnp.ravel(leaf) for leaf in jax.tree.leaves(tree))])
