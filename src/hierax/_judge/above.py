"""The certificate's view of the upper level: what a move of x could gain, and the descent test."""

import dataclasses

import numpy as np
from jaxtyping import PyTree

from hierax._engine.linearised import MAX_SYSTEMS, Linearised
from hierax._engine.programs import raveled, unraveled
from hierax._judge.below import Reference, lower_solution
from hierax._judge.descent import Around, look_around
from hierax._judge.gain import Gain, adjoint_slopes, gain
from hierax._judge.inspection import SIDEWAYS, Fields, Inspection, projected_norm
from hierax._judge.measured import KINK, SURE
from hierax._judge.sampling import SamplingErrors, sampling_errors
from hierax._lower.linear import OutOfTime
from hierax._math.lower_level import row_names

LEAST_SCALE = 1e-2  # of F's terms, where hardly anything around the point can be compared with it
ROUNDING = 1e-7  # share of F's terms that lower solves cannot tell from none
WIDEST_BOUNDED = 1e-3  # lengths of x within which kinks are bounded where matrices do not fit
KINKS = (1e-5, 1e-4, 1e-3, 1e-2, 3e-2)  # lengths of x within which rows that change sides count as weakly active


def above(look: Inspection, reference: Reference) -> Fields:
    """What a move of x could gain, the descent test, and in which radius the active set stays."""
    try:
        return _above(look, reference)
    except OutOfTime:
        return Fields({}, dict.fromkeys(("hypergradient_norm", "gains"), "the time was up before it was computed"))


def _above(look: Inspection, reference: Reference) -> Fields:
    point = reference.local
    found = lower_solution(look, point, reference.status)
    at = Linearised.at(look.vectors, point).with_cuts(reference.branches)
    errors = sampling_errors(look.setting, found, at.active) if look.setting.sampled else SamplingErrors()
    untouched = at.values.above
    if errors.point is not None:
        at = _touching(at, errors.point / look.vectors.y_unit)
    moved = np.flatnonzero(untouched != at.values.above)
    gains = _gains(at)
    smallest = gains[0][1]
    around = look_around(at, smallest.nu, smallest.direction, look.seed, look.stop)
    layout, unit = look.programs.layout, look.vectors.upper_unit
    size = _size(at, around)
    scale = _scale(at, size, gains, around)
    numbers = {
        "gains": tuple((kink, _stated(kink, one, scale) * unit) for kink, one in gains),
        "upper_scale": scale * unit,
        "around": around._replace(looks=[look._replace(change=look.change * unit) for look in around.looks]),
        "rounding": (ROUNDING * size + smallest.nu[moved] @ np.abs(untouched[moved])) * unit,
        "margin": float(np.min(at.margins, initial=np.inf)),
        "radius": float(np.min(at.radii, initial=np.inf)),
        **_gradient(look, at, smallest),
        **_errors(look, errors),
    }
    nu = smallest.nu[: layout.own_above] * unit / _upper_units(look)
    numbers["upper_multipliers"] = unraveled(look.setting.shapes("upper_constraints"), nu)
    return Fields(numbers, _notes(at, gains, scale, row_names(found)))


def _touching(at: Linearised, error: np.ndarray) -> Linearised:
    """The same with upper constraints at zero that samples cannot tell from zero; `error` is that of y*, in units."""
    unsure = SURE * np.linalg.norm(at.slopes.above[:, at.vectors.layout.nx :] * error, axis=1)
    above = np.where(np.abs(at.values.above) <= unsure, 0.0, at.values.above)
    return dataclasses.replace(at, values=at.values._replace(above=above))


def _gains(at: Linearised) -> list[tuple[float, Gain]]:
    """What can be gained with the rows that change sides within each width as weakly active; each set of them once.

    Where they are bounded, not tried, wide sets take twice the systems: they are left out after a narrow one.
    """
    found: list[tuple[float, Gain]] = []
    last: np.ndarray | None = None
    for kink in KINKS:
        weak = at.radii <= kink
        if last is not None and np.array_equal(weak, last):
            continue
        last = weak
        costly = at.vectors.programs.large and kink > WIDEST_BOUNDED and weak.any()
        if found and (costly or (found[-1][1].bound and np.isnan(found[-1][1].decrease))):
            found.append((kink, found[0][1]._replace(decrease=np.nan)))
        else:
            found.append((kink, gain(at, max(kink / 3, 1e-6), weak)))
    return found


def _stated(kink: float, found: Gain, scale: float) -> float:
    """The decrease; a bound refutes nothing, and counts only where it is within every tolerance that asks for it."""
    return float(found.decrease) if not found.bound or found.decrease <= kink / KINK * scale else np.nan


def _upper_units(look: Inspection) -> np.ndarray:
    return raveled(look.vectors.units.rows.upper_constraints)


def _gradient(look: Inspection, at: Linearised, found: Gain) -> dict[str, PyTree]:
    """The gradient of F(x, y*(x)), or of the upper constraints' Lagrangian, in the user's units, and what X leaves."""
    if np.isnan(found.uphill):
        return {}
    nx, layout = look.x.size, look.programs.layout
    nu = found.nu.copy()
    nu[layout.own_above : layout.above] = 0.0  # what X takes away is what its projection says
    along = at.slopes.upper + nu @ at.slopes.above
    if at.vectors.programs.large:
        by_adjoints = adjoint_slopes(at, at.active)
        total = None if by_adjoints is None else by_adjoints[0].upper + nu @ by_adjoints[0].above
    else:
        answer = at.response(at.active)
        total = None if answer.y is None else along[:nx] + along[nx:] @ answer.y
    if total is None:
        return {}
    direct, per = along[:nx], look.vectors.upper_unit / look.vectors.x_unit
    parts = np.linalg.norm(direct * per) + np.linalg.norm((total - direct) * per)
    return {
        "hypergradient": unraveled(look.setting.x, total * per),
        "hypergradient_norm": projected_norm(
            look.x, total * per, look.vectors.x_unit, lambda x: look.programs.landed(x, look.y)[0]
        ),
        "hypergradient_scale": float(parts),
    }


def _errors(look: Inspection, errors: SamplingErrors) -> dict[str, PyTree]:
    if errors.slope is None:
        return {}
    numbers: dict[str, PyTree] = {
        "upper_se": errors.upper,
        "hypergradient_norm_se": float(np.linalg.norm(errors.slope)),
        "gain_se": float(np.sum(errors.slope * look.vectors.x_unit)),
    }
    if errors.point is not None:
        numbers |= {"lower_gap_se": errors.gap, "distance_se": float(np.linalg.norm(errors.point))}
        numbers["kkt_residual_se"] = float(np.max(errors.point / look.vectors.y_unit))
    return numbers


def _scale(at: Linearised, size: float, gains: list[tuple[float, Gain]], around: Around) -> float:
    """What F(x, y*(x)) changes over a length of x: its slopes, and its curvature where there is no kink."""
    slopes = [one.uphill for _, one in gains if np.isfinite(one.uphill)]
    gained = [one.decrease for _, one in gains if np.isfinite(one.decrease) and not one.bound]
    smooth = not np.any(at.radii <= KINKS[0])
    return max([LEAST_SCALE * size, *slopes[:1], *gained[:1], around.slope, around.curvature if smooth else 0.0])


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
    sides = [at.vectors.landed(at.point.x + side, at.point.y + side * of_y) for side in (SIDEWAYS, -SIDEWAYS)]
    slopes = [at.slopes.upper, *(at.vectors.upper_slopes(*side)[0] for side in sides)]
    sizes = [float(np.abs(slope[:nx]).sum() + np.abs(slope[nx:]) @ of_y) for slope in slopes]
    return max((size for size in sizes if np.isfinite(size)), default=0.0)


def _notes(at: Linearised, gains: list[tuple[float, Gain]], scale: float, names: list[str]) -> dict[str, str]:
    notes: dict[str, str] = {}
    weak = np.flatnonzero(at.radii <= KINKS[0])
    if len(weak):
        listed = ", ".join(names[i] for i in weak[:4]) + (", ..." if len(weak) > 4 else "")
        notes["hypergradient_norm"] = f"not differentiable here: {listed} weakly active; the gain counts every side"
    if at.vectors.programs.large:
        return notes | _notes_of_large(at, gains, scale)
    if at.response(at.active).y is None:
        text = "y*(x) is not unique: G is flat along the active constraints"
        notes |= {"distance": text, "hypergradient_norm": text}
    if np.isnan(gains[0][1].decrease):
        notes["gains"] = f"too many weakly active or dependent rows ({len(weak)} weakly active) to try every side"
    return notes


def _notes_of_large(at: Linearised, gains: list[tuple[float, Gain]], scale: float) -> dict[str, str]:
    """Why the gain is not known where matrices do not fit."""
    first = gains[0][1]
    if np.isnan(first.uphill) and np.isnan(first.decrease):
        text = "the adjoint system was not solved by MINRES: y*(x) may not be unique, or is badly conditioned"
        return {"hypergradient_norm": text, "gains": text}
    narrow = [_stated(kink, one, scale) for kink, one in gains if kink <= WIDEST_BOUNDED]
    if not any(np.isnan(narrow)):
        return {}
    if at.regular_system(at.active) is None:
        why = "the active rows depend on each other or are too many to tell, or G is nearly flat along some directions"
    elif at.mixed is None:
        why = f"which rows change sides near x was not computed (more than {MAX_SYSTEMS} systems)"
    else:
        why = "rows that change sides near x leave it open"
    slope = np.nan_to_num(first.uphill, nan=first.decrease) / scale if scale > 0 else 0.0
    return {"gains": f"{why}; without them a length of x gains at most {slope:.2g} of what F changes"}
