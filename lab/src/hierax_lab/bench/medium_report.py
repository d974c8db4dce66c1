"""The table of `hierax bench medium` and its targets, from the records alone."""

import math
from typing import NotRequired, TypedDict

from rich.console import Console
from rich.table import Table

from hierax_lab.reproduce.comparison import FAILED, headed, shown_statuses, target_table
from hierax_lab.reproduce.workers import Name

FEASIBLE = 1e-5  # violation of an answer that may count as the best known
SOLVED, PUBLISHED = 1e-4, 1e-3  # largest F - F_best of a solved problem, relative to 1 + |F_best|
MIN_SHARE = 0.995  # of the possible decrease, where there are samples
CLAIMED, SECONDS = 8 / 11, 60.0  # share of the problems of MacMPEC that Auto should certify; CPU seconds of each
MAX_COMPILATION = 12.0  # CPU seconds that a cold run may take more than a compiled one
LIMITS = {  # CPU seconds of Auto, compiled
    "planted-20+200": 3.0,
    "planted-40+400": 8.0,
    "planted-10+1000": 30.0,
    "ridge": 3.0,
    "portfolio-120": 20.0,
    "noisy": 30.0,
}
SVM_SECONDS = 40.0  # CPU seconds of Auto on the SVM problems, compiled
SVM_SHARE, SVM_SLOPE = 0.99, 1e-3  # least share of the possible decrease, largest slope of an unproved answer


class Record(TypedDict):
    """A run of a solver on a problem, as results.json has it; fields after `not_run` are those of runs that were made.

    `upper` is F(x, y*(x)), `descent` what the judge could lower it by close by (of claims only), `slope` the
    certificate's, in units of F's scale; `cold` and `compiled` are CPU seconds, `x` is the answer's, flat.
    """

    sizes: str
    known: float | None
    published: bool
    sampled: bool
    least_share: float | None
    start: float | None
    not_run: str
    seed: NotRequired[int]
    upper: NotRequired[float]
    violation: NotRequired[float]
    gap: NotRequired[float]
    descent: NotRequired[float | None]
    false_claim: NotRequired[bool]
    gap_allowed: NotRequired[float]
    cold: NotRequired[float]
    compiled: NotRequired[float]
    status: NotRequired[str]
    claims: NotRequired[bool]
    certificate: NotRequired[str]
    slope: NotRequired[float | None]
    standard_error: NotRequired[bool]
    x: NotRequired[list[float]]


Found = dict[Name, list[Record]]  # by problem and solver, one record per seed
Target = tuple[str, str, bool]


def best_value(found: Found, problem: str) -> float:
    """The lowest of what is known and of every feasible answer; of a published problem, what is published."""
    records = [row for (name, _), rows in found.items() if name == problem for row in rows]
    known = [row["known"] for row in records if row["known"] is not None]
    if records[0]["published"]:
        return min(known)
    seen = [row["upper"] for row in records if not row["not_run"] and row["violation"] <= FEASIBLE]
    return min([*known, *seen], default=math.inf)


def share(row: Record, best: float) -> float | None:
    """The share of the possible decrease of F that was found; None where the start is not feasible."""
    if row["start"] is None or not row["start"] > best:
        return None
    return (row["start"] - row["upper"]) / (row["start"] - best)


def solved(row: Record, best: float) -> bool:
    """Whether an answer is the best known one, within the tolerance of its kind; never that of a failed run."""
    if row["not_run"] or row["status"] in FAILED or not row["violation"] <= SOLVED:
        return False
    if row["sampled"]:
        part = share(row, best)
        return part is not None and part >= MIN_SHARE
    tolerance = PUBLISHED if row["published"] else SOLVED
    least = row.get("least_share")
    if least is not None:
        part, tolerance = share(row, best), SOLVED
        if row["violation"] > FEASIBLE:
            return False
        if part is not None:
            return bool(part >= least and row["gap"] <= row["gap_allowed"])
    return bool(row["upper"] - best <= tolerance * (1 + abs(best)) and row["gap"] <= row["gap_allowed"])


def print_report(console: Console, found: Found) -> bool:
    """The table and the targets; whether every target that the run can judge is met."""
    if not found:
        return True
    console.print(_table(found))
    for (problem, solver), rows in found.items():
        if rows[0]["not_run"]:
            console.print(f"{problem}, {solver}: not run: {rows[0]['not_run']}", style="dim", soft_wrap=True)
    targets = _targets(found)
    if targets:
        console.print(target_table("targets (Auto)", ("measured",), targets))
    return all(met for _, _, met in targets)


def _table(found: Found) -> Table:
    names = ("solver", "F", "share", "violates", "gap", "cold s", "comp. s", "ended", "cert.", "solved")
    table = headed("judged outside hierax", "x+y, rows", *names)
    table.padding = (0, 1, 0, 0)
    for column in table.columns:
        column.no_wrap = True
    last = ""
    for (problem, solver), rows in found.items():
        if rows[0]["not_run"]:
            continue
        first, best = rows[0], best_value(found, problem)
        part = share(first, best)
        table.add_row(
            problem if problem != last else "",
            first["sizes"] if problem != last else "",
            solver,
            f"{first['upper']:.5g}",
            "-" if part is None else f"{100 * part:.2f}%",
            f"{first['violation']:.0e}",
            f"{first['gap']:.0e}",
            f"{first['cold']:.1f}",
            f"{first['compiled']:.2f}",
            (first["status"] if len(rows) == 1 else shown_statuses(row["status"] for row in rows))
            + (" (false)" if first["false_claim"] else ""),
            first["certificate"],
            f"{sum(solved(row, best) for row in rows)}/{len(rows)}",
        )
        last = problem
    return table


def _targets(found: Found) -> list[Target]:
    """The targets, as far as the problems that were run can judge them."""
    auto = {problem: rows[0] for (problem, solver), rows in found.items() if solver == "Auto"}
    if not auto:
        return []
    best = {problem: best_value(found, problem) for problem in auto}
    shared = {problem: row for problem, row in auto.items() if row.get("least_share") is not None}
    others = {problem: row for problem, row in auto.items() if problem not in shared}
    targets = [
        *_values(others, best),
        *_claims(others, 0.8, "80 %"),
        *_shares(shared, best),
        *_claims(shared, CLAIMED, "8 of 11"),
        *(_seconds(problem, auto[problem], best[problem]) for problem in LIMITS if problem in auto),
        *(_svm(problem, row, best[problem]) for problem, row in auto.items() if problem.startswith("svm")),
    ]
    if "noisy" in auto:
        given = auto["noisy"].get("standard_error", False)
        targets.append(("noisy: with a standard error", "yes" if given else "no", given))
    slow = {problem: row["cold"] - row["compiled"] for problem, row in auto.items()}
    worst = max(slow, key=lambda problem: slow[problem])
    targets.append(
        (f"cold at most {MAX_COMPILATION:g} s more", f"{slow[worst]:.1f} ({worst})", slow[worst] <= MAX_COMPILATION)
    )
    if {"planted-20+200", "planted-40+400"} <= auto.keys():
        power = math.log2(auto["planted-40+400"]["compiled"] / auto["planted-20+200"]["compiled"])
        targets.append(("growth from 20+200 to 40+400 at most n^3", f"n^{power:.1f}", power <= 3.0))
    return targets


def _values(auto: dict[str, Record], best: dict[str, float]) -> list[Target]:
    kinds = {
        "deterministic: F - F_best <= 1e-4 (1 + |F_best|)": [
            name for name, row in auto.items() if not row["sampled"] and not row["published"]
        ],
        "sampled: 99.5 % of the possible decrease": [name for name, row in auto.items() if row["sampled"]],
        "qpec: within 1e-3 (1 + |F|) of the best known": [name for name, row in auto.items() if row["published"]],
    }
    targets = []
    for text, names in kinds.items():
        missed = [name for name in names if not solved(auto[name], best[name])]
        if names:
            measured = f"{len(names) - len(missed)} of {len(names)}" + (f", not {', '.join(missed)}" if missed else "")
            targets.append((text, measured, not missed))
    return targets


def _shares(auto: dict[str, Record], best: dict[str, float]) -> list[Target]:
    """The targets of the problems of MacMPEC."""
    if not auto:
        return []
    missed = [name for name, row in auto.items() if not solved(row, best[name])]
    slow = [name for name, row in auto.items() if row["cold"] > SECONDS]
    return [
        (
            "at most 1 % of the decrease left, or within 1e-4 (1 + |F|) of the published value",
            f"{len(auto) - len(missed)} of {len(auto)}" + (f", not {', '.join(missed)}" if missed else ""),
            not missed,
        ),
        (f"at most {SECONDS:g} CPU s each, cold", ", ".join(slow) or "all", not slow),
    ]


def _claims(auto: dict[str, Record], least: float, text: str) -> list[Target]:
    if not auto:
        return []
    count = len(auto)
    sure = sum(row["claims"] and row["certificate"] == "yes" for row in auto.values())
    false = [problem for problem, row in auto.items() if row["false_claim"]]
    return [
        (f"converged with the certificate's yes: at least {text}", f"{sure} of {count}", sure >= least * count),
        ("no false claim", ", ".join(false) or "none", not false),
    ]


def _seconds(problem: str, row: Record, best: float) -> Target:
    limit, spent, done = LIMITS[problem], row["compiled"], solved(row, best)
    measured = f"{spent:.2f}" if done else f"{spent:.2f}, not solved"
    return f"{problem}: solved in {limit:g} s, compiled", measured, done and spent <= limit


def _svm(problem: str, row: Record, best: float) -> Target:
    """99 % of the decrease, and certified, or unproved with a small slope, in 40 s."""
    part, spent, slope = share(row, best), row["compiled"], row["slope"]
    flat = slope is not None and abs(slope) < SVM_SLOPE
    known = row["certificate"] == "yes" or (row["status"] == "unproved" and flat)
    met = part is not None and part >= SVM_SHARE and known and spent <= SVM_SECONDS
    text = f"{problem}: 99 %; certified, or unproved with slope < {SVM_SLOPE:g}, in {SVM_SECONDS:g} s, compiled"
    shown = "-" if part is None else f"{100 * part:.2f} %"
    return text, f"{shown}, {row['status']}, slope {'-' if slope is None else f'{slope:.1e}'}, {spent:.1f} s", met
