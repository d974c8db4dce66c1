"""`hierax bench samples`: `hx.solve` with nothing set on sampled problems whose truth is known, judged by that truth.

Every run has a process of its own, which sets nothing either (JAX computes in float32 there), and a limit of seconds.
What is stated is compared with F(x, y*(x)) by quadrature or exact moments: see `samples_truth`.
"""

import json
import logging
import time
from pathlib import Path
from typing import Any, TypedDict

import jax
import numpy as np
from rich.console import Console

from hierax import solve
from hierax_lab.bench.samples_cases import CASES
from hierax_lab.bench.samples_truth import Truth
from hierax_lab.output import plain, write_results
from hierax_lab.reproduce.comparison import headed
from hierax_lab.reproduce.workers import Name, Task, run_tasks

SECONDS = 60.0

LATE, LATE_SECONDS = 1.1, 1.0
"""A run obeys `seconds` if it ends within 10 % and a second of it, by the clock."""

MERIT = 10.0
"""Price of a violation of the upper constraints where points are compared: above the multiplier of each of them."""

ERRORS = 4.0
"""Standard errors by which a stated value may be off: a chance of 1 in 1,000 with Student's t of 15 degrees."""

SLACK = 1e-3
"""Of 1 + |F|, and of the possible decrease: what a claim may be off by beside its stated errors."""

GAPS = 2.0
"""Times the stated 95 % limit of the gap, above which a claim of it is false and no mishap of one run in twenty."""


class Row(TypedDict):
    """A run of `hx.solve` and what is true of its answer.

    Attributes:
        share: of the possible decrease from the start, by the true F; of violations a price is added.
        truth: F(x, y*(x)).
        stated: `sol.value`, and
        error: by how many of its standard errors that is off; None: no standard error is stated.
        true_gap: F at x above the best one (with the price of violations).
        stated_gap: its stated limit; None: none is stated.
        false_claims: what was said and is not so.
    """

    status: str
    share: float
    x: list[float]
    truth: float
    best: float
    violation: float
    stated: float
    standard_error: float | None
    error: float | None
    true_gap: float
    stated_gap: float | None
    cpu: float
    seconds: float
    obeyed: bool
    samples: int
    false_claims: list[str]
    log: list[str]


def measure(name: str, seed: int, seconds: float) -> Row:
    """Solve a problem and judge the answer."""
    jax.config.update("jax_enable_x64", False)
    logging.getLogger("hierax").setLevel(logging.ERROR)
    problem, x0, y0, truth = CASES[name]()
    began, clock = time.process_time(), time.perf_counter()
    try:
        solution = solve(problem, x0, y0, seconds=seconds, seed=seed, progress=False)
        _ = solution.status.name, solution.value
    except Exception as error:
        return _raised(f"{type(error).__name__}: {error}", truth, time.process_time() - began)
    spent, passed = time.process_time() - began, time.perf_counter() - clock
    x = np.ravel(np.asarray(solution.x, float))
    _, best = truth.best()
    at, at_start, there = truth.phi(x), _merit(truth, truth.x0), _merit(truth, x)
    said = solution.estimates
    standard_error = None if said is None else float(said.upper_se)
    stated, off = float(solution.value), float(solution.value) - at
    row: Row = {
        "status": solution.status.name,
        "share": (at_start - there) / (at_start - best),
        "x": x.tolist(),
        "truth": at,
        "best": best,
        "violation": truth.violation(x),
        "stated": stated,
        "standard_error": standard_error,
        "error": abs(off) / standard_error if standard_error else None,
        "true_gap": there - best,
        "stated_gap": None if said is None else float(said.gap),
        "cpu": spent,
        "seconds": passed,
        "obeyed": passed <= LATE * seconds + LATE_SECONDS,
        "samples": solution.counts.zeta + solution.counts.xi,
        "false_claims": [],
        "log": [str(line) for line in solution.log],
    }
    row["false_claims"] = false_claims(row, solution.status.ok, at_start - best)
    return row


def _merit(truth: Truth, x: np.ndarray) -> float:
    return truth.phi(x) + MERIT * max(truth.violation(x), 0.0)


def _raised(error: str, truth: Truth, spent: float) -> Row:
    """The row of a call that raised: its answer is the start."""
    value, (_, best), nothing = truth.phi(truth.x0), truth.best(), float("nan")
    return Row(
        status=f"raised {error}"[:200],
        share=0.0,
        x=truth.x0.tolist(),
        truth=value,
        best=best,
        violation=truth.violation(truth.x0),
        stated=nothing,
        standard_error=None,
        error=None,
        true_gap=_merit(truth, truth.x0) - best,
        stated_gap=None,
        cpu=spent,
        seconds=nothing,
        obeyed=True,
        samples=0,
        false_claims=[],
        log=[],
    )


def false_claims(row: Row, claims: bool, decrease: float) -> list[str]:
    """What a run says that is not so; `claims`: its status claims a solution, `decrease`: from the start to the best.

    A stated value without a standard error counts as exact up to the slack.
    """
    slack = SLACK * (1 + abs(row["truth"]))
    off, gap = abs(row["stated"] - row["truth"]), row["stated_gap"]
    found = []
    if off > slack + ERRORS * (row["standard_error"] or 0.0):
        found.append("value")
    if gap is not None and row["true_gap"] > GAPS * gap + min(slack, SLACK * decrease):
        found.append("gap")
    if claims and row["true_gap"] > max(GAPS * (gap or 0.0), slack, SLACK * decrease):
        found.append("solved")
    if claims and row["violation"] > SLACK:
        found.append("feasible")
    if row["share"] < -SLACK:
        found.append("worse than the start")
    return found


def run(
    console: Console,
    names: list[str],
    seeds: int,
    seconds: float,
    out: Path,
    again: bool = False,
    parallel: bool = True,
) -> None:
    """Run what is not in results.json of the folder yet, print the table, write results.json after every run."""
    file = out / "results.json"
    rows: dict[str, Any] = json.loads(file.read_text()) if file.is_file() and not again else {}
    tasks: dict[Name, Task[Row]] = {
        (name, f"seed {seed}"): (measure, (name, seed, seconds))
        for seed in range(seeds)
        for name in names
        if f"{name}, seed {seed}" not in rows
    }

    def keep(found: dict[Name, Row]) -> None:
        rows.update({", ".join(name): plain(row) for name, row in found.items()})
        write_results(out, rows)

    try:
        run_tasks(tasks, console, parallel, keep, fresh=True)
    finally:
        report(console, {name: row for name, row in rows.items() if name.rsplit(",", 1)[0] in names})


def report(console: Console, rows: dict[str, Row]) -> None:
    """The table, and the false claims counted."""
    table = headed(
        "`hx.solve` with nothing set",
        "status",
        "share",
        "F",
        "stated",
        "s.e. off",
        "gap",
        "stated",
        "CPU s",
        "obeyed",
        "samples",
        "false",
    )
    for name, row in sorted(rows.items(), key=lambda item: list(CASES).index(item[0].rsplit(",", 1)[0])):
        stated, error, gap = row["stated"], row["error"], row["stated_gap"]
        table.add_row(
            name,
            row["status"][:24],
            f"{row['share']:.4f}",
            f"{row['truth']:.5g}",
            "-" if stated is None else f"{stated:.5g}",
            "-" if error is None else f"{error:.1f}",
            f"{row['true_gap']:.1e}",
            "-" if gap is None else f"{gap:.1e}",
            f"{row['cpu']:.1f}",
            "yes" if row["obeyed"] else f"{row['seconds']:.0f} s",
            f"{row['samples']:,}",
            ", ".join(row["false_claims"]),
        )
    console.print(table)
    false = sum(bool(row["false_claims"]) for row in rows.values())
    late = sum(not row["obeyed"] for row in rows.values())
    shares = [row["share"] for row in rows.values()]
    if rows:
        spent = sum(row["cpu"] for row in rows.values())
        console.print(
            f"{len(rows)} runs: {false} with false claims, {late} later than `seconds` allows; shares of the decrease: "
            f"median {np.median(shares):.4f}, least {min(shares):.4f}; {spent:.0f} CPU s.",
            highlight=False,
        )
