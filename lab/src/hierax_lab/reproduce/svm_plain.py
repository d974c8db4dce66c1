"""The yardstick of the SVM experiment: a plain linear SVM whose C is chosen on the validation set.

It is scikit-learn's, on the same divisions of the data.
"""

from pathlib import Path

import numpy as np

from hierax import MissingExtra
from hierax_lab.reproduce.comparison import Row, mean_and_error
from hierax_lab.reproduce.svm_data import split

COSTS = 2.0 ** np.arange(-8, 9)  # values of C that are tried


def plain_svm(name: str, seeds: int, data_dir: Path | None) -> Row:
    """Mean test accuracy, and its standard error, over the experiment's divisions of the data."""
    try:
        from sklearn.svm import LinearSVC
    except ImportError as error:
        raise MissingExtra("the plain SVM is scikit-learn's: pip install 'hierax[sklearn]'") from error
    accuracies = []
    for seed in range(seeds):
        parts = split(name, seed, data_dir)
        fitted = [LinearSVC(C=c, dual=False).fit(*parts.train) for c in COSTS]
        best = max(fitted, key=lambda model: model.score(*parts.validation))
        accuracies.append(best.score(*parts.test))
    mean, spread = mean_and_error(accuracies)
    return {"accuracy": mean, "accuracy_se": spread}
