"""Sample weights of a support vector machine, chosen on a validation set.

The problem is stated here; its exact lower solution and hyper-gradient are in `_svm_reference`.
"""

from typing import get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float64, PyTree

from hierax import Box, Finite, InputError, Problem
from hierax.problems.example import Example
from hierax_lab.problems._svm_reference import Data as Data
from hierax_lab.problems._svm_reference import Weights as Weights
from hierax_lab.problems._svm_reference import sample_weights

SOURCE = (
    "H. Nie, J. Li, Z. Wen: An augmented Lagrangian value function method for lower-level constrained stochastic "
    "bilevel optimization, hyperparameter tuning for SVM; squared slack as in Yao, Yu, Zeng, Zhang (LV-HBA, ICLR 2024)."
)


def svm(
    train: Data, validation: Data, weights: Weights = "softmax", *, bound: float = 5.0, unit: float = 1.0
) -> Example:
    r"""Weights of N training samples that make the trained SVM good on a validation set; n_x = N, n_y = d + 1 + N.

        min_c  phi(c) = mean over the validation set of exp(1 - l (z'w + b)),   (w, b, slack) = y*(c)
        y*(c) = argmin { 1/2 ||w||^2 + 1/2 sum_i s_i(c) xi_i^2  :  1 - l_i (z_i'w + b) - xi_i <= 0, i = 1..N }

    with xi_i = sqrt(N) slack_i and y = {"w", "b", "slack"}. The slack is squared: the form printed in the paper, linear
    in one slack without a sign, is unbounded below. Its unit is chosen such that the lower objective has curvature
    N s_i in slack_i, which is 1 at the start; the objective has no curvature in b, the constraints supply it.

    - "softmax": s(c) = softmax(c), the paper's. The weights add up to 1, and then ||w*(c)|| <= 1/2 *whatever c is*:
      ||w||^2 = sum_i lam_i (1 - xi_i) = sum_i s_i xi_i (1 - xi_i) <= 1/4 by the KKT conditions. Features in small units
      therefore cannot be fitted; standardise them.
    - "exp": s_i(c) = exp(c_i). The sum is free, so c also chooses the strength of the regularisation. The start is
      c_i = -log N, where both forms have equal weights 1/N.

    The two labels must both occur in `train`: then y*(c) is unique for every c. (Without slack w would be 0, and b >= 1
    and b <= -1 at once; so some xi_i > 0, and the lower problem is strictly convex in b there.) The set of c is a box
    around the start, because phi need not have a minimiser on the whole space: without bounds, descent sends most
    weights to 0 (and with "exp" others to infinity), and y* is no longer unique when a label has lost all its weight.
    Inside the box s_i / s_j <= exp(2 bound), which also bounds the condition number of the lower objective in the
    slack. That softmax does not change when c is shifted is harmless: grad phi is orthogonal to (1, ..., 1).

    The upper objective is sampled (`zeta` is the validation set), the lower one is exact. `svm_reference` and
    `svm_hypergradient` give y*(c), phi and its gradient to rounding. No minimiser is known.

    Args:
        train: features (N, d) and labels in {-1, +1} (N,).
        validation: features (M, d) and labels in {-1, +1} (M,).
        weights: "softmax" or "exp", see above.
        bound: half the width of the box of c.
        unit: the upper variable is x = c / unit. With sqrt(N) the hyper-objective's slope in x is of the same order as
            the lower objective's in y, for methods that have one step length for both.

    Returns:
        The example, without solutions; y0 is w = 0, b = 0 with the slack xi = 1, which is feasible.

    Examples:
        >>> import numpy as np
        >>> from hierax_lab.problems import svm
        >>> data = (np.array([[-1.0], [1.0]]), np.array([-1.0, 1.0]))
        >>> example = svm(data, data)
        >>> sorted(example.y0), example.x0.shape
        (['b', 'slack', 'w'], (2,))

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization (the SVM experiment, with the slack corrected).
        Bennett, Hu, Ji, Kunapuli, Pang: Model selection via bilevel optimization, IJCNN 2006.
        docs/benchmarks/paper-experiments.md, docs/methods/corrections.md (item 6)
    """
    if weights not in get_args(Weights):
        raise InputError(f'weights={weights!r} is not one of "softmax", "exp"')
    if not unit > 0:
        raise InputError(f"unit={unit} is the size of c at x = 1: it must be > 0")
    if not bound > 0:
        raise InputError(f"bound={bound} is half the width of a box: it must be > 0")
    features, labels = _checked("train", train)
    tests, test_labels = _checked("validation", validation)
    if tests.shape[1] != features.shape[1]:
        raise InputError(f"validation: has {tests.shape[1]} features, train has {features.shape[1]}")
    if np.all(labels == labels[0]):
        raise InputError(f"train: every label is {labels[0]:g}; the offset b is determined only if both labels occur")
    n, d = features.shape
    root = n**0.5
    signed = labels[:, None] * features

    def upper(x: Array, y: PyTree, zeta: tuple[Array, Array]) -> Array:
        del x
        z, l = (jnp.asarray(part, y["w"].dtype) for part in zeta)
        return jnp.mean(jnp.exp(1.0 - l * (z @ y["w"] + y["b"])))

    def lower(x: Array, y: PyTree, xi: None) -> Array:
        del xi
        return 0.5 * jnp.sum(y["w"] ** 2) + 0.5 * n * jnp.sum(sample_weights(unit * x, weights) * y["slack"] ** 2)

    def constraints(x: Array, y: PyTree) -> Array:
        del x
        rows, l = (jnp.asarray(part, y["w"].dtype) for part in (signed, labels))
        return 1.0 - rows @ y["w"] - l * y["b"] - root * y["slack"]

    x0 = np.full(n, 0.0 if weights == "softmax" else -np.log(n)) / unit
    problem = Problem(
        upper=upper,
        lower=lower,
        constraints=constraints,
        x_set=Box(x0 - bound / unit, x0 + bound / unit),
        zeta=Finite((tests, test_labels)),
    )
    y0 = {"w": np.zeros(d), "b": np.zeros(()), "slack": np.full(n, 1.0 / root)}
    return Example(problem, x0=x0, y0=y0, solutions=[], source=SOURCE)


def _checked(name: str, data: Data) -> tuple[Float64[np.ndarray, "rows columns"], Float64[np.ndarray, " rows"]]:
    features, labels = features_and_labels(name, data, float)
    if not np.all(np.abs(labels) == 1.0):
        raise InputError(f"{name}: the labels must be -1 or +1, got {np.unique(labels)[:5]}")
    return features, labels.astype(float)


def features_and_labels(name: str, data: tuple[ArrayLike, ArrayLike], dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, d) in a precision and labels (n,) as they are; other shapes are refused."""
    features: np.ndarray = np.asarray(data[0], dtype)
    labels = np.asarray(data[1])
    if features.ndim != 2 or labels.shape != features.shape[:1] or features.size == 0:
        raise InputError(
            f"{name}: needs features of shape (n, d) and labels of shape (n,), got {features.shape} and {labels.shape}"
        )
    return features, labels
