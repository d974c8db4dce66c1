"""The certificate's view of the upper level: what a move of x could gain, the descent test, and errors of sampling."""

import dataclasses
from collections.abc import Callable

import jax
import jax.flatten_util
import numpy as np
from jaxtyping import Array, PyTree

from hierax._engine.float64_problem import Data, Float64Problem, standard_error
from hierax._engine.linearised import MAX_SYSTEMS, Linearised
from hierax._engine.programs import FEASIBLE, raveled, unraveled
from hierax._judge.descent import Around, look_around
from hierax._judge.gain import Gain, gain, total_slopes
from hierax._judge.measuring import KINK, KINKS, NOISE, STEPS, SURE, Fields, Inspection, Reference, listed
from hierax._lower.linear import OutOfTime
from hierax._math import hypergradient as implicit
from hierax._math.lower_level import LowerSolution, level_at, row_names
from hierax._problem.problem import Problem


def above(look: Inspection, reference: Reference) -> Fields:
    """What a move of x could gain, the descent test, and in which radius the active set stays."""
    try:
        return _above(look, reference)
    except OutOfTime:
        return Fields({}, dict.fromkeys(("hypergradient_norm", "gains"), "the time was up before it was computed"))


def _above(look: Inspection, reference: Reference) -> Fields:
    vectors, layout, unit = look.vectors, look.programs.layout, look.vectors.upper_unit
    found = look.lower_solution(reference.local, reference.status)
    at = Linearised.at(vectors, reference.local).with_cuts(reference.branches)
    errors, tilt = _sampling_errors(look, found, at.active)
    values = at.values.above
    if tilt is not None:  # upper constraints that samples cannot tell from zero are at zero
        unsure = SURE * np.linalg.norm(at.slopes.above[:, layout.nx :] * tilt, axis=1)
        touching = np.where(np.abs(values) <= unsure, 0.0, values)
        at = dataclasses.replace(at, values=at.values._replace(above=touching))
    moved, gains = values != at.values.above, _gains(at)
    smallest = gains[0][1]
    around = look_around(at, smallest.nu, smallest.direction, look.seed, look.stop)
    size = _size(at, around)
    scale = _scale(at, size, gains, around)
    nu = smallest.nu[: layout.own_above] * unit / raveled(vectors.units.rows.upper_constraints)
    numbers = {
        "gains": tuple((kink, _stated(kink, one, scale) * unit) for kink, one in gains),
        "upper_scale": scale * unit,
        "around": around._replace(looks=[look._replace(change=look.change * unit) for look in around.looks]),
        "rounding": (NOISE * size + smallest.nu[moved] @ np.abs(values[moved])) * unit,
        "margin": float(np.min(at.margins, initial=np.inf)),
        "radius": float(np.min(at.radii, initial=np.inf)),
        "upper_multipliers": unraveled(look.setting.shapes("upper_constraints"), nu),
        **_gradient(look, at, smallest),
        **errors,
    }
    return Fields(numbers, _notes(at, gains, scale, row_names(found)))


def _gains(at: Linearised) -> list[tuple[float, Gain]]:
    """What can be gained with the rows that change sides within each width as weakly active; each set of them once.

    Where they are bounded, not tried, wide sets take twice the systems: they are left out after a narrow one.
    """
    found: list[tuple[float, Gain]] = []
    count = -1
    for kink in KINKS:
        weak = at.radii <= kink
        if weak.sum() == count:
            continue
        count = weak.sum()
        costly = at.vectors.programs.large and kink > STEPS[-1] and weak.any()
        if found and (costly or (found[-1][1].bound and np.isnan(found[-1][1].decrease))):
            found.append((kink, found[0][1]._replace(decrease=np.nan)))
        else:
            found.append((kink, gain(at, max(kink / KINK, FEASIBLE), weak)))
    return found


def _stated(kink: float, found: Gain, scale: float) -> float:
    """The decrease; a bound refutes nothing, and counts only where it is within every tolerance that asks for it."""
    return float(found.decrease) if not found.bound or found.decrease <= kink / KINK * scale else np.nan


def _gradient(look: Inspection, at: Linearised, found: Gain) -> dict[str, PyTree]:
    """The gradient of F(x, y*(x)), or of the upper constraints' Lagrangian, in the user's units, and what X leaves."""
    slopes = None if np.isnan(found.uphill) else total_slopes(at, at.active)
    if slopes is None:
        return {}
    nu, layout, per = found.nu.copy(), look.programs.layout, look.vectors.upper_unit / look.vectors.x_unit
    nu[layout.own_above : layout.above] = 0.0  # what X takes away is what its projection says
    total = (slopes.upper + nu @ slopes.above) * per
    direct = (at.slopes.upper + nu @ at.slopes.above)[: layout.nx] * per
    left = _projected_norm(look.x, total, look.vectors.x_unit, lambda x: look.programs.landed(x, look.y)[0])
    return {
        "hypergradient": unraveled(look.setting.x, total),
        "hypergradient_norm": left,
        "hypergradient_scale": float(np.linalg.norm(direct) + np.linalg.norm(total - direct)),
    }


def _projected_norm(
    x: np.ndarray, gradient: np.ndarray, lengths: np.ndarray, project: Callable[[np.ndarray], np.ndarray]
) -> float:
    """||x - Proj_X(x - t gradient)|| / t for a t that moves no entry by more than a little: what X leaves of a slope.

    Zero exactly where x is stationary over X, whatever set X is.
    """
    steepest = np.max(np.abs(gradient) / lengths, initial=0.0)
    if not np.isfinite(steepest) or steepest == 0:
        return float(np.linalg.norm(gradient))
    step, inside = STEPS[-1] / steepest, project(x)
    return float(np.linalg.norm(inside - project(inside - step * gradient)) / step)


def _scale(at: Linearised, size: float, gains: list[tuple[float, Gain]], around: Around) -> float:
    """What F(x, y*(x)) changes over a length of x: its slopes, and its curvature where there is no kink.

    At least a little of what its terms change, where hardly anything around the point can be compared with it.
    """
    slopes = [one.uphill for _, one in gains if np.isfinite(one.uphill)]
    gained = [one.decrease for _, one in gains if np.isfinite(one.decrease) and not one.bound]
    smooth = not np.any(at.radii <= KINKS[0])
    return max([STEPS[1] * size, *slopes[:1], *gained[:1], around.slope, around.curvature if smooth else 0.0])


def _size(at: Linearised, around: Around) -> float:
    """What the terms of F change over a length of x, each for itself: y moves as far as it answers to x.

    Also a little to both sides: at a minimum all slopes of F may vanish.
    """
    nx, moved = at.vectors.layout.nx, at.response(at.active).y
    if moved is not None:
        of_y = np.abs(moved).sum(axis=1)
    else:
        seen = [np.abs(look.point.y - at.point.y) / look.step for look in around.looks if look.step > 0]
        of_y = np.max(seen, axis=0) if seen and at.mixed is None else np.ones(at.point.y.size)
    sides = [at.vectors.landed(at.point.x + side, at.point.y + side * of_y) for side in (STEPS[0], -STEPS[0])]
    slopes = [at.slopes.upper, *(at.vectors.upper_slopes(*side)[0] for side in sides)]
    sizes = [float(np.abs(slope[:nx]).sum() + np.abs(slope[nx:]) @ of_y) for slope in slopes]
    return max((size for size in sizes if np.isfinite(size)), default=0.0)


def _notes(at: Linearised, gains: list[tuple[float, Gain]], scale: float, names: list[str]) -> dict[str, str]:
    """What to know about the hyper-gradient and the gain, or why they are missing."""
    notes: dict[str, str] = {}
    weak, first = np.flatnonzero(at.radii <= KINKS[0]), gains[0][1]
    if len(weak):
        rows = listed([names[i] for i in weak])
        notes["hypergradient_norm"] = f"not differentiable here: {rows} weakly active; the gain counts every side"
    if not at.vectors.programs.large:
        if at.response(at.active).y is None:
            text = "y*(x) is not unique: G is flat along the active constraints"
            notes |= {"distance": text, "hypergradient_norm": text}
        if np.isnan(first.decrease):
            notes["gains"] = f"too many weakly active or dependent rows ({len(weak)} weakly active) to try every side"
    elif np.isnan(first.uphill) and np.isnan(first.decrease):
        text = "the adjoint system was not solved by MINRES: y*(x) may not be unique, or is badly conditioned"
        notes |= {"hypergradient_norm": text, "gains": text}
    elif any(np.isnan(_stated(kink, one, scale)) for kink, one in gains if kink <= STEPS[-1]):
        why = "rows that change sides near x leave it open"
        if at.regular_system(at.active) is None:
            why = "the active rows depend on each other or are too many to tell, or G is nearly flat along some of y"
        elif at.mixed is None:
            why = f"which rows change sides near x was not computed (more than {MAX_SYSTEMS} systems)"
        slope = np.nan_to_num(first.uphill, nan=first.decrease) / scale if scale > 0 else 0.0
        notes["gains"] = f"{why}; without them a length of x gains at most {slope:.2g} of what F changes"
    return notes


def _sampling_errors(
    look: Inspection, found: LowerSolution, active: np.ndarray
) -> tuple[dict[str, float], np.ndarray | None]:
    """Standard errors that sampling puts into a certificate, and that of y*(x), entry by entry, in units.

    `active` are the rows that hold at y*(x). A group's y* is one Newton step on their KKT system away from the whole
    sample's.
    """

    def program(
        problem: Problem, data: Data, x: PyTree, y: PyTree, found: LowerSolution, active: Array
    ) -> tuple[Array, Array, Array]:
        zeta, xi = data
        system = implicit.kkt_system(problem, x, found, xi)
        level = level_at(problem, x, found.y, xi)
        push = jax.grad(lambda v: level.lagrangian(v, system.multipliers))(level.start)
        moved = implicit.adjoint(system, active, push)
        own, faces = level.split(system.multipliers + moved.rows)
        there = found._replace(y=level.tree(level.start + moved.y), multipliers=own, faces=faces)
        slope = implicit.upper_gradient_y(problem, x, there.y, zeta)
        solved = implicit.adjoint(implicit.kkt_system(problem, x, there, xi), active, slope)
        total = implicit.total_gradient(problem, x, there, solved, zeta, xi)
        return problem.upper(x, y, zeta), level.start + moved.y, jax.flatten_util.ravel_pytree(total)[0]

    setting = look.setting
    if not setting.sampled:
        return {}, None
    groups = setting.run_on_groups("groups", program, setting.x, setting.y, found, active)
    upper, point, slope = (standard_error(part) for part in groups)
    numbers = {
        "upper_se": float(upper),
        "hypergradient_norm_se": float(np.linalg.norm(slope)),
        "gain_se": float(np.sum(slope * look.vectors.x_unit)),
    }
    if not setting.xi.fresh:
        return numbers, None
    tilt = point / look.vectors.y_unit
    numbers |= {"lower_gap_se": gap_error(setting, found), "distance_se": float(np.linalg.norm(point))}
    return numbers | {"kkt_residual_se": float(np.max(tilt))}, tilt


def gap_error(setting: Float64Problem, found: LowerSolution) -> float:
    """The standard error of the gap."""

    def program(problem: Problem, data: Data, x: PyTree, y: PyTree, found: LowerSolution) -> Array:
        return problem.lower(x, y, data.xi) - problem.lower(x, found.y, data.xi)

    return float(standard_error(setting.run_on_groups("groups below", program, setting.x, setting.y, found)))
