"""Many starts in one call against a loop over them: `solve_many` must never lose by more than a tenth."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import hierax as hx
from hierax_lab.reproduce.comparison import headed
from hierax_lab.speed.stepping import network, network_problem, size

SEEDS, ROUNDS = 8, 2  # starts, and timed rounds
HIDDEN, BATCHES = (1, 8, 64, 512), (1, 32, 256)  # hidden units, rows of a batch
SECONDS = 1.0  # that one timed call of the loop takes at least


def _timed(function: Any, steps: int) -> float:
    begin = time.perf_counter()
    function(steps)
    return time.perf_counter() - begin


def _measured(hidden: int, batch: int) -> dict[str, float]:
    problem, y = network_problem(rows=1024), network(jax.random.key(1), hidden)
    x = jnp.asarray(20.0, jnp.float32)
    method = hx.SALVF(batch_zeta=batch, batch_xi=batch)
    xs, ys = jax.tree.map(lambda a: jnp.broadcast_to(a, (SEEDS, *a.shape)), (x, y))

    def loop(steps: int) -> None:
        for seed in range(SEEDS):
            hx.solve(problem, x, y, method, max_steps=steps, seed=seed, record_every=steps, progress=False, throw=False)

    def many(steps: int) -> None:
        hx.solve_many(problem, xs, ys, method, max_steps=steps, record_every=steps, progress=False)

    for run_all in (loop, many):
        run_all(2)  # compile
    steps = 64
    while (taken := _timed(loop, steps)) < SECONDS:
        steps *= max(2, min(16, int(SECONDS / taken)))
    both = [(_timed(many, steps), _timed(loop, steps)) for _ in range(ROUNDS)]
    return {
        "ratio": float(np.median([a / b for a, b in both])),
        "loop_ms": 1e3 * min(b for _, b in both) / steps / SEEDS,
    }


def run(console: Console) -> dict[str, Any]:
    """The table over hidden size and batch: time of `solve_many` over that of the loop, per step and start."""
    table = headed(f"solve_many / loop over {SEEDS} seeds, by hidden units", "dim(y)", *(f"batch {b}" for b in BATCHES))
    results = []
    for hidden in HIDDEN:
        row = [_measured(hidden, batch) for batch in BATCHES]
        count = size(network(jax.random.key(1), hidden))
        table.add_row(str(hidden), f"{count:,}", *(f"{one['ratio']:.2f} (loop {one['loop_ms']:.3g} ms)" for one in row))
        results.append({"hidden": hidden, "parameters": count, "batches": dict(zip(BATCHES, row, strict=True))})
    console.print(table)
    return {"seeds": SEEDS, "rows": results}
