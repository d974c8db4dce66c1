"""`Auto`: the solver without settings, and how a call finds its route."""

import dataclasses
from typing import Any, get_args

import equinox as eqx
import jax
import jax.extend.core as jex

from hierax._auto import constants as const
from hierax._auto.averages import FIRST_AVERAGE, run_averages
from hierax._auto.deterministic import run_deterministic
from hierax._auto.draws import averaged, has_too_many_rows, numbers_per_sample
from hierax._auto.large_route import run_large
from hierax._auto.searches import NoRoute
from hierax._auto.session import Route, Session, finished, float64_problem, kept_answer
from hierax._base.errors import InputError
from hierax._base.interrupt import Interrupt, interruptible
from hierax._base.settings import COUNT, check_settings, is_number
from hierax._base.trees import size
from hierax._engine.programs import SIDE_BY_SIDE_NUMBERS, fits
from hierax._engine.segments import not_convex
from hierax._judge.retraining import is_trained
from hierax._math.lower_level import layout_of
from hierax._problem.problem import is_streamed
from hierax._problem.samples import AbstractSource, Finite, FiniteFiles, Sampler, Stream, default_size
from hierax._run.call import Call, Guarded
from hierax._run.method import AbstractSolver, Batches
from hierax._run.prepare import Prepared, check_batches_fit, prepare
from hierax._run.solution import Solution


class Auto(AbstractSolver):
    """The solver without settings: picks a route, validates what it finds, says what it did (`sol.log`).

        descents:   x <- x + t p,   p against the gradient of   phi(x) = F(x, y*(x)),
                    grad phi = grad_x F + (dy*/dx)' grad_y F   from the KKT system of the lower level's active rows

    and, by route, searches for KKT points of the single-level problem, searches against the value function
    v(x) = min G, and SALVF.

    Args:
        route: "small": searches for KKT points, and against the value function, from several starts, for deterministic
            problems of up to about a hundred variables and constraints; "penalty": descents alone, or where the
            lower level is not convex the searches for KKT points, for larger deterministic ones; "average":
            averages of samples, solved by these two; "implicit": descents without matrices, for convex lower levels
            that are too large for them; "large": SALVF in stages, for streams, networks, and where nothing else is
            possible. None: by form and size of the problem.
        seconds: time limit, compilation included; None: 30 on the small route, 60 on the penalty and the average route,
            else 120. Searches are bounded by work; where the limit ends one, status and log say so.
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
        check_settings(self, dict.fromkeys(("starts", "samples"), COUNT))

    def run(self, prepared: Prepared, call: Call) -> Solution:
        """Solve the prepared problem by the route that fits it, or return what an earlier run of the call has found."""
        seed = _checked_seed(prepared, call)
        kept = kept_answer(call.notes, prepared, self)
        if kept is not None:
            return kept
        with interruptible() as interrupt:
            solution = self._solved(prepared, seed, call, interrupt)
        stopped = isinstance(call.callback, Guarded) and call.callback.stopped
        return finished(call.notes, solution, interrupt.asked or stopped)

    def _solved(self, prepared: Prepared, seed: int, call: Call, interrupt: Interrupt) -> Solution:
        stated = prepared.bound.problem
        check_batches_fit(prepared, Batches(default_size(stated.zeta, None), default_size(stated.xi, None)))
        seconds = call.seconds or self.seconds
        unlimited = self.samples is None and call.max_steps is None and (seconds or const.SECONDS) >= const.SECONDS / 2
        route, reason = choose_route(prepared, seed, unlimited)
        if self.route is not None and self.route != route:
            route, reason = self.route, f"asked for; by itself it would be {route}: {reason}"
        self._refuse_route(prepared, route)
        line = f"Route {route}: {reason}."
        while True:
            auto = dataclasses.replace(
                self,
                route=route,
                tol=call.tol or self.tol,
                seconds=seconds or const.SECONDS / {"small": 4, "penalty": 2, "average": 2}.get(route, 1),
                starts=self.starts or {"implicit": 1, "large": None}.get(route, const.STARTS),
            )
            session = Session(prepared, auto, seed, call, interrupt)
            session.log.append(line)
            try:
                if route == "large":
                    return run_large(session)
                if route == "average":
                    return run_averages(session)
                return run_deterministic(session, self.starts is None)
            except NoRoute as why:
                matrices_fit = size((prepared.x, prepared.y)) <= const.MATRIX_ORDER
                route = "penalty" if route == "implicit" and matrices_fit else "large"
                line = f"{line} It has no answer ({why}): on by the route {route}."

    def _refuse_route(self, prepared: Prepared, route: Route) -> None:
        """Refuse a route that does not fit the problem's samples."""
        if route == "average" and not averaged(prepared):
            raise InputError(
                "Auto(route='average'): needs a hx.Sampler without `exact`, a hx.Stream or many rows of data."
            )
        if route not in ("large", "average") and self.samples is not None:
            raise InputError(f"Auto(samples={self.samples}): nothing is sampled on the route {route!r}; leave it out.")
        if route == "implicit" and (is_streamed(prepared.problem) or averaged(prepared)):
            raise InputError(
                "Auto(route='implicit'): needs expectations that are known, no Stream and no bare Sampler."
            )


def choose_route(prepared: Prepared, seed: int, unlimited: bool) -> tuple[Route, str]:
    """The route that fits a problem, and the reason in words; `unlimited`: whether much data may be used whole."""
    sources = {name: getattr(prepared.problem, name) for name in ("zeta", "xi")}
    sampled = [name for name, source in sources.items() if source is not None]
    by_average = averaged(prepared)
    too_many = by_average and all(has_too_many_rows(sources[name]) for name in by_average)
    if unlimited and too_many and _used_whole(prepared, seed):
        by_average = []
    route, text = _by_size(prepared, seed)
    first = sum(FIRST_AVERAGE * numbers_per_sample(prepared, name) for name in by_average)
    exact = [
        size(source.exact) for source in sources.values() if isinstance(source, Sampler) and source.exact is not None
    ]
    too_large = (sampled and route == "large") or (by_average and route == "implicit")
    if too_large or max([first, *exact], default=0) > const.WHOLE_DATA:
        return "large", f"{' and '.join(sampled)} {'is' if len(sampled) == 1 else 'are'} sampled; {text}"
    if by_average:
        rows = [name for name in by_average if isinstance(sources[name], Finite | FiniteFiles)]
        only = [name for name in by_average if name not in rows]
        known = [f"{' and '.join(only)} {'is' if len(only) == 1 else 'are'} known from samples only"] * bool(only)
        known += [f"{name} has {sources[name].size} rows, of which some are drawn" for name in rows]
        return "average", f"{', '.join(known)}: averages are solved, and judged on others; {text}"
    if sampled:
        whole = " and ".join(f"{name}: {_whole(sources[name])}" for name in sampled)
        if any(
            isinstance(source, Finite) and size(source.arrays) > SIDE_BY_SIDE_NUMBERS for source in sources.values()
        ):
            route = "penalty" if route == "small" else route  # one start after another, the given one first
        return route, f"{whole}, solved on all of it, samples are not needed; {text}"
    return route, f"deterministic, {text}"


def _with_first_batches(prepared: Prepared) -> Prepared:
    """The problem with the next batch of every stream in its place, from which its form shows."""
    if not prepared.feeders:
        return prepared
    first: dict[str, Any] = {name: Finite(feeder.peek()) for name, feeder in prepared.feeders.items()}
    return prepare(dataclasses.replace(prepared.problem, **first), *prepared.whole(prepared.x, prepared.y))


def _by_size(prepared: Prepared, seed: int) -> tuple[Route, str]:
    """The route of a problem whose expectations are known, or as good as known."""
    rows = layout_of(prepared.bound.problem, prepared.x, prepared.y).equal.size
    variables = size((prepared.x, prepared.y))
    text = f"{variables} variables, {rows} rows in the lower level"
    if variables + rows <= const.SMALL_ROUTE_SIZE:
        return "small", text
    too_large = variables > const.MATRIX_ORDER
    if prepared.problem.xi is not None or variables + rows > const.DENSE_SIZE:
        problem = float64_problem(_with_first_batches(prepared), seed)
        nonconvex_reason = is_trained(problem, seed)
        if nonconvex_reason is None and variables + rows > const.DENSE_SIZE:
            nonconvex_reason = not_convex(problem, problem.y, seed)
        if nonconvex_reason is not None:
            return "large", f"{text}, which is {nonconvex_reason}"
        if too_large or not fits(problem):
            return "implicit", f"{text}, which looks convex: too large for a certificate with matrices"
    return "penalty", text


def _used_whole(prepared: Prepared, seed: int) -> bool:
    """Whether much data are used whole: rows in memory, few numbers on the way, a lower level that looks convex."""
    sources = {"upper": prepared.problem.zeta, "lower": prepared.problem.xi}
    if not all(source is None or isinstance(source, Finite) for source in sources.values()):
        return False
    data = {name: source.arrays for name, source in sources.items() if isinstance(source, Finite)}
    numbers = size(data)
    for name, batch in data.items():
        numbers += _made_by(jax.make_jaxpr(prepared.stated(name))(prepared.x, prepared.y, batch).jaxpr)
    problem = float64_problem(prepared, seed)
    return numbers <= const.MUCH_DATA and not_convex(problem, problem.y, seed) is None


def _made_by(jaxpr: jex.Jaxpr) -> int:
    """How many numbers the operations of a program make, those of a loop counted once."""
    made = sum(int(getattr(one.aval, "size", 1)) for equation in jaxpr.eqns for one in equation.outvars)
    return made + sum(_made_by(part) for equation in jaxpr.eqns for part in jex.jaxprs_in_params(equation.params))


def _whole(source: AbstractSource | Stream | None) -> str:
    return f"{source.size} rows" if isinstance(source, Finite) else "an exact expectation"


def _checked_seed(prepared: Prepared, call: Call) -> int:
    """Refuse what steers the steps of methods, and many starts; the seed as a whole number."""
    given = [name for name in ("record_every", "state", "mesh", "max_samples") if getattr(call, name) is not None]
    for name in given + ["output"] * (call.output not in (None, "last")):
        raise InputError(
            f"{name}: belongs to methods that make steps, and no method was named. Give one, for example hx.SALVF(), "
            f"or leave {name} out (`Auto` takes seconds=, tol=, max_steps= and callback=)."
        )
    if prepared.count is not None:
        raise InputError("method: Auto draws its own starts; call hx.solve, or name a method, for example hx.SALVF().")
    if not isinstance(call.seed, int) or call.seed < 0:
        raise InputError(f"seed={call.seed!r}: Auto needs a whole number >= 0.")
    return call.seed
