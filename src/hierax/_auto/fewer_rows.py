"""Much data: searched on some of its rows from all starts, then solved on all of them from where that ended.

What takes many evaluations, the search from everywhere, needs few rows; what needs all rows, the last digits and the
certificate, takes few evaluations. Optima of all rows need not be optima of some, so that other starts are made on all
rows too, as time allows. The answer is one on all rows, and so is its certificate.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.extend.core as jex
import numpy as np
from jaxtyping import PyTree

from hierax._auto.agreement import optima
from hierax._auto.budget import Deadline
from hierax._auto.constants import (
    FEWER_ROWS,
    FEWER_ROWS_ENDS,
    FEWER_ROWS_SHARE,
    LARGE_ROUTE_SECONDS,
    ROWS_NUMBERS,
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
from hierax._engine.programs import unraveled
from hierax._engine.segments import not_convex
from hierax._problem.samples import Finite
from hierax._run.call import Call
from hierax._run.prepare import Prepared, prepare
from hierax._run.progress import progress_bar
from hierax._run.solution import Counts, Solution, with_certificate
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
    if not large or max(numbers.values()) <= WHOLE_DATA or sum(numbers.values()) > ROWS_NUMBERS:
        return None
    rng = np.random.default_rng(seed)
    cut: dict[str, Any] = {}
    for name in large:
        rows = np.sort(rng.choice(data[name].size, count, replace=False))
        arrays = jax.tree.map(lambda leaf, rows=rows: leaf[rows], data[name].arrays)
        cut[name] = Finite(arrays, data[name].replace)
    few = prepare(dataclasses.replace(prepared.problem, **cut), *prepared.whole(prepared.x, prepared.y))
    ratios = {name: data[name].size / cut[name].size if name in cut else 1.0 for name in data}
    left = max(numbers[name] / ratios[name] for name in data)
    work = sum(numbers.values()) + sum(ratios[name] * _made_on_the_way(few, name) for name in data)
    if left > WHOLE_DATA or work > ROWS_NUMBERS or work * variables > ROWS_WORK:
        return None
    if not_convex(setting_of(few, seed), few.y, seed) is not None:
        return None
    return FewerRows(few, " and ".join(f"{count} of {data[name].size} rows of {name}" for name in large))


def _made_on_the_way(prepared: Prepared, name: str) -> int:
    """How many numbers the objective that sees a source makes on the way from its rows to its value."""
    objective, batch = ("upper", prepared.problem.zeta) if name == "zeta" else ("lower", prepared.problem.xi)
    assert isinstance(batch, Finite)
    return _numbers(jax.make_jaxpr(prepared.stated(objective))(prepared.x, prepared.y, batch.arrays).jaxpr)


def _numbers(jaxpr: jex.Jaxpr) -> int:
    """How many numbers the operations of a program make, those of a loop counted once."""
    made = sum(int(getattr(one.aval, "size", 1)) for equation in jaxpr.eqns for one in equation.outvars)
    return made + sum(_numbers(part) for equation in jaxpr.eqns for part in jex.jaxprs_in_params(equation.params))


class FirstEnds(NamedTuple):
    """Where the search on some rows ended.

    Attributes:
        places: the optima that it found, the lowest first: those that are tried on all rows.
        said: how many starts agree.
        compiling: seconds.
    """

    places: list[Place]
    said: str
    compiling: float


def run_on_rows(prepared: Prepared, few: FewerRows, auto: "Auto", seed: int, first_line: str, call: Call) -> Solution:
    """The answer on all rows, from those on few."""
    auto = dataclasses.replace(auto, seconds=auto.seconds or LARGE_ROUTE_SECONDS)
    name, notes, cut_short = "some rows", call.notes, list[Kind]()
    ends = notes.take(name, (FirstEnds,))
    if ends is None:
        ends, kind = _searched(few, auto, seed, call.under(name))
        cut_short = [kind] if kind in (Kind.STOPPED, Kind.INTERRUPTED) else []
        if kind is None and notes.kept:
            notes.under(name).drop()  # its pieces
            notes.put(name, ends)
    start, others = prepared, list[Place]()
    if ends.places:
        (x, y), *others = ends.places
        start = prepared.at(*prepared.inside(_like(prepared.x, x), _like(prepared.y, y)))
    last = dataclasses.replace(auto, route="penalty")
    whole = run_deterministic(start, last, seed, first_line, call.under("all rows"), others, cut_short)
    compiling = ends.compiling + whole.counts.compile_seconds
    first = f"First on {few.said}. {ends.said or 'No point passed the validation.'}"
    answer = dataclasses.replace(
        whole,
        counts=Counts.of_search(call.clock.elapsed - compiling, compiling),
        method=dataclasses.replace(auto, starts=auto.starts or STARTS),
        log=(first_line, first, f"Then on all rows, {_reached(whole, len(ends.places))}", *whole.log[-1:]),
        starts=whole.starts._replace(said=f"On all rows, {_reached(whole, len(ends.places))} {first}"),
    )
    known = whole.known_certificate
    return with_certificate(answer, known)


def _reached(whole: Solution, places: int) -> str:
    """Where the starts on all rows came from, and where they ended."""
    values = [f"{value:.6g}" for value in whole.starts.values if np.isfinite(value)]
    begun = f"from {places} of these ends and, as time allowed, from other starts" if places else "from all starts"
    return f"{begun}: F = {', '.join(values)}." if values else f"{begun}: no point passed the validation."


def _searched(few: FewerRows, auto: "Auto", seed: int, call: Call) -> tuple[FirstEnds, Kind | None]:
    """Where a search on some rows ends, and what cut it short."""
    assert auto.seconds is not None
    with (
        progress_bar(call.progress, call.news, auto.starts or STARTS, "starts on some rows") as show,
        one_blas_thread,
        interruptible() as interrupt,
    ):
        deadline = Deadline(FEWER_ROWS_SHARE * auto.seconds, interrupt, call.clock.begin)
        setting, space, found = searched(few.prepared, auto, seed, call, deadline, show)
        cut_short = deadline.kind
    vectors, best = space.vectors, [optimum[0] for optimum in optima(found.candidates)[:FEWER_ROWS_ENDS]]
    said = ""
    if best:
        scale = vectors.units.upper
        said = globality(found, float(best[0].upper * scale.unit + scale.origin), best[0].upper, vectors.upper_unit)
    places = [(one.point.x * vectors.x_unit, one.point.y * vectors.y_unit) for one in best]
    return FirstEnds(places, said, setting.compile_seconds), cut_short


def _like(tree: PyTree, vector: np.ndarray) -> PyTree:
    """A vector in the form and the precision of a tree."""
    return in_precision_of(tree, unraveled(tree, vector))
