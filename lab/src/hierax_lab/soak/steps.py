"""A million outer steps of the paper's toy in one run: memory stays what it was, and steps do not become slower.

The first twentieth is to warm up. Of what follows, the last tenth is compared with the first: by the clock or, where
other processes make the machine slow, by the CPU time of this one.
"""

import argparse
import time

import numpy as np

import hierax as hx
from hierax.problems import toy
from hierax_lab.soak.memory import megabytes

MAX_GROWTH = 0.02  # relative, of memory
MAX_SLOWDOWN = 0.10  # relative, of the median time of a step: what a busy machine leaves uncertain
READINGS = 100  # of memory and clock
WARM_UP = READINGS // 20  # readings before the comparison begins


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this part."""
    parser.add_argument("--steps", type=int, default=1_000_000, help="outer steps of the long run")


def run(options: argparse.Namespace) -> bool:
    """Whether memory grew by less than 2 % and the last tenth was as fast as the first."""
    period = max(1, options.steps // READINGS)
    memory, clock, cpu, reading = [], [], [], [0.0, 0.0]  # seconds of reading the memory are no part of the run

    def look(info: hx.Info) -> None:
        begin = time.perf_counter(), time.process_time()
        memory.append(megabytes())
        reading[0] += time.perf_counter() - begin[0]
        reading[1] += time.process_time() - begin[1]
        clock.append(time.perf_counter() - reading[0])
        cpu.append(time.process_time() - reading[1])

    problem, x0, y0 = toy(0.1)[:3]
    solution = hx.solve(
        problem,
        x0,
        y0,
        hx.SALVF(),
        max_steps=options.steps,
        seed=options.seed,
        record_every=period,
        callback=look,
        progress=False,
    )
    assert solution.status.step == options.steps, solution.status.message
    tenth = max(1, (len(clock) - WARM_UP) // 10)
    times = {name: np.diff(values[WARM_UP:]) / period for name, values in (("wall", clock), ("CPU", cpu))}
    ends = {name: (np.median(each[:tenth]), np.median(each[-tenth:])) for name, each in times.items()}
    before, after = np.median(memory[WARM_UP : WARM_UP + tenth]), np.median(memory[-tenth:])
    growth, slower = after / before - 1, {name: last / first - 1 for name, (first, last) in ends.items()}
    print(
        f"steps: {options.steps} in {clock[-1] - clock[0]:.0f} s; memory {before:.1f} MB, at the end {after:.1f} MB "
        f"({growth:+.2%}); "
        + "; ".join(
            f"{first * 1e6:.2f} us of {name} per step, at the end {last * 1e6:.2f} ({slower[name]:+.1%})"
            for name, (first, last) in ends.items()
        ),
        flush=True,
    )
    return bool(growth < MAX_GROWTH and min(slower.values()) < MAX_SLOWDOWN)
