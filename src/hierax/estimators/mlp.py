"""`NormBoundedMLPClassifier`: a network whose layers are bounded in norm, by bounds that are tuned while it trains."""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from hierax._compile.configuration import one_blas_thread
from hierax.estimators._base import TunedClassifier, number, whole_number
from hierax.estimators._linear import ROUNDING, Stated
from hierax.estimators._network import Networks, Training, drawn_batches, shares_of, stated_network, tuned_bounds
from hierax.estimators._parts import Splits


class NormBoundedMLPClassifier(TunedClassifier):
    r"""Network with one hidden layer of tanh whose two layers have norm bounds, tuned on validation rows.

        min over C_1, C_2 of  mean cross-entropy on validation rows of the network y
        y = argmin of         mean cross-entropy on training rows,   subject to ||layer_1|| <= C_1, ||layer_2|| <= C_2

    The bounds take the place of weight decay. The lower level is not convex: y is what training finds. Eight networks
    train side by side under bounds of their own, and at milestones the worst go on as copies of the best with bounds
    moved at random; then one network is trained on all rows under the bounds that were best. Scale the features first
    (`StandardScaler`).

    Args:
        hidden: width of the hidden layer.
        learning_rate: of Adam, over the first half of the training; then it falls to zero.
        validation_fraction: share of the rows, of every class, that judge.
        cv: scikit-learn's: a number of folds, a splitter or pairs of row numbers; every fold then trains networks of
            its own under the same bounds. None: one held-out part.
        max_iter: passes through the rows.
        tol: relative fall of the validation loss over the last twentieth of the training above which the tuning counts
            as unfinished.
        random_state: of the held-out part, the network before training, the batches and the moves of bounds.

    Attributes:
        classes_: the labels.
        bounds_: C_1 and C_2.
        hyperparams_: {"bounds": `bounds_`}.
        coefs_: the weights of both layers.
        intercepts_: their biases.
        history_: arrays by name: "upper" (validation loss), "lower" (training loss) and "bounds" of the best network,
            per milestone.
        n_iter_: passes through the rows.
        certificate_: `hierax.certify` of the tuned point, made when first asked for. Of a network with more than 200
            weights it retrains eight networks at and around the bounds: that refutes a bad point, but proves no good
            one, so the verdict is never "yes".
        stated_: the bilevel problem and the point.
        n_features_in_: number of features.
        feature_names_in_: their names, where X had any.

    Examples:
        >>> from sklearn.datasets import make_moons
        >>> from hierax.estimators import NormBoundedMLPClassifier
        >>> X, y = make_moons(200, noise=0.1, random_state=0)
        >>> mlp = NormBoundedMLPClassifier(random_state=0).fit(X, y)
        >>> bool(mlp.score(X, y) > 0.9), mlp.bounds_.shape
        (True, (2,))

    References:
        Jaderberg and others: Population based training of neural networks, arXiv:1711.09846, 2017.
        docs/guides/estimators.md
    """

    def __init__(
        self,
        *,
        hidden: int = 32,
        learning_rate: float = 0.02,
        validation_fraction: float = 0.25,
        cv: Splits = None,
        max_iter: int = 100,
        tol: float = 0.05,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.hidden = hidden
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.cv = cv
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> "NormBoundedMLPClassifier":
        """Tune and train.

        Args:
            X: features, (n, d).
            y: labels, (n,).
            sample_weight: what each row counts, in both levels; None: one.

        Returns:
            The estimator.

        Raises:
            InputError: where a setting or the data make no sense.
        """
        hidden, epochs = whole_number("hidden", self.hidden, 1), whole_number("max_iter", self.max_iter, 1)
        rate, tol = number("learning_rate", self.learning_rate, 0.0, strict=True), number("tol", self.tol, 0.0)
        given = self._given(X, y, sample_weight)
        rng = check_random_state(self.random_state)
        parts = self._parts(given, rng)
        rows, codes = given.rows, given.codes
        network = Networks.drawn(rng, rows.shape[1], hidden, len(self.classes_))
        batches = drawn_batches(rng, codes.size, epochs)
        found = tuned_bounds(rows, codes, given.counts, parts, network, batches, rate, rng)
        shares, bounds = shares_of(given.counts, np.ones((1, codes.size), bool)), found.bounds[None]
        training = Training(network.within(bounds), rows, codes, batches, rate)
        with one_blas_thread:
            last = training.run(range(training.steps), shares, bounds).taken(np.array(0))
        self.coefs_, self.intercepts_ = [last.weight1, last.weight2], [last.bias1, last.bias2]
        self.bounds_, self.history_, self.n_iter_, self._kept = found.bounds, found.history, epochs, found.kept
        self.hyperparams_ = {"bounds": found.bounds}
        before, after = found.history["upper"][-2:]
        falling = float((before - after) / max(abs(after), ROUNDING))
        if not falling <= tol:
            self._warn(
                f"the validation loss still fell by {falling:.0%} over the last twentieth of the training "
                f"(tol={tol:g}): raise max_iter or learning_rate, or scale the features (StandardScaler)."
            )
        return self

    def _stated(self) -> Stated:
        return stated_network(self._kept)

    def predict_proba(self, X: ArrayLike) -> Float[np.ndarray, "n classes"]:
        """Probabilities of the classes."""
        features = self._features(X)
        (first, second), (one, two) = self.coefs_, self.intercepts_
        network = Networks(first[None], one[None], second[None], two[None])
        return np.exp(network.log_likely(features)[0])

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The labels."""
        likely = self.predict_proba(X)
        return self.classes_[np.argmax(likely, axis=1)]
