"""What the figures of docs/theory share: one look, and files that are the same whenever they are made."""

import sys

import matplotlib as mpl
import matplotlib.pyplot as plt

BLUE, ORANGE, GREEN, RED, GREY = "#1f77b4", "#e07b00", "#2a8f3c", "#c0392b", "#777777"


def axes(columns, height=2.9):
    """A figure with axes side by side."""
    mpl.use("svg")
    mpl.rcParams.update(
        {
            "svg.hashsalt": "hierax",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
            "path.simplify_threshold": 1.0,
        }
    )
    figure, places = plt.subplots(1, columns, figsize=(3.7 * columns, height), layout="constrained", squeeze=False)
    return figure, places[0]


def save(figure):
    """Write the SVG that the command line names."""
    figure.savefig(sys.argv[1], format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
