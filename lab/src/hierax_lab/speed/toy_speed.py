"""Speed on the toy: 200 starts x 2,500 steps x 10 inner steps, against three NumPy versions of the same algorithm.

Everything is timed in one run, after a warm-up, best of several repeats (the machine may be shared); compilation is
given apart. The share of random numbers is measured by running the same program without noise.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from rich.console import Console

import hierax as hx
from hierax.problems import toy
from hierax_lab.reproduce.comparison import headed
from hierax_lab.speed.numpy_toy import Setup, inlined_loop, plain_loop, vectorised

STARTS, STEPS, INNER, SIGMA = 200, 2500, 10, 0.1  # starts, outer and inner steps, standard deviation of the noise
REPEATS = 5  # timed calls of each version
INLINED_STARTS = 20  # of the loop over Python floats, whose time is proportional to them
OURS = "hierax, one compiled call"
PLAIN_STARTS, PLAIN_STEPS = 2, 250  # of the plain loop, which takes minutes otherwise; its time is proportional to both


def method() -> hx.SALVF:
    """SALVF with the settings of the NumPy versions, so that both sides do the same work."""
    smooth = 2 * 100.0 + 10 * 5.0 + 20.0
    return hx.SALVF(
        c1=5.0,
        c2=100.0,
        gamma1=1.0,
        gamma2=1.0,
        steps=hx.Steps(x=hx.Decay(1 / smooth), y=hx.Decay(1 / smooth), z=0.3 / 5.0),
        inner=hx.SALM(steps=INNER),
        control_variate=False,
        start="given",
    )


def best(function: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, float]:
    """Shortest and median seconds of several calls."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
    return min(seconds), statistics.median(seconds)


def one_compiled_call(problem: hx.Problem, x0s: np.ndarray, y0s: np.ndarray) -> tuple[Callable[[], Any], float]:
    """All steps of all starts as one compiled program, and the seconds it took to compile."""
    first = hx.solve_many(problem, x0s, y0s, method(), max_steps=1, progress=False)
    assert first.state is not None
    states = first.state.run.state

    def steps(settings: hx.SALVF, state: Any) -> Any:
        """All steps of one start, with samples that are drawn in blocks, as in `solve`."""
        plan = settings.batches(problem)
        blocks, rest = divmod(STEPS, plan.block(problem))

        def step(at: Any, ticket: Any) -> tuple[Any, None]:
            return settings.step(problem, at, ticket)[0], None

        def taken(at: Any, count: int) -> Any:
            tickets = jax.tree.map(lambda drawn: drawn[:count], plan.draws(problem, at))
            return jax.lax.scan(step, at, tickets, count)[0]

        state, _ = jax.lax.scan(lambda at, _: (taken(at, plan.block(problem)), None), state, None, length=blocks)
        return taken(state, rest) if rest else state

    begin = time.perf_counter()
    compiled = jax.jit(jax.vmap(steps)).lower(first.method, states).compile()
    seconds = time.perf_counter() - begin
    return lambda: jax.block_until_ready(compiled(first.method, states)), seconds


def run(console: Console) -> dict[str, Any]:
    """Time all versions, print a table, return the figures."""
    rng = np.random.default_rng(0)
    starts = rng.uniform(0, 3, (STARTS, 2))
    x0s, y0s = starts[:, 0], starts[:, 1]

    def hierax_run(problem: hx.Problem) -> hx.Solutions:
        return hx.solve_many(problem, x0s, y0s, method(), max_steps=STEPS, record_every=STEPS, progress=False, seed=0)

    noisy, exact = toy(SIGMA).problem, toy(0.0).problem
    hierax_run(noisy)
    hierax_run(exact)
    call, compiled = one_compiled_call(noisy, x0s, y0s)
    silent, _ = one_compiled_call(exact, x0s, y0s)
    setup = Setup(STEPS, INNER, sigma=SIGMA)
    short = setup._replace(steps=PLAIN_STEPS)
    per = 1e6 / (STARTS * STEPS)
    times = {
        OURS: best(call),
        "hierax, the same without noise": best(silent),
        "hierax, all of solve_many": best(lambda: hierax_run(noisy)),
        "NumPy, vectorised over starts": best(lambda: vectorised(starts, setup)),
        "Python floats, inlined by hand": best(lambda: inlined_loop(starts[:INLINED_STARTS], setup), 3),
        "NumPy, a loop over starts": best(lambda: plain_loop(starts[:PLAIN_STARTS], short), 3),
    }
    scale = dict.fromkeys(times, per)
    scale["Python floats, inlined by hand"] = 1e6 / (INLINED_STARTS * STEPS)
    scale["NumPy, a loop over starts"] = 1e6 / (PLAIN_STARTS * PLAIN_STEPS)
    micro = {name: {"best": low * scale[name], "median": mid * scale[name]} for name, (low, mid) in times.items()}
    ours = micro[OURS]["best"]
    table = headed("Toy, microseconds per outer step and start (s = 10, float64)", "best", "median", "times hierax")
    for name, row in micro.items():
        table.add_row(name, f"{row['best']:.3f}", f"{row['median']:.3f}", f"{row['best'] / ours:.1f}")
    console.print(table)
    share = 1 - micro["hierax, the same without noise"]["best"] / ours
    console.print(f"share of random numbers: {share:.0%}; compilation of the call: {compiled:.1f} s")
    return {"microseconds": micro, "random_share": share, "compile_seconds": compiled}
