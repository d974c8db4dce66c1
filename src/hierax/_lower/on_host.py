r"""`Exact` called outside of jit: the active set method on the host, accepted where it proves to have solved the level.

Four small programs are compiled per form of problem: where to start, what is known at a point, the matrices there, and
the answer. `hierax._lower.active_set` makes the steps, in double precision and in units in which its residual is that
of `hierax._math.lower_level`: with the slope s of G, the norms a_i of the rows' gradients and the length l of y,

    v / l,    G / (s l),    rows_i / (a_i l),    mu_i a_i / s.

The answer counts only if the KKT residual at the point that is returned, in that point's own units, is at most the
tolerance, and the Hessian of L there is positive semidefinite. Whoever calls this has the compiled loop for the rest.

What a row-wise test along a fixed random direction shows to be the same matrices is neither computed nor factorised
again, between the steps and from one call to the next (`_Kept`): the answer does not depend on it beyond rounding.
"""

import functools
import weakref
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from hierax._base.errors import InputError
from hierax._base.imports import lazy
from hierax._base.trees import dtype_of, on_device, shape_of, size
from hierax._compile.bound import Bound, Ready
from hierax._compile.configuration import doubled, float64, on_host
from hierax._lower.active_set import Found, Level, Slopes, Tracker
from hierax._lower.base import bound_at
from hierax._lower.face_multipliers import with_faces
from hierax._lower.linear import Matrices, SecondDerivatives
from hierax._math import lower_level
from hierax._math.lower_level import SOLVED, LowerSolution, RowVector, Units, Vector, level_at, residual_at, units_at
from hierax._problem import sets
from hierax._problem.problem import Problem, Rows

scipy_linalg = lazy("scipy.linalg")

SAME = 1e-12  # share of the product of two lengths up to which two products of rows with a vector are the same
KEPT = 10_000_000  # numbers in the matrices that are kept from one call to the next, at most
SHORT = 10_000  # numbers of an argument that is handed to every program anew: quicker than putting it on the device
ALIKE = 4.0  # units that differ by no more than this factor are as good as each other

Numbers = TypeVar("Numbers", np.ndarray, Array)
"""NumPy's arrays on the host, JAX's inside a program."""


def solved_on_host(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    xi: PyTree,
    multipliers: Rows | None,
    *,
    tol: float,
    max_steps: int,
    dense_limit: int,
) -> LowerSolution | None:
    """The lower level's solution in the precision of y, found in double precision; None where it was not found.

    Args:
        problem: whose lower level it is.
        x: where it is solved; all arrays are known ones.
        y: the start.
        xi: the batch that stands for the expectation.
        multipliers: good multipliers of the constraints, or None.
        tol: KKT residual that counts as solved, in the precision of y.
        max_steps: more steps than this do not count.
        dense_limit: entries of y and own rows up to which it is tried at all.
    """
    like = jax.tree.map(shape_of, y)
    if not size(like) or not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(like)):
        return None
    tol = max(tol, 200 * float(jnp.finfo(dtype_of(like)).eps))
    with float64(), np.errstate(all="ignore"):
        mixed = any(leaf.dtype != np.float64 for leaf in jax.tree.leaves(like))
        x, y, xi, multipliers = jax.tree.map(_argument, (x, y, xi, multipliers))
        ready = _made_ready(problem, x, y, xi, multipliers, tol, mixed)
        if ready is None or ready.own_rows + ready.entries > dense_limit:
            return None
        found = _found(ready, dtype_of(like))
        if found is None or not (float(found.residual) <= tol and int(found.iterations) <= max_steps):
            return None
        found = on_host(found) if mixed else found
    return _in_precision_of(like, found) if mixed else found


def _argument(leaf: PyTree) -> Array | np.ndarray:
    """An array in double precision, as programs take it: NumPy's stay on the host where they are short."""
    if isinstance(leaf, jax.Array):
        return doubled(leaf)
    array = np.asarray(leaf)
    array = array.astype(np.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array
    return array if array.size <= SHORT else on_device(array)


class _Start(NamedTuple, Generic[Numbers]):
    """Where to start, and what is known there.

    Attributes:
        v: y on Y.
        mu: the multipliers of all rows.
        equal: which rows are equalities.
        box: the smallest one around Y.
        units: near v.
        seen: what is known, see `_seen`.
    """

    v: Numbers
    mu: Numbers
    equal: Numbers
    box: sets.Bounds
    units: Units
    seen: Numbers


class _Ready:
    """A lower level made ready: its arguments and its programs, inside of `float64()`."""

    def __init__(
        self, bound: Bound, x: PyTree, y: PyTree, xi: PyTree, multipliers: Rows | None, own_rows: int, tol: float
    ) -> None:
        self.bound, self.own_rows, self.entries = bound, own_rows, size(y)
        self._point, self._multipliers, self._tol = (x, y, xi), multipliers, np.asarray(tol)
        self._programs = _programs.setdefault(bound, {})

    def _call(self, name: str, function: Callable[..., PyTree], *args: PyTree) -> PyTree:
        """A short program on arrays alone; the same problem's next call finds it ready."""
        key = name, self._multipliers is None
        if key not in self._programs:
            self._programs[key] = self.bound.ready(name, function, *self._point, *args)
        return self._programs[key](*self._point, *args)

    def start(self, direction: np.ndarray) -> _Start[np.ndarray]:
        """Where to start, and what is known there."""
        return on_host(self._call("host start", _start, self._multipliers, self._tol, direction))

    def answer(self, v: np.ndarray, mu: np.ndarray, steps: int) -> LowerSolution:
        """The point as an answer."""
        return self._call("host answer", _answer, v, mu, self._tol, np.asarray(steps, np.float64))

    def seen(self, v: np.ndarray, mu: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """Two columns: what is known at a point, and how it changes along a direction."""
        return np.asarray(self._call("host seen", _seen, v, mu, direction))

    def table(self, v: np.ndarray, mu: np.ndarray) -> np.ndarray:
        """The Jacobian of the rows, below it the Hessian of L."""
        return np.asarray(self.bound.run("host matrices", _table, *self._point, v, mu))

    def landed(self, v: np.ndarray) -> np.ndarray:
        """The nearest point of Y."""
        return np.asarray(self._call("host landed", _landed, v))


_programs: weakref.WeakKeyDictionary[Bound, dict[Hashable, Ready]] = weakref.WeakKeyDictionary()


def _made_ready(
    problem: Problem, x: PyTree, y: PyTree, xi: PyTree, multipliers: Rows | None, tol: float, mixed: bool
) -> _Ready | None:
    """None where functions close over traced arrays, or do not take double precision."""
    try:
        bound = bound_at(problem, x, y, xi, mixed)
    except InputError:
        return None
    if bound is None:
        return None
    shapes = [jax.tree.leaves(bound.trace(name, (x, y))) for name in ("constraints", "equalities")]
    own_rows = sum(int(np.prod(leaf.aval.shape)) for leaves in shapes for leaf in leaves)
    return _Ready(bound, x, y, xi, multipliers, own_rows, tol)


def _found(ready: _Ready, dtype: jnp.dtype) -> LowerSolution | None:
    """The answer of the active set method as it looks in the given precision; None where there is none."""
    source = _Source(ready)
    found = source.solve()
    if found is None:
        return None
    v, mu = (numbers.astype(dtype).astype(np.float64) for numbers in source.scale.undone(found.y, found.mu))
    return ready.answer(v, mu, source.steps)


# -- units ------------------------------------------------------------------------------------------------------------


class _Scale:
    """The units in which the steps are made."""

    def __init__(self, units: Units) -> None:
        self.slope, self.length, self.row = float(units.slope), float(units.length), units.row

    def like(self, other: "_Scale") -> bool:
        """Whether the units of another point are as good."""
        if self.row.shape != other.row.shape:
            return False
        pairs = (self.slope, other.slope), (self.length, other.length), (self.row, other.row)
        return all(np.all((a <= ALIKE * b) & (b <= ALIKE * a)) for a, b in pairs)

    def done(self, v: np.ndarray, mu: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A point and multipliers in these units."""
        return v / self.length, mu * self.row / self.slope

    def undone(self, y: np.ndarray, mu: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """And back."""
        return y * self.length, mu * self.slope / self.row

    def matrices(self, table: np.ndarray) -> "_Same":
        """The Jacobian of the rows and the Hessian of L in these units."""
        rows = self.row.size
        return _Same(table[:rows] / self.row[:, None], table[rows:] * (self.length / self.slope))


# -- what is used again -----------------------------------------------------------------------------------------------


class _Same(Matrices):
    """Matrices of which another one is the same only if it is this one: `_Known` has looked."""

    @functools.cached_property
    def looks_convex(self) -> bool:
        """Whether L is convex as far as the Hessian tells."""
        return _is_convex(self.hessian, self.pattern.hessian.counts)

    def same(self, other: SecondDerivatives) -> bool:
        """Whether both are one."""
        return other is self


class _Known(NamedTuple):
    """Matrices, and how their product with the test direction tells them from others.

    Attributes:
        matrices: in units.
        products: of the table with the test direction, in the user's units.
        blur: how much of each is rounding.
    """

    matrices: _Same
    products: np.ndarray
    blur: np.ndarray

    def belong_to(self, changes: np.ndarray) -> bool:
        """Whether a point at which the table's product with the test direction is `changes` has these matrices."""
        return changes.shape == self.products.shape and bool(np.all(np.abs(changes - self.products) <= self.blur))


class _Kept(NamedTuple):
    """What one call leaves to the next: the units, the matrices, and the method with its last factorisation."""

    scale: _Scale
    known: _Known
    tracker: Tracker


_last: list[_Kept] = []  # at most one; taken out while it is in use, as other threads may call too


def _taken(scale: _Scale, changes: np.ndarray) -> _Kept | None:
    """What the last call left, if it fits."""
    try:
        kept = _last.pop()
    except IndexError:
        return None
    return kept if kept.scale.like(scale) and kept.known.belong_to(changes) else None


# -- the level for the active set method ------------------------------------------------------------------------------


class _Source:
    """The lower level for `active_set`, in units."""

    def __init__(self, ready: _Ready) -> None:
        self._ready, self.steps = ready, -1
        self._direction = _test_direction(ready.entries)
        self._start = start = ready.start(self._direction)
        kept = _taken(_Scale(start.units), start.seen[:-1, 1])
        self.scale = _Scale(start.units) if kept is None else kept.scale
        self._known = None if kept is None else kept.known
        self._tracker = Tracker() if kept is None else kept.tracker
        self._begin = self.scale.done(start.v, start.mu)
        self._last = _key(*self._begin), start.seen

    def solve(self) -> Found | None:
        """The solution from the start, where L is convex; what can be used again is left for the next call."""
        level = Level(self._start.equal, self._slopes, self._matrices, self._landing())
        try:
            found = self._tracker.solve(level, *self._begin)
        except (ValueError, RuntimeError, np.linalg.LinAlgError):  # a system that is singular
            return None
        known = self._known
        if (
            found is None
            or known is None
            or found.system.matrices is not known.matrices
            or not known.matrices.looks_convex
        ):
            return None
        if known.matrices.jacobian.size + known.matrices.hessian.size <= KEPT:
            _last[:] = [_Kept(self.scale, known, self._tracker)]
        return found

    def _seen(self, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
        """Rows, gradient of L and G at a point in units, and beside them their changes along the test direction."""
        if self._last[0] != _key(y, mu):
            self._last = _key(y, mu), self._ready.seen(*self.scale.undone(y, mu), self._direction)
        return self._last[1]

    def _slopes(self, y: np.ndarray, mu: np.ndarray) -> Slopes:
        self.steps += 1
        rows, gradient, value = np.split(self._seen(y, mu)[:, 0], [mu.size, mu.size + y.size])
        slope, length = self.scale.slope, self.scale.length
        return Slopes(float(value[0]) / (slope * length), np.zeros(0), gradient / slope, rows / self.scale.row / length)

    def _matrices(self, y: np.ndarray, mu: np.ndarray) -> Matrices:
        if self._known is None or not self._known.belong_to(self._seen(y, mu)[:-1, 1]):
            table = self._ready.table(*self.scale.undone(y, mu))
            lengths = np.sqrt(np.einsum("ij,ij->i", table, table))
            blur = SAME * lengths * np.linalg.norm(self._direction)
            self._known = _Known(self.scale.matrices(table), table @ self._direction, blur)
        return self._known.matrices

    def _landing(self) -> Callable[[np.ndarray], np.ndarray]:
        """y -> the nearest point of Y, in units."""
        length = self.scale.length
        if sets.all_entrywise(self._ready.bound.problem.y_set):
            lower, upper = (bound / length for bound in self._start.box)
            return lambda y: np.clip(y, lower, upper)
        return lambda y: self._ready.landed(y * length) / length


@functools.lru_cache(maxsize=4)
def _test_direction(entries: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=entries)


def _key(y: np.ndarray, mu: np.ndarray) -> bytes:
    return y.tobytes() + mu.tobytes()


def _is_convex(hessian: np.ndarray, counts: np.ndarray) -> bool:
    """Whether a symmetric matrix is positive semidefinite up to rounding; entries by themselves are judged as such.

    `counts`: how many entries of every row are not zero.
    """
    diagonal = np.diag(hessian)
    noise = 8 * diagonal.size * np.finfo(float).eps
    least = noise * max(np.max(hessian, initial=0.0), -np.min(hessian, initial=0.0))
    if not np.all(diagonal >= -least):
        return False
    coupled = np.flatnonzero(counts > (diagonal != 0))
    if not coupled.size:
        return True
    roots = np.sqrt(np.maximum(diagonal[coupled], least))
    scaled = hessian[np.ix_(coupled, coupled)] / np.outer(roots, roots)
    scaled[np.arange(coupled.size), np.arange(coupled.size)] += noise
    _, failed = scipy_linalg.lapack.dpotrf(scaled, overwrite_a=True)
    return failed == 0


def _in_precision_of(like: PyTree, found: LowerSolution) -> LowerSolution:
    """The answer with the dtypes of a tree like y, as JAX's arrays."""
    dtype = dtype_of(like)

    def cast(leaf: np.ndarray) -> Array:
        return jnp.asarray(leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf)

    own = jax.tree.map(lambda leaf, like: jnp.asarray(leaf.astype(like.dtype)), found.y, like)
    return jax.tree.map(cast, found._replace(y=None))._replace(y=own)


# -- programs ---------------------------------------------------------------------------------------------------------


def _start(
    problem: Problem, x: PyTree, y: PyTree, xi: PyTree, multipliers: Rows | None, tol: Scalar, direction: Vector
) -> _Start[Array]:
    """y on Y, with the multipliers that are given and those of the faces that go with them."""
    y = sets.project(problem.y_set, y)
    level = level_at(problem, x, y, xi)
    v = level.start
    mu = jnp.zeros(level.equal.size)
    if multipliers is not None:
        mu = with_faces(level, level.signed(level.multipliers(multipliers)))
    units = units_at(level, v, level.rows(v), jax.grad(level.objective)(v), tol)
    seen = _seen(problem, x, y, xi, v, mu, direction)
    return _Start[Array](v, mu, jnp.asarray(level.equal), sets.bounds(problem.y_set, y), units, seen)


def _landed(problem: Problem, x: PyTree, y: PyTree, xi: PyTree, v: Vector) -> Vector:
    """The nearest point of Y."""
    del x, xi
    tree = jax.flatten_util.ravel_pytree(y)[1]
    return jax.flatten_util.ravel_pytree(sets.project(problem.y_set, tree(v)))[0]


def _answer(
    problem: Problem, x: PyTree, y: PyTree, xi: PyTree, v: Vector, mu: RowVector, tol: Scalar, steps: Scalar
) -> LowerSolution:
    """A point as an answer, with its KKT residual; on Y also after its rounding."""
    level = level_at(problem, x, y, xi)
    v = _landed(problem, x, y, xi, v)
    own, faces = level.split(mu)
    return LowerSolution(
        y=level.tree(v),
        multipliers=own,
        faces=faces,
        value=level.objective(v),
        residual=residual_at(level, v, mu, tol),
        status=jnp.asarray(SOLVED, jnp.int32),
        iterations=steps.astype(jnp.int32),
    )


def _numbers(level: lower_level.Level, v: Vector, mu: RowVector) -> Vector:
    """The rows, the gradient of L, and G."""
    rows, pull = jax.vjp(level.rows, v)
    value, gradient = jax.value_and_grad(level.objective)(v)
    return jnp.concatenate([rows, gradient + pull(mu)[0], value[None]])


def _seen(problem: Problem, x: PyTree, y: PyTree, xi: PyTree, v: Vector, mu: RowVector, direction: Vector) -> Array:
    """`_numbers` and, beside them, their derivatives along a direction."""
    level = level_at(problem, x, y, xi)
    return jnp.stack(jax.jvp(lambda v: _numbers(level, v, mu), (v,), (direction,)), axis=1)


def _table(problem: Problem, x: PyTree, y: PyTree, xi: PyTree, v: Vector, mu: RowVector) -> Array:
    """The Jacobian of the rows in y, and below it the Hessian of L."""
    level = level_at(problem, x, y, xi)
    return jax.jacfwd(lambda v: _numbers(level, v, mu)[:-1])(v)
