"""One run of a method that keeps its upper variable at evenly spaced records, for the experiments that compare methods.

The records are judged afterwards, by measures that no method computes itself; here they are only kept, and made equally
many for every run, so that means over seeds can be taken.
"""

from typing import NamedTuple

import numpy as np

from hierax import AbstractMethod, Solution, solve
from hierax.problems.example import Example


class Recorded(NamedTuple):
    """A run and its records.

    Attributes:
        solution: what `solve` returned.
        xs: x at the start and at every record; a run that ended early stays where it was.
        kept: how many records the run itself made.
    """

    solution: Solution
    xs: np.ndarray
    kept: int

    def column(self, name: str) -> np.ndarray:
        """A column of the history at the records, zero at the start; the last value where the run ended early."""
        wanted = len(self.xs)
        values = np.concatenate([[0.0], self.solution.history[name][: self.kept]])[:wanted]
        return np.pad(values, (0, wanted - len(values)), mode="edge")


def run_recorded(
    example: Example, method: AbstractMethod, steps: int, record_every: int, records: int, seed: int
) -> Recorded:
    """Solve the example; the start and the first `records` records are kept."""
    xs = [np.asarray(example.x0)]
    solution = solve(
        example.problem,
        example.x0,
        example.y0,
        method,
        max_steps=steps,
        record_every=record_every,
        callback=lambda info: xs.append(np.asarray(info.x)),
        seed=seed,
        progress=False,
        throw=False,
    )
    made = len(xs) - 1
    xs += [xs[-1]] * (records - made)
    return Recorded(solution, np.stack(xs[: records + 1]), made)
