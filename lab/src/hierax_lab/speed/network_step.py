"""One step of SALVF and of SALVF-VR on a network of a million parameters, against a scan of the same gradients.

The scan draws its batches the same way and does nothing else: what is left is the method's own cost (projections,
multipliers, residuals, the guard against non-finite values).
"""

import statistics
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree
from rich.console import Console

import hierax as hx
from hierax_lab.speed.stepping import Ready, begun, network, network_problem, seconds_per_step, size, stepper

INNER, BATCH, HIDDEN = 10, 256, 13333  # inner steps, rows of a batch, hidden units
STEPS, ROUNDS = 2, 3  # steps of a timed call, and timed rounds
METHODS: dict[str, Callable[..., hx.SALVF]] = {"SALVF": hx.SALVF, "SALVF-VR": hx.SALVF_VR}


@eqx.filter_jit
def gradients(ready: Ready, points: int) -> PyTree:
    """STEPS times the gradients of a step: the inner ones, then F and twice G at each of `points` points."""
    problem, method, first = ready

    def outer(carry: tuple[Array, PyTree, Any], _: None) -> tuple:
        x, y, state = carry
        tickets = method.batches(problem).tickets(problem, state)
        zeta, xi = problem.zeta.fetch(tickets.zeta), problem.xi.fetch(tickets.xi)

        def inner(y: PyTree, planned: Array) -> tuple[PyTree, None]:
            return descend(y, jax.grad(problem.lower, 1)(x, y, problem.xi.fetch(planned))), None

        y = jax.lax.scan(inner, y, tickets.inner)[0]
        for _point in range(points):
            for part in (
                jax.grad(problem.upper, 1)(x, y, zeta),
                jax.grad(problem.lower, 1)(x, y, xi),
                jax.grad(problem.lower, 1)(x, jax.tree.map(lambda a: 0.5 * a, y), xi),
            ):
                y = descend(y, part)
        return (x, y, state._replace(step=state.step + 1)), None

    return jax.lax.scan(outer, (first.point.x, first.point.y, first), None, length=STEPS)[0]


def descend(y: PyTree, gradient: PyTree) -> PyTree:
    """A bare step, so that no gradient is optimised away."""
    return jax.tree.map(lambda a, g: a - 1e-3 * g, y, gradient)


def run(console: Console) -> dict[str, Any]:
    """Time the step and the bare gradients alternately, print and return the ratios."""
    problem, y = network_problem(), network(jax.random.key(1), HIDDEN)
    found = {}
    for name, method in METHODS.items():
        asked = method(batch_zeta=BATCH, batch_xi=BATCH, inner=hx.SALM(steps=INNER))
        x = jnp.asarray(20.0, jnp.float32)
        ready = begun(problem, x, y, asked)
        points = asked.direction.gradients_per_step
        steps, ours, bare = stepper(STEPS), [], []
        for _ in range(ROUNDS):  # alternate, so that a busy moment hits both
            ours.append(seconds_per_step(steps, STEPS, ready))
            bare.append(seconds_per_step(gradients, STEPS, ready, points))
        ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
        console.print(
            f"{name}, network of {size(y):,} parameters, batch {BATCH}: a step takes {1e3 * min(ours):.0f} ms, its "
            f"{INNER + 3 * points} gradients {1e3 * min(bare):.0f} ms: ratio {ratio:.2f}"
        )
        found[name] = {"ratio": ratio, "step_ms": 1e3 * min(ours), "gradients_ms": 1e3 * min(bare)}
    return found
