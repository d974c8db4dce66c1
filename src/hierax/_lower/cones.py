"""The host's part of `Conic`: a quadratic program over cones, handed to Clarabel. NumPy only, never JAX.

    min 1/2 d'Pd + q'd    subject to    r_i + J_i d + 1/2 d'Q_i d <= 0   (= 0 for equalities, where Q_i = 0)

A row with Q = L'L becomes a second-order cone. With the centre m = -Q^+ a (a = J_i) it reads 1/2 |L (d - m)|^2 <= t,
where t = -(a + Qm)'d - (r - 1/2 m'Qm) is affine, and constant if the row is an ellipsoid. For any beta > 0 that is

    s = ((t/beta + 1)/sqrt 2, (t/beta - 1)/sqrt 2, L (d - m)/sqrt beta)  in  {s: s_0 >= |s_1..|},

and the row's multiplier is (z_0 + z_1)/(sqrt 2 beta) with z the cone's dual variable: it is the factor of a in A'z.
beta is the size of t, so that neither entry of s loses digits.

Where the boundary is curved (a second-order cone), or a row is weakly active, a gap of 1e-9 leaves the interior-point
method's point and multipliers off by its square root, 3e-5. By then the active rows are known, or nearly, and a
semismooth Newton method (`polished`) on

    Pd + q + sum_i mu_i (J_i + Q_i d) = 0,    max(row_i, -mu_i) = 0 (equalities: row_i = 0)

gets the remaining digits in two or three steps.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import ArrayLike

from hierax._base.constants import MUCH
from hierax._base.errors import MissingExtra
from hierax._base.imports import lazy
from hierax._lower.active_set import Level, Slopes, Tracker
from hierax._lower.linear import ROUNDING, SAME, SMALL_ORDER, Matrices, Pair
from hierax._math.lower_level import INACCURATE, INFEASIBLE, SOLVED, UNBOUNDED

if TYPE_CHECKING:
    from scipy.sparse import csc_matrix

sparse = lazy("scipy.sparse")

ACCEPTED = MUCH * MUCH  # times tol: the largest KKT residual of a point that is called solved
SHAPES = "(n,n),(n),(n,r),(r),(c,n,n),(r),(r),(),()->(n),(r),(),()"  # of one problem's arrays and answer


class Quadratics(NamedTuple):
    """1/2 d'Pd + q'd, and rows r_i + J_i d + 1/2 d'Q_i d, with Q_i = 0 but for the rows in `curved`.

    Attributes:
        hessian: P.
        linear: q.
        slopes: J.
        values: r.
        bends: Q of the curved rows.
        curved: which rows they are.
        equal: which rows are equalities.
    """

    hessian: np.ndarray
    linear: np.ndarray
    slopes: np.ndarray
    values: np.ndarray
    bends: np.ndarray
    curved: np.ndarray
    equal: np.ndarray

    def at(self, step: np.ndarray) -> Pair:
        """Rows and their gradients."""
        values, normals = self.values + self.slopes @ step, self.slopes.copy()
        bent = self.bends @ step
        values[self.curved] += 0.5 * bent @ step
        normals[self.curved] += bent
        return values, normals


class Part(NamedTuple):
    """Conditions s = b - A d in a cone.

    Attributes:
        matrix: A.
        offset: b.
        rows: which rows of the problem they came from.
        beta: of a second-order cone.
    """

    matrix: "csc_matrix"
    offset: np.ndarray
    rows: np.ndarray
    beta: float


def package() -> ModuleType:
    """The solver's Python package; a missing one is an error that says how to get it."""
    try:
        return importlib.import_module("clarabel")
    except ImportError as error:
        raise MissingExtra("Conic needs the package clarabel: pip install 'hierax[conic]'") from error


def solve_batch(*arrays: ArrayLike) -> tuple[np.ndarray, ...]:
    """Steps, multipliers, statuses and iterations of all problems that the leading axes count, in arrays of P, q, J',
    r, Q, equal, curved, tol and max_steps.
    """
    parts = [np.asarray(array) for array in arrays]
    found = np.vectorize(_solve, signature=SHAPES)(*parts)
    dtypes = parts[1].dtype, parts[1].dtype, np.int32, np.int32
    return tuple(part.astype(dtype) for part, dtype in zip(found, dtypes, strict=True))


def _solve(*arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Step, multipliers, status and iterations of one problem."""
    hessian, linear, columns, values, bends = (np.asarray(part, np.float64) for part in arrays[:5])
    equal, curved, tol, max_steps = arrays[5], np.flatnonzero(arrays[6]), float(arrays[7]), int(arrays[8])
    form = Quadratics(hessian, linear, columns.T, values, bends, curved, equal)
    mu = np.zeros(values.size)
    if not all(np.isfinite(part).all() for part in form[:5]):
        return np.zeros(linear.size), mu, INACCURATE, 0
    held, below, *cones = parts = _parts(form)
    tries = [(tol, False)] * (not cones) + [(tol, True), (np.sqrt(ACCEPTED) * tol, True), (ACCEPTED * tol, True)]
    total = 0
    for attempt, careful in tries:
        step, status, iterations, duals = _clarabel(form, parts, attempt, max_steps, careful)
        total += iterations
        if status != INACCURATE:
            break
    mu[held.rows], mu[below.rows] = duals[0], np.maximum(duals[1], 0.0)
    for part, dual in zip(cones, duals[2:], strict=True):
        mu[part.rows] = max((dual[0] + dual[1]) / (np.sqrt(2.0) * part.beta), 0.0)
    step, mu = np.nan_to_num(step), np.nan_to_num(mu)
    quick = step.size + mu.size <= 2 * SMALL_ORDER
    if status in (SOLVED, INACCURATE) and (cones or quick):
        step, mu = polished(form, step, mu)
    return step, mu, status, total


def _parts(form: Quadratics) -> list[Part]:
    """Sort the rows by the cone they belong to."""
    bent = [(row, bend) for row, bend in zip(form.curved, form.bends, strict=True) if bend.any()]
    straight = np.ones(form.values.size, bool)
    straight[[row for row, _ in bent]] = False
    idle = (form.values <= 0) & ~form.slopes.any(axis=1)  # bounds at infinity
    affine = [np.flatnonzero(which) for which in (form.equal, straight & ~form.equal & ~idle)]
    parts = [Part(sparse.csc_matrix(form.slopes[rows]), -form.values[rows], rows, 1.0) for rows in affine]
    return parts + [cone(bend, form.slopes[row], form.values[row], row) for row, bend in bent]


def cone(matrix: np.ndarray, slope: np.ndarray, value: float, row: int) -> Part:
    """value + slope'd + 1/2 d'Qd <= 0 as s = b - A d in the second-order cone."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    used = values > SAME * values[-1]
    values, vectors = values[used], vectors[:, used]
    factor = np.sqrt(values)[:, None] * vectors.T
    along = vectors.T @ slope
    centre = -vectors @ (along / values)
    outside = slope - vectors @ along
    if np.linalg.norm(outside) <= SAME * np.linalg.norm(slope):
        outside = np.zeros_like(slope)
    level = value - 0.5 * np.sum(along**2 / values)  # t = -outside'd - level
    beta = abs(level) + float(np.linalg.norm(outside)) or 1.0
    top, half = np.sqrt(0.5) * outside / beta, np.sqrt(0.5) * np.array([1, -1])
    stacked = np.vstack([top, top, -factor / np.sqrt(beta)])
    offset = np.concatenate([half - np.sqrt(0.5) * level / beta, -(factor @ centre) / np.sqrt(beta)])
    return Part(sparse.csc_matrix(stacked), offset, np.array([row]), beta)


def _clarabel(
    form: Quadratics, parts: list[Part], tol: float, max_steps: int, careful: bool
) -> tuple[np.ndarray, int, int, list[np.ndarray]]:
    """The step, the status, the iterations, and the dual variables of each part.

    The parts are the equalities (s = 0), the affine inequalities (s >= 0), and a cone for each curved row.

    Without refinement of its linear solves (`careful`) it is a third faster and, where all rows are affine, no worse.
    """
    clarabel = package()
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_iter = max_steps
    settings.iterative_refinement_enable = careful
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tol
    sizes = [part.offset.size for part in parts]
    kinds = [clarabel.ZeroConeT, clarabel.NonnegativeConeT] + [clarabel.SecondOrderConeT] * len(sizes[2:])
    cones = [kind(size) for kind, size in zip(kinds, sizes, strict=True) if size]
    matrix, offset = sparse.vstack([part.matrix for part in parts], format="csc"), [part.offset for part in parts]
    hessian = sparse.csc_matrix(np.triu(form.hessian))
    found = clarabel.DefaultSolver(hessian, form.linear, matrix, np.concatenate(offset), cones, settings).solve()
    meaning = {"Solved": SOLVED, "PrimalInfeasible": INFEASIBLE, "DualInfeasible": UNBOUNDED}
    duals = np.split(np.array(found.z), np.cumsum(sizes)[:-1])
    return np.array(found.x), meaning.get(str(found.status), INACCURATE), found.iterations, duals


def polished(form: Quadratics, step: np.ndarray, mu: np.ndarray) -> Pair:
    """(step, mu) after Newton steps where they arrive; rows are measured by their gradients, G by its curvature."""
    curvature = abs(np.trace(form.hessian)) / step.size or 1.0
    sizes = np.maximum(np.linalg.norm(form.at(step)[1], axis=1), np.finfo(float).tiny)

    def slopes(step: np.ndarray, mu: np.ndarray) -> Slopes:
        values, normals = form.at(step)
        gradient = (form.hessian @ step + form.linear) / curvature + (normals.T / sizes) @ mu
        return Slopes(0.0, np.zeros(0), gradient, values / sizes)

    def matrices(step: np.ndarray, mu: np.ndarray) -> Matrices:
        bent = np.tensordot((mu / sizes)[form.curved], form.bends, 1)
        return Matrices((form.at(step)[1].T / sizes).T, form.hessian / curvature + bent)

    level = Level(form.equal, slopes, matrices, lambda step: step, ROUNDING / MUCH)
    found = Tracker().solve(level, step, mu * sizes / curvature)
    return (step, mu) if found is None else (found.y, found.mu * curvature / sizes)
