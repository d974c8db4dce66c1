"""Figures of matplotlib that notebooks show by themselves and no window system sees. Needs the extra `plot`."""

import io

from hierax._base.errors import MissingExtra

try:
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingExtra("figures need matplotlib: pip install 'hierax[plot]'") from error


class ShownFigure(Figure):
    """A figure without pyplot: shown once, where it is the value of a notebook's cell, and kept by nobody else."""

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=110)
        return picture.getvalue()


def shown_figure(width: float, height: float) -> ShownFigure:
    """An empty figure."""
    return ShownFigure(figsize=(width, height), layout="constrained")
