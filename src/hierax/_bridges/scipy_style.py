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
from hierax._run.solution import Kind, Solution
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
    for name, function in (("F", F), ("f", f)):
        _check_number(name, function, x, y)
    below = constraints_of("constraints", constraints)
    above = [one._replace(both_sides=True) for one in constraints_of("upper_constraints", upper_constraints)]
    shapes = {}
    for constraint in (*below, *above):
        shapes[constraint.name] = shape_of(constraint.name, constraint.fun, x, y)
        check_limits(constraint, shapes[constraint.name])
    problem = Problem(
        upper=_scalar(F),
        lower=_scalar(f),
        constraints=(lambda x, y: [one.rows(x, y) for one in below]) if below else nothing,
        equalities=(lambda x, y: [one.equalities(x, y) for one in below]) if below else nothing,
        upper_constraints=(lambda x, y: [one.rows(x, y) for one in above]) if above else nothing,
        x_set=box_of("bounds_x", np.asarray(x), bounds_x),
        y_set=box_of("bounds_y", np.asarray(y), bounds_y),
    )
    solution = solve(problem, x, y, _method(method), tol=tol, throw=False, **_options(options))
    return _result(solution, f, below, above, shapes)


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


def _check_number(name: str, function: Function, x: Array, y: Array) -> None:
    shape = shape_of(name, function, x, y)
    if shape.size != 1:
        raise InputError(f"{name}: must return a single number, got an array of shape {shape.shape}.")
    if not jnp.issubdtype(shape.dtype, jnp.floating):
        raise InputError(f"{name}: must return a real number of x and y, got dtype {shape.dtype}.")


def _scalar(function: Function) -> Callable[[Array, Array, PyTree], Array]:
    """The objective as hierax calls it; arrays of one entry are numbers, as in SciPy."""
    return lambda x, y, batch: jnp.reshape(function(x, y), ())


def _method(given: str | Auto | AbstractMethod | None) -> Auto | AbstractMethod | None:
    if not isinstance(given, str):
        return given
    known: dict[str, Callable[[], Auto | AbstractMethod]] = {"auto": Auto, **METHODS}
    if given.lower() not in known:
        raise InputError(f"method={given!r}: is unknown; choose {', '.join(known)}, or None.")
    return known[given.lower()]()


def _options(given: Mapping[str, object] | None) -> dict[str, Any]:
    """Options by the names that `solve` has for them."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(f"options: needs a dictionary, got {type(given).__name__}.")
    unknown = sorted(str(name) for name in given if name not in OPTIONS)
    if unknown:
        raise InputError(f"options: does not know {unknown[0]!r}; there are {', '.join(OPTIONS)}.")
    return {OPTIONS[name]: value for name, value in given.items()}


# -- the answer -------------------------------------------------------------------------------------------------------


def _result(
    solution: Solution,
    f: Function,
    below: list[Constraint],
    above: list[Constraint],
    shapes: dict[str, jax.ShapeDtypeStruct],
) -> OptimizeResult:
    status, own = solution.status, solution.multipliers
    certificate = solution.certificate if status.ok else solution.known_certificate  # made by the run, or not
    success = status.ok and certificate is not None and certificate.ok(solution.tol)
    code = SOLVED if success else CODES.get(status.kind, NOT_CERTIFIED)
    result = optimize.OptimizeResult(
        x=np.asarray(solution.x),
        y=np.asarray(solution.y),
        fun=solution.value,
        lower_fun=float(jnp.reshape(f(solution.x, solution.y), ())),
        success=success,
        status=code,
        message=status.message,
        nit=status.step,
        multipliers=_multipliers(own.inequalities, own.equalities, below, shapes),
        upper_multipliers=_multipliers(own.upper, [{} for _ in above], above, shapes),
        certificate=certificate,
        solution=solution,
    )
    if solution.counts.lower_solves:
        result.nlower = solution.counts.lower_solves
    return result


def _multipliers(
    rows: PyTree, equalities: PyTree, constraints: list[Constraint], shapes: dict[str, jax.ShapeDtypeStruct]
) -> list[np.ndarray] | None:
    """One array per constraint; None where the run has none."""
    if rows is None or equalities is None:
        return None if constraints else []
    each = zip(constraints, rows, equalities, strict=True)
    return [one.multipliers({**below, **equal}, shapes[one.name]) for one, below, equal in each]


# -- constraints and bounds --------------------------------------------------------------------------------------------


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
