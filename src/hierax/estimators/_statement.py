"""The tunings of `hierax.estimators` as bilevel problems, which `hx.certify` judges and `hx.solve` can solve anew.

They are stated from arrays only, so that fitted estimators hold no functions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._problem.problem import Problem
from hierax._problem.samples import Finite
from hierax._problem.sets import Box
from hierax.estimators._margins import Models
from hierax.estimators._tuning import Tuned, Weighing

Kept = dict[str, Any]
"""What states a problem: arrays and plain values by name, those of a linear classifier or of networks."""

LEAST_NORM = 1e-12  # added inside of roots, whose derivative is not finite at zero


class Stated(NamedTuple):
    """A bilevel problem and the point that a fitted estimator has found for it."""

    problem: Problem
    x: PyTree
    y: PyTree


def kept_linear(
    models: Models, weighing: Weighing, sample_weight: np.ndarray, tuned: Tuned, loss: str, judge: str
) -> Kept:
    """What states the problem of a linear classifier, as arrays and plain values."""
    return {
        "kind": "linear",
        "loss": loss,
        "judge": judge,
        "rows": models.rows,
        "signs": models.signs,
        "train": models.parts.train,
        "shares": models.shares,
        "counts": sample_weight,
        "judged": models.judged,
        "weighing": list(weighing),
        "log_cost": tuned.log_cost,
        "v": tuned.v,
        "planes": tuned.planes,
    }


def stated(kept: Kept) -> Stated:
    """The problem of what an estimator has kept."""
    return _linear(kept) if kept["kind"] == "linear" else _network(kept)


# -- linear classifiers -----------------------------------------------------------------------------------------------


JUDGES: dict[str, Callable[[Array], Array]] = {
    "squared_hinge": lambda m: jnp.maximum(1.0 - m, 0.0) ** 2,
    "logistic": lambda m: jax.nn.softplus(-m),
    "sigmoid": lambda m: jax.nn.sigmoid(-m),
}


class Fold(NamedTuple):
    """Rows with their labels as signs, one array per class (k, n, d), and what each row counts."""

    train: np.ndarray
    counts: np.ndarray
    entries: np.ndarray
    tests: np.ndarray
    shares: np.ndarray


def folds_of(kept: Kept) -> list[Fold]:
    """The rows of every fold."""
    rows, signs, counts = kept["rows"], kept["signs"], kept["counts"]
    place = np.cumsum(kept["train"].any(axis=0)) - 1
    folds = []
    for f, (train, shares) in enumerate(zip(kept["train"], kept["shares"], strict=True)):
        every = signs.T[:, :, None] * rows[f % len(rows)]
        folds.append(Fold(every[:, train], counts[train], place[train], every[:, shares > 0], shares[shares > 0]))
    return folds


def _linear(kept: Kept) -> Stated:
    """x: the logarithm of the cost and an entry per training row; y: per fold the planes and, with the hinge, slack."""
    weighing, counts = Weighing(*kept["weighing"]), kept["counts"]
    tuned = kept["train"].any(axis=0)
    folds = folds_of(kept)
    prices = weighing.penalty * counts[tuned] / kept["judged"]
    hinge = kept["loss"] == "squared_hinge"
    start = weighing.start

    def scores(numbers: np.ndarray, y: dict[str, Array]) -> Array:
        return jnp.einsum("knd,kd->kn", jnp.asarray(numbers, y["plane"].dtype), y["plane"])

    def upper(x: dict[str, Array], y: list[dict[str, Array]], zeta: None) -> Array:
        del zeta
        total = jnp.sum(jnp.asarray(prices, x["v"].dtype) * (x["v"] - start) ** 2)
        for fold, part in zip(folds, y, strict=True):
            margins = scores(fold.tests, part)
            losses = JUDGES[kept["judge"]](margins)
            total = total + jnp.sum(losses @ jnp.asarray(fold.shares, losses.dtype))
        return total

    def lower(x: dict[str, Array], y: list[dict[str, Array]], xi: None) -> Array:
        del xi
        total = jnp.zeros((), x["v"].dtype)
        weights = jnp.exp(x["v"]) if weighing.scale == "log" else x["v"]
        for fold, part in zip(folds, y, strict=True):
            s = jnp.asarray(fold.counts, x["v"].dtype) * jnp.exp(x["log_cost"]) * weights[fold.entries]
            losses = part["slack"] ** 2 if hinge else jax.nn.softplus(-scores(fold.train, part))
            total = total + 0.5 * jnp.sum(part["plane"] ** 2) + jnp.sum(losses @ s)
        return total

    def constraints(x: dict[str, Array], y: list[dict[str, Array]]) -> list[Array]:
        del x
        return [1.0 - scores(fold.train, part) - part["slack"] for fold, part in zip(folds, y, strict=True)]

    bottom, top = weighing.box
    problem = Problem(
        upper=upper,
        lower=lower,
        constraints=constraints if hinge else None,  # type: ignore[arg-type]  # None: no constraint
        x_set={"log_cost": Box(*weighing.log_costs), "v": Box(bottom, top)},
    )
    y = []
    for fold, planes in zip(folds, kept["planes"], strict=True):
        margins = np.einsum("knd,kd->kn", fold.train, planes)
        y.append({"plane": planes} | ({"slack": np.maximum(1.0 - margins, 0.0)} if hinge else {}))
    return Stated(problem, {"log_cost": np.asarray(kept["log_cost"]), "v": kept["v"][tuned]}, y)


# -- networks ---------------------------------------------------------------------------------------------------------


def _network(kept: Kept) -> Stated:
    """x: a bound per layer; y: per fold the network; both levels are means over rows, seen through mini-batches."""
    rows, codes = kept["rows"], kept["codes"]

    def source(weights: np.ndarray) -> Finite:
        """Rows that count in some fold, their labels, and what they count in each; the weights have mean one."""
        seen = (weights > 0).any(axis=0)
        counts = weights[:, seen] / weights[:, seen].mean(axis=1, keepdims=True)
        return Finite((rows[seen], codes[seen], counts.T))

    def loss(y: list[dict[str, Array]], batch: tuple[Array, Array, Array]) -> Array:
        features, labels, counts = batch
        total = jnp.zeros((), features.dtype)
        for f, network in enumerate(y):
            hidden = jnp.tanh(features @ network["weight1"] + network["bias1"][None])
            likely = jax.nn.log_softmax(hidden @ network["weight2"] + network["bias2"][None])
            own = jnp.take_along_axis(likely, labels[:, None], axis=1)[:, 0]
            total = total - jnp.mean(counts[:, f] * own)
        return total / len(y)

    def norms(y: list[dict[str, Array]]) -> Array:
        """Of the layers of every fold, (folds, 2)."""
        squares = [
            [jnp.sum(part[f"weight{layer}"] ** 2) + jnp.sum(part[f"bias{layer}"] ** 2) for layer in (1, 2)]
            for part in y
        ]
        return jnp.sqrt(jnp.stack([jnp.stack(one) for one in squares]) + LEAST_NORM)

    problem = Problem(
        upper=lambda x, y, zeta: loss(y, zeta),
        lower=lambda x, y, xi: loss(y, xi),
        constraints=lambda x, y: norms(y) - x[None],
        x_set=Box(kept["low"], kept["high"]),
        zeta=source(kept["judged"]),
        xi=source(kept["counted"]),
    )
    y = [{name: kept[name][f] for name in ("weight1", "bias1", "weight2", "bias2")} for f in range(len(kept["bias1"]))]
    return Stated(problem, kept["bounds"], y)
