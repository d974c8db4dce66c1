"""Lengths of x and y at a point, from the problem alone, and the units that follow from them.

A length is how far an entry has to move before something changes that the problem can see; `units.py` has the rules,
this module asks the compiled problem (`programs.py`) for what they need.
"""

from collections.abc import Callable

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hierax._engine.float64_problem import Data
from hierax._engine.programs import Programs, Trees, Values, joined, unraveled
from hierax._engine.units import Lengths, RowUnits, Scale, Units, in_units, intrinsic_lengths, lengths_of
from hierax._math import lower_level
from hierax._math.lower_level import level_at
from hierax._problem.problem import Problem

LONG, LOOKED_AT = 1e3, 20  # lengths of y this many times longer than y itself are looked at: this many of them
SHORTENINGS, LEAST_SHORTENING = 8, 1e-3  # how often, and to which share at least, such a length is shortened
INCONSISTENT, BISECTIONS = 30.0, 8  # lengths this many times too long are looked for again, in this many steps
NEARBY, PATTERNS, STRAIGHT = 1e-4, 3, 1e-9  # step and patterns of signs for curvatures; relative change that is none
FEW_POINTS = 4  # points from which the units of larger problems come

Most = tuple[np.ndarray, np.ndarray]
"""Upper bounds of the lengths of x and of y."""

Here = tuple[Values[np.ndarray], Values[np.ndarray]]
"""Values and Jacobians at a point."""


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
        if not (np.abs(change) > STRAIGHT * np.abs(slopes.rows[own, x.size :])).any():
            return np.full(y.size, np.inf)
    a, r = slopes.rows[own, x.size :], values.rows[own][:, None]
    curved = np.isfinite(least) & (least * step > STRAIGHT * np.abs(a)) & (least > 0)
    q = np.where(curved, least, 1.0)
    square = (a / q) ** 2 - 2 * r / q
    half = np.where(curved & (square > 0), np.sqrt(np.maximum(square, 0.0)), np.inf)
    return np.min(half, axis=0, initial=np.inf)


def _seen(programs: Programs, at: Here, x: np.ndarray, y: np.ndarray, of_y: np.ndarray, of_x: np.ndarray) -> np.ndarray:
    """Lengths of y shortened where G bends more over them than its curvature at the point says.

    As powers do at zero: a length of y may change the slope of G by twice what the slope is, or what x can change.
    """
    (here, slopes), of_y = at, of_y.copy()
    most = np.maximum(np.abs(slopes.stationarity[:, : x.size]) @ of_x, np.abs(here.stationarity))
    for entry in np.flatnonzero((of_y > LONG * np.abs(y)) & (most > 0))[:LOOKED_AT]:
        for _ in range(SHORTENINGS):
            there = y.copy()
            there[entry] += of_y[entry]
            change = abs(_downhill(programs, *programs.landed(x, there))[entry] - here.stationarity[entry])
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
    units = Units(
        unraveled(programs.trees.x, lengths[:nx]),
        unraveled(programs.trees.y, lengths[nx:]),
        Scale(np.asarray(_typical([_size(s.upper * lengths) for _, s in tables])), tables[0][0].upper),
        Scale(np.asarray(_typical([_lower_size(s, lengths, nx) for _, s in tables])), tables[0][0].lower),
        programs.raw.rows,
    )
    own = ~programs.layout.face
    below = _row_sizes([(v.rows[own], s.rows[own]) for v, s in tables], lengths, nx)
    above = _row_sizes([(v.above, s.above) for v, s in tables], lengths, 0)[: programs.layout.own_above]
    equal = programs.layout.equal[own]
    return units._replace(
        rows=RowUnits(
            unraveled(programs.raw.rows.constraints, below[~equal]),
            unraveled(programs.raw.rows.equalities, below[equal]),
            unraveled(programs.raw.rows.upper_constraints, above),
        )
    )


def _rough_lengths(programs: Programs, x: np.ndarray, y: np.ndarray, most: Most | None) -> tuple[Lengths, Lengths]:
    """By bounds and sizes alone, where matrices do not fit: entries of y share their typical size."""
    most_x, most_y = most or (np.full(x.size, np.inf), np.full(y.size, np.inf))
    typical = np.full(y.size, np.sqrt(np.mean(y**2)) if y.size else 0.0)
    of_x = lengths_of(x, programs.x_limits, np.zeros(x.size), programs.x_groups, most_x)
    return of_x, lengths_of(y, programs.y_limits, typical, programs.y_groups, most_y)


def _rough_units(programs: Programs, lengths: np.ndarray, x: np.ndarray, y: np.ndarray) -> Units:
    """In which typical second derivatives of G, and gradients of rows, are of order one, where matrices do not fit."""
    nx, layout = programs.layout.nx, programs.layout
    plain = programs.raw._replace(
        x=unraveled(programs.trees.x, lengths[:nx]), y=unraveled(programs.trees.y, lengths[nx:])
    )
    at = x / lengths[:nx], y / lengths[nx:]
    if programs.hand is not None:
        upper, lower, rows, above = programs.hand.in_units(layout, plain).sizes(*at)
    else:
        upper, lower, rows, above = programs.setting.run("sizes", _sizes_along, programs.trees, plain, *at, quick=True)
    own, equal = rows[~layout.face], layout.equal[~layout.face]
    raw = programs.raw.rows
    return plain._replace(
        upper=Scale(np.asarray(_typical([float(upper[1])])), np.asarray(upper[0])),
        lower=Scale(np.asarray(_typical([float(lower[1])])), np.asarray(lower[0])),
        rows=RowUnits(
            unraveled(raw.constraints, own[~equal]),
            unraveled(raw.equalities, own[equal]),
            unraveled(raw.upper_constraints, above),
        ),
    )


def _sizes_along(
    problem: Problem, data: Data, trees: Trees, units: Units, x: Array, y: Array
) -> tuple[Array, Array, Array, Array]:
    """F and the norm of its gradient; G and the typical size of its curvature; norms of the rows' gradients."""
    problem = in_units(problem, units)
    level = level_at(problem, trees.x_of(x), trees.y_of(y), data.xi)
    gradient = jax.grad(level.objective)(level.start)
    found = lower_level.units_at(level, level.start, level.rows(level.start), gradient, jnp.asarray(1e-8))

    def upper(both: tuple[Array, Array]) -> Array:
        return problem.upper(trees.x_of(both[0]), trees.y_of(both[1]), data.zeta)

    def above(both: tuple[Array, Array]) -> Array:
        return joined(problem.upper_constraints(trees.x_of(both[0]), trees.y_of(both[1])))

    value, slope = jax.value_and_grad(upper)((x, y))
    squares = sum(jnp.sum(part**2, axis=1) for part in jax.jacrev(above)((x, y)))
    sizes = jnp.where(squares > 0, jnp.sqrt(squares), 1.0)
    length = jnp.sqrt(sum(jnp.sum(part**2) for part in slope))
    return jnp.stack([value, length]), jnp.stack([level.objective(level.start), found.curvature]), found.row, sizes


def _downhill(programs: Programs, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The gradient of G in y, in the user's units."""
    if programs.by_table:
        return programs.at(x, y)[0].stationarity
    numbers = programs.slopes(programs.trees, programs.raw, x, y, np.zeros(programs.layout.rows))
    return numbers[1 + x.size : 1 + x.size + y.size]


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
