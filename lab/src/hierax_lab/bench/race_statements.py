"""The problems of `hierax bench race`, each stated once for every solver: NumPy's arrays and the words of `Words`.

hierax reads a statement with `jax.numpy`, Ipopt with CasADi's matrices. Nothing here imports either, so that a process
that measures one solver does not load another one's libraries.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Data = dict[str, np.ndarray]  # the numbers of a problem
Vector = Any  # of NumPy, JAX or CasADi


class Words(NamedTuple):
    """What a statement needs beside `+ - * / ** @` and slices: functions of vectors."""

    exp: Callable[[Vector], Vector]
    dot: Callable[[Vector, Vector], Any]
    softplus: Callable[[Vector], Vector]
    softmax: Callable[[Vector], Vector]


class Statement(NamedTuple):
    """A bilevel problem with flat x and y; every function takes x, y, the numbers and the words.

    Attributes:
        sizes: entries of x and y.
        x_bounds: lower and upper bound of x, one number or one for each entry, from the numbers.
        x0: where x starts, likewise.
        upper: F.
        lower: G.
        rows: constraints of the lower level, <= 0; None: none.
        equal: its equations, = 0; None: none.
        y_low: lower bound of y.
        y0: where y starts, from the numbers; a number stands for every entry.
    """

    sizes: Callable[[Data], tuple[int, int]]
    x_bounds: Callable[[Data], tuple[Any, Any]]
    x0: Callable[[Data], Any]
    upper: Callable[[Vector, Vector, Data, Words], Any]
    lower: Callable[[Vector, Vector, Data, Words], Any]
    rows: Callable[[Vector, Vector, Data, Words], Vector] | None = None
    equal: Callable[[Vector, Vector, Data, Words], Vector] | None = None
    y_low: float = -np.inf
    y0: Callable[[Data], Any] = lambda d: 0.0

    def box(self, d: Data) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds of the flat x."""
        low, high = self.x_bounds(d)
        return np.broadcast_to(low, self.sizes(d)[0]).astype(float), np.broadcast_to(high, self.sizes(d)[0]).astype(
            float
        )

    def starts(self, d: Data) -> tuple[np.ndarray, np.ndarray]:
        """The flat x0 and y0."""
        n, m = self.sizes(d)
        return np.array(np.broadcast_to(self.x0(d), n), float), np.array(np.broadcast_to(self.y0(d), m), float)


def _squares(z: np.ndarray, y: Vector, t: np.ndarray, to: Words) -> Any:
    """The mean squared error of a linear model."""
    return to.dot(z @ y - t, z @ y - t) / len(t)


def _losses(z: np.ndarray, y: Vector, labels: np.ndarray, to: Words) -> Vector:
    """The logistic loss of every row; labels are -1 and 1."""
    return to.softplus(-labels * (z @ y))


RIDGE = Statement(
    sizes=lambda d: (d["train"].shape[1], d["train"].shape[1]),
    x_bounds=lambda d: (-8.0, 3.0),
    x0=lambda d: 0.0,
    upper=lambda x, y, d, to: _squares(d["rest"], y, d["rest_target"], to),
    lower=lambda x, y, d, to: _squares(d["train"], y, d["train_target"], to) + to.dot(to.exp(x), y**2),
    rows=lambda x, y, d, to: d["signs"] @ y - d["most"],
)
GROUPS = Statement(
    sizes=lambda d: (len(d["groups"]), d["train"].shape[1]),
    x_bounds=lambda d: (-6.0, 3.0),
    x0=lambda d: -2.0,
    upper=lambda x, y, d, to: (
        to.dot(np.ones(len(d["rest"])), _losses(d["rest"], y, d["rest_labels"], to)) / len(d["rest"])
    ),
    lower=lambda x, y, d, to: (
        to.dot(np.ones(len(d["train"])), _losses(d["train"], y, d["train_labels"], to)) / len(d["train"])
    ),
    rows=lambda x, y, d, to: d["groups"] @ y**2 - to.exp(x),
)
SVM = Statement(  # y: w, b, slack
    sizes=lambda d: (len(d["train"]), sum(d["train"].shape)),
    x_bounds=lambda d: (-5.0, 5.0),
    x0=lambda d: 0.0,
    upper=lambda x, y, d, to: (
        to.dot(np.ones(len(d["rest"])), to.exp(1.0 - d["rest"] @ y[: d["rest"].shape[1]])) / len(d["rest"])
    ),
    lower=lambda x, y, d, to: (
        0.5 * to.dot(y[: d["train"].shape[1] - 1], y[: d["train"].shape[1] - 1])
        + 0.5 * len(d["train"]) * to.dot(to.softmax(x), y[d["train"].shape[1] :] ** 2)
    ),
    rows=lambda x, y, d, to: (
        1.0 - d["train"] @ y[: d["train"].shape[1]] - len(d["train"]) ** 0.5 * y[d["train"].shape[1] :]
    ),
    y0=lambda d: np.concatenate([np.zeros(d["train"].shape[1]), np.full(len(d["train"]), len(d["train"]) ** -0.5)]),
)
PRICING = Statement(  # y: what follower 1 buys of each good, follower 2, ...
    sizes=lambda d: (d["goods"].shape[1], d["goods"].shape[0]),
    x_bounds=lambda d: (0.5, 4.0),
    x0=lambda d: 1.0,
    upper=lambda x, y, d, to: -to.dot(d["goods"] @ (x - 0.5), y),
    lower=lambda x, y, d, to: (
        0.5 * to.dot(y, d["own"] * y)
        + 0.1 / d["goods"].shape[1] * to.dot(d["buyers"] @ y, d["buyers"] @ y)
        - to.dot(d["wish"] - d["goods"] @ x, y)
    ),
    rows=lambda x, y, d, to: d["buyers"] @ (y * (d["goods"] @ x)) - d["budget"],
    y_low=0.0,
    y0=lambda d: 0.1,
)
TOLLS = Statement(
    sizes=lambda d: (d["tolled"].shape[1], len(d["time"])),
    x_bounds=lambda d: (0.0, 2.0),
    x0=lambda d: 0.0,
    upper=lambda x, y, d, to: to.dot(d["time"], y + 0.15 * y**5 / d["room"] ** 4) + 0.01 * to.dot(x, x),
    lower=lambda x, y, d, to: to.dot(d["time"], y + 0.03 * y**5 / d["room"] ** 4) + to.dot(d["tolled"] @ x, y),
    equal=lambda x, y, d, to: to.dot(np.ones(len(d["time"])), y) - d["demand"],
    y_low=0.0,
    y0=lambda d: d["demand"] / len(d["time"]),
)
PORTFOLIO = Statement(
    sizes=lambda d: (1 + d["sectors"].shape[1], len(d["mean"])),
    x_bounds=lambda d: (-6.0, 4.0),
    x0=lambda d: 0.0,
    upper=lambda x, y, d, to: (
        2.0 * _squares(d["rest"] - d["rest_mean"], y, np.zeros(len(d["rest"])), to) - to.dot(d["rest_mean"], y)
    ),
    lower=lambda x, y, d, to: (
        0.5 * to.dot(y, d["risk"] @ y) * to.exp(x[0])
        + 0.005 * to.dot(d["sectors"] @ to.exp(x[1:]), y**2)
        - to.dot(d["mean"], y)
    ),
    equal=lambda x, y, d, to: to.dot(np.ones(len(d["mean"])), y) - 1.0,
    y_low=0.0,
    y0=lambda d: 1.0 / len(d["mean"]),
)


def _planted(x: Vector, y: Vector, d: Data, to: Words) -> Any:
    """F around a known stationary point, where it is zero."""
    dx, dy = x - d["x"], y - d["y"]
    return to.dot(d["gradient"], dy) + 0.5 * to.dot(dy, dy) - to.dot(d["slope"], dx) + 2.0 * to.dot(dx, dx)


PLANTED = Statement(
    sizes=lambda d: (len(d["x"]), len(d["y"])),
    x_bounds=lambda d: (-1.0, 1.0),
    x0=lambda d: 0.0,
    upper=_planted,
    lower=lambda x, y, d, to: 0.5 * to.dot(y, d["hessian"] @ y) + to.dot(d["coupling"] @ x + d["cost"], y),
    rows=lambda x, y, d, to: d["matrix"] @ y - d["rhs"] - d["moves"] @ x,
    y_low=0.0,
)
CLEANING = Statement(
    sizes=lambda d: d["train"].shape,
    x_bounds=lambda d: (0.0, 1.0),
    x0=lambda d: 0.5,
    upper=lambda x, y, d, to: (
        to.dot(np.ones(len(d["rest"])), _losses(d["rest"], y, d["rest_labels"], to)) / len(d["rest"])
    ),
    lower=lambda x, y, d, to: (
        to.dot(x, _losses(d["train"], y, d["train_labels"], to)) / len(d["train"]) + 0.005 * to.dot(y, y)
    ),
)
BODIES = Statement(
    sizes=lambda d: (len(d["x"]), len(d["y"])),
    x_bounds=lambda d: (-1.0, 1.0),
    x0=lambda d: 0.0,
    upper=_planted,
    lower=lambda x, y, d, to: 0.5 * to.dot(y, d["hessian"] @ y) - to.dot(d["cost"] + d["coupling"] @ x, y),
    rows=lambda x, y, d, to: 0.5 * (d["weights"] @ y**2) - d["linear"] @ y - d["levels"] - d["moves"] @ x,
)
STATEMENTS = {
    "ridge": RIDGE,
    "group logistic": GROUPS,
    "SVM weights": SVM,
    "pricing": PRICING,
    "tolls": TOLLS,
    "portfolio": PORTFOLIO,
    "planted QP 5+100": PLANTED,
    "planted QP 20+200": PLANTED,
    "planted QP 40+400": PLANTED,
    "planted QP 10+1000": PLANTED,
    "hyper-cleaning": CLEANING,
    "QCQP 20+20": BODIES,
}
