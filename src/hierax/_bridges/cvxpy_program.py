"""A CVXPY problem in its compiled form: a cone program whose data are affine in the parameters.

    min 1/2 v'P v + q'v + d    subject to    s = A v + b,  s in a product of cones,    P, q, d, A, b affine in theta

CVXPY compiles once, for Clarabel; what it keeps for its own fast re-solves (the *parametrised program*) is read here.
Problems that have no such form, or cones that smooth constraints do not describe, are refused with the reason. The
maps are compared with the data that CVXPY itself hands to the solver before anybody relies on them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hierax._base.errors import InputError, MissingExtra
from hierax._base.imports import lazy
from hierax._bridges.cvxpy_cones import NO_CONE, AffineMap, Cone, Definition, affine_map, cone_of, raised

if TYPE_CHECKING:
    from cvxpy import Parameter, Variable
    from cvxpy import Problem as CvxpyProblem
    from scipy.sparse import csc_array

cvxpy = lazy("cvxpy", "cvxpy")

SOLVER = "CLARABEL"
REFUSED_CONES = {
    "exp": "exponential cones (from log, exp, entropy, logistic, kl_div, log_sum_exp)",
    "psd": "semidefinite cones (from PSD=True, >>, lambda_max, norm of a matrix)",
    "p3d": "power cones (from power, geo_mean, p-norms)",
    "pnd": "power cones (from power, geo_mean, p-norms)",
}
NOT_DPP = (
    "problem: is convex, but not in DPP form, where the problem's data are affine in the parameters "
    "(problem.is_dcp(dpp=True)). Do not multiply parameters with each other, divide by them or square them: give the "
    "product a Parameter of its own. See 'Disciplined Parametrized Programming' in CVXPY's documentation."
)


class Program(NamedTuple):
    """The compiled problem.

    Attributes:
        size: entries of v.
        given: entries of v, of CVXPY's own making, that rows of s give from the others.
        giving: (A, b) of these rows, in their order.
        quadratic: P, or None where the objective is linear.
        linear: (q, d) as a matrix of one column.
        slack: (A, b), so that s = slack (v, 1).
        equal: the other rows of s that must be zero.
        below: rows of s that must be >= 0 (but for those that define an entry of v).
        cones: the second-order cones.
        columns: for every named variable the places of its entries in v, column by column as in Fortran.
        others: the places of all entries that are neither named nor given.
        start: v that CVXPY found at the parameters' values.
    """

    size: int
    given: list[Definition]
    giving: AffineMap
    quadratic: AffineMap | None
    linear: AffineMap
    slack: AffineMap
    equal: np.ndarray
    below: np.ndarray
    cones: list[Cone]
    columns: dict[str, np.ndarray]
    others: np.ndarray
    start: np.ndarray


def compiled(problem: CvxpyProblem, parameters: Mapping[str, Parameter], variables: Mapping[str, Variable]) -> Program:
    """The compiled form of a problem, its theta the entries of the parameters in their order, as in Fortran."""
    _refuse(problem)
    data, chain, inverse = problem_data(problem)
    program = data[cvxpy.settings.PARAM_PROB]
    dims = data["dims"]
    for name, cause in REFUSED_CONES.items():
        if getattr(dims, name):
            raise InputError(
                f"problem: compiles to {cause}, which smooth constraints do not describe. Write it with linear and "
                "quadratic functions and norms, or state the lower level as a hierax Problem."
            )
    columns_of_theta = _columns_of_parameters(program, parameters)
    n, rows = int(program.x.size), int(dims.zero + dims.nonneg + sum(dims.soc))

    def read(tensor: csc_array, height: int, width: int) -> AffineMap:
        return affine_map(tensor, height, width, *columns_of_theta)

    slack, linear = read(program.A, rows, n + 1), read(program.q, n + 1, 1)
    quadratic = None if program.P is None else read(program.P, n, n)
    of_user = _columns_of_variables(problem, program, chain, inverse)
    equal, below = np.arange(dims.zero), np.arange(dims.zero, dims.zero + dims.nonneg)
    ends = np.cumsum([dims.zero + dims.nonneg, *dims.soc])
    cones = [cone_of(slack, np.arange(low, high)) for low, high in itertools.pairwise(ends)]
    used = {*linear.row.tolist(), *(() if quadratic is None else quadratic.column.tolist())}
    given, needed = _definitions(slack, equal, set(np.concatenate(list(of_user.values())).tolist()))
    cones = _with_raised_bounds(slack, cones, below, given, needed | used)
    by = np.array([one.row for one in given], int)
    columns = {name: of_user[one.id] for name, one in variables.items()}
    known = np.concatenate([*columns.values(), [one.column for one in given]])
    found = Program(
        size=n,
        given=given,
        giving=slack.of_rows(by),
        quadratic=quadratic,
        linear=linear,
        slack=slack,
        equal=np.setdiff1d(equal, by),
        below=np.setdiff1d(below, by),
        cones=cones,
        columns=columns,
        others=np.setdiff1d(np.arange(n), known),
        start=_solved(problem, data, chain),
    )
    _compare(found, data, parameters)
    return found


def problem_data(problem: CvxpyProblem) -> tuple[dict[str, Any], Any, list[Any]]:
    """What CVXPY hands to the solver at the parameters' values, its chain of reductions, and how to undo them."""
    try:
        return problem.get_problem_data(SOLVER, enforce_dpp=True, solver_opts={})
    except cvxpy.error.SolverError as error:
        if SOLVER in cvxpy.installed_solvers():
            raise InputError(f"problem: CVXPY cannot compile it for Clarabel. {error}") from error
        raise MissingExtra("from_cvxpy needs cvxpy with clarabel: pip install 'hierax[cvxpy]'") from error


def _refuse(problem: Any) -> None:
    """Refuse problems without a convex, parametrised form."""
    if problem.is_mixed_integer():
        names = [v.name() for v in problem.variables() if v.attributes["boolean"] or v.attributes["integer"]]
        raise InputError(f"problem: {', '.join(names)} is boolean or integer; a lower level must be continuous.")
    if any(leaf.is_complex() for leaf in (*problem.variables(), *problem.parameters())):
        raise InputError("problem: has complex variables or parameters; write their real and imaginary parts.")
    if not problem.is_dcp():
        raise InputError("problem: is not convex by CVXPY's rules (problem.is_dcp() is False).")
    if not problem.is_dcp(dpp=True):
        raise InputError(NOT_DPP)


def _columns_of_parameters(program: Any, parameters: Mapping[str, Parameter]) -> tuple[np.ndarray, np.ndarray]:
    """For every column of CVXPY's tensors the number of its M_k (0: it does not change), and what is its factor."""
    which, factor = np.zeros(program.total_param_size + 1, int), np.ones(program.total_param_size + 1)
    ends = itertools.accumulate((one.size for one in parameters.values()), initial=1)
    first = {one.id: number for one, number in zip(parameters.values(), ends, strict=False)}
    for identity, parameter in program.id_to_param.items():
        column, size = program.param_id_to_col[identity], program.param_id_to_size[identity]
        if identity in first:
            which[column : column + size] = first[identity] + np.arange(size)
        else:
            factor[column : column + size] = np.ravel(np.asarray(parameter.value, float), order="F")
    return which, factor


def _columns_of_variables(problem: Any, program: Any, chain: Any, inverse: list[Any]) -> dict[int, np.ndarray]:
    """Where the variables are in v, by their ids; CVXPY puts others in the place of variables with attributes."""
    replaced: dict[int, int] = {}
    for reduction, undo in zip(chain.reductions, inverse, strict=False):
        if type(reduction).__name__ == "CvxAttr2Constr" and undo:
            replaced |= {identity: one.id for identity, one in undo[0].items()}
    begins = {one.id: program.var_id_to_col[replaced.get(one.id, one.id)] for one in problem.variables()}
    return {one.id: np.arange(begins[one.id], begins[one.id] + one.size) for one in problem.variables()}


def _definitions(slack: AffineMap, equal: np.ndarray, of_user: set[int]) -> tuple[list[Definition], set[int]]:
    """Which variables of CVXPY's own need not be variables of the lower level, because equalities give them.

    CVXPY writes |Ay - b|^2 as |r|^2 with r = Ay - b. None is defined by another that is. Also the columns that must
    stay: those of the user, and those that definitions use.
    """
    found: list[Definition] = []
    needed = set(of_user)
    for row, entries in zip(equal, slack.by_row(equal), strict=True):
        columns = {column for column, _ in entries} - {slack.width - 1}
        possible = columns - needed - {column for column, which in entries if which}
        if possible and not columns & {one.column for one in found}:
            column = max(possible, key=lambda one: abs(entries[one, 0]))
            found.append(Definition(column, int(row), entries[column, 0], NO_CONE, NO_CONE))
            needed |= columns - {column}
    return found, needed


def _with_raised_bounds(
    slack: AffineMap, cones: list[Cone], below: np.ndarray, given: list[Definition], taken: set[int]
) -> list[Cone]:
    """The cones with their bounds raised where that is possible; the definitions of these bounds join `given`."""
    after = []
    for cone in cones:
        cone, one = raised(slack, cone, set(below.tolist()), taken, {other.column for other in given})
        after.append(cone)
        if one is not None:
            given.append(one)
            taken |= set(slack.column[slack.row == one.row].tolist()) - {one.column}
    return after


def _solved(problem: CvxpyProblem, data: dict[str, Any], chain: Any) -> np.ndarray:
    """v at the parameters' values, found by CVXPY's solver."""
    answer = chain.solve_via_data(problem, data)
    status = chain.solver.STATUS_MAP.get(str(answer.status), str(answer.status))
    if status not in cvxpy.settings.SOLUTION_PRESENT:
        raise InputError(
            f"problem: is {status} at the parameters' values, which are the start. Give them values at which the "
            "problem has a solution."
        )
    return np.array(answer.x, float)


def _compare(program: Program, data: dict[str, Any], parameters: Mapping[str, Parameter]) -> None:
    """Refuse to go on where the maps do not give the data that CVXPY hands to its solver."""
    theta = np.concatenate([np.ravel(np.asarray(one.value, float), order="F") for one in parameters.values()])
    slack = program.slack.matrix(theta)
    linear = program.linear.matrix(theta)[:, 0]
    pairs = [(-slack[:, :-1], data["A"].toarray()), (slack[:, -1], data["b"]), (linear[:-1], data["c"])]
    if program.quadratic is not None:
        pairs.append((program.quadratic.matrix(theta), data["P"].toarray()))
    for own, theirs in pairs:
        if own.shape != np.shape(theirs) or not np.allclose(own, theirs, rtol=1e-9, atol=1e-12):
            raise InputError(
                f"problem: what CVXPY {cvxpy.__version__} compiles is not read correctly by this version of hierax. "
                "Please report it with the problem; CVXPY 1.9 is the version that is tested."
            )
