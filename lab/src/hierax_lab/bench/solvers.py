"""The solvers that `hierax bench bolib` compares, with nothing set.

Each is a function of a case and a seed that returns (x, y) and in a word how it ended. What the answer is worth is for
`outside_judge` to say.
"""

from collections.abc import Callable

import jax
import numpy as np

from hierax import BLOCC, GAM, SALVF, AbstractMethod, Auto, BiCGAFFA, InputError, solve
from hierax.extend import forget_programs
from hierax_lab.bench.kkt_slsqp import kkt_slsqp
from hierax_lab.problems.bolib.case import Case

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
    x, y = kkt_slsqp(case, SECONDS)
    return x, y, "one run"


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
    forget_programs()
    jax.clear_caches()
