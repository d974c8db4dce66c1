"""Small problems of one form, so that they share their compiled programs: whatever differs is an array."""

import jax.numpy as jnp
import numpy as np

import hierax as hx

PAIR = np.array([[1.0, 0.0], [0.0, 1.0]])


def family(
    hessian=(1.0, 1.0),
    push=(1.0, 1.0),
    linear=(0.0, 0.0),
    rows=PAIR,
    level=(1.0, 5.0),
    bend=(0.0, 0.0),
    bend_equal=0.0,
    target=(0.5, 2.0, 2.0),
    above=9.0,
):
    """min over x in [-3, 3] of 1/2 (x - t0)^2 + 1/2 (y1 - t1)^2 + 1/2 (y2 - t2)^2 subject to x <= above,

    y*(x) = argmin of 1/2 y'Ay - (linear + push x)'y, A = diag(hessian, 1), subject to
    rows (y1, y2) + bend (y1^2 + y2^2) <= level and y3 + bend_equal y1^2 = 0.

    As it stands y1 = min(x, 1), y2 = min(x, 5), y3 = 0.
    """
    numbers = [np.atleast_1d(np.asarray(v, float)) for v in (hessian, push, linear, rows, level, bend, bend_equal)]
    goal, most = np.asarray(target, float), np.array([above])  # a NumPy scalar would become part of the program

    def upper(x, y, zeta):
        t = jnp.asarray(goal)
        return 0.5 * (x - t[0]) ** 2 + 0.5 * jnp.sum((y[:2] - t[1:]) ** 2)

    def lower(x, y, xi):
        a, p, q = numbers[:3]
        return 0.5 * jnp.sum(a * y[:2] ** 2) + 0.5 * y[2] ** 2 - (q + p * x) @ y[:2]

    def constraints(x, y):
        r, e, b = numbers[3:6]
        return {"rows": r @ y[:2] - e + b * jnp.sum(y[:2] ** 2)}

    return hx.Problem(
        upper=upper,
        lower=lower,
        constraints=constraints,
        equalities=lambda x, y: y[2:] + numbers[6] * y[:1] ** 2,
        upper_constraints=lambda x, y: x - most,
        x_set=hx.Box(-3.0, 3.0),
    )


def at(y1, y2, y3=0.0):
    return np.array([y1, y2, y3])
