"""The small and the penalty route from a prepared problem to its solution; they differ only in how they search."""

import dataclasses
import time
from typing import TYPE_CHECKING

import numpy as np

from hierax._auto.candidates import Candidate
from hierax._auto.constants import PENALTY_ROUTE_SECONDS, SMALL_ROUTE_SECONDS, STARTS
from hierax._auto.kkt_route import SmallSearch
from hierax._auto.multipliers import upper_multipliers
from hierax._auto.penalty_route import PenaltySearch
from hierax._auto.referee import in_precision_of, setting_of
from hierax._auto.vectors import VectorProblem, unraveled
from hierax._auto.verdict import verdict
from hierax._base.errors import InputError
from hierax._base.lazy import lazy
from hierax._problem.problem import Multipliers
from hierax._run.prepare import Prepared
from hierax._run.progress import progress_bar
from hierax._run.records import History
from hierax._run.solution import Counts, Solution

if TYPE_CHECKING:
    from hierax._auto.auto import Auto

threadpoolctl = lazy("threadpoolctl")


def run_deterministic(prepared: Prepared, auto: "Auto", seed: int, first_line: str, progress: bool | None) -> Solution:
    """The answer of `auto.route`, "small" or "penalty"; `first_line` begins the log."""
    begin = time.perf_counter()
    small = auto.route == "small"
    starts, seconds = auto.starts or STARTS, auto.seconds or (SMALL_ROUTE_SECONDS if small else PENALTY_ROUTE_SECONDS)
    with (
        progress_bar(progress, starts) as show,
        threadpoolctl.threadpool_limits(1, user_api="blas"),  # for so few rows, threads only wait for each other
    ):
        setting = setting_of(prepared, seed)
        vectors = VectorProblem(setting, starts, seed)
        _refuse_nonfinite(vectors)
        found = (SmallSearch if small else PenaltySearch)(vectors, seconds).run(show)
        end = verdict(found)
        nu = upper_multipliers(vectors, found.scales, end.point)
    own, _ = setting.layout().split(end.point.mu)
    multipliers = Multipliers(own.inequalities, own.equalities, unraveled(setting.shapes("upper_constraints"), nu))
    x, y = (
        in_precision_of(like, unraveled(like, vector))
        for like, vector in ((prepared.x, end.point.x), (prepared.y, end.point.y))
    )
    x, y = prepared.whole(*prepared.inside(x, y))
    compiling = setting.compile_seconds
    return Solution(
        x=x,
        y=y,
        multipliers=multipliers,
        status=end.status,
        history=_history(found.candidates),
        counts=Counts(seconds=time.perf_counter() - begin - compiling, compile_seconds=compiling),
        state=None,
        method=dataclasses.replace(auto, starts=starts, seconds=seconds),
        problem=prepared.problem,
        log=(first_line, f"{starts} starts, the given one first.", *end.log),
    )


def _refuse_nonfinite(vectors: VectorProblem) -> None:
    """Raise where a function or its gradient is not finite at the start."""
    layout = vectors.layout
    values, slopes = vectors.at(layout.x0, layout.y0, np.zeros(layout.rows))
    names = {"upper": "upper", "lower": "lower", "above": "upper_constraints", "rows": "constraints"}
    for field, name in names.items():
        for part, what in ((getattr(values, field), name), (getattr(slopes, field), f"the gradient of {name}")):
            if not np.isfinite(part).all():
                raise InputError(
                    f"{what} is not finite at (x0, y0); start from a point where every function is finite."
                )


def _history(candidates: list[Candidate]) -> History:
    names = ("start", "upper", "violation", "gap")
    columns = {name: np.array([getattr(candidate, name) for candidate in candidates]) for name in names}
    return History({"step": np.arange(1, len(candidates) + 1), **columns})
