r"""y*(x) and gradients through it where matrices do not fit: `following.py` by products alone.

At first the lower level is solved by the loop of `hierax._lower.exact` (proximal method of multipliers, Newton steps by
conjugate gradients), a few steps at a time so that the clock and Ctrl-C are looked at in between; from an answer nearby
by Newton's method on the KKT system of the rows that the last point names active. That system and the adjoint one,

    K (a, b) = (U_y, 0),      dU(x, y*(x))/dx = U_x - a'L_yx - b'r_x,

are solved by MINRES (`hierax._lower.krylov`). An answer counts only where the KKT residual at the point itself says so.
Everything is in the user's units, as vectors; multipliers are those of all rows, in the order of
`hierax._math.lower_level`.
"""

import functools
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._engine.float64_problem import Data, Float64Problem
from hierax._engine.following import Total, pulled_back, upper_table
from hierax._engine.programs import Layout, Limits, Trees, boxes, land, layout_in, raveled, raw_units
from hierax._lower.exact import RUNNING, State, begun, continued
from hierax._lower.krylov import KrylovSystem, OutOfTime, Product, Sizes, Stop
from hierax._lower.newton import conjugate_gradients
from hierax._math.kkt_residual import residual, units_at
from hierax._math.lower_level import INACCURATE, SOLVED, LowerSolution, continued_outside, in_blocks, level_at
from hierax._math.spectrum import extreme_eigenvalues
from hierax._problem import sets
from hierax._problem.problem import Problem

TOLERANCE = 1e-8  # KKT residual at which a lower level counts as solved
SHARPER = 0.1  # share of it that the loop is asked for: landing on Y may cost some
STEPS_AT_ONCE = 5  # Newton steps between two looks at the clock
MOST_STEPS = 200  # of one solve
MOST_SYSTEMS = 10  # KKT systems that are solved from the answer at an x nearby before the loop takes over ...
CLOSE, CLOSER = 1e-3, 1e-2  # residual of the loop at which that is tried too, and its share at which it is tried again
WORSE = 1e3  # ... or until the residual has grown so many times


class Answer(NamedTuple):
    """What the lower level answers at x.

    Attributes:
        y: the point, on Y.
        mu: multipliers of all rows.
        rows: the values of all rows.
        sizes: norms of the rows' gradients, typical sizes of the second derivatives and of the gradient of G.
        value: G.
        residual: of the KKT system at the point itself.
        status: SOLVED, or why not.
        steps: Newton steps.
    """

    y: np.ndarray
    mu: np.ndarray
    rows: np.ndarray
    sizes: Sizes
    value: float
    residual: float
    status: int
    steps: int

    @property
    def solved(self) -> bool:
        """Whether it counts."""
        return self.status == SOLVED


class FreeFollower:
    """Follows y*(x) of a lower level that looks convex, without matrices."""

    def __init__(self, setting: Float64Problem, stop: Stop = lambda: False) -> None:
        self.setting, self.stop = setting, stop
        self.layout: Layout = layout_in(setting)
        self.trees = Trees(setting.x, setting.y)
        self.x_limits, self.y_limits = (Limits(*box) for box in setting.run("boxes", boxes, self.trees, quick=True))
        problem = setting.bound.problem
        self._entrywise = sets.all_entrywise(problem.x_set) and sets.all_entrywise(problem.y_set)
        self.with_faces = not sets.all_entrywise(problem.x_set)
        self._units = raw_units(setting)
        self._programs = [functools.partial(program, self.with_faces) for program in (upper_table, pulled_back)]
        self.solves = 0

    def landed(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The nearest points of X and Y."""
        x, y = np.clip(x, *self.x_limits), np.clip(y, *self.y_limits)
        if self._entrywise:
            return x, y
        moved: np.ndarray = self.setting.run("land", land, self.trees, x, y, quick=True)
        return moved[: x.size], moved[x.size :]

    def solve(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, near: Answer | None = None) -> Answer:
        """The lower level at x from y and mu, or from the answer at an x nearby. Raises `OutOfTime`."""
        self.solves += 1
        found = None if near is None else self._from_near(x, near)
        if found is not None:
            return found
        return self._by_loop(x, *((y, mu) if near is None else (near.y, near.mu)))

    def _by_loop(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Answer:
        """From anywhere: the loop of `Exact` until it is close, then Newton's method on the KKT system."""
        tol, at = np.asarray(SHARPER * TOLERANCE), (self.trees, x, y)
        close = CLOSE
        state: State = self.setting.run("free begin", _begin, self.trees, y, mu, quick=True)
        while int(state.status) == RUNNING:
            if self.stop():
                raise OutOfTime
            until = np.asarray(int(state.steps) + STEPS_AT_ONCE, np.int32)
            state = self.setting.run("free steps", _advance, *at, state, tol, until)
            ended = int(state.status) in (SOLVED, INACCURATE)
            if ended or float(state.residual) <= close:
                close *= CLOSER
                found = self._from_near(x, self.seen(x, state.v, state.mu, int(state.status), int(state.steps)))
                if found is not None:
                    return found._replace(steps=int(state.steps) + found.steps)
        return self.seen(x, state.v, state.mu, int(state.status), int(state.steps))

    def _from_near(self, x: np.ndarray, near: Answer) -> Answer | None:
        """Newton's method on the KKT system with the active rows of the last point; None where it does not arrive."""
        y, mu, sizes, rows = near.y, near.mu, near.sizes, near.rows
        best = np.inf
        for steps in range(MOST_SYSTEMS):
            slope, rows = self._slopes(x, y, mu)
            active = self.layout.equal | (mu * sizes.rows / sizes.curvature + rows / sizes.rows > 0)
            wrong = np.where(active, rows / sizes.rows, -mu * sizes.rows / sizes.slope)
            left = max(np.max(np.abs(slope), initial=0.0) / sizes.slope, np.max(np.abs(wrong), initial=0.0))
            if left <= SHARPER * TOLERANCE:
                found = self.seen(x, y, mu, SOLVED, steps)
                return found if found.solved else None
            if not left <= WORSE * best:
                return None
            best = min(best, left)
            kept = np.where(active, mu, 0.0)
            slope = slope if np.array_equal(kept, mu) else self._slopes(x, y, kept)[0]
            here = near._replace(y=y, mu=kept)
            step = self.system(x, here, active).solve(-slope, -rows)
            if step is None:
                return None
            y, mu = y + step[0], kept + step[1]
        return None

    def _slopes(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """grad_y L and the rows."""
        both = self.setting.run("free slopes", _below, self.trees, x, y, mu)
        return both[: y.size], both[y.size :]

    def of_solution(self, x: np.ndarray, found: LowerSolution) -> Answer:
        """What another solver has found, as an answer; sharpened where its residual on Y is more than it says."""
        mu = raveled(in_blocks(found.multipliers, found.faces))
        seen = self.seen(x, raveled(found.y), mu, int(found.status), int(found.iterations))
        return seen if seen.solved or int(found.status) != SOLVED else self._from_near(x, seen) or seen

    def seen(self, x: np.ndarray, y: np.ndarray | Array, mu: np.ndarray | Array, status: int, steps: int) -> Answer:
        """A point and multipliers as an answer: SOLVED only where the residual says so."""
        at = self.trees, x, y, mu, np.asarray(TOLERANCE)
        place, rows, norms, numbers = self.setting.run("free look", _look, *at)
        value, left, curvature, slope = map(float, numbers)
        if status == SOLVED and not left <= TOLERANCE:
            status = INACCURATE
        return Answer(place, np.asarray(mu), rows, Sizes(norms, curvature, slope), value, left, status, steps)

    def active(self, found: Answer) -> np.ndarray:
        """Equalities, and rows whose multiplier moves y farther than their slack."""
        sizes = found.sizes
        force, slack = np.abs(found.mu) * sizes.rows / sizes.curvature, np.abs(found.rows) / sizes.rows
        return self.layout.equal | (force > slack)

    def system(self, x: np.ndarray, found: Answer, active: np.ndarray | None = None) -> KrylovSystem:
        """The KKT system at an answer, on its active rows or on given ones."""
        product, entries = _product_at(self.setting, self.trees, x, found), found.y.size
        return KrylovSystem(product, self.active(found) if active is None else active, found.sizes, entries, self.stop)

    def upper(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The functions of the upper level (F, its constraints, what X asks beyond bounds), and their slopes in y."""
        table = self.setting.run("free upper", self._programs[0], self.trees, self._units, x, y, static=self.with_faces)
        return table[:, 0], table[:, 1:]

    def pulled(self, x: np.ndarray, found: Answer, weights: np.ndarray, adjoints: np.ndarray) -> np.ndarray:
        """Derivatives in x of weighted functions of the upper level, less what adjoints (a, b) pull back from below."""
        at = self.trees, self._units, x, found.y, found.mu, weights, adjoints
        return np.asarray(self.setting.run("free pulled", self._programs[1], *at, static=self.with_faces))

    def total(self, x: np.ndarray, found: Answer) -> Total | None:
        """The upper level at x and y*(x); None where an adjoint system was not solved."""
        values, in_y = self.upper(x, found.y)
        adjoints = np.zeros((len(in_y), found.y.size + found.mu.size))
        pushed = np.flatnonzero(in_y.any(axis=1))
        system, none = self.system(x, found) if pushed.size else None, np.zeros(found.mu.size)
        for i in pushed:
            assert system is not None
            solved = system.solve(in_y[i], none)
            if solved is None:
                return None
            adjoints[i] = np.concatenate(solved)
        slopes = self.pulled(x, found, np.eye(len(in_y)), adjoints)
        above = 1 + (self.layout.above if self.with_faces else self.layout.own_above)
        return Total(float(values[0]), slopes[0], values[1:above], slopes[1:above], values[above:], slopes[above:])

    def moved(self, x: np.ndarray, found: Answer, dx: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How grad_y L and the rows change when x alone moves along dx."""
        both = self.setting.run("free moved", _moved, self.trees, x, found.y, found.mu, dx, quick=True)
        return both[: found.y.size], both[found.y.size :]

    def least_curvature(self, x: np.ndarray, found: Answer, bounded: np.ndarray) -> float:
        """About the smallest eigenvalue of L_yy on the entries that no bound fixes (Lanczos: never below it)."""
        at = self.trees, x, found.y, found.mu, ~bounded, np.asarray(found.sizes.curvature)
        return float(self.setting.run("free curvature", _least_curvature, *at))


def _product_at(setting: Float64Problem, trees: Trees, x: np.ndarray, found: Answer) -> Product:
    """Products with the KKT matrix at an answer."""
    at, entries = (trees, x, found.y, found.mu), found.y.size
    nothing = np.zeros(entries), np.zeros(found.mu.size)
    call = setting.ready("free product", _product, *at, *nothing)

    def product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        both = call(*at, a, b)
        return both[:entries], both[entries:]

    return product


# -- programs ---------------------------------------------------------------------------------------------------------


def _begin(problem: Problem, data: Data, trees: Trees, y: Array, mu: Array) -> State:
    del data
    return begun(jax.flatten_util.ravel_pytree(sets.project(problem.y_set, trees.y_of(y)))[0], mu)


def _advance(
    problem: Problem, data: Data, trees: Trees, x: Array, y: Array, state: State, tol: Array, until: Array
) -> State:
    """A few Newton steps of the loop that started at y."""
    start = sets.project(problem.y_set, trees.y_of(y))
    level = continued_outside(level_at(problem, trees.x_of(x), start, data.xi), problem.y_set)
    return continued(level, state, level.start, tol, MOST_STEPS, conjugate_gradients, until)


def _look(
    problem: Problem, data: Data, trees: Trees, x: Array, y: Array, mu: Array, tol: Array
) -> tuple[Array, Array, Array, Array]:
    """The nearest point of Y, the rows there and the norms of their gradients; G, residual, curvature and slope."""
    inside = sets.project(problem.y_set, trees.y_of(y))
    level = level_at(problem, trees.x_of(x), inside, data.xi)
    rows, pull = jax.vjp(level.rows, level.start)
    value, slope = jax.value_and_grad(level.objective)(level.start)
    units = units_at(level, level.start, rows, slope, tol)
    left = residual(level, units, rows, mu, slope + pull(mu)[0])
    return level.start, rows, units.row, jnp.stack([value, left, units.curvature, units.slope])


def _product(problem: Problem, data: Data, trees: Trees, x: Array, y: Array, mu: Array, a: Array, b: Array) -> Array:
    """H a + J'b, then J a."""
    level = level_at(problem, trees.x_of(x), trees.y_of(y), data.xi)

    def slope(v: Array) -> Array:
        return jax.grad(lambda u: level.lagrangian(u, mu))(v)

    _, pull = jax.vjp(level.rows, level.start)
    curved = jax.jvp(slope, (level.start,), (a,))[1]
    return jnp.concatenate([curved + pull(b)[0], jax.jvp(level.rows, (level.start,), (a,))[1]])


def _below(problem: Problem, data: Data, trees: Trees, x: Array, y: Array, mu: Array) -> Array:
    """grad_y L, then the rows."""
    level = level_at(problem, trees.x_of(x), trees.y_of(y), data.xi)
    rows, pull = jax.vjp(level.rows, level.start)
    return jnp.concatenate([jax.grad(level.objective)(level.start) + pull(mu)[0], rows])


def _moved(problem: Problem, data: Data, trees: Trees, x: Array, y: Array, mu: Array, dx: Array) -> Array:
    """The derivatives of grad_y L and of the rows along dx."""
    return jax.jvp(lambda x: _below(problem, data, trees, x, y, mu), (x,), (dx,))[1]


def _least_curvature(
    problem: Problem, data: Data, trees: Trees, x: Array, y: Array, mu: Array, free: Array, typical: Array
) -> PyTree:
    level = level_at(problem, trees.x_of(x), trees.y_of(y), data.xi)

    def slope(v: Array) -> Array:
        return jax.grad(lambda u: level.lagrangian(u, mu))(v)

    def product(u: Array) -> Array:
        curved = jax.jvp(slope, (level.start,), (jnp.where(free, u, 0.0),))[1]
        return jnp.where(free, curved, typical * u)

    return extreme_eigenvalues(product, level.start)[0]
