"""The upper level of linear classifiers: a cost and a weight per sample, by L-BFGS-B on the exact hyper-gradient.

A scan over the cost at equal weights gives the start. The variables are the logarithm of the cost and an entry v_i per
sample, which gives the weight exp(v_i) ("log") or v_i itself ("share"). A row that counts twice is as two rows: the
search measures its entry by the root of its sample weight.
"""

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import optimize

from hierax._base.threads import one_blas_thread
from hierax.estimators._margins import Models, Worth

Scale = Literal["log", "share"]

COST_DECADES = 3  # of the cost below its unit
LEAST_FALL_SHARE = 1e-10  # of the value in one step, relative: below it L-BFGS-B gives up
KINK_RADII = (1e-2, 1e-3, 1e-4)  # of the neighbourhoods of a kink whose gradients are looked at
NEARBY_GRADIENTS = 30  # gradients in each
MAX_STARTS = 4  # starts of L-BFGS-B, each but the first beyond a kink that held it


class Weighing(NamedTuple):
    """How entries of the search become weights: the box that they are in, where they start, and what deviating costs.

    Attributes:
        scale: "log": the weight is exp(v), v in [-bound, bound]; "share": it is v, in [0, 1].
        bound: see above.
        penalty: of the sum of squares of what v differs from its start, per row that judges: the fewer there are, the
            less they can say of each weight.
        unit: of the cost.
        above: decades of the cost above its unit that are searched.
    """

    scale: Scale
    bound: float
    penalty: float
    unit: float
    above: int

    @property
    def start(self) -> float:
        """v of a weight of one."""
        return 0.0 if self.scale == "log" else 1.0

    @property
    def box(self) -> tuple[float, float]:
        """The smallest and the largest v."""
        return (-self.bound, self.bound) if self.scale == "log" else (0.0, 1.0)

    @property
    def log_costs(self) -> tuple[float, float]:
        """The logarithms of the smallest and the largest cost."""
        unit, decade = float(np.log(self.unit)), float(np.log(10.0))
        return unit - COST_DECADES * decade, unit + self.above * decade

    def price(self, v: Float[np.ndarray, " n"]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """What weights other than one cost per row, and the derivative."""
        off = v - self.start
        return self.penalty * off**2, 2.0 * self.penalty * off

    def weights(self, v: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The weights of the samples."""
        return np.exp(v) if self.scale == "log" else v


class Tuned(NamedTuple):
    """How a tuning ended.

    Attributes:
        log_cost: logarithm of the cost.
        v: the entries of the rows.
        planes: the models of the folds.
        slope: norm of what the box leaves of the gradient; at a kink, see `over_a_kink`.
        iterations: of L-BFGS-B.
        settled: whether the slope is below the tolerance, with models that were solved.
        history: value and slope at every iteration, with the cost.
    """

    log_cost: float
    v: Float[np.ndarray, " n"]
    planes: Float[np.ndarray, "folds k d"]
    slope: float
    iterations: int
    settled: bool
    history: dict[str, np.ndarray]


class Search:
    """The hyper-objective as a function of one vector: (log cost, entries in units of the rows)."""

    def __init__(self, models: Models, weighing: Weighing, sample_weight: Float[np.ndarray, " n"]) -> None:
        self.models, self.weighing, self.counts = models, weighing, sample_weight
        self.shares = np.where(models.parts.tuned, sample_weight, 0.0) / models.judged
        self.units = np.sqrt(np.where(models.parts.tuned, sample_weight / np.mean(sample_weight), 1.0))
        low, high = weighing.box
        still = ~models.parts.tuned  # rows that only judge: their weights stay one
        bottom = np.where(still, weighing.start, low) * self.units
        top = np.where(still, weighing.start, high) * self.units
        self.low = np.concatenate([[weighing.log_costs[0]], bottom])
        self.high = np.concatenate([[weighing.log_costs[1]], top])
        self.last: tuple[np.ndarray, Worth, float, np.ndarray] | None = None

    def at(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        """The value and its gradient."""
        log_cost, v = z[0], z[1:] / self.units
        s = self.counts * np.exp(log_cost) * self.weighing.weights(v)
        worth = self.models.at(s)
        price, raised = self.weighing.price(v)
        value = worth.value + float(self.shares @ price)
        by_v = worth.gradient * (s if self.weighing.scale == "log" else self.counts * np.exp(log_cost))
        by_v = by_v + self.shares * raised
        gradient = np.concatenate([[worth.gradient @ s], by_v / self.units])
        self.last = z.copy(), worth, value, gradient
        return value, gradient

    def slope(self, z: np.ndarray, gradient: np.ndarray) -> float:
        """The norm of the projected gradient."""
        return float(np.linalg.norm(z - np.clip(z - gradient, self.low, self.high)))


def tune(
    models: Models, weighing: Weighing, sample_weight: Float[np.ndarray, " n"], max_iter: int, tol: float
) -> Tuned:
    """The best cost and weights that a local search from the best cost of a scan finds."""
    with one_blas_thread:
        return _tuned(Search(models, weighing, sample_weight), max_iter, tol)


def _tuned(search: Search, max_iter: int, tol: float) -> Tuned:
    start = np.concatenate([[0.0], search.weighing.start * search.units])
    costs = np.linspace(search.low[0], search.high[0], 1 + COST_DECADES + search.weighing.above)
    scanned = [np.concatenate([[cost], start[1:]]) for cost in costs]
    z = min(scanned, key=lambda one: search.at(one)[0])
    value, gradient = search.at(z)
    slope = search.slope(z, gradient)
    records = [(value, slope, z[0])]

    def record(intermediate_result: optimize.OptimizeResult) -> None:
        at = np.asarray(intermediate_result.x)
        value, gradient = _known(search, at)
        records.append((value, search.slope(at, gradient), at[0]))
        if records[-1][1] <= tol:
            raise StopIteration

    least_fall = min(LEAST_FALL_SHARE, 0.01 * tol**2)
    for _ in range(MAX_STARTS):
        if slope <= tol or len(records) > max_iter:
            break
        left = max_iter - (len(records) - 1)
        found = optimize.minimize(
            search.at,
            z,
            jac=True,
            method="L-BFGS-B",
            bounds=optimize.Bounds(search.low, search.high),
            callback=record,
            options={"maxiter": left, "maxfun": 4 * left, "ftol": least_fall, "gtol": 0.0, "maxls": 30},
        )
        z = np.clip(found.x, search.low, search.high)
        value, gradient = search.at(z)
        slope = search.slope(z, gradient)
        if slope <= tol or len(records) > max_iter:
            break
        slope, further = over_a_kink(search, z, tol)
        if further is None:
            break
        z, (value, gradient) = further, search.at(further)
        records.append((value, slope, z[0]))
    search.at(z)
    assert search.last is not None
    worth = search.last[1]
    values, slopes, logs = (np.array(column) for column in zip(*records, strict=True))
    history = {"upper": values, "slope": np.append(slopes[:-1], slope), "C": np.exp(logs)}
    settled = slope <= tol and worth.solved
    return Tuned(z[0], z[1:] / search.units, worth.planes, slope, len(records) - 1, settled, history)


def over_a_kink(search: Search, z: np.ndarray, tol: float) -> tuple[float, np.ndarray | None]:
    """The slope of a function with kinks, and a lower point where it is not small; None: there is none along it.

    The slope is the shortest convex combination of the gradients at points nearby, as all pieces that meet in a kink
    count there (gradient sampling: Burke, Lewis, Overton, SIAM J. Optim. 15, 2005).
    """
    rng = np.random.default_rng(0)
    value, gradient = search.at(z)
    shortest = search.slope(z, gradient)
    for radius in KINK_RADII:
        gradients = [gradient]
        for _ in range(NEARBY_GRADIENTS):
            there = np.clip(z + radius * rng.uniform(-1, 1, z.size), search.low, search.high)
            gradients.append(search.at(there)[1])
        direction = _shortest(np.array(gradients), (z <= search.low, z >= search.high))
        length = search.slope(z, direction)
        shortest = min(shortest, length)
        if length <= tol:
            break
        for t in 0.5 ** np.arange(12):
            there = np.clip(z - t * direction, search.low, search.high)
            if search.at(there)[0] < value - 1e-4 * t * length**2:
                return shortest, there
    return shortest, None


def _shortest(gradients: np.ndarray, held: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The shortest convex combination, of what bounds leave of them."""
    left = np.where(held[0], np.minimum(gradients, 0.0), gradients)
    left = np.where(held[1], np.maximum(left, 0.0), left)
    size = float(np.max(np.abs(left))) or 1.0
    much = 1e3 * size  # makes the weights add up to one
    system = np.vstack([left.T, np.full((1, len(left)), much)])
    weights, _ = optimize.nnls(system, np.append(np.zeros(left.shape[1]), much))
    return (weights / weights.sum()) @ gradients


def _known(search: Search, z: np.ndarray) -> tuple[float, np.ndarray]:
    """Value and gradient at a point, which is that of the last evaluation as a rule."""
    if search.last is not None and np.array_equal(search.last[0], z):
        return search.last[2], search.last[3]
    return search.at(z)
