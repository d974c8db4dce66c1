"""Averages of one problem in the units of the first: searches on samples, and an answer judged by replications."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hierax._auto import constants as const
from hierax._auto import session as sessions
from hierax._auto.descents import Phi, kkt_polish, solved_below
from hierax._auto.draws import Draws
from hierax._auto.hunt import Space
from hierax._auto.searches import LAST_RELAXATIONS
from hierax._auto.session import Session
from hierax._base.text import numbers_of
from hierax._compile.configuration import one_blas_thread
from hierax._engine.float64_problem import Data, Float64Problem
from hierax._engine.programs import FEASIBLE, Programs, raveled, unraveled
from hierax._engine.vectors import Point, VectorProblem
from hierax._judge import sampling
from hierax._judge.sampling import REPLICATIONS, Estimates, Replication
from hierax._math.lower_level import SOLVED
from hierax._problem.problem import Problem
from hierax._run.solution import Solution


class Place(NamedTuple):
    """F at a point whose y solves the lower level, F with the upper constraints at their prices, and these in units."""

    point: Point
    upper: float
    priced: float
    above: np.ndarray


class Replicated:
    """The averages of one problem.

    Attributes:
        answer: of the first average, in units.
    """

    def __init__(self, session: Session, draws: Draws, first: Solution, samples: int) -> None:
        """`first`: the answer of the first average, and from how many samples."""
        self.session, self.draws, self._settings = session, draws, dict[int, Float64Problem]()
        with one_blas_thread:
            self.space = Space.of(self._setting(samples), 1, session.seed, 0, self.stop)
        vectors = self.space.vectors
        x, y = raveled(first.x) / vectors.x_unit, raveled(first.y) / vectors.y_unit
        self.answer = Point(x, y, np.zeros(vectors.layout.rows))
        self._prices = raveled(first.multipliers.upper) * raveled(vectors.units.rows.upper)
        self._scale = first.certificate.upper_scale

    def stop(self) -> bool:
        """Whether this part of the work has to end."""
        return self.session.work.passed

    def next_answer(self, samples: int, before: Point) -> Place | None:
        """The answer of a larger average, from the last one; None: the lower level has no solution there."""
        with one_blas_thread:
            space = self._on(self.draws.drawn(samples, 0), before)
            here = self._at(space, *before[:2])
            return None if here is None else self._lowest(space, here)

    def _setting(self, samples: int) -> Float64Problem:
        """The problem on some samples of this number, whose programs serve all others of the number."""
        if samples not in self._settings:
            average = self.draws.average(self.draws.drawn(samples, 0))
            self._settings[samples] = sessions.float64_problem(average, self.session.seed)
            self.session.compiles(self._settings[samples].bound)
        return self._settings[samples]

    def _on(self, drawn: dict[str, PyTree], before: Point) -> Space:
        """The problem on samples; lower levels start from the last answer's y."""
        first, count = self.space.vectors, len(jax.tree.leaves(drawn)[0])
        programs = Programs(self._setting(count).on_samples(**drawn))
        vectors = VectorProblem(programs, first.units, before.y * first.y_unit, self.session.seed, stop=self.stop)
        vectors.bent = first.bent
        return dataclasses.replace(self.space, vectors=vectors, passed=[])

    def _at(self, space: Space, x: np.ndarray, y: np.ndarray) -> Place | None:
        """The place at x, with the lower level solved from y; None where it has no solution."""
        point, status = solved_below(space.vectors, x, y)
        if status != SOLVED:
            return None
        values, scale = space.vectors.values(*point), space.vectors.units.upper
        upper = float(values.upper * scale.unit + scale.origin)
        above = values.above[: self._prices.size]
        return Place(point, upper, upper + float(self._prices @ above), above)

    def _lowest(self, space: Space, here: Place) -> Place:
        """Where a search leads from a place, as far as it is worth it with samples."""
        work, vectors = self.session.work, space.vectors
        if vectors.bent is None:
            phi = Phi(vectors, space.structure.above)
            end = phi.minimised(here.point, work, const.SQP_ITERATIONS, const.TIGHT, const.TIGHT)
            return (end and self._at(space, end.x, end.y)) or here
        ends = [here]  # of polishes, each below the branches of the lower level that were better at the ends before
        while len(ends) <= const.MOST_CUTS and not work.passed:
            cuts = tuple(place.point for place in ends[1:])
            end = kkt_polish(space, work, here.point, cuts, LAST_RELAXATIONS)
            if (there := self._at(space, end.x, end.y)) is None:
                break
            ends.append(there)
            if np.max(np.abs(there.point.y - end.y)) <= const.NEAR:
                break
        return min(ends, key=lambda place: (np.any(place.above > FEASIBLE), place.priced))

    # -- judging ------------------------------------------------------------------------------------------------------

    def judged(self, answer: Point, samples: int, look: int) -> tuple[Estimates | None, str, Point]:
        """What replications say of an answer, the same in words, and the answer: where F is lower at the given start,
        on samples that neither has seen, it is the start. `look`: how many answers were judged, this one included.
        """
        part = samples // REPLICATIONS
        if part < 2:
            return None, "too few to judge it by replications", answer
        pool = self.draws.drawn(part * REPLICATIONS, 1, samples)
        with one_blas_thread:
            on_pool, given = self._on(pool, answer), self.space
            pooled, start = self._at(on_pool, *answer[:2]), self._at(on_pool, given.xs[0], given.ys[0])
            if pooled and start and start.upper < pooled.upper and not np.any(start.above > FEASIBLE):
                answer, pooled = start.point, start
            if pooled is None:
                return None, "the lower level has no solution there on others", answer
            spaces = [
                self._on(jax.tree.map(lambda leaf, j=j: leaf[j * part : (j + 1) * part], pool), answer)
                for j in range(REPLICATIONS)
            ]
            found = [one for space in spaces if (one := self._replication(space, answer)) is not None]
            if len(found) < REPLICATIONS:
                left = f"{REPLICATIONS - len(found)} of {REPLICATIONS} replications came to no end"
                return None, left + " before the time was up" * self.stop(), answer
            x, y = (np.mean([getattr(one, name) for one in found], axis=0) for name in ("x", "y"))
            middle = [place.priced for space in spaces if (place := self._at(space, x, y)) is not None]
            if len(middle) < REPLICATIONS:
                return None, "at the mean of the replications' answers the lower level has no solution", answer
            if alike := sampling.seldom_differ(found, const.ROUNDING):
                return None, alike, answer
            values = sampling.value_of(found, pooled.upper, tail := sampling.tail_of(self._values(on_pool, pooled)))
        units, share = self.space.vectors, part / samples
        of_x, of_y = sampling.standard_errors(found, share)
        low, high = units.x_limits.lower + const.NEGLIGIBLE, units.x_limits.upper - const.NEGLIGIBLE
        inside = (answer.x > low) & (answer.x < high)
        cut = inside & (np.sum([(one.x <= low) | (one.x >= high) for one in found], axis=0) > 1)
        errors = np.where(cut, np.nan, of_x * units.x_unit), np.where(cut.any(), np.nan, of_y * units.y_unit)
        loss, gap = sampling.gap_of(found, middle, share, look)
        violation, slack = sampling.room_of(found, self._prices, look)
        limits = loss, gap + slack, self._scale, violation, slack
        estimates = Estimates(*values, *errors, *limits, samples, part * REPLICATIONS, tail)
        return estimates, estimates.said, answer

    def _replication(self, space: Space, answer: Point) -> Replication | None:
        """The answer on some samples, and their own answer."""
        here = self._at(space, *answer[:2])
        if here is None or self.stop():
            return None
        best = self._lowest(space, here)
        return Replication(here.upper, here.priced, here.above, best.priced, best.point.x, best.point.y)

    def _values(self, space: Space, place: Place) -> np.ndarray:
        """What single samples make of F at a place: all of them, each alone."""
        setting = space.vectors.programs.setting
        if "zeta" not in self.draws.names:
            return np.zeros(1)

        def program(problem: Problem, data: Data, x: PyTree, y: PyTree) -> jax.Array:
            return jax.vmap(lambda row: problem.upper(x, y, _alone(row)))(data.zeta)

        return np.asarray(setting.run("single samples", program, *self.trees(place.point), quick=True))

    def share_of_noisy_samples(self, answer: Point, samples: int) -> float:
        """Which share of others makes the noise of the slopes of F and G at an answer: (sum d^2)^2 / (n sum d^4).

        Of normal noise that is a third, of events of probability p it is p. The least of all entries.
        """

        def program(problem: Problem, data: Data, x: PyTree, y: PyTree) -> list[jax.Array]:
            found = []
            for name in self.draws.names:
                slopes = jax.grad({"zeta": problem.upper, "xi": problem.lower}[name], (0, 1))
                each = jax.vmap(lambda row, slopes=slopes: slopes(x, y, _alone(row)))(getattr(data, name))
                squares = [jnp.square(leaf - leaf.mean(0)) for leaf in jax.tree.leaves(each)]
                found += [jnp.mean(one, 0) ** 2 / jnp.mean(one**2, 0) for one in squares]
            return found

        trees, stated = self.trees(answer), self.draws.sampled_from(0, samples)
        point = self.session.prepared.whole(*trees)
        problem = Float64Problem.of(stated, *point, samples, self.session.seed + samples)
        self.session.compiles(problem.bound)
        return float(np.nanmin(numbers_of(problem.run("noise of samples", program, *trees, quick=True)), initial=1.0))

    def trees(self, point: Point) -> tuple[PyTree, PyTree]:
        """x and y as trees, in the user's units."""
        vectors, like = self.space.vectors, self.session.prepared
        return unraveled(like.x, point.x * vectors.x_unit), unraveled(like.y, point.y * vectors.y_unit)


def _alone(row: PyTree) -> PyTree:
    """A sample as a batch of one."""
    return jax.tree.map(lambda leaf: leaf[None], row)
