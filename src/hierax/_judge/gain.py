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
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hierax._base.constants import MANY
from hierax._base.imports import lazy
from hierax._engine.float64_problem import ROUNDING
from hierax._engine.vectors import MAX_DENSE, STIFF, Linearised, Uppers, through
from hierax._judge.measuring import KINK
from hierax._lower.linear import KKTSystem, Matrices, Pair
from hierax._math.hypergradient import MOST as MAX_ORDER

scipy_optimize = lazy("scipy.optimize")

MAX_WEAK = 7  # rows whose choices are all tried
MAX_NODES = 5000  # of the mixed-integer program for more of them: seconds at 50 rows


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


def gain(at: Linearised, tol: float, weak: np.ndarray) -> Gain:
    """The largest decrease of F over a length of x, to first order; `weak` are rows with a choice."""
    if at.vectors.programs.large:
        return _gain_of_large(at, tol, weak)
    answer, layout = at.response(at.active & ~weak), at.vectors.layout
    if answer.y is not None and not answer.dependent:
        if not weak.any():
            return _smooth_gain(at, tol, total_slopes(at, at.active))
        by_sides = _gain_by_sides(at, tol, weak)
        if by_sides is not None:
            return by_sides
    chosen = weak | (at.active & ~layout.equal & answer.dependent)
    unknowns = layout.nx + layout.ny + int((chosen | at.active).sum())
    if chosen.sum() > MAX_WEAK or unknowns > MAX_DENSE:
        return _unknown(at)
    longest = KINK if answer.y is None else np.inf  # of dy, where y*(x) is not unique
    found = _best_choice(at, chosen, lambda active: _with_multipliers(at, tol, active, chosen & ~active, longest))
    return found._replace(active=None)


def _unknown(at: Linearised) -> Gain:
    return Gain(np.nan, np.zeros(at.vectors.layout.nx), np.nan, np.zeros(len(at.values.above)))


def total_slopes(at: Linearised, active: np.ndarray) -> Uppers | None:
    """Total derivatives through y*(x) on some active rows; None where y* is not unique, or not known."""
    if at.vectors.programs.large:
        found = _adjoint_slopes(at, active)
        return None if found is None else found[0]
    nx, dy = at.vectors.layout.nx, at.response(active).y
    return None if dy is None else Uppers(*(part[..., :nx] + part[..., nx:] @ dy for part in at.slopes))


def _adjoint_slopes(at: Linearised, active: np.ndarray) -> tuple[Uppers, np.ndarray] | None:
    """Total derivatives by adjoint systems, one per function of the upper level, and the adjoint multipliers of F.

    None where the system is not solved, or its solution not unique.
    """
    total, adjoints = through(at.vectors.functions, at.point, KKTSystem(at.matrices, active))
    return (total.slopes, adjoints[0, at.point.y.size :]) if total.finite else None


def _gain_of_large(at: Linearised, tol: float, weak: np.ndarray) -> Gain:
    """The gain without choices; of few choices with sparse matrices the best, of others an upper bound."""
    smooth = _smooth_gain(at, tol, total_slopes(at, at.active))
    if np.isnan(smooth.uphill):
        return smooth
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
    found, functions = _adjoint_slopes(at, at.active | weak), at.vectors.functions
    loose = KKTSystem(at.matrices, at.active & ~weak)
    least = 0.5 * functions.least_curvature(*at.point, ~loose.bounded)
    _, moves = held.solve(-at.mixed[: at.point.y.size], -at.mixed[at.point.y.size :])
    if found is None or not least * STIFF > 1 or not np.isfinite(moves).all():
        return np.nan
    slopes, multipliers = found
    which = np.flatnonzero(weak)
    norms = np.linalg.norm(at.matrices.gradients(which), axis=1)
    coupled = 1 + int(np.sum(held.coupled[which]))
    moved = np.linalg.norm(moves[which] * norms[:, None], axis=0).sum()
    released = np.linalg.norm(multipliers[which] * norms) * moved * coupled / least
    return float(released + _smooth_gain(at, tol, slopes).decrease)


def _upper_rows(at: Linearised, tol: float) -> np.ndarray:
    """Which upper constraints and faces of X are active; bounds limit dx by themselves."""
    return at.values.above >= -KINK * tol


def _smooth_gain(at: Linearised, tol: float, slopes: Uppers | None) -> Gain:
    """Where F(x, y*(x)) is differentiable."""
    if slopes is None:
        return _unknown(at)
    gradient, held, uphill = slopes.upper, _upper_rows(at, tol), float(np.abs(slopes.upper).sum())
    if not held.any() and not len(at.values.above_equal):
        direction = np.where(gradient > 0, *_reach(at))
        return Gain(float(-gradient @ direction), direction, uphill, np.zeros(len(at.values.above)))
    rows, equal = (slopes.above[held], _room(at, held)), (slopes.equal, np.zeros(len(slopes.equal)))
    found = None if gradient.size > MAX_ORDER else _least(at, held, gradient, rows, equal, _reach(at))
    return _unknown(at) if found is None else found._replace(uphill=uphill)


def _room(at: Linearised, held: np.ndarray) -> np.ndarray:
    """What is left of the active upper constraints."""
    return np.maximum(-at.values.above[held], 0.0)


def _reach(at: Linearised) -> Pair:
    """How far every entry of x may move down and up, at most one length."""
    low, high = at.vectors.x_limits
    return np.maximum(low - at.point.x, -1.0).clip(max=0.0), np.minimum(high - at.point.x, 1.0).clip(min=0.0)


def _least(
    at: Linearised, held: np.ndarray, slope: np.ndarray, rows: Pair, equal: Pair, limits: Pair, start: float = 0.0
) -> Gain | None:
    """A linear program whose first unknowns are dx and whose first rows are the upper constraints `held`.

    It minimises `start` + slope.dx; rows and equalities are pairs of slopes and of what these may come to. None where
    no direction keeps them.
    """
    found = scipy_optimize.linprog(slope, *rows, *equal, bounds=np.stack(limits, axis=1))
    if found.x is None:
        return None
    nu = np.zeros(len(at.values.above))
    nu[held] = np.maximum(-found.ineqlin.marginals[: held.sum()], 0.0)
    return Gain(max(0.0, -float(found.fun) - start), found.x[: at.vectors.layout.nx], np.nan, nu)


def _best_choice(at: Linearised, weak: np.ndarray, one: Callable[[np.ndarray], Gain | None]) -> Gain:
    """The best over all choices of the weakly active rows that stay active."""
    best = _unknown(at)
    for choice in itertools.product([True, False], repeat=int(weak.sum())):
        active = at.active & ~weak
        active[weak] = choice
        found = one(active)
        if found is not None and not found.decrease <= best.decrease:
            best = found._replace(active=active)
    return best


def _gain_by_sides(at: Linearised, tol: float, weak: np.ndarray) -> Gain | None:
    """The best over all choices, each a linear program in x alone.

    The weakly active rows have the values a + b dx - c m with multipliers m, everything else eliminated: m >= 0,
    a + b dx - c m <= 0, one of them zero. Functions of the upper level change by start + slope dx - pull m.

    Of more than a few rows one mixed-integer linear program finds the best choice. What it needs is a bound of m, and
    there is one: m'(a + b dx) = m'c m, so |m| <= |a + b dx| / lambda_min(c).

    None where y* without these rows is not unique, they depend on each other or on active ones, or nothing is decided.
    """
    nx, system = at.vectors.layout.nx, at.regular_system(at.active & ~weak)
    if system is None or weak.sum() > MAX_DENSE:
        return None
    of_x, of_y = np.split(at.row_slopes(weak), [nx], axis=1)
    pushed, _ = system.solve(of_y.T.copy(), np.zeros((len(weak), len(of_y))))
    c, sizes = of_y @ pushed, np.linalg.norm(of_y, axis=1)
    if not sizes.all():  # a row that does not see y cannot be held by it
        return None
    if np.linalg.svd(c / np.outer(sizes, sizes), compute_uv=False).min(initial=np.inf) < 1 / STIFF:
        return None
    moved, held = at.response(at.active & ~weak).y, _upper_rows(at, tol)
    assert moved is not None
    without = pushed @ at.point.mu[weak]  # what y does when the weakly active rows let go
    a, b = at.values.rows[weak] + of_y @ without, of_x + of_y @ moved
    uppers = np.concatenate([at.slopes.upper[None], at.slopes.above[held], at.slopes.equal])
    slope, start, pull = uppers[:, :nx] + uppers[:, nx:] @ moved, uppers[:, nx:] @ without, uppers[:, nx:] @ pushed
    end = 1 + int(held.sum())

    def on_side(every: np.ndarray) -> Gain | None:
        active = every[weak]
        left, inverse = ~active, np.linalg.inv(c[np.ix_(active, active)])
        first, by_x = inverse @ a[active], inverse @ b[active]  # m = first + by_x dx
        own, at_zero = slope - pull[:, active] @ by_x, start - pull[:, active] @ first
        c_left = c[np.ix_(left, active)]
        rows = np.concatenate([own[1:end], -by_x, b[left] - c_left @ by_x])
        room = [_room(at, held) - at_zero[1:end], first + ROUNDING, ROUNDING - a[left] + c_left @ first]
        equal = own[end:], -at_zero[end:]
        return _least(at, held, own[0], (rows, np.concatenate(room)), equal, _reach(at), float(at_zero[0]))

    if weak.sum() <= MAX_WEAK:
        return _best_choice(at, weak, on_side)
    rows = np.concatenate([slope[1:end], -pull[1:end]], axis=1), _room(at, held) - start[1:end]
    equal = np.concatenate([slope[end:], -pull[end:]], axis=1), -start[end:]
    choice = _chosen_at_once(a, b, c, np.concatenate([slope[0], -pull[0]]), rows, equal, _reach(at))
    if choice is None:
        return None
    active = at.active & ~weak
    active[weak] = choice
    found = on_side(active)
    return found and found._replace(active=active)


def _chosen_at_once(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, slope: np.ndarray, rows: Pair, equal: Pair, limits: Pair
) -> np.ndarray | None:
    """Which multipliers m may be positive where slope.(dx, m) is least; None where it is not decided.

    Unknowns are dx, m and z in {0, 1}: 0 <= m <= longest z and -deepest (1 - z) <= a + b dx - c m <= 0.
    """
    (nx, k), least = (b.shape[1], a.size), float(np.linalg.eigvalsh(0.5 * (c + c.T))[0])
    size = np.linalg.norm(np.abs(a) + np.abs(b) @ np.maximum(*np.abs(limits)))
    if not least * MANY > np.linalg.norm(c, 2):
        return None
    longest = size / least
    deepest = np.abs(a) + np.abs(b).sum(axis=1) + np.linalg.norm(c, axis=1) * longest
    one, no_x, no_z = np.eye(k), np.zeros((k, nx)), np.zeros((k, k))
    slack = np.concatenate([b, -c, no_z], axis=1)
    shut = np.concatenate([no_x, no_z, -np.diag(deepest)], axis=1)
    held = scipy_optimize.LinearConstraint(slack + shut, -a - deepest)
    every = [held, scipy_optimize.LinearConstraint(slack, ub=-a)]
    every.append(scipy_optimize.LinearConstraint(np.concatenate([no_x, one, -longest * one], axis=1), ub=0.0))
    for (matrix, side), low in ((rows, -np.inf), (equal, equal[1])):
        if len(matrix):
            wide = np.concatenate([matrix, np.zeros((len(matrix), k))], axis=1)
            every.append(scipy_optimize.LinearConstraint(wide, low, side))
    ends = zip(limits, (0.0, longest), (0.0, 1.0), strict=True)
    low, high = (np.concatenate([side, np.full(k, m), np.full(k, z)]) for side, m, z in ends)
    found = scipy_optimize.milp(
        np.concatenate([slope, np.zeros(k)]),
        constraints=every,
        bounds=scipy_optimize.Bounds(low, high),
        integrality=np.repeat([0, 1], [nx + k, k]),
        options={"node_limit": MAX_NODES, "mip_rel_gap": 0.0},
    )
    return None if found.status != 0 else found.x[nx + k :] > 0.5


def _with_multipliers(at: Linearised, tol: float, active: np.ndarray, left: np.ndarray, longest: float) -> Gain | None:
    """One choice, with dy and dmu as unknowns: rows `active` stay zero, chosen rows `left` may become negative."""
    (low, high), (nx, ny), held = _reach(at), (at.point.x.size, at.point.y.size), _upper_rows(at, tol)
    moving = active | left  # rows whose multipliers change
    count = int(moving.sum())

    def wide(slopes: np.ndarray) -> np.ndarray:
        return np.concatenate([slopes, np.zeros((len(slopes), count))], axis=1)

    assert at.mixed is not None
    moves_y = np.concatenate([at.mixed[:ny], at.hessian, at.row_slopes(moving)[:, nx:].T], axis=1)
    values, free = np.where(at.vectors.layout.equal, 0.0, at.values.rows), at.vectors.layout.equal
    rows = wide(np.concatenate([at.slopes.above[held], at.row_slopes(left)]))
    room = np.concatenate([_room(at, held), np.maximum(-values[left], 0.0)])
    equal = np.concatenate([moves_y, wide(at.row_slopes(active)), wide(at.slopes.equal)])
    zeros = np.concatenate([np.zeros(ny), -values[active], np.zeros(len(at.values.above_equal))])
    box = np.full(ny, longest)
    least = np.concatenate([low, -box, np.where(free, -np.inf, -at.point.mu)[moving]])
    most = np.concatenate([high, box, np.where(active, np.inf, -at.point.mu)[moving]])
    slope = np.concatenate([at.slopes.upper, np.zeros(count)])
    return _least(at, held, slope, (rows, room), (equal, zeros), (least, most))
