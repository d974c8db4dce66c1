"""`sol.plot()`: the panels of a page as a matplotlib figure, for notebooks."""

from typing import TYPE_CHECKING, Any

import numpy as np

from hierax._base.lazy import lazy
from hierax._run.solution import Solution, Solutions
from hierax.reports.scales import first_scale
from hierax.reports.series import Panel, RunHistory, panels_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

figures = lazy("hierax.reports.shown_figure")

COLUMNS = 3  # panels side by side
COLOURS = ("#0b5cad", "#b3400a", "#1b7a4b", "#7a3e9d", "#806600", "#5a5f66")


def plot(solution: Solution) -> "Figure":
    """The convergence of a run, and F at the ends of its starts where there are several."""
    values = np.array(solution.starts.values, float)
    return _figure(panels_of([RunHistory("", solution.history.columns, solution.value)]), values, solution.value)


def plot_many(solutions: Solutions) -> "Figure":
    """The convergence of all starts, and F at their ends."""
    return _figure(panels_of([RunHistory("", solutions.history.columns, None)]), solutions.values, None)


def _figure(panels: list[Panel], values: np.ndarray, answer: float | None) -> "Figure":
    with_starts = int(np.isfinite(values).sum() > 1)
    count = max(len(panels) + with_starts, 1)
    rows, columns = -(-count // COLUMNS), min(count, COLUMNS)
    figure: Figure = figures.shown_figure(4.2 * columns, 2.9 * rows)
    axes = list(np.ravel(figure.subplots(rows, columns, squeeze=False)))
    for panel, ax in zip(panels, axes, strict=False):
        _draw(panel, ax)
    if with_starts:
        _draw_starts(values, answer, axes[len(panels)])
    for ax in axes[len(panels) + with_starts :]:
        ax.set_visible(False)
    return figure


def _draw(panel: Panel, ax: Any) -> None:
    many = any(not one.name for one in panel.series)
    for one in panel.series:
        y = np.where(one.y > 0, one.y, np.nan) if panel.log else one.y  # a logarithm has no place for zero
        style: dict[str, Any] = {"marker": ".", "linestyle": "none"} if one.dots else {"alpha": 0.5 if many else 1.0}
        ax.plot(one.x["step"], y, color=COLOURS[one.colour % len(COLOURS)], label=one.name or None, **style)
    if panel.reference is not None:
        ax.axhline(panel.reference, color="0.4", linestyle="--", linewidth=1)
    if panel.log:
        ax.set_yscale("log")
    else:
        scale = first_scale(np.concatenate([one.y for one in panel.series]), panel.reference)
        ax.set_ylim(scale.low, scale.high)
    ax.set(title=panel.title, xlabel=panel.axes["step"])
    if sum(bool(one.name) for one in panel.series) > 1:
        ax.legend(frameon=False)
    _plain(ax)


def _draw_starts(values: np.ndarray, answer: float | None, ax: Any) -> None:
    known = np.sort(values[np.isfinite(values)])
    ax.plot(known, np.arange(1, known.size + 1), "o", color=COLOURS[0], markersize=4)
    if answer is not None:
        ax.axvline(answer, color="0.4", linestyle="--", linewidth=1)
    scale = first_scale(known, answer)
    ax.set(
        title="F at the ends of the starts", xlabel="F", ylabel="starts, the lowest first", xlim=(scale.low, scale.high)
    )
    _plain(ax)


def _plain(ax: Any) -> None:
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
