"""SLSQP in `hierax bench race`: SciPy's, on the relaxed KKT form of `medium_kkt`, where that is small enough."""

import numpy as np

from hierax_lab.bench.medium_case import Bounds, Functions, MediumCase
from hierax_lab.bench.medium_solvers import SOLVERS, NotApplicable
from hierax_lab.bench.race_hierax import problem
from hierax_lab.bench.race_statements import STATEMENTS, Data

QUADRATIC_ROWS = ("group logistic", "QCQP 20+20")
NOT_QUADRATIC = ("group logistic", "tolls", "hyper-cleaning")  # the lower objective


def case(name: str, d: Data) -> MediumCase:
    """The problem as the solvers of `hierax bench medium` know it."""
    stated, statement = problem(name, d), STATEMENTS[name]
    x0, y0 = statement.starts(d)
    low = Bounds(np.full(y0.size, statement.y_low), np.full(y0.size, np.inf))
    box, curved, quadratic = Bounds(*statement.box(d)), name in QUADRATIC_ROWS, name not in NOT_QUADRATIC
    return MediumCase(stated, stated, x0, y0, box, low, quadratic_rows=curved, quadratic=quadratic)


def solve(name: str, d: Data) -> tuple[np.ndarray, dict[str, object]]:
    """The x at which SLSQP ends."""
    try:
        answer = SOLVERS["SLSQP-KKT"](Functions(case(name, d)), 0, None)
    except NotApplicable as reason:
        return np.zeros(0), {"not_run": str(reason)}
    return answer.x, {"status": answer.status}
