"""The history of runs as panels: which columns belong together, and which of their points are drawn.

Long histories are thinned to the first, the last and the extremes of equal stretches, so that no spike is lost.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

NOT_DRAWN = {"step", "start", "seconds", "samples", "zeta", "xi", "grad_upper", "grad_lower", "vjp_constraints"}
NOT_DRAWN |= {"lower_solves", "factor"}
MAX_POINTS_PER_LINE, MIN_POINTS_PER_LINE = 400, 40
MAX_POINTS_PER_PANEL = 2400  # unless each line would have fewer than the minimum
MAX_STARTS_DRAWN = 24
LOG_FROM_RATIO = 100.0  # of the largest value to the smallest positive one, from which on an axis is logarithmic
OUTLIER_WIDTHS = 3.0  # widths of the middle nine tenths of all values beyond which a value is out of view


class PanelKind(NamedTuple):
    """A kind of panel: the columns in it, its title, what it shows, and whether a logarithm shows it better."""

    columns: tuple[str, ...]
    title: str
    text: str
    log: bool


PANEL_KINDS = (
    PanelKind(("upper",), "Upper objective F", "What the upper level minimises.", False),
    PanelKind(
        ("lower",), "Lower objective G", "What the lower level minimises; it rises where x changes its task.", False
    ),
    PanelKind(("violation",), "Violation", "The largest violation of a constraint, in your units.", True),
    PanelKind(
        ("stationarity", "inner_residual"),
        "Stationarity and inner residual",
        "Residuals of the method's own reformulation: small ones say that it has settled, not that it is right.",
        True,
    ),
    PanelKind(("distance",), "Distance of y", "How far y is from the inner solver's answer.", True),
    PanelKind(("gap",), "Lower gap", "(G − v) / (1 + |v|): how much y misses of the lower level's best value.", True),
    PanelKind(("step_x", "step_y"), "Step lengths", "How far x and y move in a step, on average.", True),
)
SERIES_NAMES = {"upper": "F", "lower": "G", "inner_residual": "inner residual", "step_x": "x", "step_y": "y"}
# Titles of columns that share a panel where there is one run, and have their own where there are several.
COLUMN_TITLES = {"stationarity": "Stationarity", "inner_residual": "Inner residual"}
COLUMN_TITLES |= {"step_x": "Step length of x", "step_y": "Step length of y"}


class Series(NamedTuple):
    """A line or a cloud of dots.

    Attributes:
        name: for the legend; empty: none.
        x: the steps.
        y: the values.
        dots: dots that are not joined: points of a search, in no order that means anything.
        colour: number of its colour.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    dots: bool
    colour: int


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
        """Those of all series."""
        return np.concatenate([one.y for one in self.series])

    @property
    def limits(self) -> tuple[float, float] | None:
        """Of the axis of values; None: a logarithm shows all that are positive."""
        return None if self.log else limits_without_outliers(self.values, self.answer)

    @property
    def count_not_drawn(self) -> int:
        """How many points have no place in view."""
        if self.limits is None:
            return int(np.sum(~(np.isfinite(self.values) & (self.values > 0))))
        return int(np.sum(~((self.values >= self.limits[0]) & (self.values <= self.limits[1]))))


class RunHistory(NamedTuple):
    """A run's name, its columns, and F of its answer."""

    name: str
    columns: Mapping[str, np.ndarray]
    value: float | None


def panels_of(runs: Sequence[RunHistory]) -> list[Panel]:
    """The panels of one run, or of several in the same charts, one column each."""
    runs = [run for run in runs if len(run.columns.get("step", ()))]
    kinds = list(PANEL_KINDS)
    if len(runs) > 1:
        kinds = [
            kind._replace(columns=(name,), title=COLUMN_TITLES.get(name, kind.title))
            for kind in PANEL_KINDS
            for name in kind.columns
        ]
    known = NOT_DRAWN.union(*(kind.columns for kind in PANEL_KINDS))
    for name in dict.fromkeys(name for run in runs for name in run.columns if name not in known):
        kinds.append(PanelKind((name,), name.replace("_", " ").capitalize(), "As recorded.", False))
    panels = [_panel(kind, runs) for kind in kinds]
    return [panel for panel in panels if panel.series]


def _panel(kind: PanelKind, runs: Sequence[RunHistory]) -> Panel:
    lines = [line for line in _series(kind, runs) if np.isfinite(line.y).any()]
    most = min(MAX_POINTS_PER_LINE, max(MIN_POINTS_PER_LINE, MAX_POINTS_PER_PANEL // max(len(lines), 1)))
    lines = [_thinned(line, most) for line in lines]
    shown = [run for run in runs if any(column in run.columns for column in kind.columns)]
    text, answer = kind.text, None
    starts = max((_starts_in(run.columns, kind) for run in shown), default=1)
    if starts > MAX_STARTS_DRAWN:
        text = f"{text} {MAX_STARTS_DRAWN} of the {starts} starts are drawn."
    if len(runs) == 1 and kind.columns == ("upper",):
        text, answer = f"{text} {_record_text(runs[0].columns)}", runs[0].value
    if answer is not None:
        text = f"{text} The dashed line is F of the answer."
    x_label = " or ".join(sorted({_step_text(run.columns) for run in shown}))
    return Panel(kind.title, text, kind.log and _spans_decades(lines), lines, x_label, answer)


def _series(kind: PanelKind, runs: Sequence[RunHistory]) -> Iterator[Series]:
    """The series of a panel; only the first of the starts of a column has a name."""
    for number, run in enumerate(runs):
        for column in (name for name in kind.columns if name in run.columns):
            values = np.asarray(run.columns[column], float)
            values = values.reshape(len(values), -1)
            steps = np.asarray(run.columns["step"], float).reshape(len(values), -1)
            steps = np.broadcast_to(steps, values.shape)
            name = run.name if len(runs) > 1 else SERIES_NAMES.get(column, column.replace("_", " "))
            colour = number if len(runs) > 1 else kind.columns.index(column)
            for start in np.unique(np.linspace(0, values.shape[1] - 1, MAX_STARTS_DRAWN).astype(int)):
                dots = "seconds" not in run.columns
                yield Series("" if start else name, steps[:, start], values[:, start], dots, colour)


def _starts_in(columns: Mapping[str, np.ndarray], kind: PanelKind) -> int:
    return max(np.asarray(columns[name])[0].size for name in kind.columns if name in columns)


def _thinned(line: Series, most: int) -> Series:
    keep = thinned(line.y, most)
    return line._replace(x=line.x[keep], y=line.y[keep])


def _spans_decades(lines: Sequence[Series]) -> bool:
    """Whether the positive values span decades: a logarithm shows them better then."""
    values = np.concatenate([line.y for line in lines]) if lines else np.zeros(0)
    positive = values[np.isfinite(values) & (values > 0)]
    return positive.size > 0 and bool(positive.max() / LOG_FROM_RATIO >= positive.min())


def _step_text(columns: Mapping[str, np.ndarray]) -> str:
    if "start" in columns:
        return "points of the search"
    return "outer step" if "seconds" in columns else "stage"


def _record_text(columns: Mapping[str, np.ndarray]) -> str:
    if "start" in columns:
        return "Every point that the search looked at, valid or not."
    return "Means over the batches since the last record." if "seconds" in columns else "At the end of every stage."


def summary_rows(columns: Mapping[str, np.ndarray]) -> list[tuple[str, ...]]:
    """Name, first, last, lowest and highest value of every column; first and last of many starts are medians.

    Examples:
        >>> summary_rows({"step": np.arange(3), "upper": np.array([2.0, 4.0, 1.0])})
        [('F', '2', '1', '1', '4')]
    """
    rows: list[tuple[str, ...]] = []
    for name, column in columns.items():
        values = np.asarray(column, float).reshape(len(column), -1)
        if name in NOT_DRAWN or not np.isfinite(values).any():
            continue
        finite = values[np.isfinite(values)]
        numbers = (np.median(values[0]), np.median(values[-1]), finite.min(), finite.max())
        title = COLUMN_TITLES.get(name) or SERIES_NAMES.get(name) or name.replace("_", " ").capitalize()
        rows.append((title, *(f"{number:.6g}" for number in numbers)))
    return rows


def limits_without_outliers(values: np.ndarray, answer: float | None) -> tuple[float, float]:
    """Limits of an axis with all values in view but those far from the others, and the answer in any case.

    Examples:
        >>> limits_without_outliers(np.append(np.linspace(0.0, 1.0, 101), 1e9), None)
        (-0.04, 1.04)
    """
    near = values[np.isfinite(values)]
    if near.size > 4:
        first, last = np.quantile(near, [0.05, 0.95])
        width = max(last - first, 1e-6 * (1 + abs(float(np.median(near)))))
        near = near[(near >= first - OUTLIER_WIDTHS * width) & (near <= last + OUTLIER_WIDTHS * width)]
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
    for part in np.array_split(np.arange(y.size), (most - 2) // 2):
        finite = part[np.isfinite(y[part])]
        if finite.size:
            keep |= {int(finite[np.argmin(y[finite])]), int(finite[np.argmax(y[finite])])}
    return np.array(sorted(keep))
