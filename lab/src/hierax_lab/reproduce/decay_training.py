"""How every network of the weight-decay experiment is judged: trained anew on the training part, under given bounds.

Stochastic gradients with momentum, each followed by the projection on the bounds (scaling back), on batches that are
the same for all bounds of a seed. "No weight decay" is the same training with bounds that are never met.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from hierax_lab.problems.weight_decay import Bounds, Images, Network, class_scores, cross_entropy, group_norms, within

STEPS = 3000  # of a training
BATCH, RATE, MOMENTUM = 32, 0.05, 0.9  # rows of a batch, length of a step, momentum


class Score(NamedTuple):
    """Loss and accuracy of networks on a part of the data."""

    loss: np.ndarray
    accuracy: np.ndarray


@functools.partial(jax.jit, static_argnames=("bounds", "steps"))
def trained(
    train: Images, start: Network, caps: Float[Array, "many p"], key: PRNGKeyArray, bounds: Bounds, steps: int = STEPS
) -> Network:
    """The networks trained from `start` under each row of caps (leaves have a leading axis)."""
    features, labels = (jnp.asarray(part) for part in train)

    def one(cap: Float[Array, " p"]) -> Network:
        def step(carry: tuple[Network, Network], key: PRNGKeyArray) -> tuple[tuple[Network, Network], None]:
            network, speed = carry
            rows = jax.random.randint(key, (BATCH,), 0, labels.shape[0])
            slope = jax.grad(cross_entropy)(network, (features[rows], labels[rows]))
            speed = jax.tree.map(lambda v, g: MOMENTUM * v + g, speed, slope)
            network = jax.tree.map(lambda a, v: a - RATE * v, network, speed)
            return (within(network, cap, bounds), speed), None

        begin = (within(start, cap, bounds), jax.tree.map(jnp.zeros_like, start))
        return jax.lax.scan(step, begin, jax.random.split(key, steps))[0][0]

    return jax.vmap(one)(caps)


@jax.jit
def _scores(networks: Network, part: Images) -> tuple[Array, Array]:
    def one(network: Network) -> tuple[Array, Array]:
        right = jnp.argmax(class_scores(network, part[0]), axis=1).astype(part[1].dtype) == part[1]
        return cross_entropy(network, part), jnp.mean(right)

    return jax.vmap(one)(networks)


def score(networks: Network, part: Images) -> Score:
    """Loss and accuracy of several networks (leading axis)."""
    return Score(*(np.asarray(value) for value in _scores(networks, part)))


def norms(networks: Network, bounds: Bounds) -> np.ndarray:
    """Of what each bound holds."""
    return np.asarray(jax.vmap(lambda network: group_norms(network, bounds))(networks))
