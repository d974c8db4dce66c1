"""One SALVF step on a network of 100,000 parameters, against one compiled scan of the same s + 3 gradients.

The scan draws its batches the same way and does nothing else: what is left is the method's own cost (projections,
multipliers, residuals, the guard against non-finite values).
"""

import statistics
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from rich.console import Console

import hierax as hx
from hierax import loop

INNER, BATCH, ROWS, FEATURES, HIDDEN, CLASSES = 10, 256, 2048, 64, 1336, 10
STEPS, REPEATS = 5, 7


def network(key: Array) -> dict[str, Array]:
    """A two-layer perceptron in float32 (100,210 parameters)."""
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (FEATURES, HIDDEN), jnp.float32) / 8.0,
        "b1": jnp.zeros(HIDDEN, jnp.float32),
        "w2": jax.random.normal(second, (HIDDEN, CLASSES), jnp.float32) / 36.0,
        "b2": jnp.zeros(CLASSES, jnp.float32),
    }


def loss(y: dict[str, Array], batch: tuple[Array, Array]) -> Array:
    """Mean cross-entropy."""
    features, labels = batch
    scores = jnp.tanh(features @ y["w1"] + y["b1"]) @ y["w2"] + y["b2"]
    return -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(labels.shape[0]), labels])


def problem() -> hx.Problem:
    """Weight decay: the norm of the weights is bounded by x, which is tuned on other data."""
    rng = np.random.default_rng(0)

    def data() -> hx.Finite:
        features = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
        return hx.Finite((features, rng.integers(0, CLASSES, ROWS)))

    return hx.Problem(
        upper=lambda x, y, zeta: loss(y, zeta),
        lower=lambda x, y, xi: loss(y, xi),
        constraints=lambda x, y: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(y)) - x**2,
        x_set=hx.Box(1.0, 50.0),
        zeta=data(),
        xi=data(),
    )


def seconds_per_step(function: Any, *args: PyTree) -> float:
    """Median seconds of one step, after a warm-up."""
    jax.block_until_ready(function(*args))
    taken = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        jax.block_until_ready(function(*args))
        taken.append((time.perf_counter() - begin) / STEPS)
    return statistics.median(taken)


def run(console: Console) -> dict[str, Any]:
    """Time the step and the bare gradients alternately, print and return the ratio."""
    task = problem()
    x, y = jnp.asarray(20.0, jnp.float32), network(jax.random.key(1))
    method = hx.SALVF(batch_zeta=BATCH, batch_xi=BATCH, inner=hx.SALM(steps=INNER))
    key = jax.random.key(0)
    method = eqx.filter_jit(lambda p, x, y, k: method.resolve(p, x, y, k))(task, x, y, key)
    state = eqx.filter_jit(lambda m, p, x, y, k: m.init(p, x, y, k))(method, task, x, y, key)
    begin_run = loop.begin(task, method, state, "last")

    @eqx.filter_jit
    def steps(method: hx.SALVF, task: hx.Problem, run: loop.Run) -> loop.Run:
        def body(run: loop.Run, _: None) -> tuple[loop.Run, None]:
            return loop.advance(task, method, "last", run, method.tickets(task, run.state)), None

        return jax.lax.scan(body, run, None, length=STEPS)[0]

    @eqx.filter_jit
    def gradients(method: hx.SALVF, task: hx.Problem, run: loop.Run) -> PyTree:
        def outer(carry: tuple[Array, PyTree, Any], _: None) -> tuple:
            x, y, state = carry
            tickets = method.tickets(task, state)
            zeta, xi = task.zeta.fetch(tickets.zeta), task.xi.fetch(tickets.xi)

            def inner(y: PyTree, planned: Array) -> tuple[PyTree, None]:
                return descend(y, jax.grad(task.lower, 1)(x, y, task.xi.fetch(planned))), None

            y, _ = jax.lax.scan(inner, y, tickets.inner)
            for part in (
                jax.grad(task.upper, 1)(x, y, zeta),
                jax.grad(task.lower, 1)(x, y, xi),
                jax.grad(task.lower, 1)(x, jax.tree.map(lambda a: 0.5 * a, y), xi),
            ):
                y = descend(y, part)
            return (x, y, state._replace(step=state.step + 1)), None

        return jax.lax.scan(outer, (run.state.point.x, run.state.point.y, run.state), None, length=STEPS)[0]

    ratios, ours, bare = [], [], []
    for _ in range(3):  # alternate, so that a busy moment hits both
        ours.append(seconds_per_step(steps, method, task, begin_run))
        bare.append(seconds_per_step(gradients, method, task, begin_run))
        ratios.append(ours[-1] / bare[-1])
    ratio = statistics.median(ratios)
    console.print(
        f"network of {sum(a.size for a in y.values()):,} parameters, batch {BATCH}: a step takes "
        f"{1e3 * min(ours):.1f} ms, its {INNER + 3} gradients {1e3 * min(bare):.1f} ms: ratio {ratio:.2f}"
    )
    return {"ratio": ratio, "step_ms": 1e3 * min(ours), "gradients_ms": 1e3 * min(bare)}


def descend(y: PyTree, gradient: PyTree) -> PyTree:
    """A bare step, so that no gradient is optimised away."""
    return jax.tree.map(lambda a, g: a - 1e-3 * g, y, gradient)
