"""The history of runs as panels: which columns belong together, what they may be drawn against, and how many points.

Long histories are thinned to the first, the last and the extremes of equal stretches, so that no spike is lost.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

AXES = {"step": "outer step", "seconds": "seconds", "samples": "samples of zeta and xi"}
NO_PANEL = {"step", "start", "seconds", "samples", "zeta", "xi", "grad_upper", "grad_lower", "vjp_constraints"}
NO_PANEL |= {"lower_solves", "factor"}
MOST_POINTS = 400  # of a line
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


class History(NamedTuple):
    """A run's name, its columns, and F of its answer."""

    name: str
    columns: Mapping[str, np.ndarray]
    value: float | None


def panels_of(runs: Sequence[History]) -> list[Panel]:
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


def _panel(kind: Kind, runs: Sequence[History]) -> Panel:
    series: list[Series] = []
    text = kind.text
    with_it = [run for run in runs if any(column in run.columns for column in kind.columns)]
    for number, run in enumerate(runs):
        for column in kind.columns:
            if column not in run.columns:
                continue
            values = np.asarray(run.columns[column], float)
            name = run.name if len(runs) > 1 else NAMES.get(column, column.replace("_", " "))
            lines = values[:, None] if values.ndim == 1 else values
            chosen = np.unique(np.linspace(0, lines.shape[1] - 1, MOST_LINES).astype(int))
            if lines.shape[1] > len(chosen):
                text = f"{kind.text} {len(chosen)} of the {lines.shape[1]} starts are drawn."
            colour = number if len(runs) > 1 else kind.columns.index(column)
            for i in chosen:
                drawn = _series(name if i == chosen[0] else "", run.columns, lines[:, i], i, colour)
                if np.isfinite(drawn.y).any():
                    series.append(drawn)
    positive = any((one.y > 0).any() for one in series)
    one_value = runs[0].value if len(runs) == 1 and kind.columns == ("upper",) else None
    if one_value is not None and series:
        text = f"{text} {_what_is_recorded(runs[0].columns)} The dashed line is F of the answer."
    axes = {name: text for name, text in _axes(with_it).items() if any(name in one.x for one in series)}
    return Panel(kind.columns[0], kind.title, text, kind.log and positive, series, axes, one_value)


def _series(name: str, columns: Mapping[str, np.ndarray], y: np.ndarray, start: int, colour: int) -> Series:
    keep = thinned(y, MOST_POINTS)
    x = {axis: _of_start(column, start)[keep] for axis, column in _against(columns).items()}
    return Series(name, x, y[keep], "seconds" not in columns, colour)


def _of_start(column: np.ndarray, start: int) -> np.ndarray:
    column = np.asarray(column, float)
    return column if column.ndim == 1 else column[:, start]


def _against(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the columns may be drawn against."""
    found = {name: np.asarray(columns[name]) for name in ("step", "seconds") if name in columns}
    samples = sum(np.asarray(columns[name], float) for name in ("zeta", "xi") if name in columns)
    return found | ({"samples": np.asarray(samples)} if np.any(samples) else {})


def _axes(runs: Sequence[History]) -> dict[str, str]:
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
