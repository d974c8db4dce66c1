"""The certificate's view of the upper level: the gradient of F(x, y*(x)), and whether x is stationary over X.

Where rows are weakly active y*(x) has a kink; then the hull of the gradients of all active sets decides. With upper
constraints everything is about their Lagrangian F + nu'H_up.
"""

import dataclasses
import itertools
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PyTree, Scalar

from hierax._base.text import numbers_of
from hierax._base.trees import move, or_one
from hierax._judge.below import Comparison, Part
from hierax._judge.setting import WEAK, Data, Setting, standard_error
from hierax._lower.base import AbstractLowerSolver
from hierax._math import hypergradient as implicit
from hierax._math.hull import least_norm_weights
from hierax._math.lower_level import SOLVED, LowerSolution, level_at, row_names
from hierax._problem import sets
from hierax._problem.problem import Multipliers, Problem
from hierax._problem.sets import Free

MOST_WEAK = 4  # weakly active rows whose combinations are all tried
NEARBY = 1e-3  # step, relative to 1 + ||x||, over which the curvature of F(x, y*(x)) is measured
ACTIVE = 1e-6  # an upper constraint above minus this is active
ZERO = 1e-3  # relative norm of a hyper-gradient that counts as zero where not all of its pieces are known
TOO_LARGE = f"not computed: too large (the KKT matrix of the lower level exceeds order {implicit.MOST})"


class _Slope(NamedTuple):
    """The gradient of F(x, y*(x)) on the likeliest active set, and what it rests on.

    Attributes:
        system: the KKT system of the lower level.
        active: which rows were taken as active.
        margins: how clearly each row is active or not.
        total: the gradient.
        direct: its part grad_x F, without the response of y*.
        singular: whether the system is singular.
        flat: whether that is because y*(x) is not unique.
        near: a point of X a little further down.
    """

    system: implicit.System
    active: Bool[Array, " rows"]
    margins: Float[Array, " rows"]
    total: PyTree
    direct: PyTree
    singular: Bool[Array, ""]
    flat: Bool[Array, ""]
    near: PyTree


def above(
    setting: Setting, solver: AbstractLowerSolver, found: LowerSolution, compared: Comparison, given: Multipliers | None
) -> Part:
    """The hyper-gradient, the norm of its projection, and whether y*(x) is unique at all."""
    nu = jax.tree.map(np.zeros_like, compared.upper)
    if given is not None:
        nu = jax.tree.map(lambda leaf: np.maximum(leaf, 0.0), given.upper)
    here = _slope(setting, setting.x, found, nu)
    if here is None:
        return Part({}, {"hypergradient_norm": TOO_LARGE, "distance": "that y*(x) is unique was not tested: too large"})
    weak = np.flatnonzero(here.margins < WEAK)
    named = ", ".join(row_names(found)[i] for i in weak[:MOST_WEAK])
    if len(weak) > MOST_WEAK:
        text = f"not differentiable here: {len(weak)} weakly active rows ({named}, ...), too many combinations"
        return Part({}, {"hypergradient_norm": text})
    gradients: PyTree = jax.tree.map(lambda leaf: leaf[None], here.total)
    regular: np.ndarray = ~np.asarray(here.singular)[None]
    if len(weak):
        gradients, regular = _hull(setting, found, here, weak, nu)
    if not regular.any():
        return _singular(bool(here.flat))
    if given is None and np.any(numbers_of(compared.upper) > -ACTIVE):
        text = "upper constraints are active and their multipliers are not given: pass multipliers=sol.multipliers"
        return Part({}, {"hypergradient_norm": text})
    curvature = 0.0 if len(weak) else _curvature(setting, solver, found, here, nu)
    gradient, norm = _projected(setting, jax.tree.map(lambda leaf: leaf[regular], gradients), curvature)
    direct = numbers_of(here.direct)
    scale = float(np.linalg.norm(direct) + np.linalg.norm(numbers_of(gradient) - direct))
    if not regular.all() and norm > ZERO * (1 + scale):
        text = f"not differentiable here: {named} weakly active, and {(~regular).sum()} of {regular.size} active sets "
        return Part({}, {"hypergradient_norm": f"{text}degenerate; the others' gradients alone decide nothing"})
    numbers = {
        "hypergradient": gradient,
        "hypergradient_norm": norm,
        "hypergradient_scale": scale,
        "complementarity": float(np.max(np.abs(numbers_of(nu) * numbers_of(compared.upper)), initial=0.0)),
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

    def program(problem: Problem, data: Data, x: PyTree, found: LowerSolution, nu: PyTree) -> _Slope | None:
        if not implicit.fits(problem, x, found.y):
            return None
        zeta, xi = data
        problem = _with_upper(problem, nu)
        system = implicit.kkt_system(problem, x, found, xi)
        active = implicit.active_rows(system)
        solved = implicit.adjoint(system, active, implicit.upper_gradient_y(problem, x, found.y, zeta))
        total = implicit.total_gradient(problem, x, found, solved, zeta, xi)
        norm = optax.tree.norm(total)
        step = NEARBY * (1 + optax.tree.norm(x)) / or_one(norm)
        near = sets.project(problem.x_set, move(x, step, total))
        direct = jax.grad(problem.upper)(x, found.y, zeta)
        return _Slope(system, active, implicit.margins(system), total, direct, solved.singular, solved.flat, near)

    return setting.run("slope", program, x, found, nu)


def _hull(
    setting: Setting, found: LowerSolution, here: _Slope, weak: np.ndarray, nu: PyTree
) -> tuple[PyTree, np.ndarray]:
    """The gradients for every combination of the weakly active rows in or out, and which of these sets are regular."""

    def program(
        problem: Problem, data: Data, x: PyTree, found: LowerSolution, system: implicit.System, masks: Array, nu: PyTree
    ) -> tuple[PyTree, Array]:
        problem, (zeta, xi) = _with_upper(problem, nu), data
        push = implicit.upper_gradient_y(problem, x, found.y, zeta)

        def one(active: Array) -> tuple[PyTree, Array]:
            solved = implicit.adjoint(system, active, push)
            return implicit.total_gradient(problem, x, found, solved, zeta, xi), ~solved.singular

        return jax.lax.map(one, masks)

    masks = np.repeat(here.active[None], 2 ** len(weak), axis=0)
    masks[:, weak] = np.array(list(itertools.product([False, True], repeat=len(weak))))
    return setting.run("hull", program, setting.x, found, here.system, masks, nu)


def _grouped_slopes(setting: Setting, found: LowerSolution, here: _Slope, nu: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """y*(x) and the hyper-gradient as each group of samples sees them.

    A group's y* is one Newton step on the KKT system of the active rows away from the whole sample's.
    """

    def program(
        problem: Problem,
        data: Data,
        x: PyTree,
        found: LowerSolution,
        system: implicit.System,
        active: Array,
        nu: PyTree,
    ) -> tuple[Array, Array]:
        problem, (zeta, xi) = _with_upper(problem, nu), data
        level = level_at(problem, x, found.y, xi)
        push = jax.grad(lambda v: level.lagrangian(v, system.multipliers))(level.start)
        moved = implicit.adjoint(system, active, push)
        own, faces = level.split(system.multipliers + moved.rows)
        there = found._replace(y=level.tree(level.start + moved.y), multipliers=own, faces=faces)
        slope = implicit.upper_gradient_y(problem, x, there.y, zeta)
        solved = implicit.adjoint(implicit.kkt_system(problem, x, there, xi), active, slope)
        total = implicit.total_gradient(problem, x, there, solved, zeta, xi)
        return level.start + moved.y, jax.flatten_util.ravel_pytree(total)[0]

    return setting.run_on_groups("groups above", program, setting.x, found, here.system, here.active, nu)


def _curvature(setting: Setting, solver: AbstractLowerSolver, found: LowerSolution, here: _Slope, nu: PyTree) -> float:
    """How fast the hyper-gradient changes along itself: its difference to that of a nearby point of X, per length."""
    length = float(np.linalg.norm(numbers_of(here.near) - numbers_of(setting.x)))
    everywhere = all(isinstance(one, Free) for one in jax.tree.leaves(setting.bound.problem.x_set, is_leaf=sets.is_set))
    if length == 0.0 or everywhere:  # the projection is nothing, or the gradient itself, whatever the step
        return 0.0
    other = setting.solve_lower(solver, here.near, found.y, found.multipliers)
    there = _slope(setting, here.near, other, nu) if int(other.status) == SOLVED else None
    return 0.0 if there is None else float(np.linalg.norm(numbers_of(there.total) - numbers_of(here.total))) / length


def _projected(setting: Setting, gradients: PyTree, curvature: float) -> tuple[PyTree, float]:
    """The gradient d and ||x - Proj_X(x - t d)|| / t with t = 1/curvature.

    Of several gradients d is the point of their hull for which that is least. Where the curvature says nothing, t d is
    as long as 1 + ||x||.
    """

    def program(problem: Problem, data: Data, x: PyTree, gradients: PyTree, curvature: Array) -> tuple[PyTree, Scalar]:
        at, tree = jax.flatten_util.ravel_pytree(x)
        rows = jax.vmap(lambda one: jax.flatten_util.ravel_pytree(one)[0])(gradients)
        longest = jnp.max(jnp.linalg.norm(rows, axis=1))
        inverse = jnp.maximum(curvature, longest / (1 + jnp.linalg.norm(at)))
        step = 1 / or_one(inverse)

        def landed(d: Array) -> Array:
            return jax.flatten_util.ravel_pytree(sets.project(problem.x_set, tree(at - step * d)))[0] - at

        d = rows[0] if len(rows) == 1 else least_norm_weights(rows, landed, step) @ rows
        return tree(d), jnp.linalg.norm(landed(d)) / step

    gradient, norm = setting.run("projected", program, setting.x, gradients, np.asarray(curvature))
    return gradient, float(norm)
