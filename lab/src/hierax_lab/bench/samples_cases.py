"""Sampled bilevel problems whose truth is known: newsvendors, regressions, a portfolio, a queue, rare events.

Each is made twice: for hierax with samples (`hx.Sampler`, `hx.Finite`, `hx.Stream`), and without (`samples_truth`).
The seed of a data set or a stream is part of the problem; that of a solve is given to `hx.solve`.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import hierax as hx
from hierax.extend import lazy
from hierax_lab.bench.samples_truth import (
    Robust,
    Truth,
    Weighted,
    in_ball,
    kept,
    quadrature,
    root,
    rows,
    softplus,
)

stats = lazy("scipy.stats")
special = lazy("scipy.special")


class Case(NamedTuple):
    """A problem with its start, and the truth about it."""

    problem: hx.Problem
    x0: Any
    y0: Any
    truth: Truth


# -- newsvendors ------------------------------------------------------------------------------------------------------

PRICE, COST, WIDTH, SHORTAGE = 4.0, 3.0, 0.5, 8.0


def _pos(u: jax.Array) -> jax.Array:
    return WIDTH * jax.nn.softplus(u / WIDTH)


def _newsvendor_truth(demand: Weighted, constrained: bool) -> Truth:
    """A subsidy x for what is left over; who sells orders y."""
    points, weights = demand

    @kept
    def order(x: float) -> float:
        def slope(y: float) -> float:
            left = special.expit((y - points) / WIDTH)
            return float(weights @ ((COST - x) * left - PRICE * (1 - left)))

        return root(slope, 0.0, 30.0)

    def phi(x: np.ndarray) -> float:
        y = order(float(x[0]))
        return demand.mean(x[0] * softplus(y - points, WIDTH) + SHORTAGE * softplus(points - y, WIDTH))

    def above(x: np.ndarray) -> float:
        return float(special.ndtr((10.0 - order(float(x[0]))) / 2.0)) - 0.2

    return Truth(phi, np.array([[0.0, 2.9]]), np.array([0.5]), above if constrained else None)


def _newsvendor(zeta: Any, xi: Any, truth: Truth) -> Case:
    limit: dict[str, Any] = {}
    if truth.above is not None:
        limit["upper_constraints"] = lambda x, y: jax.scipy.special.ndtr((10.0 - y) / 2.0) - 0.2
    problem = hx.Problem(
        upper=lambda x, y, d: jnp.mean(x * _pos(y - d) + SHORTAGE * _pos(d - y)),
        lower=lambda x, y, d: jnp.mean(PRICE * _pos(d - y) + (COST - x) * _pos(y - d)),
        **limit,
        x_set=hx.Box(0.0, 2.9),
        y_set=hx.Box(0.0, 30.0),
        zeta=zeta,
        xi=xi,
    )
    return Case(problem, 0.5, 10.0, truth)


def _normal_demand(key: jax.Array, n: int) -> jax.Array:
    return 10.0 + 2.0 * jax.random.normal(key, (n,))


def newsvendor(constrained: bool = True) -> Case:
    """Normal demand; with a limit of the chance that demand is above the order, or without."""
    source = hx.Sampler(_normal_demand)
    return _newsvendor(source, source, _newsvendor_truth(quadrature(stats.norm(10, 2)), constrained))


def newsvendor_gamma() -> Case:
    """Gamma demand."""
    source = hx.Sampler(lambda key, n: 5.0 * jax.random.gamma(key, 2.0, (n,)))
    return _newsvendor(source, source, _newsvendor_truth(quadrature(stats.gamma(2, scale=5)), False))


def newsvendor_finite(count: int = 65_536) -> Case:
    """A data set of demands, one for each level."""
    rng = np.random.default_rng(1)
    demands = 10 + 2 * rng.standard_normal(count)
    return _newsvendor(hx.Finite(demands), hx.Finite(demands), _newsvendor_truth(rows(demands), False))


def newsvendor_stream() -> Case:
    """Demands in batches of 64."""

    def batches(seed: int) -> Iterator[np.ndarray]:
        rng = np.random.default_rng(seed)
        while True:
            yield 10 + 2 * rng.standard_normal(64)

    truth = _newsvendor_truth(quadrature(stats.norm(10, 2)), False)
    return _newsvendor(hx.Stream(batches(2)), hx.Stream(batches(3)), truth)


def newsvendor_kinked(count: int | None = None) -> Case:
    """A wholesale price x, exponential demand: E min(y, D) with its kinks; sampled, or a data set."""
    x_set, fee, left = (0.05, 0.95), 0.2, 0.1
    if count is None:
        upper = lower = hx.Sampler(lambda key, n: jax.random.exponential(key, (n,)))

        def order(x: float) -> float:
            return -float(np.log(x))

        def phi(x: np.ndarray) -> float:
            y = order(float(x[0]))
            return -(float(x[0]) - fee) * y + left * (y - 1 + np.exp(-y))
    else:
        data = np.sort(np.random.default_rng(4).exponential(size=count))
        upper = lower = hx.Finite(data)  # type: ignore[assignment]

        def order(x: float) -> float:
            return float(data[min(int(np.ceil((1 - x) * count)), count) - 1])

        def phi(x: np.ndarray) -> float:
            y = order(float(x[0]))
            return -(float(x[0]) - fee) * y + left * float(np.mean(np.maximum(y - data, 0.0)))

    problem = hx.Problem(
        upper=lambda x, y, d: -(x - fee) * y + left * jnp.mean(jnp.maximum(y - d, 0.0)),
        lower=lambda x, y, d: x * y - jnp.mean(jnp.minimum(y, d)),
        x_set=hx.Box(*x_set),
        y_set=hx.Box(0.0, 10.0),
        zeta=upper,
        xi=lower,
    )
    return Case(problem, 0.8, 0.5, Truth(phi, np.array([x_set]), np.array([0.8])))


# -- regressions ------------------------------------------------------------------------------------------------------


class _Linear(NamedTuple):
    """b = a'w + noise e, a normal with covariance factor'factor."""

    factor: np.ndarray
    w: np.ndarray
    noise: float

    def draw(self, key: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
        of_a, of_b = jax.random.split(key)
        a = jax.random.normal(of_a, (n, self.w.size)) @ jnp.asarray(self.factor)
        return a, a @ jnp.asarray(self.w) + self.noise * jax.random.normal(of_b, (n,))

    def rows(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        a = rng.standard_normal((n, self.w.size)) @ self.factor
        return a, a @ self.w + self.noise * rng.standard_normal(n)


class _Moments(NamedTuple):
    """Second moments of a and b."""

    aa: np.ndarray
    ab: np.ndarray
    bb: float

    @classmethod
    def of(cls, model: _Linear) -> "_Moments":
        aa = model.factor.T @ model.factor
        return cls(aa, aa @ model.w, float(model.w @ aa @ model.w) + model.noise**2)

    @classmethod
    def of_rows(cls, data: tuple[np.ndarray, np.ndarray]) -> "_Moments":
        a, b = data
        return cls(a.T @ a / len(b), a.T @ b / len(b), float(np.mean(b**2)))


def _models(size: int) -> tuple[_Linear, _Linear]:
    """The target's and the source's: some weights are zero in both, some in the target alone."""
    rng = np.random.default_rng(size)
    factors = [np.eye(size) + 0.3 * rng.standard_normal((size, size)) / size**0.5 for _ in range(2)]
    source = np.where(np.arange(size) % 3 == 2, 0.0, rng.standard_normal(size))
    target = np.where(np.arange(size) % 3 == 1, 0.2 * source, source) + 0.2 * rng.standard_normal(size)
    return _Linear(factors[0], target, 1.5), _Linear(factors[1], source, 1.0)


RADIUS, PENALTIES = 2.0, (-6.0, 3.0)


def regression(size: int, kind: str = "sampler") -> Case:
    """A penalty for every weight, whose norm is bounded, chosen for another distribution than the training data's."""
    target, source = _models(size)
    moments = _Moments.of(target), _Moments.of(source)
    zeta: Any
    xi: Any
    if kind == "sampler":
        zeta, xi = hx.Sampler(target.draw), hx.Sampler(source.draw)
    elif kind == "finite":
        rng = np.random.default_rng(5)
        data = target.rows(rng, 20_000), source.rows(rng, 20_000)
        zeta, xi = map(hx.Finite, data)
        moments = _Moments.of_rows(data[0]), _Moments.of_rows(data[1])
    else:

        def batches(model: _Linear, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            rng = np.random.default_rng(seed)
            while True:
                yield model.rows(rng, 32)

        zeta, xi = hx.Stream(batches(target, 6)), hx.Stream(batches(source, 7))
    above, below = moments

    def phi(x: np.ndarray) -> float:
        y = in_ball(below.aa + np.diag(np.exp(x)), below.ab, RADIUS)
        return float(y @ above.aa @ y - 2 * above.ab @ y) + above.bb

    problem = hx.Problem(
        upper=lambda x, y, batch: jnp.mean((batch[0] @ y - batch[1]) ** 2),
        lower=lambda x, y, batch: jnp.mean((batch[0] @ y - batch[1]) ** 2) + jnp.sum(jnp.exp(x) * y**2),
        constraints=lambda x, y: jnp.sum(y**2) - RADIUS**2,
        x_set=hx.Box(*PENALTIES),
        zeta=zeta,
        xi=xi,
    )
    x0 = np.zeros(size)
    return Case(problem, x0, np.zeros(size), Truth(phi, np.tile(PENALTIES, (size, 1)), x0))


def logistic(kind: str) -> Case:
    """Logistic regression with one penalty, batches of 32 of a stream or a sampler; the target's labels are noisier."""
    size, share = 5, 0.15
    w = np.array([1.5, -1.0, 0.5, 0.0, 2.0])

    def draw(key: jax.Array, n: int, share: float) -> tuple[jax.Array, jax.Array]:
        of_a, of_b, of_flip = jax.random.split(key, 3)
        a = jax.random.normal(of_a, (n, size))
        sign = jnp.where(jax.random.uniform(of_b, (n,)) < jax.nn.sigmoid(2 * a @ jnp.asarray(w)), 1.0, -1.0)
        return a, sign * jnp.where(jax.random.uniform(of_flip, (n,)) < share, -1.0, 1.0)

    def batches(seed: int, share: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        rng = np.random.default_rng(seed)
        while True:
            a = rng.standard_normal((32, size))
            sign = np.where(rng.random(32) < special.expit(2 * a @ w), 1.0, -1.0)
            yield a, sign * np.where(rng.random(32) < share, -1.0, 1.0)

    zeta: Any
    xi: Any
    if kind == "stream":
        zeta, xi = hx.Stream(batches(8, share)), hx.Stream(batches(9, 0.0))
    else:
        zeta, xi = (hx.Sampler(functools.partial(draw, share=part)) for part in (share, 0.0))

    points = special.ndtri(stats.qmc.Sobol(size, scramble=True, seed=10).random_base2(15))
    chance = special.expit(2 * points @ w)

    def loss(y: np.ndarray, chance: np.ndarray) -> float:
        margin = points @ y
        return float(np.mean(chance * np.logaddexp(0, -margin) + (1 - chance) * np.logaddexp(0, margin)))

    def phi(x: np.ndarray) -> float:
        y, price = np.zeros(size), np.exp(x[0])
        for _ in range(60):
            level = special.expit(points @ y)
            slope = points.T @ (level - chance) / len(points) + price * y
            if np.linalg.norm(slope) < 1e-11:
                break
            hessian = (points * (level * (1 - level))[:, None]).T @ points / len(points) + price * np.eye(size)
            y = y - np.linalg.solve(hessian, slope)
        return loss(y, (1 - share) * chance + share * (1 - chance))

    def value(y: jax.Array, batch: Any) -> jax.Array:
        return jnp.mean(jax.nn.softplus(-batch[1] * (batch[0] @ y)))

    problem = hx.Problem(
        upper=lambda x, y, batch: value(y, batch),
        lower=lambda x, y, batch: value(y, batch) + jnp.exp(x) * jnp.sum(y**2) / 2,
        x_set=hx.Box(-8.0, 2.0),
        zeta=zeta,
        xi=xi,
    )
    return Case(problem, 0.0, np.zeros(size), Truth(phi, np.array([[-8.0, 2.0]]), np.array([0.0])))


def robust(count: int, unknowns: int) -> tuple[hx.Problem, np.ndarray, Robust]:
    """Regression with a penalty for every weight on data sets of many rows; half of the unknowns are penalties."""
    size = unknowns // 2
    target, source = _models(size)
    rng = np.random.default_rng(count + size)
    above, below = target.rows(rng, count), source.rows(rng, count)

    def value(y: jax.Array, batch: Any) -> jax.Array:
        return jnp.mean(jnp.sqrt(1 + (batch[0] @ y - batch[1]) ** 2))

    problem = hx.Problem(
        upper=lambda x, y, batch: value(y, batch),
        lower=lambda x, y, batch: value(y, batch) + jnp.sum(jnp.exp(x) * y**2) / 2,
        x_set=hx.Box(*PENALTIES),
        zeta=hx.Finite(above),
        xi=hx.Finite(below),
    )
    return problem, np.zeros(size), Robust(above, below)


def robust_finite(count: int = 1_000_000, unknowns: int = 10) -> Case:
    """The same as a case."""
    problem, x0, data = robust(count, unknowns)
    truth = Truth(lambda x: data.phi(x, np.zeros(x.size))[0], np.tile(PENALTIES, (x0.size, 1)), x0, starts=0)
    return Case(problem, x0, np.zeros(x0.size), truth)


# -- others -----------------------------------------------------------------------------------------------------------


def portfolio() -> Case:
    """Fees x on four assets, whose returns share a factor; an investor with a budget answers with shares y."""
    mean, load, own = np.array([0.6, 0.8, 1.0, 1.3]), np.array([0.2, 0.4, 0.6, 0.9]), 0.4
    second = np.outer(mean, mean) + np.outer(load, load) + own**2 * np.eye(4)
    averse, target, weight = 1.2, 0.5, 0.6

    def draw(key: jax.Array, n: int) -> jax.Array:
        of_factor, of_own = jax.random.split(key)
        common = jax.random.normal(of_factor, (n, 1)) * jnp.asarray(load)
        return jnp.asarray(mean) + common + own * jax.random.normal(of_own, (n, 4))

    supports = [list(held) for count in range(1, 5) for held in itertools.combinations(range(4), count)]

    def held(x: np.ndarray) -> np.ndarray:
        """The investor's shares: the best over all supports, with the budget spent or not."""
        best, value = np.zeros(4), 0.0
        for support in supports:
            matrix = averse * second[np.ix_(support, support)]
            gain = (mean - x)[support]
            one = np.linalg.solve(matrix, np.ones(len(support)))
            free = np.linalg.solve(matrix, gain)
            price = max(0.0, (free.sum() - 1) / one.sum())
            y = np.zeros(4)
            y[support] = free - price * one
            worth = float(averse * y @ second @ y / 2 - (mean - x) @ y)
            if y.min() >= -1e-12 and worth < value:
                best, value = y, worth
        return best

    def phi(x: np.ndarray) -> float:
        y = held(x)
        shortfall = float(y @ second @ y - 2 * target * mean @ y) + target**2
        return -float(x @ y) + weight * shortfall

    source = hx.Sampler(draw)
    problem = hx.Problem(
        upper=lambda x, y, r: -jnp.sum(x * y) + weight * jnp.mean((r @ y - target) ** 2),
        lower=lambda x, y, r: jnp.sum(x * y) + jnp.mean(averse * (r @ y) ** 2 / 2 - r @ y),
        constraints=lambda x, y: jnp.sum(y) - 1.0,
        x_set=hx.Box(0.0, 1.0),
        y_set=hx.NonNegative(),
        zeta=source,
        xi=source,
    )
    x0 = np.full(4, 0.1)
    return Case(problem, x0, np.full(4, 0.2), Truth(phi, np.tile([0.0, 1.0], (4, 1)), x0, starts=40))


def queue() -> Case:
    """A subsidy x for the speed y of a server, whose customers come at a random rate."""
    cost, waiting = 0.5, 4.0
    rate = quadrature(stats.uniform(0.5, 1.0))

    @kept
    def speed(x: float) -> float:
        return root(lambda y: cost - x - rate.mean(rate.points / (y - rate.points) ** 2), 1.6, 12.0)

    def phi(x: np.ndarray) -> float:
        y = speed(float(x[0]))
        return float(x[0]) * y + waiting * rate.mean(rate.points / (y - rate.points))

    source = hx.Sampler(lambda key, n: 0.5 + jax.random.uniform(key, (n,)))
    problem = hx.Problem(
        upper=lambda x, y, r: x * y + waiting * jnp.mean(r / (y - r)),
        lower=lambda x, y, r: (cost - x) * y + jnp.mean(r / (y - r)),
        x_set=hx.Box(0.0, 0.45),
        y_set=hx.Box(1.6, 12.0),
        zeta=source,
        xi=source,
    )
    return Case(problem, 0.05, 2.5, Truth(phi, np.array([[0.0, 0.45]]), np.array([0.05])))


def inventory() -> Case:
    """Prices x of two products; a shop with room for four fills it with y before gamma demands are known."""
    room, worth, width = 4.0, np.array([3.0, 2.0]), 0.2
    demands = [quadrature(stats.gamma(shape, scale=1.0)) for shape in (2.0, 3.0)]

    def one(i: int, price: float) -> float:
        points = demands[i].points

        def slope(y: float) -> float:
            return price - float(worth[i]) * demands[i].mean(special.expit((points - y) / width))

        return root(slope, 0.0, room)

    def order(x: np.ndarray) -> np.ndarray:
        def at(extra: float) -> np.ndarray:
            return np.array([one(0, x[0] + extra), one(1, x[1] + extra)])

        if at(0.0).sum() <= room:
            return at(0.0)
        return at(root(lambda extra: room - float(at(extra).sum()), 0.0, float(worth.max())))

    def phi(x: np.ndarray) -> float:
        y = order(x)
        short = [demands[i].mean(softplus(demands[i].points - y[i], width)) for i in (0, 1)]
        return -float(x @ y) + 0.5 * float(np.sum(short)) + 0.1 * float(y @ y)

    def draw(key: jax.Array, n: int) -> jax.Array:
        return jax.random.gamma(key, jnp.array([2.0, 3.0]), (n, 2))

    def short(y: jax.Array, d: jax.Array) -> jax.Array:
        return width * jax.nn.softplus((d - y) / width)

    source = hx.Sampler(draw)
    problem = hx.Problem(
        upper=lambda x, y, d: -jnp.sum(x * y) + 0.5 * jnp.mean(jnp.sum(short(y, d), axis=1)) + 0.1 * jnp.sum(y**2),
        lower=lambda x, y, d: jnp.sum(x * y) + jnp.mean(short(y, d) @ jnp.asarray(worth)),
        constraints=lambda x, y: jnp.sum(y) - room,
        x_set=hx.Box(0.1, 3.0),
        y_set=hx.Box(0.0, room),
        zeta=source,
        xi=source,
    )
    x0 = np.array([0.5, 0.5])
    return Case(problem, x0, np.ones(2), Truth(phi, np.tile([0.1, 3.0], (2, 1)), x0))


def chance(level: str) -> Case:
    """The chance that demand is above y, rounded, at a price in F; or a rounded shortage at a price in G."""
    demand, width = quadrature(stats.norm(1.0, 0.5)), 0.1
    points = demand.points

    def answer(x: float) -> float:
        if level == "upper":
            return float(np.clip(x / 1.1, 0.0, 4.0))
        return root(lambda y: 2.2 * y - 2 * x - 8 * demand.mean(special.expit((points - y) / width)), 0.0, 4.0)

    def phi(x: np.ndarray) -> float:
        y = answer(float(x[0]))
        if level == "upper":
            return 0.3 * float(x[0]) ** 2 + 8 * demand.mean(special.expit((points - y) / width))
        return (y - 1.8) ** 2 + 0.1 * float(x[0] - 0.2) ** 2 + 0.5 * demand.mean(softplus(points - y, width))

    source = hx.Sampler(lambda key, n: 1.0 + 0.5 * jax.random.normal(key, (n,)))

    def upper(x: jax.Array, y: jax.Array, d: jax.Array) -> jax.Array:
        if level == "upper":
            return 0.3 * x**2 + 8 * jnp.mean(jax.nn.sigmoid((d - y) / width))
        short = width * jax.nn.softplus((d - y) / width)
        return (y - 1.8) ** 2 + 0.1 * (x - 0.2) ** 2 + 0.5 * jnp.mean(short)

    def lower(x: jax.Array, y: jax.Array, d: jax.Array) -> jax.Array:
        own = (y - x) ** 2 + 0.1 * y**2
        if level == "upper":
            return own
        return own + 8 * jnp.mean(width * jax.nn.softplus((d - y) / width))

    problem = hx.Problem(
        upper=upper,
        lower=lower,
        x_set=hx.Box(-2.0, 4.0),
        y_set=hx.Box(0.0, 4.0),
        zeta=source,
        xi=source if level == "lower" else None,
    )
    x0 = 3.5 if level == "upper" else -1.0
    return Case(problem, x0, 1.0, Truth(phi, np.array([[-2.0, 4.0]]), np.array([x0])))


def rare(chance: float = 1e-4) -> Case:
    """The problem of the README with noise of mean zero in both levels that is seldom anything but -1."""
    source = hx.Sampler(lambda key, n: jnp.where(jax.random.uniform(key, (n,)) < chance, 1 / chance, 0.0) - 1.0)

    def phi(x: np.ndarray) -> float:
        y = min(2 * float(x[0]), float(x[0]))
        return (y - 1) ** 2 + 0.1 * float(x[0]) ** 2

    problem = hx.Problem(
        upper=lambda x, y, z: (y - 1.0) ** 2 + 0.1 * x**2 + jnp.mean(z) * y,
        lower=lambda x, y, z: (y - 2.0 * x) ** 2 + jnp.mean(z) * y,
        constraints=lambda x, y: y - x,
        x_set=hx.Box(0.0, 3.0),
        y_set=hx.Box(0.0, 3.0),
        zeta=source,
        xi=source,
    )
    return Case(problem, 0.5, 0.5, Truth(phi, np.array([[0.0, 3.0]]), np.array([0.5])))


def two_wells() -> Case:
    """A follower with two minima; which of them is lower depends on x, and on a mean that is known from samples."""

    def answer(x: float) -> float:
        found = np.roots([1.0, 0.0, -1.0, 0.3 * x])
        y = found[np.abs(found.imag) < 1e-9].real
        return float(y[np.argmin(y**4 / 4 - y**2 / 2 + 0.3 * x * y)])

    def phi(x: np.ndarray) -> float:
        return (answer(float(x[0])) + 0.6) ** 2 + 0.2 * (float(x[0]) - 1.0) ** 2

    source = hx.Sampler(lambda key, n: 0.5 * jax.random.normal(key, (n,)))
    problem = hx.Problem(
        upper=lambda x, y, z: (y + 0.6) ** 2 + 0.2 * (x - 1.0) ** 2 + jnp.mean(z) * y,
        lower=lambda x, y, z: y**4 / 4 - y**2 / 2 + 0.3 * x * y + jnp.mean(z) * y,
        x_set=hx.Box(-3.0, 3.0),
        y_set=hx.Box(-2.0, 2.0),
        zeta=source,
        xi=source,
    )
    return Case(problem, -2.0, 0.0, Truth(phi, np.array([[-3.0, 3.0]]), np.array([-2.0])))


def location(unit: float = 1e-4) -> Case:
    """The weight x of a prior for the centre y of t(2.5), whose variance is finite and fourth moment is not."""
    shape, prior = 2.5, 3.0
    nodes, weights = np.polynomial.legendre.leggauss(4000)
    tails = np.tan(0.5 * np.pi * nodes)  # the whole line on (-1, 1)
    mass = weights * stats.t(shape).pdf(tails) * (1 + tails**2)
    noise = Weighted(tails, mass / mass.sum())

    def centre(x: float) -> float:
        def slope(y: float) -> float:
            away = y - 1.0 - noise.points
            return noise.mean(away / np.sqrt(1 + away**2)) + np.exp(x) * (y - prior)

        return root(slope, -5.0, 8.0)

    def phi(x: np.ndarray) -> float:
        return 1e3 * unit * noise.mean(np.sqrt(0.25 + (centre(float(x[0])) - 1.6 - noise.points) ** 2))

    source = hx.Sampler(lambda key, n: unit * jax.random.t(key, shape, (n,)))
    problem = hx.Problem(
        upper=lambda x, y, z: 1e3 * unit * jnp.mean(jnp.sqrt(0.25 + ((y - z) / unit - 1.6) ** 2)),
        lower=lambda x, y, z: (
            jnp.mean(jnp.sqrt(1 + ((y - z) / unit - 1.0) ** 2)) + jnp.exp(x) * (y / unit - prior) ** 2 / 2
        ),
        x_set=hx.Box(-6.0, 3.0),
        y_set=hx.Box(-5 * unit, 8 * unit),
        zeta=source,
        xi=source,
    )
    return Case(problem, 2.0, 0.0, Truth(phi, np.array([[-6.0, 3.0]]), np.array([2.0])))


CASES: dict[str, Callable[[], Case]] = {
    "newsvendor": newsvendor,
    "newsvendor, no limit": lambda: newsvendor(False),
    "newsvendor, gamma": newsvendor_gamma,
    "newsvendor, kinks": newsvendor_kinked,
    "newsvendor, kinks, 20,000 rows": lambda: newsvendor_kinked(20_000),
    "newsvendor, 65,536 rows": newsvendor_finite,
    "newsvendor, stream": newsvendor_stream,
    "regression 6": lambda: regression(6),
    "regression 15": lambda: regression(15),
    "regression 6, 20,000 rows": lambda: regression(6, "finite"),
    "regression 6, stream": lambda: regression(6, "stream"),
    "logistic": lambda: logistic("sampler"),
    "logistic, stream": lambda: logistic("stream"),
    "robust, 1,000,000 rows": robust_finite,
    "portfolio": portfolio,
    "queue": queue,
    "inventory": inventory,
    "chance above": lambda: chance("upper"),
    "chance below": lambda: chance("lower"),
    "rare events": rare,
    "two wells": two_wells,
    "location": location,
}
"""The problems by name."""
