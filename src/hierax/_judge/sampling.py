"""What sampling leaves unknown of an answer: standard errors of F, x and y, and how far F may be above the best.

An answer x was computed from N samples. R replications, each on m fresh samples, compare it with their own answers:

    phi_j(x) = F_j(x, y_j(x)),     x_j = argmin phi_j near x,     x~ = mean of the x_j
    phi(x)            mean of phi_j(x); y_j(x) is noisy, which biases it by b/m: R m samples at once have b/(R m)
    se(x)             standard deviation of the x_j, times sqrt(m/N)
    phi(x) - phi*     = [phi(x) - phi(x~)] + [phi(x~) - phi*]:   paired differences, plus the loss of an average of
                      answers: phi_j(x~) - phi_j(x_j) has the mean tr(H^-1 V)/(2m), and x~ loses 1/R of that

The last line is the idea of Mak, Morton and Wood (1999), phi_j(x) - phi_j(x_j) as a bound of the gap, without its bias
of 1/m: where x is no minimum, the first bracket shows it. Upper constraints count at their prices (multipliers).
"""

import math
from typing import NamedTuple

import numpy as np

from hierax._base.constants import MANY
from hierax._base.files import Json
from hierax._base.imports import lazy
from hierax._base.text import as_json

special = lazy("scipy.special")

CHANCE = 0.05
"""Chance that a stated limit is exceeded: limits of several looks share it."""

UNSEEN = -math.log(CHANCE)
"""Events that are expected among some samples, of which one set of samples in twenty has none: about 3."""


class Replication(NamedTuple):
    """An answer judged on samples of its own, and the answer to these.

    Attributes:
        upper: F at the judged x, with the lower level solved on these samples.
        priced: the same with the upper constraints at their prices.
        above: the upper constraints there, in units.
        best: `priced` at the replication's own answer, and
        x: this answer,
        y: with its y; both as vectors.
    """

    upper: float
    priced: float
    above: np.ndarray
    best: float
    x: np.ndarray
    y: np.ndarray


class Estimates(NamedTuple):
    """What samples say of an answer; where y_j(x) is noisy, F is meant with the lower level's true answer to x.

    Without replications, on the large route, F at the answer, its standard error and `fresh` are known; the others are
    NaN.

    Attributes:
        upper: F at x, corrected for its bias.
        upper_se: standard error of it.
        bias: what the noise of the lower level's answer added to F on all of the fresh samples.
        x_se: standard errors of x, entry by entry in the order of its leaves; NaN where several replications end at a
            bound of X that x is not at, which cuts off how they spread.
        y_se: of y, likewise; all NaN where an entry of x has none.
        loss: what F at x is above the best nearby, on average over samples like those that x was computed from.
        gap: F at x is above the best nearby by at most this, with 95 % confidence.
        scale: what F changes over a length of x, which the gap is compared with.
        violation: the upper constraints are violated by at most this at x, in units, with 95 % confidence each.
        slack: part of the gap: what room that the upper constraints may have left at x is worth.
        samples: from which x was computed.
        fresh: samples of all replications. An event whose probability is below 3/fresh may be missing among them.
        tail: index of the tail of F's values at single samples, an upper limit of 95 %; NaN where they show none, or
            are few. Below 2 they look as if they had no finite variance: then `upper_se` is infinite.
        rare: how many of the samples that x was computed from had what makes most of the noise; three or fewer may as
            well be none. NaN where nobody looked.
    """

    upper: float
    upper_se: float
    bias: float
    x_se: np.ndarray
    y_se: np.ndarray
    loss: float
    gap: float
    scale: float
    violation: float
    slack: float
    samples: int
    fresh: int
    tail: float
    rare: float = float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """F at x lies between these with 95 % confidence; without a standard error anywhere."""
        half = float(special.stdtrit(REPLICATIONS - 1, 1 - CHANCE / 2)) * self.upper_se
        return self.upper - half, self.upper + half

    def to_dict(self) -> Json:
        """The numbers, with the interval of F, for JSON."""
        return as_json({**self._asdict(), "interval": self.interval})

    def rows(self) -> list[tuple[str, str, str]]:
        """What was looked at, what came out, and what that means."""
        low, high = self.interval
        unseen = f"what {UNSEEN / self.fresh:.1g} of all samples have, or fewer, may be missing"
        value = f"{self.upper:.6g} +- {self.upper_se:.1g}", f"between {low:.6g} and {high:.6g} (95 %)"
        above = f"at most {self.gap:.2g}", f"above the best nearby (95 %), on {self.fresh} samples: {unseen}"
        return [("F out of sample", *value), ("gap of F", *above)]

    def times(self, tol: float) -> float:
        """How many times as many samples a tolerance asks for: violations and slack fall like 1/sqrt(N), else 1/N."""
        most = max(tol * self.scale, np.finfo(float).tiny)
        by_noise = max((self.gap - self.slack) / most, (self.slack / most) ** 2, (self.violation / tol) ** 2)
        return float(np.fmax(by_noise, UNSEEN / max(self.rare, np.finfo(float).tiny)))

    def needed(self, tol: float) -> str:
        """What a tolerance asks for beyond these samples, in words; nothing where it is kept."""
        samples = self.samples * self.times(tol)
        kept = f"; about {samples:.2g} samples would tell whether {tol * self.scale:.2g} is kept"
        return kept if samples > self.samples else ""

    @property
    def said(self) -> str:
        """F and the gap in words."""
        text = f"on {self.fresh} others F = {self.value_said}, at most {self.gap:.2g} above the best nearby (95 %)"
        if not self.rare <= UNSEEN:
            return text
        one = self.samples / max(self.rare, np.finfo(float).tiny)
        return f"{text}, but what makes most of the noise happens in one of {one:.2g} samples, and they may have none"

    @property
    def value_said(self) -> str:
        """F in words."""
        if np.isfinite(self.upper_se):
            return f"{self.upper:.6g} +- {self.upper_se:.2g} (standard error)"
        why = f"tail index below {self.tail:.2g}: F has no finite variance, as far as single samples show"
        return f"{self.upper:.6g}, without a standard error ({why})"


REPLICATIONS = 16
"""How many; Student's t with 15 degrees of freedom is within 9 % of the normal limits."""


def standard_errors(found: list[Replication], share: float) -> tuple[np.ndarray, np.ndarray]:
    """Of x and y that were computed from 1/`share` times the samples of a replication."""
    of_x, of_y = (np.std([getattr(one, name) for one in found], axis=0, ddof=1) for name in ("x", "y"))
    return of_x * share**0.5, of_y * share**0.5


def value_of(found: list[Replication], pooled: float, tail: float) -> tuple[float, float, float]:
    """F at x with its standard error, and its bias on all samples; `pooled`: F there on all of them at once.

    Examples:
        >>> nothing = np.zeros(1)
        >>> found = [
        ...     Replication(1.0 + 0.1, 0.0, nothing, 0.0, nothing, nothing)
        ... ] * 16  # a bias of 0.1 on a 16th of the samples
        >>> [round(float(number), 6) for number in value_of(found, 1.0 + 0.1 / 16, np.nan)]
        [1.0, 0.0, 0.00625]
    """
    upper, count = np.array([one.upper for one in found]), len(found)
    value = (count * pooled - upper.mean()) / (count - 1)
    error = np.inf if tail < 2 else np.std(upper, ddof=1) / count**0.5
    return value, float(error), pooled - value


def tail_of(values: np.ndarray) -> float:
    """The index of the tail of these values, P(|value| > t) ~ t^(-index): an upper limit of 95 %; NaN: there is none.

    By the sqrt(n) values that are furthest from the median (Hill 1975), two standard errors above the estimate. Of few
    samples these are no tail: 63 % of sets of 64 values of a gamma distribution have an index below 2, of 1,024 3 %.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> [bool(tail_of(rng.standard_t(df, 10_000) ** 2) < 2) for df in (3, 30)]  # of squares
        [True, False]
    """
    most = int(len(values) ** 0.5)
    away = np.sort(np.abs(values - np.median(values)))[-most - 1 :]
    if len(values) < MANY or not (0 < away[0] < away[-1] < np.inf):
        return float("nan")
    return float((1 + 2 / most**0.5) / np.mean(np.log(away[1:] / away[0])))


def seldom_differ(found: list[Replication], rounding: float) -> str | None:
    """Why replications tell no standard error: F is the same on most of them, as with events that they seldom see."""
    upper, count = np.array([one.upper for one in found]), len(found)
    alike = int(np.sum(np.abs(upper - np.median(upper)) <= rounding * (1 + np.abs(upper))))
    if 2 * alike <= count:
        return None
    return f"on {alike} of {count} replications F is the same: what they seldom see leaves no standard error"


def room_of(found: list[Replication], prices: np.ndarray, look: int) -> tuple[float, float]:
    """By how much upper constraints may be violated, and what the room is worth that they may have: upper limits."""
    above, count = np.array([one.above for one in found]), len(found)
    half = _t(count, look) * above.std(axis=0, ddof=1) / count**0.5
    room = np.maximum(half - above.mean(axis=0), 0.0)
    return float(np.max(above.mean(axis=0) + half, initial=0.0)), float(prices @ room)


def _t(count: int, look: int) -> float:
    """Student's one-sided limit at the k-th look: chances of 5 % over k (k + 1), which add up to 5 %."""
    return float(special.stdtrit(count - 1, 1 - CHANCE / (look * (look + 1))))


def gap_of(found: list[Replication], middle: list[float], share: float, look: int) -> tuple[float, float]:
    """The expected loss of an answer, and what it is above the best at most.

    Args:
        found: the replications.
        middle: `priced` at the mean of their answers, on the samples of each.
        share: samples of a replication over those of the answer.
        look: how many times limits were looked at, this one included.
    """
    count = len(found)
    t = _t(count, look)
    off = np.array([one.priced for one in found]) - middle
    own = np.maximum(np.array(middle) - [one.best for one in found], 0.0) * count / (count - 1)
    loss = float(np.mean(own)) * share
    limit = np.mean(off) + t * np.std(off, ddof=1) / count**0.5
    return loss, float(max(limit, 0.0) + (np.mean(own) + t * np.std(own, ddof=1) * (1 + 1 / count) ** 0.5) * share)
