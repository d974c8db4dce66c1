"""`hierax bench fuzz --families`: how often success is claimed falsely on the families of `fuzz_families`.

`hx.solve` is asked with nothing set but its limit in seconds, and `hx.certify` at points whose worth is known. A claim
is a status that is `ok` (`converged`, `best_of_branches`) or a certificate whose `verdict()` is "yes".
"""

import dataclasses
import json
import time
import warnings
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.console import Console

import hierax as hx
from hierax_lab.bench.fuzz import plain_table
from hierax_lab.bench.fuzz_families import draw_family
from hierax_lab.bench.fuzz_truth import FamilyCase, Fault, Point
from hierax_lab.output import versions

FALSE, SILENT, TRUE, ERROR = OUTCOMES = ("false", "not claimed", "true", "error")


@dataclasses.dataclass(frozen=True)
class Row:
    """What came of one question.

    Attributes:
        family: of the case.
        number: of the case.
        asked: "solve", or "certify" with the name of the point.
        outcome: one of `OUTCOMES`.
        answer: status and verdict, or the error.
        words: what is wrong with a false claim.
        local: whether a true claim is of a minimum of F over x that is not the global one.
        cpu_seconds: of the call, compilation included.
        value: F that was found, None without one.
        best: F at the global optimum, None where it is not known.
        parameters: of the case.
    """

    family: str
    number: int
    asked: str
    outcome: str
    answer: str
    words: str = ""
    local: bool = False
    cpu_seconds: float = 0.0
    value: float | None = None
    best: float | None = None
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)


def run(
    console: Console, families: list[str], numbers: list[int], seed: int, seconds: float, out: Path | None = None
) -> list[Row]:
    """Ask about cases of the families; print false claims, errors and the table; write every row as JSON."""
    rows: list[Row] = []
    for family in families:
        for number in numbers:
            for row in examine(family, number, draw_family(seed, family, number), seconds):
                rows.append(row)
                if row.outcome in (FALSE, ERROR) or len(numbers) == 1:
                    text = f"{row.outcome} --seed {seed} --families {family} --only {number}, {row.asked}: {row.answer}"
                    text += f"; {row.words}" if row.words else ""
                    console.print(text, soft_wrap=True, markup=False, highlight=False)
    counts = summary(rows)
    table = plain_table(*(name.replace("_", " ") for name in counts[0]))
    for entry in counts:
        table.add_row(*map(str, entry.values()))
    console.print(table)
    console.print(f"seed {seed}, cases {min(numbers)} to {max(numbers)}, at most {seconds:g} s by the clock per solve")
    if out is not None:
        head = {"seed": seed, "numbers": numbers, "seconds_per_solve": seconds, "versions": versions()}
        listed = [dataclasses.asdict(row) for row in rows]
        out.write_text(json.dumps(head | {"summary": counts, "rows": listed}, indent=1, default=_plain) + "\n")
    return rows


def summary(rows: list[Row]) -> list[dict[str, Any]]:
    """The counts of every family, for `hx.solve` and `hx.certify` apart, and of all together."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.family, row.asked.split(":")[0]), []).append(row)
    return [
        {
            "family": family,
            "asked": asked,
            "cases": len(some),
            "false_claims": sum(row.outcome == FALSE for row in some),
            "not_claimed": sum(row.outcome == SILENT for row in some),
            "true_claims": sum(row.outcome == TRUE for row in some),
            "true_but_not_global": sum(row.local for row in some),
            "errors": sum(row.outcome == ERROR for row in some),
            "cpu_seconds": round(sum(row.cpu_seconds for row in some), 1),
        }
        for (family, asked), some in [*groups.items(), (("all", ""), rows)]
    ]


def examine(family: str, number: int, case: FamilyCase, seconds: float) -> list[Row]:
    """Ask `hx.solve`, and `hx.certify` at every point of the case, and judge the answers."""
    rows = [] if case.start is None else [_asked("solve", case, case.start, seconds)]
    rows += [_asked(f"certify: {name}", case, point, seconds) for name, point in case.points.items()]
    return [
        dataclasses.replace(row, family=family, number=number, best=case.best, parameters=case.parameters)
        for row in rows
    ]


def _asked(asked: str, case: FamilyCase, point: Point, seconds: float) -> Row:
    """One call, and what came of it."""
    begin = time.process_time()
    x, y = (jnp.asarray(part) for part in point)
    value, claimed, outcome, fault = None, False, SILENT, Fault("")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if asked == "solve":
                solution = hx.solve(case.problem, x, y, seconds=seconds, seed=case.seed, throw=False)
                verdict = solution.certificate.verdict()
                x, y, value = solution.x, solution.y, float(solution.value)
                claimed, answer = solution.status.ok or verdict == "yes", f"{solution.status.name}, verdict {verdict}"
            else:
                verdict = hx.certify(case.problem, x, y).verdict()
                claimed, answer = verdict == "yes", f"verdict {verdict}"
    except hx.InputError as error:
        answer = f"refused: {error}"
    except Exception as error:
        outcome, answer = ERROR, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    spent = round(time.process_time() - begin, 2)
    if claimed:
        fault = case.fault(np.asarray(x, np.float64), np.asarray(y, np.float64))
        outcome = FALSE if fault.words else TRUE
    return Row("", 0, asked, outcome, answer, fault.words, fault.missed, spent, value)


def _plain(value: Any) -> Any:
    """Arrays as lists, for JSON."""
    return np.asarray(value).tolist()
