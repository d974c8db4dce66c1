r"""The certificate's view of the upper level where matrices do not fit: `above.py` by products with derivatives alone.

The gradient of F(x, y*(x)) takes one adjoint system; which rows change sides near x takes one system per entry of x, or
per row, whichever are fewer. A large lower level has many rows D that do so within any distance. Their choices are not
tried one by one but bounded: let D be held active, b its adjoint multipliers, S dx the change of its multipliers when x
moves, and N the Schur complement that answers to a slack s in D by multipliers -N s. Rows D' that let go move by
s = N_D'D'^-1 S_D' dx and change F by b_D's more than the gradient with D held says. So for every choice

    |b_D' s| <= |b_D| |S_D dx| / lambda_min(N),    lambda_min(N) >= lambda_min(L_yy) / ||J_D||^2.

lambda_min is half of what Lanczos finds on the entries that no bound holds. What was not computed is not known.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import PyTree

from hierax._base.blas import one_blas_thread
from hierax._base.lazy import lazy
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.following import Total
from hierax._engine.matrix_free import Answer, FreeFollower
from hierax._engine.programs import raveled, unraveled
from hierax._engine.units import lengths_of
from hierax._engine.vectors import Point
from hierax._judge.above import KINKS, LEAST_SCALE, ROUNDING
from hierax._judge.descent import COORDINATES, RANDOM, STEPS, Around, Look, weighed
from hierax._judge.inspection import SIDEWAYS, Fields, projected_norm
from hierax._lower.krylov import KrylovSystem, OutOfTime, Stop
from hierax._math.lower_level import LowerSolution
from hierax._problem import sets

scipy_optimize = lazy("scipy.optimize")

MOST_SYSTEMS = 50  # systems for the sides of rows, at most: entries of x or rows, whichever are fewer
MOST_COUPLED, MOST_NUMBERS = 1000, 20_000_000  # active rows that are no bounds, of which independence is looked at
MOST_LINEAR = 2000  # entries of x of a linear program
KINK = 3.0  # tolerances within which a kink counts as being at the point, as in `certificate.py`
WIDEST = 1e-3  # lengths of x within which kinks are bounded: twice the systems for every wider set of rows
FLAT = 1e-6  # curvature, as a share of the typical one, below which y* may not be unique
SAFE = 0.5  # share of the least curvature that Lanczos finds
EVERY_ENTRY = 10_000  # entries of y up to which the descent test moves every one of few entries of x by itself
ALLOWED = 1e-6  # violation of upper constraints, in units, of points that are compared


class _Sides(NamedTuple):
    """How rows answer to x, per length of every entry: multipliers of active rows, values of others.

    Attributes:
        moves: a line per row, a column per entry of x.
        of_y: how far every entry of y moves, at most, over a length of x; None: not known.
    """

    moves: np.ndarray
    of_y: np.ndarray | None


def x_lengths(follower: FreeFollower, x: np.ndarray) -> np.ndarray:
    """Lengths of the entries of x: half of their boxes, or their sizes, or one."""
    groups = sets.shared_units(follower.setting.bound.problem.x_set, follower.trees.x)
    nothing = np.zeros(x.size)
    return lengths_of(x, follower.x_limits, nothing, groups, np.full(x.size, np.inf)).values


def above_without_matrices(setting: Float64Problem, found: LowerSolution, seed: int, stop: Stop) -> Fields:
    """Hyper-gradient, what a move of x can gain, and the descent test, as far as they can be had."""
    with one_blas_thread:
        try:
            return _FreeAbove(setting, found, stop).fields(seed)
        except OutOfTime:
            return Fields({}, dict.fromkeys(("hypergradient_norm", "gains"), "the time was up before it was computed"))


class _FreeAbove:
    """A point whose lower level was solved."""

    def __init__(self, setting: Float64Problem, found: LowerSolution, stop: Stop) -> None:
        self.setting, self.stop = setting, stop
        self.follower = FreeFollower(setting, stop)
        self.x, _ = self.follower.landed(raveled(setting.x), raveled(setting.y))
        self.answer = self.follower.of_solution(self.x, found)
        self.lengths = x_lengths(self.follower, self.x)

    def fields(self, seed: int) -> Fields:
        """All that is known."""
        names = "hypergradient_norm", "gains"
        if not self.answer.solved:
            return Fields({}, dict.fromkeys(names, f"y*(x) is known to a residual of {self.answer.residual:.1g} only"))
        total = self.follower.total(self.x, self.answer)
        if total is None:
            text = "the adjoint system was not solved by MINRES: y*(x) may not be unique, or is badly conditioned"
            return Fields({}, dict.fromkeys(names, text))
        system = self.follower.system(self.x, self.answer)
        gain = self._gain(total, total.slope)
        gradient, nu = gain.gradient, gain.nu
        own = self.follower.layout.own_above
        numbers = self._slope(total.slope + nu[:own] @ total.above_slopes[:own])
        notes: dict[str, str] = {}
        sides = self._sides(system)
        radii = None if sides is None else self._radii(system, sides)
        around = self._around(nu, gain.direction, seed)
        size = self._size(sides, around)
        smooth = radii is not None and not np.any(radii <= KINKS[0])
        uphill = float(np.abs(gradient * self.lengths).sum())
        scale = max(LEAST_SCALE * size, uphill, -gain.change, around.slope, around.curvature if smooth else 0.0)
        why = self._doubt(system, sides)
        gains = [(KINKS[0], np.nan)]
        if why is None and radii is not None:
            gains = self._gains(total, gain, radii, scale)
            numbers["radius"] = float(np.min(radii, initial=np.inf))
        if any(np.isnan(decrease) for width, decrease in gains if width <= WIDEST):
            slope = (
                f"without them a length of x gains {-gain.change / scale if scale > 0 else 0.0:.2g} of what F changes"
            )
            notes["gains"] = f"{why or 'rows that change sides near x leave it open'}; {slope}"
        numbers |= {
            "gains": tuple(gains),
            "around": around,
            "upper_scale": scale,
            "rounding": ROUNDING * size,
            "upper_multipliers": unraveled(
                self.setting.shapes("upper_constraints"), nu[: self.follower.layout.own_above]
            ),
        }
        return Fields(numbers, notes)

    # -- first order --------------------------------------------------------------------------------------------------

    def _slope(self, gradient: np.ndarray) -> dict[str, PyTree]:
        """The gradient of F(x, y*(x)), or of the upper constraints' Lagrangian, and what X leaves of it."""
        direct = self._direct(self.answer)
        return {
            "hypergradient": unraveled(self.setting.x, gradient),
            "hypergradient_norm": projected_norm(
                self.x, gradient, self.lengths, lambda x: self.follower.landed(x, self.answer.y)[0]
            ),
            "hypergradient_scale": float(np.linalg.norm(direct) + np.linalg.norm(gradient - direct)),
        }

    def _direct(self, answer: Answer, x: np.ndarray | None = None) -> np.ndarray:
        """The gradient of F in x alone."""
        count = len(self.follower.upper(self.x, self.answer.y)[0])
        weights, none = np.zeros((count, count)), np.zeros((count, answer.y.size + answer.mu.size))
        weights[0, 0] = 1.0
        return self.follower.pulled(self.x if x is None else x, answer, weights, none)[0]

    def _gain(self, total: Total, slope: np.ndarray) -> "_Gain":
        """The least change of F over a length of x, to first order, with upper constraints linearised."""
        low, high = self.follower.x_limits
        reach = np.stack(
            [
                np.maximum((low - self.x) / self.lengths, -1.0).clip(max=0.0),
                np.minimum((high - self.x) / self.lengths, 1.0).clip(min=0.0),
            ],
            axis=1,
        )
        gradient, nu = slope * self.lengths, np.zeros(total.above.size)
        rows = total.above_slopes * self.lengths
        sizes = np.abs(rows).sum(axis=1)
        held = total.above >= -KINKS[1] * np.where(sizes > 0, sizes, 1.0)
        if not held.any() and not total.equal.size:
            direction = np.where(gradient > 0, reach[:, 0], reach[:, 1])
            return _Gain(float(gradient @ direction), direction, nu, slope)
        nothing = _Gain(np.nan, np.zeros(self.x.size), nu, slope)
        if self.x.size > MOST_LINEAR:
            return nothing
        found = scipy_optimize.linprog(
            gradient,
            A_ub=rows[held],
            b_ub=np.maximum(-total.above[held], 0.0),
            A_eq=total.equal_slopes * self.lengths if total.equal.size else None,
            b_eq=np.zeros(total.equal.size) if total.equal.size else None,
            bounds=reach,
        )
        if found.x is None:
            return nothing
        nu[held] = np.maximum(-found.ineqlin.marginals, 0.0)
        return _Gain(min(0.0, float(found.fun)), found.x, nu, slope + nu @ total.above_slopes)

    # -- kinks --------------------------------------------------------------------------------------------------------

    def _sides(self, system: KrylovSystem) -> _Sides | None:
        """How every row answers to x; None where that takes too many systems, or one of them was not solved."""
        nx, rows = self.x.size, system.active.size
        if min(nx, rows) > MOST_SYSTEMS:
            return None
        return self._forward(system) if nx <= rows else self._reverse(system)

    def _forward(self, system: KrylovSystem) -> _Sides | None:
        moves, of_y = np.zeros((system.active.size, self.x.size)), np.zeros(self.answer.y.size)
        for entry in range(self.x.size):
            along = np.zeros(self.x.size)
            along[entry] = self.lengths[entry]
            push, shift = self.follower.moved(self.x, self.answer, along)
            solved = system.solve(-push, -shift)
            if solved is None:
                return None
            of_y += np.abs(solved[0])
            moves[:, entry] = np.where(system.active, solved[1], system.moved_rows(solved[0]) + shift)
        return _Sides(moves, of_y)

    def _reverse(self, system: KrylovSystem) -> _Sides | None:
        entries, rows = self.answer.y.size, system.active.size
        adjoints = np.zeros((rows, entries + rows))
        for row in range(rows):
            one = np.zeros(rows)
            one[row] = 1.0
            held = system.active[row]
            solved = system.solve(np.zeros(entries), one) if held else system.solve(system.gradient(row), 0 * one)
            if solved is None:
                return None
            adjoints[row] = np.concatenate([solved[0], solved[1] if held else solved[1] - one])
        count = len(self.follower.upper(self.x, self.answer.y)[0])
        nothing = np.zeros((rows, count))
        return _Sides(self.follower.pulled(self.x, self.answer, nothing, adjoints) * self.lengths, None)

    def _radii(self, system: KrylovSystem, sides: _Sides) -> np.ndarray:
        """Lengths that x may move until, to first order, every row changes sides."""
        moves = np.abs(sides.moves).sum(axis=1)
        distance = np.abs(np.where(system.active, self.answer.mu, self.answer.rows))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.follower.layout.equal | (moves == 0), np.inf, distance / moves)

    def _doubt(self, system: KrylovSystem, sides: _Sides | None) -> str | None:
        """Why no gain can be stated; None: y*(x) and its multipliers are unique, and their answer to x is known."""
        if sides is None:
            return f"which rows change sides near x was not computed (more than {MOST_SYSTEMS} systems)"
        if system.doubled or system.independent(MOST_COUPLED, MOST_NUMBERS) is not True:
            return "the active rows depend on each other, or are too many to tell"
        least = self.follower.least_curvature(self.x, self.answer, system.bounded)
        if not least > FLAT * self.answer.sizes.curvature:
            return "G is flat, or nearly so, along some directions of y"
        return None

    def _gains(self, total: Total, smooth: "_Gain", radii: np.ndarray, scale: float) -> list[tuple[float, float]]:
        """The decrease of F over a length of x, for each width of kinks; NaN: not known.

        A bound refutes nothing: it is told only where it is within every tolerance that asks for its width.
        """
        found: list[tuple[float, float]] = []
        last: np.ndarray | None = None
        for width in KINKS:
            doubted = radii <= width
            if last is not None and np.array_equal(doubted, last):
                continue
            last = doubted
            known = width <= WIDEST and (not found or not np.isnan(found[-1][1]))
            gain = -smooth.change
            if doubted.any():
                bound = self._bound(total, doubted) if known else np.nan
                gain = bound if bound <= width / KINK * scale else np.nan
            found.append((width, gain))
        return found

    def _bound(self, total: Total, doubted: np.ndarray) -> float:
        """What a length of x can gain whatever the doubted rows do; NaN: not known."""
        if np.any(total.above > -KINKS[1]) or total.equal.size or self.x.size > MOST_SYSTEMS:
            return np.nan
        active = self.follower.active(self.answer)
        base = self.follower.system(self.x, self.answer, active | doubted)
        if base.doubled or base.independent(MOST_COUPLED, MOST_NUMBERS) is not True:
            return np.nan
        values, in_y = self.follower.upper(self.x, self.answer.y)
        adjoint, sides = base.solve(in_y[0], np.zeros(active.size)), self._forward(base)
        if adjoint is None or sides is None:
            return np.nan
        count = values.size
        adjoints = np.zeros((count, self.answer.y.size + active.size))
        adjoints[0] = np.concatenate(adjoint)
        slope = self.follower.pulled(self.x, self.answer, np.eye(count), adjoints)[0]
        which = np.flatnonzero(doubted)
        norms = base.norms(which)
        loose = self.follower.system(self.x, self.answer, active & ~doubted)
        least = SAFE * self.follower.least_curvature(self.x, self.answer, loose.bounded)
        if not least > FLAT * self.answer.sizes.curvature:
            return np.nan
        coupled = 1 + int(np.sum(base.coupled[which]))
        moved = np.linalg.norm(sides.moves[which] * norms[:, None], axis=0).sum()
        released = np.linalg.norm(adjoint[1][which] * norms) * moved * coupled / least
        return float(released - self._gain(total, slope).change)

    # -- around -------------------------------------------------------------------------------------------------------

    def _around(self, nu: np.ndarray, towards: np.ndarray, seed: int) -> Around:
        """The descent test: lower solves on both sides of x."""
        looks: list[Look] = []
        slope = curvature = 0.0
        base = float(self.follower.upper(self.x, self.answer.y)[0][0])
        try:
            for direction in _directions(towards, self.answer.y.size, seed):
                sides = [self._side(nu, base, sign * direction) for sign in (1.0, -1.0)]
                looks += [look for side in sides for look in side if look is not None]
                steep, bent, _ = weighed(sides, self.x / self.lengths)
                slope, curvature = max(slope, steep), max(curvature, bent)
        except OutOfTime:
            return Around(looks, slope, curvature, False)
        return Around(looks, slope, curvature, True)

    def _side(self, nu: np.ndarray, base: float, direction: np.ndarray) -> list[Look | None]:
        """The shortest step first, from whose answer the next one is reached."""
        near, found = self.answer, list[Look | None]()
        for step in reversed(STEPS):
            x, _ = self.follower.landed(self.x + step * direction * self.lengths, near.y)
            answer = None
            if np.max(np.abs(x - self.x) / self.lengths, initial=0.0) >= 0.3 * step:
                answer = self.follower.solve(x, near.y, near.mu, near)
            if answer is None or not answer.solved:
                found.append(None)
                continue
            near = answer
            merit = _merit(self.follower, x, answer, nu)
            point = Point(x / self.lengths, answer.y, answer.mu)
            found.append(None if merit is None else Look(step, merit - base, point))
        return found[::-1]

    def _size(self, sides: _Sides | None, around: Around) -> float:
        """What the terms of F change over a length of x, each for itself, also a little to both sides of the point."""
        of_y = None if sides is None else sides.of_y
        if of_y is None:
            moved = [np.abs(look.point.y - self.answer.y) / look.step for look in around.looks]
            of_y = np.max(moved, axis=0) if moved else np.zeros(self.answer.y.size)
        sizes = []
        for side in (0.0, SIDEWAYS, -SIDEWAYS):
            x, y = self.follower.landed(self.x + side * self.lengths, self.answer.y + side * of_y)
            direct = self._direct(self.answer._replace(y=y), x)
            in_y = self.follower.upper(x, y)[1][0]
            sizes.append(float(np.abs(direct * self.lengths).sum() + np.abs(in_y) @ of_y))
        return max((size for size in sizes if np.isfinite(size)), default=0.0)


class _Gain(NamedTuple):
    """The least change of F over a length of x, to first order.

    Attributes:
        change: negative, or NaN where it is not known.
        direction: of x, in lengths.
        nu: multipliers of the upper constraints, in the user's units.
        gradient: that of F(x, y*(x)), with upper constraints of their Lagrangian.
    """

    change: float
    direction: np.ndarray
    nu: np.ndarray
    gradient: np.ndarray


def _directions(towards: np.ndarray, entries: int, seed: int) -> list[np.ndarray]:
    """Where the descent test looks, for so many entries of y: the most promising direction first."""
    nx, rng = towards.size, np.random.default_rng(seed)
    longest = np.max(np.abs(towards), initial=0.0)
    found = [towards / longest] if longest > 0 else []
    if nx <= COORDINATES and (entries <= EVERY_ENTRY or nx == 1):
        found += list(np.eye(nx))
    return found + ([rng.choice([-1.0, 1.0], nx) for _ in range(RANDOM)] if nx > 1 else [])


def _merit(follower: FreeFollower, x: np.ndarray, answer: Answer, nu: np.ndarray) -> float | None:
    """F plus twice what violations of active upper constraints are worth; None where another one is violated."""
    values, _ = follower.upper(x, answer.y)
    beyond = np.maximum(values[1 : 1 + nu.size], 0.0)
    if np.any((beyond > ALLOWED) & (nu == 0)) or np.any(np.abs(values[1 + nu.size :]) > ALLOWED):
        return None
    merit = float(values[0] + 2 * nu @ beyond)
    return merit if np.isfinite(merit) else None
