"""The solvers that `hierax bench bolib` compares, with nothing set.

Each is a function of a case and a seed that returns (x, y) and in a word how it ended. What the answer is worth is for
`outside_judge` to say.
"""

from collections.abc import Callable

import jax
import numpy as np

from hierax._auto.auto import Auto
from hierax._auto.kkt_route import scales_of
from hierax._auto.polish import Point, kkt_polish, no_cuts
from hierax._auto.vectors import Flat
from hierax._base.errors import InputError
from hierax._base.lazy import lazy
from hierax._compile.programs import forget_all
from hierax._judge.setting import double_precision
from hierax._methods.blocc import BLOCC
from hierax._methods.gaffa import BiCGAFFA
from hierax._methods.gam import GAM
from hierax._methods.salvf import SALVF
from hierax._run.method import AbstractMethod
from hierax.problems.bolib.case import Case
from hierax.solving import solve

threadpoolctl = lazy("threadpoolctl")

SECONDS = 20.0  # limit of a run, compilation apart
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
    x, y = case.x0y0()
    with (
        threadpoolctl.threadpool_limits(1, user_api="blas"),
        double_precision(case.problem(), x, y, 64, seed) as setting,
    ):
        flat = Flat(setting, 16, seed)
        start = Point(flat.x0, flat.y0, np.zeros(flat.equal.size))
        found = kkt_polish(flat, scales_of(flat), start, no_cuts(flat), (1e-8,))
    return found.x, found.y, "one run"


SOLVERS: dict[str, Callable[[Case, int], Answer]] = {
    "Auto": _auto(Auto(seconds=SECONDS)),
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
