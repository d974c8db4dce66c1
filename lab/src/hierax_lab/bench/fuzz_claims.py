"""Solves a random problem with nothing set and compares what hierax claims with what the judge finds."""

import dataclasses
import re
import time
import traceback
import warnings
from typing import NamedTuple

import numpy as np

import hierax as hx
from hierax_lab.bench.fuzz_case import Case, as_problem, to_core, to_user, upper_value
from hierax_lab.bench.fuzz_judge import GLOBAL_MISS, Verdict, judge
from hierax_lab.bench.fuzz_probe import Probed, probe

# Kinds of wrong claims, and what each of them is.
KINDS = {
    "false_converged": "claims converged or best_of_branches, but the point violates, is not optimal below, or falls",
    "false_ok": "sol.certificate.ok(1e-4) although the judge objects in the same way",
    "wrong_status": "infeasible or unbounded and not called so, or called so and solvable",
    "contradiction": "status, print(sol), log, value and certificate do not agree with each other",
    "late": "longer than 1.05 x seconds + 1, compilation apart",
    "crash": "an exception",
    "beats_judge": "better than the judge's global optimum: the judge is wrong",
}
MISSED = "missed_global"  # counted, but no wrong claim
CLAIMING = ("converged", "best_of_branches")  # statuses that claim a solution
DENYING = ("not_certified", "unproved")
FAILED = ("infeasible", "unbounded_upper", "unbounded_lower")
TOL = 1e-4  # tolerance of the certificate
MIN_TIME_PART = 0.7  # part of the limit that a run which claims to be out of time must have used
NOT_PROBED = Probed([], "")


class Times(NamedTuple):
    """Seconds that one problem took: `solve` (compilation apart), its compilation, and the judge."""

    solve: float = 0.0
    compilation: float = 0.0
    judge: float = 0.0


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of one problem.

    Attributes:
        number: of the problem.
        case: the problem.
        status: of the solution, or "crash".
        wrong: wrong claims by kind, each in words.
        missed: whether the global optimum was missed (of a solvable problem).
        certified: certificate.ok(1e-4).
        times: what it took; zeros after a crash.
        verdict: the judge's, of a solvable problem.
        solution: hierax's.
        trace: the traceback of a crash.
        refused: why `certify` says no at the judge's optimum; empty where it says yes or was not asked.
    """

    number: int
    case: Case
    status: str
    wrong: dict[str, str]
    missed: bool = False
    certified: bool = False
    times: Times = Times()
    verdict: Verdict | None = None
    solution: hx.Solution | None = None
    trace: str = ""
    refused: str = ""


def examine(number: int, case: Case, seconds: float, certify: bool = False) -> Result:
    """Solve problem `number`, ask for its certificate, and judge what is claimed; `certify`: of other points too."""
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            solution = hx.solve(as_problem(case), *to_user(case, *case.start), seconds=seconds, throw=False)
            wall = time.perf_counter() - begin
            certified = solution.certificate.ok(TOL)
            text = str(solution)
            probed = probe(case, solution.problem, TOL) if certify and case.truth == "solvable" else NOT_PROBED
    except Exception as error:
        words = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        lost = case.truth == "solvable"
        return Result(number, case, "crash", {"crash": words}, missed=lost, trace=traceback.format_exc())
    spent = wall - solution.counts.compile_seconds
    point = to_core(case, solution.x, solution.y)
    begin = time.perf_counter()
    verdict = judge(case, *point) if case.truth == "solvable" else None
    judging = time.perf_counter() - begin
    wrong = _false_claims(case, solution, certified, verdict)
    if probed.false_ok:
        wrong["false_ok"] = "; ".join([*probed.false_ok, wrong.get("false_ok", "")])
    disagreement = _contradiction(case, solution, certified, text, point)
    if not disagreement and solution.status.name == "seconds" and wall < MIN_TIME_PART * seconds:
        disagreement = f"says that {seconds:g} s were up after {wall:.1f}"
    if disagreement:
        wrong["contradiction"] = disagreement
    if spent > 1.05 * seconds + 1.0:
        wrong["late"] = f"{spent:.1f} s of {seconds:g}"
    return Result(
        number,
        case,
        solution.status.name,
        wrong,
        verdict is not None and verdict.missed(),
        certified,
        Times(spent, solution.counts.compile_seconds, judging),
        verdict,
        solution,
        refused=probed.refused,
    )


def _false_claims(case: Case, solution: hx.Solution, certified: bool, verdict: Verdict | None) -> dict[str, str]:
    """Claims about the point and about the problem that the truth denies."""
    name, wrong = solution.status.name, {}
    if verdict is None:
        if name != case.truth:
            wrong["wrong_status"] = f"is {case.truth} ({case.twist}), called {name}"
        faults = [f"the problem is {case.truth}"]
    else:
        if name in FAILED:
            wrong["wrong_status"] = f"called {name}, but F = {verdict.optimum.value:.6g} can be had"
        faults = verdict.faults()
        if verdict.beats() and case.form.planted is None:
            wrong["beats_judge"] = f"F = {verdict.upper:.6g}, the judge's optimum is {verdict.optimum.value:.6g}"
    if faults and name in CLAIMING:
        wrong["false_converged"] = f"{name}: {'; '.join(faults)}"
    if faults and certified:
        wrong["false_ok"] = "; ".join(faults)
    return wrong


def _contradiction(
    case: Case, solution: hx.Solution, certified: bool, text: str, point: tuple[np.ndarray, np.ndarray]
) -> str:
    """Where the parts of an answer say different things; empty where they agree."""
    name, certificate = solution.status.name, solution.certificate
    if name in CLAIMING and not certified:
        return f"{name}, but certificate.ok({TOL:g}) is False: {certificate.reasons(TOL)[0]}"
    if name in (*DENYING, *FAILED) and certified:
        return f"{name}, but certificate.ok({TOL:g}) is True"
    if not text.startswith(f"Solution: {name}"):
        return f"print(sol) begins with {text.splitlines()[0]!r}, the status is {name}"
    line = next((line for line in text.splitlines() if line.startswith("certificate")), "")
    shown = re.search(r"\bok at tol ([0-9.e+-]+[0-9])", line)
    if shown and not certificate.ok(float(shown.group(1))):
        return f"print(sol) says {line!r}, certificate.ok does not"
    if re.search(r"\bno\b:", line) and certificate.ok(TOL):
        return f"print(sol) says {line!r}, certificate.ok({TOL:g}) is True"
    claimed = [entry for entry in solution.log if entry.startswith(("converged", "best_of_branches"))]
    if claimed and name not in CLAIMING:
        return f"the log says {claimed[-1]!r}, the status is {name}"
    return _value_differs(case, solution, point)


def _value_differs(case: Case, solution: hx.Solution, point: tuple[np.ndarray, np.ndarray]) -> str:
    scale, offset = case.units.upper
    truth = scale * float(upper_value(case.form, case.numbers, *point)) + offset
    allowed = 1e-6 * (abs(truth) + GLOBAL_MISS * scale)
    if np.isfinite(truth) and not abs(solution.value - truth) <= allowed:
        return f"sol.value is {solution.value:.8g}, F there is {truth:.8g}"
    return ""
