"""A part of the toy experiment: the synthetic problem with nothing set.

It measures how far from the known solution SALVF and SALVF-VR end, with both kinds of noise.
"""

import math
from typing import TypedDict

import numpy as np
from rich.console import Console

from hierax import SALVF, SALVF_VR, Solutions
from hierax_lab.problems import synthetic
from hierax_lab.reproduce.sweep import sweep

SEEDS = 10  # runs of each method and kind of noise
MAX_DISTANCE = 0.2  # of x to x*, for every seed


class Distances(TypedDict):
    """|x - x*| over the seeds that finished, and whether all finished and the largest keeps the bound."""

    finished: int
    median_distance: float
    largest_distance: float
    bound: float
    met: bool


def measure(steps: int) -> dict[str, Distances]:
    """|x - x*| after `steps` steps, for both kinds of noise, both methods and several seeds."""
    results: dict[str, Distances] = {}
    for noise in ("additive", "multiplicative"):
        example = synthetic(noise=noise)
        known = example.solutions[0].x

        def distance(found: Solutions, known: np.ndarray = known) -> np.ndarray:
            return np.linalg.norm(np.asarray(found.x) - known, axis=1)

        methods = {"SALVF": SALVF(), "SALVF-VR": SALVF_VR()}
        for name, row in sweep(*example[:3], methods, SEEDS, distance, max_steps=steps).items():
            largest = max((value for value in row["values"] if value is not None), default=math.nan)
            results[f"{noise}/{name}"] = {
                "finished": row["finished"],
                "median_distance": row["median"] or math.nan,
                "largest_distance": largest,
                "bound": MAX_DISTANCE,
                "met": row["finished"] == SEEDS and largest <= MAX_DISTANCE,
            }
    return results


def print_lines(console: Console, results: dict[str, Distances], judged: bool) -> None:
    """One line per case."""
    console.print(f"Synthetic problem, nothing set, |x - x*| over {SEEDS} seeds (all must be <= {MAX_DISTANCE}):")
    for name, row in results.items():
        verdict = ("met" if row["met"] else "NOT met") if judged else "not judged"
        console.print(
            f"  {name}: {row['finished']}/{SEEDS} finished, median {row['median_distance']:.3f}, largest "
            f"{row['largest_distance']:.3f}: {verdict}"
        )
