"""`hierax bench medium`: problems of ten to a thousand variables, Auto with nothing set against outside solvers.

Every answer is judged outside hierax (`medium_judge`). Each problem and solver has a process of its own with one thread
and without kept programs: the first run is cold, the second, of the same problem object, is compiled.
"""

import math
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from hierax_lab.bench.medium_case import Functions
from hierax_lab.bench.medium_judge import Judge
from hierax_lab.bench.medium_problems import build, missing
from hierax_lab.bench.medium_report import Found, Record, print_report
from hierax_lab.bench.medium_solvers import SOLVERS, Answer, NotApplicable
from hierax_lab.output import write_results
from hierax_lab.reproduce.workers import Name, Task, run_tasks

TOLERANCE = 1e-4  # at which the certificate is asked


class _Certified(NamedTuple):
    """What is kept of a certificate: verdict, unit-free slope, whether it gives a standard error of F."""

    verdict: str = "-"
    slope: float | None = None
    standard_error: bool = False


def measure(name: str, solver: str, seeds: int, seconds: float | None, data_dir: Path | None) -> list[Record]:
    """Run a solver on a problem with every seed, judge each answer; the first seed is run again, compiled."""
    functions = Functions(build(name, data_dir))
    judge, records = Judge(functions), list[Record]()
    start = judge.start()
    for seed in [*range(seeds), 0]:
        began = time.process_time()
        try:
            answer = SOLVERS[solver](functions, seed, seconds)
        except NotApplicable as reason:
            return [_not_run(functions, start, str(reason))]
        spent = time.process_time() - began
        if len(records) == seeds:
            records[0]["compiled"] = spent
            break
        records.append(_record(functions, judge, answer, start, seed, spent))
    return records


def _record(functions: Functions, judge: Judge, answer: Answer, start: float | None, seed: int, spent: float) -> Record:
    judged = judge(answer.x, answer.y)
    descent = judge.descent(answer.x) if answer.claims else None
    certified = _certified(answer)
    return {
        **_not_run(functions, start, ""),
        "seed": seed,
        "upper": judged.upper,
        "violation": judged.violation,
        "gap": judged.gap,
        "descent": descent,
        "false_claim": descent is not None and judge.false_claim(judged, descent),
        "gap_allowed": judge.limit,
        "cold": spent,
        "status": answer.status,
        "claims": answer.claims,
        "certificate": certified.verdict,
        "slope": certified.slope,
        "standard_error": certified.standard_error,
        "x": np.ravel(answer.x).tolist(),
    }


def _not_run(functions: Functions, start: float | None, reason: str) -> Record:
    """The record of a solver that was not run: what the problem is, and the reason."""
    case = functions.case
    return {
        "sizes": str(functions.sizes),
        "known": case.best,
        "published": case.published,
        "sampled": case.sampled,
        "least_share": case.least_share,
        "start": start,
        "not_run": reason,
    }


def _certified(answer: Answer) -> _Certified:
    """What the certificate says, where the answer comes with one."""
    if answer.solution is None:
        return _Certified()
    certificate = answer.solution.certificate
    gain, scale = certificate.gain(TOLERANCE) if certificate.gains else math.nan, certificate.upper_scale
    slope = gain / scale if math.isfinite(gain) and scale > 0 else None
    return _Certified(certificate.verdict(TOLERANCE), slope, certificate.upper_se is not None)


def run(
    console: Console,
    names: list[str],
    solvers: list[str],
    seconds: float | None,
    seeds: int,
    data_dir: Path | None,
    out: Path,
    parallel: bool = True,
) -> bool:
    """Run, print the table and the targets, write results.json; whether every target is met.

    Args:
        console: where to print.
        names: the problems.
        solvers: the solvers.
        seconds: limit of every run; None: nothing is set for Auto, 30 for the others.
        seeds: seeds of Auto; the others run once.
        data_dir: folder of data sets.
        out: folder of results.json, which is written after every run.
        parallel: in processes of their own, which cold figures need.
    """
    here = []
    for name in names:
        reason = missing(name, data_dir)
        if reason:
            console.print(f"Left out: {reason}", highlight=False, soft_wrap=True)
        else:
            here.append(name)
    tasks: dict[Name, Task[list[Record]]] = {
        (name, solver): (measure, (name, solver, seeds if solver == "Auto" else 1, seconds, data_dir))
        for name in here
        for solver in solvers
    }
    found: Found = {}

    def keep(results: Found) -> None:
        found.update(results)
        rows = [{"problem": name, "solver": solver, **row} for (name, solver), runs in found.items() for row in runs]
        write_results(out, rows)

    try:
        run_tasks(tasks, console, parallel, keep, fresh=True)
    except KeyboardInterrupt:
        print_report(console, found)
        raise
    return print_report(console, found)
