"""The certificate's view of the upper level: what a move of x could gain, and the descent test."""

import numpy as np
from jaxtyping import PyTree

from hierax._engine.programs import raveled, unraveled
from hierax._judge.below import Reference, lower_solution
from hierax._judge.descent import Around, look_around
from hierax._judge.inspection import SIDEWAYS, Fields, Inspection, projected_norm
from hierax._judge.local_model import Gain, Linearised, gain, with_cuts
from hierax._judge.sampling import SamplingErrors, sampling_errors
from hierax._math.lower_level import row_names

LEAST_SCALE = 1e-2  # of F's terms, where hardly anything around the point can be compared with it
ROUNDING = 1e-7  # share of F's terms that lower solves cannot tell from none
KINKS = (1e-5, 1e-4, 1e-3, 1e-2, 3e-2)  # lengths of x within which rows that change sides count as weakly active


def above(look: Inspection, reference: Reference) -> Fields:
    """What a move of x could gain, the descent test, and in which radius the active set stays."""
    point = reference.local
    found = lower_solution(look, point, reference.status)
    at = with_cuts(Linearised(look.vectors, point, *look.vectors.at(*point)), reference.branches)
    gains = [(kink, gain(at, max(kink / 3, 1e-6), weak)) for kink, weak in _weak_sets(at)]
    smallest = gains[0][1]
    around = look_around(at, smallest.nu, smallest.direction, look.seed, look.stop)
    layout, unit = look.programs.layout, look.vectors.upper_unit
    errors = sampling_errors(look.setting, found, at.active) if look.setting.sampled else SamplingErrors()
    numbers = {
        "gains": tuple((kink, float(one.decrease) * unit) for kink, one in gains),
        "upper_scale": _scale(at, gains, around) * unit,
        "around": around._replace(looks=[look._replace(change=look.change * unit) for look in around.looks]),
        "rounding": ROUNDING * _size(at) * unit,
        "margin": float(np.min(at.margins, initial=np.inf)),
        "radius": float(np.min(at.radii, initial=np.inf)),
        **_gradient(look, at, smallest),
        **_errors(look, errors),
    }
    nu = smallest.nu[: layout.own_above] * unit / _upper_units(look)
    numbers["upper_multipliers"] = unraveled(look.setting.shapes("upper_constraints"), nu)
    return Fields(numbers, _notes(at, gains, row_names(found)))


def _upper_units(look: Inspection) -> np.ndarray:
    return raveled(look.vectors.units.rows.upper_constraints)


def _gradient(look: Inspection, at: Linearised, found: Gain) -> dict[str, PyTree]:
    """The gradient of F(x, y*(x)), or of the upper constraints' Lagrangian, in the user's units, and what X leaves."""
    answer = at.response(at.active)
    if answer.y is None or np.isnan(found.uphill):
        return {}
    nx, layout = look.x.size, look.programs.layout
    nu = found.nu.copy()
    nu[layout.own_above : layout.above] = 0.0  # what X takes away is what its projection says
    along = at.slopes.upper + nu @ at.slopes.above
    total, direct = along[:nx] + along[nx:] @ answer.y, along[:nx]
    per = look.vectors.upper_unit / look.vectors.x_unit
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


def _weak_sets(at: Linearised) -> list[tuple[float, np.ndarray]]:
    """The rows that change sides within each width, in lengths of x; each different set once, with its first width."""
    found: list[tuple[float, np.ndarray]] = []
    for kink in KINKS:
        weak = at.radii <= kink
        if not found or not np.array_equal(weak, found[-1][1]):
            found.append((kink, weak))
    return found


def _scale(at: Linearised, gains: list[tuple[float, Gain]], around: Around) -> float:
    """What F(x, y*(x)) changes over a length of x: its slopes, and its curvature where there is no kink."""
    slopes = [one.uphill for _, one in gains if np.isfinite(one.uphill)]
    gained = [one.decrease for _, one in gains if np.isfinite(one.decrease)]
    smooth = not np.any(at.radii <= KINKS[0])
    return max([LEAST_SCALE * _size(at), *slopes[:1], *gained[:1], around.slope, around.curvature if smooth else 0.0])


def _size(at: Linearised) -> float:
    """What the terms of F change over a length of x, each for itself: y moves as far as it answers to x.

    Also a little to both sides: at a minimum all slopes of F may vanish.
    """
    nx, moved = at.vectors.layout.nx, at.response(at.active).y
    of_y = np.ones(at.vectors.layout.ny) if moved is None else np.abs(moved).sum(axis=1)
    sides = [at.vectors.landed(at.point.x + side, at.point.y + side * of_y) for side in (SIDEWAYS, -SIDEWAYS)]
    slopes = [at.slopes.upper, *(at.vectors.at(*side, at.point.mu)[1].upper for side in sides)]
    sizes = [float(np.abs(slope[:nx]).sum() + np.abs(slope[nx:]) @ of_y) for slope in slopes]
    return max(size for size in sizes if np.isfinite(size))


def _notes(at: Linearised, gains: list[tuple[float, Gain]], names: list[str]) -> dict[str, str]:
    notes: dict[str, str] = {}
    weak = np.flatnonzero(at.radii <= KINKS[0])
    if len(weak):
        listed = ", ".join(names[i] for i in weak[:4]) + (", ..." if len(weak) > 4 else "")
        notes["hypergradient_norm"] = f"not differentiable here: {listed} weakly active; the gain counts every side"
    if at.response(at.active).y is None:
        text = "y*(x) is not unique: G is flat along the active constraints"
        notes |= {"distance": text, "hypergradient_norm": text}
    if np.isnan(gains[0][1].decrease):
        notes["gains"] = (
            f"too many weakly active or dependent rows ({int(np.sum(at.radii <= KINKS[0]))} weakly active) to try "
            "every side"
        )
    return notes
