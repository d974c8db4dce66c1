"""What the SVM experiment has to show, and what the paper says about it, judged by the numbers of a run.

`summary` makes one row per method from its runs; `targets` and `verdicts` read those rows and nothing else.
"""

import numpy as np

from hierax_lab.reproduce.comparison import Row, TargetRow
from hierax_lab.reproduce.svm_runs import MethodResult
from hierax_lab.reproduce.verdict import Verdict

OURS = ("SALVF", "SALVF-VR", "SALVF, exact inner")
RIVAL = "BLOCC"
SHARE = 0.95  # of the best baseline's decrease of phi that SALVF has to reach
REACHED = 0.90  # of the best decrease: the level to which seconds are counted

Summaries = dict[str, dict[str, Row]]  # by data set, then by method


def summary(results: dict[str, MethodResult]) -> dict[str, Row]:
    """Means and standard errors over the seeds, per method, and the seconds to 90 % of the best decrease."""
    table = {name: _numbers(result) for name, result in results.items()}
    best = max(row["decrease"] for row in table.values())
    for name, row in table.items():
        curves = results[name]["curves"]
        decrease = np.mean([curve.decrease for curve in curves], axis=0)
        seconds = np.mean([curve.seconds for curve in curves], axis=0)
        there = np.nonzero(decrease >= REACHED * best)[0]
        row["seconds_to_90"] = float(seconds[there[0]]) if len(there) else None
    return table


def _numbers(result: MethodResult) -> Row:
    curves = result["curves"]
    finals = [curve.final for curve in curves]
    row: Row = {
        "setting": result["setting"]._asdict(),
        "tuning": result["tuning"],
        "compile_seconds": result["compile_seconds"],
        "violation": max(final["violation"] for final in finals),
        "gap": max((final["gap"] for final in finals), key=abs),
        "certified": sum(final["certified"] for final in finals),
        "runs": len(finals),
        "statuses": sorted({final["status"] for final in finals}),
    }
    columns = {
        "decrease": [curve.phi[0] - curve.final["phi"] for curve in curves],
        "phi": [final["phi"] for final in finals],
        "start_accuracy": [curve.accuracy[0] for curve in curves],
    }
    for name in ("accuracy", "accuracy_exact", "seconds", "seconds_per_step", "grad_lower", "lower_solves", "zeta"):
        columns[name] = [final[name] for final in finals]
    for name, values in columns.items():
        row[name] = float(np.mean(values))
        row[f"{name}_se"] = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0
    return row


def targets(summaries: Summaries) -> list[TargetRow]:
    """The bounds that SALVF has to keep, with what was measured."""
    judged: list[TargetRow] = []
    for name, table in summaries.items():
        rivals = {method: row["decrease"] for method, row in table.items() if method not in OURS}
        best = max(rivals, key=lambda method: rivals[method])
        share = table["SALVF"]["decrease"] / rivals[best]
        judged.append(
            {
                "set": name,
                "target": f"SALVF's decrease >= {SHARE:.0%} of the best baseline's ({best})",
                "measured": f"{share:.1%}",
                "met": share >= SHARE,
            }
        )
        mine, theirs = (table[method]["seconds_to_90"] for method in ("SALVF", RIVAL))
        judged.append(
            {
                "set": name,
                "target": f"SALVF's seconds to {REACHED:.0%} of the best decrease <= {RIVAL}'s",
                "measured": f"{shown_seconds(mine)} against {shown_seconds(theirs)}",
                "met": mine is not None and (theirs is None or mine <= theirs),
            }
        )
        certified = [f"{table[method]['certified']} of {table[method]['runs']}" for method in OURS]
        judged.append(
            {
                "set": name,
                "target": "every point of SALVF certified: violation <= 1e-3, gap <= 1e-2",
                "measured": ", ".join(certified),
                "met": all(table[method]["certified"] == table[method]["runs"] for method in OURS),
            }
        )
    return judged


def shown_seconds(value: float | None) -> str:
    """Seconds as text; None is a level that was never reached."""
    return "never" if value is None else f"{value:.2f} s"


def verdicts(summaries: Summaries) -> list[Verdict]:
    """The paper's three statements about this experiment."""
    return [_better_accuracy(summaries), _blocc_is_near(summaries), _faster_than_blocc(summaries)]


def _gap_to(table: dict[str, Row], method: str, other: str) -> tuple[float, float]:
    """Difference of the mean test accuracies, and its standard error from those of the two means."""
    first, second = table[method], table[other]
    return first["accuracy"] - second["accuracy"], float(np.hypot(first["accuracy_se"], second["accuracy_se"]))


def _better_accuracy(summaries: Summaries) -> Verdict:
    clear, evidence = [], []
    for name, table in summaries.items():
        rivals = [method for method in table if not method.startswith("SALVF")]
        best = max(rivals, key=lambda method: table[method]["accuracy"])
        difference, error = _gap_to(table, "SALVF", best)
        clear.append(difference > 2 * error)
        evidence.append(
            f"{name}: SALVF {table['SALVF']['accuracy']:.3f}, best baseline {best} {table[best]['accuracy']:.3f}, "
            f"difference {difference:+.3f} +- {error:.3f}"
        )
    holds = "yes" if all(clear) else "no: not by two standard errors" + (" on every set" if any(clear) else "")
    return Verdict("SALVF achieves a better accuracy over the baselines", holds, evidence)


def _blocc_is_near(summaries: Summaries) -> Verdict:
    near, evidence = [], []
    for name, table in summaries.items():
        difference, error = _gap_to(table, "SALVF", RIVAL)
        near.append(abs(difference) <= 2 * error)
        evidence.append(f"{name}: SALVF minus BLOCC {difference:+.3f} +- {error:.3f}")
    return Verdict(
        "BLOCC also has an approximate peak accuracy",
        "yes: equal within two standard errors" if all(near) else "no",
        evidence,
    )


def _faster_than_blocc(summaries: Summaries) -> Verdict:
    faster, evidence = [], []
    for name, table in summaries.items():
        shown_methods = [method for method in ("SALVF", "SALVF, exact inner", RIVAL) if method in table]
        times = {method: 1e3 * table[method]["seconds_per_step"] for method in shown_methods}
        faster.append(max(time for method, time in times.items() if method != RIVAL) < times[RIVAL])
        shown = ", ".join(f"{method} {time:.2f} ms" for method, time in times.items())
        evidence.append(f"{name}, per step: {shown}")
    return Verdict("iterations of SALVF are more time-efficient than BLOCC's", "yes" if all(faster) else "no", evidence)
