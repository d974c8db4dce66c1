"""`run_steps`: the one run of a method that makes steps, for `solve` and for every stage of `Auto`."""

from __future__ import annotations

import logging

from hierax._base.errors import InputError
from hierax._base.interrupt import interruptible
from hierax._base.trees import size
from hierax._run.batches import MAX_DRAWN_NUMBERS
from hierax._run.call import Call, State
from hierax._run.claims import certified
from hierax._run.clock import Stopwatch, patience_of
from hierax._run.device import Spread
from hierax._run.host import Host
from hierax._run.identity import described
from hierax._run.method import AbstractMethod
from hierax._run.prepare import Prepared, check_method
from hierax._run.run_record import RUN, TYPES, RunRecord
from hierax._run.solution import Solution, Solutions, statuses_of
from hierax._run.start import continued, form_of_start, settings_to_go_on_with, started
from hierax._run.state_arrays import placed
from hierax._run.streams import Exhausted

MAX_VMAPPED_ENTRIES = MAX_DRAWN_NUMBERS  # starts with more variables than this are stepped one after another

logger = logging.getLogger("hierax")


def run_steps(prepared: Prepared, asked: AbstractMethod | None, call: Call) -> Solution | Solutions:
    """Make steps from the prepared start (or go on from `call.state`) until something ends the run.

    `asked` None: with the method of `call.state`, as it is. Ctrl-C ends the run with what it has; before there is a
    point to return it raises KeyboardInterrupt.
    """
    watch = Stopwatch(prepared.bound)
    if call.state is None:
        assert asked is not None
        method = asked
    else:
        method = settings_to_go_on_with(asked, call.state.method)
    processes = prepared.processes
    with processes.together():
        check_method(prepared, method, asked)
    if processes.shared:
        processes.check_alike(_steering(method, call))
    spread = _spread(prepared)
    with interruptible() as interrupt:
        if processes.any(interrupt.asked):
            raise KeyboardInterrupt
        for feeder in prepared.feeders.values():
            feeder.patience, feeder.waiting = patience_of(call.clock, interrupt), watch.waiting
        earlier: RunRecord | None = call.notes.take(RUN, TYPES)
        if earlier is None:
            state = _first_state(prepared, method, call, spread)
        else:
            state = _state_of(earlier, prepared, method, call, spread)
        host = Host(prepared, state, call, spread, watch, interrupt, earlier)
        outcome = host.drive()
        solution = host.solution(outcome)
        if isinstance(solution, Solution) and outcome.met_tolerance:
            solution = certified(solution, prepared, call, outcome.quality(0))
    for status in statuses_of(solution):
        loud = status.failed and not call.quiet
        logger.log(logging.WARNING if loud else logging.INFO, "%s: %s", status.name, status.message)
    return solution


def _steering(method: AbstractMethod, call: Call) -> dict[str, object]:
    """What decides which programs run, by name: the same in every process."""
    given = {name: getattr(call, name) for name in ("max_steps", "record_every", "seed", "tol", "output")}
    return {**given, "method": described(method), "whether there is a callback": call.callback is not None}


def _first_state(prepared: Prepared, method: AbstractMethod, call: Call, spread: Spread) -> State:
    """The state before the first step of this call."""
    if call.state is not None:
        return continued(call.state, prepared, method, call.output, spread)
    try:
        return started(prepared, method, call.seed, call.output, spread)
    except Exhausted as error:
        raise InputError(f"{error} before the first step: give a re-iterable or more batches.") from error


def _state_of(earlier: RunRecord, prepared: Prepared, method: AbstractMethod, call: Call, spread: Spread) -> State:
    """The state in a checkpoint, in the form that the state of this call has; the streams are brought to its place."""
    if call.state is None:
        like = form_of_start(prepared, method, call.seed, call.output, spread)
    else:
        like = continued(call.state, prepared, method, call.output, spread)
    filled, run = placed(earlier.state, (like.method, like.run))
    prepared.move_streams_to(earlier.places)
    return State(filled, run, call.output, earlier.seconds, earlier.spent, earlier.waiting_seconds)


def _spread(prepared: Prepared) -> Spread:
    if prepared.count is None:
        return "one"
    small = size((prepared.x, prepared.y)) // prepared.count <= MAX_VMAPPED_ENTRIES
    return "vmap" if small or prepared.placement is not None else "map"  # on a mesh each device has starts of its own
