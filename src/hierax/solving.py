"""`solve` and `solve_many`: check the call, prepare the problem once, and let the method run on it."""

import dataclasses
import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import equinox as eqx
import jax
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray, PyTree

from hierax._auto.auto import Auto
from hierax._base.errors import InputError, RunFailed
from hierax._base.interrupt import interruptible
from hierax._base.settings import TRUE_OR_FALSE, check_setting
from hierax._compile.configuration import in_own_configuration, inside_a_trace, refuse_to_be_traced
from hierax._lower.linear import OutOfTime
from hierax._problem.problem import Problem
from hierax._run.call import Call, Clock, Info, Interrupted, Patience, State, reporting
from hierax._run.checkpoints import CHECKPOINT_SECONDS, notes_in
from hierax._run.device import Output
from hierax._run.method import AbstractMethod
from hierax._run.prepare import Prepared, Processes, identity_of, prepare, split_start
from hierax._run.solution import Found, Kind, Reason, Solution, Solutions, changed, stacked, statuses_of, unmoved
from hierax._run.stepping import run_steps


@in_own_configuration
def solve(
    problem: Problem,
    x0: PyTree,
    y0: PyTree,
    method: Auto | AbstractMethod | None = None,
    *,
    max_steps: int | None = None,
    max_samples: int | None = None,
    seconds: float | None = None,
    seed: int | PRNGKeyArray = 0,
    tol: float | None = None,
    record_every: int | None = None,
    callback: Callable[[Info], object] | None = None,
    output: Output | None = None,
    progress: bool | None = None,
    throw: bool = True,
    state: State | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = CHECKPOINT_SECONDS,
    mesh: Mesh | None = None,
) -> Solution:
    """Solve a bilevel problem from (x0, y0).

        min over x in X of F(x, y*(x)),     y*(x) = argmin {G(x, y) : y in Y, h(x, y) <= 0, e(x, y) = 0}

    A local solution is looked for; `converged` is said where the certificate agrees (docs/guides/certificate.md).

    Args:
        problem: the problem.
        x0: start of the upper variable: a number, a list of numbers, an array, or a pytree of them.
        y0: start of the lower variable.
        method: None: `Auto()`, which needs no settings; or a method by name, `SALVF(...)`, `SALVF_VR(...)`,
            `BLOCC(...)`, `LVHBA(...)`, `BiCGAFFA(...)`, `GAM(...)`, `Barrier(...)`, `SIGD(...)`, `IGAL(...)`,
            `Moreau(...)`, `FirstOrderPenalty(...)`, which makes steps as asked below.
        max_steps: outer steps (with `state`: further outer steps); None: 10,000.
        max_samples: of zeta and xi together, those of the start and the end included (with `state`: further samples);
            None: as many as the steps take. For named methods.
        seconds: stop after this long by the clock, compilation included (an evaluation, a step or a compilation that is
            under way is finished first).
        seed: a whole number; or a JAX key, to repeat a start of `solve_many`.
        tol: stop once violation, inner residual and stationarity are all below it at two records in a row; the run is
            then `converged` if the certificate of its point agrees at the same tolerance.
        record_every: outer steps between records of the history; None: about 100 records.
        callback: called as `callback(info)` at every record; returning True stops the run. A dict of numbers that it
            returns becomes columns of the history (of named methods).
        output: "last" iterate, "tail" average, "best" record, or u^R with Prob(R = k) ~ alpha_k: "random", k from 0 to
            K - 1 (the paper's eq. 2.13), or "random_after", u^(R+1) (its Corollary C.3); None: "tail" where anything is
            sampled, else "last".
        progress: show a progress bar (of the steps; of `Auto`'s starts or seconds), and where stderr is no terminal a
            line every 5 seconds; None: the bar on a terminal, else a line every 10 seconds; False: nothing. The logger
            "hierax" gets a line every 10 seconds.
        throw: raise `RunFailed` where the run failed (its `solution` holds what was computed).
        state: `sol.state` of an earlier run to go on from; (x0, y0) then only give the structure.
        checkpoint: a folder in which the run is kept (docs/guides/checkpoints.md). The same call with the same folder
            goes on where the run was, in another process too and whatever ended that one; a run that is done is
            returned at once.
        checkpoint_every: seconds of work that a kill may cost: checkpoints are written twice as often.
        mesh: a `jax.sharding.Mesh` over whose axis "data" (else its first) samples are spread, and over whose axis
            "model", if it has one, y is; for named methods (docs/guides/cluster.md).

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
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     half = hx.solve(problem, 0.5, 0.5, hx.SALVF(), max_steps=100, record_every=10, checkpoint=folder)
        ...     whole = hx.solve(problem, 0.5, 0.5, hx.SALVF(), max_steps=200, record_every=10, checkpoint=folder)
        >>> half.status.step, whole.status.step, len(whole.history)
        (100, 200, 20)

    References:
        docs/guides/using.md, docs/methods/auto.md; the formulas of the methods stand with them
    """
    check_setting("solve", "throw", throw, TRUE_OR_FALSE)
    notes = notes_in(checkpoint, checkpoint_every)
    call = Call(
        max_steps, seconds, seed, tol, record_every, callback, output, progress, state, mesh, max_samples, notes
    )
    solution = _run(problem, x0, y0, _solver(method, state), call, many=False)
    assert isinstance(solution, Solution)
    return _returned(solution, call, throw)


@in_own_configuration
def solve_many(
    problem: Problem,
    x0s: PyTree,
    y0s: PyTree,
    method: Auto | AbstractMethod | None = None,
    *,
    max_steps: int | None = None,
    max_samples: int | None = None,
    seconds: float | None = None,
    seed: int | PRNGKeyArray = 0,
    tol: float | None = None,
    record_every: int | None = None,
    callback: Callable[[Info], object] | None = None,
    output: Output | None = None,
    progress: bool | None = None,
    throw: bool = False,
    state: State | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = CHECKPOINT_SECONDS,
    mesh: Mesh | None = None,
) -> Solutions:
    """Solve from many starts (or with many seeds).

        sols[i] = solve(problem, x0s[i], y0s[i], seed=seed + i)     (without a named method)

    Every leaf of x0s and y0s has a leading axis of starts, and so have the leaves of the result; `status` is a list;
    `sols[i]` is the `Solution` of start i. Arguments mean what they mean for `solve`.

    With `method` None, or an `Auto` of your own, start i is `solve(problem, x0s[i], y0s[i], seed=seed + i)`, one after
    another with the same compiled programs; `seconds` is shared out among the starts that are left, a callback that
    returns True ends the start it is called for, and Ctrl-C ends them all. A named method makes its steps from all
    starts in one compiled program, vectorised for small problems; start i has the key `fold_in(key(seed), i)`.

    Args:
        problem: the problem.
        x0s: starts of the upper variable, along a leading axis.
        y0s: starts of the lower variable, likewise.
        method: as for `solve`.
        seconds: of the whole call.
        seed: a whole number; see above.
        callback: as for `solve`; see above.
        throw: raise `RunFailed` where a start failed; by default its status tells.
        state: `sols.state` of an earlier call to go on from.
        max_steps, max_samples, tol, record_every, output, progress: as for `solve`.
        checkpoint, checkpoint_every, mesh: as for `solve`.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> sols = hx.solve_many(problem, [0.2, 0.8], [0.2, 0.8])
        >>> [sol.status.name for sol in sols], [bool(abs(sol.x - 1 / 1.1) < 1e-5) for sol in sols]
        (['converged', 'converged'], [True, True])
        >>> sols = hx.solve_many(problem, [0.2, 0.8], [0.2, 0.8], hx.SALVF(), max_steps=5000)
        >>> len(sols), [bool(abs(sol.x - 1 / 1.1) < 0.02) for sol in sols]
        (2, [True, True])

    References:
        docs/guides/using.md
    """
    check_setting("solve", "throw", throw, TRUE_OR_FALSE)
    notes = notes_in(checkpoint, checkpoint_every)
    call = Call(
        max_steps, seconds, seed, tol, record_every, callback, output, progress, state, mesh, max_samples, notes
    )
    asked = _solver(method, state)
    if isinstance(asked, Auto):
        solutions: Solution | Solutions = _one_by_one(problem, x0s, y0s, asked, call)
    else:
        solutions = _run(problem, x0s, y0s, asked, call, many=True)
    assert isinstance(solutions, Solutions)
    return _returned(solutions, call, throw)


def _returned(found: Found, call: Call, throw: bool) -> Found:
    """What a call returns, with a log that begins with its checkpoints; an error of the callback is raised, and with
    `throw` a failure.
    """
    found = changed(found, log=(*call.notes.journal.log_lines, *found.log))
    call.raise_callback_error(found)
    failed = [status for status in statuses_of(found) if status.failed]
    if throw and failed:
        raise RunFailed(failed[0].message, found)
    return found


def _run(
    problem: Problem, x0: PyTree, y0: PyTree, asked: Auto | AbstractMethod | None, call: Call, many: bool
) -> Solution | Solutions:
    """Prepare the problem and let the method run on it; Ctrl-C and a silent stream end what waits."""
    refuse_to_be_traced("solve", (x0, y0, problem, asked, call.seed))
    clock = call.clock if call.seconds is not None else Clock(getattr(asked, "seconds", None))  # `Auto` has its own
    processes = Processes(call.mesh)
    with interruptible() as interrupt, reporting(call.news, call.progress if processes.first else False):
        if interrupt.asked and call.mesh is None:  # of a caller that was asked to end; on a mesh `run_steps` looks
            raise KeyboardInterrupt
        try:
            prepared = prepare(problem, x0, y0, many, Patience(clock, interrupt), call)
            with _kept(prepared, asked, call):
                found = asked.run(prepared, call) if isinstance(asked, Auto) else run_steps(prepared, asked, call)
            return changed(found, arguments=call.arguments())
        except Interrupted:
            raise KeyboardInterrupt from None
        except jax.errors.TracerArrayConversionError as error:  # a function of the problem closes over a traced array
            raise InputError(inside_a_trace("solve")) from error
        except jax.errors.JaxRuntimeError as error:
            if processes.shared:
                error.add_note(
                    "Several processes make this run: if another one has ended or cannot be reached, this one cannot "
                    "go on. Start all of them again; with checkpoint= they go on where the run was "
                    "(docs/guides/cluster.md)."
                )
            raise
        except OutOfTime as error:  # before there was a point: the start is returned
            if interrupt.asked:
                raise KeyboardInterrupt from None
            what = str(error) or "they did not suffice for one point"
            status = Reason.NO_BATCH_IN_TIME.status(0, seconds=round(clock.seconds or clock.elapsed, 1), what=what)
            method = asked or (call.state.method if call.state is not None else None)
            if many or method is None:
                raise InputError(status.message) from None
            return unmoved(problem, x0, y0, method, call, status)


@contextmanager
def _kept(prepared: Prepared, asked: Auto | AbstractMethod | None, call: Call) -> Iterator[None]:
    """Within it the call's folder of checkpoints is open; afterwards it holds what was done, however the call ended."""
    journal = call.notes.journal
    if journal.path is None or journal.lock is not None:  # kept nowhere, or open already
        yield
        return
    identity, processes = identity_of(prepared, asked, call), prepared.processes
    with processes.together():
        if processes.first:
            journal.open(identity)
    if processes.shared:
        journal.share(processes.from_first)
    try:
        yield
    finally:
        try:
            journal.write()
        finally:
            journal.close()


def _one_by_one(problem: Problem, x0s: PyTree, y0s: PyTree, auto: Auto, call: Call) -> Solutions:
    """`Auto` from every start; those that time or Ctrl-C leave without a turn are returned as they are."""
    refuse_to_be_traced("solve", (x0s, y0s, problem, call.seed))
    (x, x_rest), (y, y_rest), count = split_start(x0s, y0s, many=True)
    assert count is not None
    found: list[Solution] = []
    with interruptible() as interrupt, ExitStack() as stack:
        if call.notes.kept:
            prepared = prepare(problem, x0s, y0s, True, Patience(call.clock, interrupt), call)
            stack.enter_context(_kept(prepared, auto, call))
        for i in range(count):
            x_i, y_i = jax.tree.map(operator.itemgetter(i), (x, y))
            start = eqx.combine(x_i, x_rest), eqx.combine(y_i, y_rest)
            interrupted = interrupt.asked or any(one.status.name == "interrupted" for one in found)
            interrupted |= call.callback_error is not None
            if i and (interrupted or call.clock.passed):
                status = Reason.NO_TURN.status(0, Kind.INTERRUPTED if interrupted else Kind.SECONDS)
                found.append(unmoved(problem, *start, auto, call, status))
                continue
            seconds = None if call.seconds is None else max(call.clock.left, 0.0) / (count - i)
            seed = call.seed + i if isinstance(call.seed, int) else call.seed
            own = dataclasses.replace(call, seconds=seconds, seed=seed, notes=call.notes.under(f"start {i}"))
            solution = _run(problem, *start, auto, own, many=False)
            assert isinstance(solution, Solution)
            found.append(solution)
    return changed(stacked(found), arguments=call.arguments())


def _solver(method: object, state: State | None) -> Auto | AbstractMethod | None:
    """The solver that was asked for; None: the method of the state to go on from."""
    if method is None:
        return Auto() if state is None else None
    if isinstance(method, type) and issubclass(method, Auto | AbstractMethod):
        raise InputError(f"method: got the class {method.__name__}; write hx.{method.__name__}().")
    if not isinstance(method, Auto | AbstractMethod):
        raise InputError(f"method: needs hx.SALVF(...) or another method of hierax, got {type(method).__name__}.")
    return method
