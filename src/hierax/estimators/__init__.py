"""scikit-learn estimators whose hyper-parameters are tuned as bilevel problems (extra `sklearn`).

`BilevelSVC` tunes the cost of a support vector machine and a weight per sample, `HyperCleaner` weights of samples whose
labels are not trusted, `NormBoundedMLPClassifier` the norms of a network's layers: each on validation rows, while the
model itself is fitted on the others. What each of them solves, and by which engine: docs/guides/estimators.md.
"""

from hierax._base.errors import MissingExtra

try:
    from hierax.estimators.cleaner import HyperCleaner as HyperCleaner
    from hierax.estimators.mlp import NormBoundedMLPClassifier as NormBoundedMLPClassifier
    from hierax.estimators.svc import BilevelSVC as BilevelSVC
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "sklearn":
        raise
    raise MissingExtra("hierax.estimators needs scikit-learn: pip install 'hierax[sklearn]'") from error

__all__ = ["BilevelSVC", "HyperCleaner", "NormBoundedMLPClassifier"]
