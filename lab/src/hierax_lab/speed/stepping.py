"""Compiled steps of a method on a problem, timed and measured: what the benchmarks share."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

import hierax as hx

FEATURES, CLASSES = 64, 10  # inputs and outputs of the network


class Ready(NamedTuple):
    """A method that has begun on a problem, and its state before the first step."""

    problem: hx.Problem
    method: Any
    state: Any


def size(tree: PyTree) -> int:
    """Number of entries of a tree of arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def network(key: Array, hidden: int) -> dict[str, Array]:
    """A two-layer perceptron in float32 with 75 hidden + 10 parameters."""
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (FEATURES, hidden), jnp.float32) / FEATURES**0.5,
        "b1": jnp.zeros(hidden, jnp.float32),
        "w2": jax.random.normal(second, (hidden, CLASSES), jnp.float32) / hidden**0.5,
        "b2": jnp.zeros(CLASSES, jnp.float32),
    }


def loss(y: dict[str, Array], batch: tuple[Array, Array]) -> Array:
    """Mean cross-entropy."""
    features, labels = batch
    scores = jnp.tanh(features @ y["w1"] + y["b1"]) @ y["w2"] + y["b2"]
    return -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(labels.shape[0]), labels])


def network_problem(p: int = 1, rows: int = 4096) -> hx.Problem:
    """Weight decay: the squared norms of p equal pieces of the weights are bounded by x^2 / p."""
    rng = np.random.default_rng(0)

    def data() -> hx.Finite:
        features = rng.normal(size=(rows, FEATURES)).astype(np.float32)
        return hx.Finite((features, rng.integers(0, CLASSES, rows).astype(np.int32)))

    def constraints(x: Array, y: dict[str, Array]) -> Array:
        if p == 1:
            return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(y)) - x**2
        flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(y)])
        pieces = flat[: flat.size // p * p].reshape(p, -1)
        return jnp.sum(pieces**2, axis=1) - x**2 / p

    return hx.Problem(
        upper=lambda x, y, zeta: loss(y, zeta),
        lower=lambda x, y, xi: loss(y, xi),
        constraints=constraints,
        x_set=hx.Box(1.0, 50.0),
        zeta=data(),
        xi=data(),
    )


def begun(problem: hx.Problem, x: PyTree, y: PyTree, method: Any) -> Ready:
    """The method with everything filled in, before its first step."""
    begin = eqx.filter_jit(lambda m, p, x, y, k: m.begin(p, x, y, k))
    method, state, _ = begin(method, problem, x, y, jax.random.key(0))
    return Ready(problem, method, state)


def stepped(problem: hx.Problem, method: Any, state: Any) -> Any:
    """The state after one step, as the loop of docs/guides/own-loop.md makes it."""
    return method.step(problem, state, method.batches(problem).tickets(problem, state))[0]


def stepper(steps: int) -> Callable[[Ready], Any]:
    """A compiled scan of steps, from the state before the first to that after the last."""

    @eqx.filter_jit
    def go(ready: Ready) -> Any:
        def body(state: Any, _: None) -> tuple[Any, None]:
            return stepped(ready.problem, ready.method, state), None

        return jax.lax.scan(body, ready.state, None, length=steps)[0]

    return go


def seconds_per_step(function: Any, steps: int, *args: PyTree, repeats: int = 5) -> float:
    """Median seconds of one step, after a warm-up."""
    jax.block_until_ready(function(*args))
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(function(*args))
        taken.append((time.perf_counter() - begin) / steps)
    return statistics.median(taken)


def compiled_step(ready: Ready) -> dict[str, float]:
    """What one compiled step takes: its arguments (data apart) and temporaries in bytes, and the seconds to compile."""
    arrays, rest = eqx.partition(ready, eqx.is_array)

    def go(arrays: PyTree) -> PyTree:
        return eqx.filter(stepped(*eqx.combine(arrays, rest)), eqx.is_array)

    begin = time.perf_counter()
    used: Any = jax.jit(go).lower(arrays).compile().memory_analysis()
    seconds = time.perf_counter() - begin
    state = sum(
        leaf.nbytes for leaf in jax.tree.leaves(eqx.filter(ready.state, eqx.is_array)) if hasattr(leaf, "nbytes")
    )
    held = state + used.temp_size_in_bytes
    return {"bytes": held, "copies": held / (4 * size(ready.state.point.y)), "compile_s": seconds}


def slope(sizes: list[float], times: list[float], decades: float = 1.5) -> float:
    """Least-squares slope on log-log axes over the top decades."""
    across, up = np.log10(sizes), np.log10(times)
    top = across >= across.max() - decades - 1e-9
    return float(np.polyfit(across[top], up[top], 1)[0])
