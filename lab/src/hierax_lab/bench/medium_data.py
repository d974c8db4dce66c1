"""Problems of `hierax bench medium` that are made of data: logistic regression, ridge regression, SVM weights."""

import dataclasses
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from hierax import Box, Finite, Problem
from hierax.extend import lazy
from hierax_lab.bench.medium_case import Bounds, MediumCase
from hierax_lab.problems import svm, svm_hypergradient, svm_reference
from hierax_lab.reproduce.svm_data import Part, split

sklearn_datasets = lazy("sklearn.datasets", extra="data")

RIDGE_ROWS, RIDGE_FEATURES = 442, 10
SVM_ROWS, SVM_FEATURES = (500, 150), 10  # rows to train on and to validate


def _on_all_data(problem: Problem) -> Problem:
    """The problem without samples: its functions on all rows."""
    zeta = None if problem.zeta is None else problem.zeta.full()
    xi = None if problem.xi is None else problem.xi.full()
    return dataclasses.replace(
        problem,
        upper=lambda x, y, _: problem.upper(x, y, zeta),
        lower=lambda x, y, _: problem.lower(x, y, xi),
        zeta=None,
        xi=None,
    )


def group_logistic(groups: int = 6, size: int = 10, train: int = 1000, validation: int = 2000) -> MediumCase:
    """Norm bounds of groups of coefficients in logistic regression, chosen on validation data.

        min over x in [-6, 3]^6 of the validation loss at w,  w = argmin { training loss : |w_g|^2 <= exp(x_g) }

    Features are standard normal with correlation 0.3 inside a group; the true coefficients of group g have norm
    1.5 (1 - g/6)^2, so that late groups are mostly noise; labels are drawn from the logistic model. Lower level
    strictly convex (more rows than coefficients). Neither the best radii nor their number of local optima are known.
    """
    features, labels = group_rows(groups, size, train + validation)

    def loss(y: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        inputs, signs = (jnp.asarray(part, y.dtype) for part in batch)
        return jnp.mean(jax.nn.softplus(-signs * (inputs @ y)))

    problem = Problem(
        upper=lambda x, y, zeta: loss(y, zeta),
        lower=lambda x, y, xi: loss(y, xi),
        constraints=lambda x, y: jnp.sum(y.reshape(groups, size) ** 2, axis=1) - jnp.exp(x),
        x_set=Box(-6.0, 3.0),
        zeta=Finite((features[train:], labels[train:])),
        xi=Finite((features[:train], labels[:train])),
    )
    return MediumCase(
        problem,
        _on_all_data(problem),
        np.full(groups, -2.0),
        np.zeros(groups * size),
        Bounds.between(-6.0, 3.0, groups),
        Bounds.free(groups * size),
        quadratic_rows=True,
        quadratic=False,
        sampled=True,
    )


def group_rows(groups: int, size: int, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The features and labels of `group_logistic`."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(rows, groups, 1))
    features = (np.sqrt(0.3) * shared + np.sqrt(0.7) * rng.normal(size=(rows, groups, size))).reshape(rows, -1)
    truth = rng.normal(size=(groups, size))
    truth *= (1.5 * (1 - np.arange(groups) / groups) ** 2 / np.linalg.norm(truth, axis=1))[:, None]
    return features, np.where(rng.uniform(size=rows) < 1 / (1 + np.exp(-features @ truth.ravel())), 1.0, -1.0)


def ridge() -> MediumCase:
    """Ridge regression in a box on the 442 rows of scikit-learn's diabetes data, half of them for validation.

        min over x of the validation error of w,  w = argmin { mean (z'w - t)^2 + exp(x_0) |w|^2 : |w_j| <= x_1 }

    with standardised columns and -8 <= x_0 <= 3, 0.01 <= x_1 <= 1. Data: B. Efron, T. Hastie, I. Johnstone, R.
    Tibshirani: Least angle regression (2004). Without scikit-learn, random data of the same shape.
    """
    features, target = regression_data()
    order = np.random.default_rng(0).permutation(len(target))
    train, rest = order[: len(target) // 2], order[len(target) // 2 :]

    def error(y: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        z, t = (jnp.asarray(part, y.dtype) for part in batch)
        return jnp.mean((z @ y - t) ** 2)

    problem = Problem(
        upper=lambda x, y, zeta: error(y, zeta),
        lower=lambda x, y, xi: error(y, xi) + jnp.exp(x[0]) * jnp.sum(y**2),
        constraints=lambda x, y: jnp.concatenate([y - x[1], -y - x[1]]),
        x_set=Box(np.array([-8.0, 0.01]), np.array([3.0, 1.0])),
        zeta=Finite((features[rest], target[rest])),
        xi=Finite((features[train], target[train])),
    )
    return MediumCase(
        problem,
        _on_all_data(problem),
        np.array([0.0, 0.1]),
        np.zeros(RIDGE_FEATURES),
        Bounds(np.array([-8.0, 0.01]), np.array([3.0, 1.0])),
        Bounds.free(RIDGE_FEATURES),
        sampled=True,
    )


def regression_data() -> tuple[np.ndarray, np.ndarray]:
    """Standardised features and target."""
    if importlib.util.find_spec("sklearn") is not None:
        features, target = sklearn_datasets.load_diabetes(return_X_y=True)
    else:
        rng = np.random.default_rng(1)
        features = rng.normal(size=(RIDGE_ROWS, RIDGE_FEATURES))
        target = features @ rng.normal(size=RIDGE_FEATURES) + 2.0 * rng.normal(size=RIDGE_ROWS)
    return _standard(features), _standard(target)


def _standard(values: np.ndarray) -> np.ndarray:
    return np.asarray((values - values.mean(0)) / values.std(0), float)


def svm_weights(name: str, data_dir: Path | None) -> MediumCase:
    """Sample weights of an SVM (`hierax_lab.problems.svm`, nothing set) on diabetes, fourclass or "synthetic".

    500 rows to train on, 150 to validate. The exact lower solution and the exact derivative of F(x, y*(x)) come from
    the Newton method that the problem brings along (`svm_reference`, `svm_hypergradient`).
    """
    if name == "synthetic":
        train, validation = two_clouds()
    else:
        parts = split(name, 0, data_dir)
        train, validation = parts.train, parts.validation
    example = svm(train, validation)
    size, count = np.size(example.x0), train[0].shape[1]

    def lower_solution(x: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            found = svm_reference(train, x)
            return np.concatenate([np.ravel(found.b), found.slack, found.w])  # the order of the keys b, slack, w

    def phi(x: np.ndarray) -> tuple[float, np.ndarray]:
        with jax.enable_x64(True):
            value, slope = svm_hypergradient(train, validation, x)
            return float(value), np.asarray(slope)

    box = example.problem.x_set
    return MediumCase(
        example.problem,
        _on_all_data(example.problem),
        example.x0,
        example.y0,
        Bounds(np.broadcast_to(box.lower, size), np.broadcast_to(box.upper, size)),
        Bounds.free(count + 1 + size),
        sampled=True,
        lower_solution=lower_solution,
        phi=phi,
    )


def two_clouds(seed: int = 0) -> tuple[Part, Part]:
    """Normal features whose first three entries are shifted by the label; one label in ten is wrong."""
    rng = np.random.default_rng(seed)
    rows = sum(SVM_ROWS)
    labels = rng.choice([-1.0, 1.0], rows)
    features = rng.normal(size=(rows, SVM_FEATURES))
    features[:, :3] += 0.6 * labels[:, None]
    given = np.where(rng.uniform(size=rows) < 0.1, -labels, labels)
    first = SVM_ROWS[0]
    return (features[:first], given[:first]), (features[first:], given[first:])
