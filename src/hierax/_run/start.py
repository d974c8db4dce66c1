"""Before the first step: unset values estimated, the lower level solved once; or an earlier run made ready to go on."""

from __future__ import annotations

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from hierax._base.errors import InputError
from hierax._base.settings import is_transformation
from hierax._base.trees import on_device, size
from hierax._compile.checked import finite_values, refuse_nonfinite
from hierax._compile.placement import at_home, read
from hierax._problem import samples
from hierax._problem.problem import Problem
from hierax._run.batches import MAX_DRAWN_NUMBERS
from hierax._run.call import Call, Seed, State, start_keys
from hierax._run.device import Output, Run, Spread, first_run, over_starts, restarted
from hierax._run.feeding import PlannedRows
from hierax._run.method import AbstractMethod
from hierax._run.prepare import Prepared, on_mesh

MAX_UNOPTIMISED_ENTRIES = MAX_DRAWN_NUMBERS  # of all starts, up to which the program is not optimised: it runs once


def started(prepared: Prepared, method: AbstractMethod, call: Call, spread: Spread, form_only: bool = False) -> State:
    """The state of a run before its first step; with `form_only`, shapes in the place of its arrays: no batch is taken
    for that.
    """
    with prepared.processes.together():
        fed = _fed(prepared, method, call.seed, form_only)
    static = (call.output, spread, prepared.count)
    program = ("start", functools.partial(_program, static), method, prepared.x, prepared.y, call.seed, fed)
    if form_only:
        filled, run, _, _ = prepared.bound.shapes(*program, static=static)
    else:
        quick = size((prepared.x, prepared.y)) <= MAX_UNOPTIMISED_ENTRIES
        filled, run, finite, doubts = prepared.bound.run(*program, static=static, quick=quick)
        refuse_nonfinite(read(finite))
        for text, flags in doubts.items():
            if np.any(read(flags)):
                raise InputError(text)
        filled = at_home(filled)
    return State(filled, run, call.output, 0.0, method.costs(prepared.bound.problem).start)


def _program(
    static: tuple[Output, Spread, int | None],
    problem: Problem,
    method: AbstractMethod,
    x: PyTree,
    y: PyTree,
    seed: Array,
    fed: dict[str, PyTree],
) -> PyTree:
    """The method with unset values estimated, its run with the lower level solved, which values are finite, and doubts:
    of every start.
    """
    output, spread, count = static

    def one(x: PyTree, y: PyTree, key: PRNGKeyArray) -> PyTree:
        look = method.batches(problem).first_look(problem, key)._replace(**fed)
        zeta = samples.fetch(problem.zeta, jax.tree.map(lambda a: a[0], look.zeta))
        xi = samples.fetch(problem.xi, jax.tree.map(lambda a: a[0], look.xi))
        begun = method.begin(problem, x, y, key, look)
        run = first_run(problem, begun.method, begun.state, output)
        return begun.method, run, finite_values(problem, x, y, zeta, xi), begun.doubts

    return over_starts(one, spread)(x, y, start_keys(seed, count))


def _fed(prepared: Prepared, method: AbstractMethod, seed: Seed, form_only: bool) -> dict[str, PyTree]:
    """What streams and files give before the first step: batches for a lower solve, and a look at the next zeta.

    With `form_only` no batch of a stream is taken: what comes is of the same form. Rows of files are the same whenever
    they are asked for.
    """
    batches, starts = method.batches(prepared.bound.problem), prepared.count
    fed: dict[str, PyTree] = {}
    if prepared.files:
        keys = prepared.bound.run("keys", lambda _, seed: start_keys(seed, starts), seed, static=starts, quick=True)
        fed = PlannedRows(prepared.files, prepared.bound, batches, keys).first_look()
    for name, feeder in prepared.feeders.items():
        count = 1 if name == "zeta" else batches.start
        if form_only or name == "zeta":
            taken = jax.tree.map(lambda a, count=count: np.broadcast_to(a, (count, *a.shape)), feeder.peek())
        else:
            taken = feeder.take(count)
        fed |= {"zeta": taken} if name == "zeta" else {"xi": taken, "inner": taken}
    return on_mesh(fed, 1, prepared.placement, prepared.processes)


# -- going on ---------------------------------------------------------------------------------------------------------


def continued(state: State, prepared: Prepared, method: AbstractMethod, output: Output, spread: Spread) -> State:
    """An earlier state made ready to go on; its arrays are copied, because a run overwrites its own."""
    point = state.run.state.point
    then, now = (jax.tree.map(jnp.shape, tree) for tree in ((point.x, point.y), (prepared.x, prepared.y)))
    if then != now:
        raise InputError(f"state: belongs to variables (x, y) of shapes {then}, but x0, y0 have {now}.")
    fresh = output != state.output

    def program(problem: Problem, runs: Run, method: AbstractMethod) -> Run:
        def one(method: AbstractMethod, run: Run) -> Run:
            return restarted(problem, method, run, output, fresh)

        return over_starts(one, spread)(method, runs)

    earlier = prepared.placed(state.run)
    run = prepared.bound.run("restart", program, earlier, method, static=(output, spread, fresh))
    return state._replace(method=method, run=run, output=output)


def settings_to_go_on_with(asked: AbstractMethod | None, known: AbstractMethod) -> AbstractMethod:
    """The method of a continued run: what the call sets, and for the rest what the run had."""
    if asked is None:
        return known
    if type(asked) is not type(known):
        raise InputError(
            f"method: the state was made by {type(known).__name__}, which does not fit {type(asked).__name__}. Leave "
            "the method unset, or start a new run from (sol.x, sol.y)."
        )
    for name, unset in asked.state_settings.items():
        then, now = _kind(getattr(known, name), unset), _kind(getattr(asked, name), unset)
        if getattr(asked, name) is not None and then != now:
            raise InputError(
                f"method: the state was made by a {type(known).__name__} whose {name} is {then}, which does not fit "
                f"{now}. Leave {name} unset, or start a new run from (sol.x, sol.y)."
            )
    return _merged(asked, known)


def _kind(setting: object, unset: str) -> str:
    """What decides the form of the state that a setting leaves behind."""
    if setting is None:
        return unset
    if is_transformation(setting):
        return "an optax transformation"
    if isinstance(setting, eqx.Module) and not callable(setting):
        return f"{type(setting).__name__}()"
    return "a number or schedule"


def _merged(asked: PyTree, known: PyTree) -> PyTree:
    """The settings of `asked`; where it leaves one unset, that of `known`."""
    if asked is None:
        return known
    if dataclasses.is_dataclass(asked) and type(asked) is type(known):
        merged = object.__new__(type(asked))  # unchecked: both were checked, and many starts give numbers an axis
        for field in dataclasses.fields(asked):
            object.__setattr__(merged, field.name, _merged(getattr(asked, field.name), getattr(known, field.name)))
        return merged
    if eqx.is_array_like(asked) and not isinstance(asked, bool) and eqx.is_array(known):
        return on_device(np.broadcast_to(np.asarray(asked), known.shape), known.dtype)
    return asked
