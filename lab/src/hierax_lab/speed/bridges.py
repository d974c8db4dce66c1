"""What the bridges cost: `python -m hierax_lab.speed.bridges` prints the figures of docs/guides/bridges.md.

For `from_torch`, microseconds of a call from a compiled program, beside the same function in JAX and in torch alone.
For `from_cvxpy`, what it takes to make a level, to solve it at other parameters, and what CVXPY itself takes. Every
figure is the fastest of many repetitions, so that other work on the machine matters little.
"""

import functools
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hierax as hx

CALLS = 20  # timed together
REPETITIONS = 40  # of which the fastest counts


def fastest(call: Callable[[], Any], calls: int = CALLS, repetitions: int = REPETITIONS) -> float:
    """Microseconds of a call: the fastest mean of a few calls in a row."""
    jax.block_until_ready(call())
    found = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        for _ in range(calls):
            result = call()
        jax.block_until_ready(result)
        found.append((time.perf_counter() - begin) / calls)
    return 1e6 * min(found)


def formula(x: Any, y: Any, zeta: Any = None) -> Any:
    """A sum of squares, in the words that torch and JAX share."""
    return ((y - 1.0) ** 2).sum() + 0.1 * (x**2).sum()


def of_torch(size: int) -> None:
    """Value, gradient and a product with the Hessian."""
    import torch

    x, y = jnp.zeros(1), jnp.ones(size)

    def derivatives(function: Callable) -> list[float]:
        value = jax.jit(lambda x, y: function(x, y, None))
        slope = jax.jit(lambda x, y: jax.value_and_grad(function, (0, 1))(x, y, None))
        bend = jax.jit(lambda x, y: jax.jvp(lambda v: jax.grad(function, 1)(x, v, None), (y,), (y,))[1])
        calls = 2 if size > 1_000 else CALLS
        return [fastest(functools.partial(one, x, y), calls) for one in (value, slope, bend)]

    def alone() -> Any:
        v = torch.tensor(np.asarray(y)).requires_grad_(True)
        return torch.autograd.grad(formula(torch.zeros(1), v), [v])

    value, slope, bend = derivatives(hx.from_torch(formula))
    print(
        f"from_torch, y of {size:,}: value {value:.0f}, value and gradient {slope:.0f}, product with the Hessian "
        f"{bend:.0f} us; gradient in torch alone {fastest(alone):.0f}, in JAX {derivatives(formula)[1]:.0f} us"
    )


def of_cvxpy(n: int) -> None:
    """A portfolio of n assets: a dense quadratic form, one equality, two bounds for each."""
    import cvxpy as cp

    rng = np.random.default_rng(0)
    root, mean = rng.normal(size=(2 * n, n)), rng.uniform(size=n)
    weights, risk = cp.Variable(n, name="weights", nonneg=True), cp.Parameter(name="risk", nonneg=True, value=1.0)
    gain = mean @ weights - risk * cp.quad_form(weights, cp.psd_wrap(root.T @ root / n))
    problem = cp.Problem(cp.Maximize(gain), [cp.sum(weights) == 1, weights <= 0.5])
    begin = time.perf_counter()
    level = hx.from_cvxpy(problem, [risk], [weights])
    made = time.perf_counter() - begin
    bilevel = level.problem(lambda x, y, zeta: x["risk"])
    parts = jax.jit(lambda x, y: (jax.grad(level.lower, 1)(x, y), level.constraints(x, y), level.equalities(x, y)))
    evaluated = fastest(lambda: parts(level.x0, level.y0))

    def solved() -> Any:
        return hx.Exact().solve(bilevel, {"risk": jnp.asarray(1.1)}, level.y0).y

    def by_cvxpy() -> float:
        risk.value = 1.1
        return problem.solve(solver=cp.CLARABEL)

    begin = time.perf_counter()
    solved()
    first = time.perf_counter() - begin
    print(
        f"from_cvxpy, {n} assets: made in {made:.2f} s; gradient and rows {evaluated:.0f} us; solved by Exact in "
        f"{fastest(solved, 3, 10) / 1e3:.1f} ms (the first time {first:.1f} s, compiling), "
        f"by CVXPY in {fastest(by_cvxpy, 3, 10) / 1e3:.1f} ms"
    )


def main() -> None:
    """Print the figures of the bridges whose packages are installed."""
    for package, run, sizes in (("torch", of_torch, (1, 1_000, 100_000)), ("cvxpy", of_cvxpy, (10, 50, 200))):
        if importlib.util.find_spec(package) is None:
            print(f"{package} is not installed")
            continue
        for size in sizes:
            run(size)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
