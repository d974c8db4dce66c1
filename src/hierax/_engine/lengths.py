"""Lengths of x and y at a point, from the problem alone, and the units that follow from them.

A length is how far an entry has to move before something changes that the problem can see. Lengths come from bounds,
from the point itself, or from other constraints and derivatives; where there is nothing of the kind (a free entry at
zero in a problem without any length) an entry is taken to be of order one, and that is said.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hierax._engine.float64_problem import ROUNDING
from hierax._engine.programs import LargeFunctions, Programs, Values, unraveled
from hierax._engine.traced import RowUnits, Scale, Units

WIDE = 1e4  # a box this many times wider than its entry is large is not its length; or its square, no box at all
CANCELLED = 1e-6  # a function this small against its terms is zero: single precision leaves no more
LONG, LOOKED_AT = 1e3, 20  # lengths of y this many times longer than y itself are looked at: this many of them
SHORTENINGS, LEAST_SHORTENING = 8, 1e-3  # how often, and to which share at least, such a length is shortened
INCONSISTENT, BISECTIONS = 30.0, 8  # lengths this many times too long are looked for again, in this many steps
NEARBY, PATTERNS = 1e-4, 3  # step and patterns of signs for curvatures
FEW_POINTS = 4  # points from which the units of larger problems come

Most = tuple[np.ndarray, np.ndarray]
"""Upper bounds of the lengths of x and of y."""

Here = tuple[Values[np.ndarray], Values[np.ndarray]]
"""Values and Jacobians at a point."""


class Lengths(NamedTuple):
    """Lengths of the entries of a vector, and which of them are only assumed."""

    values: np.ndarray
    assumed: np.ndarray


def lengths_of(
    v: np.ndarray, bounds: tuple[np.ndarray, np.ndarray], intrinsic: np.ndarray, groups: np.ndarray, most: np.ndarray
) -> Lengths:
    """The lengths of a vector's entries.

    Half the width of its box, or `most` (infinite: unknown), but at most WIDE times the size of the entry (or what
    other functions say of it, `intrinsic`; zero: nothing). Where the box is more than WIDE^2 times as wide it stands
    for none, and as without bounds it is that size; but an entry without a size, at zero up to 1 / WIDE^2, has that of
    its box. Entries of one group share the largest that is not only assumed.
    """
    endless = WIDE**2
    half = 0.5 * (bounds[1] - bounds[0])
    half = np.where(np.isfinite(half) & (half > 0), np.minimum(half, most), most)
    own = np.maximum(np.abs(v), intrinsic)
    nothing = own < 1 / endless
    by_both, by_box = half < endless * own, nothing & (half < endless**2)
    assumed = ~by_both & ~by_box & nothing
    found = np.where(by_both, np.minimum(half, WIDE * own), np.where(by_box, half, own))
    if not groups.size:
        return Lengths(np.where(assumed, 1.0, found), assumed)
    shared = np.zeros(groups.max() + 1)
    np.maximum.at(shared, groups, np.where(assumed, 0.0, found))
    nothing = shared[groups] == 0
    return Lengths(np.where(nothing, 1.0, shared[groups]), nothing)


def intrinsic_lengths(values: np.ndarray, slopes: np.ndarray, v: np.ndarray | None = None) -> np.ndarray:
    """For every entry the median distance |value| / |slope| to where a function that depends on it would be zero.

    A function of k entries is moved to zero by all of them, each sqrt(k) times less than it would have to move alone.
    Functions that are zero already, up to rounding of their terms at `v`, say nothing; zero where none says anything.
    """
    terms = 0.0 if v is None else np.abs(np.nan_to_num(slopes, posinf=0.0, neginf=0.0)) @ np.abs(v)
    values = np.where(np.abs(values) > CANCELLED * terms, values, 0.0)
    shared = np.sqrt(np.count_nonzero(slopes, axis=1).clip(min=1))[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = np.abs(values)[:, None] / (np.abs(slopes) * shared)
    told = np.isfinite(distances) & (distances > 0)
    return _medians(distances, told)


def _medians(numbers: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """The median of every column over the entries that count; zero where none does."""
    columns, rows = np.nonzero(counted.T)
    chosen = numbers[rows, columns]
    chosen = chosen[np.lexsort((chosen, columns))]
    counts = np.bincount(columns, minlength=numbers.shape[1])
    first, some = np.cumsum(counts) - counts, counts > 0
    found = np.zeros(numbers.shape[1])
    found[some] = np.mean([chosen[first[some] + part[some] // 2] for part in (counts - 1, counts)], axis=0)
    return found


def lengths_at(programs: Programs, x: np.ndarray, y: np.ndarray, *most: Most | None) -> list[tuple[Lengths, Lengths]]:
    """Lengths of x and y at a point in the user's units, under each of several upper bounds.

    `most`: upper bounds of those of x and y where the sets give none; None: no such bounds.
    """
    if programs.large:
        return [_rough_lengths(programs, x, y, one) for one in most]
    here = values, slopes = programs.at(x, y)
    own, above = ~programs.layout.face, slice(programs.layout.own_above)  # bounds have widths, which say more

    def by(slopes: Values[np.ndarray]) -> np.ndarray:
        return intrinsic_lengths(
            np.concatenate([values.above[above], values.rows[own], values.stationarity]),
            np.concatenate([slopes.above[above], slopes.rows[own], _own_curvature(slopes.stationarity)]),
            np.concatenate([x, y]),
        )

    def following(of_x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lengths of y, and upper bounds of them, where x moves by its lengths."""

        def below(slopes: Values[np.ndarray]) -> np.ndarray:
            return np.maximum(by(slopes)[x.size :], _answers(slopes, of_x))

        of_y = _seen(programs, here, x, y, _lasting(programs, below, slopes, x, y, of_x=False), of_x)
        return of_y, _between_curved_rows(programs, here, x, y, of_y)

    of_x = _lasting(programs, lambda there: by(there)[: x.size], slopes, x, y, of_x=True)
    found, known = [], dict[bytes, tuple[np.ndarray, np.ndarray]]()
    for one in most:
        most_x, most_y = one or (np.full(x.size, np.inf), np.full(y.size, np.inf))
        lengths_x = lengths_of(x, programs.x_limits, of_x, programs.x_groups, most_x)
        followed = np.where(lengths_x.assumed, 0.0, lengths_x.values)
        key = followed.tobytes()
        if key not in known:
            known[key] = following(followed)
        of_y, between = known[key]
        found.append(
            (lengths_x, lengths_of(y, programs.y_limits, of_y, programs.y_groups, np.minimum(most_y, between)))
        )
    return found


def _lasting(
    programs: Programs,
    by: Callable[[Values[np.ndarray]], np.ndarray],
    slopes: Values[np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    of_x: bool,
) -> np.ndarray:
    """Lengths of x or of y by slopes that hold on the way.

    At the centre of a ball its row has no slope, or next to none, and a power at zero no curvature: moved as far as
    that says, they have a lot.
    """
    limits = programs.x_limits if of_x else programs.y_limits
    alternating = np.where(np.arange(x.size if of_x else y.size) % 2, -1.0, 1.0)
    up, down = np.isfinite(limits.low) & np.isinf(limits.high), np.isinf(limits.low) & np.isfinite(limits.high)
    signs = np.where(up, 1.0, np.where(down, -1.0, alternating))

    def there(lengths: np.ndarray) -> np.ndarray:
        moved = np.where(np.isfinite(lengths), signs * lengths, 0.0)
        place = programs.landed(x + moved, y) if of_x else programs.landed(x, y + moved)
        found = by(Values(*(np.nan_to_num(part, nan=np.inf) for part in programs.at(*place)[1])))
        return np.where(moved != 0, found, lengths)

    far = by(slopes)
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


def _between_curved_rows(programs: Programs, here: Here, x: np.ndarray, y: np.ndarray, of_y: np.ndarray) -> np.ndarray:
    """Half of how far every entry of y may move between the walls of curved rows, as an ellipsoid has them.

    A row r with slope a and curvature q in an entry is zero at distances -a/q +- sqrt((a/q)^2 - 2 r/q). Curvatures
    are differences of slopes along several patterns of signs, so that entries tell themselves from each other.
    """
    values, slopes = here
    own = ~programs.layout.face & ~programs.layout.equal
    step = NEARBY * np.where(np.maximum(np.abs(y), of_y) > 0, np.maximum(np.abs(y), of_y), 1.0)
    least = np.full((int(own.sum()), y.size), np.inf)
    for seed in range(PATTERNS):
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], y.size)
        moved = programs.landed(x, y + signs * step)[1] - y
        there = programs.at(x, y + moved)[1]
        change = (there.rows - slopes.rows)[own, x.size :]
        with np.errstate(divide="ignore", invalid="ignore"):
            least = np.fmin(least, np.where(moved != 0, change / moved, np.inf))
        if not (np.abs(change) > ROUNDING * np.abs(slopes.rows[own, x.size :])).any():
            return np.full(y.size, np.inf)
    a, r = slopes.rows[own, x.size :], values.rows[own][:, None]
    curved = np.isfinite(least) & (least * step > ROUNDING * np.abs(a)) & (least > 0)
    q = np.where(curved, least, 1.0)
    square = (a / q) ** 2 - 2 * r / q
    half = np.where(curved & (square > 0), np.sqrt(np.maximum(square, 0.0)), np.inf)
    return np.min(half, axis=0, initial=np.inf)


def _seen(programs: Programs, at: Here, x: np.ndarray, y: np.ndarray, of_y: np.ndarray, of_x: np.ndarray) -> np.ndarray:
    """Lengths of y shortened where G bends more over them than its curvature at the point says.

    As powers do at zero: a length of y may change the slope of G by twice what the slope is, or what x can change.
    """
    (here, slopes), of_y, none = at, of_y.copy(), np.zeros(programs.layout.rows)
    most = np.maximum(np.abs(slopes.stationarity[:, : x.size]) @ of_x, np.abs(here.stationarity))
    for entry in np.flatnonzero((of_y > LONG * np.abs(y)) & (most > 0))[:LOOKED_AT]:
        for _ in range(SHORTENINGS):
            there = y.copy()
            there[entry] += of_y[entry]
            slopes_there = programs.raw_functions.slopes(*programs.landed(x, there), none)
            change = abs(slopes_there.gradient[entry] - here.stationarity[entry])
            if not change > 2 * most[entry]:
                break
            of_y[entry] *= max(most[entry] / change, LEAST_SHORTENING) if np.isfinite(change) else LEAST_SHORTENING
    return of_y


def units_at(programs: Programs, lengths: np.ndarray, points: list[tuple[np.ndarray, np.ndarray]]) -> Units:
    """Units from given lengths of (x, y); those of values come from points in the user's units."""
    if programs.large:
        return _rough_units(programs, lengths, *points[0])
    tables = [programs.at(x, y) for x, y in (points if programs.by_table else points[:FEW_POINTS])]
    nx = programs.layout.nx
    own = ~programs.layout.face
    below = _row_sizes([(v.rows[own], s.rows[own]) for v, s in tables], lengths, nx)
    above = _row_sizes([(v.above, s.above) for v, s in tables], lengths, 0)[: programs.layout.own_above]
    return _in_lengths(programs, lengths)._replace(
        upper=Scale(np.asarray(_typical([_size(s.upper * lengths) for _, s in tables])), tables[0][0].upper),
        lower=Scale(np.asarray(_typical([_lower_size(s, lengths, nx) for _, s in tables])), tables[0][0].lower),
        rows=_row_units(programs, below, above),
    )


def _rough_lengths(programs: Programs, x: np.ndarray, y: np.ndarray, most: Most | None) -> tuple[Lengths, Lengths]:
    """By bounds and sizes alone, where matrices do not fit: entries of y share their typical size."""
    most_x, most_y = most or (np.full(x.size, np.inf), np.full(y.size, np.inf))
    typical = np.full(y.size, np.sqrt(np.mean(y**2)) if y.size else 0.0)
    of_x = lengths_of(x, programs.x_limits, np.zeros(x.size), programs.x_groups, most_x)
    return of_x, lengths_of(y, programs.y_limits, typical, programs.y_groups, most_y)


def _rough_units(programs: Programs, lengths: np.ndarray, x: np.ndarray, y: np.ndarray) -> Units:
    """In which typical second derivatives of G, and gradients of rows, are of order one, where matrices do not fit."""
    layout, nx = programs.layout, programs.layout.nx
    plain = _in_lengths(programs, lengths)
    functions = programs.functions(plain)
    assert isinstance(functions, LargeFunctions)
    (upper, lower, curvature), norms, rows = functions.sizes(x / lengths[:nx], y / lengths[nx:])
    above = norms[1 : 1 + layout.own_above]
    return plain._replace(
        upper=Scale(np.asarray(_typical([float(norms[0])])), np.asarray(upper)),
        lower=Scale(np.asarray(_typical([float(curvature)])), np.asarray(lower)),
        rows=_row_units(programs, rows[~layout.face], np.where(above > 0, above, 1.0)),
    )


def _in_lengths(programs: Programs, lengths: np.ndarray) -> Units:
    """Units of one, but for x and y."""
    x, y = np.split(lengths, [programs.layout.nx])
    return programs.raw._replace(x=unraveled(programs.trees.x, x), y=unraveled(programs.trees.y, y))


def _row_units(programs: Programs, below: np.ndarray, above: np.ndarray) -> RowUnits:
    """Units of the lower level's own rows and of the upper constraints, in their trees."""
    raw, equal = programs.raw.rows, programs.layout.equal[~programs.layout.face]
    parts = below[~equal], below[equal], above
    return RowUnits(*(unraveled(like, part) for like, part in zip(raw, parts, strict=True)))


def _size(slope: np.ndarray) -> float:
    with np.errstate(over="ignore"):  # far out a steep function is infinite, which says nothing
        return float(np.linalg.norm(slope))


def _lower_size(slopes: Values[np.ndarray], lengths: np.ndarray, nx: int) -> float:
    """What G changes over the lengths of y, to first and to second order."""
    of_y = lengths[nx:]
    curved = slopes.stationarity[:, nx:] * of_y * of_y[:, None]
    return max(_size(slopes.lower[nx:] * of_y), 0.5 * _size(curved))


def _answers(slopes: Values[np.ndarray], of_x: np.ndarray) -> np.ndarray:
    """How far every entry of y moves, roughly, when x moves by its lengths: the median over what depends on both."""
    nx = of_x.size
    told = np.concatenate([slopes.rows, _own_curvature(slopes.stationarity)])
    return intrinsic_lengths(np.linalg.norm(told[:, :nx] * of_x, axis=1), told[:, nx:])


def _own_curvature(slopes: np.ndarray) -> np.ndarray:
    """The derivatives of grad_y G, those in y only of every entry with itself, where there is one."""
    found, ny = slopes.copy(), len(slopes)
    hessian = found[:, -ny:]
    own = np.diag(hessian) != 0
    hessian[:, own] = np.diag(np.diag(hessian))[:, own]
    return found


def _typical(sizes: list[float]) -> float:
    """The lower quartile of the sizes that say something (far points may be steep); one where none does."""
    told = [one for one in sizes if np.isfinite(one) and one > 0]
    return float(np.quantile(told, 0.25)) if told else 1.0


def _row_sizes(tables: list[tuple[np.ndarray, np.ndarray]], lengths: np.ndarray, nx: int) -> np.ndarray:
    """What every row changes over the lengths of all but the first nx entries, or else of these, or else its value."""
    of_y, of_x, value = (
        np.array(part)
        for part in zip(
            *(
                (_sizes(slopes[:, nx:] * lengths[nx:]), _sizes(slopes[:, :nx] * lengths[:nx]), np.abs(values))
                for values, slopes in tables
            ),
            strict=True,
        )
    )
    found = np.ones(len(tables[0][0]))
    for i in range(found.size):
        told = (one[:, i] for one in (of_y, of_x, value))
        sizes = next((one for one in told if np.max(np.nan_to_num(one)) > 0), np.ones(1))
        found[i] = _typical(sizes.tolist())
    return found


def _sizes(slopes: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.linalg.norm(slopes, axis=1)
