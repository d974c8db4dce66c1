"""Much data: solved on some of its rows from all starts, then on all of them from the answer of those.

What takes many evaluations, the search from everywhere, needs few rows; what needs all rows, the last digits and the
certificate, takes few evaluations. The answer is one on all rows, and so is its certificate; where other starts end is
known on the first rows only, and the solution says so.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._auto.agreement import optima
from hierax._auto.budget import Deadline
from hierax._auto.constants import (
    FEWER_ROWS,
    FEWER_ROWS_ENDS,
    FEWER_ROWS_SHARE,
    LARGE_ROUTE_SECONDS,
    ROWS_PER_VARIABLE,
    ROWS_WORK,
    STARTS,
    WHOLE_DATA,
)
from hierax._auto.deterministic import Place, run_deterministic, searched
from hierax._auto.referee import in_precision_of, setting_of
from hierax._auto.verdict import globality
from hierax._base.blas import one_blas_thread
from hierax._base.interrupt import interruptible
from hierax._base.trees import size
from hierax._judge.programs import unraveled
from hierax._judge.segments import not_convex
from hierax._problem.samples import Finite
from hierax._run.call import Call
from hierax._run.prepare import Prepared, prepare
from hierax._run.progress import progress_bar
from hierax._run.solution import Counts, Solution
from hierax._run.starts import Starts
from hierax._run.status import Kind

if TYPE_CHECKING:
    from hierax._auto.auto import Auto


@dataclasses.dataclass(frozen=True)
class FewerRows:
    """A problem with some of the rows of its data.

    Attributes:
        prepared: that problem.
        said: how many rows it has, in words.
    """

    prepared: Prepared
    said: str


def fewer_rows(prepared: Prepared, seed: int) -> FewerRows | None:
    """The problem with some of its rows; None where there are few, too many, or the lower level is not convex."""
    sources = {name: getattr(prepared.problem, name) for name in ("zeta", "xi")}
    data = {name: source for name, source in sources.items() if source is not None}
    if not all(isinstance(source, Finite) for source in data.values()):
        return None
    variables, numbers = size((prepared.x, prepared.y)), {name: size(source.arrays) for name, source in data.items()}
    count = max(FEWER_ROWS, ROWS_PER_VARIABLE * variables)
    large = [name for name, source in data.items() if source.size > 2 * count]
    if not large or max(numbers.values()) <= WHOLE_DATA or sum(numbers.values()) * variables > ROWS_WORK:
        return None
    rng = np.random.default_rng(seed)
    cut: dict[str, Any] = {}
    for name in large:
        rows = np.sort(rng.choice(data[name].size, count, replace=False))
        arrays = jax.tree.map(lambda leaf, rows=rows: leaf[rows], data[name].arrays)
        cut[name] = Finite(arrays, data[name].replace)
    problem = dataclasses.replace(prepared.problem, **cut)
    few = prepare(problem, *prepared.whole(prepared.x, prepared.y))
    if not_convex(setting_of(few, seed), few.y, seed) is not None:
        return None
    said = " and ".join(f"{count} of {data[name].size} rows of {name}" for name in large)
    return FewerRows(few, said)


class Ends(NamedTuple):
    """Where a search on some rows ended.

    Attributes:
        places: the optima that it found, the lowest first, those that are tried on all rows.
        said: how many starts agree.
        compiling: seconds.
    """

    places: list[Place]
    said: str
    compiling: float


def run_on_rows(prepared: Prepared, few: FewerRows, auto: "Auto", seed: int, first_line: str, call: Call) -> Solution:
    """The answer on all rows, from those on few."""
    auto = dataclasses.replace(auto, seconds=auto.seconds or LARGE_ROUTE_SECONDS)
    name, notes = "some rows", call.notes
    ends = notes.take(name, (Ends,))
    if ends is None:
        ends, cut_short = _searched(few, auto, seed, call.under(name))
        if cut_short is Kind.STOPPED:
            call = dataclasses.replace(call, callback=lambda info: True)
        elif cut_short is None and notes.kept:
            notes.under(name).drop()  # its pieces
            notes.put(name, ends)
    if not ends.places:
        return run_deterministic(prepared, auto, seed, first_line, call.under("all rows"))
    (x, y), *others = ends.places
    start = prepared.at(*prepared.inside(*(_like(tree, part) for tree, part in ((prepared.x, x), (prepared.y, y)))))
    last = dataclasses.replace(auto, route="penalty")
    whole = run_deterministic(start, last, seed, first_line, call.under("all rows"), others)
    compiling = ends.compiling + whole.counts.compile_seconds
    reached = [value for value in whole.starts.values if np.isfinite(value)]
    listed = ", ".join(f"{value:.6g}" for value in reached)
    answer = dataclasses.replace(
        whole,
        counts=Counts.of_search(call.clock.elapsed - compiling, compiling),
        method=dataclasses.replace(auto, starts=auto.starts or STARTS),
        log=(
            first_line,
            f"First on {few.said}. {ends.said}",
            f"Then on all rows, from the best of these ends, {len(reached) - 1} starts more: F = {listed}.",
            *whole.log[-1:],
        ),
        starts=Starts(
            whole.starts.values,
            f"On all rows, the first {len(ends.places)} from where a search on {few.said} ended. Of that: {ends.said}",
        ),
    )
    known = whole.known_certificate
    return answer if known is None else answer.knowing(known)


def _searched(few: FewerRows, auto: "Auto", seed: int, call: Call) -> tuple[Ends, Kind | None]:
    """Where a search on some rows ends, and what cut it short, if it was not the time."""
    assert auto.seconds is not None
    starts = auto.starts or STARTS
    with (
        progress_bar(call.progress, call.news, starts, "starts on some rows") as show,
        one_blas_thread,
        interruptible() as interrupt,
    ):
        deadline = Deadline(FEWER_ROWS_SHARE * auto.seconds, interrupt, call.clock.begin)
        setting, space, found = searched(few.prepared, auto, seed, call, deadline, show)
    vectors = space.vectors
    best, scale = [optimum[0] for optimum in optima(found.candidates)[:FEWER_ROWS_ENDS]], vectors.units.upper
    said = ""
    if best:
        value = float(best[0].upper * scale.unit + scale.origin)
        said = globality(found, value, best[0].upper, vectors.upper_unit)
    places = [(one.point.x * vectors.x_unit, one.point.y * vectors.y_unit) for one in best]
    cut_short = None if deadline.kind is Kind.SECONDS else deadline.kind
    return Ends(places, said, setting.compile_seconds), cut_short


def _like(tree: PyTree, vector: np.ndarray) -> PyTree:
    """A vector in the form and the precision of a tree."""
    return in_precision_of(tree, unraveled(tree, vector))
