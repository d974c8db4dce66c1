"""Constraints and bounds as SciPy's users write them, as rows and sets of hierax, and multipliers on the way back.

A constraint is low <= fun(x, y) <= high: a dictionary of type "ineq" has low = 0, one of type "eq" low = high = 0. Its
entries become equalities where low = high, and otherwise a row for each finite side.

Multipliers come back one per entry of `fun`, m = (multiplier of low) - (multiplier of high), so that at a solution the
gradient in y of f is the sum of m times that of `fun` (and of what the bounds add): m is how fast the lower value rises
with `low`, or with `high`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.errors import InputError
from hierax._base.imports import lazy
from hierax._compile.tracing import cure
from hierax._problem.sets import AbstractSet, Box, Free

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from scipy.optimize import Bounds, LinearConstraint, NonlinearConstraint

    OneConstraint: TypeAlias = Mapping[str, object] | LinearConstraint | NonlinearConstraint
    Constraints: TypeAlias = OneConstraint | Sequence[OneConstraint]
    BoundsLike: TypeAlias = Bounds | Sequence[tuple[float | None, float | None]] | np.ndarray | None

optimize = lazy("scipy.optimize")

Function = Callable[[Array, Array], Array]


class Constraint(NamedTuple):
    """low <= fun(x, y) <= high, entry by entry; `name` is how messages call it.

    Where low = high an entry is an equality; with `both_sides` it is two inequalities, as the upper level needs it.
    """

    name: str
    fun: Function
    low: np.ndarray
    high: np.ndarray
    both_sides: bool = False

    def rows(self, x: Array, y: Array) -> dict[str, Array]:
        """The inequalities, feasible where <= 0, by side; a side without a finite bound has none."""
        return self._rows(x, y, ("low", "high"))

    def equalities(self, x: Array, y: Array) -> dict[str, Array]:
        """The entries whose bounds are equal, zero where feasible."""
        return self._rows(x, y, ("equal",))

    def _rows(self, x: Array, y: Array, wanted: tuple[str, ...]) -> dict[str, Array]:
        values = jnp.ravel(jnp.asarray(self.fun(x, y)))
        return {
            side: jnp.asarray(sign, values.dtype) * (values[used] - jnp.asarray(bound, values.dtype))
            for side, sign, used, bound in self._sides(values.size)
            if side in wanted
        }

    def multipliers(self, given: Mapping[str, Array], like: PyTree) -> np.ndarray:
        """One per entry of `fun`, in its shape, from those of the rows and equalities above; `like` has its shape."""
        found = np.zeros(like.size)
        for side, sign, used, _ in self._sides(like.size):
            found[used] -= sign * np.asarray(given[side], float)
        return found.reshape(like.shape)

    def _sides(self, size: int) -> list[tuple[str, float, np.ndarray, np.ndarray]]:
        """Sides that have rows: name, sign of `fun` in the rows, which entries they belong to, bounds of these."""
        low, high = (np.broadcast_to(np.ravel(bound), (size,)) for bound in (self.low, self.high))
        equal = (low == high) & (not self.both_sides)
        below, above = (np.isfinite(bound) & ~equal for bound in (low, high))
        sides = ("low", -1.0, below, low), ("high", 1.0, above, high), ("equal", 1.0, equal, low)
        return [(side, sign, np.flatnonzero(used), bound[used]) for side, sign, used, bound in sides if used.any()]


def constraints_of(name: str, given: Constraints) -> list[Constraint]:
    """What was given as constraints: one of them, or several, each as SciPy takes it."""
    one = isinstance(given, Mapping | optimize.NonlinearConstraint | optimize.LinearConstraint)
    if not one and not isinstance(given, Sequence):
        raise InputError(
            f"{name}: needs a dictionary, a NonlinearConstraint, a LinearConstraint or a list of these, {_got(given)}."
        )
    named = [(name, given)] if one else [(f"{name}[{i}]", entry) for i, entry in enumerate(given)]
    return [_constraint(*entry) for entry in named]


def shape_of(name: str, function: Function, x: Array, y: Array) -> jax.ShapeDtypeStruct:
    """The shape of what a function of (x, y) returns; one that cannot be called so is refused."""
    if not callable(function):
        raise InputError(f"{name}: needs a function of (x, y), {_got(function)}.")
    role = name if name in ("F", "f") else "fun"
    try:
        return jax.eval_shape(lambda x, y: jnp.asarray(function(x, y)), x, y)
    except Exception as error:
        raise InputError(
            f"{name} failed when it was called as {role}(x, y) with arrays of shapes {x.shape} and {y.shape}: "
            f"{cure(role, function, 2, error)}{type(error).__name__}: {error}"
        ) from error


def check_limits(constraint: Constraint, like: jax.ShapeDtypeStruct) -> None:
    """Refuse bounds that do not fit what the function returns."""
    for bound in (constraint.low, constraint.high):
        if bound.size not in (1, like.size):
            raise InputError(
                f"{constraint.name}: has {bound.size} bounds, and its function returns {like.size} "
                f"{'number' if like.size == 1 else 'numbers'}; give one bound for all of them, or one for each."
            )
    if not like.size:
        raise InputError(f"{constraint.name}: its function returns an array without entries; leave it out.")


def box_of(name: str, start: np.ndarray, bounds: BoundsLike) -> AbstractSet:
    """Bounds as a set: None, pairs (low, high) with None for no bound, or `scipy.optimize.Bounds`."""
    if bounds is None:
        return Free()
    if isinstance(bounds, optimize.Bounds):
        _refuse_keep_feasible(name, bounds.keep_feasible)
        sides = [np.ravel(np.asarray(side, float)) for side in (bounds.lb, bounds.ub)]
        for side in sides:
            if side.size not in (1, start.size):
                raise InputError(f"{name}: has {side.size} bounds, and there are {start.size} variables.")
        low, high = (np.broadcast_to(side, start.shape) for side in sides)
    else:
        low, high = _pairs(name, bounds).T
        if low.size != start.size:
            raise InputError(
                f"{name}: has {low.size} pairs (low, high), and there are {start.size} variables; give one for each."
            )
    wrong = np.flatnonzero(~(low <= high) | (low == np.inf) | (high == -np.inf))
    if wrong.size:
        i = wrong[0]
        raise InputError(f"{name}[{i}]: no number is between the bounds {low[i]:g} and {high[i]:g}.")
    return Box(low, high)


def _pairs(name: str, bounds: object) -> np.ndarray:
    """Pairs as an array (variables, 2); None is no bound."""
    example = f"write {name}=[(0, 3), (None, 1)], a pair for each variable"
    if not isinstance(bounds, Sequence | np.ndarray) or isinstance(bounds, str):
        raise InputError(f"{name}: needs pairs (low, high), or scipy.optimize.Bounds, {_got(bounds)}; {example}.")
    found = np.tile([-np.inf, np.inf], (len(bounds), 1))
    for i, pair in enumerate(bounds):
        if not isinstance(pair, Sequence | np.ndarray) or isinstance(pair, str) or len(pair) != 2:
            raise InputError(f"{name}[{i}]: needs a pair (low, high), got {pair!r}; {example}.")
        try:
            found[i] = [none if side is None else float(side) for side, none in zip(pair, found[i], strict=True)]
        except (TypeError, ValueError) as error:
            raise InputError(f"{name}[{i}]: needs numbers or None, got {pair!r}.") from error
    return found


def _constraint(name: str, given: object) -> Constraint:
    if isinstance(given, Mapping):
        return _from_dictionary(name, given)
    if isinstance(given, optimize.NonlinearConstraint):
        if callable(given.jac):
            raise _with_jac(name)
        _refuse_keep_feasible(name, given.keep_feasible)
        return Constraint(name, given.fun, *_limits_of(name, given))
    if isinstance(given, optimize.LinearConstraint):
        _refuse_keep_feasible(name, given.keep_feasible)
        matrix = np.atleast_2d(given.A.toarray() if hasattr(given.A, "toarray") else np.asarray(given.A, float))
        return Constraint(name, _linear(name, matrix), *_limits_of(name, given))
    raise InputError(f"{name}: needs a dictionary, a NonlinearConstraint or a LinearConstraint, {_got(given)}.")


def _from_dictionary(name: str, given: Mapping[str, Any]) -> Constraint:
    kind = str(given.get("type", "")).lower()
    if kind not in ("ineq", "eq"):
        raise InputError(
            f"{name}: needs a type, 'ineq' (fun(x, y) >= 0) or 'eq' (fun(x, y) = 0), got {given.get('type')!r}."
        )
    if not callable(given.get("fun")):
        raise InputError(f"{name}: needs 'fun', a function of (x, y), got {given.get('fun')!r}.")
    if "jac" in given:
        raise _with_jac(name)
    unknown = sorted(set(given) - {"type", "fun", "args"})
    if unknown:
        raise InputError(f"{name}: does not know {unknown[0]!r}; there are 'type', 'fun' and 'args'.")
    fun, args = given["fun"], given.get("args", ())
    args = tuple(args) if isinstance(args, tuple | list) else (args,)
    high = np.array(np.inf if kind == "ineq" else 0.0)
    return Constraint(name, (lambda x, y: fun(x, y, *args)) if args else fun, np.array(0.0), high)


def _limits_of(name: str, given: LinearConstraint | NonlinearConstraint) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.asarray(given.lb, float), np.asarray(given.ub, float)
    if np.isnan(low).any() or np.isnan(high).any() or np.any(low > high):
        raise InputError(f"{name}: lb = {given.lb} must be <= ub = {given.ub}, and neither may be NaN.")
    if np.any(low == np.inf) or np.any(high == -np.inf):
        raise InputError(f"{name}: lb = inf or ub = -inf allows nothing.")
    return low, high


def _linear(name: str, matrix: np.ndarray) -> Function:
    """The function of a LinearConstraint, whose matrix has a column for each entry of x, then of y."""

    def product(x: Array, y: Array) -> Array:
        if matrix.shape[1] != x.size + y.size:
            raise InputError(
                f"{name}: its matrix has {matrix.shape[1]} columns; it needs {x.size} for x and then {y.size} for y."
            )
        return jnp.asarray(matrix, x.dtype) @ jnp.concatenate([x, y])

    return product


def _refuse_keep_feasible(name: str, keep_feasible: ArrayLike) -> None:
    if np.any(keep_feasible):
        raise InputError(f"{name}: keep_feasible=True cannot be promised on the way, only at the end; leave it out.")


def _got(value: object) -> str:
    return f"got {type(value).__name__}"


def _with_jac(name: str) -> InputError:
    return InputError(f"{name}: leave jac out, derivatives are found by JAX.")
