"""A part of the toy experiment: the synthetic problem with nothing set.

It measures how far from the known solution SALVF and SALVF-VR end, with both kinds of noise.
"""

import math
from typing import TypedDict

import numpy as np
from rich.console import Console

from hierax import SALVF, SALVF_VR, solve_many
from hierax_lab.problems import synthetic

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
        x0s, y0s = (np.tile(start, (SEEDS, 1)) for start in (example.x0, example.y0))
        for name, method in (("SALVF", SALVF()), ("SALVF-VR", SALVF_VR())):
            solution = solve_many(example.problem, x0s, y0s, method, max_steps=steps, progress=False)
            finished = [not status.failed for status in solution.status]
            distances = np.linalg.norm(np.asarray(solution.x)[finished] - example.solutions[0].x, axis=1)
            largest = float(np.max(distances, initial=0.0)) if any(finished) else math.nan
            results[f"{noise}/{name}"] = {
                "finished": sum(finished),
                "median_distance": float(np.median(distances)) if any(finished) else math.nan,
                "largest_distance": largest,
                "bound": MAX_DISTANCE,
                "met": all(finished) and largest <= MAX_DISTANCE,
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
