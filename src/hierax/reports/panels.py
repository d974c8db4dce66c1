"""The history of runs as panels, one for each record, and which of their points are drawn.

Long histories are thinned to the first, the last and the extremes of equal stretches, so that no spike is lost.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hierax._base.constants import MANY

NOT_DRAWN = {"step", "start", "seconds", "samples", "zeta", "xi", "grad_upper", "grad_lower", "vjp_constraints"}
NOT_DRAWN |= {"lower_solves", "factor"}
MAX_POINTS = MANY  # of a panel
MAX_LISTED = 24  # starts, arrays or lines up to which each is shown


class Record(NamedTuple):
    """A record of the history: its title, what it is, and whether a logarithm may show it better."""

    title: str
    text: str
    log: bool


RESIDUAL = "A residual of the method's own reformulation: a small one says that it has settled, not that it is right."
RECORDS = {
    "upper": Record("Upper objective F", "What the upper level minimises.", False),
    "lower": Record("Lower objective G", "What the lower level minimises; it rises where x changes its task.", False),
    "violation": Record("Violation", "The largest violation of a constraint, in your units.", True),
    "stationarity": Record("Stationarity", RESIDUAL, True),
    "inner_residual": Record("Inner residual", RESIDUAL, True),
    "distance": Record("Distance of y", "How far y is from the inner solver's answer.", True),
    "gap": Record("Lower gap", "(G − v) / (1 + |v|): how much y misses of the lower level's best value.", True),
    "step_x": Record("Step length of x", "How far x moves in a step, on average.", True),
    "step_y": Record("Step length of y", "How far y moves in a step, on average.", True),
    "step_z": Record("Step length of z", "How far z, the centre of the envelope, moves in a step, on average.", True),
}


class Series(NamedTuple):
    """A line or a cloud of dots.

    Attributes:
        name: of its run; empty for all starts but the first.
        x: the steps.
        y: the values.
        dots: dots that are not joined: points of a search, in no order that means anything.
        colour: number of its colour.
        ends: two rows: between which values a bar stands at every dot; None: there are no bars.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    dots: bool
    colour: int
    ends: np.ndarray | None = None


class Panel(NamedTuple):
    """A chart: its title, what it shows, its series, what a step is, and F of the answer where it shows F."""

    title: str
    text: str
    log: bool
    series: list[Series]
    x_label: str
    answer: float | None = None

    @property
    def values(self) -> np.ndarray:
        """Those of all series, and the ends of their bars."""
        parts = [one.y if one.ends is None else np.append(one.y, one.ends) for one in self.series]
        return np.concatenate(parts)

    @property
    def limits(self) -> tuple[float, float] | None:
        """Of the axis of values; None: a logarithm shows all that are positive."""
        return None if self.log else limits_without_outliers(self.values, self.answer)

    @property
    def count_not_drawn(self) -> int:
        """How many points have no place in view."""
        low, high = self.limits or (np.nextafter(0.0, 1.0), np.finfo(float).max)
        return int(np.sum(~((self.values >= low) & (self.values <= high))))


class RunHistory(NamedTuple):
    """A run's name, its columns, and F of its answer."""

    name: str
    columns: Mapping[str, np.ndarray]
    value: float | None


def panel_of_starts(values: np.ndarray, answer: float | None) -> Panel:
    """F at the ends of the starts that have one."""
    ends = np.flatnonzero(np.isfinite(values))
    x_label = "start" if answer is None else "start (0: the given one)"
    return Panel("F at the ends of the starts", "", False, [Series("", ends, values[ends], True, 0)], x_label, answer)


def panel_of_estimates(value: float, interval: tuple[float, float], gap: float) -> Panel:
    """F of an answer from samples between the ends of its interval, and where the best nearby may be."""
    ends = np.array([[interval[0], value - gap], [interval[1], value]])
    series = Series("", np.array([1.0, 2.0]), np.array([value, value]), True, 0, ends)
    text = f"Left: F at x, with 95 % confidence between {interval[0]:.6g} and {interval[1]:.6g}."
    text += f" Right: the best nearby is below it by at most {gap:.2g} (95 %)."
    return Panel("F out of sample", text, False, [series], "1: at x, 2: the best nearby")


def panels_of(runs: Sequence[RunHistory]) -> list[Panel]:
    """The panels of one run, or of several in the same charts."""
    runs = [run for run in runs if len(run.columns.get("step", ()))]
    names = dict.fromkeys((*RECORDS, *(name for run in runs for name in run.columns)))
    panels = [_panel(name, runs) for name in names if name not in NOT_DRAWN]
    return [panel for panel in panels if panel.series]


def _panel(column: str, runs: Sequence[RunHistory]) -> Panel:
    title, text, log = _record(column)
    shown = {number: run for number, run in enumerate(runs) if column in run.columns}
    every = [line for number, run in shown.items() for line in _series(column, run, number)]
    drawn = [(line, thinned(line.y, MAX_POINTS // len(every))) for line in every if np.isfinite(line.y).any()]
    lines = [line._replace(x=line.x[keep], y=line.y[keep]) for line, keep in drawn]
    starts = max((run.columns[column][0].size for run in shown.values()), default=1)
    if starts > MAX_LISTED:
        text = f"{text} {MAX_LISTED} of the {starts} starts are drawn."
    answer = None
    if len(runs) == 1 and column == "upper":
        text, answer = f"{text} {_kind(runs[0])[1]}", runs[0].value
    x_label = " or ".join(sorted({_kind(run)[0] for run in shown.values()}))
    return Panel(title, text, log and _spans_decades(lines), lines, x_label, answer)


def _record(column: str) -> Record:
    return RECORDS.get(column) or Record(column.replace("_", " ").capitalize(), "As recorded.", False)


def _series(column: str, run: RunHistory, number: int) -> Iterator[Series]:
    """A column of a run: a series for each start that is drawn, of which only the first has a name."""
    values = np.asarray(run.columns[column], float).reshape(len(run.columns[column]), -1)
    steps = np.asarray(run.columns["step"], float).reshape(len(values), -1)
    steps = np.broadcast_to(steps, values.shape)
    for start in np.unique(np.linspace(0, values.shape[1] - 1, MAX_LISTED).astype(int)):
        dots = "seconds" not in run.columns
        yield Series("" if start else run.name, steps[:, start], values[:, start], dots, number)


def _spans_decades(lines: Sequence[Series]) -> bool:
    """Whether the positive values span two decades: a logarithm shows them better then."""
    values = np.concatenate([np.zeros(0), *(line.y for line in lines)])
    exponents = np.log10(values[np.isfinite(values) & (values > 0)])
    return exponents.size > 0 and bool(np.ptp(exponents) >= 2)


def _kind(run: RunHistory) -> tuple[str, str]:
    """What a step of a run is, and what its records are."""
    if "start" in run.columns:
        return "points of the search", "Every point that the search looked at, valid or not."
    if "seconds" in run.columns:
        return "outer step", "Means over the batches since the last record."
    return "stage", "At the end of every stage."


def summary_rows(columns: Mapping[str, np.ndarray]) -> list[tuple[str, ...]]:
    """Name, first, last, lowest and highest value of every column; first and last of many starts are medians.

    Examples:
        >>> summary_rows({"step": np.arange(3), "upper": np.array([2.0, 4.0, 1.0])})
        [('Upper objective F', '2', '1', '1', '4')]
    """
    rows: list[tuple[str, ...]] = []
    for name, column in columns.items():
        values = np.asarray(column, float).reshape(len(column), -1)
        if name in NOT_DRAWN or not np.isfinite(values).any():
            continue
        finite = values[np.isfinite(values)]
        numbers = (np.median(values[0]), np.median(values[-1]), finite.min(), finite.max())
        rows.append((_record(name).title, *(f"{number:.6g}" for number in numbers)))
    return rows


def limits_without_outliers(values: np.ndarray, answer: float | None) -> tuple[float, float]:
    """Limits of an axis with all values in view but those far from the others, and the answer in any case.

    Far are those beyond twice the width of the middle nine tenths.

    Examples:
        >>> limits_without_outliers(np.append(np.linspace(0.0, 1.0, 101), 1e9), None)
        (-0.04, 1.04)
    """
    near = values[np.isfinite(values)]
    if near.size > 4:
        first, last = np.quantile(near, [0.05, 0.95])
        width = max(last - first, 1e-6 * (1 + abs(float(np.median(near)))))
        near = near[(near >= first - 2 * width) & (near <= last + 2 * width)]
    if answer is not None:
        near = np.append(near, answer)
    low, high = (float(near.min()), float(near.max())) if near.size else (0.0, 1.0)
    margin, size = 0.04 * (high - low), max(abs(low), abs(high))
    if margin <= 1e-10 * size or margin == 0:  # flat
        margin = 0.1 * size or 1.0
    return low - margin, high + margin


def thinned(y: np.ndarray, most: int) -> np.ndarray:
    """Numbers of the records to draw: the first, the last, and the extremes of equal stretches.

    Examples:
        >>> spike = np.zeros(1000)
        >>> spike[500] = 7.0
        >>> keep = thinned(spike, 100)
        >>> len(keep) <= 100, 0 in keep, 500 in keep, 999 in keep
        (True, True, True, True)
    """
    if y.size <= most:
        return np.arange(y.size)
    keep = {0, y.size - 1}
    for part in np.array_split(np.arange(y.size), max((most - 2) // 2, 1)):
        finite = part[np.isfinite(y[part])]
        if finite.size:
            keep |= {int(finite[np.argmin(y[finite])]), int(finite[np.argmax(y[finite])])}
    return np.array(sorted(keep))
