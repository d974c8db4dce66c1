"""Unit tests of hierax.estimators.svc and hierax.estimators.mlp."""

import jax
import numpy as np
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import PolynomialFeatures
from test_estimators import IRIS

from hierax.estimators import BilevelSVC, NormBoundedMLPClassifier
from hierax.estimators.mlp import Networks, losses, slopes


def test_kernels_have_the_inner_products_they_should():
    features, labels = IRIS

    def mapped(**settings):
        return (
            BilevelSVC(**settings, cv=None, max_iter=1, tol=1.0, random_state=0).fit(features, labels)._mapped(features)
        )

    exact = mapped(kernel="rbf", gamma=0.3, landmarks=150)
    np.testing.assert_allclose(exact @ exact.T, rbf_kernel(features, gamma=0.3), atol=1e-6)
    assert mapped(kernel="rbf", landmarks=20).shape[1] <= 20
    np.testing.assert_allclose(
        mapped(kernel="quadratic"), PolynomialFeatures(2, include_bias=False).fit_transform(features)
    )


def test_gradients_of_networks_are_those_of_jax():
    rng = np.random.RandomState(0)
    networks = Networks.drawn(rng, 3, 4, 3).taken(np.zeros(2, int))
    rows, codes, shares = rng.normal(size=(7, 3)), rng.randint(0, 3, 7), rng.uniform(size=(2, 7))

    def total(networks):
        hidden = jax.numpy.tanh(rows @ networks.weight1 + networks.bias1[:, None])
        likely = jax.nn.log_softmax(hidden @ networks.weight2 + networks.bias2[:, None], axis=2)
        return -jax.numpy.sum(shares * likely[:, np.arange(7), codes])

    value, gradient = jax.value_and_grad(total)(networks)
    np.testing.assert_allclose(losses(networks, rows, codes, shares).sum(), value)
    for own, other in zip(slopes(networks, rows, codes, shares), gradient, strict=True):
        np.testing.assert_allclose(own, other, atol=1e-12)


def test_bounds_hold_an_overfitted_network_back():
    """Labels of noise: the less a network learns of them the better."""
    rng = np.random.RandomState(0)
    features, labels = rng.normal(size=(120, 10)), rng.randint(0, 2, 120)
    tuned = NormBoundedMLPClassifier(random_state=0).fit(features, labels)
    free = Networks.drawn(np.random.RandomState(0), 10, 32, 2).norms()[0]
    assert np.all(tuned.bounds_ < 1.5 * free)
    assert tuned.history_["upper"][-1] < 0.8
    likely = tuned.predict_proba(rng.normal(size=(500, 10)))
    assert np.mean(np.abs(likely - 0.5)) < 0.3
