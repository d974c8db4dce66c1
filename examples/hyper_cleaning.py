"""Data hyper-cleaning: weights of training samples, some with wrong labels, chosen by a small clean validation set.

    python examples/hyper_cleaning.py

A norm-bounded linear classifier is trained on weighted samples; the weights, whose mean is one, are what the
validation loss says. Samples whose weight falls below one half are called wrong.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import hierax as hx

CLASSES, BOUND = 10, 8.0


def make_data(rows: int, wrong: float, seed: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple, tuple, np.ndarray]:
    """Digits: training rows with a share of wrong labels, as many clean ones to validate, the rest to test."""
    features, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    features = (features[order] / 16.0).astype(np.float32)
    labels = labels[order].astype(np.int32)
    is_wrong = rng.random(rows) < wrong
    given = np.where(is_wrong, (labels[:rows] + rng.integers(1, CLASSES, rows)) % CLASSES, labels[:rows])
    parts = [(features[a:b], labels[a:b]) for a, b in ((rows, 2 * rows), (2 * rows, None))]
    return (features[:rows], given.astype(np.int32)), parts[0], parts[1], is_wrong


def losses(y: dict[str, jax.Array], batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Cross-entropy of each row."""
    features, labels = batch
    scores = jax.nn.log_softmax(features @ y["weight"] + y["bias"])
    return -jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]


def norm(y: dict[str, jax.Array]) -> jax.Array:
    """Of all coefficients; smooth at zero, where the run begins."""
    return jnp.sqrt(1e-6 + jnp.sum(y["weight"] ** 2) + jnp.sum(y["bias"] ** 2))


def main(rows: int = 300, steps: int = 600, wrong: float = 0.3) -> dict[str, float]:
    """Find the wrong labels; print precision and recall, and the accuracy before and after."""
    train, validation, test, is_wrong = make_data(rows, wrong, seed=0)
    numbers = np.arange(rows, dtype=np.int32)

    def lower(x: jax.Array, y: dict, xi: tuple) -> jax.Array:
        batch, index = xi
        return jnp.mean(rows * jax.nn.softmax(x)[index] * losses(y, batch))

    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.mean(losses(y, zeta)),
        lower=lower,
        constraints=lambda x, y: norm(y) - BOUND,
        x_set=hx.Box(-5.0, 5.0),
        zeta=hx.Finite(validation),
        xi=hx.Finite((train, numbers)),
    )
    y0 = {"weight": np.zeros((64, CLASSES), np.float32), "bias": np.zeros(CLASSES, np.float32)}
    # The gradient of a norm has length one: gamma = 1 and c2 = c1 are weak penalties, and the inner steps stay long.
    method = hx.SALVF(
        c1=3.0,
        c2=3.0,
        gamma1=1.0,
        gamma2=1.0,
        steps=hx.Steps(x=optax.adam(0.02), y=optax.adam(0.02)),
        batch_zeta=64,
        batch_xi=64,
    )
    sol = hx.solve(problem, np.zeros(rows, np.float32), y0, method, max_steps=steps)

    def accuracy(y: dict[str, jax.Array]) -> float:
        return float(np.mean(np.argmax(test[0] @ np.asarray(y["weight"]) + np.asarray(y["bias"]), 1) == test[1]))

    @jax.jit
    def fitted(x: jax.Array) -> dict[str, jax.Array]:
        return hx.Exact(tol=1e-4).solve(problem, x, y0, (train, numbers)).y

    called = np.asarray(rows * jax.nn.softmax(sol.x)) < 0.5
    report = {
        "precision": float(np.mean(is_wrong[called])) if called.any() else 0.0,
        "recall": float(np.mean(called[is_wrong])),
        "accuracy before": accuracy(fitted(np.zeros(rows, np.float32))),
        "accuracy after": accuracy(fitted(np.asarray(sol.x))),
    }
    for name, value in report.items():
        print(f"{name:16s} {value:.3f}")
    return report


if __name__ == "__main__":
    main()
