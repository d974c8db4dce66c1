"""The solvers that `hierax bench medium` compares.

Auto and BLOCC are hierax's, with nothing set. The others are outside hierax: they know a problem through the
derivatives of its functions (`Functions`) and use SciPy, NumPy and Clarabel.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hierax import BLOCC, InputError, Solution, solve
from hierax_lab.bench.medium_case import Functions
from hierax_lab.bench.medium_kkt import KKTForm, slsqp, trust_constr
from hierax_lab.bench.medium_lower import Unsolved
from hierax_lab.bench.medium_phi import Phi

SECONDS = 30.0  # limit of every solver but Auto, unless one is given
MAX_SLSQP_UNKNOWNS, MAX_TRUST_UNKNOWNS = 450, 60  # of the KKT form


class Answer(NamedTuple):
    """What a solver returns, as flat vectors, and how it says it ended; of Auto the solution, for its certificate."""

    x: np.ndarray
    y: np.ndarray
    status: str
    claims: bool = False
    solution: Solution | None = None


class NotApplicable(Exception):
    """A solver is not meant for a problem."""


Solver = Callable[[Functions, int, float | None], Answer]


def _auto(functions: Functions, seed: int, seconds: float | None) -> Answer:
    case = functions.case
    found = solve(case.problem, case.x0, case.y0, seconds=seconds, seed=seed, throw=False, progress=False)
    return Answer(*functions.flat(found.x, found.y), found.status.name, found.status.ok, found)


def _blocc(functions: Functions, seed: int, seconds: float | None) -> Answer:
    case = functions.case
    limit = SECONDS if seconds is None else seconds
    try:
        found = solve(case.problem, case.x0, case.y0, BLOCC(), seconds=limit, seed=seed, throw=False, progress=False)
    except InputError as error:
        raise NotApplicable(str(error)) from error
    return Answer(*functions.flat(found.x, found.y), found.status.name, found.status.ok)


def _phi_lbfgs(functions: Functions, seed: int, seconds: float | None) -> Answer:
    del seed
    limit = SECONDS if seconds is None else seconds
    began = time.process_time()
    phi = Phi(functions, limit)
    x = phi.minimised(np.clip(functions.x0, *functions.case.x_bounds), functions.case.x_bounds)
    try:
        y = phi.lower_solution(x)
    except Unsolved:
        y = functions.y0
    return Answer(x, y, "seconds" if time.process_time() - began > limit else "ended")


def _kkt(run: Callable[[KKTForm], tuple[np.ndarray, str]], most: int) -> Solver:
    def solver(functions: Functions, seed: int, seconds: float | None) -> Answer:
        del seed
        form = KKTForm(functions, SECONDS if seconds is None else seconds)
        if form.size > most:
            raise NotApplicable(f"{form.size} unknowns of the KKT form are more than {most}")
        z, ended = run(form)
        x, y, *_ = form.split(z)
        return Answer(x, y, ended)

    return solver


SOLVERS: dict[str, Solver] = {
    "Auto": _auto,
    "SLSQP-KKT": _kkt(slsqp, MAX_SLSQP_UNKNOWNS),
    "trust-constr-KKT": _kkt(trust_constr, MAX_TRUST_UNKNOWNS),
    "phi-LBFGS": _phi_lbfgs,
    "BLOCC": _blocc,
}
