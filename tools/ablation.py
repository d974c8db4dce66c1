"""What the searches of `hx.Auto` and its numbers are worth: each switched off or changed, one at a time.

    python tools/ablation.py searches [--problems WORD ...]     switch off each search
    python tools/ablation.py constants [--problems WORD ...]    multiply and divide each number by three
    python tools/ablation.py --table [searches | constants]     the table of what is there

Every run adds a line to the file of results (`--file`), and what is there is not run again. All variants of a problem
run in one process, so that they share compiled programs; where a run has compiled anything it is made again, and the
second counts. The clock is that of the process (CPU seconds), so that other work on the machine changes no answer. A
variant is not run on a problem where none of the functions that it changes was called: it cannot differ there.

A run is solved where its point is feasible, optimal below and its F within 1e-3 (1 + |F_best|) of the best that is
known or that any variant has found; of a problem without a solution, where the status says so. A claim is a status that
is `ok`, and false where the judge of the benchmark that the problem comes from (no part of hierax) objects.
`HIERAX_DATA` names the folder of data sets, for qpec.
"""

import argparse
import ast
import contextlib
import dataclasses
import functools
import importlib
import inspect
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import hierax as hx
from hierax.problems.toy import local_minimisers, toy
from hierax_lab.bench import fuzz_judge, medium_judge, outside_judge
from hierax_lab.bench.fuzz_case import as_problem, to_core, to_user
from hierax_lab.bench.fuzz_claims import FAILED
from hierax_lab.bench.fuzz_draw import draw, draw_case
from hierax_lab.bench.fuzz_families import draw_family
from hierax_lab.bench.fuzz_forms import Form
from hierax_lab.bench.fuzz_truth import OneX
from hierax_lab.bench.medium_case import Bounds, Functions, MediumCase
from hierax_lab.bench.medium_data import ridge
from hierax_lab.bench.medium_problems import build
from hierax_lab.bench.solvers import clear_programs
from hierax_lab.problems import bolib, synthetic

SECONDS = 20.0  # limit of a run, in CPU seconds
CLOSE = 1e-3  # of F - F_best, relative to 1 + |F_best|
SAME_POINT = 1e-7  # points that are judged once, relative to 1 + their entries
COMPILED = 0.2  # seconds of compilation after which a run is made again
FACTOR = 3

# -- what is changed; names are dotted, below hierax ------------------------------------------------------------------


def nothing(*_: Any, **__: Any) -> None:
    """What a search becomes that is no entry of a route."""


OTHER_SEARCHES: dict[str, dict[str, Any]] = {
    "descent on pieces": {"_auto.descents.along_kinks": lambda space, work, start: start},
    "polishes that share ends": {"_auto.descents._end_after": nothing},
    "downhill after the certificate": {"_auto.deterministic.go_down_from": nothing},
    "search by training": {"_auto.large_route.search_by_training": nothing},
}
REACHED = {"downhill after the certificate": "_auto.deterministic._downhill"}
LEAST = {"GROWTH": 2, "STEPS_GROWTH": 1.1}  # with less, no end
CONSTANTS, READERS = "hierax._auto.constants", "hierax._auto"

# -- the problems -----------------------------------------------------------------------------------------------------

BOLIB = (
    *("AiyoshiShimizu1984Ex2", "CalamaiVicente1994c", "Dempe1992b", "DempeDutta2012Ex24", "DempeFranke2011Ex41"),
    *("HatzEtal2013", "Mirrlees1999", "MitsosBarton2006Ex311", "MitsosBarton2006Ex316", "MitsosBarton2006Ex321"),
    *("MitsosBarton2006Ex325", "MorganPatrone2006b", "NieWangYe2017Ex57", "Outrata1990Ex2a", "Outrata1994Ex31"),
    *("ShimizuAiyoshi1981Ex1", "SinhaMaloDeb2014TP3", "SinhaMaloDeb2014TP10", "Vogel2012", "Yezza1996Ex41"),
)
FUZZ = (0, 28, 2, 57, 113, 3, 60, 5, 6, 7, 8, 9, 67, 12, 13, 14, 15, 17, 19, 20, 22, 23, 24, 25)  # of seed 0
CLAIMS = {  # numbers of every family, of seed 0; kinks 1, 4 and 7 only end with the clock
    "hidden-wells": (0, 3, 5),
    "many-minima": (4, 8),
    "parallel-costs": (2, 4, 5),
    "kinks": (0, 2, 3),
    "shifted-units": (0, 1, 2),
    "flat-infinity": (1,),
    "rare-events": (1,),
}
MEDIUM = ("ridge", "portfolio-60", "group-logistic", "planted-20+200", "qpec-100-1")
LARGER = {  # forms of the random problems in a size that takes the penalty route
    "wells": Form("larger wells", 10, 40, "wells", planted="wells"),
    "LP": Form("larger LP", 8, 40, "linear", rows=30, planted="lp"),
}
SCREEN = (  # those of the small problems that constants are tried on
    *(f"bolib {name}" for name in BOLIB[1:7]),
    *("bolib MitsosBarton2006Ex316", "bolib Outrata1990Ex2a", "bolib ShimizuAiyoshi1981Ex1"),
    *("bolib SinhaMaloDeb2014TP10", "bolib Vogel2012"),
    *(f"fuzz {number}" for number in (57, 60, 5, 7, 67, 13, 15, 19, 22, 23, 24, 25)),
    *("claims hidden-wells 0", "claims hidden-wells 5", "claims many-minima 8", "claims parallel-costs 2"),
    *("claims parallel-costs 4", "claims kinks 2", "claims kinks 3", "claims shifted-units 1"),
    *("claims shifted-units 2", "claims rare-events 1"),
)
MANY_ROWS = 600  # times that the rows of the ridge regression are given: more than fit at once


class Judged(NamedTuple):
    """What a judge outside hierax says of a point.

    Attributes:
        value: F.
        feasible: whether it is feasible and optimal below.
        best: the lowest F that is known.
        faulty: whether it would be false to call the point a solution.
        statuses: of a problem without a solution, those that are right.
    """

    value: float
    feasible: bool
    best: float | None
    faulty: bool
    statuses: tuple[str, ...] = ()


class Task(NamedTuple):
    """A call of `hx.solve`, and the judge of its answer."""

    solve: Callable[[], hx.Solution]
    judge: Callable[[hx.Solution], Judged]


def of_bolib(name: str) -> Task:
    """A problem of BOLIB."""
    case = bolib.load(name)
    problem, judge = case.problem(), outside_judge.Judge(case)

    def judged(found: hx.Solution) -> Judged:
        seen, best = judge(np.asarray(found.x), np.asarray(found.y)), case.values[0]
        fine = seen.violation <= outside_judge.VIOLATION and seen.gap <= outside_judge.GAP
        owed = seen.upper < best - CLOSE * (1 + abs(best)) and not seen.better  # F owes this to the tolerances
        return Judged(seen.upper, fine and not owed, best, max(seen.violation, seen.gap) > medium_judge.LIMIT)

    return Task(lambda: hx.solve(problem, *case.x0y0(), **options()), judged)


def of_fuzz(case: Any) -> Task:
    """A random problem."""
    problem, start = as_problem(case), to_user(case, *case.start)

    def judged(found: hx.Solution) -> Judged:
        if case.truth != "solvable":
            return Judged(np.nan, False, None, True, (case.truth,))
        seen = fuzz_judge.judge(case, *to_core(case, found.x, found.y))
        return Judged(seen.upper, seen.possible(), seen.optimum.value, bool(seen.faults()))

    return Task(lambda: hx.solve(problem, *start, **options()), judged)


def of_family(family: str, number: int) -> Task:
    """A problem of a family on which success was claimed wrongly."""
    case = draw_family(0, family, number)
    x0, y0 = (jnp.asarray(part) for part in case.start)

    def judged(found: hx.Solution) -> Judged:
        fault = case.fault(np.asarray(found.x, float), np.asarray(found.y, float))
        value, best = float(found.value), case.best
        if family == "rare-events":  # F is known from samples only: what counts is the point
            value = best = 0.0
        silent = ("unbounded_lower", "not_certified", "unproved", "seconds", "infeasible")
        statuses = silent if family == "flat-infinity" else ()
        return Judged(value, not fault.words, best, bool(fault.words), statuses)

    return Task(lambda: hx.solve(case.problem, x0, y0, **options(seed=case.seed)), judged)


def of_medium(case: MediumCase) -> Task:
    """A problem of `hierax bench medium`."""
    functions = Functions(case)
    judge = medium_judge.Judge(functions)

    def judged(found: hx.Solution) -> Judged:
        x, y = functions.flat(found.x, found.y)
        seen = judge(x, y)
        feasible = seen.violation <= medium_judge.LIMIT and seen.gap <= judge.limit
        return Judged(seen.upper, feasible, case.best, not feasible or judge.false_claim(seen, judge.descent(x)))

    return Task(lambda: hx.solve(case.problem, case.x0, case.y0, **options()), judged)


def much_data() -> MediumCase:
    """The ridge regression with so many rows, a little changed, that they are solved on some of them first."""
    case, rng = ridge(), np.random.default_rng(0)

    def more(source: hx.Finite) -> hx.Finite:
        z, t = (np.repeat(part, MANY_ROWS, axis=0) for part in source.arrays)
        return hx.Finite((z + 0.1 * rng.normal(size=z.shape), t))

    problem = dataclasses.replace(case.problem, zeta=more(case.problem.zeta), xi=more(case.problem.xi))
    zeta, xi = problem.zeta.full(), problem.xi.full()
    exact = dataclasses.replace(
        problem,
        upper=lambda x, y, _: problem.upper(x, y, zeta),
        lower=lambda x, y, _: problem.lower(x, y, xi),
        zeta=None,
        xi=None,
    )
    return dataclasses.replace(case, problem=problem, exact=exact)


def only_sampled(problem: hx.Problem) -> hx.Problem:
    """The same problem without the exact expectations of its samples."""
    return dataclasses.replace(problem, zeta=hx.Sampler(problem.zeta.draw), xi=hx.Sampler(problem.xi.draw))


def of_one_x(problem: hx.Problem, start: tuple[Any, Any], truth: OneX, method: hx.Auto | None = None) -> Task:
    """A sampled problem whose lower solutions are known for every x."""

    def judged(found: hx.Solution) -> Judged:
        x, y = np.reshape(np.asarray(found.x, float), (1,)), np.reshape(np.asarray(found.y, float), (1, -1))
        fault = truth.fault(x, y[0])
        return Judged(float(truth.upper(x, y)[0]), not fault.words, truth.best, bool(fault.words))

    return Task(lambda: hx.solve(problem, *start, method or hx.Auto(), **options()), judged)


def of_toy(sampled: bool) -> Task:
    """The toy: with nothing but samples, or by the large route."""
    example = toy(0.1)

    def upper(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(2 - y[:, 0]) / (2 + np.cos(6 * x)) + 0.5 * np.log((4 * x - 2) ** 2 + 1))

    truth = OneX(upper, lambda x, tie: x[:, None, None], (0.0, 3.0))
    assert abs(truth.point[0][0] - local_minimisers()[1]) < CLOSE
    problem = only_sampled(example.problem) if sampled else example.problem
    return of_one_x(problem, (example.x0, example.y0), truth, None if sampled else hx.Auto(route="large"))


def newsvendor() -> Task:
    """A price above, a stock for uncertain demand below: the stock weighs a shortage nine times as much as a rest."""
    level, width, cost = 0.9, 0.05, 0.3
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()

    def rest(x: Any, y: Any, z: Any, xp: Any) -> Any:  # the stock that is left, its kink rounded
        return width * xp.logaddexp(0.0, (y - (2.0 - x + 0.3 * z)) / width)

    def lower(x: jax.Array, y: jax.Array, z: jax.Array) -> jax.Array:
        left = jnp.mean(rest(x, y, z, jnp))
        return left - level * (y - 2.0 + x - 0.3 * jnp.mean(z))

    problem = hx.Problem(
        upper=lambda x, y, z: cost * y - x * (y - jnp.mean(rest(x, y, z, jnp))),
        lower=lower,
        x_set=hx.Box(0.3, 1.9),
        y_set=hx.Box(0.0, 3.0),
        zeta=hx.Sampler(lambda key, n: jax.random.normal(key, (n,))),
        xi=hx.Sampler(lambda key, n: jax.random.normal(key, (n,))),
    )

    def upper(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray(cost * y[:, 0] - x * (y[:, 0] - rest(x[:, None], y, nodes, np) @ weights))

    def followers(x: np.ndarray, tie: float) -> np.ndarray:
        low, high = np.zeros(len(x)), np.full(len(x), 3.0)
        for _ in range(60):
            y = 0.5 * (low + high)
            slope = 1 / (1 + np.exp(-(y[:, None] - 2.0 + x[:, None] - 0.3 * nodes) / width)) @ weights - level
            low, high = np.where(slope < 0, y, low), np.where(slope < 0, high, y)
        return np.asarray(low)[:, None, None]

    return of_one_x(problem, (1.0, 1.0), OneX(upper, followers, (0.3, 1.9)))


def sampled_synthetic() -> Task:
    """The synthetic problem of the paper's experiments, with nothing but samples."""
    example = synthetic()
    exact = dataclasses.replace(example.problem, zeta=None, xi=None)
    bounds = Bounds.between(-2.0, 2.0, np.size(example.x0)), Bounds.between(-10.0, 10.0, np.size(example.y0))
    known = {"quadratic_rows": True, "best": float(example.solutions[0].upper), "sampled": True}
    return of_medium(MediumCase(only_sampled(example.problem), exact, example.x0, example.y0, *bounds, **known))


def options(seed: int = 0) -> dict[str, Any]:
    """What every call of `hx.solve` is told."""
    return {"seconds": SECONDS, "seed": seed, "throw": False, "progress": False}


def all_problems() -> dict[str, Callable[[], Task]]:
    """The fixed set, by name."""
    found: dict[str, Callable[[], Task]] = {f"bolib {name}": functools.partial(of_bolib, name) for name in BOLIB}
    found |= {f"fuzz {number}": functools.partial(lambda k: of_fuzz(draw(0, k)), number) for number in FUZZ}
    for family, numbers in CLAIMS.items():
        found |= {f"claims {family} {number}": functools.partial(of_family, family, number) for number in numbers}
    for name, form in LARGER.items():
        found[f"larger {name}"] = functools.partial(
            lambda form: of_fuzz(draw_case(form, "plain", np.random.default_rng(0), 0.0)), form
        )
    found |= {f"medium {name}": functools.partial(lambda name: of_medium(build(name, None)), name) for name in MEDIUM}
    found["medium much data"] = lambda: of_medium(much_data())
    found |= {"stochastic toy": lambda: of_toy(True), "stochastic newsvendor": newsvendor}
    return found | {"stochastic synthetic": sampled_synthetic, "stochastic toy, large route": lambda: of_toy(False)}


# -- variants ---------------------------------------------------------------------------------------------------------


class Variant(NamedTuple):
    """A change of the solver: a context in which it holds, and the functions that can notice it."""

    changed: Callable[[], Any]
    codes: frozenset[CodeType]


def resolved(name: str) -> tuple[Any, str]:
    """The module or class that holds a name, and the last part of it."""
    parts = ["hierax", *name.split(".")]
    for end in range(len(parts) - 1, 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            holder = importlib.import_module(".".join(parts[:end]))
            return functools.reduce(getattr, parts[end:-1], holder), parts[-1]
    raise ValueError(f"there is no {name}")


def code_of(name: str) -> list[CodeType]:
    """The code of a function, or of all functions of a class; of a function inside of another one too."""
    try:
        holder, last = resolved(name)
        found = getattr(holder, last)
    except AttributeError:
        outer, _, inner = name.rpartition(".")
        return [code for code in code_of(outer)[0].co_consts if isinstance(code, CodeType) and code.co_name == inner]
    if inspect.isclass(found):
        return [one.__code__ for one in vars(found).values() if inspect.isfunction(one)]
    return [found.__code__] if inspect.isfunction(found) else []


@contextlib.contextmanager
def put(values: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Attributes of objects with other values, for a while."""
    with contextlib.ExitStack() as stack:
        for holder, name, value in values:
            stack.enter_context(mock.patch.object(holder, name, value))
        yield


def searches() -> dict[str, Variant]:
    """Each search switched off."""
    routes, found = importlib.import_module("hierax._auto.searches").ROUTES, {}
    for route, entries in routes.items():
        for entry in entries:
            rest = {route: tuple(other for other in entries if other is not entry)}
            changed = functools.partial(mock.patch.dict, routes, rest)
            found[f"no {entry[1].__name__} ({route})"] = Variant(changed, frozenset([entry[1].__code__]))
    for name, targets in OTHER_SEARCHES.items():
        values = [(*resolved(target), new) for target, new in targets.items()]
        codes = [code for target in [REACHED.get(name, next(iter(targets)))] for code in code_of(target)]
        assert codes, name
        found[f"no {name}"] = Variant(functools.partial(put, values), frozenset(codes))
    return found


def scaled(name: str, value: Any, factor: float) -> Any:
    """A constant times a factor; counts stay whole numbers and at least one."""
    if isinstance(value, tuple):
        return tuple(scaled(name, part, factor) for part in value)
    least = LEAST.get(name, 1 if isinstance(value, int) else -np.inf)
    return max(least, round(value * factor) if isinstance(value, int) else value * factor)


def names_of_constants() -> list[tuple[str, ...]]:
    """The names in Auto's list of numbers, those of one line together; without what is computed from others."""
    file = importlib.import_module(CONSTANTS).__file__
    found = []
    for line in ast.parse(Path(str(file)).read_text()).body:
        if isinstance(line, ast.Assign) and not any(isinstance(part, ast.Name) for part in ast.walk(line.value)):
            found.append(tuple(part.id for part in ast.walk(line.targets[0]) if isinstance(part, ast.Name)))
    return found


def constants() -> dict[str, Variant]:
    """Each number times and by three, those of one line together."""
    every, found = importlib.import_module(CONSTANTS), {}
    modules = [module for name, module in sys.modules.items() if name.startswith(READERS) and name != CONSTANTS]
    for names in names_of_constants():
        codes = frozenset(code for module in modules for code in reading(module, frozenset(names)))
        for factor, sign in ((FACTOR, "x"), (1 / FACTOR, "/")):
            values = []
            for name in names:
                new = scaled(name, getattr(every, name), factor)
                values += [(every, name, new), *with_default(modules, getattr(every, name), new)]
            found[f"{', '.join(names)} {sign}{FACTOR}"] = Variant(functools.partial(put, values), codes)
    return found


def with_default(modules: list[Any], old: Any, new: Any) -> list[tuple[Any, str, Any]]:
    """The functions of the modules that have this very tuple as a default, and their defaults with the new one."""
    if not isinstance(old, tuple):
        return []
    functions = {one for module in modules for one in vars(module).values() if inspect.isfunction(one)}
    found = []
    for one in functions:
        defaults = one.__defaults__ or ()
        if any(part is old for part in defaults):
            found.append((one, "__defaults__", tuple(new if part is old else part for part in defaults)))
    return found


def reading(module: Any, names: frozenset[str]) -> Iterator[CodeType]:
    """The functions of a module that read one of the names."""
    waiting: list[Any] = [one for one in vars(module).values() if getattr(one, "__module__", "") == module.__name__]
    while waiting:
        one = waiting.pop()
        if inspect.isclass(one):
            waiting += list(vars(one).values())
        elif isinstance(one, property):
            waiting.append(one.fget)
        elif isinstance(one, staticmethod | classmethod):
            waiting.append(one.__func__)
        elif inspect.isfunction(one):
            waiting.append(one.__code__)
        elif isinstance(one, CodeType):
            waiting += [part for part in one.co_consts if isinstance(part, CodeType)]
            if names & {*one.co_names}:
                yield one


# -- runs -------------------------------------------------------------------------------------------------------------

Row = dict[str, Any]  # ready for JSON
BASE, AGAIN = "as it is", "as it is, again"


class Runs:
    """The runs on one problem: solved, judged and written, one line each."""

    def __init__(self, problem: str, task: Task, file: Path) -> None:
        self.problem, self.task, self.file = problem, task, file
        self.known: list[tuple[np.ndarray, Judged]] = []

    def run(self, variant: str, keep: bool = True) -> Row:
        """One run, made again where it has compiled something."""
        for _ in range(2):
            begin = time.process_time()
            try:
                found = self.task.solve()
            except Exception as error:
                return self.write({"variant": variant, "status": "crash", "error": f"{type(error).__name__}: {error}"})
            spent = time.process_time() - begin
            if not keep or found.counts.compile_seconds <= COMPILED:
                break
        seen, status = self.judged(found), found.status
        if status.name == "interrupted":
            sys.exit("interrupted")
        row = {
            "variant": variant,
            "cpu": round(spent, 3),
            "status": status.name,
            "claimed": bool(status.ok),
            "value": seen.value,
            "feasible": bool(seen.feasible),
            "best": seen.best,
            "right": status.name in seen.statuses if seen.statuses else None,
            "false": bool((status.ok and seen.faulty) or (not seen.statuses and status.name in FAILED)),
            "route": getattr(found.method, "route", None),
        }
        return self.write(row) if keep else row

    def judged(self, found: hx.Solution) -> Judged:
        """What the judge says, of a new point only."""
        point = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves((found.x, found.y))]).astype(float)
        for there, seen in self.known:
            if np.allclose(point, there, SAME_POINT, SAME_POINT):
                return seen
        self.known.append((point, self.task.judge(found)))
        return self.known[-1][1]

    def write(self, row: Row) -> Row:
        """Add a line to the file."""
        with self.file.open("a") as out:
            out.write(json.dumps({"problem": self.problem, **row}, default=float) + "\n")
        return row

    def visited(self, codes: frozenset[CodeType]) -> set[CodeType]:
        """Which of the functions are called in a run as it is."""
        seen: set[CodeType] = set()

        def profile(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and frame.f_code in codes:
                seen.add(frame.f_code)

        sys.setprofile(profile)
        try:
            self.task.solve()
        finally:
            sys.setprofile(None)
        return seen


def rows_of(file: Path) -> list[Row]:
    """All lines of a file of results."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def run(kind: str, words: list[str], file: Path) -> None:
    """All variants of a kind that are not in the file yet, problem by problem."""
    variants = {"searches": searches, "constants": constants}[kind]()
    done = {(row["problem"], row["variant"]) for row in rows_of(file)}
    file.parent.mkdir(parents=True, exist_ok=True)
    time.perf_counter = time.process_time  # hierax reads no other clock
    jax.config.update("jax_enable_x64", True)
    for problem, make in all_problems().items():
        last = f"{AGAIN} ({kind})"
        if kind == "constants" and problem.startswith(("bolib", "fuzz", "claims")) and problem not in SCREEN:
            continue
        left = {name: one for name, one in variants.items() if (problem, name) not in done}
        if (words and not any(word in problem for word in words)) or not left:
            continue
        clear_programs()
        runs = Runs(problem, make(), file)
        base = runs.run(BASE, keep=False)
        if (problem, BASE) not in done:
            base = runs.run(BASE)
        visited = runs.visited(frozenset().union(*(one.codes for one in left.values())))
        for name, one in left.items():
            if visited.isdisjoint(one.codes):
                runs.write({"variant": name, "reached": False})
                continue
            with one.changed():
                row = runs.run(name)
            shown = {key: row.get(key) for key in ("cpu", "status", "value", "false")}
            print(f"{problem:32s} {name:36s} {shown} (as it is: {base.get('cpu')} {base.get('value')})", flush=True)
        if (problem, last) not in done:
            runs.run(last)


# -- tables -----------------------------------------------------------------------------------------------------------


def tables(rows: list[Row], kind: str) -> list[str]:
    """A line for every variant of a kind: what it changes, on the problems where it can change anything."""
    names = list({"searches": searches, "constants": constants}[kind]())
    by_problem: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_problem.setdefault(row["problem"], {})[row["variant"]] = row
    for found in by_problem.values():
        values = [row["value"] for row in found.values() if row.get("feasible")]
        best = min([*values, *(row["best"] for row in found.values() if row.get("best") is not None)], default=np.nan)
        for row in found.values():
            near = row.get("feasible") and row["value"] <= best + CLOSE * (1 + abs(best))
            row["solved"] = bool(row["right"] if row.get("right") is not None else near)
    bases = {problem: found[BASE] for problem, found in by_problem.items() if BASE in found}
    total = {key: sum(bool(row.get(key)) for row in bases.values()) for key in ("solved", "claimed", "false")}
    seconds = sum(row["cpu"] for row in bases.values())
    lines = [f"as it is: {len(bases)} problems, {total}, {seconds:.1f} CPU s", ""]
    lines.append(f"{'variant':38s} reached  solved  claimed  false   CPU s  as it is  ratio  changed")
    for name in [*names, f"{AGAIN} ({kind})"]:
        reached = {
            p: found[name] for p, found in by_problem.items() if found.get(name, {}).get("reached", name in found)
        }
        reached = {problem: row for problem, row in reached.items() if problem in bases}
        there = [problem for problem in bases if name in by_problem[problem]]
        if not reached:
            lines.append(f"{name:38s} 0 of {len(there)}")
            continue
        change = {
            key: sum(bool(row.get(key)) - bool(bases[problem].get(key)) for problem, row in reached.items())
            for key in total
        }
        spent, before = (sum(row.get("cpu", 0.0) for row in one) for one in (reached.values(), map(bases.get, reached)))
        numbers = f"{change['solved']:+7d} {change['claimed']:+8d} {change['false']:+6d}"
        lines.append(
            f"{name:38s} {len(reached):4d}/{len(there):<3d} {numbers} {spent:7.1f} {before:9.1f} "
            f"{spent / before:6.2f}  {'; '.join(changes(reached, bases))}"
        )
    return lines


def changes(reached: dict[str, Row], bases: dict[str, Row]) -> list[str]:
    """The problems on which a variant is better or worse, in words."""
    words = []
    for problem, row in reached.items():
        base, what = bases[problem], []
        for key, gained, lost in (
            ("solved", "solved", "lost"),
            ("claimed", "claimed", "unclaimed"),
            ("false", "FALSE", "no longer false"),
        ):
            if bool(row.get(key)) != bool(base.get(key)):
                what.append(gained if row.get(key) else lost)
        if not what and row["status"] != base["status"]:
            what.append(f"{base['status']} -> {row['status']}")
        if what:
            words.append(f"{problem}: {', '.join(what)}")
    return words


def main() -> None:
    """Run, or print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", nargs="?", choices=("searches", "constants"), help="what is changed")
    parser.add_argument("--problems", nargs="*", default=[], metavar="WORD", help="only those with one of the words")
    parser.add_argument("--file", type=Path, default=Path("build/ablation.jsonl"), help="the results")
    parser.add_argument("--table", action="store_true", help="print the table; run nothing")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.simplefilter("ignore")
    if asked.table:
        for kind in [asked.kind] if asked.kind else ["searches", "constants"]:
            print(*tables(rows_of(asked.file), kind), "", sep="\n")
    elif asked.kind:
        run(asked.kind, asked.problems, asked.file)
    else:
        parser.error("say what is changed, or --table")


if __name__ == "__main__":
    main()
