"""The host's part of `Conic`: a quadratic program over cones, handed to Clarabel or ECOS. NumPy only, never JAX.

    min 1/2 d'Pd + q'd    subject to    r_i + J_i d + 1/2 d'Q_i d <= 0   (= 0 for equalities, where Q_i = 0)

A row with Q = L'L becomes a second-order cone. With the centre m = -Q^+ a (a = J_i) it reads 1/2 |L (d - m)|^2 <= t,
where t = -(a + Qm)'d - (r - 1/2 m'Qm) is affine, and constant if the row is an ellipsoid. For any beta > 0 that is

    s = ((t/beta + 1)/sqrt 2, (t/beta - 1)/sqrt 2, L (d - m)/sqrt beta)  in  {s: s_0 >= |s_1..|},

and the row's multiplier is (z_0 + z_1)/(sqrt 2 beta) with z the cone's dual variable: it is the factor of a in A'z.
beta is the size of t, so that neither entry of s loses digits.
"""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import ArrayLike

from hierax._base.errors import MissingExtra
from hierax._base.imports import lazy
from hierax._lower.conic_polish import Quadratics, polished
from hierax._math.lower_level import INACCURATE, INFEASIBLE, SOLVED, UNBOUNDED

if TYPE_CHECKING:
    from scipy.sparse import csc_matrix

sparse = lazy("scipy.sparse")

# Tolerances tried in turn when a solver gives up; beyond the last the result is inaccurate.
LOOSER = (1e-10, 1e-9, 1e-8)
SMALL = 300  # variables and rows up to which Newton steps cost next to nothing

PIP_LINES = {"clarabel": "pip install 'hierax[conic]'", "ecos": "pip install ecos"}


class Affine(NamedTuple):
    """Conditions s = b - A d in a cone; `rows` says which rows of the problem they came from."""

    matrix: "csc_matrix"
    offset: np.ndarray
    rows: np.ndarray


class Program(NamedTuple):
    """The problem in the form that cone solvers take: equal: s = 0; below: s >= 0; curved: a cone and beta per row."""

    hessian: np.ndarray
    linear: np.ndarray
    equal: Affine
    below: Affine
    curved: list[tuple[Affine, float]]


class Answer(NamedTuple):
    """What a solver says: the step d, its status, iterations, and dual variables for each part of the program."""

    step: np.ndarray
    status: int
    iterations: int
    equal: np.ndarray
    below: np.ndarray
    curved: list[np.ndarray]


Solver = Callable[[Program, float, int, bool], Answer]
"""(program, tolerance, largest number of iterations, whether to take care rather than hurry) -> answer"""


def package(name: str) -> ModuleType:
    """The solver's Python package; a missing one is an error that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(f"Conic(solver={name!r}) needs the package {name}: {PIP_LINES[name]}") from error


def clarabel_batch(*arrays: ArrayLike) -> tuple[np.ndarray, ...]:
    """Solve all problems of a batch with Clarabel (a function of its own, so that compiled programs can be reused)."""
    return _batch(_clarabel, *arrays)


def ecos_batch(*arrays: ArrayLike) -> tuple[np.ndarray, ...]:
    """The same with ECOS."""
    return _batch(_ecos, *arrays)


def _batch(solver: Solver, *arrays: ArrayLike) -> tuple[np.ndarray, ...]:
    """Loop over the leading axes that `vmap` put in front of P, q, J', r, Q, equal, curved, tol and max_steps."""
    cores = (2, 1, 2, 1, 3, 1, 1, 0, 0)
    parts = [np.asarray(array) for array in arrays]
    dtype = parts[1].dtype
    leading = np.broadcast_shapes(*(part.shape[: part.ndim - core] for part, core in zip(parts, cores, strict=True)))
    wide = [
        np.broadcast_to(part, leading + part.shape[part.ndim - core :]) for part, core in zip(parts, cores, strict=True)
    ]
    found = [_solve(solver, *(part[place] for part in wide)) for place in np.ndindex(*leading)]
    step, mu, status, iterations = (np.array(column) for column in zip(*found, strict=True))
    return (
        step.reshape(leading + step.shape[1:]).astype(dtype),
        mu.reshape(leading + mu.shape[1:]).astype(dtype),
        status.reshape(leading).astype(np.int32),
        iterations.reshape(leading).astype(np.int32),
    )


def _solve(solver: Solver, *parts: np.ndarray) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Step, multipliers, status and iterations of one problem."""
    hessian, linear, columns, values, bends = (np.asarray(part, np.float64) for part in parts[:5])
    equal, curved, tol, max_steps = parts[5], np.flatnonzero(parts[6]), float(parts[7]), int(parts[8])
    form = Quadratics(hessian, linear, columns.T, values, bends, curved, equal)
    mu = np.zeros(values.size)
    if not all(np.isfinite(part).all() for part in form[:5]):
        return np.zeros(linear.size), mu, INACCURATE, 0
    program = _program(form)
    total = 0
    hurried = [] if program.curved else [(tol, False)]
    for attempt, careful in (*hurried, (tol, True), *((looser, True) for looser in LOOSER if looser > tol)):
        answer = solver(program, attempt, max_steps, careful)
        total += answer.iterations
        if answer.status != INACCURATE:
            break
    mu[program.equal.rows] = answer.equal
    mu[program.below.rows] = np.maximum(answer.below, 0.0)
    for (one, beta), dual in zip(program.curved, answer.curved, strict=True):
        mu[one.rows] = max((dual[0] + dual[1]) / (np.sqrt(2.0) * beta), 0.0)
    step, mu = np.nan_to_num(answer.step), np.nan_to_num(mu)
    if answer.status in (SOLVED, INACCURATE) and (solver is _ecos or program.curved or step.size + mu.size <= SMALL):
        step, mu = polished(form, step, mu)
    return step, mu, answer.status, total


def _program(form: Quadratics) -> Program:
    """Sort the rows by the cone they belong to."""
    bent = [(row, bend) for row, bend in zip(form.curved, form.bends, strict=True) if bend.any()]
    straight = np.ones(form.values.size, bool)
    straight[[row for row, _ in bent]] = False
    idle = (form.values <= 0) & ~form.slopes.any(axis=1)  # bounds at infinity
    slopes = _sparse(form.slopes)

    def affine(which: np.ndarray) -> Affine:
        rows = np.flatnonzero(which)
        return Affine(slopes if which.all() else slopes[rows], -form.values[rows], rows)

    cones = [cone(bend, form.slopes[row], form.values[row], row) for row, bend in bent]
    return Program(form.hessian, form.linear, affine(form.equal), affine(straight & ~form.equal & ~idle), cones)


def cone(matrix: np.ndarray, slope: np.ndarray, value: float, row: int) -> tuple[Affine, float]:
    """value + slope'd + 1/2 d'Qd <= 0 as s = b - A d in the second-order cone, and beta."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    used = values > 1e-12 * values[-1]
    values, vectors = values[used], vectors[:, used]
    factor = np.sqrt(values)[:, None] * vectors.T
    along = vectors.T @ slope
    centre = -vectors @ (along / values)
    outside = slope - vectors @ along
    if np.linalg.norm(outside) <= 1e-12 * np.linalg.norm(slope):
        outside = np.zeros_like(slope)
    level = value - 0.5 * np.sum(along**2 / values)  # t = -outside'd - level
    beta = abs(level) + float(np.linalg.norm(outside)) or 1.0
    half = np.sqrt(0.5)
    top = half * outside / beta
    stacked = np.vstack([top, top, -factor / np.sqrt(beta)])
    offset = np.concatenate(
        [[half * (1 - level / beta), half * (-1 - level / beta)], -(factor @ centre) / np.sqrt(beta)]
    )
    return Affine(_sparse(stacked), offset, np.array([row])), beta


def _sparse(dense: np.ndarray, upper: bool = False) -> "csc_matrix":
    """The nonzero entries (of the upper triangle), column by column; twice as fast as SciPy's own conversion."""
    columns = np.ascontiguousarray(dense.T)
    flat = np.flatnonzero(columns)
    column, row = np.divmod(flat, dense.shape[0] or 1)
    if upper:
        kept = row <= column
        flat, column, row = flat[kept], column[kept], row[kept]
    starts = np.searchsorted(column, np.arange(dense.shape[1] + 1))
    return sparse.csc_matrix((columns.ravel()[flat], row, starts), shape=dense.shape)


def _stacked(parts: list[Affine]) -> "csc_matrix":
    filled = [part.matrix for part in parts if part.offset.size]
    if len(filled) < 2:
        return filled[0] if filled else parts[0].matrix
    return sparse.vstack(filled, format="csc")


def _clarabel(program: Program, tol: float, max_steps: int, careful: bool) -> Answer:
    """Without refinement of its linear solves Clarabel is a third faster and, where all rows are affine, no worse."""
    clarabel = package("clarabel")
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_iter = max_steps
    settings.iterative_refinement_enable = careful
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tol
    parts = [program.equal, program.below, *(one for one, _ in program.curved)]
    sizes = [part.offset.size for part in parts]
    cones = [clarabel.ZeroConeT(sizes[0]), clarabel.NonnegativeConeT(sizes[1])]
    cones += [clarabel.SecondOrderConeT(size) for size in sizes[2:]]
    found = clarabel.DefaultSolver(
        _sparse(program.hessian, upper=True),
        program.linear,
        _stacked(parts),
        np.concatenate([part.offset for part in parts]),
        [one for one, size in zip(cones, sizes, strict=True) if size],
        settings,
    ).solve()
    meaning = {"Solved": SOLVED, "PrimalInfeasible": INFEASIBLE, "DualInfeasible": UNBOUNDED}
    duals = np.split(np.array(found.z), np.cumsum(sizes)[:-1])
    status = meaning.get(str(found.status), INACCURATE)
    return Answer(np.array(found.x), status, found.iterations, duals[0], duals[1], duals[2:])


def _ecos(program: Program, tol: float, max_steps: int, careful: bool) -> Answer:
    """ECOS has no quadratic objective: 1/2 d'Pd <= t is one more cone, with t one more variable."""
    del careful  # it has no such choice
    ecos = package("ecos")
    n = program.linear.size
    epigraph = np.zeros((n + 1, n + 1))
    epigraph[:n, :n] = program.hessian
    bound, _ = cone(epigraph, -np.eye(n + 1)[n], 0.0, 0)

    def widened(part: Affine) -> Affine:
        return part._replace(matrix=sparse.hstack([part.matrix, np.zeros((part.offset.size, 1))], format="csc"))

    parts = [*map(widened, (program.below, *(one for one, _ in program.curved))), bound]
    sizes = [part.offset.size for part in parts]
    equalities = {}
    if program.equal.rows.size:
        equalities = {"A": widened(program.equal).matrix, "b": program.equal.offset}
    found = ecos.solve(
        np.append(program.linear, 1.0),
        _stacked(parts),
        np.concatenate([part.offset for part in parts]),
        {"l": sizes[0], "q": sizes[1:]},
        **equalities,
        verbose=False,
        max_iters=max_steps,
        abstol=tol,
        reltol=tol,
        feastol=tol,
    )
    status = {0: SOLVED, 1: INFEASIBLE, 2: UNBOUNDED}.get(found["info"]["exitFlag"], INACCURATE)
    duals = np.split(found["z"], np.cumsum(sizes)[:-1])
    equal = found["y"] if equalities else np.zeros(0)
    return Answer(found["x"][:n], status, found["info"]["iter"], equal, duals[0], duals[1:-1])
