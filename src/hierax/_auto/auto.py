"""`Auto`: the solver without settings, and how a call finds its route."""

import dataclasses
import time
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from threadpoolctl import threadpool_limits

from hierax._auto.kkt_route import SmallSearch
from hierax._auto.multipliers import upper_multipliers
from hierax._auto.penalty_route import PenaltySearch
from hierax._auto.stages import run_large
from hierax._auto.vectors import Flat, unraveled
from hierax._auto.verdict import verdict
from hierax._base.constants import FRESH_SAMPLES
from hierax._base.errors import InputError
from hierax._base.trees import size
from hierax._judge.setting import Setting
from hierax._math.lower_level import level_at
from hierax._methods.salvf import SALVF
from hierax._problem.problem import Multipliers, Problem
from hierax._run.method import AbstractSolver
from hierax._run.prepare import Prepared, prepare
from hierax._run.progress import Show, progress_bar
from hierax._run.records import History
from hierax._run.solution import Counts, Solution
from hierax._run.status import Status

Route = Literal["small", "penalty", "large"]

SMALL = 100  # variables and rows of the lower level together, up to which the KKT system goes to SQP
PENALTY = 1000  # variables up to which matrices are formed at all
STARTS = {"small": 16, "penalty": 16}
SECONDS = {"small": 30.0, "penalty": 60.0}


class Auto(AbstractSolver):
    """The solver without settings: picks a route, validates what it finds, says what it did (`sol.log`).

    Args:
        route: "small": multi-start SQP with validation, for deterministic problems of up to about a hundred variables
            and constraints; "penalty": the value function as a penalty, for larger deterministic ones; "large": SALVF
            in stages, for sampled problems and large ones. None: by form and size of the problem.
        seconds: time limit, compilation apart; None: 30, 60 or 120 by route.
        starts: how many, the given one first; None: 16, on the large route 8 for small problems and 1 for others.
        samples: bound on the samples of the large route; None: no bound but the time.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (x - 5.0) ** 2 + (2.0 * y + 1.0) ** 2,
        ...     lower=lambda x, y, xi: (y - 1.0) ** 2 - 1.5 * x * y,
        ...     constraints=lambda x, y: [3.0 - 3.0 * x + y, x - 0.5 * y - 4.0, x + y - 7.0],
        ...     x_set=hx.NonNegative(),
        ...     y_set=hx.NonNegative(),
        ... )
        >>> sol = hx.solve(problem, 4.0, 0.0, hx.Auto(starts=8))
        >>> round(float(sol.x), 3), round(float(sol.y), 3), sol.status.name
        (1.0, 0.0, 'converged')
    """

    route: Route | None = eqx.field(static=True, default=None)
    seconds: float | None = eqx.field(static=True, default=None)
    starts: int | None = eqx.field(static=True, default=None)
    samples: int | None = eqx.field(static=True, default=None)

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        if self.route not in (None, "small", "penalty", "large"):
            raise InputError(f"Auto(route={self.route!r}): choose 'small', 'penalty', 'large' or None.")
        if self.seconds is not None and not (isinstance(self.seconds, int | float) and self.seconds > 0):
            raise InputError(f"Auto(seconds={self.seconds!r}): needs a positive number or None.")
        for name in ("starts", "samples"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InputError(f"Auto({name}={value!r}): needs a whole number >= 1 or None.")

    def run(self, prepared, call):
        raise NotImplementedError


def choose_route(problem: Problem, ready: Prepared) -> tuple[Route, str]:
    """The route and the reason, in words."""
    sampled = [name for name in ("zeta", "xi") if getattr(problem, name) is not None]
    if sampled:
        return "large", f"{' and '.join(sampled)} {'is' if len(sampled) == 1 else 'are'} sampled"
    level = level_at(ready.bound.problem, ready.x, ready.y, None)
    variables, rows = size((ready.x, ready.y)), int(level.equal.size)
    text = f"deterministic, {variables} variables, {rows} rows in the lower level"
    if variables + rows <= SMALL:
        return "small", text
    return ("penalty", text) if variables <= PENALTY else ("large", text)


def solve_auto(
    problem: Problem, x0: PyTree, y0: PyTree, auto: Auto, seed: int, progress: bool | None = None
) -> Solution:
    """Solve a problem by the route that fits it."""
    begin = time.perf_counter()
    ready = prepare(problem, x0, y0, SALVF(), SALVF(), many=False)
    route, reason = choose_route(problem, ready)
    if auto.route is not None and auto.route != route:
        route, reason = auto.route, f"asked for; by itself it would be {route}: {reason}"
    first = f"Route {route}: {reason}."
    if route == "large":
        return run_large(problem, x0, y0, auto, seed, first, progress)
    with progress_bar(progress, auto.starts or STARTS[route]) as show:
        return _deterministic(problem, ready, auto, route, seed, first, begin, show)


def _deterministic(
    problem: Problem, ready: Prepared, auto: Auto, route: Route, seed: int, first: str, begin: float, show: Show
) -> Solution:
    starts, seconds = auto.starts or STARTS[route], auto.seconds or SECONDS[route]
    x0, y0 = _whole(ready.x, ready.x_rest), _whole(ready.y, ready.y_rest)
    setting = Setting.of(problem, x0, y0, FRESH_SAMPLES, seed)
    with threadpool_limits(1, user_api="blas"):  # matrices of a handful of rows: threads would only wait for each other
        flat = Flat(setting, starts, seed)
        _refuse_nonfinite(flat)
        search = SmallSearch(flat, seconds) if route == "small" else PenaltySearch(flat, seconds)
        found = search.run(show)
        end = verdict(flat, search, found, [first, f"{starts} starts, the given one first."])
        own, _ = setting.layout().split(end.point.mu)
        x, y = unraveled(setting.x, end.point.x), unraveled(setting.y, end.point.y)
        upper = unraveled(setting.shapes("upper_constraints"), upper_multipliers(flat, search.scales, end.point))
        compiling = setting.compile_seconds
    counts = Counts(seconds=time.perf_counter() - begin - compiling, compile_seconds=compiling)
    multipliers = Multipliers(own.inequalities, own.equalities, upper)
    return Solution(
        x=_whole(_like(x, ready.x), ready.x_rest),
        y=_whole(_like(y, ready.y), ready.y_rest),
        multipliers=multipliers,
        status=Status(end.name, end.message, len(found.points)),
        history=_history(found.points),
        counts=counts,
        state=None,
        method=dataclasses.replace(auto, route=route, starts=starts, seconds=seconds),
        problem=problem,
        log=tuple(end.log),
    )


def _refuse_nonfinite(flat: Flat) -> None:
    values, slopes = flat.at(flat.x0, flat.y0, np.zeros(flat.equal.size))
    names = {"upper": "upper", "lower": "lower", "above": "upper_constraints", "rows": "constraints"}
    for field, name in names.items():
        for part, what in ((getattr(values, field), name), (getattr(slopes, field), f"the gradient of {name}")):
            if not np.isfinite(part).all():
                raise InputError(
                    f"{what} is not finite at (x0, y0); start from a point where every function is finite."
                )


def _history(points: list[Any]) -> History:
    names = ("start", "upper", "violation", "gap")
    columns = {name: np.array([getattr(point, name) for point in points]) for name in names}
    return History({"step": np.arange(1, len(points) + 1), **columns})


def _like(tree: PyTree, like: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf, given: jnp.asarray(leaf, given.dtype), tree, like)


def _whole(tree: PyTree, rest: PyTree) -> PyTree:
    return eqx.combine(tree, rest)
