r"""Lower levels that are trained rather than solved: large ones that are not convex, such as networks.

No solver finds their global solution, and a Newton method takes minutes for one of many local ones. What can be had is
what their users do: training several times, from different starts, by gradient steps with momentum,

    v <- beta v + g,    y <- P(y - eta v),      g a gradient of G on a batch, P: back to Y and to the rows,

under any x, with the same starts and batches for every x. Differences of F between two x are then differences of
paired networks, whose standard error says how much of them is luck.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.trees import size
from hierax._engine.float64_problem import Data, Float64Problem
from hierax._engine.segments import not_convex
from hierax._judge.keeping import nearer, nearest_kept
from hierax._judge.point import Judgement, point_values
from hierax._math.spectrum import hessian_product, power_iteration
from hierax._problem.problem import Problem

LARGE = 200  # entries of y and of the rows up to which lower levels that are not convex are solved, from many starts
COUNT = 8  # trainings under every x
STEPS, BATCH, MOMENTUM = 2000, 32, 0.9
DECAY_FROM = 0.5  # share of the steps after which they are shortened, in a straight line to zero: noise averages out
RATES = (0.3, 1.0, 3.0)  # eta in units of (1 - beta) / L that the first training tries; L: the curvature at the start
UNTRAINED = 0.3  # size of the starts, where only a y is known that has been trained already
CHUNK = 250  # steps between two looks at the clock


def is_trained(setting: Float64Problem, seed: int) -> str | None:
    """Why the lower level is trained rather than solved; None: it is solved.

    It is trained where it is a mean over data, large, and samples show that it is not convex.
    """
    entries = size(setting.y) + int(np.count_nonzero(~setting.layout().face))
    if setting.bound.problem.xi is None or entries <= LARGE:
        return None
    return not_convex(setting, setting.y, seed)


class Training(NamedTuple):
    """Several trainings on their way (leading axis): y, their speed v, and the steps made."""

    y: PyTree
    speed: PyTree
    step: Int[Array, ""] | np.ndarray


class Trained(NamedTuple):
    """What several trainings under one x ended with (leading axis); `judged.gap` is that to the best of them."""

    y: PyTree
    judged: Judgement

    @property
    def best(self) -> int:
        """The one with the lowest G."""
        lower = np.asarray(self.judged.lower)
        return int(np.argmin(np.where(np.isfinite(lower), lower, np.inf)))

    def answer(self) -> tuple[PyTree, Judgement]:
        """The best one: its y and what is known of it."""
        i = self.best
        return jax.tree.map(lambda leaf: leaf[i], self.y), Judgement(
            *(float(np.asarray(part)[i]) for part in self.judged)
        )


@dataclasses.dataclass
class Retraining:
    """Trains the lower level of a setting under any x.

    Attributes:
        setting: the problem.
        starts: y of every training before its first step (leading axis).
        keys: of the batches of every training.
        stop: whether the time is up.
        why: the lower level is not solved.
        rate: eta; None until `at` has tried several at its first x.
    """

    setting: Float64Problem
    starts: PyTree
    keys: Int[np.ndarray, " many"]
    stop: Callable[[], bool]
    why: str
    rate: float | None = None

    @staticmethod
    def of(setting: Float64Problem, y: PyTree, seed: int, stop: Callable[[], bool], why: str) -> "Retraining":
        """With y as the first start, and others made of it by exchanging the entries of each array at random.

        An array of independent random numbers, as networks begin with, is thereby drawn anew.
        """
        rng = np.random.default_rng(seed)

        def several(leaf: np.ndarray) -> np.ndarray:
            others = [rng.permutation(np.ravel(leaf)).reshape(leaf.shape) for _ in range(COUNT - 1)]
            return np.stack([leaf, *others])

        keys = np.arange(COUNT, dtype=np.uint32) + np.uint32(COUNT * seed % 2**31)
        return Retraining(setting, jax.tree.map(several, y), keys, stop, why)

    @staticmethod
    def before(setting: Float64Problem, seed: int, stop: Callable[[], bool], why: str) -> "Retraining":
        """For a setting whose y has been trained already: it is taken back to the size of an untrained one."""
        return Retraining.of(setting, jax.tree.map(lambda leaf: UNTRAINED * leaf, setting.y), seed, stop, why)

    def at(self, x: PyTree) -> Trained | None:
        """The trainings under x; None where the time was up before they were done."""
        if self.rate is None and not self._find_rate(x):
            return None
        assert self.rate is not None
        return self._run(x, self.starts, self.keys, np.full(COUNT, self.rate))

    def _find_rate(self, x: PyTree) -> bool:
        """Try several rates on the first start and keep the one that ends with the lowest G; False: out of time."""
        first = jax.tree.map(lambda leaf: leaf[0], self.starts)
        curved = float(self.setting.run("curvature of the training", _curvature, x, first))
        rates = np.array(RATES) * (1 - MOMENTUM) / (curved if curved > 0 else 1.0)
        # As many at once as trainings later on, so that one program does both.
        tried = np.resize(rates, COUNT)
        same = jax.tree.map(lambda leaf: np.repeat(leaf[None], COUNT, axis=0), first)
        found = self._run(x, same, self.keys, tried)
        if found is None:
            return False
        lower = np.asarray(found.judged.lower)
        means = [np.mean(lower[tried == rate]) for rate in rates]
        self.rate = float(rates[int(np.argmin(np.where(np.isfinite(means), means, np.inf)))])
        return True

    def _run(self, x: PyTree, starts: PyTree, keys: np.ndarray, rates: Float[np.ndarray, " many"]) -> Trained | None:
        state = Training(starts, jax.tree.map(np.zeros_like, starts), np.zeros((), np.int32))
        for _ in range(STEPS // CHUNK):
            if self.stop():
                return None
            state = self.setting.run("training", _chunk, x, state, keys, rates)
        return self.setting.run("trained", _trained, x, state.y)


def _curvature(problem: Problem, data: Data, x: PyTree, y: PyTree) -> Scalar:
    """L: the largest curvature of G at y."""
    return power_iteration(hessian_product(lambda at: problem.lower(x, at, data.xi), y), y)[0]


def _chunk(
    problem: Problem, data: Data, x: PyTree, state: Training, keys: Int[Array, " many"], rates: Float[Array, " many"]
) -> Training:
    """CHUNK further steps of every training."""
    rows = jax.tree.leaves(data.xi)[0].shape[0] if data.xi is not None else 0

    def batch_of(key: PRNGKeyArray) -> PyTree:
        if rows <= BATCH:
            return data.xi
        chosen = jax.random.randint(key, (BATCH,), 0, rows)
        return jax.tree.map(lambda leaf: leaf[chosen], data.xi)

    def one(y: PyTree, speed: PyTree, seed: Int[Array, ""], rate: Scalar) -> tuple[PyTree, PyTree]:
        def step(carry: tuple[PyTree, PyTree], i: Int[Array, ""]) -> tuple[tuple[PyTree, PyTree], None]:
            y, speed = carry
            batch = batch_of(jax.random.fold_in(jax.random.key(seed), i))
            slope = jax.grad(lambda at: problem.lower(x, at, batch))(y)
            speed = jax.tree.map(lambda v, g: MOMENTUM * v + g, speed, slope)
            left = (STEPS - i).astype(rate.dtype) / (STEPS * (1 - DECAY_FROM))
            moved = trees.add_scaled(y, -rate * jnp.minimum(1.0, left), speed)
            return (nearer(problem, x, moved), speed), None

        numbers = jnp.asarray(state.step) + jnp.arange(CHUNK, dtype=state.step.dtype)
        return jax.lax.scan(step, (y, speed), numbers)[0]

    y, speed = jax.vmap(one)(state.y, state.speed, keys, rates)
    return Training(y, speed, state.step + CHUNK)


def _trained(problem: Problem, data: Data, x: PyTree, ys: PyTree) -> Trained:
    """The trainings' ends, moved to where they keep the rows, with what they are worth."""

    def one(y: PyTree) -> tuple[PyTree, Judgement]:
        y, _ = nearest_kept(problem, data, x, y)
        return y, point_values(problem, data, x, y)

    ys, judged = jax.lax.map(one, ys)
    value = jnp.nanmin(jnp.where(jnp.isfinite(judged.lower), judged.lower, jnp.nan))
    return Trained(ys, judged._replace(gap=(judged.lower - value) / (1 + jnp.abs(value))))
