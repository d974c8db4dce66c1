"""Figures by matplotlib (extra `plot`): the panels of runs.

The same drawing serves notebooks, as a figure, and pages, as SVG whose colours are variables of style.css, so that it
follows the reader's light or dark setting. No window system and no pyplot is involved.
"""

import io
import math
import re
from collections.abc import Sequence

import numpy as np

from hierax._base.errors import MissingExtra
from hierax._base.text import escaped
from hierax.reports.panels import Panel

try:
    import matplotlib.style
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator
except ImportError as error:
    raise MissingExtra("figures need matplotlib: pip install 'hierax[plot]'") from error

COLOURS = ("#0b5cad", "#b3400a", "#1b7a4b", "#7a3e9d", "#806600", "#5a5f66")
LINE_STYLES = ("solid", "dashed", "dotted")  # words of matplotlib that CSS has too
MARKERS = {"o": "●", "s": "■", "^": "▲"}  # in a chart and in its legend
HEIGHT = 2.9  # of a panel, in inches
GRID_COLOUR, ANSWER_COLOUR = "#d6dbe1", "#1b1f24"
CSS_VARIABLES = {colour: f"var(--c{i})" for i, colour in enumerate(COLOURS)}
CSS_VARIABLES |= {GRID_COLOUR: "var(--line)", ANSWER_COLOUR: "var(--text)"}
SVG_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hierax",
    "font.size": 12,
    "axes.edgecolor": GRID_COLOUR,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


class NotebookFigure(Figure):
    """A figure that notebooks show where it is the value of a cell."""

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=110)
        return picture.getvalue()


def figure_of(panels: Sequence[Panel]) -> NotebookFigure:
    """All panels."""
    columns = max(math.ceil(math.sqrt(len(panels))), 1)
    rows = max(-(-len(panels) // columns), 1)
    figure = NotebookFigure(figsize=(4.2 * columns, HEIGHT * rows), layout="constrained")
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        _draw(panel, axes)
        axes.set_title(panel.title, parse_math=False)
    return figure


def legend_key(colour: int, dots: bool) -> str:
    """The line or the marker of a series, as HTML."""
    variable, kind = f"var(--c{colour % len(COLOURS)})", colour % len(LINE_STYLES)
    if dots:
        return f'<span style="color: {variable}">{list(MARKERS.values())[kind]}</span>'
    return f'<span class="line" style="border-top: 2px {LINE_STYLES[kind]} {variable}"></span>'


def _draw(panel: Panel, axes: Axes) -> None:
    several_starts = len(panel.series) > len({one.colour for one in panel.series})
    for one in panel.series:
        kind = one.colour % len(LINE_STYLES)
        if panel.limits is None:
            y = np.where(one.y > 0, one.y, np.nan)  # a logarithm has no place for zero
        else:  # a line goes to the edge, and no number overflows
            low, high = panel.limits
            y = np.clip(one.y, low - 2 * (high - low), high + 2 * (high - low))
        alone = not one.dots and (np.isnan(y).any() or y.size == 1)  # points that no line joins to others
        axes.plot(
            one.x,
            y,
            color=COLOURS[one.colour % len(COLOURS)],
            linestyle="none" if one.dots else LINE_STYLES[kind],
            linewidth=1.0 if several_starts else 1.6,
            alpha=0.6 if several_starts else 1.0,
            marker=list(MARKERS)[kind] if one.dots else "." if alone else "",
            markersize=3.5,
        )
        if one.ends is not None:
            colour = COLOURS[one.colour % len(COLOURS)]
            axes.errorbar(one.x, one.y, np.abs(one.ends - one.y), fmt="none", ecolor=colour, capsize=6)
            axes.set_xlim(0.5, len(one.x) + 0.5)
    if panel.answer is not None:
        axes.axhline(panel.answer, color=ANSWER_COLOUR, linestyle="--", linewidth=1)
    if panel.limits is None:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(*panel.limits)
        axes.ticklabel_format(axis="y", useOffset=False)
    axes.set_xlabel(panel.x_label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    steps = np.concatenate([one.x for one in panel.series])
    if steps.min() == steps.max():
        axes.set_xlim(steps[0] - 1, steps[0] + 1)
    axes.grid(color=GRID_COLOUR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(left=False, bottom=False)
    axes.minorticks_off()


def panel_svg(panel: Panel, name: str) -> str:
    """A panel as SVG for the inside of a page, without what only a file of its own needs.

    The name makes the ids in it unlike those of other charts.
    """
    file = io.StringIO()
    with matplotlib.style.context(["default", SVG_STYLE]):
        figure = Figure(figsize=(5.4, HEIGHT), layout="constrained")
        _draw(panel, figure.add_subplot())
        figure.savefig(file, format="svg", metadata=NO_METADATA)
    text = file.getvalue()
    view_box = re.search(r'viewBox="[^"]*"', text)
    assert view_box is not None
    text = text[text.index(">", view_box.end()) + 1 :]  # what is before it is the head of a file
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    used = set(re.findall(r"#(\w+)", text))
    text = re.sub(r' id="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", text)
    text = re.sub(r'(?:xlink:)?href="#', f'href="#{name}-', text).replace("url(#", f"url(#{name}-")
    text = re.sub(r"font(?:-\w+)?: [^;\"]*;? ?", "", text)  # style.css says how text looks
    text = re.sub(r'(?<= )(?:d|x|y|transform)="[^"]*"', lambda found: _rounded(found[0]), text)
    for colour, variable in CSS_VARIABLES.items():
        text = text.replace(colour, variable)
    text = re.sub(r"\s*\n\s*", " ", text).replace("> <", "><")
    return f'<svg {view_box[0]} role="img" aria-label="{escaped(panel.title)}">{text.strip()}'


def _rounded(attribute: str) -> str:
    return re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.1f}", attribute)
