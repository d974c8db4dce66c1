"""Charts as SVG, drawn here so that a page can be read without JavaScript and on paper.

Colours and strokes are classes of style.css: the same marks serve for light, dark and print.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hierax._base.markup import escaped
from hierax.reports.scales import Scale, first_scale, linear_scale, log_scale
from hierax.reports.series import Panel, Series

WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 68, 14, 12, 42
COLOURS = 6
ROWS_WITH_NAMES = 32  # starts up to which each has a line with its name


class View(NamedTuple):
    """What is in view: the axis that is drawn against, both scales, and how many points are not in it."""

    axis: str
    x: Scale
    y: Scale
    left_out: int


def view_of(panel: Panel) -> View:
    """The first view of a panel: all of it, but for points far from all others."""
    axis = next(iter(panel.axes))
    shown = [one for one in panel.series if axis in one.x]
    x, y = (np.concatenate(parts) for parts in ([one.x[axis] for one in shown], [one.y for one in shown]))
    scale = log_scale(y) if panel.log else first_scale(y, panel.reference)
    places = scale.at(y)
    return View(axis, linear_scale(x), scale, int(np.sum(~((places >= 0) & (places <= 1)))))


def chart(panel: Panel, number: int) -> str:
    """A panel as SVG; its number makes the names in it unlike those of other charts."""
    view = view_of(panel)
    clip = f"clip-{number}"
    marks = "".join(_marks(one, view) for one in panel.series if view.axis in one.x)
    if panel.reference is not None:
        share = float(view.y.at(np.array(panel.reference)))
        if 0 <= share <= 1:
            marks += f'<line class="reference" x1="{LEFT}" x2="{WIDTH - RIGHT}" {_same("y", _down(share))}/>'
    inside = (
        f'<g class="frame">{_frame(view.x, view.y)}</g>'
        f'<clipPath id="{clip}"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{HEIGHT - TOP - BOTTOM}"/></clipPath><g class="marks" clip-path="url(#{clip})">{marks}</g>'
        f'<text class="axis-name" x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 6}">{escaped(panel.axes[view.axis])}'
        "</text>"
    )
    return _svg(f"chart-{number}", panel.title, described(panel), inside, HEIGHT)


def described(panel: Panel) -> str:
    """What a chart shows, for those who do not see it."""
    told = []
    for one in panel.series:
        finite = one.y[np.isfinite(one.y)]
        if one.name and finite.size:
            ends = "" if one.dots else f" from {one.y[0]:.4g} to {one.y[-1]:.4g},"
            told.append(f"{one.name}: {one.y.size} points,{ends} between {finite.min():.4g} and {finite.max():.4g}.")
    return " ".join([panel.text, *told])


def _svg(name: str, title: str, description: str, inside: str, height: float) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escaped(title)}</title><desc id="{name}-desc">{escaped(description)}</desc>'
        f'<g class="canvas">{inside}</g></svg>'
    )


def _frame(x: Scale, y: Scale) -> str:
    parts = []
    for share, text in y.ticks():
        at = _down(share)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" {_same("y", at)}/>')
        parts.append(f'<text class="tick y" x="{LEFT - 7}" y="{at + 4:.1f}">{escaped(text)}</text>')
    for share, text in x.ticks():
        at = _right(share)
        parts.append(f'<line class="grid" {_same("x", at)} y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text class="tick x" x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}">{escaped(text)}</text>')
    return "".join(parts)


def _marks(series: Series, view: View) -> str:
    shares = view.x.at(series.x[view.axis]), view.y.at(series.y)
    seen = np.isfinite(shares[0]) & np.isfinite(shares[1])
    # What is far out of view is drawn at its edge: a line goes there, and numbers stay short.
    across, down = _right(shares[0]), _down(np.clip(shares[1], -2.0, 3.0))
    if series.dots:
        inside = seen & (shares[1] >= 0) & (shares[1] <= 1)
        return "".join(mark(series.colour, a, b) for a, b in zip(across[inside], down[inside], strict=True))
    path, pen_down = [], False
    for a, b, ok in zip(across, down, seen, strict=True):
        if ok:
            path.append(f"{'L' if pen_down else 'M'}{a:.1f} {b:.1f}")
        pen_down = bool(ok)
    if len(path) == 1:
        return mark(series.colour, float(across[seen][0]), float(down[seen][0]))
    return f'<path class="s{series.colour % COLOURS}" d="{"".join(path)}"/>' if path else ""


def mark(colour: int, x: float, y: float) -> str:
    """A point: a disc, a square or a triangle, so that colours are not all that tells series apart."""
    style, shape = f"s{colour % COLOURS}", colour % 3
    if shape == 0:
        return f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    if shape == 1:
        return f'<rect class="{style}" x="{x - 2.7:.1f}" y="{y - 2.7:.1f}" width="5.4" height="5.4"/>'
    corners = ((x, y - 3.6), (x - 3.4, y + 2.6), (x + 3.4, y + 2.6))
    return f'<polygon class="{style}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in corners)}"/>'


def dot_plot(values: np.ndarray, answer: float | None, number: int, title: str) -> str:
    """F at the ends of starts, the lowest first; starts without an end are left out.

    A line marks F of the answer of a search, whose first start was given; None: all starts were.
    """
    order = [i for i in np.argsort(values, kind="stable") if np.isfinite(values[i])]
    known = values[order]
    scale = first_scale(known, answer)
    named = len(order) <= ROWS_WITH_NAMES
    row = 17.0 if named else max(420.0 / len(order), 0.5)
    top, bottom = 10.0, 10.0 + row * len(order)
    parts = []
    for share, text in scale.ticks():
        at = _right(share)
        parts.append(f'<line class="grid" {_same("x", at)} y1="{top:g}" y2="{bottom:.1f}"/>')
        parts.append(f'<text class="tick x" x="{at:.1f}" y="{bottom + 16:.1f}">{escaped(text)}</text>')
    if answer is not None:
        at = _right(float(scale.at(np.array(answer))))
        parts.append(f'<line class="reference" {_same("x", at)} y1="{top:g}" y2="{bottom:.1f}"/>')
    for place, i in enumerate(order):
        y, name = top + row * (place + 0.5), "given" if i == 0 and answer is not None else f"start {i}"
        share = float(scale.at(np.array(values[i])))
        if named:
            parts.append(f'<text class="tick y" x="{LEFT - 7}" y="{y + 4:.1f}">{name}</text>')
        text = escaped(f"{name}: F = {values[i]:.8g}")
        parts.append(_dot(share, y, 4.0 if named else min(4.0, max(1.5, row / 2)), text))
    parts.append(f'<text class="axis-name" x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{bottom + 34:.1f}">F</text>')
    told = f"{len(order)} of {values.size} starts ended at a valid point"
    told += f", with F between {known.min():.6g} and {known.max():.6g}." if len(order) else "."
    return _svg(f"starts-{number}", title, told, "".join(parts), bottom + 42)


def _dot(share: float, y: float, radius: float, text: str) -> str:
    """A dot with its value as a tooltip; beyond the view, an arrow at the edge."""
    if 0 <= share <= 1:
        return (
            f'<circle class="s0" cx="{_right(share):.1f}" cy="{y:.1f}" r="{radius:.1f}"><title>{text}</title></circle>'
        )
    x, way = (WIDTH - RIGHT - 2, -7) if share > 1 else (LEFT + 2, 7)
    return f'<path class="arrow" d="M{x} {y:.1f}l{way} -4v8z"><title>{text}, out of view</title></path>'


def _right(share: float | np.ndarray) -> np.ndarray:
    return np.asarray(LEFT + (WIDTH - LEFT - RIGHT) * np.asarray(share))


def _down(share: float | np.ndarray) -> np.ndarray:
    return np.asarray(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * np.asarray(share))


def _same(name: str, at: float | np.ndarray) -> str:
    return f'{name}1="{at:.1f}" {name}2="{at:.1f}"'


def legend(panel: Panel) -> Sequence[tuple[int, str, bool]]:
    """Colour, name and whether it is dots, of every series that has a name."""
    return [(one.colour % COLOURS, one.name, one.dots) for one in panel.series if one.name]
