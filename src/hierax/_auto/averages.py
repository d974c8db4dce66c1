r"""The average route: expectations that can only be sampled become averages of N common samples, for growing N.

With the samples fixed the problem is deterministic and is solved as one (`deterministic.py`), the first N from all
starts, every further one from the last answer. The answer is judged on samples that it has not seen: where their
certificate says yes, or has no time left to say more, the route ends; where noise leaves it open, N grows. Samples of
different N are independent, so that two answers in a row tell how far x can be trusted.
"""

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from hierax._auto.constants import AVERAGE_GROWTH, AVERAGE_SECONDS, FIRST_AVERAGE, MOST_AVERAGED, WHOLE_DATA
from hierax._auto.deterministic import run_deterministic
from hierax._auto.kept_answer import TYPES, answer_of, kept_answer
from hierax._auto.verdict import ENDED, status_of
from hierax._base.constants import FRESH_SAMPLES
from hierax._base.interrupt import Interrupt, interruptible
from hierax._base.text import numbers_of
from hierax._base.trees import size
from hierax._engine.float64_problem import Float64Problem
from hierax._judge.certificate import Certificate
from hierax._judge.certifying import certificate_in
from hierax._problem.problem import Problem
from hierax._problem.samples import Finite, Sampler
from hierax._run.call import Call
from hierax._run.prepare import Prepared, prepare
from hierax._run.solution import Counts, Solution, with_certificate

if TYPE_CHECKING:
    from hierax._auto.auto import Auto, Route

FRESH = 1_000_003  # what is added to the seed of samples that judge


def averaged(prepared: Prepared) -> list[str]:
    """The sources that can be sampled and are not known: their expectations become averages."""
    sources = {name: getattr(prepared.problem, name) for name in ("zeta", "xi")}
    return [name for name, source in sources.items() if isinstance(source, Sampler) and source.exact is None]


def numbers_per_sample(prepared: Prepared, name: str) -> int:
    """How many numbers one sample has."""
    draw = getattr(prepared.problem, name).draw
    return size(jax.eval_shape(lambda: draw(jax.random.key(0), 1)))


def run_averages(prepared: Prepared, auto: "Auto", route: "Route", seed: int, first_line: str, call: Call) -> Solution:
    """The answer of the largest average that was needed; `route` solves each."""
    auto = dataclasses.replace(auto, seconds=auto.seconds or AVERAGE_SECONDS)
    names = averaged(prepared)
    most = min(MOST_AVERAGED, WHOLE_DATA // max(numbers_per_sample(prepared, name) for name in names))
    if auto.samples is not None:
        most = max(1, min(most, auto.samples // (2 * len(names))))
    samples = min(FIRST_AVERAGE, most)
    with interruptible() as interrupt:
        rounds = _Rounds(prepared, auto, route, seed, call, interrupt)
        while not rounds.solve(samples, first_line) and 2 * samples <= most:
            samples = min(AVERAGE_GROWTH * samples, most)
    return rounds.solution()


class _Rounds:
    """The averages of one problem, one after another."""

    def __init__(
        self, prepared: Prepared, auto: "Auto", route: "Route", seed: int, call: Call, interrupt: Interrupt
    ) -> None:
        self.prepared, self.auto, self.route, self.seed = prepared, auto, route, seed
        self.call, self.interrupt = call, interrupt
        self.point = prepared.whole(prepared.x, prepared.y)
        self.found: list[Solution] = []
        self.sizes: list[int] = []
        self.certificate: Certificate | None = None
        self._compiling = 0.0  # seconds
        self._unjudged = 0  # samples of the latest round, where an earlier run of the call has judged it

    @property
    def left(self) -> float:
        """Seconds that are left."""
        assert self.auto.seconds is not None
        return self.auto.seconds - self.call.clock.elapsed

    def solve(self, samples: int, first_line: str) -> bool:
        """One round; whether it is the last."""
        begin, name = time.perf_counter(), f"{samples} samples"
        auto = dataclasses.replace(self.auto, route=self.route, samples=None)
        if self.found:
            auto = dataclasses.replace(auto, starts=1)
        average, notes = self._average(samples), self.call.notes
        kept = notes.take(name, TYPES)
        if kept is None:
            last = run_deterministic(average, auto, self.seed, first_line, self.call.under(name))
            self._compiling += last.counts.compile_seconds
        else:
            last = answer_of(kept, auto, average)
        self.found.append(last)
        self.sizes.append(samples)
        if last.status.kind in ENDED or last.status.failed:
            return True
        self.point = last.x, last.y
        if kept is None and notes.kept:
            notes.under(name).drop()  # its pieces
            notes.put(name, kept_answer(last))
        goes_on = f"{name} are not enough"
        if notes.take(goes_on):
            self._unjudged = samples
            return False
        self.certificate, self._unjudged = self._judged(samples), 0
        took = time.perf_counter() - begin
        done = self.certificate.verdict(self.auto.tol) == "yes" or self.left < AVERAGE_GROWTH * took
        if not done:
            notes.put(goes_on, True)
        return done

    def _average(self, samples: int) -> Prepared:
        """The problem with so many samples in the place of expectations."""
        problem, names = self.prepared.problem, averaged(self.prepared)

        def keys(_: Problem, seed: Int[Array, ""], samples: Int[Array, ""]) -> list[PRNGKeyArray]:
            key = jax.random.fold_in(jax.random.key(seed), samples)
            return [jax.random.fold_in(key, i) for i in range(len(names))]

        made = self.prepared.bound.run("keys of averages", keys, self.seed, samples, static=len(names), quick=True)
        drawn: dict[str, Any] = {
            name: Finite(getattr(problem, name).draw(key, samples)) for name, key in zip(names, made, strict=True)
        }
        return prepare(dataclasses.replace(problem, **drawn), *self.point)

    def _judged(self, samples: int) -> Certificate:
        """The certificate of the last answer on samples that it has not seen."""
        fresh = max(samples, FRESH_SAMPLES)
        setting = Float64Problem.of(self.prepared.problem, *self.point, fresh, self.seed + FRESH)
        judged = certificate_in(setting, seed=self.seed, stop=lambda: self.interrupt.asked or self.left <= 0)
        self._compiling += setting.compile_seconds
        return judged

    def solution(self) -> Solution:
        """The last answer with its certificate, and what the rounds said."""
        if self._unjudged:
            self.certificate = self._judged(self._unjudged)
        last, lines = self.found[-1], [self.found[0].log[0]]
        for samples, one in zip(self.sizes, self.found, strict=True):
            lines.append(f"{samples} samples: F = {one.value:.6g}, {one.status.name}.")
        names = averaged(self.prepared)
        total = 2 * sum(self.sizes)
        counts = Counts.of_search(
            self.call.clock.elapsed - self._compiling,
            self._compiling,
            zeta=total * ("zeta" in names),
            xi=total * ("xi" in names),
        )
        status = last.status
        if self.certificate is not None:
            lines.append(self._trust())
            ended = last.status.kind if last.status.kind in ENDED else None
            status = status_of(self.certificate, self.auto.tol, len(last.history), ended)
        whole = dataclasses.replace(
            last,
            status=status,
            counts=counts,
            method=dataclasses.replace(self.auto, starts=getattr(self.found[0].method, "starts", None)),
            problem=self.prepared.problem,
            log=(*lines, *self.found[0].log[1:-1], status.message),
            starts=self.found[0].starts.after(f"On the first average, of {self.sizes[0]} samples."),
        )
        return with_certificate(whole, self.certificate)

    def _trust(self) -> str:
        """Standard errors of F and of x."""
        assert self.certificate is not None
        error = self.certificate.upper_se
        text = "F is known exactly" if error is None else f"F has a standard error of {error:.2g} on fresh samples"
        if "zeta" in self.certificate.unvarying:
            text = "F was the same on all fresh samples, which tells no standard error"
        if len(self.found) < 2:
            return f"{text}; one average alone does not tell that of x."
        first, second = (numbers_of(one.x) for one in self.found[-2:])
        share = (1 + self.sizes[-1] / self.sizes[-2]) ** 0.5
        return f"{text}, x one of about {np.sqrt(np.mean((second - first) ** 2)) / share:.2g} per entry."
