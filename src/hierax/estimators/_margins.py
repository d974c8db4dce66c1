r"""Linear classifiers with weighted samples, and the derivatives of what they are worth: one lower level per fold.

For each fold f and each class k against the rest, with rows a_i (features and a one) and labels l_i of -1 and +1,

    u_fk(s) = argmin over u of  1/2 ||u||^2 + sum_{i in train f} s_i loss(l_i a_i'u),

and the upper level is the mean of a loss over the validation rows and the classes. The minimiser is unique
whatever s >= 0 is, as the offset is penalised too (as in liblinear). Newton's method finds it; with H its matrix at the
end, du/ds_i = -loss'(m_i) l_i H^{-1} a_i, so one solve with H gives all derivatives.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import linalg, special

from hierax.estimators._parts import Parts

MAX_NEWTON_STEPS = 100
GRADIENT_ROUNDING = 1e-12  # of the gradient, relative to the terms that it is a sum of
STALLED_GRADIENT = 1e-8  # likewise, where rounding keeps Newton's method or its line search from going on
MAX_HALVINGS = 40


class Loss(NamedTuple):
    """A loss of the margin m = l f(z), with two derivatives (the second is asked of lower levels only)."""

    value: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]
    curvature: Callable[[np.ndarray], np.ndarray]


LOSSES = {
    "squared_hinge": Loss(
        lambda m: np.maximum(1.0 - m, 0.0) ** 2,
        lambda m: -2.0 * np.maximum(1.0 - m, 0.0),
        lambda m: 2.0 * (m < 1.0),
    ),
    "logistic": Loss(
        lambda m: np.logaddexp(0.0, -m),
        lambda m: -special.expit(-m),
        lambda m: special.expit(m) * special.expit(-m),
    ),
    "sigmoid": Loss(
        lambda m: special.expit(-m),
        lambda m: -special.expit(m) * special.expit(-m),
        lambda m: np.zeros_like(m),
    ),
}


class Fitted(NamedTuple):
    """A minimiser, the factorised matrix of Newton's method there, and whether the gradient is at rounding."""

    u: Float[np.ndarray, " d"]
    factor: tuple[np.ndarray, bool]
    solved: bool


def fit(
    rows: Float[np.ndarray, "n d"], s: Float[np.ndarray, " n"], loss: Loss, start: Float[np.ndarray, " d"]
) -> Fitted:
    """The minimiser of 1/2 ||u||^2 + sum_i s_i loss(rows_i'u); the rows carry their labels as signs."""
    u, sizes, before = start, np.abs(rows), np.inf
    margins = rows @ u
    value = 0.5 * u @ u + s @ loss.value(margins)
    for _ in range(MAX_NEWTON_STEPS):
        pull = s * loss.slope(margins)
        gradient = u + pull @ rows
        factor = _factorised(rows, s * loss.curvature(margins))
        left = np.max(np.abs(gradient)) / (1.0 + np.max(np.abs(pull) @ sizes))
        if left <= GRADIENT_ROUNDING or STALLED_GRADIENT >= left >= 0.5 * before:
            return Fitted(u, factor, True)
        before = left
        step = -linalg.cho_solve(factor, gradient)
        along, slope, length = rows @ step, gradient @ step, 1.0
        for _ in range(MAX_HALVINGS):
            there = 0.5 * np.sum((u + length * step) ** 2) + s @ loss.value(margins + length * along)
            if there <= value + 1e-4 * length * slope:
                break
            length *= 0.5
        else:  # no decrease that rounding lets through; the minimiser is not farther away than the gradient is long
            return Fitted(u, factor, bool(left <= STALLED_GRADIENT))
        u = u + length * step
        margins, value = rows @ u, there
    return Fitted(u, _factorised(rows, s * loss.curvature(margins)), False)


def _factorised(rows: np.ndarray, curved: np.ndarray) -> tuple[np.ndarray, bool]:
    """The Cholesky factor of I + sum_i curved_i a_i a_i', over the rows that are curved."""
    if not curved.all():
        rows, curved = rows[curved > 0], curved[curved > 0]
    matrix = (rows * curved[:, None]).T @ rows
    matrix[np.diag_indices_from(matrix)] += 1.0
    try:
        return linalg.cho_factor(matrix, lower=True, check_finite=False)
    except linalg.LinAlgError:  # rounding has eaten the one: a step that is shorter than Newton's will do
        matrix[np.diag_indices_from(matrix)] += 1e-12 * np.max(np.diag(matrix))
        return linalg.cho_factor(matrix, lower=True, check_finite=False)


def signs_of(codes: Int[np.ndarray, " n"], classes: int) -> Float[np.ndarray, "n k"]:
    """Labels of -1 and +1, one column per class against the rest; of two classes, one column."""
    if classes == 2:
        return np.where(codes == 1, 1.0, -1.0)[:, None]
    return np.where(codes[:, None] == np.arange(classes), 1.0, -1.0)


class Worth(NamedTuple):
    """The upper level at given s: its value, the gradient, the models, and whether all of them were solved."""

    value: float
    gradient: Float[np.ndarray, " n"]
    planes: Float[np.ndarray, "folds k d"]
    solved: bool


class Models:
    """All lower levels of a tuning, each started where it ended the last time."""

    def __init__(
        self,
        rows: Float[np.ndarray, "folds n d"],
        signs: Float[np.ndarray, "n k"],
        sample_weight: Float[np.ndarray, " n"],
        parts: Parts,
        loss: Loss,
        judge: Loss,
    ) -> None:
        """`rows` has a fold of its own for each of the parts, or one for all of them."""
        self.rows, self.signs, self.parts = rows, signs, parts
        self.loss, self.judge = loss, judge
        judged = parts.validation * sample_weight
        self.judged = float(judged.sum())
        self.shares = judged / (self.judged * signs.shape[1])
        self.planes = np.zeros((len(parts.train), signs.shape[1], rows.shape[2]))

    def at(self, s: Float[np.ndarray, " n"]) -> Worth:
        """The mean loss on the validation rows, and its gradient in s."""
        value, gradient, solved = 0.0, np.zeros_like(s), True
        for f, (train, shares) in enumerate(zip(self.parts.train, self.shares, strict=True)):
            judged, rows = shares > 0, self.rows[f % len(self.rows)]
            for k, sign in enumerate(self.signs.T):
                signed = rows[train] * sign[train, None]
                tests = rows[judged] * sign[judged, None]
                found = fit(signed, s[train], self.loss, self.planes[f, k])
                margins = tests @ found.u
                value += float(shares[judged] @ self.judge.value(margins))
                adjoint = linalg.cho_solve(found.factor, (shares[judged] * self.judge.slope(margins)) @ tests)
                gradient[train] -= self.loss.slope(signed @ found.u) * (signed @ adjoint)
                self.planes[f, k] = found.u
                solved &= found.solved
        return Worth(value, gradient, self.planes.copy(), solved)

    def whole(
        self, rows: Float[np.ndarray, "n d"], s: Float[np.ndarray, " n"]
    ) -> tuple[Float[np.ndarray, "k d"], bool]:
        """The models fitted on all rows with weights s, and whether they were solved."""
        found = [
            fit(rows * sign[:, None], s, self.loss, start)
            for sign, start in zip(self.signs.T, self.planes[0], strict=True)
        ]
        return np.stack([one.u for one in found]), all(one.solved for one in found)
