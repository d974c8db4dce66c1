"""A certificate: the numbers that were measured at a point, and what they say of it, as a verdict and in words.

A test is words, a number, its standard error and a limit: `_weighed` makes an objection of it, or none. Verdict and
reasons follow from the objections.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, overload

from jaxtyping import PyTree

from hierax._base.constants import NEGLIGIBLE
from hierax._base.errors import InputError
from hierax._base.settings import is_number
from hierax._base.text import notebook_table, numbers_of, shown, text_table
from hierax._engine.float64_problem import ROUNDING
from hierax._judge.descent import Around, Look
from hierax._judge.measuring import DEFAULT_TOLERANCE, KINK, SHOWN_TOLERANCE, STEPS, SURE, GapRange
from hierax._judge.retraining import Retrained
from hierax._judge.sampling import Estimates
from hierax._math.lower_level import INACCURATE, INFEASIBLE, MEANING, SOLVED, UNBOUNDED, LowerSolution
from hierax._problem.problem import Multipliers

TESTS = ("violation", "gap", "stationarity")

Verdict = Literal["yes", "no", "unknown"]


class Objection(NamedTuple):
    """A test that is not passed, in words; `sure`: it fails, else it is not decided."""

    text: str
    sure: bool


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Certificate:
    """How far a point (x, y) is from solving a bilevel problem. `print` gives a table, `verdict(tol)` the answer.

        lower_gap = G(x, y) - v(x),   distance = ||y - y*(x)||,   hypergradient = grad phi(x),   phi(x) = F(x, y*(x))
        yes where, in units,   violation <= tol,   kkt_residual <= tol,   |lower_gap| small enough,
                               gain <= tol upper_scale,   and no point of the descent test is lower

    Everything is judged in units that follow from the problem and the point (`lengths`): multiplying F, G or a
    constraint by a number, or measuring x or y differently, changes nothing. A number is None where it cannot be had;
    `notes` says why, under its name. `*_se` are standard errors, None where the expectations are known exactly.

    Attributes:
        x: the point.
        y: the point.
        lengths: of x and of y, trees like them.
        data: what stood for the expectations.
        samples: how many fresh samples that were.
        unvarying: the sources whose fresh samples were all alike, so that their noise is not known.
        notes: by the name of a number, why it is None or what to know about it.
        own_tol: the tolerance to which the point was computed, where that is known; where a call gives none, it counts.
        max_violation: largest [h_i]_+, |e_j|, upper constraint, or distance of an entry to X or Y, in the user's units.
        violation: the largest in units: a row over what it changes across the length of y, an entry over its length.
        worst: which of them.
        reference: y*(x), its multipliers and value, from the reference solver (NumPy, float64).
        lower_gap: G(x, y) - v(x); negative where y is infeasible.
        lower_gap_se: its standard error.
        branch_gap: the part of it that is the difference of two local solutions: that near y, and the best one found.
        gap_range: what G changes across a length of y, which a gap is compared with.
        distance: ||y - y*(x)||.
        distance_se: standard error of y*(x).
        kkt_residual: of y with the given multipliers (else the reference's), in units; 1e-8 is solved.
        kkt_residual_se: what sampling alone puts into it.
        slide: lengths that y can move while G falls, by however little: y is no solution then, whatever its gap.
        steepest: the largest multiplier of the lower level, in units; beyond 1e3 there may be none.
        not_convex: why v(x) is only the best of several solves; None: nothing spoke against convexity.
        hypergradient: gradient of F(x, y*(x)), a tree like x; with upper constraints, of their Lagrangian.
        hypergradient_norm: norm of what X leaves of it: of x - Proj_X(x - t gradient), over a short t.
        hypergradient_norm_se: its standard error.
        hypergradient_scale: size of the two terms that the hyper-gradient is the sum of.
        upper_multipliers: those of the upper constraints, fitted at the point.
        upper_se: standard error of F(x, y).
        estimates: of an answer to a sampled problem that replications have judged: what sampling leaves unknown.
        margin: how clearly every row of the lower level is active or not, as a share of the length of y.
        radius: lengths that x may move until, to first order, the set of active rows changes.
        gains: what F can fall, to first order, when x moves by its length, with rows as weakly active that are closer
            than a width to it: pairs (width, decrease); NaN where it is not known.
        gain_se: standard error of those decreases.
        upper_scale: what F changes over a length of x, which a gain is compared with.
        around: what the descent test saw; None: it was not made.
        rounding: change of F that lower solves cannot tell from none.
        retrained: of a lower level that is trained, not solved: several trainings at x, and on both sides of it.
        stationarity: of SALVF's penalty function Psi at the run's last (z, nu).
        stationarity_se: its standard error.

    Examples:
        >>> import hierax as hx
        >>> from hierax.problems import toy
        >>> certificate = hx.certify(toy(0.0).problem, 1.5, 1.4)
        >>> certificate.verdict(1e-4), round(float(certificate.lower_gap), 2), round(float(certificate.distance), 2)
        ('no', 0.31, 0.1)

    References:
        docs/guides/certificate.md, which has the formula of every number
    """

    x: PyTree
    y: PyTree
    lengths: tuple[PyTree, PyTree]
    data: str
    samples: int = 0
    unvarying: tuple[str, ...] = ()
    notes: dict[str, str] = dataclasses.field(default_factory=dict)
    own_tol: float | None = None
    max_violation: float
    violation: float
    worst: str
    reference: LowerSolution
    lower_gap: float | None = None
    lower_gap_se: float | None = None
    branch_gap: float = 0.0
    gap_range: GapRange = GapRange()
    distance: float | None = None
    distance_se: float | None = None
    kkt_residual: float | None = None
    kkt_residual_se: float | None = None
    slide: float = 0.0
    steepest: float = 0.0
    not_convex: str | None = None
    hypergradient: PyTree = None
    hypergradient_norm: float | None = None
    hypergradient_norm_se: float | None = None
    hypergradient_scale: float = 0.0
    upper_multipliers: PyTree = None
    upper_se: float | None = None
    estimates: Estimates | None = None
    margin: float | None = None
    radius: float | None = None
    gains: tuple[tuple[float, float], ...] = ()
    gain_se: float | None = None
    upper_scale: float = 0.0
    around: Around | None = None
    rounding: float = 0.0
    retrained: Retrained | None = None
    stationarity: float | None = None
    stationarity_se: float | None = None

    def verdict(self, tol: float | None = None, **limits: float | None) -> Verdict:
        """Whether the point solves the problem locally, up to tolerances: "yes", "no", or "unknown".

        `tol` is relative to the problem's own units (None: `own_tol`, or 1e-3). "no": a test fails, and with samples by
        more than two standard errors (of normal noise, 95 %). "unknown": a test could not be decided; `reasons` says
        what would settle it.
        `violation=`, `gap=` and `stationarity=` give a test a tolerance of its own; `math.inf` leaves it out.
        """
        objections = _objections(self, tol, limits)
        if any(objection.sure for objection in objections):
            return "no"
        return "unknown" if objections else "yes"

    def ok(self, tol: float | None = None, **limits: float | None) -> bool:
        """Whether the verdict is "yes"."""
        return self.verdict(tol, **limits) == "yes"

    def reasons(self, tol: float | None = None, **limits: float | None) -> list[str]:
        """Why it is not "yes": one sentence per test that fails, then per test that is not decided."""
        objections = sorted(_objections(self, tol, limits), key=lambda objection: not objection.sure)
        return [objection.text for objection in objections]

    def refuted(self, tol: float | None = None, **limits: float | None) -> bool:
        """Whether the verdict is "no"."""
        return self.verdict(tol, **limits) == "no"

    @property
    def degenerate(self) -> bool:
        """Whether the lower level has no multipliers, or too large ones: its KKT system confirms nothing then."""
        return self.steepest > 1 / NEGLIGIBLE

    def gain(self, tol: float) -> float:
        """What F can fall over a length of x, with kinks as wide as the tolerance; NaN: not known.

        A row that changes sides at a distance counts as if it did so at x, which is wrong by what F changes on the way
        there. Where less than that is seen beyond it, and x alone is fine, this is no objection.
        """
        if not self.gains:
            return math.nan
        (_, here), (width, beyond) = self.gains[0], self._widest(tol)
        most = tol * self.upper_scale
        return min(here, beyond) if here <= most and beyond - width * self.upper_scale <= most else beyond

    def _widest(self, tol: float) -> tuple[float, float]:
        """The gain with all rows that change sides within the tolerance."""
        return [one for one in self.gains if one[0] <= max(KINK * tol, self.gains[0][0])][-1]

    def better(self, tol: float) -> Look | None:
        """The point that the descent test found to be lower, within the radius that the tolerance asks for."""
        allowed = tol * self.upper_scale + SURE * (self.gain_se or 0.0)  # the second term: what samples may tilt F by
        looks = [] if self.around is None else self.around.looks
        near = [look for look in looks if look.step <= max(tol**0.5, STEPS[-1])]
        lower = [look for look in near if -look.change > allowed * max(look.step, STEPS[-1]) + self.rounding]
        return min(lower, key=lambda look: look.change, default=None)

    def as_good(self) -> Look | None:
        """Another x, a tenth of its length away or more, at which the descent test has seen the same F; None: none.

        The same up to what lower solves can tell. Where there is one, x is not unique; where there is none, nothing is
        known of other x, and from samples nothing ever is.
        """
        looks = [] if self.around is None or self.samples else self.around.looks
        level = [look for look in looks if look.step >= STEPS[0] and abs(look.change) <= self.rounding]
        return min(level, key=lambda look: abs(look.change), default=None)

    def __repr__(self) -> str:
        names = ("max_violation", "lower_gap", "distance", "kkt_residual", "hypergradient_norm", "stationarity")
        numbers = [f"{name}={_number(getattr(self, name))}" for name in names]
        tol = self.own_tol or SHOWN_TOLERANCE
        return f"Certificate({', '.join(numbers)}, verdict({tol:g})={self.verdict(tol)!r})"

    def __str__(self) -> str:
        return text_table(f"Certificate at x = {shown(self.x)}, y = {shown(self.y)}", _rows(self))

    def _repr_html_(self) -> str:
        """The table of `print` as notebooks show it."""
        return notebook_table(f"Certificate at x = {shown(self.x)}, y = {shown(self.y)}", _rows(self))


def unjudged(x: PyTree, y: PyTree, why: str) -> Certificate:
    """The certificate of a point about which nothing can be known."""
    nan = math.nan
    nothing: tuple[Any, ...] = (Multipliers(None, None, None), None, nan, nan, INACCURATE, 0)
    return Certificate(
        x=x,
        y=y,
        lengths=(x, y),
        data="no data",
        notes={"data": why},
        max_violation=nan,
        violation=nan,
        worst="what is not known",
        reference=LowerSolution(y, *nothing),
    )


# -- tests -------------------------------------------------------------------------------------------------------------


def _objections(at: Certificate, tol: float | None, limits: dict[str, float | None]) -> list[Objection]:
    """The tests that are not passed."""
    tol = (at.own_tol or DEFAULT_TOLERANCE) if tol is None else tol
    unknown = set(limits) - set(TESTS)
    if unknown:
        raise InputError(f"{sorted(unknown)[0]}: unknown; the tests are violation, gap and stationarity.")
    for name, limit in {"tol": tol, **limits}.items():
        if limit is not None and not (is_number(limit) and limit >= 0):
            raise InputError(f"{name}={limit!r}: needs a number >= 0.")
    if "data" in at.notes:
        return [Objection(at.notes["data"], False)]
    violation, gap, stationarity = (tol if limits.get(name) is None else float(limits[name] or 0.0) for name in TESTS)
    text = f"infeasible: {at.worst} is violated by {at.max_violation:.3g} ({at.violation:.2g} of its size)"
    found = _weighed(at, text, at.violation, None, violation)
    status = int(at.reference.status)
    for source in at.unvarying:  # what happens n p <= 3 times in n samples is missed in one of 20
        text = (
            f"the {at.samples} samples of {source} were all alike, which says nothing of rare ones: what has a "
            f"probability below {3 / at.samples:.2g} can be missing among them. If there is no noise, leave {source}= "
            f"out or give hx.Sampler(..., exact=...); else more samples would tell."
        )
        found.append(Objection(text, False))
    if at.retrained is not None:
        return found + _of_trainings(at, at.retrained, gap, stationarity)
    if status != SOLVED:
        text = f"the lower level has no reference solution at this x: {MEANING[status]}."
        nearly = status == INFEASIBLE and not found  # its feasible set is a point, or nearly empty
        return [*found, Objection(text, status in (INFEASIBLE, UNBOUNDED) and not nearly)]
    if at.estimates is not None:
        return found + _of_replications(at, at.estimates, tol)
    if gap < math.inf:
        found += _below(at, gap)
    if stationarity < math.inf:
        found += _above(at, stationarity)
    if "kink" in at.notes:  # what derivatives say is open; values still refute
        by_slopes = [one for one in found if "KKT residual" in one.text or "not stationary" in one.text]
        found = [one._replace(sure=False) if one in by_slopes else one for one in found]
        found.append(Objection(f"{at.notes['kink']}.", False))
    return found


def _weighed(at: Certificate, text: str, value: float, error: float | None, most: float) -> list[Objection]:
    """The objection that a value exceeds a limit, weighed with its standard error; none where it does not."""
    if not error:
        return [] if value <= most else [Objection(f"{text}.", True)]
    if value + SURE * error <= most:
        return []
    if value - SURE * error > most:
        return [Objection(f"{text}, by more than {SURE:g} standard errors ({error:.2g}).", True)]
    times = (SURE * error / max(abs(most - value), 0.5 * most, ROUNDING * error)) ** 2
    wanted = f"about {at.samples * max(times, 1.0):.2g}" if at.samples else "more"
    against = f"{value:.3g} +- {error:.2g} against {most:.3g} ({text.split(':')[0]} or not)"
    return [Objection(f"not decided: {against}; {wanted} samples would tell with 95 % confidence.", False)]


def _below(at: Certificate, tol: float) -> list[Objection]:
    """Whether y solves the lower level: its KKT residual, its gap, and that of the solution it belongs to."""
    found: list[Objection] = []
    if at.kkt_residual is not None:
        text = f"not optimal below: the KKT residual of y is {at.kkt_residual:.3g}, in units, and exceeds {tol:.3g}"
        found = _weighed(at, text, at.kkt_residual, at.kkt_residual_se, tol)
    if found and at.degenerate:
        text = f"the lower level has no multipliers at this x, or too large ones ({at.steepest:.2g} in units)."
        found = [Objection(text, False)]
    if at.lower_gap is None:
        return found
    own, most = at.lower_gap - at.branch_gap, at.gap_range.within(tol)
    what = "not optimal below" if own > 0 else "better than optimal below, so infeasible"
    text = f"{what}: |G(x, y) - v(x)| = {abs(own):.3g} exceeds {most:.3g}, what G changes over {tol:g} lengths"
    found += _weighed(at, text, abs(own), at.lower_gap_se, most)
    text = f"not optimal below: y can move by {at.slide:.2g} lengths while G falls, although by very little"
    found += _weighed(at, text, at.slide, None, tol)
    text = f"not optimal below: another solution of the lower level is better by {at.branch_gap:.3g}"
    return found + _weighed(at, text, at.branch_gap, at.lower_gap_se, at.gap_range.at_tie(tol))


def _above(at: Certificate, tol: float) -> list[Objection]:
    """Whether x is a minimum above: what a move of x can gain to first order, and the descent test."""
    gain, better = at.gain(tol), at.better(tol)
    if at.around is None or math.isnan(gain):
        why = at.notes.get("gains") or at.notes.get("hypergradient_norm") or _too_wide(at, tol)
        found = [Objection(f"stationarity above is not known: {why}.", False)]
    else:
        share = gain / at.upper_scale if at.upper_scale > 0 else math.inf
        most = f"{gain:.3g} to first order, {share:.2g} of what F changes over it"
        text = f"not stationary above: moving x by its length can lower F by {most}"
        found = _weighed(at, text, gain, at.gain_se, tol * (at.upper_scale + at.rounding))
    if better is not None:
        found.append(_lower(at, better))
    found += [] if at.around is None or at.samples else _on_both_sides(at, at.around)
    if at.around is not None and not at.around.complete:
        found.append(Objection("the time was up before the descent test was complete.", False))
    return found


def _on_both_sides(at: Certificate, around: Around) -> list[Objection]:
    """That F falls on both sides of x along some line, however slowly: x is no minimum where that is seen closer by."""
    for changes in around.both_sides:
        low = [change < -KINK * at.rounding for change in changes]
        if low[0] and max(changes) <= at.rounding:
            text = f"F is lower on both sides of x along a line, by {-changes[0]:.2g} at {STEPS[0]:g} lengths"
            if low[1]:
                return [Objection(f"not a minimum above: {text} and by {-changes[1]:.2g} at {STEPS[1]:g}.", True)]
            return [Objection(f"{text}; closer by the change is below what lower solves can tell.", False)]
    return []


def _lower(at: Certificate, look: Look) -> Objection:
    """That F is lower at a point of the descent test."""
    away = f"x = {_place(at, look)}, {look.step:g} lengths away,"
    where = away if look.step > 0 else "another solution of the lower level"
    return Objection(f"not a minimum above: at {where} F is lower by {-look.change:.3g}.", True)


def _of_replications(at: Certificate, seen: Estimates, tol: float) -> list[Objection]:
    """What replications object to, which solve both levels anew: y is the answer to x up to what `y_se` says."""
    found, better = [], at.better(tol)
    if at.branch_gap > at.gap_range.at_tie(tol) + 2 * SURE * (at.lower_gap_se or 0.0):
        text = f"not optimal below: another solution of the lower level is better by {at.branch_gap:.3g}."
        found.append(Objection(text, True))
    if better is not None and -better.change > seen.gap:
        lower = _lower(at, better)
        sure = -better.change > seen.gap + 2 * SURE * (at.gain_se or 0.0) * better.step  # the lowest of many looks
        found.append(lower if sure else Objection(f"on these samples {lower.text}", False))
    if seen.times(tol) > 1:
        text = f"as good as {seen.samples} samples allow: {seen.said}"
        if seen.violation > tol:
            text += f", upper constraints violated by at most {seen.violation:.2g} of their size"
        found.append(Objection(f"{text}{seen.needed(tol)}.", False))
    return found


def _too_wide(at: Certificate, tol: float) -> str:
    """Why the gain is not known at this tolerance although it is known at a smaller one."""
    if at.around is None or not at.gains:
        return "not computed"
    width, _ = at._widest(tol)
    text = f"too many rows change sides within {width:g} lengths of x to try every side"
    known = any(one < width and not math.isnan(decrease) for one, decrease in at.gains)
    return f"{text}; a tolerance below {width / KINK:.1g} does not ask for them" if known else text


def _of_trainings(at: Certificate, seen: Retrained, gap: float, stationarity: float) -> list[Objection]:
    """What trainings object to. They prove nothing, so one objection always remains."""
    found = []
    if at.lower_gap is not None and at.lower_gap > max(at.gap_range.within(gap), SURE * seen.spread):
        text = f"not optimal below: another training ends with a G that is lower by {at.lower_gap:.3g}."
        found.append(Objection(text, True))
    move = seen.lower(stationarity * at.upper_scale, SURE)
    if move is not None:
        text = f"not a minimum above: with {move.text} F is lower by {-move.change:.3g} +- {move.error:.1g}"
        found.append(Objection(f"{text} (means of {seen.trainings} trainings).", True))
    slope = f"; slope of F: {seen.slope:.2g} +- {seen.slope_error:.1g} per length of x" if seen.moves else ""
    text = f"the lower level is trained, not solved: y is the best of {seen.trainings + 1} trainings{slope}."
    return [*found, Objection(text, False)]


# -- words -------------------------------------------------------------------------------------------------------------


def _rows(at: Certificate) -> list[tuple[str, str, str]]:
    """The table: what was looked at, what came out, and what that means; then the verdict and its reasons."""
    tol = at.own_tol or SHOWN_TOLERANCE
    first, *others = at.reasons(tol) or [""]
    verdict = f"verdict at tol {tol:g}", at.verdict(tol), first
    return [*measured_rows(at, tol), verdict, *(("", "", reason) for reason in others)]


def measured_rows(at: Certificate, tol: float) -> list[tuple[str, str, str]]:
    """What was looked at, what came out, and what that means."""
    gained, notes = at.gain(tol), at.notes
    numbers = {
        "max_violation": ("largest violation", f"of {at.worst}" if at.max_violation else "feasible"),
        "lower_gap": ("lower gap G(x, y) - v(x)", f"v(x) = {float(at.reference.value):.6g}"),
        "distance": ("distance ||y - y*(x)||", f"y*(x) = {shown(at.reference.y)}"),
        "kkt_residual": ("KKT residual of y", "in units"),
        "hypergradient_norm": ("hyper-gradient, projected", "gradient of F(x, y*(x)) over X"),
        "stationarity": ("stationarity of Psi", "the penalty function of the run"),
    }
    rows = []
    for name, (title, text) in numbers.items():
        number, error = getattr(at, name), getattr(at, f"{name}_se", None)
        if name == "stationarity" and number is None:
            continue
        with_error = _number(number) + (f" +- {error:.1g}" if error is not None else "")
        rows.append((title, with_error, notes.get(name, text if number is not None else "")))
    share = "-" if math.isnan(gained) or not at.upper_scale else f"{gained / at.upper_scale:.3g}"
    rows.append(("gain of moving x", share, notes.get("gains", "share of what F changes over a length of x")))
    if at.around is not None:
        margin = f"{at.margin:.2g} lengths of y" if at.margin is not None and at.margin < math.inf else "no row"
        rows.append(("descent test", str(len(at.around.looks)), "lower solves around x and other solutions at x"))
        rows.append(("active rows", _number(at.radius), f"lengths of x until they change; margin {margin}"))
    level, seen = at.as_good(), at.retrained
    if level is not None:
        same = f"F is the same, up to {at.rounding:.1g}, at x = {_place(at, level)}"
        text = f"{same}: x is not unique, others are as good"
        rows.append(("other x", "", text))
    if seen is not None:
        text = f"mean of {seen.trainings} trainings at x, and its standard error"
        rows.append(("F of retrained lower levels", f"{seen.upper:.4g} +- {seen.upper_error:.1g}", text))
        for move in seen.moves:
            rows.append(("change of F", f"{move.change:+.3g} +- {move.error:.1g}", f"with {move.text}"))
    if at.estimates is not None:
        rows += at.estimates.rows()
    if at.not_convex is not None:
        rows.append(("lower level", "", at.not_convex))
    rows.append(("reference solver", "", f"{MEANING[int(at.reference.status)]}; {at.data}"))
    if "lengths" in notes:
        rows.append(("lengths", "", notes["lengths"]))
    return rows


def _place(at: Certificate, look: Look) -> str:
    """Where a look was, in the user's units."""
    return shown(look.point.x * numbers_of(at.lengths[0]))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


class Certificates(Sequence[Certificate]):
    """The certificates of the starts of `solve_many`, each computed when it is asked for; they share their programs.

    Attributes:
        known: those that were asked for already; None for the others.
    """

    def __init__(self, count: int, certificate: Callable[[int], Certificate]) -> None:
        self.known: list[Certificate | None] = [None] * count
        self._certificate = certificate

    def __len__(self) -> int:
        return len(self.known)

    @overload
    def __getitem__(self, i: int) -> Certificate: ...

    @overload
    def __getitem__(self, i: slice) -> list[Certificate]: ...

    def __getitem__(self, i: int | slice) -> Certificate | list[Certificate]:
        """That of start i, or a list of them for a slice."""
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        known = self.known[i]
        if known is None:
            known = self.known[i] = self._certificate(range(len(self))[i])
        return known

    def __repr__(self) -> str:
        return f"<certificates of {len(self)} starts, computed when asked for>"
