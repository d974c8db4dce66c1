"""The average route: expectations that can only be sampled become averages of N common samples, for growing N.

With the samples fixed the problem is deterministic, and is solved as one: the first N from all starts, every further
one from the last answer. Replications on fresh samples (`hierax._judge.sampling`) say how good an answer is: its F with
a standard error, standard errors of x and y, and what F may be above the best. N grows as long as that is more than the
tolerance allows and samples, work and time are left; how far follows from it. The given start is a candidate too.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from jaxtyping import PyTree

from hierax._auto import constants as const
from hierax._auto import session as sessions
from hierax._auto.deterministic import ENDED, run_deterministic, status_of
from hierax._auto.draws import Draws, numbers_per_sample
from hierax._auto.replicated import Place, Replicated
from hierax._auto.session import Session
from hierax._base.constants import FRESH_SAMPLES
from hierax._base.trees import size
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.vectors import Point
from hierax._judge.certificate import Certificate
from hierax._judge.certifying import certificate_in
from hierax._judge.sampling import REPLICATIONS, Estimates
from hierax._run.solution import Counts, Solution

FIRST_AVERAGE = FRESH_SAMPLES // const.GROWTH  # samples
OF_THE_ANSWER = ("kkt_residual_se", "lower_gap_se", "distance_se", "gain_se", "hypergradient_norm_se")


def run_averages(session: Session) -> Solution:
    """The answer of the largest average that was needed."""
    averages = _Averages(session)
    more = averages.solve_first(averages.within(FIRST_AVERAGE))
    while more and averages.judge():
        samples = averages.wanted()
        more = samples is not None and averages.solve_next(samples)
    return averages.solution()


class _Averages:
    """The averages of one problem, one after another, in the units of the first.

    Attributes:
        draws: their samples.
        replicated: the averages in units; it is there where the first has an answer.
        most: samples that may still be drawn from each of them to solve an average and, as many, to judge its answer.
        first: the answer of the first average.
        answer: of the last one, in units.
        sizes: how many samples each had.
        said: what was found out about each.
        estimates: of the last answer; None: it was not judged, or no replication came to an end.
    """

    def __init__(self, session: Session) -> None:
        self.session, self.draws = session, Draws(session, FIRST_AVERAGE)
        names, prepared = self.draws.names, session.prepared
        numbers = [numbers_per_sample(prepared, name) for name in names]
        self.most = int(const.MUCH_DATA) // max(20, *numbers)
        self._seen_at_once = int(const.WHOLE_DATA) // max(*numbers, size(prepared.x) + size(prepared.y))
        self._share, self._looked = math.nan, 0
        if session.auto.samples is not None:
            self.most = max(1, min(self.most, session.auto.samples // (2 * len(names))))
        self.first: Solution | None = None
        self.sizes: list[int] = []
        self.said: list[str] = []
        self.estimates: Estimates | None = None
        self._kept: tuple[Point, Estimates] | None = None
        self._certified: tuple[int, Certificate] | None = None

    # -- answers ------------------------------------------------------------------------------------------------------

    def solve_first(self, samples: int) -> bool:
        """The first average, by descents from several starts; whether larger ones may follow.

        Searches that tell ends apart by less than the noise of the samples would be wasted.
        """
        name, session = f"{samples} samples", self.session
        auto = dataclasses.replace(session.auto, route="penalty", samples=None)
        average = self.draws.average(self.draws.drawn(samples, 0))
        part = Session(average, auto, session.seed, session.call.under(name), session.interrupt)
        self.first = first = session.piece(
            name,
            functools.partial(run_deterministic, part, False),
            sessions.TYPES_OF_ANSWER,
            sessions.record_of_answer,
            functools.partial(sessions.answer_of_record, prepared=average, auto=auto),
        )
        session.compiles(average.bound)
        session.work.evaluations += first.counts.evaluations or 0
        session.ended = first.status.kind if first.status.kind in ENDED else None
        self.most -= samples
        self.sizes.append(samples)
        self.said.append(f"{samples} samples: F = {first.value:.6g} on them, {first.status.name}.")
        if first.status.failed:
            return False
        self.replicated = Replicated(session, self.draws, first, samples)
        self.answer = self.replicated.answer
        return session.ended is None

    def solve_next(self, samples: int) -> bool:
        """A larger average, from the last answer; whether it came to an end."""
        solve = functools.partial(self.replicated.next_answer, samples, self.answer)
        place = self.session.piece(f"{samples} samples", solve, (Place, Point))
        if self.replicated.stop() or place is None:
            self.session.ended = self.session.work.ended
            return False
        self.answer, self.estimates = place.point, None
        self.most -= samples
        self.sizes.append(samples)
        self.said.append(f"{samples} samples: F = {place.upper:.6g} on them.")
        return True

    def wanted(self) -> int | None:
        """Samples of the next average: as many as the tolerance asks for, or more where noise leaves the certificate
        open; None: neither is so, or none are left.

        A full step makes the average of a replication as large as the last one was: its programs are compiled already.
        """
        last, more = self.sizes[-1], float(REPLICATIONS)
        if self.estimates is not None:
            share = self.estimates.times(self.session.auto.tol)
            if share <= 1 and not self._looked:
                self._look_for_rare_events()
                share = self.estimates.times(self.session.auto.tol)
            if share <= 1 and self._certificate().verdict(self.session.auto.tol) != "unknown":
                return None
            more = const.GROWTH if share <= 1 else share if 2 * share <= REPLICATIONS else more
        wanted = self.within(int(last * max(more, 2.0)))
        return wanted if wanted >= 2 * last else None

    def within(self, samples: int) -> int:
        """As many samples for an average, where there are as many more to judge its answer."""
        wanted = min(samples, self.most)
        found = self.draws.bank.available(2 * wanted) // 2
        ended = f"No more than {2 * found} samples came from the stream."
        if found < wanted and ended not in self.said:
            self.said.append(ended)
        return min(wanted, found)

    # -- judging ------------------------------------------------------------------------------------------------------

    def judge(self) -> bool:
        """What replications say of the last answer; whether larger averages may follow."""
        samples = self.sizes[-1]
        judged = functools.partial(self.replicated.judged, self.answer, samples, len(self.sizes))
        found, told, self.answer = self.session.piece(
            f"{samples} samples judged", judged, (Estimates, Point), list, tuple
        )
        told += found.needed(self.session.auto.tol) if found else ""
        self.said[-1] = f"{self.said[-1].removesuffix('.')}; {told}."
        self.session.ended = self.session.work.ended
        if found is not None:
            self._kept = self.answer, found
        elif self.session.ended is not None and self._kept is not None:
            self.answer, found = self._kept  # the last answer that was judged stays
        self.estimates = found and found._replace(rare=found.samples * self._share)
        return self.session.ended is None

    def _look_for_rare_events(self) -> None:
        """See among many more samples whether those of the answer can have had what makes most of the noise.

        Only where more may be drawn: a stream is not read for it.
        """
        last, more = self.sizes[-1], min(self.most, self._seen_at_once)
        if self.estimates is None or self.session.prepared.feeders or more < 2 * last:
            return
        look = functools.partial(self.replicated.share_of_noisy_samples, self.answer, more)
        self._share, self._looked = self.session.piece("rare events", look), more
        self.most -= more // 2
        self.estimates = self.estimates._replace(rare=self.estimates.samples * self._share)

    # -- the end ------------------------------------------------------------------------------------------------------

    def solution(self) -> Solution:
        """The last answer with its certificate, and what was said of each average."""
        session, first = self.session, self.first
        assert first is not None
        status, certificate, point, multipliers = first.status, None, (first.x, first.y), first.multipliers
        if not first.status.failed:
            vectors, (x, y, mu) = self.replicated.space.vectors, self.answer
            if not np.array_equal(x, self.replicated.answer.x):
                mu = mu * vectors.lower_unit / vectors.row_units(x, y)
                own = sessions.multipliers_of(vectors.programs.setting, mu, None)
                multipliers = own._replace(upper=multipliers.upper)
            point, certificate = self._point(), self._certificate()
            status = status_of(certificate, session.auto.tol, len(first.history), session.ended)
        total, compiling = 2 * sum(self.sizes) + self._looked, session.compile_seconds
        streams = session.prepared.feeders
        drawn = dict.fromkeys(("zeta", "xi"), 0)
        drawn |= {name: self.draws.bank.read(name) if name in streams else total for name in self.draws.names}
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

    def _point(self) -> tuple[PyTree, PyTree]:
        """The last answer in the user's units."""
        if self.first is not None and np.array_equal(self.answer.x, self.replicated.answer.x):
            return self.first.x, self.first.y
        prepared = self.session.prepared
        return prepared.whole(*prepared.inside(*self.replicated.trees(self.answer)))

    def _certificate(self) -> Certificate:
        """The certificate of the last answer on samples that it has not seen."""
        samples = self.sizes[-1] if self.estimates is None else self.estimates.samples
        if self._certified is not None and self._certified[0] == samples:
            return dataclasses.replace(self._certified[1], estimates=self.estimates)
        session, point = self.session, self._point()
        fresh = min(max(samples, FRESH_SAMPLES), const.MOST_SAMPLES)
        fresh = self.draws.bank.available(samples + fresh) - samples
        stated = self.draws.sampled_from(samples, fresh)
        problem = Float64Problem.of(stated, *point, fresh, session.seed + const.MOST_SAMPLES)
        session.compiles(problem.bound)
        found = certificate_in(problem, seed=session.seed, stop=lambda: session.work.over)
        # The answer carries the noise of the samples that it was computed from, as well as those that judge it.
        more = (1 + fresh / samples) ** 0.5
        errors: dict[str, Any] = {name: getattr(found, name) for name in OF_THE_ANSWER}
        known = {name: more * error for name, error in errors.items() if error is not None}
        self._certified = samples, dataclasses.replace(found, **known, estimates=self.estimates)
        return self._certified[1]
