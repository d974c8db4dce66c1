"""A method over settings and seeds on one problem: means with bands, and paired differences to the first setting.

The seeds of a setting run in one call of `solve_many`. Settings that differ in numbers alone share compiled programs,
since numbers are arguments of a program; so do all with the same `Problem` object.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree
from rich.table import Table

from hierax import AbstractMethod, Problem, Solutions, solve_many
from hierax_lab.reproduce.comparison import Row, endings, headed, mean_and_error, shown_endings, shown_mean


def sweep(
    problem: Problem,
    x0: PyTree,
    y0: PyTree,
    settings: Mapping[str, AbstractMethod],
    seeds: int,
    measure: Callable[[Solutions], Sequence[float] | np.ndarray] = lambda solutions: solutions.values,
    **call: Any,
) -> dict[str, Row]:
    """A row per setting; seed i means the same samples in every setting, so that differences are paired.

    Args:
        problem: the problem.
        x0: start of the upper variable, of every seed.
        y0: start of the lower variable, likewise.
        settings: methods by the name of the setting; the first is what the others are compared with.
        seeds: number of runs of each.
        measure: a number per seed; by default F at the returned points.
        call: further arguments of `solve_many`.

    Returns:
        By setting: how the runs ended, `values` (None of a run that failed), and over the runs that did not fail `mean`
        and standard error `mean_se`, `median`, `quartiles`, and `difference` to the first setting with `difference_se`,
        over the seeds that finished in both.

    Examples:
        >>> import hierax as hx
        >>> from hierax.problems import toy
        >>> from hierax_lab.reproduce.sweep import sweep
        >>> settings = {f"c1 = {c1:g}": hx.SALVF(c1=c1, c2=100.0) for c1 in (2.0, 5.0)}
        >>> rows = sweep(*toy(0.1)[:3], settings, seeds=3, max_steps=50)
        >>> rows["c1 = 2"]["finished"], rows["c1 = 2"]["difference"]
        (3, 0.0)
    """
    xs, ys = (jax.tree.map(lambda leaf: np.stack([np.asarray(leaf, float)] * seeds), start) for start in (x0, y0))
    rows: dict[str, Row] = {}
    first: np.ndarray | None = None
    for name, method in settings.items():
        found = solve_many(problem, xs, ys, method, **{"progress": False} | call)
        finished = np.array([not status.failed for status in found.status])
        values = np.where(finished, np.asarray(measure(found), float), np.nan)
        first = values if first is None else first
        there = values[finished]
        rows[name] = endings([{"status": one.name, "failed": one.failed} for one in found.status]) | {
            "values": [value if np.isfinite(value) else None for value in values.tolist()],
            "median": float(np.median(there)) if len(there) else None,
            "quartiles": np.quantile(there, (0.25, 0.75)).tolist() if len(there) else None,
        }
        for key, numbers in (("mean", there), ("difference", paired(values, first))):
            rows[name][key], rows[name][f"{key}_se"] = mean_and_error(numbers)
    return rows


def paired(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Differences over the seeds that have both numbers."""
    both = np.isfinite(values) & np.isfinite(others)
    return values[both] - others[both]


def sweep_table(title: str, rows: Mapping[str, Row], form: str = ".4g") -> Table:
    """Mean, band and difference of every setting, and how its runs ended."""
    table = headed(title, "mean", "median", "quartiles", "to the first, same seeds", "finished")
    for name, row in rows.items():
        low, high = row["quartiles"] or (np.nan, np.nan)
        median = "-" if row["median"] is None else f"{row['median']:{form}}"
        numbers = shown_mean(row, "mean", form), median, f"{low:{form}} to {high:{form}}"
        table.add_row(name, *numbers, shown_mean(row, "difference", f"+{form}"), shown_endings(row))
    return table
