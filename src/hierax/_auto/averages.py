"""The average route: expectations that can only be sampled become averages of N common samples, for growing N.

With the samples fixed the problem is deterministic, and is solved as one: the first N from all starts, every further
one from the last answer. Replications on fresh samples (`hierax._judge.sampling`) say how good an answer is: its F with
a standard error, standard errors of x and y, and what F may be above the best. N grows as long as that is more than the
tolerance allows and samples, work and time are left; how far follows from it. The given start is a candidate too.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from hierax._auto import constants as const
from hierax._auto import session as sessions
from hierax._auto.bank import Bank
from hierax._auto.descents import Phi, kkt_polish, solved_below
from hierax._auto.deterministic import ENDED, run_deterministic, status_of
from hierax._auto.hunt import Space
from hierax._auto.searches import LAST_RELAXATIONS
from hierax._auto.session import Session
from hierax._base.constants import FRESH_SAMPLES
from hierax._base.trees import size
from hierax._compile.configuration import one_blas_thread
from hierax._engine.float64_problem import Float64Problem, smooth_in_samples
from hierax._engine.programs import FEASIBLE, Programs, raveled, unraveled
from hierax._engine.vectors import Point, VectorProblem
from hierax._judge.certificate import Certificate
from hierax._judge.certifying import certificate_in
from hierax._judge.sampling import REPLICATIONS, Estimates, Replication, gap_of, room_of, standard_errors, value_of
from hierax._math.lower_level import SOLVED
from hierax._problem.problem import Problem
from hierax._problem.samples import Finite, FiniteFiles, Sampler, Stream
from hierax._run.call import Clock, Patience
from hierax._run.prepare import Prepared, prepare
from hierax._run.solution import Counts, Solution

FIRST_AVERAGE = FRESH_SAMPLES // const.GROWTH  # samples
OF_THE_ANSWER = ("kkt_residual_se", "lower_gap_se", "distance_se", "gain_se", "hypergradient_norm_se")


def averaged(prepared: Prepared) -> list[str]:
    """The sources whose expectations become averages: those that are known from samples only, and too many rows."""
    found = []
    for name in ("zeta", "xi"):
        source = getattr(prepared.problem, name)
        only_sampled = isinstance(source, Sampler) and source.exact is None
        if only_sampled or isinstance(source, Stream | FiniteFiles) or has_too_many_rows(source):
            found.append(name)
    return found


def has_too_many_rows(source: object) -> bool:
    """Whether data in memory have more numbers than are used whole without a look at what is done with them."""
    return isinstance(source, Finite) and size(source.arrays) > const.WHOLE_DATA


def numbers_per_sample(prepared: Prepared, name: str) -> int:
    """How many numbers one sample has."""
    batch = prepared.few(name)
    return size(batch) // len(jax.tree.leaves(batch)[0])


def run_averages(session: Session) -> Solution:
    """The answer of the largest average that was needed."""
    averages = _Averages(session)
    more = averages.solve_first(averages.within(FIRST_AVERAGE))
    while more and averages.judge():
        samples = averages.wanted()
        more = samples is not None and averages.solve_next(samples)
    return averages.solution()


def _first_of(rows: PyTree, key: PRNGKeyArray, count: int) -> PyTree:
    """Rows in the place of samples that a generator would draw."""
    del key
    return jax.tree.map(lambda leaf: leaf[:count], rows)


class _Place(NamedTuple):
    """F at a point whose y solves the lower level, F with the upper constraints at their prices, and these in units."""

    point: Point
    upper: float
    priced: float
    above: np.ndarray


class _Averages:
    """The averages of one problem, one after another, in the units of the first.

    Attributes:
        names: of the sources that are averaged.
        numbers: that one sample has.
        most: samples that may still be drawn from each of them to solve an average and, as many, to judge its answer.
        first: the answer of the first average.
        answer: of the last one, in units.
        sizes: how many samples each had.
        said: what was found out about each.
        estimates: of the last answer; None: it was not judged, or no replication came to an end.
    """

    def __init__(self, session: Session) -> None:
        self.session, self.names = session, averaged(session.prepared)
        self.numbers = max(numbers_per_sample(session.prepared, name) for name in self.names)
        self.most = int(const.MUCH_DATA) // max(20, self.numbers)
        if session.auto.samples is not None:
            self.most = max(1, min(self.most, session.auto.samples // (2 * len(self.names))))
        self.first: Solution | None = None
        self.sizes: list[int] = []
        self.said: list[str] = []
        self.estimates: Estimates | None = None
        self._settings: dict[int, Float64Problem] = {}
        prepared = session.prepared
        clock = Clock(session.work.seconds * session.work.share)
        clock.begin = session.call.clock.begin
        self._bank = Bank(prepared.feeders, Patience(clock, session.interrupt))
        point = prepared.whole(prepared.x, prepared.y)
        self._problem, kinked = smooth_in_samples(self._sampled_from(0, FIRST_AVERAGE), *point)
        if kinked:
            line = (
                f"Single samples put kinks into {' and '.join(kinked)}, which their expectations do not have: each is"
            )
            session.log.append(f"{line} smoothed over a width that vanishes as N^(-2/5).")
        self._kept: tuple[Point, Estimates] | None = None

    # -- answers ------------------------------------------------------------------------------------------------------

    def solve_first(self, samples: int) -> bool:
        """The first average, by descents from several starts; whether larger ones may follow.

        Searches that tell ends apart by less than the noise of the samples would be wasted.
        """
        name, session = f"{samples} samples", self.session
        auto = dataclasses.replace(session.auto, route="penalty", samples=None)
        average = self._average(self._drawn(samples, 0))
        part = Session(average, auto, session.seed, session.call.under(name), session.interrupt)
        self.first = first = session.piece(
            name,
            functools.partial(run_deterministic, part, False),
            sessions.TYPES_OF_ANSWER,
            sessions.record_of_answer,
            functools.partial(sessions.answer_of_record, prepared=average, auto=auto),
        )
        self._scale = first.certificate.upper_scale if not first.status.failed else 0.0
        session.compiles(average.bound)
        session.work.evaluations += first.counts.evaluations or 0
        session.ended = first.status.kind if first.status.kind in ENDED else None
        self.most -= samples
        self.sizes.append(samples)
        self.said.append(f"{samples} samples: F = {first.value:.6g} on them, {first.status.name}.")
        if first.status.failed:
            return False
        with one_blas_thread:
            setting = self._setting(samples)
            self._space = Space.of(setting, 1, session.seed, 0, self._stop)
        vectors = self._space.vectors
        x, y = raveled(first.x) / vectors.x_unit, raveled(first.y) / vectors.y_unit
        self.answer = self._first_answer = Point(x, y, np.zeros(vectors.layout.rows))
        self._prices = raveled(first.multipliers.upper) * raveled(vectors.units.rows.upper)
        return session.ended is None

    def solve_next(self, samples: int) -> bool:
        """A larger average, from the last answer; whether it came to an end."""

        def solve() -> _Place | None:
            space = self._on(self._drawn(samples, 0))
            here = self._at(space, self.answer.x, self.answer.y)
            return None if here is None else self._lowest(space, here)

        with one_blas_thread:
            place = self.session.piece(f"{samples} samples", solve, (_Place, Point))
        if self._stop() or place is None:
            self.session.ended = self.session.work.ended
            return False
        self.answer, self.estimates = place.point, None
        self.most -= samples
        self.sizes.append(samples)
        self.said.append(f"{samples} samples: F = {place.upper:.6g} on them.")
        return True

    def wanted(self) -> int | None:
        """Samples of the next average: as many as the tolerance asks for; None: it has been reached, or none are left.

        A full step makes the average of a replication as large as the last one was: its programs are compiled already.
        """
        last, more = self.sizes[-1], float(REPLICATIONS)
        if self.estimates is not None:
            share = self.estimates.times(self.session.auto.tol)
            if share <= 1:
                return None
            more = share if 2 * share <= REPLICATIONS else more
        wanted = self.within(int(last * max(more, 2.0)))
        return wanted if wanted >= 2 * last else None

    def within(self, samples: int) -> int:
        """As many samples for an average, where there are as many more to judge its answer."""
        wanted = min(samples, self.most)
        found = self._bank.available(2 * wanted) // 2
        ended = f"No more than {2 * found} samples came from the stream."
        if found < wanted and ended not in self.said:
            self.said.append(ended)
        return min(wanted, found)

    # -- samples ------------------------------------------------------------------------------------------------------

    def _drawn(self, samples: int, purpose: int) -> dict[str, PyTree]:
        """Samples of every source that is averaged; those of another `purpose` are independent."""
        prepared, names = self.session.prepared, self.names

        def keys(_: Problem, seed: Int[Array, ""], samples: Int[Array, ""], purpose: int) -> list[PRNGKeyArray]:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), samples), purpose)
            return [jax.random.fold_in(key, i) for i in range(len(names))]

        made = prepared.bound.run(
            "keys of averages", keys, self.session.seed, samples, purpose, static=len(names), quick=True
        )
        first = self.sizes[-1] if purpose else 0
        drawn = {}
        for name, key in zip(names, made, strict=True):
            source = getattr(prepared.problem, name)
            seed = self.session.seed, samples, purpose, name == "xi"
            drawn[name] = (
                source.draw(key, samples) if isinstance(source, Sampler) else self._rows(name, first, samples, seed)
            )
        return drawn

    def _rows(self, name: str, first: int, count: int, seed: tuple[int, ...]) -> PyTree:
        """Rows of a stream from one on, or rows of data by a seed."""
        source = getattr(self.session.prepared.problem, name)
        if isinstance(source, Stream):
            return self._bank.rows(name, first, first + count)
        if isinstance(source, FiniteFiles):
            return source.some_rows(count, seed)
        numbers = np.random.default_rng(seed).integers(0, source.size, count)
        return jax.tree.map(lambda leaf: leaf[numbers], source.arrays)

    def _sampled_from(self, first: int, count: int) -> Problem:
        """The problem with samplers of some rows in the place of streams and of data."""
        problem, samplers = self.session.prepared.problem, dict[str, Any]()
        for name in self.names:
            if not isinstance(getattr(problem, name), Sampler):
                rows = self._rows(name, first, count, (self.session.seed, first, count, name == "xi"))
                samplers[name] = Sampler(functools.partial(_first_of, rows))
        return dataclasses.replace(problem, **samplers)

    def _average(self, drawn: dict[str, PyTree]) -> Prepared:
        """The problem with samples in the place of expectations."""
        prepared = self.session.prepared
        rows: dict[str, Any] = {name: Finite(batch) for name, batch in drawn.items()}
        return prepare(dataclasses.replace(self._problem, **rows), *prepared.whole(prepared.x, prepared.y))

    def _setting(self, samples: int) -> Float64Problem:
        """The problem on some samples of this number, whose programs serve all others of the number."""
        if samples not in self._settings:
            average = self._average(self._drawn(samples, 0))
            self._settings[samples] = sessions.float64_problem(average, self.session.seed)
            self.session.compiles(self._settings[samples].bound)
        return self._settings[samples]

    def _on(self, drawn: dict[str, PyTree]) -> Space:
        """The problem on samples."""
        first, count = self._space.vectors, len(jax.tree.leaves(drawn)[0])
        programs = Programs(self._setting(count).on_samples(**drawn))
        vectors = VectorProblem(programs, first.units, self.answer.y * first.y_unit, self.session.seed, stop=self._stop)
        vectors.bent = first.bent
        return dataclasses.replace(self._space, vectors=vectors, passed=[])

    # -- judging ------------------------------------------------------------------------------------------------------

    def judge(self) -> bool:
        """What replications say of the last answer; whether larger averages may follow."""
        samples = self.sizes[-1]
        found, told, self.answer = self.session.piece(
            f"{samples} samples judged", functools.partial(self._judged, samples), (Estimates, Point), list, tuple
        )
        self.said[-1] = f"{self.said[-1].removesuffix('.')}; {told}."
        self.session.ended = self.session.work.ended
        if found is not None:
            self._kept = self.answer, found
        elif self.session.ended is not None and self._kept is not None:
            self.answer, found = self._kept  # the last answer that was judged stays
        self.estimates = found
        return self.session.ended is None

    def _judged(self, samples: int) -> tuple[Estimates | None, str, Point]:
        """What replications say of the last answer, the same in words, and the answer: where F is lower at the given
        start, on samples that neither has seen, it is the start.
        """
        part = samples // REPLICATIONS
        if part < 2:
            return None, "too few to judge it by replications", self.answer
        pool = self._drawn(part * REPLICATIONS, 1)
        with one_blas_thread:
            on_pool, given = self._on(pool), self._space
            pooled, start = self._at(on_pool, *self.answer[:2]), self._at(on_pool, given.xs[0], given.ys[0])
            if pooled and start and start.upper < pooled.upper and not np.any(start.above > FEASIBLE):
                self.answer, pooled = start.point, start
            return *self._replicated(part, samples, pool, pooled), self.answer

    def _replicated(
        self, part: int, samples: int, pool: dict[str, PyTree], pooled: _Place | None
    ) -> tuple[Estimates | None, str]:
        """The same from replications on parts of a pool of samples; `pooled`: the answer on all of it."""
        if pooled is None:
            return None, "the lower level has no solution there on others"
        spaces = [
            self._on(jax.tree.map(lambda leaf, j=j: leaf[j * part : (j + 1) * part], pool)) for j in range(REPLICATIONS)
        ]
        found = [one for space in spaces if (one := self._replication(space)) is not None]
        if len(found) < REPLICATIONS:
            return None, f"{REPLICATIONS - len(found)} of {REPLICATIONS} replications came to no end"
        x, y = (np.mean([getattr(one, name) for one in found], axis=0) for name in ("x", "y"))
        middle = [place.priced for space in spaces if (place := self._at(space, x, y)) is not None]
        if len(middle) < REPLICATIONS:
            return None, "at the mean of the replications' answers the lower level has no solution"
        if np.ptp([one.upper for one in found]) <= const.ROUNDING * (1 + abs(pooled.upper)):
            return None, "on all replications it is the same, which tells no standard error"
        units, share = self._space.vectors, part / samples
        of_x, of_y = standard_errors(found, share)
        low, high = units.x_limits.lower + const.NEGLIGIBLE, units.x_limits.upper - const.NEGLIGIBLE
        inside = (self.answer.x > low) & (self.answer.x < high)
        cut = inside & (np.sum([(one.x <= low) | (one.x >= high) for one in found], axis=0) > 1)
        errors = np.where(cut, np.nan, of_x * units.x_unit), np.where(cut.any(), np.nan, of_y * units.y_unit)
        loss, gap = gap_of(found, middle, share, len(self.sizes))
        violation, slack = room_of(found, self._prices, len(self.sizes))
        fresh = part * REPLICATIONS
        limits = loss, gap + slack, self._scale, violation, slack
        estimates = Estimates(*value_of(found, pooled.upper), *errors, *limits, samples, fresh)
        return estimates, estimates.said

    def _at(self, space: Space, x: np.ndarray, y: np.ndarray) -> _Place | None:
        """The place at x, with the lower level solved from y; None where it has no solution."""
        point, status = solved_below(space.vectors, x, y)
        if status != SOLVED:
            return None
        values, scale = space.vectors.values(*point), space.vectors.units.upper
        upper = float(values.upper * scale.unit + scale.origin)
        above = values.above[: self._prices.size]
        return _Place(point, upper, upper + float(self._prices @ above), above)

    def _lowest(self, space: Space, here: _Place) -> _Place:
        """Where a search leads from a place, as far as it is worth it with samples."""
        work, vectors = self.session.work, space.vectors
        if vectors.bent is None:
            phi = Phi(vectors, space.structure.above)
            end = phi.minimised(here.point, work, const.SQP_ITERATIONS, const.TIGHT, const.TIGHT)
        else:
            end = kkt_polish(space, work, here.point, (), LAST_RELAXATIONS)
        there = None if end is None else self._at(space, end.x, end.y)
        return there or here

    def _replication(self, space: Space) -> Replication | None:
        """The answer on some samples, and their own answer."""
        here = self._at(space, self.answer.x, self.answer.y)
        if here is None or self._stop():
            return None
        best = self._lowest(space, here)
        return Replication(here.upper, here.priced, here.above, best.priced, best.point.x, best.point.y)

    def _stop(self) -> bool:
        return self.session.work.passed

    # -- the end ------------------------------------------------------------------------------------------------------

    def solution(self) -> Solution:
        """The last answer with its certificate, and what was said of each average."""
        session, first = self.session, self.first
        assert first is not None
        status, certificate, point, multipliers = first.status, None, (first.x, first.y), first.multipliers
        if not first.status.failed:
            vectors, (x, y, mu) = self._space.vectors, self.answer
            problem, prepared = vectors.programs.setting, session.prepared
            if not np.array_equal(x, self._first_answer.x):
                trees = zip(
                    (prepared.x, prepared.y),
                    vectors.programs.landed(x * vectors.x_unit, y * vectors.y_unit),
                    strict=True,
                )
                point = prepared.whole(*prepared.inside(*(unraveled(like, vector) for like, vector in trees)))
                mu = mu * vectors.lower_unit / vectors.row_units(x, y)
                multipliers = sessions.multipliers_of(problem, mu, None)._replace(upper=multipliers.upper)
            samples = self.sizes[-1] if self.estimates is None else self.estimates.samples
            certificate = self._fresh_certificate(point, samples)
            status = status_of(certificate, session.auto.tol, len(first.history), session.ended)
        total, compiling, streams = 2 * sum(self.sizes), session.compile_seconds, session.prepared.feeders
        drawn = dict.fromkeys(("zeta", "xi"), 0)
        drawn |= {name: self._bank.read(name) if name in streams else total for name in self.names}
        counts = Counts.of_search(session.work.elapsed - compiling, compiling, **drawn)
        whole = dataclasses.replace(
            first,
            x=point[0],
            y=point[1],
            multipliers=multipliers,
            status=status,
            counts=dataclasses.replace(counts, evaluations=session.work.evaluations),
            method=dataclasses.replace(session.auto, starts=getattr(first.method, "starts", None)),
            problem=session.prepared.problem,
            log=(*session.log, *self.said, *first.log[:-1], status.message),
            starts=first.starts.after(f"On the first average, of {self.sizes[0]} samples."),
            estimates=self.estimates,
        )
        return session.certified(whole, certificate)

    def _fresh_certificate(self, point: tuple[PyTree, PyTree], samples: int) -> Certificate:
        """The certificate of an answer on samples that it has not seen; `samples`: from which it was computed."""
        session, fresh = self.session, min(max(samples, FRESH_SAMPLES), const.MOST_SAMPLES)
        fresh = self._bank.available(samples + fresh) - samples
        stated = self._sampled_from(samples, fresh)
        problem = Float64Problem.of(stated, *point, fresh, session.seed + const.MOST_SAMPLES)
        session.compiles(problem.bound)
        found = certificate_in(problem, seed=session.seed, stop=lambda: session.work.over)
        # The answer carries the noise of the samples that it was computed from, as well as those that judge it.
        more = (1 + fresh / samples) ** 0.5
        errors: dict[str, Any] = {name: getattr(found, name) for name in OF_THE_ANSWER}
        known = {name: more * error for name, error in errors.items() if error is not None}
        return dataclasses.replace(found, **known, estimates=self.estimates)
