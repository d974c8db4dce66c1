"""The numbers of a certificate, group by group: what `hierax._judge.certifying` measures, not what it means."""

import dataclasses
import math

from jaxtyping import PyTree

from hierax._judge.below import GapRange
from hierax._judge.descent import Around
from hierax._judge.trained import Retrained
from hierax._math.lower_level import LowerSolution

SURE = 2.0  # standard errors by which a sampled number must miss or meet a tolerance to be called so
KINK = 3.0  # tolerances within which a kink of y*(x) counts as being at the point


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Feasibility:
    """How much the point violates.

    Attributes:
        max_violation: largest [h_i]_+, |e_j|, upper constraint, or distance of an entry to X or Y, in the user's units.
        violation: the largest in units: a row over what it changes across the length of y, an entry over its length.
        worst: which of them.
    """

    max_violation: float
    violation: float
    worst: str


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Below:
    """How far y is from y*(x).

    Attributes:
        reference: y*(x), its multipliers and value, from the reference solver (NumPy, float64).
        lower_gap: G(x, y) - v(x); negative where y is infeasible.
        lower_gap_se: its standard error.
        branch_gap: the part of it that is the difference of two local solutions: that near y, and the best one found.
        gap_range: what G changes across a length of y, which a gap is compared with.
        distance: ||y - y*(x)||.
        distance_se: standard error of y*(x).
        kkt_residual: of y with the given multipliers (else the reference's), in units; 1e-8 is solved.
        kkt_residual_se: what sampling alone puts into it.
        steepest: the largest multiplier of the lower level, in units; beyond 1e3 there may be none.
        not_convex: why v(x) is only the best of several solves; None: nothing spoke against convexity.
    """

    reference: LowerSolution
    lower_gap: float | None = None
    lower_gap_se: float | None = None
    branch_gap: float = 0.0
    gap_range: GapRange = GapRange(0.0, 0.0, 0.0, 0.0)
    distance: float | None = None
    distance_se: float | None = None
    kkt_residual: float | None = None
    kkt_residual_se: float | None = None
    steepest: float = 0.0
    not_convex: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Slope:
    """The gradient of F(x, y*(x)), where it has one.

    Attributes:
        hypergradient: gradient of F(x, y*(x)), a tree like x; with upper constraints, of their Lagrangian.
        hypergradient_norm: norm of what X leaves of it: of x - Proj_X(x - t gradient), over a short t.
        hypergradient_norm_se: its standard error.
        hypergradient_scale: size of the two terms that the hyper-gradient is the sum of.
        upper_multipliers: those of the upper constraints, fitted at the point.
        upper_se: standard error of F(x, y).
        margin: how clearly every row of the lower level is active or not, as a share of the length of y.
        radius: lengths that x may move until, to first order, the set of active rows changes.
    """

    hypergradient: PyTree = None
    hypergradient_norm: float | None = None
    hypergradient_norm_se: float | None = None
    hypergradient_scale: float = 0.0
    upper_multipliers: PyTree = None
    upper_se: float | None = None
    margin: float | None = None
    radius: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Above:
    """Whether x is a local minimiser of F(x, y*(x)).

    Attributes:
        gains: what F can fall, to first order, when x moves by its length, with rows as weakly active that are closer
            than a width to it: pairs (width, decrease); NaN where it is not known.
        gain_se: standard error of those decreases.
        upper_scale: what F changes over a length of x, which a gain is compared with.
        around: what the descent test saw; None: it was not made.
        rounding: change of F that lower solves cannot tell from none.
    """

    gains: tuple[tuple[float, float], ...] = ()
    gain_se: float | None = None
    upper_scale: float = 0.0
    around: Around | None = None
    rounding: float = 0.0

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


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Training:
    """What is known where the lower level is trained rather than solved (a network).

    Attributes:
        retrained: several trainings at x, and on both sides of it; None: the lower level was solved.
    """

    retrained: Retrained | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class OfPsi:
    """How far the end of a run is from a stationary point of SALVF's penalty function.

    Attributes:
        stationarity: of Psi at the run's last (z, nu).
        stationarity_se: its standard error.
    """

    stationarity: float | None = None
    stationarity_se: float | None = None
