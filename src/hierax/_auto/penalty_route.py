r"""The penalty-only route: F with the value function as a penalty, y eliminated, a quasi-Newton method in x.

    phi_c(x) = min over y in Y, h <= 0, e = 0 of [F + c f + AL(G; nu)](x, y)  -  c v(x)

with the upper constraints G in an augmented Lagrangian. Both minima come from `Exact`, from several points each, and
the gradient from the envelope theorem, so no second derivative in x is formed: the route for deterministic problems
whose KKT system is too large for the small route. All starts move together in one batched program.
"""

import dataclasses
import time
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._auto.kkt_route import Judged, Search, judge, scales_of
from hierax._auto.polish import Point
from hierax._auto.vectors import Flat, Numbers
from hierax._judge.setting import Data
from hierax._lower.exact import Branches, Exact
from hierax._math.lower_level import SOLVED
from hierax._problem import sets
from hierax._problem.problem import Problem
from hierax._run.progress import Show

WEIGHTS = tuple(5.0**k for k in range(6))  # c
ROUNDS = 2  # updates of nu per weight
STEPS = 12  # quasi-Newton steps between them
FIRST_AL, GROWTH_AL = 10.0, 3.0  # c2, and its growth from weight to weight
FROM = 4  # points that the lower level is solved from: the last solution, y, and two of the pool
HALVINGS = 8
ARMIJO = 1e-4
FEASIBLE = 1e-6


class Met(NamedTuple):
    """phi_c at a point of every start (leading axis), with what the next evaluation starts from."""

    value: Numbers
    slope: Numbers
    y: Numbers
    y_mu: Numbers
    w: Numbers
    w_mu: Numbers
    above: Numbers


class PenaltySearch:
    """One run of the route."""

    def __init__(self, flat: Flat, seconds: float) -> None:
        self.flat, self.scales, self.end = flat, scales_of(flat), time.perf_counter() + seconds
        self.xs, ys = flat.xs, flat.ys
        starts, count, rows = len(ys), flat.above_count, flat.equal.size
        self.nu, self.c, self.c2 = np.zeros((starts, count)), 1.0, FIRST_AL
        mus = np.zeros((starts, rows))
        self.met = Met(np.full(starts, np.inf), np.zeros_like(self.xs), ys, mus, ys, mus, self.nu)
        self.statuses = np.zeros(starts, int)
        rest = (flat.pool[1 : FROM - 1], *flat.trees)
        program = flat.setting.ready("penalty", _phi, self.xs, ys, mus, ys, mus, self.nu, 1.0, 1.0, *rest)
        self._program = lambda *args: program(*args, *rest)

    def run(self, show: Show) -> Search:
        """All weights, then the points: y as penalised, and y as the lower level has it."""
        x = self.xs
        self.met = self._at(x)
        for k, weight in enumerate(WEIGHTS):
            self.c2 = FIRST_AL * GROWTH_AL**k
            self.nu *= weight / self.c  # multipliers of the upper constraints grow with the penalised objective
            self.c = weight
            for _ in range(ROUNDS):
                if self.late:
                    break
                x = self._descend(x)
                self.nu = np.maximum(self.nu + self.c2 * self.met.above, 0.0)
            show((k + 1) * len(x) // len(WEIGHTS), None)
        points: list[Judged] = []
        for number, (at, y, mu, w, w_mu) in enumerate(
            zip(x, self.met.y, self.met.y_mu, self.met.w, self.met.w_mu, strict=True)
        ):
            points.append(judge(self.flat, Point(at, y, mu / (1 + self.c)), number, "penalty"))
            points.append(judge(self.flat, Point(at, w, w_mu), number, "penalty"))
        return Search(points, self.statuses, self.late)

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return time.perf_counter() > self.end

    def _at(self, x: np.ndarray) -> Met:
        met = self.met
        found = self._program(x, met.y, met.y_mu, met.w, met.w_mu, self.nu, self.c, self.c2)
        return Met(*map(np.asarray, found))

    def _project(self, x: np.ndarray) -> np.ndarray:
        return np.clip(x, *self.flat.x_bounds)

    def _descend(self, x: np.ndarray) -> np.ndarray:
        """BFGS on the free coordinates of each start, with Armijo's rule; all starts side by side."""
        here = self._at(x)
        n = x.shape[1]
        units = np.maximum(np.abs(here.slope).max(axis=1), 1e-12)[:, None, None]
        inverse = np.tile(np.eye(n), (len(x), 1, 1)) / units
        low, high = self.flat.x_bounds
        for _ in range(STEPS):
            if self.late:
                break
            held = ((x <= low) & (here.slope > 0)) | ((x >= high) & (here.slope < 0))
            free = ~held
            along = -np.einsum("sij,sj->si", inverse * free[:, :, None] * free[:, None, :], here.slope)
            step, moving = np.ones(len(x)), np.isfinite(here.value)
            new, there = x.copy(), here
            for _ in range(HALVINGS):
                trial = np.where(moving[:, None], self._project(x + step[:, None] * along), new)
                met = self._at(trial)
                enough = met.value <= here.value + ARMIJO * np.sum(here.slope * (trial - x), axis=1)
                passed = moving & enough & np.isfinite(met.value)
                new = np.where(passed[:, None], trial, new)
                there = Met(*(_where(passed, a, b) for a, b in zip(met, there, strict=True)))
                moving &= ~passed
                step = np.where(moving, 0.5 * step, step)
                if not moving.any():
                    break
            inverse = _bfgs(inverse, new - x, there.slope - here.slope)
            moved = np.abs(new - x).max()
            x, here = new, there
            self.met = here
            if moved <= 1e-10 * (1 + np.abs(x).max()):
                break
        return x


def _where(flags: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    return np.where(flags.reshape(-1, *[1] * (np.ndim(new) - 1)), new, old)


def _bfgs(inverse: np.ndarray, s: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The inverse Hessian of every start after a step s that changed the gradient by t; as it was where s.t <= 0."""
    product = np.sum(s * t, axis=1)
    fine = product > 1e-12 * np.linalg.norm(s, axis=1) * np.linalg.norm(t, axis=1)
    rho = np.where(fine, 1 / np.where(fine, product, 1.0), 0.0)[:, None, None]
    left = np.eye(s.shape[1]) - rho * s[:, :, None] * t[:, None, :]
    updated = left @ inverse @ np.swapaxes(left, 1, 2) + rho * s[:, :, None] * s[:, None, :]
    return np.where(fine[:, None, None], updated, inverse)


def _phi(
    problem: Problem,
    data: Data,
    xs: Array,
    ys: Array,
    y_mus: Array,
    ws: Array,
    w_mus: Array,
    nus: Array,
    c: Array,
    c2: Array,
    pool: Array,
    x_like: PyTree,
    y_like: PyTree,
) -> Met:
    zeta, xi = data
    (_, x_tree), (_, y_tree) = jax.flatten_util.ravel_pytree(x_like), jax.flatten_util.ravel_pytree(y_like)

    def upper_rows(x: PyTree, y: PyTree) -> Array:
        parts = (problem.upper_constraints(x, y), sets.faces(problem.x_set, x).inequalities)
        return jnp.concatenate([jnp.zeros(0), *(jnp.ravel(leaf) for leaf in jax.tree.leaves(parts))])

    def penalised(x: PyTree, y: PyTree, own: tuple[PyTree, PyTree, Array, Array, Array]) -> Array:
        zeta, xi, nu, c, c2 = own
        shifted = jnp.maximum(nu + c2 * upper_rows(x, y), 0.0)
        constrained = jnp.sum(shifted**2 - nu**2) / (2 * c2)
        return problem.upper(x, y, zeta) + c * problem.lower(x, y, xi) + constrained

    both = dataclasses.replace(problem, lower=penalised)

    def one(x: Array, y: Array, y_mu: Array, w: Array, w_mu: Array, nu: Array) -> Met:
        at, nothing = x_tree(x), jnp.zeros_like(w_mu)
        below = Exact(starts=FROM, max_steps=100).branches(
            problem, at, y_like, xi, jnp.stack([w, y, *pool]), jnp.stack([w_mu, nothing, nothing, nothing])
        )
        lower = _lowest(below)
        start_mu = jnp.where(jnp.any(y_mu != 0), y_mu, c * lower.mu)
        above = Exact(starts=2, max_steps=100).branches(
            both, at, y_like, (zeta, xi, nu, c, c2), jnp.stack([y, lower.v]), jnp.stack([start_mu, c * lower.mu])
        )
        upper = _lowest(above)
        value = upper.value - c * lower.value
        fine = jnp.isfinite(value) & (upper.violation <= FEASIBLE) & (lower.violation <= FEASIBLE)
        return Met(
            jnp.where(fine, value, jnp.inf),
            upper.slope - c * lower.slope,
            upper.v,
            upper.mu,
            lower.v,
            lower.mu,
            upper_rows(at, y_tree(upper.v)),
        )

    return jax.vmap(one)(xs, ys, y_mus, ws, w_mus, nus)


def _lowest(found: Branches) -> Branches:
    usable = found.violation <= FEASIBLE
    rank = jnp.where(usable & (found.status == SOLVED), 0, jnp.where(usable, 1, 2))
    first = jnp.lexsort((jnp.where(jnp.isfinite(found.value), found.value, jnp.inf), rank))[0]
    return Branches(*(part[first] for part in found))
