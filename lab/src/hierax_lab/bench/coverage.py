"""`hierax bench coverage`: how often the intervals that `sol.estimates` states hold, over many seeds at fixed N.

One problem for each kind of noise, whose truth is known by quadrature. The number of samples is fixed by
`hx.Auto(samples=...)`, the seed of `hx.solve` gives the samples; all repetitions in a process share its programs.

    F    estimates.interval           holds F(x, y*(x)) at the x of the answer
    x    x +- t x_se                  holds the best x; t: Student's 97.5 % with 15 degrees of freedom
    y    y +- t y_se                  holds the lower level's answer to the best x
    gap  F(x, y*(x)) - best F         is at most estimates.gap
"""

import functools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import hierax as hx
from hierax.extend import lazy
from hierax_lab.bench.samples_truth import Truth, Weighted, quadrature, root
from hierax_lab.output import plain, write_results
from hierax_lab.reproduce.comparison import headed, mark
from hierax_lab.reproduce.workers import Name, Task, run_tasks

stats = lazy("scipy.stats")
special = lazy("scipy.special")

SIZES = {"N = 1,024": 1024, "N = 64": 64}
"""Samples of each level from which x is computed; with 64 a replication has four."""

STATED, LEVEL = 0.95, 0.999
"""What is stated, and the confidence of the interval of what was measured."""

ALLOWED, ALLOWED_TINY, GAP_LEAST = (0.93, 0.97), (0.90, 1.0), 0.95
"""Between which the coverage has to lie, with few samples, and of the gap, which is a limit from above."""

DEGREES = 15
"""Of Student's t for the standard errors of x and y, which come from 16 replications."""

PER_TASK = 50
"""Repetitions after which results are written."""

QUANTITIES = ("F", "x", "y", "gap")


class Noise(NamedTuple):
    """Noise z of two entries with mean zero: samples, and the distribution of either entry alone."""

    draw: Callable[[jax.Array, int], jax.Array]
    own: Callable[[], Weighted]
    grows: bool = False  # with x


def _correlated(key: jax.Array, n: int) -> jax.Array:
    z = jax.random.normal(key, (n, 2))
    return jnp.stack([z[:, 0], 0.9 * z[:, 0] + 0.19**0.5 * z[:, 1]], axis=1)


def _normal(key: jax.Array, n: int) -> jax.Array:
    return jax.random.normal(key, (n, 2))


NOISES = {
    "normal": Noise(_normal, lambda: quadrature(stats.norm())),
    "gamma": Noise(
        lambda key, n: (jax.random.gamma(key, 2.0, (n, 2)) - 2.0) / 2.0**0.5,
        lambda: quadrature(stats.gamma(2, loc=-(2**0.5), scale=0.5**0.5)),
    ),
    "t(5)": Noise(
        lambda key, n: 0.6**0.5 * jax.random.t(key, 5.0, (n, 2)),
        lambda: quadrature(stats.t(5, scale=0.6**0.5)),
    ),
    "grows with x": Noise(_normal, lambda: quadrature(stats.norm()), grows=True),
    "correlated": Noise(_correlated, lambda: quadrature(stats.norm())),
}
"""All of variance one."""


class Cell(NamedTuple):
    """A problem and what is true of it."""

    problem: hx.Problem
    truth: Truth
    answer: Callable[[float], float]
    x: float
    value: float


@functools.cache
def cell(name: str) -> Cell:
    """The problem with this noise: both levels are curved, and the noise moves both answers."""
    noise = NOISES[name]
    own = noise.own()
    source = hx.Sampler(noise.draw)

    def size(x: Any) -> Any:
        return 0.5 + 0.5 * x**2 if noise.grows else 1.0

    def upper(x: jax.Array, y: jax.Array, z: jax.Array) -> jax.Array:
        return jnp.mean((y - 1 + size(x) * z[:, 0]) ** 2) / 2 + 0.1 * x**2 + 0.3 * x * jnp.mean(z[:, 1])

    def lower(x: jax.Array, y: jax.Array, z: jax.Array) -> jax.Array:
        return jnp.mean((y - x + size(x) * z[:, 0]) ** 2) / 2 + jnp.mean(jax.nn.softplus(y + z[:, 1]))

    def answer(x: float) -> float:
        return root(lambda y: y - x + own.mean(special.expit(y + own.points)), -6.0, 6.0)

    def phi(x: np.ndarray) -> float:
        at = float(x[0])
        return ((answer(at) - 1) ** 2 + size(at) ** 2) / 2 + 0.1 * at**2

    truth = Truth(phi, np.array([[-3.0, 3.0]]), np.array([0.5]))
    best, value = truth.best()
    problem = hx.Problem(
        upper=upper, lower=lower, x_set=hx.Box(-3.0, 3.0), y_set=hx.Box(-6.0, 6.0), zeta=source, xi=source
    )
    return Cell(problem, truth, answer, float(best[0]), value)


class Repetition(NamedTuple):
    """What one answer states and what is true of it.

    Attributes:
        held: whether an interval holds; None where no finite one is stated.
        off: statement less truth for F, x and y, in standard errors as stated; of the gap the true one over its limit.
        numbers: x, its standard error, the stated F and its standard error, the gap and its limit.
    """

    held: dict[str, bool | None]
    off: dict[str, float]
    numbers: dict[str, float]


def repetition(name: str, samples: int, seed: int) -> Repetition | None:
    """Solve from N samples of each level, and see which intervals hold; None: none are stated."""
    case = cell(name)
    auto = hx.Auto(route="average", samples=2 * 2 * samples, starts=1)
    solution = hx.solve(case.problem, 0.5, 0.5, auto, seed=seed, progress=False)
    said = solution.estimates
    if said is None or said.samples != samples:
        return None
    x, y = float(solution.x), float(solution.y)
    at, t = case.truth.phi(np.array([x])), float(special.stdtrit(DEGREES, (1 + STATED) / 2))
    low, high = said.interval
    x_se, y_se, gap = float(said.x_se[0]), float(said.y_se[0]), at - case.value
    off = {
        "F": (said.upper - at) / said.upper_se,
        "x": (x - case.x) / x_se,
        "y": (y - case.answer(case.x)) / y_se,
        "gap": gap / said.gap,
    }
    holds = {"F": low <= at <= high, "x": abs(off["x"]) <= t, "y": abs(off["y"]) <= t, "gap": gap <= said.gap}
    held = {quantity: bool(held) if np.isfinite(off[quantity]) else None for quantity, held in holds.items()}
    numbers = {"x": x, "x_se": x_se, "y": y, "y_se": y_se, "upper": said.upper, "upper_se": said.upper_se}
    numbers |= {"gap": gap, "limit": said.gap, "bias": said.bias, "loss": said.loss}
    return Repetition(held, {k: float(v) for k, v in off.items()}, {k: float(v) for k, v in numbers.items()})


def repetitions(name: str, samples: int, first: int, count: int) -> list[Repetition | None]:
    """Those of seeds one after another."""
    logging.getLogger("hierax").setLevel(logging.ERROR)
    return [repetition(name, samples, seed) for seed in range(first, first + count)]


def interval(held: int, count: int) -> tuple[float, float]:
    """Of the coverage, at the level above (Clopper and Pearson)."""
    found = stats.binomtest(held, count).proportion_ci(LEVEL)
    return float(found.low), float(found.high)


def fine(quantity: str, samples: int, held: int, count: int) -> bool:
    """Whether the interval of the measured coverage meets what is allowed."""
    low, high = interval(held, count)
    least, most = ALLOWED if samples >= max(SIZES.values()) else ALLOWED_TINY
    if quantity == "gap":
        least, most = (GAP_LEAST if samples >= max(SIZES.values()) else ALLOWED_TINY[0]), 1.0
    return high >= least and low <= most


def run(
    console: Console,
    names: list[str],
    sizes: list[int],
    count: int,
    out: Path,
    again: bool = False,
    parallel: bool = True,
) -> bool:
    """Run what results.json of the folder has not yet, print the table; whether every cell is fine."""
    file = out / "results.json"
    kept: dict[str, Any] = json.loads(file.read_text()) if file.is_file() and not again else {}
    tasks: dict[Name, Task[list[Repetition | None]]] = {
        (name, str(samples), str(first)): (repetitions, (name, samples, first, min(PER_TASK, count - first)))
        for first in range(0, count, PER_TASK)
        for samples in sizes
        for name in names
        if f"{name}; {samples}; {first}" not in kept
    }

    def keep(found: dict[Name, list[Repetition | None]]) -> None:
        kept.update({"; ".join(name): plain(part) for name, part in found.items()})
        write_results(out, kept)

    try:
        run_tasks(tasks, console, parallel, keep)
    finally:
        met = report(console, kept, names, sizes)
    return met


def report(console: Console, kept: dict[str, Any], names: list[str], sizes: list[int]) -> bool:
    """The table of coverages; whether every cell is fine."""
    table = headed("Intervals of 95 % that hold", "N", "repetitions", "without", *QUANTITIES)
    met = True
    for samples in sizes:
        for name in names:
            parts = [part for key, part in kept.items() if key.split("; ")[:2] == [name, str(samples)]]
            every = [one for part in parts for one in part]
            found = [one["held"] for one in every if one is not None]
            if not found:
                continue
            cells = []
            for quantity in QUANTITIES:
                stated = [one[quantity] for one in found if one[quantity] is not None]
                held, count = sum(stated), len(stated)
                low, high = interval(held, count) if count else (0.0, 1.0)
                good = not count or fine(quantity, samples, held, count)
                met &= good
                share = f"{held / count:.1%} ({low:.1%} to {high:.1%})" if count else "not stated"
                cells.append(f"{share}{'' if count == len(found) else f' of {count}'} {mark(good)}")
            table.add_row(name, f"{samples:,}", str(len(every)), str(len(every) - len(found)), *cells)
    console.print(table)
    return met
