"""A process of `hierax bench race`: `python -m hierax_lab.bench.race_child SOLVER PROBLEM FILE FILE`.

It solves the problem with the numbers of the first file, which is cold, and of the second, which is warm, and prints
one line of JSON for each: CPU seconds since Python began (cold) or for the call alone (warm), reading of the numbers
left out; seconds of the call by the clock; the x found; and what the solver adds.
"""

import importlib
import json
import sys
import time

import numpy as np

SOLVERS = {"by hand": "race_by_hand", "hierax": "race_hierax", "SLSQP": "race_slsqp", "Ipopt": "race_ipopt"}


def main(solver: str, problem: str, *files: str) -> None:
    """Solve with the numbers of every file."""
    began = 0.0
    for file in files:
        reading = time.process_time()
        numbers = dict(np.load(file))
        began += time.process_time() - reading
        clock = time.perf_counter()
        x, facts = importlib.import_module(f"hierax_lab.bench.{SOLVERS[solver]}").solve(problem, numbers)
        row = {"seconds": time.process_time() - began, "wall": time.perf_counter() - clock, "x": x.tolist(), **facts}
        if "points" in row:
            row["points"] = [(at - began, upper) for at, upper in row["points"]]
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
        began = time.process_time()


if __name__ == "__main__":
    main(*sys.argv[1:])
