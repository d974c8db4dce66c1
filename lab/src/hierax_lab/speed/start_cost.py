"""What a call of `solve` costs at its start: traces of the user's functions, compilations, lower solves.

`python -m hierax_lab.speed.start_cost` prints one line per call: SALVF with nothing set on a deterministic problem, and
Auto with nothing set but a time limit on a sampled one. A trace is a call of one of the user's Python functions; a
compilation is one of XLA's, with its seconds.
"""

import time
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp

import hierax as hx

COMPILED = "/jax/core/compile/backend_compile_duration"
STEPS = 10  # of SALVF


def counted(traces: Counter[str], sampled: bool) -> hx.Problem:
    """A problem of 3 + 3 variables whose functions count their calls."""

    def upper(x: jax.Array, y: jax.Array, zeta: jax.Array | None) -> jax.Array:
        traces["upper"] += 1
        noise = 0.0 if zeta is None else jnp.mean(zeta @ y)
        return jnp.sum((y - 1.0) ** 2) + 0.1 * jnp.sum(x**2) + noise

    def lower(x: jax.Array, y: jax.Array, xi: jax.Array | None) -> jax.Array:
        traces["lower"] += 1
        noise = 0.0 if xi is None else jnp.mean(xi @ y)
        return jnp.sum((y - 2.0 * x) ** 2) + noise

    def constraints(x: jax.Array, y: jax.Array) -> jax.Array:
        traces["constraints"] += 1
        return y - x

    source = hx.Sampler(lambda key, n: 0.1 * jax.random.normal(key, (n, 3))) if sampled else None
    return hx.Problem(upper, lower, constraints, x_set=hx.Box(0.0, 3.0), zeta=source, xi=source)


def measured(name: str, sampled: bool, **call: Any) -> None:
    """Run one call and print what it took."""
    traces: Counter[str] = Counter()
    compiled: list[float] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if event == COMPILED:
            compiled.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)  # type: ignore[arg-type]  # JAX names its arguments otherwise
    before = time.process_time()
    sol = hx.solve(counted(traces, sampled), jnp.full(3, 0.5), jnp.full(3, 0.5), progress=False, **call)
    taken = time.process_time() - before
    jax.monitoring.clear_event_listeners()
    steps = sol.status.step if "max_steps" in call else 0
    first = (sol.counts.lower_solves or 0) - steps
    solves = f"{first} lower solves at the start" if steps else f"status {sol.status.name}"
    print(
        f"{name}: traces {sum(traces.values())} {dict(traces)}, compilations {len(compiled)} ({sum(compiled):.1f} s), "
        f"{solves}, {taken:.1f} CPU s"
    )


if __name__ == "__main__":
    measured("SALVF", False, method=hx.SALVF(), max_steps=STEPS)
    measured("SALVF again, fresh functions", False, method=hx.SALVF(), max_steps=STEPS)
    measured("Auto, sampled, 5 s", True, seconds=5.0)
