"""The solvers that `hierax bench bolib` compares, with nothing set.

Each is a function of a case and a seed that returns (x, y) and in a word how it ended. What the answer is worth is for
`outside_judge` to say.
"""

import time
from collections.abc import Callable

import jax
import numpy as np

from hierax._auto.auto import Auto
from hierax._auto.budget import Deadline
from hierax._auto.polish import Cuts, kkt_polish
from hierax._auto.space import Space
from hierax._base.errors import InputError
from hierax._base.interrupt import Interrupt
from hierax._base.lazy import lazy
from hierax._compile.programs import forget_all
from hierax._judge.setting import Setting
from hierax._judge.vectors import Point
from hierax._methods.blocc import BLOCC
from hierax._methods.gaffa import BiCGAFFA
from hierax._methods.gam import GAM
from hierax._methods.salvf import SALVF
from hierax._run.method import AbstractMethod
from hierax.problems.bolib.case import Case
from hierax.solving import solve

threadpoolctl = lazy("threadpoolctl")

SECONDS = 20.0  # limit of a run of the other solvers
Answer = tuple[np.ndarray, np.ndarray, str]


def _auto(auto: Auto) -> Callable[[Case, int], Answer]:
    def run(case: Case, seed: int) -> Answer:
        found = solve(case.problem(), *case.x0y0(), auto, seed=seed, throw=False)
        return np.asarray(found.x), np.asarray(found.y), found.status.name

    return run


def _method(build: Callable[[], AbstractMethod], steps: int) -> Callable[[Case, int], Answer]:
    def run(case: Case, seed: int) -> Answer:
        x, y = case.x0y0()
        try:
            found = solve(
                case.problem(), x, y, build(), max_steps=steps, seconds=SECONDS, seed=seed, throw=False, progress=False
            )
        except InputError as error:
            return np.asarray(x), np.asarray(y), f"refused: {error}"
        return np.asarray(found.x), np.asarray(found.y), found.status.name

    return run


def _one_slsqp(case: Case, seed: int) -> Answer:
    """One SQP run from the given start on the KKT system with -mu_i row_i <= 1e-8."""
    setting = Setting.of(case.problem(), *case.x0y0(), 64, seed)
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        space = Space.of(setting, 16, seed, Deadline(SECONDS, Interrupt(), time.perf_counter()))
        vectors = space.vectors
        start = Point(space.xs[0], space.ys[0], np.zeros(vectors.layout.rows))
        found = kkt_polish(space, start, Cuts.none(space), (1e-8,))
    return found.x * vectors.x_unit, found.y * vectors.y_unit, "one run"


SOLVERS: dict[str, Callable[[Case, int], Answer]] = {
    "Auto": _auto(Auto()),
    "penalty": _auto(Auto(route="penalty", seconds=SECONDS)),
    "SALVF": _method(SALVF, 10_000),
    "BLOCC": _method(BLOCC, 500),
    "BiC-GAFFA": _method(BiCGAFFA, 10_000),
    "GAM": _method(GAM, 200),
    "SLSQP": _one_slsqp,
}


def clear_programs() -> None:
    """Forget everything compiled, so that the next run is cold."""
    forget_all()
    jax.clear_caches()
