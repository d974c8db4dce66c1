"""`from_cvxpy`: a convex lower level written in CVXPY, its parameters the upper variable.

CVXPY compiles the problem once (`cvxpy_program`); here its objective and rows are functions of x, the parameters, and
y, the variables, in JAX, so that every solver and certificate of hierax applies. On the way back, an answer is written
into the CVXPY problem: values of parameters and variables, and the constraints' dual values with CVXPY's signs.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from hierax._base.errors import InputError
from hierax._base.trees import on_device
from hierax._bridges.cvxpy_program import Program, compiled, cvxpy, problem_data
from hierax._math.lower_level import INACCURATE, INFEASIBLE, SOLVED, UNBOUNDED, LowerSolution
from hierax._problem import sets
from hierax._problem.problem import Problem, Rows, nothing
from hierax._run.solution import Solution

if TYPE_CHECKING:
    from cvxpy import Parameter, Variable
    from cvxpy import Problem as CvxpyProblem

Leaf = TypeVar("Leaf", bound="Parameter | Variable")

AUXILIARY = "auxiliary"  # in y: what CVXPY needs beside the named variables
UNNAMED = ("symmetric", "diag", "PSD", "NSD", "hermitian", "sparsity")  # stored in another shape than they are seen
STATUS = {
    SOLVED: "Solved",
    INACCURATE: "AlmostSolved",
    INFEASIBLE: "PrimalInfeasible",
    UNBOUNDED: "DualInfeasible",
}  # as Clarabel calls them, which CVXPY translates

Named = dict[str, Array]


@dataclasses.dataclass(frozen=True, eq=False)
class CvxpyLevel:
    """A lower level that was written in CVXPY; `from_cvxpy` makes it.

    x and y are dictionaries of arrays by the names of the parameters and variables. y may have one more entry,
    "auxiliary": variables of the problem that were not named, and those that CVXPY adds for absolute values, maxima and
    norms, unless the others give them.

    Attributes:
        cvxpy_problem: the problem as it was given.
        parameters: by name.
        variables: by name.
        x0: the parameters' values.
        y0: the solution there.
        x_set: what the parameters' attributes (nonneg=True, bounds=...) ask for.
        program: the compiled problem.
    """

    cvxpy_problem: CvxpyProblem
    parameters: dict[str, Parameter]
    variables: dict[str, Variable]
    x0: Named
    y0: Named
    x_set: dict[str, sets.AbstractSet]
    program: Program

    def problem(
        self,
        upper: Callable[[PyTree, PyTree, PyTree], Scalar],
        *,
        upper_constraints: Callable[[PyTree, PyTree], PyTree] = nothing,
        x_set: PyTree = None,
        zeta: Any = None,
    ) -> Problem:
        """The bilevel problem with this lower level.

        Args:
            upper: f(x, y, zeta), of dictionaries by name: `x["risk"]`, `y["weights"]`.
            upper_constraints: further constraints H(x, y) <= 0.
            x_set: sets for x; None: what the parameters' attributes ask for, which x_set must respect.
            zeta: source of the upper samples.
        """
        return Problem(
            upper=upper,
            lower=self.lower,
            constraints=self.constraints if self.program.below.size or self.program.cones else nothing,
            equalities=self.equalities if self.program.equal.size else nothing,
            upper_constraints=upper_constraints,
            x_set=self.x_set if x_set is None else self._checked(x_set),
            zeta=zeta,
        )

    def lower(self, x: Named, y: Named, xi: None = None) -> Scalar:
        """What CVXPY minimises (the negative of what it maximises)."""
        theta, v = self._theta(x), self._vector(x, y)
        linear = self.program.linear.times(theta, jnp.ones(1, v.dtype))
        value = jnp.vdot(linear[:-1], v) + linear[-1]
        if self.program.quadratic is not None:
            value = value + 0.5 * jnp.vdot(v, self.program.quadratic.times(theta, v))
        return value

    def constraints(self, x: Named, y: Named) -> dict[str, Array]:
        """The inequalities, feasible where <= 0: affine ones, and one for each second-order cone."""
        s, found = self._slack(x, y), {}
        if self.program.below.size:
            found["linear"] = -s[self.program.below]
        if self.program.cones:
            found["cones"] = jnp.stack([cone.row(s[cone.rows]) for cone in self.program.cones])
        return found

    def equalities(self, x: Named, y: Named) -> Array:
        """The equalities, zero where feasible."""
        return -self._slack(x, y)[self.program.equal]

    def write_back(self, answer: Solution | LowerSolution, x: Named | None = None) -> CvxpyProblem:
        """Write an answer into the CVXPY problem, and return that.

        Parameters, variables and dual values get their values, `problem.status` says how far they can be trusted:
        "optimal" where the lower level was solved (for a `Solution`: where its certificate says so),
        "optimal_inaccurate" where that is not known, "infeasible" and "unbounded" as CVXPY means them.

        Args:
            answer: a solution of `hx.solve`; or, with the x that it belongs to, that of a lower solver.
            x: where the lower level was solved.
        """
        if isinstance(answer, Solution):
            at, status = answer.x, _status_below(answer)
        elif isinstance(answer, LowerSolution) and x is not None:
            at, status = x, STATUS[int(answer.status)]
        else:
            raise InputError("answer: needs a Solution, or a lower solver's answer and the x at which it was solved.")
        for name, one in self.parameters.items():
            one.value = one.project(np.asarray(at[name], float).reshape(one.shape))
        data, chain, inverse = problem_data(self.cvxpy_problem)
        v = np.asarray(self._vector(at, answer.y), float)
        found = types.SimpleNamespace(
            status=status,
            x=v,
            z=self._duals(at, answer.y, Rows(answer.multipliers.inequalities, answer.multipliers.equalities)),
            obj_val=float(data["c"] @ v) + (0.5 * float(v @ (data["P"] @ v)) if "P" in data else 0.0),
            solve_time=0.0,
            iterations=0,
        )
        self.cvxpy_problem.unpack_results(found, chain, inverse)
        return self.cvxpy_problem

    # -- between names and vectors ------------------------------------------------------------------------------------

    def _theta(self, x: Named) -> Array:
        return jnp.concatenate([jnp.reshape(x[name], (-1,), order="F") for name in self.parameters])

    def _vector(self, x: Named, y: Named) -> Array:
        """v, all variables of the compiled problem."""
        parts = [jnp.reshape(y[name], (-1,), order="F") for name in self.variables]
        parts += [y[AUXILIARY]] if AUXILIARY in y else []
        own, program = jnp.concatenate(parts), self.program
        places = np.concatenate([*program.columns.values(), program.others])
        v = jnp.zeros(program.size, own.dtype).at[places].set(own)
        if not program.given:
            return v
        left = program.giving.times(self._theta(x), jnp.append(v, jnp.ones(1, v.dtype)))
        pivots = jnp.asarray([one.pivot for one in program.given], v.dtype)
        return v.at[np.array([one.column for one in program.given])].set(-left / pivots)

    def _slack(self, x: Named, y: Named) -> Array:
        v = self._vector(x, y)
        return self.program.slack.times(self._theta(x), jnp.append(v, jnp.ones(1, v.dtype)))

    def _duals(self, x: Named, y: Named, multipliers: Rows) -> np.ndarray | None:
        """The dual vector of the cone program, in the order of its rows; None where there are no multipliers.

        Equalities that define variables of CVXPY's own have no part in what CVXPY tells of its constraints: zero there.
        """
        if multipliers.inequalities is None and multipliers.equalities is None:
            return None
        s = np.asarray(self._slack(x, y), float)
        z = np.zeros(s.size)
        if self.program.equal.size:
            z[self.program.equal] = np.asarray(multipliers.equalities)
        if self.program.below.size:
            z[self.program.below] = np.asarray(multipliers.inequalities["linear"])
        for i, cone in enumerate(self.program.cones):
            z[cone.rows] = cone.dual(s[cone.rows], float(multipliers.inequalities["cones"][i]))
        for one in self.program.given:
            z[one.row] = one.weights @ z[one.cone_rows] / -one.pivot
        return z

    def _checked(self, x_set: PyTree) -> PyTree:
        """Sets for x that stay within what the parameters' attributes promise to CVXPY."""
        own, given = (tuple(map(np.asarray, sets.bounds(one, self.x0))) for one in (self.x_set, x_set))
        if np.any(given[0] < own[0]) or np.any(given[1] > own[1]):
            raise InputError(
                "x_set: allows values that the parameters' attributes (nonneg=True, bounds=...) exclude, and with "
                "which the problem need not be convex. Restrict it, for example to hx.NonNegative()."
            )
        return x_set


def from_cvxpy(
    problem: CvxpyProblem,
    parameters: Iterable[Parameter] | Mapping[str, Parameter],
    variables: Iterable[Variable] | Mapping[str, Variable],
) -> CvxpyLevel:
    """A lower level from a CVXPY problem in DPP form: its parameters become x, its variables y.

        min over v of 1/2 v'P v + q'v + d   subject to   s = A v + b in K,     P, q, d, A, b affine in the parameters x

    with K a product of zeros, half-lines and second-order cones; y is that part of v which CVXPY's rows leave free.

    CVXPY compiles the problem once. Allowed is what compiles to a quadratic or linear objective with linear rows and
    second-order cones (norms, sums of squares); exponential, power and semidefinite cones, integers and problems that
    are not DPP are refused. Needs the extra `cvxpy`.

    Args:
        problem: a `cvxpy.Problem`; parameters with values that are not listed stay as they are.
        parameters: the `cvxpy.Parameter`s that the upper level chooses, with values: the start. By their names, or a
            dictionary of names of your own.
        variables: the `cvxpy.Variable`s that the upper objective looks at, likewise.

    Returns:
        A `CvxpyLevel`: `level.problem(upper)` is the bilevel problem, `level.x0` and `level.y0` its start,
        `level.write_back(sol)` writes an answer into the CVXPY problem.

    Raises:
        InputError: for problems that have no such form, with the reason.
        MissingExtra: where CVXPY or Clarabel is not installed.

    Examples:
        >>> import cvxpy as cp, hierax as hx
        >>> amount, price = cp.Variable(name="amount"), cp.Parameter(name="price", nonneg=True, value=1.0)
        >>> buyer = cp.Problem(cp.Minimize(cp.square(amount - 4.0) + price * amount), [amount >= 0])
        >>> level = hx.from_cvxpy(buyer, [price], [amount])
        >>> seller = level.problem(upper=lambda x, y, zeta: -x["price"] * y["amount"], x_set=hx.Box(0.0, 10.0))
        >>> sol = hx.solve(seller, level.x0, level.y0)
        >>> sol.status.name, round(float(sol.x["price"]), 3), round(float(sol.y["amount"]), 3)
        ('converged', 4.0, 2.0)
        >>> level.write_back(sol).status, round(float(amount.value), 3)
        ('optimal', 2.0)

    References:
        Agrawal, Amos, Barratt, Boyd, Diamond, Kolter: Differentiable convex optimization layers, NeurIPS 2019 (the
            DPP form).
        docs/guides/bridges.md, A lower level in CVXPY
    """
    if not isinstance(problem, cvxpy.Problem):
        raise InputError(f"problem: needs a cvxpy.Problem, got {type(problem).__name__}.")
    chosen = _by_name("parameters", parameters, cvxpy.Parameter, problem.parameters())
    named = _by_name("variables", variables, cvxpy.Variable, problem.variables())
    if AUXILIARY in named:
        raise InputError(f"variables: the name {AUXILIARY!r} is taken; give another one, {{'mine': variable}}.")
    for name, one in named.items():
        _refuse_attributes("variables", name, one, UNNAMED)
    for name, one in chosen.items():
        _refuse_attributes("parameters", name, one, (*UNNAMED, "boolean", "integer"))
        if one.value is None:
            raise InputError(f"parameters: {name} has no value; set {name}.value, it is the start.")
    for one in problem.parameters():
        if one.value is None:
            raise InputError(f"problem: its parameter {one.name()} has no value; set it, or list it in parameters.")
    program, dtype = compiled(problem, chosen, named), jnp.result_type(float)
    start = {name: program.start[at].reshape(named[name].shape, order="F") for name, at in program.columns.items()}
    start |= {AUXILIARY: program.start[program.others]} if program.others.size else {}
    return CvxpyLevel(
        cvxpy_problem=problem,
        parameters=chosen,
        variables=named,
        x0={name: on_device(one.value, dtype) for name, one in chosen.items()},
        y0={name: on_device(values, dtype) for name, values in start.items()},
        x_set={name: _set_of(name, one) for name, one in chosen.items()},
        program=program,
    )


def _by_name(
    what: str, given: Iterable[Leaf] | Mapping[str, Leaf], kind: type[Leaf], known: list[Leaf]
) -> dict[str, Leaf]:
    """Parameters or variables by name; what is none of the problem's, or has the name of another, is refused."""
    if not isinstance(given, Iterable) or isinstance(given, kind):
        raise InputError(f"{what}: needs a list of cvxpy.{kind.__name__}s, or a dictionary of them by name.")
    found: dict[str, Leaf] = {}
    for name, one in given.items() if isinstance(given, Mapping) else ((None, one) for one in given):
        if not isinstance(one, kind):
            raise InputError(f"{what}: needs cvxpy.{kind.__name__}s, got {type(one).__name__}.")
        name = one.name() if name is None else str(name)
        if one.id not in {other.id for other in known}:
            raise InputError(f"{what}: {name} is not in the problem.")
        if name in found:
            raise InputError(f"{what}: two of them have the name {name!r}; give a dictionary of other names.")
        if one.id in {other.id for other in found.values()}:
            raise InputError(f"{what}: {name} is there twice.")
        found[name] = one
    if not found:
        raise InputError(f"{what}: is empty; name at least one cvxpy.{kind.__name__}.")
    return found


def _refuse_attributes(what: str, name: str, leaf: Parameter | Variable, refused: tuple[str, ...]) -> None:
    for attribute in refused:
        value = leaf.attributes.get(attribute)
        if value is not None and value is not False:
            raise InputError(f"{what}: {name} has the attribute {attribute}; state it by constraints instead.")


def _set_of(name: str, parameter: Any) -> sets.AbstractSet:
    """What the attributes of a parameter ask for."""
    if any(isinstance(side, cvxpy.Expression) for side in parameter.attributes.get("bounds") or ()):
        raise InputError(f"parameters: the bounds of {name} are expressions; give numbers.")
    low, high = (np.broadcast_to(np.asarray(side, float), parameter.shape) for side in parameter.get_bounds())
    return sets.Box(low, high) if np.isfinite(low).any() or np.isfinite(high).any() else sets.Free()


def _status_below(solution: Solution) -> str:
    """How far the lower level of a solution can be trusted, as Clarabel would call it."""
    try:
        certificate = solution.certificate
    except InputError:  # several processes, or nothing that can be certified
        return STATUS[INACCURATE]
    reference = int(certificate.reference.status)
    if reference in (INFEASIBLE, UNBOUNDED):
        return STATUS[reference]
    return STATUS[SOLVED if certificate.ok(solution.tol, stationarity=math.inf) else INACCURATE]
