"""The samples of averages: drawn, kept from streams, or some rows of data; and the problem with them in their place."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from hierax._auto import constants as const
from hierax._auto.bank import Bank
from hierax._auto.session import Session
from hierax._base.constants import FRESH_SAMPLES
from hierax._base.sample_kinks import has_sample_kinks
from hierax._base.trees import size
from hierax._engine.float64_problem import GROUPS, smooth_in_samples
from hierax._problem.problem import Problem
from hierax._problem.samples import Finite, FiniteFiles, Sampler, Stream
from hierax._run.call import Clock, Patience
from hierax._run.prepare import Prepared, prepare


def averaged(prepared: Prepared) -> list[str]:
    """The sources whose expectations become averages: those known from samples only, too many rows, and kinked ones."""
    found = []
    for name in ("zeta", "xi"):
        source = getattr(prepared.problem, name)
        only_sampled = isinstance(source, Sampler) and source.exact is None
        too_many = has_too_many_rows(source) or _has_many_kinks(prepared, name, source)
        if only_sampled or isinstance(source, Stream | FiniteFiles) or too_many:
            found.append(name)
    return found


def has_too_many_rows(source: object) -> bool:
    """Whether data in memory have more numbers than are used whole without a look at what is done with them."""
    return isinstance(source, Finite) and size(source.arrays) > const.WHOLE_DATA


def _has_many_kinks(prepared: Prepared, name: str, source: object) -> bool:
    """Whether single rows put kinks into the objective, and many of them: solvers of smooth problems do not pass."""
    if not isinstance(source, Finite) or source.size <= FRESH_SAMPLES:
        return False
    few = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[:GROUPS], source.arrays))
    point = prepared.whole(prepared.x, prepared.y)
    return has_sample_kinks({"zeta": prepared.problem.upper, "xi": prepared.problem.lower}[name], *point, few)


def numbers_per_sample(prepared: Prepared, name: str) -> int:
    """How many numbers one sample has."""
    batch = prepared.few(name)
    return size(batch) // len(jax.tree.leaves(batch)[0])


def _first_of(rows: PyTree, key: PRNGKeyArray, count: int) -> PyTree:
    """Rows in the place of samples that a generator would draw."""
    del key
    return jax.tree.map(lambda leaf: leaf[:count], rows)


class Draws:
    """The samples of one call.

    Attributes:
        names: of the sources that are averaged.
        bank: what streams have given.
    """

    def __init__(self, session: Session, few: int) -> None:
        """`few`: samples from which kinks that single samples make are seen."""
        self.prepared, self.seed, self.names = session.prepared, session.seed, averaged(session.prepared)
        clock = Clock(session.work.seconds * session.work.share)
        clock.begin = session.call.clock.begin
        self.bank = Bank(self.prepared.feeders, Patience(clock, session.interrupt))
        point = self.prepared.whole(self.prepared.x, self.prepared.y)
        self._problem, kinked = smooth_in_samples(self.sampled_from(0, few), *point)
        if kinked:
            line = (
                f"Single samples put kinks into {' and '.join(kinked)}, which their expectations do not have: each is"
            )
            session.log.append(f"{line} smoothed over a width that vanishes as N^(-2/5).")

    def drawn(self, samples: int, purpose: int, first: int = 0) -> dict[str, PyTree]:
        """Samples of every source that is averaged; of streams the rows from `first` on.

        Those of another `purpose` are independent.
        """
        names = self.names

        def keys(_: Problem, seed: Int[Array, ""], samples: Int[Array, ""], purpose: int) -> list[PRNGKeyArray]:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), samples), purpose)
            return [jax.random.fold_in(key, i) for i in range(len(names))]

        made = self.prepared.bound.run(
            "keys of averages", keys, self.seed, samples, purpose, static=len(names), quick=True
        )
        drawn = {}
        for name, key in zip(names, made, strict=True):
            source, seed = getattr(self.prepared.problem, name), (self.seed, samples, purpose, name == "xi")
            drawn[name] = (
                source.draw(key, samples) if isinstance(source, Sampler) else self._rows(name, first, samples, seed)
            )
        return drawn

    def _rows(self, name: str, first: int, count: int, seed: tuple[int, ...]) -> PyTree:
        """Rows of a stream from one on, or rows of data by a seed."""
        source = getattr(self.prepared.problem, name)
        if isinstance(source, Stream):
            return self.bank.rows(name, first, first + count)
        if isinstance(source, FiniteFiles):
            return source.some_rows(count, seed)
        numbers = np.random.default_rng(seed).integers(0, source.size, count)
        return jax.tree.map(lambda leaf: leaf[numbers], source.arrays)

    def sampled_from(self, first: int, count: int) -> Problem:
        """The problem with samplers of some rows in the place of streams and of data."""
        problem, samplers = self.prepared.problem, dict[str, Any]()
        for name in self.names:
            if not isinstance(getattr(problem, name), Sampler):
                rows = self._rows(name, first, count, (self.seed, first, count, name == "xi"))
                samplers[name] = Sampler(functools.partial(_first_of, rows))
        return dataclasses.replace(problem, **samplers)

    def average(self, drawn: dict[str, PyTree]) -> Prepared:
        """The problem with samples in the place of expectations."""
        rows: dict[str, Any] = {name: Finite(batch) for name, batch in drawn.items()}
        problem, point = dataclasses.replace(self._problem, **rows), (self.prepared.x, self.prepared.y)
        return prepare(problem, *self.prepared.whole(*point))
