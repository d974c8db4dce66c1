r"""What a small move of x can gain, to first order: the bilevel problem linearised at a solution of its lower level.

With the rows h of the lower level, their multipliers mu and L = G + mu.h, a direction (dx, dy, dmu) keeps y a solution
of the lower level to first order where

    L_yx dx + L_yy dy + h_y' dmu = 0,
    h_i + h_i' (dx, dy) = 0                                  for active rows (mu_i > 0) and equalities,
    dmu_i = 0                                                for inactive rows,
    either  h_i + h_i' d = 0, mu_i + dmu_i >= 0   or   h_i + h_i' d <= 0, mu_i + dmu_i = 0      for weakly active rows.

The least F_x dx + F_y dy over these directions, the linearised upper constraints and |dx| <= 1 (lengths of x) is a
linear program for each choice of "either, or". Only pieces that some direction realises can be chosen, and y*(x) need
not be unique. Everything is in units.

A large lower level has many rows D that change sides within any distance. Their choices are not tried one by one but
bounded: let D be held active, b its adjoint multipliers, S dx the change of its multipliers when x moves, and N the
Schur complement that answers to a slack s in D by multipliers -N s. Rows D' that let go move by s = N_D'D'^-1 S_D' dx
and change F by b_D's more than the gradient with D held says. So for every choice

    |b_D' s| <= |b_D| |S_D dx| / lambda_min(N),    lambda_min(N) >= lambda_min(L_yy) / ||J_D||^2.

lambda_min is half of what Lanczos finds on the entries that no bound holds. A bound refutes nothing.
"""

import itertools
from typing import NamedTuple

import numpy as np

from hierax._base.imports import lazy
from hierax._engine.linearised import Linearised
from hierax._engine.programs import LargeFunctions
from hierax._engine.vectors import STIFF, through
from hierax._lower.linear import Matrices, gradients

scipy_optimize = lazy("scipy.optimize")

MAX_WEAK = 7  # rows whose choices are all tried
MAX_UNKNOWNS = 600  # of a linear program with choices
MAX_LINEAR = 2000  # entries of x of a linear program
ROOM = 1e-9  # rows and multipliers, in units, that rounding may put on the wrong side
ACTIVE_ABOVE = 3.0  # upper constraints whose slack is below this many tolerances are active
FLAT = 1e-6  # curvature, in units, below which y* may not be unique
SAFE = 0.5  # share of the least curvature that Lanczos finds


class Gain(NamedTuple):
    """What a length of x can gain.

    Attributes:
        decrease: of F, to first order; NaN where it is not known.
        direction: of x, in lengths.
        uphill: what F rises, to first order, over a length of x in the opposite directions; NaN where not known.
        nu: multipliers of the upper constraints and the faces of X.
        active: rows of the lower level that stay active on the way, where every choice was tried.
        bound: whether the decrease is only known not to be exceeded.
    """

    decrease: float
    direction: np.ndarray
    uphill: float
    nu: np.ndarray
    active: np.ndarray | None = None
    bound: bool = False


def reach(at: Linearised) -> tuple[np.ndarray, np.ndarray]:
    """How far every entry of x may move down and up, at most one length."""
    low, high = at.vectors.x_limits
    return np.maximum(low - at.point.x, -1.0).clip(max=0.0), np.minimum(high - at.point.x, 1.0).clip(min=0.0)


def gain(at: Linearised, tol: float, weak: np.ndarray) -> Gain:
    """The largest decrease of F over a length of x, to first order; `weak` are rows with a choice."""
    if at.vectors.programs.large:
        return _gain_of_large(at, tol, weak)
    answer = at.response(at.active & ~weak)
    if not weak.any() and answer.y is not None and not answer.dependent:
        return _smooth_gain(at, tol, _through(at, answer.y))
    if weak.any() and not answer.dependent and answer.y is not None and weak.sum() <= MAX_WEAK:
        found = _gain_by_sides(at, tol, weak)
        if found is not None:
            return found
    chosen = weak | (at.active & ~at.vectors.layout.equal if answer.dependent else np.zeros_like(weak))
    unknowns = at.vectors.layout.nx + at.vectors.layout.ny + int((chosen | at.active).sum())
    if chosen.sum() > MAX_WEAK or unknowns > MAX_UNKNOWNS:
        return _unknown(at)
    return _gain_with_choices(at, tol, chosen, 3.0 if answer.y is None else np.inf)


def _unknown(at: Linearised) -> Gain:
    return Gain(np.nan, np.zeros(at.vectors.layout.nx), np.nan, np.zeros(len(at.values.above)))


class _Slopes(NamedTuple):
    """Total derivatives in x of the upper level's functions: F, upper constraints with faces of X, equalities of X."""

    upper: np.ndarray
    above: np.ndarray
    equal: np.ndarray


def _through(at: Linearised, dy: np.ndarray) -> _Slopes:
    """Total derivatives by the response dy/dx."""
    nx = at.vectors.layout.nx

    def total(slopes: np.ndarray) -> np.ndarray:
        return slopes[..., :nx] + slopes[..., nx:] @ dy

    return _Slopes(total(at.slopes.upper), total(at.slopes.above), total(at.slopes.above_equal))


def adjoint_slopes(at: Linearised, active: np.ndarray) -> tuple[_Slopes, np.ndarray] | None:
    """Total derivatives by adjoint systems, one per function of the upper level, and the adjoint multipliers of F.

    None where the system is not solved, or its solution not unique.
    """
    total, adjoints = through(at.vectors.functions, at.point, at.matrices.system(active))
    if not total.finite:
        return None
    return _Slopes(total.slope, total.above_slopes, total.equal_slopes), adjoints[0, at.point.y.size :]


def _gain_of_large(at: Linearised, tol: float, weak: np.ndarray) -> Gain:
    """The gain without choices; of few choices with sparse matrices the best, of others an upper bound."""
    found = adjoint_slopes(at, at.active)
    if found is None:
        return _unknown(at)
    smooth = _smooth_gain(at, tol, found[0])
    if isinstance(at.matrices, Matrices) and at.mixed is not None and 0 < weak.sum() <= MAX_WEAK:
        by_sides = _gain_by_sides(at, tol, weak)
        if by_sides is not None:
            return by_sides
    if at.regular_system(at.active) is None:
        return smooth._replace(decrease=np.nan)
    return smooth._replace(decrease=_bound(at, tol, weak), bound=True) if weak.any() else smooth


def _bound(at: Linearised, tol: float, weak: np.ndarray) -> float:
    """What a length of x can gain whatever the rows with a choice do; NaN: not known."""
    held = at.regular_system(at.active | weak)
    if at.mixed is None or held is None or _upper_rows(at, tol).any() or len(at.values.above_equal):
        return np.nan
    found, functions = adjoint_slopes(at, at.active | weak), at.vectors.functions
    loose = at.matrices.system(at.active & ~weak)
    assert isinstance(functions, LargeFunctions)
    least = SAFE * functions.least_curvature(*at.point, ~loose.bounded)
    _, moves = held.solve(-at.mixed[: at.point.y.size], -at.mixed[at.point.y.size :])
    if found is None or not least > FLAT or not np.isfinite(moves).all():
        return np.nan
    slopes, multipliers = found
    which = np.flatnonzero(weak)
    norms = np.linalg.norm(gradients(at.matrices, which), axis=1)
    coupled = 1 + int(np.sum(held.coupled[which]))
    moved = np.linalg.norm(moves[which] * norms[:, None], axis=0).sum()
    released = np.linalg.norm(multipliers[which] * norms) * moved * coupled / least
    return float(released + _smooth_gain(at, tol, slopes).decrease)


def _upper_rows(at: Linearised, tol: float) -> np.ndarray:
    """Which upper constraints and faces of X are active, apart from bounds, which `reach` keeps."""
    layout = at.vectors.layout
    single = np.count_nonzero(at.slopes.above, axis=1) <= 1
    place = np.arange(single.size)
    bound = single & (place >= layout.own_above) & (place < layout.above)
    return ~bound & (at.values.above >= -ACTIVE_ABOVE * tol)


def _smooth_gain(at: Linearised, tol: float, slopes: _Slopes) -> Gain:
    """Where F(x, y*(x)) is differentiable."""
    gradient, nu = slopes.upper, np.zeros(len(at.values.above))
    low, high = reach(at)
    held = _upper_rows(at, tol)
    if not held.any() and not len(at.values.above_equal):
        direction = np.where(gradient > 0, low, high)
        return Gain(float(-gradient @ direction), direction, float(np.abs(gradient).sum()), nu)
    if gradient.size > MAX_LINEAR:
        return _unknown(at)
    found = scipy_optimize.linprog(
        gradient,
        A_ub=slopes.above[held],
        b_ub=np.maximum(-at.values.above[held], 0.0),
        A_eq=slopes.equal,
        b_eq=np.zeros(len(at.values.above_equal)),
        bounds=np.stack([low, high], axis=1),
    )
    if found.x is None:
        return _unknown(at)
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
    system = at.regular_system(at.active & ~weak)
    if system is None:
        return None
    rows, none = at.row_slopes(weak), np.zeros((len(weak), int(weak.sum())))
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
    best = _unknown(at)
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
    best = _unknown(at)
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

    stationary = np.concatenate([at.stationarity_slopes, at.row_slopes(moving)[:, nx:].T], axis=1)
    values = np.where(layout.equal, 0.0, at.values.rows)
    least = np.where(layout.equal, -np.inf, -at.point.mu)[moving]
    most = np.where(active, np.inf, -at.point.mu)[moving]
    box = np.full(ny, longest)
    found = scipy_optimize.linprog(
        np.concatenate([at.slopes.upper, np.zeros(count)]),
        A_ub=wide(np.concatenate([at.slopes.above[held], at.row_slopes(left)])),
        b_ub=np.concatenate([np.maximum(-at.values.above[held], 0.0), np.maximum(-values[left], 0.0)]),
        A_eq=np.concatenate([stationary, wide(at.row_slopes(active)), wide(at.slopes.above_equal)]),
        b_eq=np.concatenate([np.zeros(ny), -values[active], np.zeros(len(at.values.above_equal))]),
        bounds=np.stack([np.concatenate([low, -box, least]), np.concatenate([high, box, most])], axis=1),
    )
    if found.x is None:
        return None
    nu = np.zeros(len(at.values.above))
    nu[held] = np.maximum(-found.ineqlin.marginals[: held.sum()], 0.0)
    return Gain(max(0.0, -float(found.fun)), found.x[:nx], np.nan, nu)
