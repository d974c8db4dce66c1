"""hierax in `hierax bench race`: `hx.solve` with nothing set."""

import logging
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hierax as hx
from hierax_lab.bench.race_statements import STATEMENTS, Data, Words

WORDS = Words(jnp.exp, jnp.dot, jax.nn.softplus, jax.nn.softmax)


class _Numbers:
    """The numbers of a problem as JAX's arrays, in the precision of x."""

    def __init__(self, numbers: Data, dtype: Any) -> None:
        self._numbers, self._dtype = numbers, dtype

    def __getitem__(self, name: str) -> jax.Array:
        return jnp.asarray(self._numbers[name], self._dtype)


def problem(name: str, d: Data) -> hx.Problem:
    """The problem as hierax gets it."""
    statement = STATEMENTS[name]

    def of(function: Any) -> Any:
        return lambda x, y, *_: function(x, y, _Numbers(d, x.dtype), WORDS)

    functions = {"constraints": statement.rows, "equalities": statement.equal}
    stated = {role: of(function) for role, function in functions.items() if function is not None}
    y_set = hx.NonNegative() if statement.y_low == 0.0 else hx.Free()
    box = hx.Box(*statement.box(d))
    return hx.Problem(of(statement.upper), of(statement.lower), x_set=box, y_set=y_set, **stated)


def solve(name: str, d: Data) -> tuple[np.ndarray, dict[str, Any]]:
    """The x found; status, and which feasible points were held when (CPU seconds of the process), with F."""
    logging.getLogger("hierax").setLevel(logging.ERROR)
    seen: list[tuple[float, float, float]] = []

    def watch(info: hx.Info) -> None:
        seen.append((time.process_time(), info.record["upper"], info.record["violation"]))

    found = hx.solve(problem(name, d), *STATEMENTS[name].starts(d), callback=watch, throw=False, progress=False)
    ended = time.process_time()
    certified = found.status.ok and found.certificate.verdict(found.tol) == "yes"
    points = [(at, upper) for at, upper, beyond in seen if beyond <= found.tol] + [(ended, found.value)]
    return np.asarray(found.x, float), {
        "status": found.status.name,
        "certified": certified,
        "tol": found.tol,
        "points": points if certified else [],
        "evaluations": found.counts.evaluations,
        "evaluations_to_answer": found.counts.evaluations_to_answer,
        "log": list(found.log),
    }
