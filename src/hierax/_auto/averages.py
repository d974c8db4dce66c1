r"""The average route: expectations that can only be sampled become averages of N common samples, for growing N.

With the samples fixed the problem is deterministic and is solved as one (`deterministic.py`), the first N from all
starts, every further one from the last answer. The answer is judged on samples that it has not seen: where their
certificate says yes the route ends; where noise leaves it open, N grows, up to a largest number. Samples of different N
are independent, so that two answers in a row tell how far x can be trusted.
"""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from hierax._auto import constants as const
from hierax._auto.deterministic import ENDED, run_deterministic, status_of
from hierax._auto.session import TYPES_OF_ANSWER, Session, answer_of_record, record_of_answer
from hierax._base.constants import FRESH_SAMPLES
from hierax._base.interrupt import Interrupt
from hierax._base.text import numbers_of
from hierax._base.trees import size
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.programs import SIDE_BY_SIDE_NUMBERS
from hierax._judge.certificate import Certificate
from hierax._judge.certifying import certificate_in
from hierax._problem.problem import Problem
from hierax._problem.samples import Finite, Sampler
from hierax._run.prepare import Prepared, prepare
from hierax._run.solution import Counts, Solution

if TYPE_CHECKING:
    from hierax._auto.auto import Route

OF_THE_ANSWER = ("kkt_residual_se", "lower_gap_se", "distance_se", "gain_se", "hypergradient_norm_se")
FIRST_AVERAGE = FRESH_SAMPLES // const.GROWTH  # samples


def averaged(prepared: Prepared) -> list[str]:
    """The sources that can be sampled and are not known: their expectations become averages."""
    sources = {name: getattr(prepared.problem, name) for name in ("zeta", "xi")}
    return [name for name, source in sources.items() if isinstance(source, Sampler) and source.exact is None]


def numbers_per_sample(prepared: Prepared, name: str) -> int:
    """How many numbers one sample has."""
    draw = getattr(prepared.problem, name).draw
    return size(jax.eval_shape(lambda: draw(jax.random.key(0), 1)))


def run_averages(session: Session, route: "Route", interrupt: Interrupt, all_starts: bool) -> Solution:
    """The answer of the largest average that was needed; `route` solves each."""
    rounds = _Rounds(session, route, interrupt)
    most = min(const.MOST_SAMPLES, int(const.WHOLE_DATA) // rounds.numbers)
    if session.auto.samples is not None:
        most = max(1, min(most, session.auto.samples // (2 * len(rounds.names))))
    samples = min(FIRST_AVERAGE, most)
    while not rounds.solve(samples, all_starts) and 2 * samples <= most:
        samples = min(const.GROWTH * samples, most)
    return rounds.solution()


class _Rounds:
    """The averages of one problem, one after another.

    Attributes:
        names: of the sources that are averaged.
        numbers: that one sample has.
        found: the answer of every average that was solved to its end, and
        sizes: how many samples it had.
        certificate: of the last one, on samples that it has not seen; None: an earlier run of the call has judged it.
    """

    def __init__(self, session: Session, route: "Route", interrupt: Interrupt) -> None:
        self.session, self.route, self.interrupt = session, route, interrupt
        self.names = averaged(session.prepared)
        self.numbers = max(numbers_per_sample(session.prepared, name) for name in self.names)
        self.point = session.prepared.whole(session.prepared.x, session.prepared.y)
        self.found: list[Solution] = []
        self.sizes: list[int] = []
        self.certificate: Certificate | None = None

    def solve(self, samples: int, all_starts: bool) -> bool:
        """One round; whether it is the last."""
        name, session = f"{samples} samples", self.session
        starts = session.auto.starts or const.STARTS if not self.found else 1
        side_by_side = samples * self.numbers <= SIDE_BY_SIDE_NUMBERS
        route = self.route if side_by_side or self.route != "small" else "penalty"
        auto = dataclasses.replace(session.auto, route=route, samples=None, starts=starts)
        average = self._average(samples)
        part = Session(average, auto, session.seed, session.call.under(name), self.interrupt)
        last = session.piece(
            name,
            functools.partial(run_deterministic, part, all_starts and not self.found),
            TYPES_OF_ANSWER,
            record_of_answer,
            functools.partial(answer_of_record, prepared=average, auto=auto),
        )
        session.compiles(average.bound)
        session.work.evaluations += last.counts.evaluations or 0
        ended = last.status.kind if last.status.kind in ENDED else None
        session.ended = ended or session.ended
        if ended is not None and self.found:  # the answer of the last average, which was judged, stays
            return True
        self.found.append(last)
        self.sizes.append(samples)
        if last.status.failed:
            return True
        self.point, self.certificate = (last.x, last.y), None
        enough = session.piece(f"{name} judged", functools.partial(self._is_enough, samples))
        return enough or ended is not None

    def _is_enough(self, samples: int) -> bool:
        self.certificate = self._judged(samples)
        return self.certificate.verdict(self.session.auto.tol) == "yes"

    def _average(self, samples: int) -> Prepared:
        """The problem with this number of samples in the place of expectations."""
        prepared, names = self.session.prepared, self.names
        problem = prepared.problem

        def keys(_: Problem, seed: Int[Array, ""], samples: Int[Array, ""]) -> list[PRNGKeyArray]:
            key = jax.random.fold_in(jax.random.key(seed), samples)
            return [jax.random.fold_in(key, i) for i in range(len(names))]

        made = prepared.bound.run("keys of averages", keys, self.session.seed, samples, static=len(names), quick=True)
        drawn: dict[str, Any] = {
            name: Finite(getattr(problem, name).draw(key, samples)) for name, key in zip(names, made, strict=True)
        }
        return prepare(dataclasses.replace(problem, **drawn), *self.point)

    def _judged(self, samples: int) -> Certificate:
        """The certificate of the last answer on samples that it has not seen."""
        fresh, seed, work = max(samples, FRESH_SAMPLES), self.session.seed, self.session.work
        problem = Float64Problem.of(self.session.prepared.problem, *self.point, fresh, seed + const.MOST_SAMPLES)
        self.session.compiles(problem.bound)
        found = certificate_in(problem, seed=seed, stop=lambda: work.over)
        # The answer carries the noise of the samples that it was computed from, as well as those that judge it.
        more = (1 + fresh / samples) ** 0.5
        errors: dict[str, Any] = {name: getattr(found, name) for name in OF_THE_ANSWER}
        known = {name: more * error for name, error in errors.items() if error is not None}
        return dataclasses.replace(found, **known)

    def solution(self) -> Solution:
        """The last answer with its certificate, and what the rounds said."""
        session, last, first = self.session, self.found[-1], self.found[0]
        lines = [
            f"{samples} samples: F = {one.value:.6g}, {one.status.name}."
            for samples, one in zip(self.sizes, self.found, strict=True)
        ]
        status = last.status
        if not last.status.failed:
            self.certificate = self.certificate or self._judged(self.sizes[-1])
            lines.append(self._trust(self.certificate))
            status = status_of(self.certificate, session.auto.tol, len(last.history), session.ended)
        total, compiling = 2 * sum(self.sizes), session.compile_seconds
        drawn = {name: total * (name in self.names) for name in ("zeta", "xi")}
        counts = Counts.of_search(session.work.elapsed - compiling, compiling, **drawn)
        whole = dataclasses.replace(
            last,
            status=status,
            counts=dataclasses.replace(counts, evaluations=session.work.evaluations),
            method=dataclasses.replace(session.auto, starts=getattr(first.method, "starts", None)),
            problem=session.prepared.problem,
            log=(*session.log, *lines, *first.log[:-1], status.message),
            starts=first.starts.after(f"On the first average, of {self.sizes[0]} samples."),
        )
        return session.certified(whole, self.certificate)

    def _trust(self, certificate: Certificate) -> str:
        """Standard errors of F and of x."""
        error = certificate.upper_se
        text = "F is known exactly" if error is None else f"F has a standard error of {error:.2g} on fresh samples"
        if "zeta" in certificate.unvarying:
            text = "F was the same on all fresh samples, which tells no standard error"
        if len(self.found) < 2:
            return f"{text}; one average alone does not tell that of x."
        before, after = (numbers_of(one.x) for one in self.found[-2:])
        share = (1 + self.sizes[-1] / self.sizes[-2]) ** 0.5
        return f"{text}, x one of about {np.sqrt(np.mean((after - before) ** 2)) / share:.2g} per entry."
