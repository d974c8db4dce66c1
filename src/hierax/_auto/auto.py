"""`Auto`: the solver without settings, and how a call finds its route."""

import dataclasses
from typing import Literal, NamedTuple, get_args

import equinox as eqx

from hierax._auto.averages import averaged, numbers_per_sample, run_averages
from hierax._auto.constants import (
    BENT_ROUTE_VARIABLES,
    FEWER_ROWS_SECONDS,
    FIRST_AVERAGE,
    PENALTY_ROUTE_VARIABLES,
    SMALL_ROUTE_SIZE,
    WHOLE_DATA,
)
from hierax._auto.deterministic import run_deterministic
from hierax._auto.fewer_rows import FewerRows, fewer_rows, run_on_rows
from hierax._auto.kept_answer import GOES_ON, TYPES, add_up, answer_of, kept_answer
from hierax._auto.large_route import run_large
from hierax._auto.penalty_route import NoRoute
from hierax._auto.referee import can_judge, setting_of
from hierax._base.errors import InputError
from hierax._base.interrupt import interruptible
from hierax._base.settings import is_number
from hierax._base.trees import size
from hierax._engine.segments import not_convex
from hierax._judge.inspection import fits
from hierax._judge.retraining import is_trained
from hierax._math.lower_level import layout_of
from hierax._problem.samples import AbstractSource, Finite, Sampler, Stream
from hierax._run.batches import default_batches
from hierax._run.call import Call
from hierax._run.callbacks import Guarded
from hierax._run.method import AbstractSolver
from hierax._run.prepare import Prepared, check_batches_fit
from hierax._run.solution import Solution

ANSWER = "answer"  # the name of what is kept of a search that is done

Route = Literal["small", "penalty", "average", "implicit", "large"]


class Auto(AbstractSolver):
    """The solver without settings: picks a route, validates what it finds, says what it did (`sol.log`).

        descents:   x <- x + t p,   p against the gradient of   phi(x) = F(x, y*(x)),
                    grad phi = grad_x F + (dy*/dx)' grad_y F   from the KKT system of the lower level's active rows

    and, by route, searches for KKT points of the single-level problem and penalties of the gap G - v, v(x) = min G.

    Args:
        route: "small": descents on F(x, y*(x)) and searches for KKT points from several starts, for deterministic
            problems of up to about a hundred variables and constraints; "penalty": descents, and where they lead
            nowhere the value function as a penalty, for larger deterministic ones; "average": averages of samples,
            solved by these two; "implicit": descents without matrices, for convex lower levels that are too large for
            them; "large": SALVF in stages, for streams, networks, and where nothing else is possible. None: by form and
            size of the problem.
        seconds: time limit, compilation included; None: 30, 60, 60, 120 or 120 by route, and 120 for much data.
        tol: relative tolerance of the certificate: `converged` is said where it says yes at this one.
        starts: how many, the given one first; None: 16, on the implicit route 1, on the large route 8 for small
            problems and 1 for others.
        samples: bound on the samples that the routes "average" and "large" draw; None: no bound but the time.

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

    References:
        docs/methods/auto.md
    """

    route: Route | None = eqx.field(static=True, default=None)
    seconds: float | None = eqx.field(static=True, default=None)
    tol: float = eqx.field(static=True, default=1e-4)
    starts: int | None = eqx.field(static=True, default=None)
    samples: int | None = eqx.field(static=True, default=None)

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        if self.route not in (None, *get_args(Route)):
            raise InputError(
                f"Auto(route={self.route!r}): choose 'small', 'penalty', 'average', 'implicit', 'large' or None."
            )
        if self.seconds is not None and not (isinstance(self.seconds, int | float) and self.seconds > 0):
            raise InputError(f"Auto(seconds={self.seconds!r}): needs a positive number or None.")
        if not (is_number(self.tol) and self.tol > 0):
            raise InputError(f"Auto(tol={self.tol!r}): needs a positive number.")
        for name in ("starts", "samples"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InputError(f"Auto({name}={value!r}): needs a whole number >= 1 or None.")

    def run(self, prepared: Prepared, call: Call) -> Solution:
        """Solve the prepared problem by the route that fits it, or return what an earlier run of the call has found."""
        seed = _checked_seed(prepared, call)
        kept = call.notes.take(ANSWER, TYPES)
        if kept is not None:
            return answer_of(kept, self, prepared)
        with interruptible() as interrupt:
            solution = add_up(call.notes, self._solved(prepared, seed, call))
        cut_short = interrupt.asked or (isinstance(call.callback, Guarded) and call.callback.stopped)
        if call.notes.kept and not cut_short and solution.status.kind not in GOES_ON:
            call.notes.drop()  # the pieces of the search: what came of them is the answer
            call.notes.put(ANSWER, kept_answer(solution), f"done: {solution.status.name}")
        return solution

    def _solved(self, prepared: Prepared, seed: int, call: Call) -> Solution:
        check_batches_fit(prepared, default_batches(prepared.bound.problem))
        seconds = call.seconds or self.seconds or FEWER_ROWS_SECONDS
        by_rows = self.route is None and self.samples is None and call.max_steps is None
        route, reason, few = choose_route(prepared, seed, by_rows and seconds >= FEWER_ROWS_SECONDS)
        if self.route is not None and self.route != route:
            route, reason = self.route, f"asked for; by itself it would be {route}: {reason}"
        filled = dataclasses.replace(self, route=route, seconds=call.seconds or self.seconds, tol=call.tol or self.tol)
        first_line = f"Route {route}: {reason}."
        if route == "large":
            return run_large(prepared, filled, seed, first_line, call)
        if route == "average":
            if not averaged(prepared):
                raise InputError("Auto(route='average'): needs a hx.Sampler without `exact` as zeta or xi.")
            return run_averages(prepared, filled, _by_size(prepared, seed)[0], seed, first_line, call)
        if self.samples is not None:
            raise InputError(f"Auto(samples={self.samples}): nothing is sampled on the route {route!r}; leave it out.")
        if route == "implicit":
            return self._implicit(prepared, filled, seed, first_line, call)
        if few is not None:
            return run_on_rows(prepared, few, filled, seed, first_line, call)
        return run_deterministic(prepared, filled, seed, first_line, call)

    def _implicit(self, prepared: Prepared, filled: "Auto", seed: int, first_line: str, call: Call) -> Solution:
        """The implicit route; where it has no answer, another one in the time that is left."""
        if not can_judge(prepared.problem) or averaged(prepared):
            raise InputError(
                "Auto(route='implicit'): needs expectations that are known, no Stream and no bare Sampler."
            )
        try:
            return run_deterministic(prepared, filled, seed, first_line, call)
        except NoRoute as why:
            fitting = size((prepared.x, prepared.y)) <= PENALTY_ROUTE_VARIABLES
            other: Route = "penalty" if fitting else "large"
            filled = dataclasses.replace(filled, route=other)
            line = f"{first_line} It has no answer ({why}): on by the route {other}."
            return (run_deterministic if fitting else run_large)(prepared, filled, seed, line, call)


class Choice(NamedTuple):
    """A route, the reason in words, and a problem with fewer rows to solve first, where there is one."""

    route: Route
    reason: str
    few: FewerRows | None = None


def choose_route(prepared: Prepared, seed: int, by_rows: bool) -> Choice:
    """The route that fits a problem; `by_rows`: whether much data may be solved on some rows first."""
    sampled = [name for name in ("zeta", "xi") if getattr(prepared.problem, name) is not None]
    by_average = averaged(prepared)
    known = [_known_numbers(getattr(prepared.problem, name)) for name in sampled if name not in by_average]
    known += [FIRST_AVERAGE * numbers_per_sample(prepared, name) for name in by_average]
    route, text = _by_size(prepared, seed)
    too_large = (sampled and route == "large") or (by_average and route == "implicit")
    few = fewer_rows(prepared, seed) if by_rows and sampled and route in ("small", "penalty") else None
    if (few is None and any(count is None or count > WHOLE_DATA for count in known)) or too_large:
        return Choice("large", f"{' and '.join(sampled)} {'is' if len(sampled) == 1 else 'are'} sampled; {text}")
    if by_average:
        only = f"{' and '.join(by_average)} {'is' if len(by_average) == 1 else 'are'} known from samples only"
        return Choice("average", f"{only}: averages of them are solved, and judged on others; {text}")
    if sampled:
        whole = " and ".join(f"{name}: {_whole(getattr(prepared.problem, name))}" for name in sampled)
        how = "solved on all of it" if few is None else "solved on some of it first, then on all"
        return Choice(route, f"{whole}, {how}, samples are not needed; {text}", few)
    return Choice(route, f"deterministic, {text}")


def _by_size(prepared: Prepared, seed: int) -> tuple[Route, str]:
    """The route of a problem whose expectations are known, or as good as known."""
    rows = layout_of(prepared.bound.problem, prepared.x, prepared.y).equal.size
    variables = size((prepared.x, prepared.y))
    text = f"{variables} variables, {rows} rows in the lower level"
    if variables + rows <= SMALL_ROUTE_SIZE:
        return "small", text
    too_large = variables > PENALTY_ROUTE_VARIABLES
    if not can_judge(prepared.problem):
        return "large" if too_large else "penalty", text
    if prepared.problem.xi is not None or variables > BENT_ROUTE_VARIABLES:
        setting = setting_of(prepared, seed)
        bent = is_trained(setting, seed)
        if bent is None and variables > BENT_ROUTE_VARIABLES:
            bent = not_convex(setting, setting.y, seed)
        if bent is not None:
            return "large", f"{text}, which is {bent}"
        if too_large or not fits(setting):
            return "implicit", f"{text}, which looks convex: too large for a certificate with matrices"
    return "penalty", text


def _known_numbers(source: AbstractSource | Stream | None) -> int | None:
    """How many numbers stand for an expectation; None where it is only known from samples."""
    if isinstance(source, Finite):
        return size(source.arrays)
    if isinstance(source, Sampler) and source.exact is not None:
        return size(source.exact)
    return None


def _whole(source: AbstractSource | Stream | None) -> str:
    return f"{source.size} rows" if isinstance(source, Finite) else "an exact expectation"


def _checked_seed(prepared: Prepared, call: Call) -> int:
    """Refuse what steers the steps of methods, and many starts; the seed as a whole number."""
    given = [name for name in ("record_every", "state", "mesh") if getattr(call, name) is not None]
    for name in given + ["output"] * (call.output != "last"):
        raise InputError(
            f"{name}: belongs to methods that make steps, and no method was named. Give one, for example hx.SALVF(), "
            f"or leave {name} out (`Auto` takes seconds=, tol=, max_steps= and callback=)."
        )
    if prepared.count is not None:
        raise InputError("method: Auto draws its own starts; call hx.solve, or name a method, for example hx.SALVF().")
    if not isinstance(call.seed, int) or call.seed < 0:
        raise InputError(f"seed={call.seed!r}: Auto needs a whole number >= 0.")
    return call.seed
