"""A certificate: what the numbers that were measured at a point say of it, as a verdict, in words and as a table."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, overload

from jaxtyping import PyTree

from hierax._base.errors import InputError
from hierax._base.settings import is_number
from hierax._base.text import notebook_table, numbers_of, shown, text_table
from hierax._judge.descent import STEPS, Look, refuting
from hierax._judge.measured import KINK, SURE, Above, Below, Feasibility, OfPsi, Slope, Training
from hierax._judge.trained import Retrained
from hierax._math.lower_level import INFEASIBLE, MEANING, SOLVED, UNBOUNDED

UNSEEN = 3.0  # expected number of events below which none is seen in more than 5 % of all samples: exp(-3)
STEEP = 1e3  # multipliers beyond this, in units, stand for none
TESTS = ("violation", "gap", "stationarity")


Verdict = Literal["yes", "no", "unknown"]

SHOWN_TOLERANCE = 1e-4  # of the verdict that `print` shows: that of `Auto`
DEFAULT_TOLERANCE = 1e-3  # of the verdict that is asked for without one


class Objection(NamedTuple):
    """A test that is not passed, in words; `sure`: it fails, else it is not decided."""

    text: str
    sure: bool


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Certificate(Feasibility, Below, Slope, Above, Training, OfPsi):
    """How far a point (x, y) is from solving a bilevel problem. `print` gives a table, `verdict(tol)` the answer.

        lower_gap = G(x, y) - v(x),   distance = ||y - y*(x)||,   hypergradient = grad phi(x),   phi(x) = F(x, y*(x))
        yes where, in units,   violation <= tol,   kkt_residual <= tol,   |lower_gap| small enough,
                               gain <= tol upper_scale,   and no point of the descent test is lower

    Everything is judged in units that follow from the problem and the point (`lengths`): multiplying F, G or a
    constraint by a number, or measuring x or y differently, changes nothing. A number is None where it cannot be had;
    `notes` says why, under its name. `*_se` are standard errors, None where the expectations are known exactly.

    Feasibility: `violation`, in the user's units `max_violation`, and `worst`. Below: `reference`, `lower_gap`,
    `distance`, `kkt_residual`. Above: `gain(tol)` against `upper_scale`, the descent test `around`, the gradient
    `hypergradient` with its projected `hypergradient_norm`, `upper_multipliers`; `margin` and `radius` say how far the
    answer stays valid. Of a lower level that is trained, not solved: `retrained`. Of a run of SALVF: `stationarity`.

    Attributes:
        x: the point.
        y: the point.
        lengths: of x and of y, trees like them.
        data: what stood for the expectations.
        samples: how many fresh samples that were.
        unvarying: the sources whose fresh samples were all alike, so that their noise is not known.
        notes: by the name of a number, why it is None or what to know about it.
        own_tol: the tolerance to which the point was computed, where that is known; where a call gives none, it counts.

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

    def verdict(self, tol: float | None = None, **limits: float | None) -> Verdict:
        """Whether the point solves the problem locally, up to tolerances: "yes", "no", or "unknown".

        `tol` is relative to the problem's own units (None: `own_tol`, or 1e-3). "no": a test fails, and with samples by
        more than two standard errors (of normal noise, 95 %). "unknown": a test could not be decided; `reasons` says
        what would settle it.
        `violation=`, `gap=` and `stationarity=` give a test a tolerance of its own; `math.inf` leaves it out.
        """
        objections = self._objections(tol, **limits)
        if any(objection.sure for objection in objections):
            return "no"
        return "unknown" if objections else "yes"

    def ok(self, tol: float | None = None, **limits: float | None) -> bool:
        """Whether the verdict is "yes"."""
        return self.verdict(tol, **limits) == "yes"

    def reasons(self, tol: float | None = None, **limits: float | None) -> list[str]:
        """Why it is not "yes": one sentence per test that fails, then per test that is not decided."""
        objections = sorted(self._objections(tol, **limits), key=lambda objection: not objection.sure)
        return [objection.text for objection in objections]

    def refuted(self, tol: float | None = None, **limits: float | None) -> bool:
        """Whether the verdict is "no"."""
        return self.verdict(tol, **limits) == "no"

    @property
    def degenerate(self) -> bool:
        """Whether the lower level has no multipliers, or too large ones: its KKT system confirms nothing then."""
        return self.steepest > STEEP

    def better(self, tol: float) -> Look | None:
        """The point that the descent test found to be lower, within the radius that the tolerance asks for."""
        if self.around is None:
            return None
        allowed = tol * self.upper_scale + SURE * (self.gain_se or 0.0)  # samples tilt F by so much
        return refuting(self.around, allowed, max(tol**0.5, 1e-3), self.rounding)

    def as_good(self) -> Look | None:
        """Another x, a tenth of its length away or more, at which the descent test has seen the same F; None: none.

        The same up to what lower solves can tell. Where there is one, x is not unique; where there is none, nothing is
        known of other x, and from samples nothing ever is.
        """
        looks = [] if self.around is None or self.samples else self.around.looks
        level = [look for look in looks if look.step >= STEPS[0] and abs(look.change) <= self.rounding]
        return min(level, key=lambda look: abs(look.change), default=None)

    def _objections(self, tol: float | None, **limits: float | None) -> list[Objection]:
        """The tests that are not passed."""
        tol = (self.own_tol or DEFAULT_TOLERANCE) if tol is None else tol
        unknown = set(limits) - {"violation", "gap", "stationarity"}
        if unknown:
            raise InputError(f"{sorted(unknown)[0]}: unknown; the tests are violation, gap and stationarity.")
        for name, limit in {"tol": tol, **limits}.items():
            if limit is not None and not (is_number(limit) and limit >= 0):
                raise InputError(f"{name}={limit!r}: needs a number >= 0.")
        own = {name: tol if limits.get(name) is None else float(limits[name] or 0.0) for name in TESTS}
        found = []
        if not self.violation <= own["violation"]:
            text = (
                f"infeasible: {self.worst} is violated by {self.max_violation:.3g} ({self.violation:.2g} of its size)."
            )
            found.append(Objection(text, True))
        found += [self._alike(source) for source in self.unvarying]
        status = int(self.reference.status)
        if self.retrained is not None:
            return found + self._trained(self.retrained, own["gap"], own["stationarity"])
        if status != SOLVED:
            text = f"the lower level has no reference solution at this x: {MEANING[status]}."
            nearly = status == INFEASIBLE and not found  # its feasible set is a point, or nearly empty
            return [*found, Objection(text, status in (INFEASIBLE, UNBOUNDED) and not nearly)]
        found += self._below(own["gap"])
        if own["stationarity"] < math.inf:
            found += self._above(own["stationarity"])
        return found

    def _alike(self, source: str) -> Objection:
        """Samples without any noise prove nothing: what happens n p <= 3 times in n samples is missed in one of 20."""
        least = UNSEEN / self.samples
        text = (
            f"the {self.samples} samples of {source} were all alike, which says nothing of rare ones: what has a "
            f"probability below {least:.2g} can be missing among them. If there is no noise, leave {source}= out or "
            f"give hx.Sampler(..., exact=...); else more samples would tell."
        )
        return Objection(text, False)

    def _below(self, tol: float) -> list[Objection]:
        found = []
        if self.kkt_residual is not None and tol < math.inf:
            text = (
                f"not optimal below: the KKT residual of y is {self.kkt_residual:.3g}, in units, and exceeds {tol:.3g}"
            )
            found = self._weighed(text, self.kkt_residual, self.kkt_residual_se, tol)
        if found and self.degenerate:
            none = f"the lower level has no multipliers at this x, or too large ones ({self.steepest:.2g} in units)."
            found = [Objection(none, False)]
        if self.lower_gap is None or tol == math.inf:
            return found
        own, most = self.lower_gap - self.branch_gap, self.gap_range.within(tol)
        what = "not optimal below" if own > 0 else "better than optimal below, so infeasible"
        text = f"{what}: |G(x, y) - v(x)| = {abs(own):.3g} exceeds {most:.3g}, what G changes over {tol:g} lengths"
        found += self._weighed(text, abs(own), self.lower_gap_se, most)
        text = f"not optimal below: another solution of the lower level is better by {self.branch_gap:.3g}"
        return found + self._weighed(text, self.branch_gap, self.lower_gap_se, self.gap_range.at_tie(tol))

    def _trained(self, seen: Retrained, gap: float, stationarity: float) -> list[Objection]:
        """What trainings object to. They prove nothing, so one objection always remains."""
        found = []
        most = max(self.gap_range.within(gap), SURE * seen.spread)
        if self.lower_gap is not None and self.lower_gap > most:
            text = f"not optimal below: another training ends with a G that is lower by {self.lower_gap:.3g}."
            found.append(Objection(text, True))
        move = seen.lower(stationarity * self.upper_scale, SURE)
        if move is not None:
            text = f"not a minimum above: with {move.text} F is lower by {-move.change:.3g} +- {move.error:.1g}"
            found.append(Objection(f"{text} (means of {seen.trainings} trainings).", True))
        slope = f"; slope of F: {seen.slope:.2g} +- {seen.slope_error:.1g} per length of x" if seen.moves else ""
        text = f"the lower level is trained, not solved: y is the best of {seen.trainings + 1} trainings{slope}."
        return [*found, Objection(text, False)]

    def _above(self, tol: float) -> list[Objection]:
        found, gain = [], self.gain(tol)
        if self.around is None or math.isnan(gain):
            why = self.notes.get("gains") or self.notes.get("hypergradient_norm") or self._too_wide(tol)
            found.append(Objection(f"stationarity above is not known: {why}.", False))
        else:
            most = tol * self.upper_scale + self.rounding * tol
            share = gain / self.upper_scale if self.upper_scale > 0 else math.inf
            text = (
                f"not stationary above: moving x by its length can lower F by {gain:.3g} to first order, "
                f"{share:.2g} of what F changes over it"
            )
            found += self._weighed(text, gain, self.gain_se, most)
        better = self.better(tol)
        if better is not None:
            where = "another solution of the lower level"
            if better.step > 0:
                there = better.point.x * numbers_of(self.lengths[0])
                where = f"x = {shown(there)}, {better.step:g} lengths away,"
            found.append(Objection(f"not a minimum above: at {where} F is lower by {-better.change:.3g}.", True))
        if self.around is not None and not self.around.complete:
            found.append(Objection("the time was up before the descent test was complete.", False))
        return found

    def _too_wide(self, tol: float) -> str:
        """Why the gain is not known at this tolerance although it is known at a smaller one."""
        if self.around is None or not self.gains:
            return "not computed"
        width, _ = self._widest(tol)
        text = f"too many rows change sides within {width:g} lengths of x to try every side"
        known = [one for one, decrease in self.gains if one < width and not math.isnan(decrease)]
        return f"{text}; a tolerance below {width / KINK:.1g} does not ask for them" if known else text

    def _weighed(self, text: str, value: float, error: float | None, most: float) -> list[Objection]:
        """The objection that a value exceeds a limit, weighed with its standard error."""
        if error is None or error == 0.0:
            return [] if value <= most else [Objection(f"{text}.", True)]
        if value + SURE * error <= most:
            return []
        if value - SURE * error > most:
            return [Objection(f"{text}, by more than {SURE:g} standard errors ({error:.2g}).", True)]
        times = (SURE * error / max(abs(most - value), 0.5 * most, 1e-300)) ** 2
        wanted = f"about {self.samples * max(times, 1.0):.2g}" if self.samples else "more"
        return [
            Objection(
                f"not decided: {value:.3g} +- {error:.2g} against {most:.3g} ({text.split(':')[0]} or not); {wanted} "
                "samples would tell with 95 % confidence.",
                False,
            )
        ]

    def __repr__(self) -> str:
        names = ("max_violation", "lower_gap", "distance", "kkt_residual", "hypergradient_norm", "stationarity")
        numbers = [f"{name}={_number(getattr(self, name))}" for name in names]
        tol = self.own_tol or SHOWN_TOLERANCE
        return f"Certificate({', '.join(numbers)}, verdict({tol:g})={self.verdict(tol)!r})"

    def __str__(self) -> str:
        return text_table(f"Certificate at x = {shown(self.x)}, y = {shown(self.y)}", self._rows())

    def _repr_html_(self) -> str:
        """The table of `print` as notebooks show it."""
        return notebook_table(f"Certificate at x = {shown(self.x)}, y = {shown(self.y)}", self._rows())

    def _rows(self) -> list[tuple[str, str, str]]:
        value, tol = float(self.reference.value), self.own_tol or SHOWN_TOLERANCE
        gained = self.gain(tol)
        share = "-" if math.isnan(gained) or not self.upper_scale else f"{gained / self.upper_scale:.3g}"
        margin = f"{self.margin:.2g} lengths of y" if self.margin is not None and self.margin < math.inf else "no row"
        meaning = {
            "max_violation": ("largest violation", f"of {self.worst}" if self.max_violation > 0 else "feasible"),
            "lower_gap": ("lower gap G(x, y) - v(x)", f"v(x) = {value:.6g}"),
            "distance": ("distance ||y - y*(x)||", f"y*(x) = {shown(self.reference.y)}"),
            "kkt_residual": ("KKT residual of y", "in units"),
            "hypergradient_norm": ("hyper-gradient, projected", "gradient of F(x, y*(x)) over X"),
            "stationarity": ("stationarity of Psi", "the penalty function of the run"),
        }
        rows = []
        for name, (title, text) in meaning.items():
            number, error = getattr(self, name), getattr(self, f"{name}_se", None)
            if name == "stationarity" and number is None:
                continue
            shown_number = _number(number) + (f" +- {error:.1g}" if error is not None else "")
            rows.append((title, shown_number, self.notes.get(name, text if number is not None else "")))
        rows.append(("gain of moving x", share, self.notes.get("gains", "share of what F changes over a length of x")))
        if self.around is not None:
            rows.append(("descent test", str(len(self.around.looks)), "lower solves around x and other solutions at x"))
            rows.append(("active rows", _number(self.radius), f"lengths of x until they change; margin {margin}"))
        level = self.as_good()
        if level is not None:
            there = shown(level.point.x * numbers_of(self.lengths[0]))
            text = f"F is the same, up to {self.rounding:.1g}, at x = {there}: x is not unique, others are as good"
            rows.append(("other x", "", text))
        if self.retrained is not None:
            rows += _training_rows(self.retrained)
        if self.not_convex is not None:
            rows.append(("lower level", "", self.not_convex))
        rows.append(("reference solver", "", f"{MEANING[int(self.reference.status)]}; {self.data}"))
        if "lengths" in self.notes:
            rows.append(("lengths", "", self.notes["lengths"]))
        reasons = self.reasons(tol)
        rows.append((f"verdict at tol {tol:g}", self.verdict(tol), reasons[0] if reasons else ""))
        return rows + [("", "", reason) for reason in reasons[1:]]


def _training_rows(seen: Retrained) -> list[tuple[str, str, str]]:
    mean = f"{seen.upper:.4g} +- {seen.upper_error:.1g}"
    rows = [("F of retrained lower levels", mean, f"mean of {seen.trainings} trainings at x, and its standard error")]
    for move in seen.moves:
        rows.append(("change of F", f"{move.change:+.3g} +- {move.error:.1g}", f"with {move.text}"))
    return rows


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


class Certificates(Sequence[Certificate]):
    """The certificates of the starts of `solve_many`, each computed when it is asked for; they share their programs."""

    def __init__(self, count: int, certificate: Callable[[int], Certificate]) -> None:
        self._known: list[Certificate | None] = [None] * count
        self._certificate = certificate

    def __len__(self) -> int:
        return len(self._known)

    @overload
    def __getitem__(self, i: int) -> Certificate: ...

    @overload
    def __getitem__(self, i: slice) -> list[Certificate]: ...

    def __getitem__(self, i: int | slice) -> Certificate | list[Certificate]:
        """That of start i, or a list of them for a slice."""
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        at = range(len(self))[i]
        known = self._known[at]
        if known is None:
            known = self._known[at] = self._certificate(at)
        return known

    @property
    def known(self) -> list[Certificate | None]:
        """Those that were asked for already; None for the others."""
        return list(self._known)

    def __repr__(self) -> str:
        return f"<certificates of {len(self)} starts, computed when asked for>"
