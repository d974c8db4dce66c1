"""Units in which a problem is of order one: lengths of x and y, what F and G change over them, and sizes of the rows.

Whoever computes in them may use absolute tolerances: multiplying F, G or a row by a number, adding one to F or G, or
measuring an entry of x or y in another unit changes the units, and nothing else. Lengths come from bounds, from the
point itself, or from other constraints and derivatives; where there is nothing of the kind (a free entry at zero in a
problem without any length) an entry is taken to be of order one, and that is said.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from hierax._problem import sets
from hierax._problem.problem import Problem

WIDE, ENDLESS = 1e4, 1e8  # a box this many times wider than its entry is large is not its length; or is no box at all
CANCELLED = 1e-6  # a function this small against its terms is zero: single precision leaves no more
NOTHING = 1e-8  # a free entry below this has no size of its own


class Scale(NamedTuple):
    """(value - origin) / unit is of order one."""

    unit: Scalar | np.ndarray
    origin: Scalar | np.ndarray


class RowUnits(NamedTuple):
    """Units of what the functions of constraints return, as trees like theirs."""

    constraints: PyTree
    equalities: PyTree
    upper_constraints: PyTree


class Units(NamedTuple):
    """Everything that a problem is measured in; a tree of arrays, so that programs take it as an argument.

    Attributes:
        x: length of every entry of x.
        y: likewise.
        upper: of F.
        lower: of G.
        rows: of the constraints.
    """

    x: PyTree
    y: PyTree
    upper: Scale
    lower: Scale
    rows: RowUnits


def in_units(problem: Problem, units: Units) -> Problem:
    """The problem of x / lengths and y / lengths, all of whose values are in units (inside programs)."""

    def at(x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        return _times(x, units.x), _times(y, units.y)

    def value(function: object, scale: Scale, x: PyTree, y: PyTree, batch: PyTree) -> Array:
        return (function(*at(x, y), batch) - scale.origin) / scale.unit  # type: ignore[operator]

    def rows(function: object, sizes: PyTree, x: PyTree, y: PyTree) -> PyTree:
        return jax.tree.map(jnp.divide, function(*at(x, y)), sizes)  # type: ignore[operator]

    return Problem(
        upper=lambda x, y, zeta: value(problem.upper, units.upper, x, y, zeta),
        lower=lambda x, y, xi: value(problem.lower, units.lower, x, y, xi),
        constraints=lambda x, y: rows(problem.constraints, units.rows.constraints, x, y),
        equalities=lambda x, y: rows(problem.equalities, units.rows.equalities, x, y),
        upper_constraints=lambda x, y: rows(problem.upper_constraints, units.rows.upper_constraints, x, y),
        x_set=sets.in_units(problem.x_set, units.x),
        y_set=sets.in_units(problem.y_set, units.y),
        zeta=problem.zeta,
        xi=problem.xi,
    )


def _times(tree: PyTree, lengths: PyTree) -> PyTree:
    return jax.tree.map(jnp.multiply, tree, lengths)


class Lengths(NamedTuple):
    """Lengths of the entries of a vector, and which of them are only assumed."""

    values: np.ndarray
    assumed: np.ndarray


def lengths_of(
    v: np.ndarray, bounds: tuple[np.ndarray, np.ndarray], intrinsic: np.ndarray, groups: np.ndarray, most: np.ndarray
) -> Lengths:
    """The lengths of a vector's entries.

    Half the width of its box, or `most` (infinite: unknown), but at most WIDE times the size of the entry (or what
    other functions say of it, `intrinsic`; zero: nothing). Where the box is more than ENDLESS times as wide it stands
    for none, and as without bounds it is that size; but an entry without a size, at zero up to NOTHING, has that of its
    box. Entries of one group share the largest that is not only assumed.
    """
    half = 0.5 * (bounds[1] - bounds[0])
    half = np.where(np.isfinite(half) & (half > 0), np.minimum(half, most), most)
    own = np.maximum(np.abs(v), intrinsic)
    by_both, by_box = half < ENDLESS * own, (own < NOTHING) & (half < ENDLESS**2)
    assumed = ~by_both & ~by_box & (own < NOTHING)
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
    sorted_numbers = numbers[rows, columns]
    sorted_numbers = sorted_numbers[np.lexsort((sorted_numbers, columns))]
    counts = np.bincount(columns, minlength=numbers.shape[1])
    first = np.cumsum(counts) - counts
    found, some = np.zeros(numbers.shape[1]), counts > 0
    middle = [sorted_numbers[first[some] + part[some] // 2] for part in (counts - 1, counts)]
    found[some] = (middle[0] + middle[1]) / 2
    return found
