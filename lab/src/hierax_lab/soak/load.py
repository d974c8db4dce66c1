"""Twelve calls of Auto, alone and beside two busy processes: equal answers, or the status says that the clock decided.

Problems of three routes: random ones, those of the lab's model file (several minima below, averages of samples), and
larger ones whose lower level is a quadratic program.
"""

import argparse
import functools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

import hierax as hx
from hierax_lab.bench.fuzz_case import as_problem, to_user
from hierax_lab.bench.fuzz_draw import draw
from hierax_lab.bench.medium_problems import build
from hierax_lab.problems import random_qp
from hierax_lab.soak.models import averaged, several_minima

RANDOM_PROBLEMS = (0, 3, 5, 7, 12, 19)  # of the calling seed; most have less than ten variables
PLANTED = ((3, 20), (10, 60))  # entries of x and of y
MEDIUM = ("portfolio-60", "ridge")
BUSY_PROCESSES = 2


class Answer(NamedTuple):
    """What is compared, and whether the status says that the clock decided."""

    status: str
    point: list[np.ndarray]
    by_the_clock: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    """This part has none of its own."""


def run(options: argparse.Namespace) -> bool:
    """Whether every call answers the same beside busy processes, or says that the clock decided."""
    calls = _calls(options.seed)
    alone = {name: _answer(call) for name, call in calls.items()}
    with _busy(BUSY_PROCESSES):
        loaded = {name: _answer(call) for name, call in calls.items()}
    wrong = [name for name in calls if not _agree(alone[name], loaded[name])]
    for name in wrong:
        print(f"load: {name}: alone {alone[name]}, under load {loaded[name]}", flush=True)
    same = sum(_equal(alone[name], loaded[name]) for name in calls)
    said = len(calls) - same - len(wrong)
    print(
        f"load: {len(calls)} calls, {same} equal in every bit, {said} say that the clock decided, {len(wrong)} differ",
        flush=True,
    )
    return not wrong


def _agree(one: Answer, other: Answer) -> bool:
    return one.by_the_clock or other.by_the_clock or _equal(one, other)


def _equal(one: Answer, other: Answer) -> bool:
    points = zip(one.point, other.point, strict=True)
    return one.status == other.status and all(np.array_equal(a, b) for a, b in points)


def _answer(call: Callable[[], hx.Solution]) -> Answer:
    began = time.perf_counter()
    found = call()
    print(f"load: {found.status.name}, F = {found.value:.8g}, {time.perf_counter() - began:.1f} s", flush=True)
    by_the_clock = found.status.name == "seconds" or "time limit" in found.status.message
    return Answer(found.status.name, [np.asarray(leaf) for leaf in jax.tree.leaves((found.x, found.y))], by_the_clock)


def _calls(seed: int) -> dict[str, Callable[[], hx.Solution]]:
    """The calls by name, with nothing set."""
    stated: dict[str, tuple[hx.Problem, PyTree, PyTree]] = {"several minima": several_minima(), "averages": averaged()}
    for nx, ny in PLANTED:
        example = random_qp(seed, nx, ny)
        stated[f"planted {nx}+{ny}"] = (example.problem, example.x0, example.y0)
    for name in MEDIUM:
        medium = build(name, None)
        stated[name] = (medium.problem, medium.x0, medium.y0)
    for number in RANDOM_PROBLEMS:
        case = draw(seed, number)
        stated[f"random {number}"] = (as_problem(case), *to_user(case, *case.start))
    return {name: functools.partial(hx.solve, *what, throw=False) for name, what in stated.items()}


def _spin() -> None:
    while True:
        pass


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Processes beside this one that use all the time they get."""
    started = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(count)]
    for one in started:
        one.start()
    try:
        yield
    finally:
        for one in started:
            one.terminate()
            one.join()
