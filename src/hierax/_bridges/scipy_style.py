"""`minimize_bilevel`: a bilevel problem called the way `scipy.optimize.minimize` is, with an `OptimizeResult` back.

Nothing is solved here: the call becomes a `Problem` (`scipy_rows` translates constraints and bounds) and goes to
`hierax.solve`; what comes back is renamed. `success` is True only where the run claims to have solved the problem and
the certificate of the point says yes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._auto.auto import Auto
from hierax._base.errors import InputError
from hierax._base.trees import on_device
from hierax._bridges.scipy_rows import Constraint, Function, box_of, check_limits, constraints_of, optimize, shape_of
from hierax._methods.registry import METHODS
from hierax._problem.problem import Problem, nothing
from hierax._run.method import AbstractMethod
from hierax._run.solution import Kind, Solution
from hierax.solving import solve

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from scipy.optimize import OptimizeResult

    from hierax._bridges.scipy_rows import BoundsLike, Constraints

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
    below, above = constraints_of("constraints", constraints), constraints_of("upper_constraints", upper_constraints)
    shapes = {}
    for constraint in (*below, *above):
        shapes[constraint.name] = shape_of(constraint.name, constraint.fun, x, y)
        check_limits(constraint, shapes[constraint.name])
    problem = Problem(
        upper=_scalar(F),
        lower=_scalar(f),
        constraints=(lambda x, y: [one.rows(x, y) for one in below]) if below else nothing,
        equalities=(lambda x, y: [one.equalities(x, y) for one in below]) if below else nothing,
        upper_constraints=_both_sides(above) if above else nothing,
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


def _both_sides(constraints: list[Constraint]) -> Callable[[Array, Array], PyTree]:
    """Upper constraints of hierax are inequalities: an equality is one from both sides."""

    def rows(x: Array, y: Array) -> PyTree:
        found = []
        for constraint in constraints:
            equal = constraint.equalities(x, y)
            sides = {"from below": -equal["equal"], "from above": equal["equal"]} if equal else {}
            found.append(constraint.rows(x, y) | sides)
        return found

    return rows


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
        upper_multipliers=_multipliers(own.upper, own.upper and [*map(_equal_from_sides, own.upper)], above, shapes),
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
    return [one.multipliers(below, equal, shapes[one.name]) for one, below, equal in each]


def _equal_from_sides(rows: dict[str, Array]) -> dict[str, Array]:
    """The multipliers of equalities that were stated from both sides."""
    return {"equal": rows["from above"] - rows["from below"]} if "from above" in rows else {}
