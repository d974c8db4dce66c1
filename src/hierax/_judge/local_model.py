r"""What a small move of x can gain, to first order: the bilevel problem linearised at a solution of its lower level.

With the rows h of the lower level, their multipliers mu and L = G + mu.h, a direction (dx, dy, dmu) keeps y a solution
of the lower level to first order where

    L_yx dx + L_yy dy + h_y' dmu = 0,
    h_i + h_i' (dx, dy) = 0                                  for active rows (mu_i > 0) and equalities,
    dmu_i = 0                                                for inactive rows,
    either  h_i + h_i' d = 0, mu_i + dmu_i >= 0   or   h_i + h_i' d <= 0, mu_i + dmu_i = 0      for weakly active rows.

The least F_x dx + F_y dy over these directions, the linearised upper constraints and |dx| <= 1 (lengths of x) is a
linear program for each choice of "either, or". Only pieces that some direction realises can be chosen, and y*(x) need
not be unique. Everything is in units (`units.py`).
"""

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np

from hierax._base.lazy import lazy
from hierax._engine.branches import Branches
from hierax._engine.programs import Values
from hierax._engine.vectors import Point, VectorProblem
from hierax._lower.kkt_systems import Matrices, System
from hierax._math.lower_level import SOLVED

scipy_optimize = lazy("scipy.optimize")
scipy_linalg = lazy("scipy.linalg")

MOST_WEAK = 7  # rows whose choices are all tried
MOST_UNKNOWNS = 600  # of a linear program with choices
FEW = 10  # entries of y up to which everything is decided by singular values
STIFF = 1e6  # in units: answers of y and mu to a push beyond this are not trusted
DEPENDENT = 1e-9  # relative singular values, and curvatures, below this count as zero
ROOM = 1e-9  # rows and multipliers, in units, that rounding may put on the wrong side
CUT = 0.05  # difference in G, in units, up to which other local solutions of the lower level are in the way
APART = 1e-3  # distance, in lengths, of different solutions
ACTIVE_ABOVE = 3.0  # upper constraints whose slack is below this many tolerances are active


@dataclasses.dataclass(frozen=True)
class Linearised:
    """The problem near a solution of the lower level.

    Attributes:
        vectors: the problem.
        point: x, y*(x) and the multipliers.
        values: all functions there.
        slopes: and their Jacobians.
    """

    vectors: VectorProblem
    point: Point
    values: Values[np.ndarray]
    slopes: Values[np.ndarray]
    _responses: "dict[bytes, Response]" = dataclasses.field(default_factory=dict, repr=False)

    def response(self, active: np.ndarray) -> "Response":
        """dy*/dx and dmu/dx on one active set, dependent rows counted once."""
        key = active.tobytes()
        if key not in self._responses:
            self._responses[key] = _response(self, active)
        return self._responses[key]

    @property
    def slack(self) -> np.ndarray:
        """How far every row is from zero, as a share of the length of y."""
        return np.abs(self.values.rows)

    @property
    def force(self) -> np.ndarray:
        """The size of every multiplier."""
        return np.abs(self.point.mu)

    @property
    def margins(self) -> np.ndarray:
        """How clearly every row is active or not: zero where it is weakly active; infinite for equalities."""
        moves = self.slopes.rows.any(axis=1)
        return np.where(self.vectors.layout.equal | ~moves, np.inf, np.maximum(self.slack, self.force))

    @property
    def radii(self) -> np.ndarray:
        """Lengths that x may move until, to first order, every row changes sides; infinite for those that never do.

        Where y* is not unique, the rows' margins.
        """
        active, equal = self.active, self.vectors.layout.equal
        answer = self.response(active)
        if answer.y is None:
            return self.margins
        nx = self.vectors.layout.nx
        moves = np.abs(self.slopes.rows[:, :nx] + self.slopes.rows[:, nx:] @ answer.y).sum(axis=1)
        moves[active] = np.abs(answer.mu).sum(axis=1)
        distance = np.where(active, self.force, self.slack)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(equal | (moves <= DEPENDENT), np.inf, distance / moves)

    @property
    def active(self) -> np.ndarray:
        """Equalities, and rows whose multiplier is larger than their slack."""
        return self.vectors.layout.equal | (self.force > self.slack)


def with_cuts(at: Linearised, branches: Branches) -> Linearised:
    """The same with a further upper constraint, G(x, y) <= v_j(x), for every other local solution that is as good.

    Where x moves so that such a solution becomes better, y stops being one.
    """
    value = float(at.values.lower)
    others = [
        j
        for j in np.flatnonzero((branches.status == SOLVED) & (np.abs(branches.value - value) <= CUT))
        if np.max(np.abs(branches.y[j] - at.point.y), initial=0.0) > APART
    ]
    if not others:
        return at
    kept: list[int] = []
    for j in others:
        if all(np.max(np.abs(branches.y[j] - branches.y[k])) > APART for k in kept):
            kept.append(int(j))
    nx = at.vectors.layout.nx
    slopes = np.tile(at.slopes.lower, (len(kept), 1))
    slopes[:, :nx] -= branches.slope[kept]
    return dataclasses.replace(
        at,
        values=at.values._replace(above=np.concatenate([at.values.above, value - branches.value[kept]])),
        slopes=at.slopes._replace(above=np.concatenate([at.slopes.above, slopes])),
    )


class Gain(NamedTuple):
    """What a length of x can gain.

    Attributes:
        decrease: of F, to first order; NaN where it is not known.
        direction: of x, in lengths.
        uphill: what F rises, to first order, over a length of x in the opposite directions; NaN where not known.
        nu: multipliers of the upper constraints and the faces of X.
        active: rows of the lower level that stay active on the way, where every choice was tried.
    """

    decrease: float
    direction: np.ndarray
    uphill: float
    nu: np.ndarray
    active: np.ndarray | None = None


class Response(NamedTuple):
    """How y* answers to x where nothing is weakly active.

    Attributes:
        y: dy/dx; None where the lower level is flat along its active rows: y* is not unique.
        mu: dmu/dx.
        dependent: whether active rows depend on each other as functions of y, but not of (x, y): only some of them stay
            active when x moves.
    """

    y: np.ndarray | None
    mu: np.ndarray
    dependent: bool


def _response(at: Linearised, active: np.ndarray) -> Response:
    nx, ny = at.vectors.layout.nx, at.vectors.layout.ny
    if ny > FEW:
        system = _regular_system(at, active)
        if system is not None:
            dy, dmu = system.solve(-at.slopes.stationarity[:, :nx], -at.slopes.rows[:, :nx])
            return Response(dy, dmu[active], False)
    rows, hessian, mixed = at.slopes.rows[active], at.slopes.stationarity[:, nx:], at.slopes.stationarity[:, :nx]
    rows_x, rows_y = rows[:, :nx], rows[:, nx:]
    if len(rows):
        left, sizes, right = np.linalg.svd(rows_y, full_matrices=True)
        rank = _rank(rows_y)
        inverse = (right[:rank].T / sizes[:rank]) @ left[:, :rank].T
        free = right[rank:].T
    else:
        rank, inverse, free = 0, np.zeros((ny, 0)), np.eye(ny)
    dependent = rank < len(rows) and rank < _rank(rows)  # else a row follows from the others, whatever x does
    moved = -inverse @ rows_x
    reduced = free.T @ hessian @ free
    curvatures = np.abs(np.linalg.eigvalsh(0.5 * (reduced + reduced.T))) if reduced.size else np.ones(1)
    if curvatures.min() <= DEPENDENT * max(1.0, np.abs(hessian).max()):
        return Response(None, np.zeros((len(rows), nx)), dependent)
    along = free @ np.linalg.solve(reduced, -free.T @ (mixed + hessian @ moved)) if reduced.size else 0.0
    dy = moved + along
    dmu = -inverse.T @ (mixed + hessian @ dy)
    return Response(dy, dmu, dependent)


def _regular_system(at: Linearised, active: np.ndarray) -> System | None:
    """The KKT system on the active rows; None where y* or the multipliers are not unique, or nearly so."""
    nx = at.vectors.layout.nx
    if not (np.isfinite(at.slopes.rows).all() and np.isfinite(at.slopes.stationarity).all()):
        return None
    system = System(Matrices(at.slopes.rows[:, nx:], at.slopes.stationarity[:, nx:]), active)
    if system.doubled:
        return None
    return system if system.stiffness(push_rows=True) <= STIFF else None


def _rank(rows: np.ndarray) -> int:
    sizes = np.linalg.svd(rows, compute_uv=False)
    return int(np.sum(sizes > DEPENDENT * max(1.0, np.max(sizes, initial=0.0))))


def reach(at: Linearised) -> tuple[np.ndarray, np.ndarray]:
    """How far every entry of x may move down and up, at most one length."""
    low, high = at.vectors.x_limits
    return np.maximum(low - at.point.x, -1.0).clip(max=0.0), np.minimum(high - at.point.x, 1.0).clip(min=0.0)


def gain(at: Linearised, tol: float, weak: np.ndarray) -> Gain:
    """The largest decrease of F over a length of x, to first order; `weak` are rows with a choice."""
    answer = at.response(at.active & ~weak)
    if not weak.any() and answer.y is not None and not answer.dependent:
        return _smooth_gain(at, tol, answer.y)
    if weak.any() and not answer.dependent and answer.y is not None and weak.sum() <= MOST_WEAK:
        found = _gain_by_sides(at, tol, weak)
        if found is not None:
            return found
    chosen = weak | (at.active & ~at.vectors.layout.equal if answer.dependent else np.zeros_like(weak))
    unknowns = at.vectors.layout.nx + at.vectors.layout.ny + int((chosen | at.active).sum())
    if chosen.sum() > MOST_WEAK or unknowns > MOST_UNKNOWNS:
        return Gain(np.nan, np.zeros(at.vectors.layout.nx), np.nan, np.zeros(len(at.values.above)))
    return _gain_with_choices(at, tol, chosen, 3.0 if answer.y is None else np.inf)


def _upper_rows(at: Linearised, tol: float) -> np.ndarray:
    """Which upper constraints and faces of X are active, apart from bounds, which `reach` keeps."""
    layout = at.vectors.layout
    single = np.count_nonzero(at.slopes.above, axis=1) <= 1
    place = np.arange(single.size)
    bound = single & (place >= layout.own_above) & (place < layout.above)
    return ~bound & (at.values.above >= -ACTIVE_ABOVE * tol)


def _smooth_gain(at: Linearised, tol: float, dy: np.ndarray) -> Gain:
    """Where F(x, y*(x)) is differentiable."""
    nx = at.vectors.layout.nx

    def total(slopes: np.ndarray) -> np.ndarray:
        return slopes[..., :nx] + slopes[..., nx:] @ dy

    gradient, nu = total(at.slopes.upper), np.zeros(len(at.values.above))
    low, high = reach(at)
    held = _upper_rows(at, tol)
    if not held.any() and not len(at.values.above_equal):
        direction = np.where(gradient > 0, low, high)
        return Gain(float(-gradient @ direction), direction, float(np.abs(gradient).sum()), nu)
    found = scipy_optimize.linprog(
        gradient,
        A_ub=total(at.slopes.above[held]),
        b_ub=np.maximum(-at.values.above[held], 0.0),
        A_eq=total(at.slopes.above_equal),
        b_eq=np.zeros(len(at.values.above_equal)),
        bounds=np.stack([low, high], axis=1),
    )
    if found.x is None:
        return Gain(np.nan, np.zeros(nx), np.nan, nu)
    nu[held] = np.maximum(-found.ineqlin.marginals, 0.0)
    return Gain(max(0.0, -float(found.fun)), found.x, float(np.abs(gradient).sum()), nu)


class _Sides(NamedTuple):
    """The weakly active rows W of a lower level, as x moves by dx, with everything else eliminated.

    Their values are a + b dx - c m with multipliers m, and m >= 0, a + b dx - c m <= 0, one of them zero. Functions of
    the upper level change by `start` + `slope` dx - `pull` m.
    """

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    start: np.ndarray
    slope: np.ndarray
    pull: np.ndarray


def _sides(at: Linearised, weak: np.ndarray, uppers: np.ndarray) -> _Sides | None:
    """None where y* without the weakly active rows is not unique, or they depend on each other or on active ones."""
    nx = at.vectors.layout.nx
    system = _regular_system(at, at.active & ~weak)
    if system is None:
        return None
    rows, none = at.slopes.rows[weak], np.zeros((len(weak), int(weak.sum())))
    pushed, _ = system.solve(rows[:, nx:].T.copy(), none)
    yielding = rows[:, nx:] @ pushed
    sizes = np.linalg.norm(rows[:, nx:], axis=1)
    if np.linalg.svd(yielding / np.outer(sizes, sizes), compute_uv=False).min(initial=np.inf) < 1 / STIFF:
        return None
    moved = at.response(at.active & ~weak).y
    assert moved is not None
    without = pushed @ at.point.mu[weak]  # what y does when the weakly active rows let go
    return _Sides(
        at.values.rows[weak] + rows[:, nx:] @ without,
        rows[:, :nx] + rows[:, nx:] @ moved,
        yielding,
        uppers[:, nx:] @ without,
        uppers[:, :nx] + uppers[:, nx:] @ moved,
        uppers[:, nx:] @ pushed,
    )


def _gain_by_sides(at: Linearised, tol: float, weak: np.ndarray) -> Gain | None:
    """The best over all choices, each a linear program in x alone; None where that form does not exist."""
    held = _upper_rows(at, tol)
    equal = at.slopes.above_equal
    uppers = np.concatenate([at.slopes.upper[None], at.slopes.above[held], equal])
    sides = _sides(at, weak, uppers)
    if sides is None:
        return None
    free = at.vectors.layout.equal[weak]
    best = Gain(np.nan, np.zeros(at.vectors.layout.nx), np.nan, np.zeros(len(at.values.above)))
    for choice in itertools.product([True, False], repeat=int(weak.sum())):
        chosen = np.array(choice, bool)
        if np.any(free & ~chosen):
            continue
        found = _on_side(at, sides, chosen, held)
        if found is not None and not found.decrease <= best.decrease:
            active = at.active & ~weak
            active[weak] = chosen
            best = found._replace(active=active)
    return best


def _on_side(at: Linearised, sides: _Sides, active: np.ndarray, held: np.ndarray) -> Gain | None:
    """One choice of the weakly active rows that stay active; None: no direction realises it."""
    a, b, c, start, slope, pull = sides
    inverse = np.linalg.inv(c[np.ix_(active, active)])
    first, by_x = inverse @ a[active], inverse @ b[active]  # m = first + by_x dx
    slope, start = slope - pull[:, active] @ by_x, start - pull[:, active] @ first
    left = ~active
    rows = 1 + int(held.sum())
    (low, high), values = reach(at), np.maximum(-at.values.above[held], 0.0)
    found = scipy_optimize.linprog(
        slope[0],
        A_ub=np.concatenate([slope[1:rows], -by_x, b[left] - c[np.ix_(left, active)] @ by_x]),
        b_ub=np.concatenate([values - start[1:rows], first + ROOM, ROOM - a[left] + c[np.ix_(left, active)] @ first]),
        A_eq=slope[rows:] if len(slope) > rows else None,
        b_eq=-start[rows:] if len(slope) > rows else None,
        bounds=np.stack([low, high], axis=1),
    )
    if found.x is None:
        return None
    nu = np.zeros(len(at.values.above))
    nu[held] = np.maximum(-found.ineqlin.marginals[: rows - 1], 0.0)
    return Gain(max(0.0, -float(found.fun) - float(start[0])), found.x, np.nan, nu)


def _gain_with_choices(at: Linearised, tol: float, chosen: np.ndarray, longest: float) -> Gain:
    """The best over all choices; `longest` bounds the entries of dy where y*(x) is not unique."""
    layout = at.vectors.layout
    best = Gain(np.nan, np.zeros(layout.nx), np.nan, np.zeros(len(at.values.above)))
    places = np.flatnonzero(chosen)
    for choice in itertools.product([True, False], repeat=len(places)):
        active = at.active & ~chosen
        active[places] = choice
        found = _linear_program(at, tol, active, chosen & ~active, longest)
        if found is not None and not found.decrease <= best.decrease:
            best = found
    return best


def _linear_program(at: Linearised, tol: float, active: np.ndarray, left: np.ndarray, longest: float) -> Gain | None:
    """One choice: rows `active` stay zero, chosen rows `left` may become negative; None: no direction realises it."""
    layout, (low, high) = at.vectors.layout, reach(at)
    nx, ny, held = layout.nx, layout.ny, _upper_rows(at, tol)
    moving = active | left  # rows whose multipliers change
    count = int(moving.sum())

    def wide(slopes: np.ndarray) -> np.ndarray:
        return np.concatenate([slopes, np.zeros((len(slopes), count))], axis=1)

    stationary = np.concatenate([at.slopes.stationarity, at.slopes.rows[moving][:, nx:].T], axis=1)
    values = np.where(layout.equal, 0.0, at.values.rows)
    least = np.where(layout.equal, -np.inf, -at.point.mu)[moving]
    most = np.where(active, np.inf, -at.point.mu)[moving]
    box = np.full(ny, longest)
    found = scipy_optimize.linprog(
        np.concatenate([at.slopes.upper, np.zeros(count)]),
        A_ub=wide(np.concatenate([at.slopes.above[held], at.slopes.rows[left]])),
        b_ub=np.concatenate([np.maximum(-at.values.above[held], 0.0), np.maximum(-values[left], 0.0)]),
        A_eq=np.concatenate([stationary, wide(at.slopes.rows[active]), wide(at.slopes.above_equal)]),
        b_eq=np.concatenate([np.zeros(ny), -values[active], np.zeros(len(at.values.above_equal))]),
        bounds=np.stack([np.concatenate([low, -box, least]), np.concatenate([high, box, most])], axis=1),
    )
    if found.x is None:
        return None
    nu = np.zeros(len(at.values.above))
    nu[held] = np.maximum(-found.ineqlin.marginals[: held.sum()], 0.0)
    return Gain(max(0.0, -float(found.fun)), found.x[:nx], np.nan, nu)
