"""The weight-decay problem, its data, and the training by which its bounds are judged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hierax import InputError
from hierax_lab import problems
from hierax_lab.problems.weight_decay import class_scores, cross_entropy, group_norms, perceptron, weight_decay, within
from hierax_lab.reproduce import decay_training as training
from hierax_lab.reproduce.decay_data import split


@pytest.fixture(scope="module")
def parts():
    return split("digits", 0, 0.2, None)


@pytest.fixture(scope="module")
def network():
    return perceptron(jax.random.key(0), 64, 8, 10)


@pytest.mark.parametrize(("bounds", "p"), [("all", 1), ("layers", 2), ("tensors", 4)])
def test_groups_and_their_projection(network, bounds, p):
    network = jax.tree.map(lambda leaf: leaf + 0.1, network)
    norms = np.asarray(group_norms(network, bounds))
    assert norms.shape == (p,)
    assert np.sum(norms**2) == pytest.approx(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(network)))
    caps = 0.5 * norms * np.where(np.arange(p) == 0, 1.0, 4.0)  # the first is met, the others are not
    held = within(network, jnp.asarray(caps), bounds)
    np.testing.assert_allclose(group_norms(held, bounds), np.minimum(norms, caps), rtol=1e-6)
    assert float(np.vdot(network["hidden"]["bias"], held["hidden"]["bias"])) > 0


def test_a_new_bias_has_a_finite_gradient(network):
    slope = jax.jacrev(lambda y: group_norms(y, "tensors"))(network)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))


def test_cross_entropy_of_a_blank_network(network, parts):
    blank = jax.tree.map(jnp.zeros_like, network)
    assert float(cross_entropy(blank, parts.test)) == pytest.approx(np.log(10.0), rel=1e-5)


def test_the_start_is_on_the_bound(parts):
    found = weight_decay(parts.train, parts.validation, hidden=8)
    assert problems.weight_decay is weight_decay
    np.testing.assert_allclose(found.problem.constraints(found.x0, found.y0), 0.0, atol=1e-6)
    tight = weight_decay(parts.train, parts.validation, hidden=8, start=2.0, bounds="layers")
    assert np.all(np.asarray(tight.problem.constraints(tight.x0, tight.y0)) <= 1e-6)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"bounds": "some"}, "bounds='some'"),
        ({"box": (3.0, 1.0)}, "0 < low < high"),
        ({"train": (np.zeros((3, 2)), np.zeros(3))}, "whole numbers"),
        ({"train": (np.zeros((3, 2)), np.zeros(4, int))}, r"features of shape \(n, d\)"),
        ({"train": (np.zeros((3, 2)), np.zeros(3, int))}, "has 64 features"),
    ],
)
def test_bad_input_is_named(parts, change, text):
    arguments = {"train": parts.train, "validation": parts.validation} | change
    with pytest.raises(InputError, match=text):
        weight_decay(**arguments)


def test_divisions_do_not_overlap_and_labels_are_noisy():
    clean, noisy = (split("digits", 3, noise, None) for noise in (0.0, 0.2))
    assert [len(part[1]) for part in clean] == [200, 200, 1397]
    np.testing.assert_array_equal(clean.train[0], noisy.train[0])
    changed = np.mean(clean.train[1] != noisy.train[1])
    assert 0.1 < changed <= 0.2  # a label that is drawn anew is right by chance once in ten
    np.testing.assert_array_equal(clean.test[1], noisy.test[1])


def test_training_keeps_its_bounds_and_learns(parts, network):
    caps = jnp.array([[3.0], [1e6]], jnp.float32)
    networks = training.trained(parts.train, network, caps, jax.random.key(0), "all", steps=200)
    norms = training.norms(networks, "all")[:, 0]
    assert norms[0] <= 3.0 * (1 + 1e-6) < norms[1]
    scores = training.score(networks, parts.train)
    assert scores.loss[1] < scores.loss[0] < np.log(10.0)
    alone = training.score(jax.tree.map(lambda leaf: leaf[1:], networks), parts.test)
    assert 0.2 < alone.accuracy[0] < 1.0


def test_activation_of_the_network(parts, network):
    """By hand, with NumPy."""
    features = parts.train[0][:5]
    hidden, output = ({name: np.asarray(leaf) for name, leaf in network[layer].items()} for layer in network)
    inside = features @ hidden["weight"] + hidden["bias"]
    for activation, bent in (("tanh", np.tanh(inside)), ("relu", np.maximum(inside, 0.0))):
        known = bent @ output["weight"] + output["bias"]
        np.testing.assert_allclose(class_scores(network, features, activation), known, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="activation"):
        weight_decay(parts.train, parts.validation, activation="sine")
