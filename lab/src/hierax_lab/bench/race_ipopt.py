"""Ipopt in `hierax bench race`: by CasADi, on the relaxed KKT form, complementarity at most 1e-2, ..., 1e-8 in turn.

CasADi is LGPL, Ipopt EPL; neither is part of hierax or of what it needs (docs/benchmarks/race.md says how to get them).
"""

import importlib
import time
from typing import Any

import numpy as np

from hierax_lab.bench.race_statements import STATEMENTS, Data, Words

RELAXED = (1e-2, 1e-4, 1e-6, 1e-8)
SECONDS = 30.0  # CPU seconds of each run; no run begins after them
OPTIONS = {"print_level": 0, "sb": "yes", "tol": 1e-8, "max_iter": 1000, "max_cpu_time": SECONDS}


def solve(name: str, d: Data) -> tuple[np.ndarray, dict[str, object]]:
    """The x at which the last run ends."""
    ca: Any = importlib.import_module("casadi")
    to = Words(ca.exp, ca.dot, lambda u: ca.log1p(ca.exp(u)), lambda u: ca.exp(u) / ca.sum1(ca.exp(u)))
    statement = STATEMENTS[name]
    (x0, y0), (low, high) = statement.starts(d), statement.box(d)
    x, y, eps = ca.MX.sym("x", x0.size), ca.MX.sym("y", y0.size), ca.MX.sym("eps")

    def stated(function: Any) -> Any:
        return ca.MX(0, 1) if function is None else function(x, y, d, to)

    rows, equal = stated(statement.rows), stated(statement.equal)
    if statement.y_low == 0.0:
        rows = ca.vertcat(rows, -y)
    mu, nu = ca.MX.sym("mu", rows.numel()), ca.MX.sym("nu", equal.numel())
    lagrangian = stated(statement.lower) + ca.dot(mu, rows) + ca.dot(nu, equal)
    form = {"x": ca.vertcat(x, y, mu, nu), "p": eps, "f": stated(statement.upper)}
    form["g"] = ca.vertcat(ca.gradient(lagrangian, y), equal, rows, -mu * rows - eps)
    run = ca.nlpsol("run", "ipopt", form, {"print_time": False, "ipopt": OPTIONS})
    free, m = np.inf, rows.numel()
    found = {"x": np.concatenate([x0, y0, np.ones(m), np.zeros(nu.numel())])}
    lower = np.concatenate([low, np.full(y0.size, -free), np.zeros(m), np.full(nu.numel(), -free)])
    upper = np.concatenate([high, np.full(lower.size - high.size, free)])
    below = np.concatenate([np.zeros(y0.size + nu.numel()), np.full(2 * m, -free)])
    began = time.process_time()
    for relaxed in RELAXED:
        if time.process_time() - began > SECONDS:
            break
        found = run(x0=found["x"], p=relaxed, lbx=lower, ubx=upper, lbg=below, ubg=0.0)
    return np.asarray(found["x"])[: x0.size, 0], {"status": run.stats()["return_status"]}
