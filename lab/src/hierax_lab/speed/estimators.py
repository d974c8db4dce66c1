"""`hierax.estimators` against scikit-learn's classifiers with `GridSearchCV`, with labels flipped at random.

Seven data sets that come with scikit-learn, 0, 20 and 40 % of the training labels replaced by another class, the mean
accuracy on clean test rows and its standard error over random splits, CPU seconds of a whole fit (grid search too).
Everything is scaled by `StandardScaler` inside of a pipeline. A second table gives every method a quarter of the
training rows with right labels, and tells `HyperCleaner` which ones they are.
"""

import time
import warnings
from collections.abc import Callable, Container, Iterable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from hierax.estimators import BilevelSVC, HyperCleaner, NormBoundedMLPClassifier
from hierax_lab.reproduce.comparison import mean_and_error

SPLITS = 4  # random splits of every data set
MAX_TRAIN_ROWS, MAX_TEST_ROWS = 200, 1000
NOISE = (0.0, 0.2, 0.4)  # shares of the training labels that are wrong
TRUSTED = 0.25  # share of the training rows that are known to be right
COSTS = np.logspace(-3, 3, 7)  # values of C in the grid searches

Data = tuple[np.ndarray, np.ndarray]


def data_sets() -> dict[str, Data]:
    """By name: features and labels."""
    return {
        "iris": datasets.load_iris(return_X_y=True),
        "wine": datasets.load_wine(return_X_y=True),
        "breast_cancer": datasets.load_breast_cancer(return_X_y=True),
        "digits 0-4": datasets.load_digits(n_class=5, return_X_y=True),
        "classification": datasets.make_classification(
            1250, 15, n_informative=6, n_redundant=3, flip_y=0.02, random_state=7
        ),
        "moons": datasets.make_moons(1250, noise=0.25, random_state=7),
        "quantiles": datasets.make_gaussian_quantiles(n_samples=1250, n_features=5, n_classes=3, random_state=7),
    }


def models(seed: int) -> dict[str, Any]:
    """By name: what is compared, made anew for every split."""
    network = MLPClassifier((32,), "tanh", learning_rate_init=0.01, max_iter=100, random_state=seed)
    return {
        "LinearSVC + grid": GridSearchCV(LinearSVC(dual=False), {"C": COSTS}, cv=5),
        "BilevelSVC": BilevelSVC(random_state=seed),
        "HyperCleaner": HyperCleaner(random_state=seed),
        "SVC rbf + grid": GridSearchCV(SVC(), {"C": COSTS, "gamma": ["scale", 0.03, 0.3]}, cv=5),
        "BilevelSVC rbf": BilevelSVC(kernel="rbf", random_state=seed),
        "MLPClassifier + grid": GridSearchCV(network, {"alpha": [1e-4, 1e-2, 1.0]}, cv=3),
        "NormBoundedMLP": NormBoundedMLPClassifier(random_state=seed),
    }


def flipped(codes: np.ndarray, share: float, rng: np.random.RandomState) -> np.ndarray:
    """The labels with a share of them replaced by another class."""
    classes = np.unique(codes)
    found = codes.copy()
    for i in np.flatnonzero(rng.uniform(size=codes.size) < share):
        found[i] = rng.choice(classes[classes != codes[i]])
    return found


def split(data: Data, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test rows: half of them each, up to the most there may be."""
    features, labels = data
    rows = min(MAX_TRAIN_ROWS, labels.size // 2)
    tests = min(MAX_TEST_ROWS, labels.size - rows)
    return train_test_split(features, labels, train_size=rows, test_size=tests, stratify=labels, random_state=seed)


def timed(model: Any, features: np.ndarray, labels: np.ndarray, **routed: Any) -> tuple[Any, float, bool]:
    """A fitted pipeline, the CPU seconds it took, and whether it warned that it has not converged."""
    whole = make_pipeline(StandardScaler(), model)
    begin = time.process_time()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        whole.fit(features, labels, **{f"{whole.steps[-1][0]}__{name}": value for name, value in routed.items()})
    warned = any(issubclass(one.category, ConvergenceWarning) for one in said)
    return whole, time.process_time() - begin, warned


def run(console: Console) -> dict[str, Any]:
    """Both tables."""
    return {"untrusted": untrusted(console), "trusted": with_trusted_rows(console)}


def accuracies(
    names: Container[str], noises: Iterable[float], table: Table, scored: Callable[[Data, float, int], dict[str, float]]
) -> list[dict[str, Any]]:
    """Means over the splits of every data set and noise, as rows of the table and as records.

    `scored` gives the accuracies of a split, and under other names what else is averaged.
    """
    records: list[dict[str, Any]] = []
    for data, both in data_sets().items():
        for noise in noises:
            splits = [scored(both, noise, seed) for seed in range(SPLITS)]
            found: dict[str, Any] = {name: mean_and_error([one[name] for one in splits]) for name in splits[0]}
            best = max(mean for name, (mean, _) in found.items() if name in names)
            cells = [
                _cell(mean, error, best) if name in names else f"{mean:.2f}" for name, (mean, error) in found.items()
            ]
            table.add_row(data, f"{noise:.0%}", *cells)
            for name, (mean, error) in found.items():
                kind = {"model": name, "accuracy": mean} if name in names else {name: mean}
                records.append({"data": data, "noise": noise} | kind | {"error": error})
    return records


def untrusted(console: Console) -> list[dict[str, Any]]:
    """All methods, with noise in all training labels."""
    names = list(models(0))
    table = Table("data", "noise", *names, title="accuracy in %, mean and standard error over splits; best in bold")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    warned = dict.fromkeys(names, 0)

    def scored(both: Data, noise: float, seed: int) -> dict[str, float]:
        train, test, labels, truth = split(both, seed)
        noisy = flipped(labels, noise, np.random.RandomState(1000 + seed))
        found = {}
        for name, model in models(seed).items():
            fitted, took, said = timed(model, train, noisy)
            found[name] = fitted.score(test, truth)
            seconds[name].append(took)
            warned[name] += said
        return found

    records = accuracies(names, NOISE, table, scored)
    table.add_section()
    table.add_row("CPU seconds", "", *(f"{np.mean(values):.2f}" for values in seconds.values()))
    fits = len(next(iter(seconds.values())))
    table.add_row("warned", "", *(f"{count} of {fits}" for count in warned.values()))
    console.print(table)
    return records + [{"model": name, "seconds": float(np.mean(values))} for name, values in seconds.items()]


def with_trusted_rows(console: Console) -> list[dict[str, Any]]:
    """A quarter of the training labels are right, and it is known which."""
    grid = {"C": COSTS}
    columns: dict[str, Callable[[int], Any]] = {
        "LogisticRegression + grid, all rows": lambda seed: GridSearchCV(LogisticRegression(max_iter=500), grid, cv=5),
        "the same, trusted rows only": lambda seed: GridSearchCV(LogisticRegression(max_iter=500), grid, cv=3),
        "HyperCleaner(trusted)": lambda seed: HyperCleaner(random_state=seed),
        "HyperCleaner(mlp, trusted)": lambda seed: HyperCleaner(model="mlp", random_state=seed),
    }
    table = Table("data", "noise", *columns, "AUC of weights", title=f"{TRUSTED:.0%} of the training rows trusted")

    def scored(both: Data, noise: float, seed: int) -> dict[str, float]:
        train, test, labels, truth = split(both, seed)
        rng = np.random.RandomState(1000 + seed)
        trusted = rng.uniform(size=labels.size) < TRUSTED
        noisy = np.where(trusted, labels, flipped(labels, noise, rng))
        found = {}
        for name, make in columns.items():
            only = trusted if "only" in name else np.ones(labels.size, bool)
            routed = {"trusted": trusted} if "HyperCleaner" in name else {}
            fitted, _, _ = timed(make(seed), train[only], noisy[only], **routed)
            found[name] = fitted.score(test, truth)
            if name == "HyperCleaner(trusted)":
                area = _area(fitted[-1].weights_[~trusted], (noisy != labels)[~trusted])
        return found | {"auc": area}

    records = accuracies(columns, NOISE[1:], table, scored)
    console.print(table)
    return records


def _area(weights: np.ndarray, wrong: np.ndarray) -> float:
    """Share of the pairs of a wrong and a right label in which the wrong one has the smaller weight; ties are half."""
    less = weights[wrong][:, None] - weights[~wrong][None]
    return float(np.mean((less < 0) + 0.5 * (less == 0)))


def _cell(mean: float, error: float, best: float) -> str:
    text = f"{100 * mean:.1f} ± {100 * error:.1f}"
    return f"[bold]{text}[/bold]" if mean >= best else text
