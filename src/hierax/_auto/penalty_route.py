r"""The penalty route: F with the value function as a penalty, y eliminated, a quasi-Newton method in x.

    phi_c(x) = min over y in Y, h <= 0, e = 0 of [F + c f + AL(G; nu)](x, y)  -  c v(x)

with the upper constraints G in an augmented Lagrangian. Both minima come from `Exact`, from several points each, and
the gradient from the envelope theorem, so no second derivative in x is formed: the route for deterministic problems
whose KKT system is too large for the small route. All starts move together in one batched program.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._auto.candidates import Candidate, SearchResult, judge, shown
from hierax._auto.central_descent import CentralDescent
from hierax._auto.constants import (
    AGREEING_DESCENTS,
    AL_GROWTH,
    CENTRAL_SIZE,
    DOUBTFUL_STARTS,
    FIRST_AL_WEIGHT,
    GLOBALITY_SECONDS,
    GLOBALITY_SHARE,
    HALVINGS,
    LEAST_CURVATURE,
    LEAST_SLOPE,
    MULTIPLIER_UPDATES,
    PENALTY_LOWER_STARTS,
    PENALTY_LOWER_STEPS,
    PENALTY_WEIGHTS,
    PHASE_ONE_VARIABLES,
    QUASI_NEWTON_STEPS,
    SAME_END,
    STANDSTILL,
)
from hierax._auto.contradiction import proof_of_contradiction
from hierax._auto.implicit import ImplicitDescent
from hierax._auto.phase_one import feasible_points
from hierax._auto.space import Space
from hierax._base.constants import ARMIJO
from hierax._engine.branches import FEASIBLE
from hierax._engine.float64_problem import Data
from hierax._engine.programs import Trees, Vector, upper_rows
from hierax._engine.units import Units, in_units
from hierax._engine.vectors import Point
from hierax._lower.exact import Branches, Exact
from hierax._lower.linear import OutOfTime
from hierax._math.lower_level import INACCURATE, INFEASIBLE, SOLVED
from hierax._problem.problem import Problem
from hierax._run.progress import Show


class Below(NamedTuple, Generic[Vector]):
    """Solutions of the two minimisations at every start's x, from which the next ones start.

    Attributes:
        y: minimiser of the penalised objective F + c f + AL.
        y_mu: its multipliers.
        w: minimiser of f.
        w_mu: its multipliers.
    """

    y: Vector
    y_mu: Vector
    w: Vector
    w_mu: Vector


class Evaluation(NamedTuple, Generic[Vector]):
    """phi_c at a point of every start (leading axis): value (infinite where infeasible), gradient, and what it took.

    `above` are the upper constraints at (x, y).
    """

    value: Vector
    slope: Vector
    below: Below[Vector]
    above: Vector


class Starts(NamedTuple, Generic[Vector]):
    """Where every start is: x, the multipliers nu of the upper constraints, and the latest solutions below."""

    x: Vector
    nu: Vector
    last: Below[Vector]


class NoRoute(Exception):
    """Why this route has no answer."""


class Weights(NamedTuple):
    """c of the value function, and c2 of the augmented Lagrangian."""

    c: float | Array
    c2: float | Array


class PenaltySearch:
    """One run of the route."""

    def __init__(self, space: Space) -> None:
        self.space, self.vectors, self.deadline = space, space.vectors, space.deadline
        self.candidates: list[Candidate] = []
        self.statuses: list[int] = []
        self.held_at_kinks = False  # whether a descent has ended at a kink, or nowhere
        self.contradiction: str | None = None  # why no point satisfies the constraints, where that is proved

    def run(self, show: Show) -> SearchResult:
        """Descents on F(x, y*(x)) where the lower level looks convex; where nothing comes of them, the penalty."""
        firsts: list[Point] = []
        if self.vectors.bent is None:
            firsts = self._descents(show, self.space.xs, self.space.ys, "start")
        elif self._contradicted():
            self._add(Point(self.space.xs[0], self.space.ys[0], np.zeros(self.vectors.layout.rows)), 0)
        if self.contradiction is not None:
            return self._result()
        if firsts and set(self.statuses) == {INFEASIBLE}:
            self._descend_from_feasible_points(show)
        if firsts:
            self._pass_kinks(firsts)
        done = any(candidate.accepted for candidate in self.candidates) or (self.deadline.passed and self.candidates)
        hopeless = firsts and SOLVED not in self.statuses
        if not done and self.vectors.programs.large:
            raise NoRoute("the lower level was not solved, or has no unique solution, at the start")
        if not done and not hopeless:
            _Penalised(self.space).run(self._add, show)
        return self._result()

    def _result(self) -> SearchResult:
        return SearchResult(self.candidates, np.array(self.statuses or [SOLVED]), self.contradiction)

    def _contradicted(self) -> bool:
        """Whether it is proved that no point satisfies the constraints of both levels."""
        self.contradiction = proof_of_contradiction(self.space, self.candidates)
        return self.contradiction is not None

    def _descend_from_feasible_points(self, show: Show) -> None:
        """No start has a feasible y: descents from where both levels have one; without a look nothing is claimed."""
        layout, least = self.vectors.layout, np.inf
        self.vectors.forget()  # between two pieces of the search: the same whether they were taken over or not
        points: list[tuple[np.ndarray, np.ndarray]] = []
        if layout.nx + layout.ny <= PHASE_ONE_VARIABLES:
            points, least = feasible_points(self.space)
        if points:
            xs, ys = (np.array(part) for part in zip(*points, strict=True))
            self._descents(show, xs, ys, "feasible start")
        elif not np.isfinite(least) or self.deadline.passed:
            self.statuses = [INACCURATE]

    def _add(self, point: Point, start: int) -> Candidate:
        self.candidates.append(judge(self.vectors, point, start, "penalty"))
        self.space.seen(self.candidates[-1])
        return self.candidates[-1]

    def _descents(self, show: Show, xs: np.ndarray, ys: np.ndarray, name: str) -> list[Point]:
        """From every start, until the time is up or several ended at the same F; returns the starts' points below."""
        firsts: list[Point] = []
        begin, enough = time.perf_counter(), np.inf
        for number, (x, y) in enumerate(zip(xs, ys, strict=True)):
            if number and (self.deadline.passed or self._agree() or time.perf_counter() - begin > enough):
                break
            descent = functools.partial(self._descent, x, y, number)
            piece = self.space.pieces.do(f"{name} {number}", self.space, self.candidates, descent)
            first, status, held = piece
            self.held_at_kinks |= held
            firsts.append(first)
            self.statuses.append(status)
            show(number + 1, shown(self.candidates, self.vectors.units.upper))
            if number + 1 == DOUBTFUL_STARTS and name == "start" and self._contradicted():
                break
            if enough == np.inf and any(candidate.accepted for candidate in self.candidates):
                took = time.perf_counter() - begin
                enough = took + max(GLOBALITY_SECONDS, GLOBALITY_SHARE * took)
        return firsts

    def _descent(self, x: np.ndarray, y: np.ndarray, number: int) -> tuple[Point, int, bool]:
        """From one start; its point below, how the lower level ended there, and whether it ended at a kink."""
        try:
            found = self.vectors.branches(x, y)
        except OutOfTime:
            first = Point(x, y, np.zeros(self.vectors.layout.rows))
            return first, INACCURATE, False
        best = found.best()
        first, status = Point(x, y, np.zeros(self.vectors.layout.rows)), int(found.status[0 if best is None else best])
        if best is not None and not found.unbounded and self.vectors.follower is not None:
            first = Point(x, found.y[best], found.mu[best])
            descent = ImplicitDescent(self.space, first)
            ended = descent.run()
            self._add(first if ended is None else ended, number)
            return first, status, ended is None or descent.at_kink
        if not self.candidates:
            self._add(first, number)
        return first, status, False

    def _pass_kinks(self, firsts: list[Point]) -> None:
        """Where descents ended at kinks, or apart, others along the central path: as long as each finds a lower F."""
        layout = self.vectors.layout
        doubtful = self.held_at_kinks or not self._all_at_one_value()
        if not doubtful or layout.ny + layout.rows > CENTRAL_SIZE:
            return
        for number, first in enumerate(firsts):
            lowest = min((one.upper for one in self.candidates if one.accepted), default=np.inf)
            if self.deadline.passed or self.vectors.follower is None:
                return
            descent = functools.partial(self._central, first, number)
            upper = self.space.pieces.do(f"central {number}", self.space, self.candidates, descent)
            if not upper < lowest - SAME_END * (1 + abs(lowest)):
                return

    def _central(self, first: Point, number: int) -> float:
        """F at the end of a descent along the central path; infinite where that counts for nothing."""
        ended = CentralDescent(self.space, first).run()
        found = None if ended is None else self._add(ended, number)
        return found.upper if found is not None and found.accepted else np.inf

    def _all_at_one_value(self) -> bool:
        """Whether all descents so far have ended at the same F."""
        ends = [candidate.upper if candidate.accepted else np.inf for candidate in self.candidates]
        return bool(np.isfinite(ends).all() and np.ptp(ends) <= SAME_END * (1 + abs(min(ends))))

    def _agree(self) -> bool:
        """Whether enough starts have ended at the lowest F that was found."""
        ends = np.array([candidate.upper for candidate in self.candidates if candidate.accepted])
        return bool(ends.size and np.sum(ends - ends.min() <= SAME_END * (1 + abs(ends.min()))) >= AGREEING_DESCENTS)


class _Penalised:
    """The penalty method from all starts side by side."""

    def __init__(self, space: Space) -> None:
        self.space, self.vectors, self.deadline = space, space.vectors, space.deadline
        vectors, xs, ys = space.vectors, space.xs, space.ys
        self.weights = Weights(PENALTY_WEIGHTS[0], FIRST_AL_WEIGHT)
        self.nu = np.zeros((len(xs), vectors.layout.above))
        mu = np.zeros((len(xs), vectors.layout.rows))
        self.last: Below[np.ndarray] = Below(ys, mu, ys, mu)  # the latest solutions below, for warm starts
        self._cover = vectors.lower_starts[1 : PENALTY_LOWER_STARTS - 1]
        starts, programs = Starts(xs, self.nu, self.last), vectors.programs
        self._program = programs.setting.ready(
            "penalty", _phi, programs.trees, vectors.units, starts, self.weights, self._cover
        )

    def run(self, add: Callable[[Point, int], Candidate], show: Show) -> None:
        """All weights, then the points: y as penalised, and y as the lower level has it."""
        x = self.space.xs
        self.last = self._evaluated(x).below
        for k, c in enumerate(PENALTY_WEIGHTS):
            self.nu *= c / self.weights.c  # multipliers of the upper constraints grow with the penalised objective
            self.weights = Weights(c, FIRST_AL_WEIGHT * AL_GROWTH**k)
            work = functools.partial(self._updates, x)
            x, self.nu, last = self.space.pieces.do(f"weight {k}", self.space, [], work)
            self.last = Below(*last)
            show((k + 1) * len(x) // len(PENALTY_WEIGHTS), None)
        for number, (at, y, y_mu, w, w_mu) in enumerate(zip(x, *self.last, strict=True)):
            if number and self.deadline.passed:
                break
            add(Point(at, y, y_mu / (1 + self.weights.c)), number)
            add(Point(at, w, w_mu), number)

    def _updates(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
        """Descents with one weight, and the multipliers after each: x, nu and the solutions below."""
        for _ in range(MULTIPLIER_UPDATES):
            if self.deadline.passed:
                break
            x, above = self._descend(x)
            self.nu = np.maximum(self.nu + self.weights.c2 * above, 0.0)
        return x, self.nu, tuple(self.last)

    def _evaluated(self, x: np.ndarray) -> Evaluation[np.ndarray]:
        starts = Starts(x, self.nu, self.last)
        return self._program(self.vectors.programs.trees, self.vectors.units, starts, self.weights, self._cover)

    def _descend(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """BFGS on the free coordinates of each start, all side by side; where it ends, and the upper constraints."""
        here = self._evaluated(x)
        units = np.maximum(np.abs(here.slope).max(axis=1), LEAST_SLOPE)[:, None, None]
        inverse = np.tile(np.eye(x.shape[1]), (len(x), 1, 1)) / units
        low, high = self.vectors.x_limits
        for _ in range(QUASI_NEWTON_STEPS):
            if self.deadline.passed:
                break
            held = ((x <= low) & (here.slope > 0)) | ((x >= high) & (here.slope < 0))
            on_free = inverse * ~held[:, :, None] * ~held[:, None, :]
            new, there = self._line_search(x, here, -np.einsum("sij,sj->si", on_free, here.slope))
            inverse = _bfgs(inverse, new - x, there.slope - here.slope)
            moved = np.abs(new - x).max()
            x, here = new, there
            self.last = here.below
            if moved <= STANDSTILL * (1 + np.abs(x).max()):
                break
        return x, here.above

    def _line_search(
        self, x: np.ndarray, here: Evaluation[np.ndarray], along: np.ndarray
    ) -> tuple[np.ndarray, Evaluation[np.ndarray]]:
        """Armijo's rule along the projected arc, for every start; those that find no step stay."""
        step, moving = np.ones(len(x)), np.isfinite(here.value)
        new, there = x.copy(), here
        for _ in range(HALVINGS):
            trial = np.clip(x + step[:, None] * along, *self.vectors.x_limits)
            trial = np.where(moving[:, None], trial, new)
            tried = self._evaluated(trial)
            enough = tried.value <= here.value + ARMIJO * np.sum(here.slope * (trial - x), axis=1)
            passed = moving & enough & np.isfinite(tried.value)
            new = np.where(passed[:, None], trial, new)
            there = jax.tree.map(lambda a, b, passed=passed: _where(passed, a, b), tried, there)
            moving &= ~passed
            step = np.where(moving, 0.5 * step, step)
            if not moving.any():
                break
        return new, there


def _where(flags: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    return np.where(flags.reshape(-1, *[1] * (np.ndim(new) - 1)), new, old)


def _bfgs(inverse: np.ndarray, s: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The inverse Hessian of every start after a step s that changed the gradient by t; as it was where s.t <= 0."""
    product = np.sum(s * t, axis=1)
    fine = product > LEAST_CURVATURE * np.linalg.norm(s, axis=1) * np.linalg.norm(t, axis=1)
    rho = np.where(fine, 1 / np.where(fine, product, 1.0), 0.0)[:, None, None]
    left = np.eye(s.shape[1]) - rho * s[:, :, None] * t[:, None, :]
    updated = left @ inverse @ np.swapaxes(left, 1, 2) + rho * s[:, :, None] * s[:, None, :]
    return np.where(fine[:, None, None], updated, inverse)


# -- the program ------------------------------------------------------------------------------------------------------


class _Own(NamedTuple):
    """What the penalised objective depends on beside (x, y): it stands in the place of the lower level's samples."""

    data: Data
    nu: Array
    weights: Weights


def _phi(
    problem: Problem, data: Data, trees: Trees, units: Units, starts: Starts[Array], weights: Weights, cover: Array
) -> Evaluation[Array]:
    """phi_c at all starts; lower solves start from the last solutions and from the points `cover`."""
    problem = in_units(problem, units)

    def penalised(x: PyTree, y: PyTree, own: _Own) -> Array:
        nu, (c, c2) = own.nu, own.weights
        shifted = jnp.maximum(nu + c2 * upper_rows(problem, x, y), 0.0)
        constrained = jnp.sum(shifted**2 - nu**2) / (2 * c2)
        return problem.upper(x, y, own.data.zeta) + c * problem.lower(x, y, own.data.xi) + constrained

    both, c = dataclasses.replace(problem, lower=penalised), weights.c

    def one(start: Starts[Array]) -> Evaluation[Array]:
        at, last, zero = trees.x_of(start.x), start.last, jnp.zeros_like(start.last.w_mu)
        ys, mu = jnp.stack([last.w, last.y, *cover]), jnp.stack([last.w_mu, zero, *(zero for _ in cover)])
        solver = Exact(starts=PENALTY_LOWER_STARTS, max_steps=PENALTY_LOWER_STEPS)
        lower = _lowest(solver.branches(problem, at, trees.y, data.xi, ys, mu))
        first_mu = jnp.where(jnp.any(last.y_mu != 0), last.y_mu, c * lower.mu)
        ys, mu = jnp.stack([last.y, lower.v]), jnp.stack([first_mu, c * lower.mu])
        solver = Exact(starts=2, max_steps=PENALTY_LOWER_STEPS)
        upper = _lowest(solver.branches(both, at, trees.y, _Own(data, start.nu, weights), ys, mu))
        value = upper.value - c * lower.value
        fine = jnp.isfinite(value) & (upper.violation <= FEASIBLE) & (lower.violation <= FEASIBLE)
        return Evaluation(
            jnp.where(fine, value, jnp.inf),
            upper.slope - c * lower.slope,
            Below(upper.v, upper.mu, lower.v, lower.mu),
            upper_rows(problem, at, trees.y_of(upper.v)),
        )

    return jax.vmap(one)(starts)


def _lowest(found: Branches) -> Branches:
    """The solved branch of lowest value; else a feasible one, else any."""
    usable = found.violation <= FEASIBLE
    rank = jnp.where(usable & (found.status == SOLVED), 0, jnp.where(usable, 1, 2))
    first = jnp.lexsort((jnp.where(jnp.isfinite(found.value), found.value, jnp.inf), rank))[0]
    return Branches(*(part[first] for part in found))
