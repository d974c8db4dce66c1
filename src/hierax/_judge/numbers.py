"""The numbers of a certificate, one function for each group of them; `certificate.py` puts them into words.

Every function compiles through `Bound.run`, so that problems of equal form share their programs, and returns a `Part`:
numbers by their name in `Certificate`, and notes on those that are missing or need a word.
"""

import dataclasses
import itertools
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree, Scalar

from hierax._base.text import entries, flat
from hierax._base.trees import move, size
from hierax._judge.check import bends, look_around
from hierax._judge.setting import GROUPS, WEAK, Setting, on_host, solve_lower
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math import hypergradient as implicit
from hierax._math.hull import least_norm_weights
from hierax._math.kkt_residual import residual_at, units_at
from hierax._math.lower_level import SOLVED, LowerSolution, level_at, multiplier_vector, row_names
from hierax._math.psi import all_constraints, violation
from hierax._problem import sets
from hierax._problem.problem import Multipliers, Problem, Rows
from hierax._problem.sets import Free

STARTS, FEWER, SMALL = 24, 8, 100  # further solves of a lower level that is not convex: where y is small, else fewer
SEGMENTS = 32  # random segments on which convexity is sampled
MOST_WEAK = 4  # weakly active rows whose combinations are all tried
NEARBY = 1e-3  # step, relative to 1 + ||x||, over which the curvature of F(x, y*(x)) is measured
ACTIVE = 1e-6  # an upper constraint above minus this is active
ZERO = 1e-3  # relative norm of a hyper-gradient that counts as zero where not all of its pieces are known
ACCURATE = 1e-8  # what the KKT residual calls zero
TOO_LARGE = f"not computed: too large (the KKT matrix of the lower level exceeds order {implicit.MOST})"


class Part(NamedTuple):
    """Some numbers of a certificate, and notes on them."""

    numbers: dict[str, Any]
    notes: dict[str, str]


# -- the reference ----------------------------------------------------------------------------------------------------


def reference(setting: Setting, solver: AbstractLowerSolver, seed: int) -> tuple[LowerSolution, dict[str, str]]:
    """The lower level solved at x from y; where samples show that it is not convex, the best of several solves."""
    found = solve_lower(setting, solver, setting.x, setting.y)
    rng = np.random.default_rng(seed)
    around = found.y if int(found.status) == SOLVED else setting.y
    bent = bends(look_around(setting, around, SEGMENTS, rng))
    if bent is None:
        return found, {}
    starts = STARTS if size(setting.y) <= SMALL else FEWER
    again = solve_lower(setting, Exact(starts=starts), setting.x, around)
    best = min([found, again], key=lambda one: (int(one.status) != SOLVED, float(one.value)))
    return best, {"lower_gap": f"{bent}: v(x) is the best of {1 + starts} solves"}


# -- feasibility, and optimality below --------------------------------------------------------------------------------


class Looked(NamedTuple):
    """What is seen of (x, y) beside the reference, and the numbers of the upper constraints at (x, y*(x))."""

    violations: dict[str, PyTree]
    numbers: dict[str, Array]
    unit: Array  # of a gradient of G, for the KKT residual
    upper: PyTree


def look_at(setting: Setting, found: LowerSolution, given: Multipliers | None) -> Looked:
    """Violations, and gap, distance and KKT residual of y against the reference (which may be none)."""

    def program(problem: Problem, x: PyTree, y: PyTree, found: LowerSolution, own: Rows, xi: PyTree) -> Looked:
        beyond = violation(all_constraints(problem, x, y))
        violations = {
            "constraints": beyond.inequalities,
            "equalities": beyond.equalities,
            "upper_constraints": beyond.upper,
            "x in X": jax.tree.map(_apart, x, sets.project(problem.x_set, x)),
            "y in Y": jax.tree.map(_apart, y, sets.project(problem.y_set, y)),
        }
        level, accurate = level_at(problem, x, y, xi), jnp.asarray(ACCURATE)
        mu = multiplier_vector(found._replace(multipliers=own), level.start.dtype)
        numbers = {
            "lower_gap": problem.lower(x, y, xi) - problem.lower(x, found.y, xi),
            "distance": optax.tree.norm(optax.tree.sub(y, found.y)),
            "kkt_residual": residual_at(level, level.start, mu, accurate),
        }
        push = jax.grad(level.objective)(level.start)
        unit = units_at(level, level.start, level.rows(level.start), push, accurate).slope
        return Looked(violations, numbers, unit, problem.upper_constraints(x, found.y))

    own = found.multipliers if given is None else Rows(given.inequalities, given.equalities)
    return setting.bound.run("look at", program, setting.x, setting.y, found, own, setting.xi.rows)


def _apart(a: Array, b: Array) -> Array:
    return jnp.abs(a - b)


def violated(looked: Looked) -> tuple[float, str]:
    """The largest violation at (x, y), and what is violated."""
    names = [name for block, tree in looked.violations.items() for name in entries(block, tree)]
    values = np.concatenate([flat(tree) for tree in looked.violations.values()])
    worst = int(np.argmax(np.where(np.isnan(values), np.inf, values)))
    return float(values[worst]), names[worst]


def below(setting: Setting, found: LowerSolution, looked: Looked) -> Part:
    """Gap, distance and KKT residual of y, with their standard errors."""

    def program(problem: Problem, x: PyTree, y: PyTree, found: LowerSolution, groups: PyTree) -> tuple[Array, Array]:
        def one(xi: PyTree) -> tuple[Array, Array]:
            value, slope = jax.value_and_grad(problem.lower, 1)(x, y, xi)
            return value - problem.lower(x, found.y, xi), jax.flatten_util.ravel_pytree(slope)[0]

        return jax.lax.map(one, groups)

    numbers = {name: float(value) for name, value in looked.numbers.items()}
    if setting.xi.fresh:
        groups = setting.xi.groups()
        gaps, slopes = setting.bound.run("groups below", program, setting.x, setting.y, found, groups)
        numbers["lower_gap_se"] = float(standard_error(gaps))
        numbers["kkt_residual_se"] = float(np.max(standard_error(slopes)) / looked.unit)
    return Part(numbers, {})


def standard_error(groups: Array) -> np.ndarray:
    """Of the mean over the groups (leading axis), entry by entry."""
    return np.std(np.asarray(groups), axis=0, ddof=1) / GROUPS**0.5


# -- stationarity above -----------------------------------------------------------------------------------------------


class _Slope(NamedTuple):
    """The gradient of F(x, y*(x)) on the likeliest active set, and what it rests on."""

    system: implicit.System
    active: Array
    total: PyTree
    direct: PyTree  # the part grad_x F, without the response of y*
    singular: Array
    flat: Array
    near: PyTree  # a point of X a little further down


def above(
    setting: Setting, solver: AbstractLowerSolver, found: LowerSolution, looked: Looked, given: Multipliers | None
) -> Part:
    """The hyper-gradient, the norm of its projection, and whether y*(x) is unique at all."""
    nu = jax.tree.map(jnp.zeros_like, looked.upper)
    if given is not None:
        nu = jax.tree.map(lambda leaf: jnp.maximum(leaf, 0.0), given.upper)
    here = _slope(setting, setting.x, found, nu)
    if here is None:
        return Part({}, {"hypergradient_norm": TOO_LARGE, "distance": "that y*(x) is unique was not tested: too large"})
    weak = np.flatnonzero(np.asarray(implicit.margins(here.system)) < WEAK)
    named = ", ".join(row_names(found)[i] for i in weak[:MOST_WEAK])
    if len(weak) > MOST_WEAK:
        text = f"not differentiable here: {len(weak)} weakly active rows ({named}, ...), too many combinations"
        return Part({}, {"hypergradient_norm": text})
    gradients, regular = jax.tree.map(lambda leaf: leaf[None], here.total), ~np.asarray(here.singular)[None]
    if len(weak):
        gradients, regular = _hull(setting, found, here, weak, nu)
    if not regular.any():
        return _singular(bool(here.flat))
    if given is None and np.any(flat(looked.upper) > -ACTIVE):
        text = "upper constraints are active and their multipliers are not given: pass multipliers=sol.multipliers"
        return Part({}, {"hypergradient_norm": text})
    curvature = 0.0 if len(weak) else _curvature(setting, solver, found, here, nu)
    gradient, norm = _projected(setting, jax.tree.map(lambda leaf: leaf[regular], gradients), curvature)
    direct = flat(here.direct)
    scale = float(np.linalg.norm(direct) + np.linalg.norm(flat(gradient) - direct))
    if not regular.all() and norm > ZERO * (1 + scale):
        text = f"not differentiable here: {named} weakly active, and {(~regular).sum()} of {regular.size} active sets "
        return Part({}, {"hypergradient_norm": f"{text}degenerate; the others' gradients alone decide nothing"})
    numbers = {
        "hypergradient": on_host(gradient),
        "hypergradient_norm": norm,
        "hypergradient_scale": scale,
        "complementarity": float(np.max(np.abs(flat(nu) * flat(looked.upper)), initial=0.0)),
    }
    if setting.sampled:
        points, slopes = _grouped_slopes(setting, found, here, nu)
        numbers["hypergradient_norm_se"] = float(np.linalg.norm(standard_error(slopes)))
        if setting.xi.fresh:
            numbers["distance_se"] = float(np.linalg.norm(standard_error(points)))
    kink = f"not differentiable here: {named} weakly active; least of the hull of {regular.sum()} gradients"
    return Part(numbers, {"hypergradient_norm": kink} if len(weak) else {})


def _singular(flat_along: bool) -> Part:
    if not flat_along:
        text = "not differentiable here: the gradients of the active constraints are linearly dependent (LICQ fails)"
        return Part({}, {"hypergradient_norm": text})
    text = "y*(x) is not unique: G is flat along the active constraints"
    return Part({"distance": None}, {"distance": text, "hypergradient_norm": text})


def _with_upper(problem: Problem, nu: PyTree) -> Problem:
    """The problem whose upper objective is the Lagrangian of the upper constraints."""

    def lagrangian(x: PyTree, y: PyTree, zeta: PyTree) -> Scalar:
        return problem.upper(x, y, zeta) + optax.tree.vdot(nu, problem.upper_constraints(x, y))

    return dataclasses.replace(problem, upper=lagrangian) if jax.tree.leaves(nu) else problem


def _slope(setting: Setting, x: PyTree, found: LowerSolution, nu: PyTree) -> _Slope | None:
    """The hyper-gradient at a reference solution; None where it is too large."""

    def program(problem: Problem, x: PyTree, found: LowerSolution, nu: PyTree, zeta: PyTree, xi: PyTree) -> Any:
        if not implicit.fits(problem, x, found.y):
            return None
        problem = _with_upper(problem, nu)
        system = implicit.kkt_system(problem, x, found, xi)
        active = implicit.active_rows(system)
        solved = implicit.adjoint(system, active, implicit.upper_gradient_y(problem, x, found.y, zeta))
        total = implicit.total_gradient(problem, x, found, solved, zeta, xi)
        norm = optax.tree.norm(total)
        step = NEARBY * (1 + optax.tree.norm(x)) / jnp.where(norm > 0, norm, 1.0)
        near = sets.project(problem.x_set, move(x, step, total))
        direct = jax.grad(problem.upper)(x, found.y, zeta)
        return _Slope(system, active, total, direct, solved.singular, solved.flat, near)

    return setting.bound.run("slope", program, x, found, nu, setting.zeta.rows, setting.xi.rows)


def _hull(
    setting: Setting, found: LowerSolution, here: _Slope, weak: np.ndarray, nu: PyTree
) -> tuple[PyTree, np.ndarray]:
    """The gradients for every combination of the weakly active rows in or out, and which of these sets are regular."""

    def program(
        problem: Problem, x: PyTree, found: LowerSolution, system: implicit.System, masks: Array, nu: PyTree, data: Any
    ) -> tuple[PyTree, Array]:
        problem, (zeta, xi) = _with_upper(problem, nu), data
        push = implicit.upper_gradient_y(problem, x, found.y, zeta)

        def one(active: Array) -> tuple[PyTree, Array]:
            solved = implicit.adjoint(system, active, push)
            return implicit.total_gradient(problem, x, found, solved, zeta, xi), ~solved.singular

        return jax.lax.map(one, masks)

    masks = np.repeat(np.asarray(here.active)[None], 2 ** len(weak), axis=0)
    masks[:, weak] = np.array(list(itertools.product([False, True], repeat=len(weak))))
    data = (setting.zeta.rows, setting.xi.rows)
    gradients, regular = setting.bound.run("hull", program, setting.x, found, here.system, jnp.asarray(masks), nu, data)
    return gradients, np.asarray(regular)


def _grouped_slopes(setting: Setting, found: LowerSolution, here: _Slope, nu: PyTree) -> tuple[Array, Array]:
    """y*(x) and the hyper-gradient as each group of samples sees them.

    A group's y* is one Newton step on the KKT system of the active rows away from the whole sample's.
    """

    def program(
        problem: Problem, x: PyTree, found: LowerSolution, system: implicit.System, active: Array, nu: PyTree, data: Any
    ) -> tuple[Array, Array]:
        problem, (fixed, groups) = _with_upper(problem, nu), data

        def one(group: dict[str, PyTree]) -> tuple[Array, Array]:
            zeta, xi = (fixed | group)["zeta"], (fixed | group)["xi"]
            level = level_at(problem, x, found.y, xi)
            push = jax.grad(lambda v: level.objective(v) + system.multipliers @ level.rows(v))(level.start)
            moved = implicit.adjoint(system, active, push)
            own, faces = level.split(system.multipliers + moved.rows)
            there = found._replace(y=level.tree(level.start + moved.y), multipliers=own, faces=faces)
            slope = implicit.upper_gradient_y(problem, x, there.y, zeta)
            solved = implicit.adjoint(implicit.kkt_system(problem, x, there, xi), active, slope)
            total = implicit.total_gradient(problem, x, there, solved, zeta, xi)
            return level.start + moved.y, jax.flatten_util.ravel_pytree(total)[0]

        return jax.lax.map(one, groups)

    arguments = (setting.x, found, here.system, here.active, nu, setting.batches())
    return setting.bound.run("groups above", program, *arguments)


def _curvature(setting: Setting, solver: AbstractLowerSolver, found: LowerSolution, here: _Slope, nu: PyTree) -> float:
    """How fast the hyper-gradient changes along itself: its difference to that of a nearby point of X, per length."""
    length = float(np.linalg.norm(flat(here.near) - flat(setting.x)))
    everywhere = all(isinstance(one, Free) for one in jax.tree.leaves(setting.bound.problem.x_set, is_leaf=sets.is_set))
    if length == 0.0 or everywhere:  # the projection is nothing, or the gradient itself, whatever the step
        return 0.0
    other = solve_lower(setting, solver, here.near, found.y, found.multipliers)
    there = _slope(setting, here.near, other, nu) if int(other.status) == SOLVED else None
    return 0.0 if there is None else float(np.linalg.norm(flat(there.total) - flat(here.total))) / length


def _projected(setting: Setting, gradients: PyTree, curvature: float) -> tuple[PyTree, float]:
    """The gradient d and ||x - Proj_X(x - t d)|| / t with t = 1/curvature.

    Of several gradients d is the point of their hull for which that is least. Where the curvature says nothing, t d is
    as long as 1 + ||x||.
    """

    def program(problem: Problem, x: PyTree, gradients: PyTree, curvature: Array) -> tuple[PyTree, Scalar]:
        at, tree = jax.flatten_util.ravel_pytree(x)
        rows = jax.vmap(lambda one: jax.flatten_util.ravel_pytree(one)[0])(gradients)
        longest = jnp.max(jnp.linalg.norm(rows, axis=1))
        inverse = jnp.maximum(curvature, longest / (1 + jnp.linalg.norm(at)))
        step = 1 / jnp.where(inverse > 0, inverse, 1.0)

        def landed(d: Array) -> Array:
            return jax.flatten_util.ravel_pytree(sets.project(problem.x_set, tree(at - step * d)))[0] - at

        d = rows[0] if len(rows) == 1 else least_norm_weights(rows, landed, step) @ rows
        return tree(d), jnp.linalg.norm(landed(d)) / step

    gradient, norm = setting.bound.run("projected", program, setting.x, gradients, jnp.asarray(curvature))
    return gradient, float(norm)
