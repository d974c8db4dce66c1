"""
A problem with types
====================

A problem stated with types: `mypy --strict` accepts it, and so does a type checker of yours.

::

    python gallery/integrations/typed.py
    mypy --strict gallery/integrations/typed.py

A shop sets prices, customers buy what is worth its price to them, up to what they can carry. Variables are trees with
`PyTree` as their type, so that functions may say `Array` for those that are one array, or a dictionary of arrays.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import hierax as hx

WORTH = np.array([6.0, 5.0, 3.0])
COST = np.array([1.0, 2.0, 0.5])
CARRY = 5.0


def shop(prices: Array, bought: Array, _: None) -> Array:
    """Minus the profit, and a little for high prices, which customers resent."""
    return -jnp.sum((prices - COST) * bought) + 0.05 * jnp.sum(prices**2)


def customers(prices: Array, bought: Array, _: None) -> Array:
    """Minus what is gained by buying: the first piece is worth most."""
    return jnp.sum(0.5 * bought**2 - (WORTH - prices) * bought)


def too_heavy(prices: Array, bought: Array) -> Array:
    """What is carried, beyond what can be."""
    return jnp.sum(bought**2) - CARRY**2


def stated() -> tuple[hx.Problem, np.ndarray, np.ndarray]:
    """The problem and a start: `hierax solve gallery/integrations/typed.py:stated`."""
    problem = hx.Problem(
        upper=shop,
        lower=customers,
        constraints=too_heavy,
        x_set=hx.Box(0.0, 10.0),
        y_set=hx.NonNegative(),
    )
    return problem, np.full(3, 2.0), np.ones(3)


def watch(info: hx.Info) -> bool:
    """Whether to stop."""
    return info.step > 10_000


def main() -> hx.Solution:
    """Solve it, and say how far the answer can be trusted."""
    problem, x0, y0 = stated()
    solution: hx.Solution = hx.solve(problem, x0, y0, hx.Auto(starts=4), callback=watch)
    certificate: hx.Certificate = solution.certificate
    verdict: str = certificate.verdict(1e-4)
    steps: int = solution.status.step
    profit: float = -solution.value
    print(f"profit less resentment {profit:.4g}, certificate: {verdict}, {steps} points judged")
    if not solution.status.ok:
        raise hx.RunFailed(solution.status.message, solution)
    return solution


if __name__ == "__main__":
    main()
