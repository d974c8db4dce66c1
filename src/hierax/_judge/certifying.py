"""`certify`: how far a point can be trusted, by a measure that no method controls.

The lower level is solved anew at the given x, in double precision and on all of the data, and the point is compared
with that reference. What the numbers mean, equation by equation: docs/guides/certificate.md.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.flatten_util
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.constants import FRESH_SAMPLES
from hierax._base.errors import InputError
from hierax._base.interrupt import interruptible
from hierax._base.text import numbers_of
from hierax._compile.checked import refused
from hierax._compile.configuration import in_own_configuration, one_blas_thread, refuse_to_be_traced
from hierax._engine.by_hand import HandMade
from hierax._engine.float64_problem import Data, Float64Problem, kink_near, own_rows, standard_error
from hierax._engine.programs import FEASIBLE, raveled, unraveled
from hierax._engine.vectors import MAX_SYSTEMS, Linearised
from hierax._judge.certificate import Certificate
from hierax._judge.descent import Around, look_around
from hierax._judge.gain import Gain, gain, total_slopes
from hierax._judge.measuring import KINK, KINKS, NOISE, STEPS, SURE, Inspection, Notes, Numbers, Reference, listed
from hierax._judge.psi import RunState, of_psi
from hierax._judge.retraining import Retraining, is_trained, trained_fields
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._lower.linear import OutOfTime, Stop
from hierax._math import hypergradient as implicit
from hierax._math.lower_level import INFEASIBLE, SOLVED, UNBOUNDED, LowerSolution, level_at, row_names
from hierax._problem.problem import CONSTRAINTS, Multipliers, Problem


@in_own_configuration
def certify(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    *,
    multipliers: Multipliers | None = None,
    lower: AbstractLowerSolver | None = None,
    state: RunState | None = None,
    samples: int = FRESH_SAMPLES,
    seed: int = 0,
    lengths: tuple[PyTree, PyTree] | None = None,
) -> Certificate:
    """Judge a point: feasibility, optimality below, stationarity above.

        lower gap        G(x, y) - v(x),     v(x) = min {G(x, w) : w in Y, h(x, w) <= 0, e(x, w) = 0}
        distance         ||y - y*(x)||,      y*(x) where v(x) is attained
        hyper-gradient   grad phi = grad_x F + (dy*/dx)' grad_y F,     phi(x) = F(x, y*(x))

    The lower level is solved at x by a reference solver in float64, whatever the precision of x, y and of JAX; the
    expectations are over all rows of `Finite` data, the `exact` batch of a `Sampler`, or fresh samples, and then with
    standard errors.

    Args:
        problem: the problem.
        x: upper variable.
        y: lower variable.
        multipliers: `sol.multipliers`: those of the lower level enter `kkt_residual` (None: the reference's). Those of
            upper constraints are always fitted.
        lower: the reference solver; None: `Exact` from several starts.
        state: `sol.state` of a run of SALVF, for the stationarity of its penalty function.
        samples: how many fresh samples stand for an expectation that is not known.
        seed: of the samples, and of the directions of the descent test.
        lengths: of x and of y, trees like them, or numbers: what counts as a large move of an entry that has no bounds
            (None: its size, or what constraints and derivatives say).

    Returns:
        A `Certificate`.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> hx.certify(problem, 1 / 1.1, 1 / 1.1).ok(1e-6)
        True
        >>> hx.certify(problem, 0.5, 0.5).verdict()
        'no'
        >>> round(float(hx.certify(problem, 0.5, 0.5).hypergradient), 6)  # phi = (x - 1)^2 + 0.1 x^2
        -0.9

    References:
        docs/guides/certificate.md (every number with its formula); docs/start/first-certificate.md
    """
    refuse_to_be_traced("certify", (x, y))
    for name, given, kind, needs in (
        ("lower", lower, AbstractLowerSolver, "a lower solver, for example hx.Exact() or hx.Conic()"),
        ("multipliers", multipliers, Multipliers, "hx.Multipliers, as in sol.multipliers"),
        ("state", state, RunState, "the state of a run, sol.state"),
    ):
        if given is not None and not isinstance(given, kind):
            raise InputError(f"{name}={given!r}: needs {needs}, or None.")
    try:
        setting = Float64Problem.of(problem, x, y, samples, seed, open_kinks=True)
        for name, tree in (("x", setting.x), ("y", setting.y)):
            if not np.isfinite(numbers_of(tree)).all():
                raise InputError(f"{name}: has entries that are not finite; there is nothing to judge at such a point.")
        with interruptible() as interrupt:

            def stop() -> bool:
                return interrupt.asked

            why = is_trained(setting, seed) if lower is None else None
            training = None if why is None else Retraining.before(setting, seed, stop, why)
            return as_stated(setting, certificate_in(setting, lower, multipliers, state, seed, stop, lengths, training))
    except (TypeError, ValueError) as error:
        objection = None if isinstance(error, InputError) else refused(problem, x, y)
        raise (error if objection is None else InputError(f"x and y do not fit the problem: {objection}")) from None


def as_stated(setting: Float64Problem, found: Certificate) -> Certificate:
    """A certificate whose y, lengths and multipliers are those of the problem as it was stated."""
    if setting.tops is None or found.reference.multipliers is None:
        return found
    rows, (of_x, of_y) = found.reference.multipliers, found.lengths
    own = rows._replace(inequalities=own_rows(setting, rows.inequalities))
    reference = found.reference._replace(y=setting.whole(setting.x, found.reference.y)[1], multipliers=own)
    return dataclasses.replace(found, lengths=(of_x, of_y[0]), reference=reference)


def certificate_in(
    setting: Float64Problem,
    lower: AbstractLowerSolver | None = None,
    multipliers: Multipliers | None = None,
    state: RunState | None = None,
    seed: int = 0,
    stop: Stop = lambda: False,
    lengths: tuple[PyTree, PyTree] | None = None,
    training: Retraining | None = None,
    hand: HandMade | None = None,
    known: Sequence[np.ndarray] = (),
) -> Certificate:
    """The certificate of the setting's point: `certify` for whoever judges many points of one problem.

    Where `stop` says so, tests that are left are not made, and the verdict says which. `training` is how the lower
    level is trained where it is not solved; `hand` is the same problem by hand; `known` are vectors y that a search
    has met: the lower level is solved from them as well.
    """
    stated = setting.tops is None  # else there are more rows and entries than the user knows of
    given = None if multipliers is None or not stated else _fitting(setting, multipliers)
    most = None if lengths is None or not stated else _fitting_lengths(setting, lengths)
    notes: Notes = {}
    away, kink = (np.inf, "") if hand is not None or training is not None else kink_near(setting)
    if away <= FEASIBLE:
        side = "derivatives there are those of one side; write it as rows with a further entry of y, or avoid it"
        notes["kink"] = f"the point is at a kink of the problem's functions ({kink}, {away:.1g} away): {side}"
    if state is None and training is None:
        notes["stationarity"] = "belongs to a run: sol.certificate, or certify(..., state=sol.state)"
    if training is not None:
        numbers = trained_fields(training, setting, given, seed, notes)
    else:
        with one_blas_thread:
            numbers = {} if state is None else of_psi(setting, lower or Exact(), state, notes)
            numbers |= _inspected(Inspection(setting, seed, stop, most, hand, known), lower, given, notes)
    x, y = setting.whole(setting.x, setting.y)
    found = numbers.pop("reference")
    return Certificate(
        x=x,
        y=y,
        reference=found if not stated else found._replace(y=setting.whole(setting.x, found.y)[1]),
        data=f"{setting.zeta.text}; {setting.xi.text}",
        samples=setting.fresh_samples,
        unvarying=setting.unvarying(),
        notes=notes,
        **numbers,
    )


def _inspected(look: Inspection, lower: AbstractLowerSolver | None, given: Multipliers | None, notes: Notes) -> Numbers:
    """Everything about a point whose lower level is solved."""
    setting, at = look.setting, look.reference(lower)
    bent = look.vectors.bent
    found = look.lower_solution(at.best, at.status)
    numbers = {"reference": found} | look.feasibility(row_names(found)) | look.units(notes)
    numbers["not_convex"] = why = look.why_not_convex(at.branches)
    if why is None and look.doubt == np.inf and lower is None:
        notes["convexity"] = f"that the lower level is convex was seen at {look.vectors.looks} points, not proved"
    if at.branches.best() is None or at.status in (INFEASIBLE, UNBOUNDED):
        missing = ("lower_gap", "distance", "kkt_residual", "hypergradient_norm")
        notes |= dict.fromkeys(missing, "there is no reference solution")
        return numbers
    numbers |= look.below(at, float(found.value), given)
    if at.status == SOLVED and look.programs.large and (setting.sampled or bent is not None):
        why = f"not computed: the KKT matrix of the lower level exceeds order {implicit.MOST}"
        notes |= dict.fromkeys(("hypergradient_norm", "gains", "distance"), why)
        numbers |= {"lower_gap_se": _gap_error(setting, found)} if setting.xi.fresh else {}
    elif at.status == SOLVED:
        try:
            numbers |= _above(look, at, notes)
        except OutOfTime:
            notes |= dict.fromkeys(("hypergradient_norm", "gains"), "the time was up before it was computed")
    return numbers


def _fitting(setting: Float64Problem, multipliers: Multipliers) -> Multipliers:
    """The multipliers in double precision, refused where they do not belong to the problem's constraints."""
    for name, given, like in zip(CONSTRAINTS, multipliers, setting.shapes(), strict=True):
        wanted, shapes = jax.tree.map(lambda row: row.shape, like), jax.tree.map(np.shape, given)
        if shapes != wanted:
            raise InputError(f"multipliers of {name}: shapes {shapes} do not fit the function's output, {wanted}.")
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), Multipliers(*multipliers))


def _fitting_lengths(setting: Float64Problem, lengths: tuple[PyTree, PyTree]) -> tuple[np.ndarray, np.ndarray]:
    """Given lengths as vectors, refused where they are not positive or do not fit x and y."""
    if not isinstance(lengths, tuple) or len(lengths) != 2:
        raise InputError(f"lengths={lengths!r}: needs a pair, lengths of x and lengths of y.")

    def vector(name: str, tree: PyTree, like: PyTree) -> np.ndarray:
        whole = jax.tree.map(lambda leaf: tree, like) if isinstance(tree, int | float | np.generic) else tree
        try:
            parts = jax.tree.map(lambda leaf, part: np.broadcast_to(np.asarray(part, float), leaf.shape), like, whole)
        except (TypeError, ValueError) as error:
            raise InputError(f"lengths of {name}: needs a number or a tree like {name}, got {tree!r}.") from error
        found = numbers_of(parts)
        if not np.all(found > 0):
            raise InputError(f"lengths of {name}: must be positive, got {tree!r}.")
        return found

    return vector("x", lengths[0], setting.x), vector("y", lengths[1], setting.y)


# -- the upper level ---------------------------------------------------------------------------------------------------


def _above(look: Inspection, reference: Reference, notes: Notes) -> Numbers:
    """What a move of x could gain, the descent test, and in which radius the active set stays."""
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
    nu = smallest.nu[: layout.own_above] * unit / raveled(vectors.units.rows.upper)
    notes |= _notes(at, gains, scale, row_names(found))
    return {
        "gains": tuple((kink, _stated(kink, one, scale) * unit) for kink, one in gains),
        "upper_scale": scale * unit,
        "around": around._replace(
            looks=[look._replace(change=look.change * unit) for look in around.looks],
            both_sides=[[change * unit for change in changes] for changes in around.both_sides],
        ),
        "rounding": (NOISE * size + smallest.nu[moved] @ np.abs(values[moved])) * unit,
        "margin": float(np.min(at.margins, initial=np.inf)),
        "radius": float(np.min(at.radii, initial=np.inf)),
        "upper_multipliers": unraveled(look.setting.shapes().upper, nu),
        **_gradient(look, at, smallest),
        **errors,
    }


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


def _gradient(look: Inspection, at: Linearised, found: Gain) -> Numbers:
    """The gradient of F(x, y*(x)), or of the upper constraints' Lagrangian, in the user's units, and what X leaves."""
    slopes = None if np.isnan(found.uphill) else total_slopes(at, at.active)
    if slopes is None:
        return {}
    nu, layout, per = found.nu.copy(), look.programs.layout, look.vectors.upper_unit / look.vectors.x_unit
    nu[layout.own_above : layout.above] = 0.0  # what X takes away is what its projection says
    total = (slopes.upper + nu @ slopes.above) * per
    direct = (at.slopes.upper + nu @ at.slopes.above)[: layout.nx] * per
    steepest = np.max(np.abs(total) / look.vectors.x_unit, initial=0.0)
    left = np.linalg.norm(total)
    if np.isfinite(steepest) and steepest > 0:  # ||x - Proj_X(x - t gradient)|| / t, t moves entries by a little
        t, (inside, _) = STEPS[-1] / steepest, look.programs.landed(look.x, look.y)
        left = np.linalg.norm(inside - look.programs.landed(inside - t * total, look.y)[0]) / t
    scale = float(np.linalg.norm(direct) + np.linalg.norm(total - direct))
    numbers = {"hypergradient_norm": float(left), "hypergradient_scale": scale}
    return {"hypergradient": unraveled(look.setting.x, total), **numbers}


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


def _notes(at: Linearised, gains: list[tuple[float, Gain]], scale: float, names: list[str]) -> Notes:
    """What to know about the hyper-gradient and the gain, or why they are missing."""
    notes: Notes = {}
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
    ) -> tuple[Array, Array, Array, Array]:
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
        return problem.upper(x, y, zeta), level.start + moved.y, jax.flatten_util.ravel_pytree(total)[0], push

    setting = look.setting
    if not setting.sampled:
        return {}, None
    groups = setting.run_on_groups("groups", program, setting.x, setting.y, found, active)
    upper, point, slope, push = (standard_error(part) for part in groups)
    numbers = {"upper_se": float(upper), "hypergradient_norm_se": float(np.linalg.norm(slope))}
    numbers["gain_se"] = float(np.sum(slope * look.vectors.x_unit))
    if not setting.xi.fresh:
        return numbers, None
    tilt, residual = point / look.vectors.y_unit, push * look.vectors.y_unit / look.vectors.lower_unit
    numbers |= {"lower_gap_se": _gap_error(setting, found), "distance_se": float(np.linalg.norm(point))}
    return numbers | {"kkt_residual_se": float(np.max(residual))}, tilt


def _gap_error(setting: Float64Problem, found: LowerSolution) -> float:
    """The standard error of the gap."""

    def program(problem: Problem, data: Data, x: PyTree, y: PyTree, found: LowerSolution) -> Array:
        return problem.lower(x, y, data.xi) - problem.lower(x, found.y, data.xi)

    return float(standard_error(setting.run_on_groups("groups below", program, setting.x, setting.y, found)))
