"""Seconds of each method until a certificate says that its point is good, on a problem that all of them can solve.

A random quadratic problem with affine constraints, where LV-HBA's projection exists. Every method has the library's
defaults; the certificate is asked after 12, 24, 48, ... steps, and its time is not counted.
"""

from typing import Any

import jax
from rich.console import Console

import hierax as hx
from hierax_lab.problems import random_qp
from hierax_lab.reproduce.comparison import headed

LEVELS = (0.03, 0.01, 0.003)  # tolerances of the certificate
FIRST, LONGEST = 12, 12_288  # steps after which the certificate is asked first and last
METHODS: dict[str, Any] = {
    "SALVF": hx.SALVF,
    "SALVF, exact inner": lambda: hx.SALVF(inner=hx.Exact()),
    "BLOCC": hx.BLOCC,
    "LV-HBA": hx.LVHBA,
    "BiC-GAFFA": hx.BiCGAFFA,
    "GAM": hx.GAM,
}


def _reached(method: Any) -> dict[float, tuple[float, int] | None]:
    """By level: seconds (compilation apart) and steps until the certificate is ok at it."""
    example = random_qp(0)
    found: dict[float, tuple[float, int] | None] = dict.fromkeys(LEVELS)
    hx.solve(*example[:3], method, max_steps=1, progress=False, throw=False)  # compile
    sol, steps = None, FIRST
    while True:
        state, done = (None, 0) if sol is None else (sol.state, sol.status.step)
        begun = method if sol is None else None
        sol = hx.solve(*example[:3], begun, max_steps=steps - done, state=state, progress=False, throw=False)
        if sol.status.failed:
            return found
        for level in LEVELS:
            if found[level] is None and sol.certificate.ok(level):
                found[level] = (sol.counts.seconds, sol.status.step)
        if all(found.values()) or steps >= LONGEST:
            return found
        steps *= 2


def run(console: Console) -> dict[str, Any]:
    """The table: seconds and steps to each level."""
    jax.config.update("jax_enable_x64", True)
    title = "random_qp(0): seconds (steps) until certificate.ok(level), nothing set"
    table = headed(title, *(f"{level:g}" for level in LEVELS))
    results = {}
    for name, method in METHODS.items():
        reached = _reached(method())
        shown = [f"{one[0]:.2f} ({one[1]:,})" if one else f"not in {LONGEST:,}" for one in reached.values()]
        table.add_row(name, *shown)
        results[name] = {f"{level:g}": one for level, one in reached.items()}
    console.print(table)
    return results
