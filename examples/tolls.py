"""Tolls on parallel roads: an operator sets them, drivers divide themselves such that nobody gains by changing.

    python examples/tolls.py

The drivers' equilibrium minimises a convex function (Beckmann, McGuire, Winsten 1956): travel times integrated over the
flows, plus the tolls paid. One road has a limit on pollution that grows faster than its flow: a nonlinear constraint of
the lower level. The operator wants revenue, and little total travel time. `hx.certify` says whether the answer is one.
"""

import jax
import jax.numpy as jnp
import numpy as np

import hierax as hx

FREE, SLOPE = np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.4, 0.2])  # minutes on an empty road, and per unit of flow
DEMAND, POLLUTION, PRICE = 4.0, 3.0, 0.5


def drivers(tolls: jax.Array, flow: jax.Array, xi: None) -> jax.Array:
    """Beckmann's function."""
    return jnp.sum(FREE * flow + 0.5 * SLOPE * flow**2 + tolls * flow)


def operator(tolls: jax.Array, flow: jax.Array, zeta: None) -> jax.Array:
    """Total travel time minus what the revenue is worth."""
    return jnp.sum((FREE + SLOPE * flow) * flow) - PRICE * jnp.sum(tolls * flow)


def main(steps: int = 2000) -> tuple[hx.Solution, hx.Certificate]:
    """Set the tolls; print tolls, flows and the certificate."""
    problem = hx.Problem(
        upper=operator,
        lower=drivers,
        constraints=lambda tolls, flow: flow[2] ** 2 - POLLUTION,
        equalities=lambda tolls, flow: jnp.sum(flow) - DEMAND,
        x_set=hx.Box(0.0, 2.0),
        y_set=hx.NonNegative(),
    )
    sol = hx.solve(problem, np.full(3, 0.5), np.full(3, DEMAND / 3), hx.BLOCC(lower=hx.Exact()), max_steps=steps)
    # The penalty method is off by O(1/c); the drivers' answer to its tolls is what will happen.
    flow = hx.Exact().solve(problem, sol.x, sol.y).y
    certificate = hx.certify(problem, sol.x, flow)
    print("tolls", np.round(np.asarray(sol.x), 3), " flows", np.round(np.asarray(flow), 3))
    print(certificate)
    return sol, certificate


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
