"""Weight decay as a bilevel problem: norm bounds of a network, chosen on a validation set.

The problem is `weight_decay`; the network, its loss and its norms are public here for those who train it otherwise.
"""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from hierax import Box, Finite, InputError, Problem
from hierax.problems.example import Example
from hierax_lab.problems.svm import features_and_labels

SOURCE = (
    "H. Nie, J. Li, Z. Wen: An augmented Lagrangian value function method for lower-level constrained stochastic "
    "bilevel optimization, weight decay tuning."
)
Bounds = Literal["all", "layers", "tensors"]
Activation = Literal["tanh", "relu"]
Values = Array | np.ndarray
Images = tuple[Values, Values]  # features (rows, d) and labels (rows,)
Network = dict[str, dict[str, Array]]


def perceptron(key: PRNGKeyArray, features: int, hidden: int, classes: int) -> Network:
    """Weights of a two-layer perceptron in float32, after Glorot and Bengio: variance 2 / (inputs + outputs)."""

    def layer(key: PRNGKeyArray, inputs: int, outputs: int) -> dict[str, Array]:
        weight = (2 / (inputs + outputs)) ** 0.5 * jax.random.normal(key, (inputs, outputs), jnp.float32)
        return {"weight": weight, "bias": jnp.zeros(outputs, jnp.float32)}

    first, second = jax.random.split(key)
    return {"hidden": layer(first, features, hidden), "output": layer(second, hidden, classes)}


def class_scores(network: Network, features: Values, activation: Activation = "tanh") -> Float[Array, "rows classes"]:
    """The outputs of the network, tanh or max(0, .) between two affine maps, for features of shape (rows, d)."""
    hidden, output = network["hidden"], network["output"]
    bent = {"tanh": jnp.tanh, "relu": jax.nn.relu}[activation]
    return bent(features @ hidden["weight"] + hidden["bias"][None]) @ output["weight"] + output["bias"][None]


def cross_entropy(network: Network, images: Images, activation: Activation = "tanh") -> Float[Array, ""]:
    """Mean over the images."""
    features, labels = images
    likely = jax.nn.log_softmax(class_scores(network, features, activation))
    return -jnp.mean(jnp.take_along_axis(likely, labels[:, None], axis=1))


def group_norms(network: Network, bounds: Bounds) -> Float[Array, " p"]:
    """Euclidean norms of what each bound holds: everything, each layer, or each array."""
    squares = jax.tree.map(lambda leaf: jnp.sum(leaf**2), network)
    depth = {"all": 0, "layers": 1, "tensors": 2}[bounds]
    groups = [squares]
    for _ in range(depth):
        groups = [part for group in groups for part in group.values()]
    # The derivative of the root is not finite at zero, where new biases are.
    tiny = jnp.finfo(jnp.float32).tiny
    return jnp.stack([jnp.sqrt(jnp.maximum(sum(jax.tree.leaves(group)), tiny)) for group in groups])


def weight_decay(
    train: Images,
    validation: Images,
    *,
    bounds: Bounds = "all",
    hidden: int = 32,
    start: float | None = None,
    box: tuple[float, float] = (0.5, 40.0),
    seed: int = 0,
    activation: Activation = "tanh",
) -> Example:
    r"""Norm bounds C under which a trained network is good on a validation set; n_x = p.

        min over C in [low, high]^p of F(w*(C)),     w*(C) = argmin { G(w) : ||w_i|| <= C_i, i = 1..p }

    with F and G the mean cross-entropy on the validation and the training set, both seen through mini-batches, and w_i
    the weights that the i-th bound holds. The lower level is not convex: w*(C) is what training finds. Where no bound
    is active the hyper-gradient is zero, so the default start is the norm of the network before training.

    Args:
        train: features (N, d), float, and labels 0, 1, ... (N,), int.
        validation: the same, other rows.
        bounds: "all" (p = 1), one per layer ("layers", p = 2) or one per array ("tensors", p = 4).
        hidden: width of the hidden layer.
        start: C at the start, for every bound; None: the norms of the initial network (1 where that is less).
        box: smallest and largest C.
        seed: of the initial network.
        activation: between the two layers, "tanh" or "relu".

    Returns:
        The example, without solutions; y0 is the initial network, in float32, scaled into its bounds.

    Examples:
        >>> import numpy as np
        >>> from hierax_lab.problems import weight_decay
        >>> features = np.random.default_rng(0).normal(size=(8, 2))
        >>> data = (features, np.array([0, 1] * 4))
        >>> len(weight_decay(data, data, hidden=3).solutions)  # nothing is known of it beforehand
        0

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization (the experiment with a network).
        docs/benchmarks/paper-experiments.md
    """
    if bounds not in get_args(Bounds):
        raise InputError(f'bounds={bounds!r} is not one of "all", "layers", "tensors"')
    if activation not in get_args(Activation):
        raise InputError(f'activation={activation!r} is not one of "tanh", "relu"')
    parts = [_checked("train", train), _checked("validation", validation)]
    features = parts[0][0].shape[1]
    if parts[1][0].shape[1] != features:
        raise InputError(f"validation: has {parts[1][0].shape[1]} features, train has {features}")
    low, high = box
    if not 0 < low < high:
        raise InputError(f"box={box}: needs 0 < low < high")
    classes = 1 + max(int(labels.max()) for _, labels in parts)
    network = perceptron(jax.random.key(seed), features, hidden, classes)
    norms = np.asarray(group_norms(network, bounds))
    x0 = np.maximum(norms, 1.0) if start is None else np.full(norms.shape, start)
    x0 = np.clip(x0, low, high).astype(np.float32)

    problem = Problem(
        upper=lambda x, y, zeta: cross_entropy(y, zeta, activation),
        lower=lambda x, y, xi: cross_entropy(y, xi, activation),
        constraints=lambda x, y: group_norms(y, bounds) - x,
        x_set=Box(low, high),
        zeta=Finite(parts[1]),
        xi=Finite(parts[0]),
    )
    return Example(problem, x0=x0, y0=within(network, x0, bounds), solutions=[], source=SOURCE)


def within(network: Network, x: Array, bounds: Bounds) -> Network:
    """The nearest network that keeps the bounds x: every group scaled back to its ball."""
    norms = group_norms(network, bounds)
    share = jnp.minimum(1.0, x.astype(norms.dtype) / norms)
    if bounds == "all":
        return jax.tree.map(lambda leaf: share[0].astype(leaf.dtype) * leaf, network)
    leaves, tree = jax.tree.flatten(network)
    each = share if bounds == "tensors" else jnp.repeat(share, 2, total_repeat_length=4)
    scaled = [factor.astype(leaf.dtype) * leaf for factor, leaf in zip(each, leaves, strict=True)]
    return jax.tree.unflatten(tree, scaled)


def _checked(name: str, images: Images) -> tuple[np.ndarray, np.ndarray]:
    features, labels = features_and_labels(name, images, np.float32)
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise InputError(f"{name}: the labels must be whole numbers 0, 1, ..., got {labels.dtype}")
    return features, labels.astype(np.int32)
