"""A thousand solves of different shapes: memory stays within a bound. (That of the cache of programs: test_program.py.)

What JAX itself keeps of every shape that it has met is not hierax's to drop: it is measured by a second half in which
`jax.clear_caches()` is called now and then, as a user with many shapes would.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import hierax as hx
from hierax_lab.soak.memory import megabytes

MEMORY_READINGS = 10  # in each half
MAX_GROWTH = 0.5  # megabytes that a shape may leave behind where JAX's own caches are cleared


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this part."""
    parser.add_argument("--shapes", type=int, default=1_000, help="solves of different shapes")


def run(options: argparse.Namespace) -> bool:
    """Whether memory kept its bound where JAX's caches are cleared."""
    each = max(1, options.shapes // 2 // MEMORY_READINGS)  # solves between two looks
    half = each * MEMORY_READINGS
    begin = time.perf_counter()
    growth = {}
    for name, first, clear in (("as it is", 0, False), ("with JAX's caches cleared", half, True)):
        jax.clear_caches()
        memory = []
        for i in range(first, first + half):
            _solve(*_shape(i))
            if (i + 1) % each == 0:
                if clear:
                    jax.clear_caches()
                memory.append(megabytes())
        growth[name] = _slope(memory) / each
    print(
        f"shapes: {2 * half} in {time.perf_counter() - begin:.0f} s; memory per new shape: "
        + ", ".join(f"{grown:.2f} MB {name}" for name, grown in growth.items()),
        flush=True,
    )
    return growth["with JAX's caches cleared"] <= MAX_GROWTH


def _slope(memory: list[float]) -> float:
    """Megabytes per look in the later ones: by then the cache is full."""
    kept = memory[len(memory) // 2 :]
    return float(np.polyfit(np.arange(len(kept)), kept, 1)[0]) if len(kept) > 1 else 0.0


def _shape(number: int) -> tuple[int, int]:
    """Entries of x and of y, different for every number."""
    return 1 + number % 40, 1 + number // 40


def _solve(nx: int, ny: int) -> None:
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((y - 1.0) ** 2) + 0.1 * jnp.sum(x**2),
        lower=lambda x, y, xi: jnp.sum((y - jnp.sum(x)) ** 2),
        constraints=lambda x, y: y - 2.0,
        x_set=hx.Box(-3.0, 3.0),
        y_set=hx.Box(-3.0, 3.0),
    )
    solution = hx.solve(problem, np.zeros(nx), np.zeros(ny), hx.SALVF(), max_steps=20)
    assert solution.status.step == 20, solution.status.message
