"""The history of runs as panels: which columns belong together, what they may be drawn against, and how many points.

Long histories are thinned to the first, the last and the extremes of equal stretches, so that no spike is lost.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

AXES = {"step": "outer step", "seconds": "seconds", "samples": "samples of zeta and xi"}
NO_PANEL = {"step", "start", "seconds", "samples", "zeta", "xi", "grad_upper", "grad_lower", "vjp_constraints"}
NO_PANEL |= {"lower_solves", "factor"}
MOST_POINTS, LEAST_POINTS = 400, 40  # of a line
PANEL_POINTS = 2400  # of all lines of a panel together, unless each would have less than the least
MOST_LINES = 24  # of a panel: starts of `solve_many`


class Kind(NamedTuple):
    """A kind of panel: the columns in it, its title, what it shows, and whether it is better seen by its logarithm."""

    columns: tuple[str, ...]
    title: str
    text: str
    log: bool


KINDS = (
    Kind(("upper",), "Upper objective F", "What the upper level minimises.", False),
    Kind(("lower",), "Lower objective G", "What the lower level minimises; it rises where x changes its task.", False),
    Kind(("violation",), "Violation", "The largest violation of a constraint, in your units.", True),
    Kind(
        ("stationarity", "inner_residual"),
        "Stationarity and inner residual",
        "Residuals of the method's own reformulation: small ones say that it has settled, not that it is right.",
        True,
    ),
    Kind(("distance",), "Distance of y", "How far y is from the inner solver's answer.", True),
    Kind(("gap",), "Lower gap", "(G − v) / (1 + |v|): how much y misses of the lower level's best value.", True),
    Kind(("step_x", "step_y"), "Step lengths", "How far x and y move in a step, on average.", True),
)
NAMES = {"upper": "F", "lower": "G", "inner_residual": "inner residual", "step_x": "x", "step_y": "y"}
ALONE = {"stationarity": "Stationarity", "inner_residual": "Inner residual", "step_x": "Step length of x"}
ALONE |= {"step_y": "Step length of y"}  # titles of columns that share a panel where there is one run


class Series(NamedTuple):
    """A line or a cloud of dots.

    Attributes:
        name: for the legend; empty: none.
        x: by the name of the axis.
        y: the values.
        dots: dots that are not joined: points of a search, in no order that means anything.
        colour: number of its colour.
    """

    name: str
    x: Mapping[str, np.ndarray]
    y: np.ndarray
    dots: bool
    colour: int


class Panel(NamedTuple):
    """A chart: its title, what it shows, its series, the names of its axes, and F of the answer where it shows F."""

    key: str
    title: str
    text: str
    log: bool
    series: list[Series]
    axes: Mapping[str, str]
    reference: float | None = None


class RunHistory(NamedTuple):
    """A run's name, its columns, and F of its answer."""

    name: str
    columns: Mapping[str, np.ndarray]
    value: float | None


def panels_of(runs: Sequence[RunHistory]) -> list[Panel]:
    """The panels of one run, or of several in the same charts, one column each."""
    runs = [run for run in runs if len(run.columns.get("step", ()))]
    names = [name for run in runs for name in run.columns]
    known = {name for kind in KINDS for name in kind.columns}
    kinds = list(KINDS)
    if len(runs) > 1:
        kinds = [
            Kind((name,), ALONE.get(name, kind.title), kind.text, kind.log) for kind in KINDS for name in kind.columns
        ]
    further = [name for name in dict.fromkeys(names) if name not in known | NO_PANEL]
    kinds += [Kind((name,), name.replace("_", " ").capitalize(), "As recorded.", False) for name in further]
    found = [_panel(kind, runs) for kind in kinds]
    return [panel for panel in found if panel.series]


class _Line(NamedTuple):
    """A column of a run, of one start, before it is thinned."""

    name: str
    columns: Mapping[str, np.ndarray]
    start: int
    y: np.ndarray
    colour: int


def _panel(kind: Kind, runs: Sequence[RunHistory]) -> Panel:
    lines = [line for line in _lines(kind, runs) if np.isfinite(line.y).any()]
    most = min(MOST_POINTS, max(LEAST_POINTS, PANEL_POINTS // max(len(lines), 1)))
    series = [_series(line, most) for line in lines]
    text, answer = kind.text, None
    for run in runs:
        starts = [np.shape(run.columns[name])[1] for name in kind.columns if np.ndim(run.columns.get(name, ())) > 1]
        if starts and starts[0] > MOST_LINES:
            text = f"{text} {MOST_LINES} of the {starts[0]} starts are drawn."
    if len(runs) == 1 and kind.columns == ("upper",):
        text, answer = f"{text} {_what_is_recorded(runs[0].columns)}", runs[0].value
    if answer is not None:
        text = f"{text} The dashed line is F of the answer."
    named = _axes([run for run in runs if any(column in run.columns for column in kind.columns)])
    axes = {name: told for name, told in named.items() if any(name in one.x for one in series)}
    log = kind.log and any((one.y > 0).any() for one in series)
    return Panel(kind.columns[0], kind.title, text, log, series, axes, answer)


def _lines(kind: Kind, runs: Sequence[RunHistory]) -> Iterator[_Line]:
    """The lines of a panel; only the first of the starts of a column has a name."""
    for number, run in enumerate(runs):
        for column in (name for name in kind.columns if name in run.columns):
            values = np.asarray(run.columns[column], float)
            each = values[:, None] if values.ndim == 1 else values
            name = run.name if len(runs) > 1 else NAMES.get(column, column.replace("_", " "))
            colour = number if len(runs) > 1 else kind.columns.index(column)
            for place, start in enumerate(np.unique(np.linspace(0, each.shape[1] - 1, MOST_LINES).astype(int))):
                yield _Line("" if place else name, run.columns, int(start), each[:, start], colour)


def _series(line: _Line, most: int) -> Series:
    keep = thinned(line.y, most)
    x = {axis: _of_start(column, line.start)[keep] for axis, column in _against(line.columns).items()}
    return Series(line.name, x, line.y[keep], "seconds" not in line.columns, line.colour)


def _of_start(column: np.ndarray, start: int) -> np.ndarray:
    column = np.asarray(column, float)
    return column if column.ndim == 1 else column[:, start]


def _against(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the columns may be drawn against."""
    found = {name: np.asarray(columns[name]) for name in ("step", "seconds") if name in columns}
    samples = sum(np.asarray(columns[name], float) for name in ("zeta", "xi") if name in columns)
    return found | ({"samples": np.asarray(samples)} if np.any(samples) else {})


def _axes(runs: Sequence[RunHistory]) -> dict[str, str]:
    """The names of the axes: of searches, what counts as a step."""
    steps = {_step_name(run.columns) for run in runs}
    return {**AXES, "step": " or ".join(sorted(steps))}


def _step_name(columns: Mapping[str, np.ndarray]) -> str:
    if "start" in columns:
        return "points of the search"
    return "outer step" if "seconds" in columns else "stage"


def _what_is_recorded(columns: Mapping[str, np.ndarray]) -> str:
    if "start" in columns:
        return "Every point that the search looked at, valid or not."
    return "Means over the batches since the last record." if "seconds" in columns else "At the end of every stage."


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
