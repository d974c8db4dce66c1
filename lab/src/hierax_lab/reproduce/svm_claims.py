"""What the SVM experiment has to show, and what the paper says about it, judged by the numbers of a run.

`summary` makes one row per method from its runs; `targets` and `verdicts` read those rows and nothing else.
"""

import math
from collections.abc import Callable

import numpy as np

from hierax_lab.reproduce.comparison import Row, TargetRow, endings, mean_and_error, target
from hierax_lab.reproduce.svm_runs import Curve, MethodResult
from hierax_lab.reproduce.verdict import Verdict

OURS = ("SALVF", "SALVF-VR", "SALVF, exact inner")
RIVAL = "BLOCC"
MIN_SHARE = 0.95  # of the best baseline's decrease of phi, for SALVF
REACHED = 0.90  # of the best decrease: the level to which seconds are counted
COLUMNS = (  # of the returned point and its run that are averaged
    "phi",
    "accuracy",
    "accuracy_exact",
    "seconds",
    "seconds_per_step",
    "grad_lower",
    "lower_solves",
    "zeta",
)

Summaries = dict[str, dict[str, Row]]  # by data set, then by method


def summary(results: dict[str, MethodResult]) -> dict[str, Row]:
    """Means and standard errors over the seeds, per method, and the seconds to 90 % of the best decrease.

    A failed run enters no number: means are over the runs that finished. Where none did, or no setting finished in the
    tuning, the numbers are None.
    """
    table = {name: _numbers(result) for name, result in results.items()}
    best = max((row["decrease"] for row in table.values() if row["decrease"] is not None), default=math.inf)
    for name, row in table.items():
        row["seconds_to_90"] = None
        if curves := _reported(results[name]):
            decrease = np.mean([curve.decrease for curve in curves], axis=0)
            seconds = np.mean([curve.seconds for curve in curves], axis=0)
            there = np.nonzero(decrease >= REACHED * best)[0]
            row["seconds_to_90"] = float(seconds[there[0]]) if len(there) else None
    return table


def _reported(result: MethodResult) -> list[Curve]:
    """The runs that are a result: those that finished, with a setting that finished in the tuning."""
    return [curve for curve in result["curves"] if not curve.failed] if result["tuned"] else []


def _numbers(result: MethodResult) -> Row:
    curves, reported = result["curves"], _reported(result)
    finals = [curve.final for curve in reported]
    row: Row = {
        "setting": result["setting"]._asdict(),
        "tuned": result["tuned"],
        "tuning": result["tuning"],
        "compile_seconds": result["compile_seconds"],
        **endings([curve.final for curve in curves]),
        "violation": max((final["violation"] for final in finals), default=None),
        "gap": max((final["gap"] for final in finals), key=abs, default=None),
        "certified": sum(final["certified"] for final in finals),
    }
    columns = {
        "start_phi": [curve.phi[0] for curve in curves],
        "start_accuracy": [curve.accuracy[0] for curve in curves],
        "decrease": [curve.phi[0] - curve.final["phi"] for curve in reported],
    }
    for name in COLUMNS:
        columns[name] = [final[name] for final in finals]
    for name, values in columns.items():
        row[name], row[f"{name}_se"] = mean_and_error(values)
    return row


def targets(summaries: Summaries) -> list[TargetRow]:
    """The bounds that SALVF has to keep, with what was measured; they are kept only where all its runs finished."""
    judged: list[TargetRow] = []
    for name, table in summaries.items():
        ours, all_finished = table["SALVF"], _all_finished(table["SALVF"])
        rivals = {method: row["decrease"] for method, row in table.items() if method not in OURS}
        rivals = {method: decrease for method, decrease in rivals.items() if decrease is not None}
        best = max(rivals, key=lambda method: rivals[method], default=None)
        share = None if best is None or ours["decrease"] is None else ours["decrease"] / rivals[best]
        wanted = f"SALVF's decrease >= {MIN_SHARE:.0%} of the best baseline's ({best or 'none finished'})"
        measured = "no run to judge" if share is None else f"{share:.1%}"
        judged.append(target(name, wanted, measured, all_finished and share is not None and share >= MIN_SHARE))
        mine, theirs = (table[method]["seconds_to_90"] for method in ("SALVF", RIVAL))
        wanted = f"SALVF's seconds to {REACHED:.0%} of the best decrease <= {RIVAL}'s"
        measured = f"{shown_seconds(mine)} against {shown_seconds(theirs)}"
        faster = mine is not None and (theirs is None or mine <= theirs)
        judged.append(target(name, wanted, measured, all_finished and faster))
        certified = ", ".join(f"{table[method]['certified']} of {table[method]['runs']}" for method in OURS)
        all_certified = all(table[method]["certified"] == table[method]["runs"] for method in OURS)
        wanted = "every point of SALVF certified: violation <= 1e-3, gap <= 1e-2"
        judged.append(target(name, wanted, certified, all_certified))
    return judged


def _all_finished(row: Row) -> bool:
    return bool(row["tuned"] and row["finished"] == row["runs"])


def shown_seconds(value: float | None) -> str:
    """Seconds as text; None is a level that was never reached."""
    return "never" if value is None else f"{value:.2f} s"


def verdicts(summaries: Summaries) -> list[Verdict]:
    """The paper's three statements about this experiment."""
    return [_better_accuracy(summaries), _blocc_is_near(summaries), _faster_than_blocc(summaries)]


def _gap_to(table: dict[str, Row], method: str, other: str) -> tuple[float, float] | None:
    """Difference of the mean test accuracies, and its standard error from those of the two means.

    None where a method has no run that finished.
    """
    first, second = table[method], table[other]
    if first["accuracy"] is None or second["accuracy"] is None:
        return None
    return first["accuracy"] - second["accuracy"], float(np.hypot(first["accuracy_se"], second["accuracy_se"]))


def _named(table: dict[str, Row], method: str) -> str:
    """A method's name, with how many of its runs finished where not all did."""
    row = table[method]
    return method if _all_finished(row) else f"{method} ({row['finished']} of {row['runs']} finished)"


def _no_result(table: dict[str, Row], *methods: str) -> str:
    """Which of the methods have no result."""
    return " and ".join(_named(table, method) for method in methods if table[method]["accuracy"] is None)


def _better_accuracy(summaries: Summaries) -> Verdict:
    def evidence(table: dict[str, Row], best: str, difference: float, error: float) -> tuple[bool, str]:
        accuracies = [f"{_named(table, method)} {table[method]['accuracy']:.3f}" for method in ("SALVF", best)]
        text = f"{accuracies[0]}, best baseline {accuracies[1]}, difference {difference:+.3f} +- {error:.3f}"
        return _all_finished(table["SALVF"]) and difference > 2 * error, text

    def best_baseline(table: dict[str, Row]) -> str:
        rivals = [method for method, row in table.items() if not method.startswith("SALVF") and row["accuracy"]]
        return max(rivals, key=lambda method: table[method]["accuracy"], default=RIVAL)

    clear, lines = _compared(summaries, best_baseline, evidence)
    holds = "yes" if all(clear) else "no: not by two standard errors" + (" on every set" if any(clear) else "")
    return Verdict("SALVF achieves a better accuracy over the baselines", holds, lines)


def _blocc_is_near(summaries: Summaries) -> Verdict:
    def evidence(table: dict[str, Row], rival: str, difference: float, error: float) -> tuple[bool, str]:
        text = f"{_named(table, 'SALVF')} minus {_named(table, rival)} {difference:+.3f} +- {error:.3f}"
        return abs(difference) <= 2 * error, text

    near, lines = _compared(summaries, lambda table: RIVAL, evidence)
    holds = "yes: equal within two standard errors" if all(near) else "no"
    return Verdict("BLOCC also has an approximate peak accuracy", holds, lines)


def _compared(
    summaries: Summaries,
    rival_in: Callable[[dict[str, Row]], str],
    evidence: Callable[[dict[str, Row], str, float, float], tuple[bool, str]],
) -> tuple[list[bool], list[str]]:
    """By data set, whether SALVF's accuracy is to its rival's as claimed, and the numbers; no where one has no run."""
    judged = []
    for name, table in summaries.items():
        rival = rival_in(table)
        gap = _gap_to(table, "SALVF", rival)
        none = False, f"no result of {_no_result(table, 'SALVF', rival)}"
        holds, text = none if gap is None else evidence(table, rival, *gap)
        judged.append((holds, f"{name}: {text}"))
    return [holds for holds, _ in judged], [text for _, text in judged]


def _faster_than_blocc(summaries: Summaries) -> Verdict:
    faster, evidence = [], []
    for name, table in summaries.items():
        shown_methods = [method for method in ("SALVF", "SALVF, exact inner", RIVAL) if method in table]
        without = _no_result(table, *shown_methods)
        if without:
            faster.append(False)
            evidence.append(f"{name}: no result of {without}")
            continue
        times = {method: 1e3 * table[method]["seconds_per_step"] for method in shown_methods}
        faster.append(max(time for method, time in times.items() if method != RIVAL) < times[RIVAL])
        shown = ", ".join(f"{_named(table, method)} {time:.2f} ms" for method, time in times.items())
        evidence.append(f"{name}, per step: {shown}")
    return Verdict("iterations of SALVF are more time-efficient than BLOCC's", "yes" if all(faster) else "no", evidence)
