"""`minimize_bilevel`: a bilevel problem called the way `scipy.optimize.minimize` is, with an `OptimizeResult` back.

Nothing is solved here: the call becomes a `Problem` and goes to `hierax.solve`; what comes back is renamed. `success`
is True only where the run claims to have solved the problem and the certificate of the point says yes.

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

from hierax._auto.auto import Auto
from hierax._base.errors import InputError
from hierax._base.imports import lazy
from hierax._base.trees import on_device
from hierax._compile.tracing import cure
from hierax._methods.registry import METHODS
from hierax._problem.problem import Problem, nothing
from hierax._problem.sets import AbstractSet, Box, Free
from hierax._run.method import AbstractMethod
from hierax._run.solution import Kind
from hierax.solving import solve

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from scipy.optimize import Bounds, LinearConstraint, NonlinearConstraint, OptimizeResult

    OneConstraint: TypeAlias = Mapping[str, object] | LinearConstraint | NonlinearConstraint
    Constraints: TypeAlias = OneConstraint | Sequence[OneConstraint]
    BoundsLike: TypeAlias = Bounds | Sequence[tuple[float | None, float | None]] | np.ndarray | None

optimize = lazy("scipy.optimize")

Function = Callable[[Array, Array], Array]

OPTIONS = {"maxiter": "max_steps", "seconds": "seconds", "seed": "seed", "disp": "progress"}

SOLVED, LIMIT, NOT_CERTIFIED, INFEASIBLE, UNBOUNDED, FAILED = range(6)

CODES = dict.fromkeys((Kind.MAX_STEPS, Kind.SECONDS, Kind.SAMPLES, Kind.STOPPED, Kind.INTERRUPTED), LIMIT)
CODES |= {Kind.INFEASIBLE: INFEASIBLE, Kind.UNBOUNDED_LOWER: UNBOUNDED, Kind.UNBOUNDED_UPPER: UNBOUNDED}
CODES |= dict.fromkeys((Kind.NONFINITE, Kind.DIVERGED, Kind.DATA_ERROR), FAILED)


def minimize_bilevel(
    F: Function,
    f: Function,
    x0: ArrayLike,
    y0: ArrayLike,
    *,
    constraints: Constraints = (),
    upper_constraints: Constraints = (),
    bounds_x: BoundsLike = None,
    bounds_y: BoundsLike = None,
    method: str | Auto | AbstractMethod | None = None,
    tol: float | None = None,
    options: Mapping[str, object] | None = None,
) -> OptimizeResult:
    """Minimise F(x, y) over x, where y minimises f(x, y) over y, stated as for `scipy.optimize.minimize`.

        min over x of F(x, y)             subject to   upper_constraints,   low_x <= x <= high_x,
        y = argmin over y of f(x, y)      subject to   constraints,         low_y <= y <= high_y

    x and y are vectors, as in SciPy: a number is a vector of one entry. The functions are written with `jax.numpy`,
    which finds their derivatives. For pytrees, samples, networks, checkpoints and everything else there is `solve`.

    Args:
        F: upper objective, F(x, y) -> number.
        f: lower objective, f(x, y) -> number.
        x0: start of the upper variable: a number or a vector.
        y0: start of the lower variable.
        constraints: of the lower level, one or a list of: a dictionary {"type": "ineq", "fun": fun}, feasible where
            fun(x, y) >= 0, or of type "eq", where it is 0 (with "args" for fun(x, y, *args));
            `NonlinearConstraint(fun, lb, ub)` with fun(x, y); `LinearConstraint(A, lb, ub)` on the vector of x, then y.
        upper_constraints: those that the upper level has to respect, likewise.
        bounds_x: a pair (low, high) for every entry of x, None where there is no bound; or `scipy.optimize.Bounds`.
        bounds_y: the same for y, a part of the lower level.
        method: None: `Auto`; or a method of hierax, by name ("salvf", "blocc", ...) or as an object.
        tol: relative tolerance at which the certificate must say yes; None: 1e-4.
        options: of "maxiter", "seconds", "seed" and "disp".

    Returns:
        An `OptimizeResult`. `x`, `y`: the point. `fun`: F there; `lower_fun`: f there. `success`: whether the run
        claims to have solved the problem, and its certificate says yes. `message`: cause and cure. `status`: 0 solved,
        1 a limit was reached, 2 not certified, 3 infeasible, 4 unbounded, 5 failed. `nit`: points judged or steps made.
        `nlower`: lower levels solved, where they are counted. `multipliers`: a list, one array per constraint of the
        lower level, so that the gradient in y of f is the sum of multiplier times gradient of fun; `upper_multipliers`
        likewise. `certificate`: how far the point can be trusted, where the run made one. `solution`: everything else.

    Raises:
        InputError: (a ValueError) for what cannot be meant. A run that fails does not raise: `success` is False.

    Examples:
        >>> import hierax as hx
        >>> res = hx.minimize_bilevel(
        ...     F=lambda x, y: (y[0] - 1.0) ** 2 + 0.1 * x[0] ** 2,
        ...     f=lambda x, y: (y[0] - 2.0 * x[0]) ** 2,
        ...     x0=0.5,
        ...     y0=0.5,
        ...     constraints={"type": "ineq", "fun": lambda x, y: x - y},
        ...     bounds_x=[(0.0, 3.0)],
        ...     bounds_y=[(0.0, 3.0)],
        ... )
        >>> res.success, res.x.round(3), res.y.round(3), res.multipliers[0].round(3)
        (True, array([0.909]), array([0.909]), array([1.818]))

    References:
        docs/guides/bridges.md, SciPy's conventions
    """
    x, y = _start("x0", x0), _start("y0", y0)
    upper, lower = _objective("F", F, x, y), _objective("f", f, x, y)
    below = constraints_of("constraints", constraints, x, y)
    above = constraints_of("upper_constraints", upper_constraints, x, y, both_sides=True)
    problem = Problem(
        upper=upper,
        lower=lower,
        constraints=(lambda x, y: [one.rows(x, y) for one in below]) if below else nothing,
        equalities=(lambda x, y: [one.rows(x, y, equal=True) for one in below]) if below else nothing,
        upper_constraints=(lambda x, y: [one.rows(x, y) for one in above]) if above else nothing,
        x_set=box_of("bounds_x", x.size, bounds_x),
        y_set=box_of("bounds_y", y.size, bounds_y),
    )
    solution = solve(problem, x, y, _method(method), tol=tol, throw=False, **_options(options))
    status, own = solution.status, solution.multipliers
    certificate = solution.certificate if status.ok else solution.known_certificate  # made by the run, or not
    success = status.ok and certificate is not None and certificate.ok(solution.tol)
    result = optimize.OptimizeResult(
        x=np.asarray(solution.x),
        y=np.asarray(solution.y),
        fun=solution.value,
        lower_fun=float(lower(solution.x, solution.y, None)),
        success=success,
        status=SOLVED if success else CODES.get(status.kind, NOT_CERTIFIED),
        message=status.message,
        nit=status.step,
        multipliers=_multipliers(below, own.inequalities, own.equalities),
        upper_multipliers=_multipliers(above, own.upper, [{} for _ in above]),
        certificate=certificate,
        solution=solution,
    )
    if solution.counts.lower_solves:
        result.nlower = solution.counts.lower_solves
    return result


# -- the call ---------------------------------------------------------------------------------------------------------


def _start(name: str, given: ArrayLike) -> Array:
    """A start as a vector in JAX's precision."""
    try:
        vector = np.atleast_1d(np.asarray(given, float))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: needs a number or a vector of numbers, got {given!r}.") from error
    if vector.ndim != 1:
        raise InputError(f"{name}: needs one dimension, got shape {vector.shape}; for arrays and trees use hx.solve.")
    if not vector.size or not np.isfinite(vector).all():
        raise InputError(f"{name}: needs finite numbers, at least one, got {vector}.")
    return on_device(vector, jnp.result_type(float))


def _objective(name: str, function: Function, x: Array, y: Array) -> Callable[[Array, Array, PyTree], Array]:
    """An objective as hierax calls it; arrays of one entry are numbers, as in SciPy."""
    shape = _shape_of(name, name, function, x, y)
    if shape.size != 1:
        raise InputError(f"{name}: must return a single number, got an array of shape {shape.shape}.")
    if not jnp.issubdtype(shape.dtype, jnp.floating):
        raise InputError(f"{name}: must return a real number of x and y, got dtype {shape.dtype}.")
    return lambda x, y, batch: jnp.reshape(function(x, y), ())


def _shape_of(name: str, role: str, function: Function, x: Array, y: Array) -> jax.ShapeDtypeStruct:
    """The shape of what a function of (x, y) returns; one that cannot be called so is refused."""
    if not callable(function):
        raise InputError(f"{name}: needs a function of (x, y), {_got(function)}.")
    try:
        return jax.eval_shape(lambda x, y: jnp.asarray(function(x, y)), x, y)
    except Exception as error:
        raise InputError(
            f"{name} failed when it was called as {role}(x, y) with arrays of shapes {x.shape} and {y.shape}: "
            f"{cure(role, function, 2, error)}{type(error).__name__}: {error}"
        ) from error


def _method(given: str | Auto | AbstractMethod | None) -> Auto | AbstractMethod | None:
    if not isinstance(given, str):
        return given
    known: dict[str, Callable[[], Auto | AbstractMethod]] = {"auto": Auto, **METHODS}
    if given.lower() not in known:
        raise InputError(f"method={given!r}: is unknown; choose {', '.join(known)}, or None.")
    return known[given.lower()]()


def _options(given: Mapping[str, object] | None) -> dict[str, Any]:
    """Options by the names that `solve` has for them."""
    if not isinstance(given, Mapping | None):
        raise InputError(f"options: needs a dictionary, {_got(given)}.")
    unknown = sorted(str(name) for name in given or () if name not in OPTIONS)
    if unknown:
        raise InputError(f"options: does not know {unknown[0]!r}; there are {', '.join(OPTIONS)}.")
    return {OPTIONS[name]: value for name, value in (given or {}).items()}


# -- constraints and bounds --------------------------------------------------------------------------------------------


class Side(NamedTuple):
    """Entries of a constraint that have a row: its name, the sign of `fun` in the rows, their numbers and bounds."""

    name: str
    sign: float
    entries: np.ndarray
    bounds: np.ndarray


class Constraint(NamedTuple):
    """low <= fun(x, y) <= high, entry by entry: the function, the shape of what it returns, and sides that have rows.

    The side "equal" has the entries that are equalities; the others are inequalities, feasible where <= 0.
    """

    fun: Function
    shape: tuple[int, ...]
    sides: list[Side]

    def rows(self, x: Array, y: Array, equal: bool = False) -> dict[str, Array]:
        """The rows by side, feasible where <= 0; `equal`: the entries whose bounds are equal, zero where feasible."""
        values = jnp.ravel(jnp.asarray(self.fun(x, y)))
        return {
            name: jnp.asarray(sign, values.dtype) * (values[entries] - jnp.asarray(bounds, values.dtype))
            for name, sign, entries, bounds in self.sides
            if (name == "equal") == equal
        }

    def multipliers(self, given: Mapping[str, Array]) -> np.ndarray:
        """One per entry of `fun`, in its shape, from those of the rows and equalities above."""
        found = np.zeros(self.shape)
        for side in self.sides:
            found.flat[side.entries] -= side.sign * np.asarray(given[side.name], float)
        return found


def constraints_of(name: str, given: Constraints, x: Array, y: Array, both_sides: bool = False) -> list[Constraint]:
    """What was given as constraints: one of them, or several, each as SciPy takes it.

    Where both bounds of an entry are the same number it is an equality; with `both_sides`, as the upper level needs it,
    two inequalities.
    """
    several = isinstance(given, Sequence)
    named = {f"{name}[{i}]": entry for i, entry in enumerate(given)} if several else {name: given}
    return [_constraint(label, entry, x, y, both_sides) for label, entry in named.items()]


def _constraint(name: str, given: object, x: Array, y: Array, both_sides: bool) -> Constraint:
    if isinstance(given, Mapping):
        given = _from_dictionary(name, given)
    if isinstance(given, optimize.LinearConstraint):
        fun = _linear(name, given.A)
    elif isinstance(given, optimize.NonlinearConstraint):
        fun = given.fun
        if callable(given.jac):
            raise _with_jac(name)
    else:
        kinds = "a dictionary, a NonlinearConstraint, a LinearConstraint or a list of these"
        raise InputError(f"{name}: needs {kinds}, {_got(given)}.")
    like = _shape_of(name, "fun", fun, x, y)
    if not like.size:
        raise InputError(f"{name}: its function returns an array without entries; leave it out.")
    low, high = _limits(name, given, like.size, "entries of what its function returns")
    equal = (low == high) & (not both_sides)
    below, above = (np.isfinite(bound) & ~equal for bound in (low, high))
    stated = ("low", -1.0, below, low), ("high", 1.0, above, high), ("equal", 1.0, equal, low)
    sides = [Side(side, sign, np.flatnonzero(used), bound[used]) for side, sign, used, bound in stated if used.any()]
    return Constraint(fun, like.shape, sides)


def _multipliers(constraints: list[Constraint], rows: PyTree, equalities: PyTree) -> list[np.ndarray] | None:
    """One array per constraint; None where the run has none."""
    if rows is None or equalities is None:
        return None if constraints else []
    each = zip(constraints, rows, equalities, strict=True)
    return [one.multipliers({**below, **equal}) for one, below, equal in each]


def _limits(name: str, given: Any, size: int, of_what: str) -> tuple[np.ndarray, np.ndarray]:
    """The bounds lb <= ub of what SciPy has them for, one of each per entry."""
    if np.any(given.keep_feasible):
        raise InputError(f"{name}: keep_feasible=True cannot be promised on the way, only at the end; leave it out.")
    sides = [np.ravel(np.asarray(side, float)) for side in (given.lb, given.ub)]
    for side in sides:
        if side.size not in (1, size):
            raise InputError(f"{name}: has {side.size} bounds for {size} {of_what}; give one for all, or one for each.")
    low, high = (np.broadcast_to(side, (size,)) for side in sides)
    wrong = np.flatnonzero(~(low <= high) | (low == np.inf) | (high == -np.inf))
    if wrong.size:
        i = wrong[0]
        raise InputError(f"{name}[{i}]: no number is between the bounds {low[i]:g} and {high[i]:g}; lb must be <= ub.")
    return low, high


def box_of(name: str, size: int, bounds: BoundsLike) -> AbstractSet:
    """Bounds as a set: None, pairs (low, high) with None for no bound, or `scipy.optimize.Bounds`."""
    if bounds is None:
        return Free()
    if not isinstance(bounds, optimize.Bounds):
        low, high = _pairs(name, bounds).T
        if low.size != size:
            raise InputError(f"{name}: has {low.size} pairs (low, high) for {size} variables; give one for each.")
        bounds = optimize.Bounds(low, high)
    return Box(*_limits(name, bounds, size, "variables"))


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


def _from_dictionary(name: str, given: Mapping[str, Any]) -> NonlinearConstraint:
    kind = str(given.get("type", "")).lower()
    if kind not in ("ineq", "eq"):
        raise InputError(f"{name}: needs a type, 'ineq' (fun(x, y) >= 0) or 'eq' (fun(x, y) = 0); got {kind!r}.")
    fun, args = given.get("fun"), given.get("args", ())
    if not callable(fun):
        raise InputError(f"{name}: needs 'fun', a function of (x, y), got {fun!r}.")
    if "jac" in given:
        raise _with_jac(name)
    unknown = sorted(set(given) - {"type", "fun", "args"})
    if unknown:
        raise InputError(f"{name}: does not know {unknown[0]!r}; there are 'type', 'fun' and 'args'.")
    args = tuple(args) if isinstance(args, tuple | list) else (args,)
    high = np.inf if kind == "ineq" else 0.0
    return optimize.NonlinearConstraint((lambda x, y: fun(x, y, *args)) if args else fun, 0.0, high)


def _linear(name: str, matrix: Any) -> Function:
    """The function of a LinearConstraint, whose matrix has a column for each entry of x, then of y."""
    dense = np.atleast_2d(matrix.toarray() if hasattr(matrix, "toarray") else np.asarray(matrix, float))

    def product(x: Array, y: Array) -> Array:
        columns, n, m = dense.shape[1], x.size, y.size
        if columns != n + m:
            raise InputError(f"{name}: its matrix has {columns} columns; it needs {n} for x and then {m} for y.")
        return jnp.asarray(dense, x.dtype) @ jnp.concatenate([x, y])

    return product


def _got(value: object) -> str:
    return f"got {type(value).__name__}"


def _with_jac(name: str) -> InputError:
    return InputError(f"{name}: leave jac out, derivatives are found by JAX.")
