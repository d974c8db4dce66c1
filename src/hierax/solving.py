"""`solve` and `solve_many`: the one loop, on the host, around compiled chunks of steps."""

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from hierax._auto.auto import Auto, solve_auto
from hierax._base.errors import InputError, RunFailed
from hierax._base.trees import size
from hierax._methods.salvf import SALVF
from hierax._problem import samples
from hierax._problem.problem import Problem
from hierax._run import device as loop
from hierax._run.host import Call, Driver, Info, State
from hierax._run.method import AbstractMethod
from hierax._run.prepare import Prepared, finite_values, prepare, refuse_doubtful, refuse_nonfinite
from hierax._run.solution import Solution
from hierax._run.streams import Exhausted

MAX_STEPS = 10_000
VMAP_UP_TO = 4096  # starts with more variables than this are stepped one after another

logger = logging.getLogger("hierax")


def solve(
    problem: Problem,
    x0: PyTree,
    y0: PyTree,
    method: AbstractMethod | Auto | None = None,
    *,
    max_steps: int | None = None,
    seconds: float | None = None,
    seed: int | PRNGKeyArray = 0,
    tol: float | None = None,
    record_every: int | None = None,
    callback: Callable[[Info], Any] | None = None,
    output: loop.Output = "last",
    progress: bool | None = None,
    throw: bool = True,
    state: State | None = None,
) -> Solution:
    """Solve a bilevel problem from (x0, y0).

    Args:
        problem: the problem.
        x0: start of the upper variable: an array, a float or a pytree of them.
        y0: start of the lower variable.
        method: None: `Auto()`, which needs no settings; or a method by name, `SALVF(...)`, `SALVF_VR(...)`,
            `BLOCC(...)`, `LVHBA(...)`, `BiCGAFFA(...)`, `GAM(...)`, which makes steps as asked below.
        max_steps: outer steps (with `state`: further outer steps); None: 10,000.
        seconds: stop after this long, compilation not counted.
        seed: a whole number; or a JAX key, to repeat a start of `solve_many`.
        tol: stop once violation, inner residual and stationarity are all below it at two records in a row.
        record_every: outer steps between records of the history; None: about 100 records.
        callback: called as `callback(info)` at every record; returning True stops the run.
        output: "last" iterate, "tail" average, "best" record, or "random" as in the paper.
        progress: show a progress bar (of the steps; of `Auto`'s starts or seconds); None: where stderr is a terminal.
        throw: raise `RunFailed` where the run failed (its `solution` holds what was computed).
        state: `sol.state` of an earlier run to go on from; (x0, y0) then only give the structure.

    Returns:
        A `Solution`.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> sol = hx.solve(problem, 0.5, 0.5)
        >>> sol.status.name, bool(abs(sol.x - 1 / 1.1) < 1e-5)
        ('converged', True)
        >>> sol = hx.solve(problem, 0.5, 0.5, hx.SALVF(), max_steps=10_000)
        >>> sol.status.name, bool(abs(sol.x - 1 / 1.1) < 0.01)
        ('max_steps', True)
    """
    if isinstance(method, Auto) or (method is None and state is None):
        steered = {"max_steps": max_steps, "tol": tol, "record_every": record_every, "callback": callback}
        _refuse_steering({**steered, "state": state, "output": None if output == "last" else output})
        auto = method or Auto()
        auto = auto if seconds is None else dataclasses.replace(auto, seconds=seconds)
        solution = solve_auto(problem, x0, y0, auto, _whole_seed(seed), progress)
    else:
        steps = MAX_STEPS if max_steps is None else max_steps
        call = Call(steps, seconds, tol, record_every, callback, output, progress, state)
        solution = _run(problem, x0, y0, method, seed, call, None)
    if throw and solution.status.failed:
        raise RunFailed(solution.status.message, solution)
    return solution


def _refuse_steering(given: dict[str, Any]) -> None:
    """`Auto` has no steps to steer."""
    for name, value in given.items():
        if value is not None:
            raise InputError(
                f"{name}: belongs to methods that make steps, and no method was named. Give one, for example "
                f"hx.SALVF(), or leave {name} out (`Auto` takes seconds=)."
            )


def _whole_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed={seed!r}: Auto needs a whole number >= 0.")
    return seed


def solve_many(
    problem: Problem,
    x0s: PyTree,
    y0s: PyTree,
    method: AbstractMethod | None = None,
    *,
    max_steps: int = MAX_STEPS,
    seconds: float | None = None,
    seed: int | PRNGKeyArray = 0,
    tol: float | None = None,
    record_every: int | None = None,
    callback: Callable[[Info], Any] | None = None,
    output: loop.Output = "last",
    progress: bool | None = None,
    throw: bool = False,
    state: State | None = None,
) -> Solution:
    """Solve from many starts (or with many seeds) in one compiled program.

    Every leaf of x0s and y0s has a leading axis of starts, and so have the leaves of the result; `status` is a list and
    `counts` are per start. Start i has the key `fold_in(key(seed), i)`. Small problems are vectorised over the starts;
    large ones are stepped one after another inside the same program. `method` None: `SALVF()`; other arguments: see
    `solve`.
    """
    if isinstance(method, Auto):
        raise InputError("method: Auto draws its own starts; call hx.solve, or name a method, for example hx.SALVF().")
    call = Call(max_steps, seconds, tol, record_every, callback, output, progress, state)
    count = np.shape(jax.tree.leaves(x0s)[0])[:1]
    solution = _run(problem, x0s, y0s, method, seed, call, count[0] if count else 0)
    if throw and any(status.failed for status in solution.status):
        worst = next(status for status in solution.status if status.failed)
        raise RunFailed(worst.message, solution)
    return solution


def _run(
    problem: Problem, x0: PyTree, y0: PyTree, method: AbstractMethod | None, seed: Any, call: Call, count: int | None
) -> Solution:
    if method is not None and not isinstance(method, AbstractMethod):
        raise InputError(f"method: needs hx.SALVF(...) or another method of hierax, got {type(method).__name__}.")
    asked = method or SALVF()
    method = asked if call.state is None else _going_on(method, call.state.method)
    if isinstance(seed, bool) or not (isinstance(seed, int) or _is_key(seed)):
        raise InputError(f"seed={seed!r}: needs a whole number or a JAX key.")
    method.warn()
    begin = time.perf_counter()
    ready = prepare(problem, x0, y0, method, asked, many=count is not None)
    spread: loop.Spread = "one"
    if count is not None:
        spread = "vmap" if size((ready.x, ready.y)) // count <= VMAP_UP_TO else "map"
    if call.state is None:
        try:
            state = _start(ready, loop.start_keys(seed, count), call.output, spread)
        except Exhausted as error:
            raise InputError(f"{error} before the first step: give a re-iterable or more batches.") from None
    else:
        state = _continued(call.state, ready, call.output, spread)
    driver = Driver(ready, state, call, spread, begin)
    try:
        driver.drive()
    except Exhausted as error:
        driver.ended = ("data_error", f"{error}: the last point is returned. Give a re-iterable, or fewer max_steps.")
    solution = dataclasses.replace(driver.solution(), problem=problem)
    statuses = solution.status if count is not None else [solution.status]
    for status in statuses:
        logger.log(logging.WARNING if status.failed else logging.INFO, "%s: %s", status.name, status.message)
    return solution


def _is_key(seed: Any) -> bool:
    return eqx.is_array(seed) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key)


def _start(ready: Prepared, keys: PRNGKeyArray, output: loop.Output, spread: loop.Spread) -> State:
    """Estimate what is unset, solve the lower level at the start, set up the run."""

    def program(
        problem: Problem, method: AbstractMethod, x: PyTree, y: PyTree, keys: PRNGKeyArray, fed: dict[str, PyTree]
    ) -> tuple[AbstractMethod, loop.Run, dict[str, Any], dict[str, Any]]:
        def one(
            x: PyTree, y: PyTree, key: PRNGKeyArray
        ) -> tuple[AbstractMethod, loop.Run, dict[str, Any], dict[str, Any]]:
            look = method.first_look(problem, key)._replace(**fed)
            zeta = samples.fetch(problem.zeta, jax.tree.map(lambda a: a[0], look.zeta))
            xi = samples.fetch(problem.xi, jax.tree.map(lambda a: a[0], look.xi))
            resolved = method.resolve(problem, x, y, key, look)
            run = loop.begin(problem, resolved, resolved.init(problem, x, y, key, look), output)
            doubts = method.doubts(problem, x, y, key)
            return resolved, run, finite_values(problem, x, y, zeta, xi), doubts

        return loop.over_starts(one, spread)(x, y, keys)

    arguments = (ready.method, ready.x, ready.y, keys, _start_feed(ready))
    method, run, fine, doubts = ready.bound.run("start", program, *arguments, static=(output, spread))
    refuse_nonfinite(fine)
    refuse_doubtful(doubts)
    return State(method, run, output, 0.0, ready.method.start_costs(ready.bound.problem))


def _start_feed(ready: Prepared) -> dict[str, PyTree]:
    """What the streams give before the first step: batches for a lower solve, and a look at the next zeta."""
    fed: dict[str, PyTree] = {}
    if "zeta" in ready.feeders:
        fed["zeta"] = jax.tree.map(lambda a: a[None], ready.feeders["zeta"].peek())
    if "xi" in ready.feeders:
        fed["inner"] = fed["xi"] = ready.feeders["xi"].take(ready.method.start_draws())
    return fed


def _going_on(asked: AbstractMethod | None, known: AbstractMethod) -> AbstractMethod:
    """The method of a continued run: what the call sets, and for the rest what the run had."""
    if asked is None:
        return known
    if type(asked) is not type(known):
        raise InputError(
            f"method: the state was made by {type(known).__name__}, which does not fit {type(asked).__name__}. Leave "
            "the method unset, or start a new run from (sol.x, sol.y)."
        )
    asked.refuse_state(known)
    return _merged(asked, known)


def _continued(state: State, ready: Prepared, output: loop.Output, spread: loop.Spread) -> State:
    """The state made ready to go on; its arrays are copied, because a run overwrites its own."""
    then, now = (jax.tree.map(jnp.shape, tree) for tree in (state.run.state.point[:2], (ready.x, ready.y)))
    if then != now:
        raise InputError(f"state: belongs to variables (x, y) of shapes {then}, but x0, y0 have {now}.")
    fresh = output != state.output

    def program(problem: Problem, runs: loop.Run, method: AbstractMethod) -> loop.Run:
        def one(method: AbstractMethod, run: loop.Run) -> loop.Run:
            return loop.restarted(problem, method, run, output, fresh)

        return loop.over_starts(one, spread)(method, runs)

    run = ready.bound.run("restart", program, state.run, ready.method, static=(output, spread, fresh))
    return state._replace(method=ready.method, run=run, output=output)


def _merged(asked: Any, known: Any) -> Any:
    """The settings of `asked`; where it leaves one unset, that of `known`."""
    if asked is None:
        return known
    if dataclasses.is_dataclass(asked) and type(asked) is type(known):
        names = [field.name for field in dataclasses.fields(asked)]
        merged = object.__new__(type(asked))  # unchecked: both were checked, and many starts give numbers an axis
        for name in names:
            object.__setattr__(merged, name, _merged(getattr(asked, name), getattr(known, name)))
        return merged
    if eqx.is_array_like(asked) and not isinstance(asked, bool) and eqx.is_array(known):
        return jnp.broadcast_to(jnp.asarray(asked, known.dtype), known.shape)
    return asked
