"""A bilevel problem to begin with: how large may the weights of a fit be?

    hierax solve problem.py:problem        (or whatever you have called this file)

The lower level fits weights y to training data, under a bound x on their norm. The upper level chooses x such that the
fitted weights do well on validation data. Replace the functions below by your own, one at a time.
"""

import jax.numpy as jnp
import numpy as np

import hierax as hx

# The data. Fourteen rows for eight weights invite over-fitting; the bound on the norm is what helps against it.
rng = np.random.default_rng(3)
truth = rng.normal(size=8) / 3
train, validation = rng.normal(size=(14, 8)), rng.normal(size=(60, 8))
train_target = train @ truth + rng.normal(size=14)
validation_target = validation @ truth + rng.normal(size=60)


# The two objectives: numbers to be minimised, written with jax.numpy.
def upper(x, y, batch):
    """What you want, given the answer y of the lower level. `batch` is None unless you pass zeta= below."""
    return jnp.mean((validation @ y - validation_target) ** 2)


def lower(x, y, batch):
    """What the lower level wants. `batch` is None unless you pass xi= below."""
    return jnp.mean((train @ y - train_target) ** 2)


# Constraints of the lower level: feasible is <= 0. For several return a list, an array or a dictionary.
def constraints(x, y):
    """The norm of the weights is at most x."""
    return jnp.sum(y**2) - x**2


problem = hx.Problem(
    upper=upper,
    lower=lower,
    constraints=constraints,
    # equalities=lambda x, y: ...,          # = 0 in the lower level
    # upper_constraints=lambda x, y: ...,   # <= 0 in the upper level
    x_set=hx.Box(0.1, 3.0),  # where x may be; y_set= for y. Also hx.NonNegative(), hx.Ball(r), hx.Simplex()
    # zeta=hx.Finite((features, labels)),   # data for batches of `upper`; xi= for `lower`: docs/guides/using.md
)

# A start for each variable: a number, an array, or a dictionary of them. It need not satisfy anything.
x0 = 1.0
y0 = np.zeros(8)
