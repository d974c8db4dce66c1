"""Lengths of x and y at a point, from the problem alone, and the units that follow from them.

A length is how far an entry has to move before something changes that the problem can see. Lengths come from bounds,
from the point itself, or from other constraints and derivatives; where there is nothing of the kind (a free entry at
zero in a problem without any length) an entry is taken to be of order one, and that is said.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hierax._base.constants import FINE, MANY, NEGLIGIBLE
from hierax._engine.float64_problem import FEW, ROUNDING
from hierax._engine.programs import Programs, Scale, Units, Values, unraveled
from hierax._lower.exact import RUN_OFF
from hierax._lower.linear import Pair
from hierax._problem.problem import Multipliers

WIDE = float(np.sqrt(RUN_OFF))
"""A box this many times wider than its entry is large is not its length; or its square, no box."""
INCONSISTENT, BISECTIONS = 30.0, 8  # lengths this many times too long are looked for again, in this many steps
LOOKED_AT = 20  # long lengths of y over which G is looked at: each takes a few gradients


class Lengths(NamedTuple):
    """Lengths of the entries of a vector, and which of them are only assumed."""

    values: np.ndarray
    assumed: np.ndarray


def lengths_of(v: np.ndarray, bounds: Pair, intrinsic: np.ndarray, groups: np.ndarray, most: np.ndarray) -> Lengths:
    """The lengths of a vector's entries.

    Half the width of its box, or `most` (infinite: unknown), but at most WIDE times the size of the entry (or what
    other functions say of it, `intrinsic`; zero: nothing). Where the box is more than WIDE^2 times as wide it stands
    for none, and as without bounds it is that size; but an entry without a size, at zero up to 1 / WIDE^2, has that of
    its box. Entries of one group share the largest that is not only assumed.
    """
    half = 0.5 * (bounds[1] - bounds[0])
    half = np.where(np.isfinite(half) & (half > 0), np.minimum(half, most), most)
    own = np.maximum(np.abs(v), intrinsic)
    nothing = own < 1 / RUN_OFF
    by_both, by_box = half < RUN_OFF * own, nothing & (half < RUN_OFF**2)
    assumed = ~by_both & ~by_box & nothing
    found = np.where(by_both, np.minimum(half, WIDE * own), np.where(by_box, half, own))
    shared = np.zeros(groups.size)
    np.maximum.at(shared, groups, np.where(assumed, 0.0, found))
    nothing = shared[groups] == 0
    return Lengths(np.where(nothing, 1.0, shared[groups]), nothing)


def intrinsic_lengths(values: np.ndarray, slopes: np.ndarray, v: np.ndarray | None = None) -> np.ndarray:
    """For every entry the median distance |value| / |slope| to where a function that depends on it would be zero.

    A function of k entries is moved to zero by all of them, each sqrt(k) times less than it would have to move alone.
    Functions that are zero already, up to what single precision leaves of their terms at `v`, say nothing; zero where
    none says anything.
    """
    terms = 0.0 if v is None else np.abs(np.nan_to_num(slopes, posinf=0.0, neginf=0.0)) @ np.abs(v)
    values = np.where(np.abs(values) > FINE * terms, values, 0.0)
    shared = np.sqrt(np.count_nonzero(slopes, axis=1).clip(min=1))[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = np.abs(values)[:, None] / (np.abs(slopes) * shared)
    told = np.isfinite(distances) & (distances > 0)
    medians = np.ma.median(np.ma.array(distances, mask=~told), axis=0)  # type: ignore[no-untyped-call]
    return medians.filled(0.0)


def lengths_at(programs: Programs, x: np.ndarray, y: np.ndarray, most: Pair | None = None) -> tuple[Lengths, Lengths]:
    """Lengths of x and y at a point in the user's units.

    `most`: upper bounds of those of x and y where the sets give none; None: no such bounds. Where matrices do not fit,
    by bounds and sizes alone: entries of y share their typical size.
    """
    seen = None if programs.large else _Seen(programs, x, y)
    of_x = np.zeros(x.size) if seen is None else seen.lengths_of_x()
    most_x, most_y = most or (np.full(x.size, np.inf), np.full(y.size, np.inf))
    lengths_x = lengths_of(x, programs.x_limits, of_x, programs.x_groups, most_x)
    if seen is None:
        of_y = np.full(y.size, np.sqrt(np.mean(y**2)) if y.size else 0.0)
    else:
        of_y, between = seen.lengths_of_y(np.where(lengths_x.assumed, 0.0, lengths_x.values))
        most_y = np.minimum(most_y, between)
    return lengths_x, lengths_of(y, programs.y_limits, of_y, programs.y_groups, most_y)


class _Seen:
    """What derivatives at a point, and near it, say of lengths."""

    def __init__(self, programs: Programs, x: np.ndarray, y: np.ndarray) -> None:
        self._programs, self._x, self._y = programs, x, y
        self._values, self._slopes = programs.at(x, y)

    def _intrinsic(self, slopes: Values) -> np.ndarray:
        values, layout = self._values, self._programs.layout
        own, above = ~layout.face, slice(layout.own_above)  # bounds have widths, which say more
        here = np.concatenate([values.above[above], values.rows[own], values.stationarity])
        there = np.concatenate([slopes.above[above], slopes.rows[own], _own_curvature(slopes.stationarity)])
        return intrinsic_lengths(here, there, np.concatenate([self._x, self._y]))

    def lengths_of_x(self) -> np.ndarray:
        """What other functions say of x."""
        return self._lasting(lambda slopes: self._intrinsic(slopes)[: self._x.size], of_x=True)

    def lengths_of_y(self, of_x: np.ndarray) -> Pair:
        """Lengths of y, and upper bounds of them, where x moves by its lengths."""
        nx = self._x.size

        def by(slopes: Values) -> np.ndarray:
            """Also how far y moves, roughly, when x moves by its lengths: the median over what depends on both."""
            told = np.concatenate([slopes.rows, _own_curvature(slopes.stationarity)])
            answers = intrinsic_lengths(np.linalg.norm(told[:, :nx] * of_x, axis=1), told[:, nx:])
            return np.maximum(self._intrinsic(slopes)[nx:], answers)

        of_y = self._shortened(self._lasting(by, of_x=False), of_x)
        return of_y, self._between_curved_rows(of_y)

    def _shortened(self, of_y: np.ndarray, of_x: np.ndarray) -> np.ndarray:
        """Lengths of y shortened where G bends more over them than its slope at the point, or what x does to it, says.

        A row whose slope in an entry is nothing but rounding seems to be zero far away.
        """
        of_y, none = of_y.copy(), np.zeros(self._programs.layout.rows)
        here = self._values.stationarity
        most = np.maximum(np.abs(self._slopes.stationarity[:, : of_x.size]) @ of_x, np.abs(here))
        for entry in np.flatnonzero((of_y > MANY * np.abs(self._y)) & (most > 0))[:LOOKED_AT]:
            for _ in range(BISECTIONS):
                there = self._y.copy()
                there[entry] += of_y[entry]
                slopes = self._programs.raw_functions.slopes(*self._programs.landed(self._x, there), none)
                change = abs(slopes.gradient[entry] - here[entry])
                if change <= 2 * most[entry]:
                    break
                of_y[entry] *= max(most[entry] / change, NEGLIGIBLE) if np.isfinite(change) else NEGLIGIBLE
        return of_y

    def _lasting(self, by: Callable[[Values], np.ndarray], of_x: bool) -> np.ndarray:
        """Lengths of x or of y by slopes that hold on the way.

        At the centre of a ball its row has no slope, or next to none, and a power at zero no curvature: moved as far as
        that says, they have a lot.
        """
        x, y, programs = self._x, self._y, self._programs
        limits = programs.x_limits if of_x else programs.y_limits
        alternating = np.where(np.arange(limits.lower.size) % 2, -1.0, 1.0)
        below, above = map(np.isfinite, limits)
        up, down = below & ~above, above & ~below
        signs = np.where(up, 1.0, np.where(down, -1.0, alternating))

        def there(lengths: np.ndarray) -> np.ndarray:
            moved = np.where(np.isfinite(lengths), signs * lengths, 0.0)
            place = programs.landed(x + moved, y) if of_x else programs.landed(x, y + moved)
            found = by(Values(*(np.nan_to_num(part, nan=np.inf) for part in programs.at(*place)[1])))
            return np.where(moved != 0, found, lengths)

        far = by(self._slopes)
        near = there(far)
        lasting = near * INCONSISTENT >= far
        if lasting.all():
            return far
        low, high = np.minimum(near, far), far
        for _ in range(BISECTIONS):
            middle = np.sqrt(low * high)
            longer = there(np.where(lasting, far, middle)) > middle
            low, high = np.where(longer, middle, low), np.where(longer, high, middle)
        return np.where(lasting, far, low)

    def _between_curved_rows(self, of_y: np.ndarray) -> np.ndarray:
        """Half of how far every entry of y may move between the walls of curved rows, as an ellipsoid has them.

        A row r with slope a and curvature q in an entry is zero at distances -a/q +- sqrt((a/q)^2 - 2 r/q). Curvatures
        are differences of slopes along several patterns of signs, so that entries tell themselves from each other.
        """
        x, y, programs = self._x, self._y, self._programs
        own, size = ~programs.layout.face & ~programs.layout.equal, np.maximum(np.abs(y), of_y)
        step, a = np.where(size > 0, size, 1.0) / WIDE, self._slopes.rows[own, x.size :]
        least = np.full(a.shape, np.inf)
        for seed in range(FEW):
            signs = np.random.default_rng(seed).choice([-1.0, 1.0], y.size)
            moved = programs.landed(x, y + signs * step)[1] - y
            change = programs.at(x, y + moved)[1].rows[own, x.size :] - a
            with np.errstate(divide="ignore", invalid="ignore"):
                least = np.fmin(least, np.where(moved != 0, change / moved, np.inf))
            if not (np.abs(change) > ROUNDING * np.abs(a)).any():
                return np.full(y.size, np.inf)
        curved = np.isfinite(least) & (least * step > ROUNDING * np.abs(a)) & (least > 0)
        q = np.where(curved, least, 1.0)
        square = (a / q) ** 2 - 2 * self._values.rows[own][:, None] / q
        half = np.where(curved & (square > 0), np.sqrt(np.maximum(square, 0.0)), np.inf)
        return np.min(half, axis=0, initial=np.inf)


def _own_curvature(slopes: np.ndarray) -> np.ndarray:
    """The derivatives of grad_y G, those in y only of every entry with itself, where there is one."""
    found, ny = slopes.copy(), len(slopes)
    hessian = found[:, -ny:]
    own = np.diag(hessian) != 0
    hessian[:, own] = np.diag(np.diag(hessian))[:, own]
    return found


def units_at(programs: Programs, lengths: np.ndarray, points: list[Pair]) -> Units:
    """Units from given lengths of (x, y); those of values come from points in the user's units.

    Where matrices do not fit, typical second derivatives of G, and gradients of rows, are of order one in them.
    """
    layout, (of_x, of_y) = programs.layout, np.split(lengths, [programs.layout.nx])
    own = ~layout.face
    units = programs.raw._replace(x=unraveled(programs.trees.x, of_x), y=unraveled(programs.trees.y, of_y))
    if programs.large:
        functions, (x, y) = programs.functions(units), points[0]
        (first, second, curvature), norms, rows = functions.sizes(x / of_x, y / of_y)
        upper, lower, below = norms[:1], np.array([curvature]), rows[own]
        above = np.where(norms > 0, norms, 1.0)[1 : 1 + layout.own_above]
    else:
        tables = [programs.at(x, y) for x, y in (points if programs.by_table else points[:FEW])]
        first, second = tables[0][0][:2]
        upper = np.array([_norms(s.upper * lengths) for _, s in tables])
        lower = np.array([_lower_size(s, of_y) for _, s in tables])
        below = _row_sizes([(v.rows[own], s.rows[own]) for v, s in tables], lengths, layout.nx)
        above = _row_sizes([(v.above, s.above) for v, s in tables], lengths, 0)[: layout.own_above]
    equal = layout.equal[own]
    scales = Scale(_typical(upper), np.asarray(first)), Scale(_typical(lower), np.asarray(second))
    of_rows = Multipliers(*map(unraveled, programs.raw.rows, (below[~equal], below[equal], above)))
    return units._replace(upper=scales[0], lower=scales[1], rows=of_rows)


def _norms(slopes: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # far out a steep function is infinite, which says nothing
        return np.linalg.norm(slopes, axis=-1)


def _lower_size(slopes: Values, of_y: np.ndarray) -> np.ndarray:
    """What G changes over the lengths of y, to first and to second order."""
    curved = slopes.stationarity[:, -of_y.size :] * of_y * of_y[:, None]
    return np.maximum(_norms(slopes.lower[-of_y.size :] * of_y), 0.5 * _norms(curved.ravel()))


def _typical(sizes: np.ndarray) -> np.ndarray:
    """The lower quartile of the sizes that say something (far points may be steep); one where none does."""
    told = sizes[np.isfinite(sizes) & (sizes > 0)]
    return np.asarray(np.quantile(told, 0.25) if told.size else 1.0)


def _row_sizes(tables: list[Pair], lengths: np.ndarray, nx: int) -> np.ndarray:
    """What every row changes over the lengths of all but the first nx entries, or else of these, or else its value."""
    of_y = np.array([_norms(slopes[:, nx:] * lengths[nx:]) for _, slopes in tables])
    of_x = np.array([_norms(slopes[:, :nx] * lengths[:nx]) for _, slopes in tables])
    found, told = np.ones(of_y.shape[1]), (of_y, of_x, np.abs([values for values, _ in tables]))
    for i in range(found.size):
        found[i] = _typical(next((one[:, i] for one in told if np.max(np.nan_to_num(one[:, i])) > 0), told[0][:, i]))
    return found
