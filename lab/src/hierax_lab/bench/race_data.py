"""The numbers of the problems of `hierax bench race`: for every seed other data of the same shape."""

from collections.abc import Callable
from functools import partial

import numpy as np

from hierax_lab.bench.medium_data import group_rows, regression_data, two_clouds
from hierax_lab.bench.medium_models import wishes
from hierax_lab.bench.medium_planted import ellipsoid_numbers, planted_numbers
from hierax_lab.bench.race_statements import Data


def _ridge(seed: int) -> Data:
    """The diabetes data, divided at random into 221 rows to train on and 221 to validate; |w_j| <= 0.3."""
    features, target = regression_data()
    order = np.random.default_rng(seed).permutation(len(target))
    train, rest = order[: len(order) // 2], order[len(order) // 2 :]
    own = np.eye(features.shape[1])
    numbers = {"train": features[train], "train_target": target[train], "rest": features[rest]}
    return numbers | {"rest_target": target[rest], "signs": np.vstack([own, -own]), "most": np.asarray(0.3)}


def _groups(seed: int) -> Data:
    features, labels = group_rows(6, 10, 3000, seed)
    numbers = {"train": features[:1000], "train_labels": labels[:1000]}
    groups = np.kron(np.eye(6), np.ones(10))
    return numbers | {"rest": features[1000:], "rest_labels": labels[1000:], "groups": groups}


def _svm(seed: int) -> Data:
    """Rows are labels times (features, 1)."""
    train, rest = (label[:, None] * np.column_stack([z, np.ones(len(z))]) for z, label in two_clouds(seed))
    return {"train": train, "rest": rest}


def _pricing(seed: int) -> Data:
    own, wish, budget = wishes(5, 20, seed)
    numbers = {"own": own.ravel(), "wish": wish.ravel(), "budget": budget}
    return numbers | {"goods": np.tile(np.eye(5), (20, 1)), "buyers": np.kron(np.eye(20), np.ones(5))}


def _tolls(seed: int, links: int = 20, tolled: int = 8) -> Data:
    """Parallel links between two places; travel time r (1 + 0.15 (v / k)^4)."""
    rng = np.random.default_rng(seed)
    time, room = rng.uniform(0.5, 1.5, links), rng.uniform(0.4, 0.8, links)
    return {"time": time, "room": room, "tolled": np.eye(links)[:, :tolled], "demand": np.asarray(1.2 * room.sum())}


def _portfolio(seed: int, assets: int = 60, sectors: int = 6, train: int = 120, rest: int = 250) -> Data:
    """Monthly returns in per cent from three factors; means and risk are estimated on few rows."""
    rng = np.random.default_rng(seed)
    loadings, mean = rng.normal(size=(assets, 3)), 0.5 + 0.5 * rng.normal(size=assets)
    own = rng.uniform(1.0, 4.0, assets)
    returns = mean + rng.normal(size=(train + rest, 3)) @ loadings.T + own * rng.normal(size=(train + rest, assets))
    returns /= 10
    seen, later = returns[:train], returns[train:]
    numbers = {"mean": seen.mean(0), "risk": np.cov(seen.T) + 1e-3 * np.eye(assets)}
    groups = np.kron(np.eye(sectors), np.ones((assets // sectors, 1)))
    return numbers | {"rest": later, "rest_mean": later.mean(0), "sectors": groups}


def _cleaning(seed: int, rows: int = 1000, rest: int = 500, features: int = 20) -> Data:
    """Logistic regression with three labels in ten turned; the rows of validation are right."""
    rng = np.random.default_rng(seed)
    truth, z = rng.normal(size=features), rng.normal(size=(rows + rest, features))
    labels = np.where(rng.uniform(size=rows + rest) < 1 / (1 + np.exp(-z @ truth)), 1.0, -1.0)
    given = np.where(rng.uniform(size=rows) < 0.3, -labels[:rows], labels[:rows])
    return {"train": z[:rows], "train_labels": given, "rest": z[rows:], "rest_labels": labels[rows:]}


def _bodies(seed: int) -> Data:
    """The rows of `ellipsoids` multiplied out."""
    numbers = ellipsoid_numbers(20, 20, 5, seed)
    weights, centres = numbers["weights"], numbers.pop("centres")
    levels = numbers["levels"] - 0.5 * np.sum(weights * centres**2, axis=1) - numbers.pop("shift")
    return numbers | {"linear": weights * centres, "levels": levels}


DATA: dict[str, Callable[[int], Data]] = {
    "ridge": _ridge,
    "group logistic": _groups,
    "SVM weights": _svm,
    "pricing": _pricing,
    "tolls": _tolls,
    "portfolio": _portfolio,
    "planted QP 5+100": partial(planted_numbers, 5, 100, 50),
    "planted QP 20+200": partial(planted_numbers, 20, 200, 100),
    "planted QP 40+400": partial(planted_numbers, 40, 400, 100),
    "planted QP 10+1000": partial(planted_numbers, 10, 1000, 300),
    "hyper-cleaning": _cleaning,
    "QCQP 20+20": _bodies,
}
