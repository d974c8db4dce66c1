"""Many problems at once, each in a thread of its own: every one ends where it does alone, bit for bit, and none hangs.

Methods, Auto's small route, sample averages and certificates; problems of equal form share programs, and with the
threads all of them want to compile the same ones at the same time.
"""

import argparse
import threading
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import hierax as hx
from hierax.extend import forget_programs

HANG_SECONDS = 1_800.0  # after which a thread counts as hanging


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this part."""
    parser.add_argument("--threads", type=int, default=24, help="problems that are solved at once")


def run(options: argparse.Namespace) -> bool:
    """Whether every thread ended, and with what the problem gives alone."""
    works = [_work(i) for i in range(options.threads)]
    begin = time.perf_counter()
    alone = [work() for work in works]
    middle = time.perf_counter()
    forget_programs()  # so that the threads compile, all at once
    found: list[list[np.ndarray] | BaseException | None] = [None] * len(works)

    def keep(i: int) -> None:
        try:
            found[i] = works[i]()
        except BaseException as error:
            found[i] = error

    threads = [threading.Thread(target=keep, args=(i,), daemon=True) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, middle + HANG_SECONDS - time.perf_counter()))
    problems = []
    for i, (one, other) in enumerate(zip(alone, found, strict=True)):
        if other is None:
            problems.append(f"thread {i} hangs")
        elif isinstance(other, BaseException):
            problems.append(f"thread {i}: {type(other).__name__}: {other}")
        elif not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True)):
            problems.append(f"thread {i} ends elsewhere: {other}, alone {one}")
    for text in problems:
        print(f"threads: {text}", flush=True)
    print(
        f"threads: {len(works)} problems at once in {time.perf_counter() - middle:.0f} s, one after another in "
        f"{middle - begin:.0f} s; {len(works) - len(problems)} end where they do alone",
        flush=True,
    )
    return not problems


def _work(number: int) -> Callable[[], list[np.ndarray]]:
    """The number-th problem and how it is solved: four kinds, each with other numbers in the same form."""
    kind, slope = number % 4, 1.5 + 0.1 * (number // 4)
    noise = hx.Sampler(lambda key, n: 0.1 * jax.random.normal(key, (n, 2)))
    problem = hx.Problem(
        upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2 + _mean(zeta) @ jnp.stack([x, y]),
        lower=lambda x, y, xi: (y - slope * x) ** 2 + _mean(xi) @ jnp.stack([x, y]),
        constraints=lambda x, y: y - x,
        x_set=hx.Box(0.0, 3.0),
        y_set=hx.Box(0.0, 3.0),
        zeta=noise if kind in (1, 3) else None,
        xi=noise if kind in (1, 3) else None,
    )

    def solved() -> list[np.ndarray]:
        if kind == 0:  # Auto's search, with its certificate
            solution = hx.solve(problem, 0.5, 0.5)
            return [*_point(solution), np.asarray(solution.certificate.lower_gap)]
        if kind == 1:
            return _point(hx.solve(problem, 0.5, 0.5, hx.SALVF(), max_steps=2_000))
        if kind == 2:
            return _point(hx.solve(problem, 0.5, 0.5, hx.BLOCC(), max_steps=200))
        stream = hx.Stream([np.full((4, 2), 0.01 * i) for i in range(7)])
        streamed = hx.Problem(
            problem.upper,
            problem.lower,
            problem.constraints,
            x_set=problem.x_set,
            y_set=problem.y_set,
            zeta=stream,
            xi=noise,
        )
        return _point(hx.solve(streamed, 0.5, 0.5, hx.SALVF_VR(), max_steps=500))

    return solved


def _mean(batch: jax.Array | None) -> jax.Array:
    return jnp.zeros(2) if batch is None else jnp.mean(batch, 0)


def _point(solution: hx.Solution) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves((solution.x, solution.y, solution.multipliers))]
