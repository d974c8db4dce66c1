r"""Lower levels that are trained rather than solved: large ones that are not convex, such as networks.

No solver finds their global solution, and a Newton method takes minutes for one of many local ones. What can be had is
what their users do: training several times, from different starts, by gradient steps with momentum,

    v <- beta v + g,    y <- P(y - eta v),      g a gradient of G on a batch, P: back to Y and to the rows,

under any x, with the same starts and batches for every x. Differences of F between two x are then differences of
paired networks, whose standard error says how much of them is luck.

So a certificate can know whether the point keeps its constraints, whether another of several trainings ends with a
lower G, and what F does when x moves, from lower levels trained anew on both sides of x. All of it carries the noise of
training; none of it is a proof, so such a certificate never says yes.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Scalar

from hierax._base import trees
from hierax._base.text import entries, numbers_of, shown
from hierax._engine.float64_problem import Data, Float64Problem
from hierax._engine.lengths import lengths_of
from hierax._engine.programs import boxes, raveled, unraveled
from hierax._engine.segments import not_convex
from hierax._judge.measuring import FEW_ENTRIES, STEPS, GapRange, Notes, Numbers
from hierax._judge.point import Judgement, nearer, nearest_kept, point_values, relative_gap, violations
from hierax._lower.base import completed
from hierax._lower.exact import Exact
from hierax._lower.linear import Pair
from hierax._math.lower_level import INACCURATE, LowerSolution, level_at, multiplier_vector, residual_at, units_at
from hierax._math.spectrum import hessian_product, power_iteration
from hierax._problem.problem import Multipliers, Problem, Rows

LARGE = 200  # entries of y and of the rows up to which lower levels that are not convex are solved, from many starts
COUNT = 8  # trainings under every x
TRAINING_STEPS, BATCH, MOMENTUM = 2000, 32, 0.9
UNTRAINED = 0.3  # size of the starts, where only a y is known that has been trained already

State = tuple[PyTree, PyTree]
"""Several trainings on their way (leading axis): y, and their speed v."""


def is_trained(setting: Float64Problem, seed: int) -> str | None:
    """Why the lower level is trained rather than solved; None: it is solved.

    It is trained where it is a mean over data, large, and samples show that it is not convex.
    """
    unknowns = trees.size(setting.y) + int(np.count_nonzero(~setting.layout().face))
    if setting.bound.problem.xi is None or unknowns <= LARGE:
        return None
    return not_convex(setting, setting.y, seed)


class Trained(NamedTuple):
    """What several trainings under one x ended with (leading axis); `judged.gap` is that to the best of them."""

    y: PyTree
    judged: Judgement

    def answer(self) -> tuple[PyTree, Judgement]:
        """The one with the lowest G: its y and what is known of it."""
        lower = np.asarray(self.judged.lower)
        i = int(np.argmin(np.where(np.isfinite(lower), lower, np.inf)))
        judged = Judgement(*(float(np.asarray(part)[i]) for part in self.judged))
        return jax.tree.map(lambda leaf: leaf[i], self.y), judged


@dataclasses.dataclass
class Retraining:
    """Trains the lower level of a setting under any x.

    Attributes:
        setting: the problem.
        starts: y of every training before its first step (leading axis).
        draws: numbers that say, modulo the number of rows, which of them every training sees in every step.
        stop: whether the time is up.
        why: the lower level is not solved.
        rate: eta; None until `at` has tried several at its first x.
    """

    setting: Float64Problem
    starts: PyTree
    draws: Int[np.ndarray, "steps many batch"]
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

        starts, most = jax.tree.map(several, y), np.iinfo(np.int32).max
        draws = rng.integers(most, size=(TRAINING_STEPS, COUNT, BATCH), dtype=np.int32)
        return Retraining(setting, starts, draws, stop, why)

    @staticmethod
    def before(setting: Float64Problem, seed: int, stop: Callable[[], bool], why: str) -> "Retraining":
        """For a setting whose y has been trained already: it is taken back to the size of an untrained one."""
        return Retraining.of(setting, jax.tree.map(lambda leaf: UNTRAINED * leaf, setting.y), seed, stop, why)

    def at(self, x: PyTree) -> Trained | None:
        """The trainings under x; None where the time was up before they were done."""
        if self.rate is None:
            self.rate = self._best_rate(x)
        return None if self.rate is None else self._run(x, self.starts, np.full(COUNT, self.rate))

    def _best_rate(self, x: PyTree) -> float | None:
        """Of (1 - beta) / L, a quarter and four times that, the eta that ends with the lowest G; None: out of time.

        L is the curvature at the first start, from which all are tried. As many trainings at once as later on, so that
        one program does both.
        """
        first = jax.tree.map(lambda leaf: leaf[0], self.starts)
        curved = float(self.setting.run("curvature of the training", _curvature, x, first, quick=True))
        rates = np.array([0.5, 1.0, 2.0]) ** 2 * (1 - MOMENTUM) / (curved if curved > 0 else 1.0)
        tried = np.resize(rates, COUNT)
        found = self._run(x, jax.tree.map(lambda leaf: np.repeat(leaf[None], COUNT, axis=0), first), tried)
        if found is None:
            return None
        means = [np.mean(np.asarray(found.judged.lower)[tried == rate]) for rate in rates]
        return float(rates[int(np.argmin(np.where(np.isfinite(means), means, np.inf)))])

    def _run(self, x: PyTree, starts: PyTree, rates: Float[np.ndarray, " many"]) -> Trained | None:
        """The ends of trainings; the clock is looked at COUNT times on the way."""
        state: State = starts, jax.tree.map(np.zeros_like, starts)
        for steps in np.arange(TRAINING_STEPS).reshape(COUNT, -1):
            if self.stop():
                return None
            lengths = np.minimum(1.0, 2 * (1 - steps / TRAINING_STEPS))[:, None] * rates
            state = self.setting.run("training", _chunk, x, state, self.draws[steps], lengths, light=True)
        return self.setting.run("trained", _trained, x, state[0], quick=True)


def _curvature(problem: Problem, data: Data, x: PyTree, y: PyTree) -> Scalar:
    """L: the largest curvature of G at y."""
    return power_iteration(hessian_product(lambda at: problem.lower(x, at, data.xi), y), y)[0]


def _chunk(
    problem: Problem,
    data: Data,
    x: PyTree,
    state: State,
    draws: Int[Array, "steps many batch"],
    lengths: Float[Array, "steps many"],
) -> State:
    """Further steps of every training, of these lengths."""
    rows = jax.tree.leaves(data.xi)[0].shape[0]

    def one(y: PyTree, speed: PyTree, draw: Int[Array, " batch"], length: Scalar) -> State:
        batch = data.xi if rows <= BATCH else jax.tree.map(lambda leaf: leaf[draw % rows], data.xi)
        slope = jax.grad(lambda at: problem.lower(x, at, batch))(y)
        speed = jax.tree.map(lambda v, g: MOMENTUM * v + g, speed, slope)
        return nearer(problem, x, trees.add_scaled(y, -length, speed)), speed

    def step(state: State, at: tuple[Int[Array, "many batch"], Float[Array, " many"]]) -> tuple[State, None]:
        return jax.vmap(one)(*state, *at), None

    return jax.lax.scan(step, state, (draws, lengths))[0]


def _trained(problem: Problem, data: Data, x: PyTree, ys: PyTree) -> Trained:
    """The trainings' ends, moved to where they keep the rows, with what they are worth."""

    def one(y: PyTree) -> tuple[PyTree, Judgement]:
        y, _ = nearest_kept(problem, data, x, y)
        return y, point_values(problem, data, x, y)

    ys, judged = jax.lax.map(one, ys)
    value = jnp.nanmin(jnp.where(jnp.isfinite(judged.lower), judged.lower, jnp.nan))
    return Trained(ys, judged._replace(gap=relative_gap(judged.lower, value)))


# -- the certificate ---------------------------------------------------------------------------------------------------


class Move(NamedTuple):
    """What F does when x moves: means over the trainings, paired with those at x.

    Attributes:
        text: what was moved, and how far.
        x: where to.
        change: of F.
        error: its standard error.
    """

    text: str
    x: PyTree
    change: float
    error: float


class Retrained(NamedTuple):
    """What training anew says of a point.

    Attributes:
        trainings: how many under every x.
        upper: F at x, the mean over them.
        upper_error: its standard error.
        spread: standard deviation of G over the trainings at x.
        moves: of x, one after another.
        slope: the largest change of F per length of x along those moves.
        slope_error: its standard error.
    """

    trainings: int
    upper: float
    upper_error: float
    spread: float
    moves: tuple[Move, ...]
    slope: float | None
    slope_error: float | None

    def lower(self, least: float, sure: float) -> Move | None:
        """The move that lowers F the most, where that is by more than `least` and more than `sure` standard errors."""
        fine = [move for move in self.moves if -move.change > max(least, sure * move.error)]
        return min(fine, key=lambda move: move.change, default=None)


def trained_fields(
    retraining: Retraining, setting: Float64Problem, given: Multipliers | None, seed: int, notes: Notes
) -> Numbers:
    """The fields of a certificate; where the time is up, as many as there are."""
    at = retraining.at(setting.x)
    best = setting.y if at is None else at.answer()[0]
    own = None if given is None else Rows(given.inequalities, given.equalities)
    found, beyond, measured = setting.run("compare", _compared, setting.x, setting.y, best, own, quick=True)
    gap, residual, slope, curvature = map(float, measured)
    named = [name for block, tree in beyond.items() for name in entries(block, tree)]
    amounts = np.concatenate([numbers_of(tree) for tree in beyond.values()])
    worst = int(np.argmax(np.where(np.isnan(amounts), np.inf, amounts)))
    x, y, box = raveled(setting.x), raveled(setting.y), boxes(setting)[0]
    lengths = lengths_of(x, box, np.zeros(x.size), np.arange(x.size), np.full(x.size, np.inf)).values
    of_y = float(np.sqrt(np.mean(y**2))) or 1.0
    whole = of_y * y.size**0.5
    numbers: Numbers = {
        "reference": found._replace(status=np.asarray(INACCURATE)),
        "lengths": (unraveled(setting.x, lengths), unraveled(setting.y, np.full(y.size, of_y))),
        "not_convex": f"{retraining.why}: it is trained, not solved",
        "gap_range": GapRange(slope * whole, 0.5 * curvature * whole**2),
        "lower_gap": gap,
        "kkt_residual": residual,
        "max_violation": float(amounts[worst]),
        "violation": float(amounts[worst]),
        "worst": named[worst],
    }
    why = "the time was up before the lower level was trained once"
    if at is not None:
        numbers["retrained"], numbers["upper_scale"] = _moved(retraining, setting, at, lengths, box, seed)
        why = "by differences of retrained lower levels, see below"
    notes |= {"hypergradient_norm": why, "gains": why}
    notes["distance"] = "y*(x) is not known: the lower level is trained, not solved"
    return numbers


def _compared(
    problem: Problem, data: Data, x: PyTree, y: PyTree, trained: PyTree, given: Rows | None
) -> tuple[LowerSolution, dict[str, PyTree], Array]:
    """The better of y and what was trained as a reference, violations of y by block, and four numbers of y.

    These are G(x, y) - v(x), the relative KKT residual, and the sizes of G's slope and curvatures. The reference's
    multipliers are the least-squares ones of its active rows.
    """
    best = trees.select(problem.lower(x, trained, data.xi) < problem.lower(x, y, data.xi), trained, y)
    there, level = (level_at(problem, x, at, data.xi) for at in (best, y))
    accurate, value, none = jnp.asarray(Exact().tol), there.objective(there.start), jnp.zeros((), jnp.int32)
    mu = completed(there, jnp.zeros(there.equal.size, there.start.dtype), np.ones_like(there.equal))
    found = LowerSolution(best, *there.split(mu), value, jnp.full_like(value, jnp.nan), none, none)
    if given is not None:
        mu = multiplier_vector(found._replace(multipliers=given), level.start.dtype)
    lower, slope = jax.value_and_grad(level.objective)(level.start)
    curvature = units_at(level, level.start, level.rows(level.start), slope, accurate).curvature
    residual = residual_at(level, level.start, mu, accurate)
    return found, violations(problem, x, y), jnp.stack([lower - value, residual, jnp.linalg.norm(slope), curvature])


def _moved(
    retraining: Retraining, setting: Float64Problem, at: Trained, lengths: np.ndarray, bounds: Pair, seed: int
) -> tuple[Retrained, float]:
    """What retrained lower levels say of moves of x, and what F changes over a length of x."""
    v, here = raveled(setting.x), np.asarray(at.judged.upper)
    moves, slopes, scale = [], [(0.0, 0.0)], 0.0
    sizes = np.minimum(lengths, np.where(v != 0, np.abs(v), lengths))
    for name, direction in _directions(setting, sizes, seed):
        ends = []
        for side in (1.0, -1.0):
            there = np.clip(v + side * direction, *bounds)
            step = float(np.linalg.norm((there - v) / lengths))
            found = None if step == 0 else retraining.at(unraveled(setting.x, there))
            if found is not None:
                change = np.asarray(found.judged.upper) - here
                ends.append((side * step, change))
                text = f"{name} moved to {shown(there[direction != 0])}"
                moves.append(Move(text, unraveled(setting.x, there), *_mean(change)))
        if ends:  # slope of F per length of x, and its mean second derivative, where there are both sides
            (a, up), (b, down) = ends if len(ends) > 1 else (ends[0], (0.0, np.zeros(len(here))))
            slope, error = _mean((up - down) / (a - b))
            curved = float(np.mean(2 * (up / a - down / b) / (a - b))) if b else 0.0
            slopes.append((abs(slope), error))
            scale = max(scale, abs(slope), 0.5 * abs(curved))
    steepest = max(slopes) if moves else (None, None)
    spread = float(np.std(at.judged.lower, ddof=1))
    return Retrained(len(here), *_mean(here), spread, tuple(moves), *steepest), scale


def _mean(numbers: np.ndarray) -> tuple[float, float]:
    """The mean, and its standard error."""
    return float(np.mean(numbers)), float(np.std(numbers, ddof=1)) / len(numbers) ** 0.5


def _directions(setting: Float64Problem, sizes: np.ndarray, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Moves of x in the user's units: of each of few entries, or two at random."""
    step = STEPS[0] * sizes
    if sizes.size <= FEW_ENTRIES:
        yield from zip(entries("x", setting.x), np.diag(step), strict=True)
        return
    for signs in np.random.default_rng(seed).choice([-1.0, 1.0], (2, sizes.size)):
        yield "x", step * signs
