"""The compiled part of a run: steps, what is accumulated between records, and the answer that is kept.

The host (`stepping.py`) runs a `Chunk` again and again; how it cuts a run into chunks changes nothing in the iterates.
The loop knows nothing else about a method than its protocol (`method.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, Scalar

from hierax._base import trees
from hierax._base.constants import FINE, LITTLE
from hierax._base.trees import all_finite, dtype_of, select
from hierax._math.lower_level import INFEASIBLE, UNBOUNDED
from hierax._problem import samples
from hierax._problem.problem import Multipliers, Problem
from hierax._problem.samples import Tickets
from hierax._run.method import MAX_DRAWN_STEPS, AbstractMethod, Metrics, Residual

RUNNING, NONFINITE, DIVERGED, CONVERGED, NO_LOWER_POINT, NO_LOWER_BOUND = range(6)
DIVERGED_RATIO = float(np.finfo(np.float64).eps ** -0.5)  # times the start: farther out half of all digits are lost
MAX_CHUNK_RECORDS = MAX_DRAWN_STEPS  # records that one chunk can return
PINNED_SHARE = FINE  # the sets hold back all but this part of the direction
TAIL_POWER = 3  # polynomial-decay averaging: the last quarter of the run carries most of the weight
CYCLE_MEAN_SHARE = LITTLE  # the mean direction of a cycle is below this part of the single ones
CYCLE_STEPS = 8  # steps in which a cycle is told from noise

Output = Literal["last", "tail", "best", "random", "random_after"]
Spread = Literal["one", "vmap", "map"]
"""How starts share a program: one start, all at once, or one after another."""


class Window(NamedTuple):
    """Sums since the last record (the numbers packed: on small problems the count of arrays is what costs).

    Attributes:
        first: the step at which the window was opened.
        numbers: upper, lower, the lengths of the steps of x, y and z and of the raw directions of x and y, and the
            norms of the four residuals.
        residual: the residuals.
        alternating: the residuals with every second one negated, where something is sampled; else None.
    """

    first: Int[Array, ""]
    numbers: Float[Array, "11"]
    residual: Residual
    alternating: Residual | None


def added(window: Window, metrics: Metrics, step: Array) -> Window:
    """The window with one more step in it, made from the state at `step`."""
    norms = [jnp.asarray(trees.norm(part), window.numbers.dtype) for part in metrics.residual]
    moved = metrics.step_x, metrics.step_y, metrics.step_z
    each = (metrics.upper, metrics.lower, *moved, metrics.raw_x, metrics.raw_y, *norms)
    numbers = jnp.stack([jnp.asarray(number).astype(window.numbers.dtype) for number in each])
    sign = 1 - 2 * ((step - window.first) % 2)

    def plus(a: Array, b: Array) -> Array:
        return (a + b).astype(a.dtype)

    alternating = None
    if window.alternating is not None:
        signed = jax.tree.map(lambda leaf: sign.astype(leaf.dtype) * leaf, metrics.residual)
        alternating = jax.tree.map(plus, window.alternating, signed)
    residual = jax.tree.map(plus, window.residual, metrics.residual)
    return window._replace(numbers=window.numbers + numbers, residual=residual, alternating=alternating)


def _residuals(window: Window, steps: Scalar) -> tuple[Float[Array, "4"], Bool[Array, ""]]:
    """The residuals of x, y, z and the inner variable over a window of `steps` steps, and whether the steps cancel each
    other: each is long, their mean is not.

    The mean averages the noise of samples, and with it a cycle of steps that jump to and fro across the solution: a
    cycle of two points is what the alternating mean sees, and noise averages out of that as well, after four steps or
    so. Without noise the mean of the norms sees cycles of every length.
    """

    def norms(residual: Residual) -> Float[Array, "4"]:
        return jnp.stack([jnp.asarray(trees.norm(part), steps.dtype) for part in residual]) / steps

    mean, size = norms(window.residual), window.numbers[7:] / steps
    cancelled = (_joint(mean) < CYCLE_MEAN_SHARE * _joint(size)) & (steps >= CYCLE_STEPS)
    if window.alternating is None:
        return size, cancelled
    swing = norms(window.alternating)
    return jnp.maximum(mean, swing), cancelled & (_joint(swing) > 0.5 * _joint(size))


def _joint(norms: Float[Array, "4"]) -> Scalar:
    """The residuals of x, y and z as one number."""
    return jnp.sqrt(jnp.sum(norms[:3] ** 2))


Answer = tuple[PyTree, PyTree, Multipliers]
"""A candidate for the output: x, y and the multipliers."""


class Record(NamedTuple):
    """One row of the history: means over the steps since the last one; violation at the last of them.

    The last three are for the messages of a run: whether the sets hold every entry, whether the steps cancel each other
    (`_residuals`), and the mean norm of the residual of x.
    """

    step: Array
    upper: Scalar
    lower: Scalar
    violation: Scalar
    stationarity: Scalar
    inner_residual: Scalar
    distance: Scalar
    step_x: Scalar
    step_y: Scalar
    step_z: Scalar
    pinned: Array
    cycling: Array
    slope_x: Scalar


class Run(NamedTuple):
    """Everything about one start that changes (arrays only)."""

    state: PyTree
    code: Int[Array, ""]
    window: Window
    last: Float[Array, "3"]  # of the last step: violation, c2 times it in the method's units, ||y - w||
    quiet: Int[Array, ""]  # records in a row that met the tolerance
    pinned: Array
    limit: Scalar
    kept: Answer | None
    kept_weight: Scalar


def first_run(problem: Problem, method: AbstractMethod, state: PyTree, output: Output) -> Run:
    """A run before its first step."""
    x, y, zero = state.point.x, state.point.y, method.zero_residual(state)
    sampled, dtype = problem.zeta is not None or problem.xi is not None, dtype_of(x, y)
    return Run(
        state=state,
        code=jnp.zeros((), jnp.int32),
        window=Window(state.step, jnp.zeros((11,), dtype), zero, method.zero_residual(state) if sampled else None),
        last=jnp.zeros((3,), dtype),
        quiet=jnp.zeros((), jnp.int32),
        pinned=jnp.zeros((), bool),
        limit=DIVERGED_RATIO * (1 + trees.norm((x, y))),
        **_nothing_kept(problem, method, state, output),
    )


def _nothing_kept(problem: Problem, method: AbstractMethod, state: PyTree, output: Output) -> dict[str, PyTree]:
    weight = jnp.full((), jnp.inf if output == "best" else 0.0, dtype_of(state.point.x, state.point.y))
    return {"kept": None if output == "last" else _answer(problem, method, state), "kept_weight": weight}


def restarted(problem: Problem, method: AbstractMethod, run: Run, output: Output, fresh: bool) -> Run:
    """A run that may go on, whatever ended it; with `fresh` the answer is collected anew (another `output`)."""
    zero = jnp.zeros((), jnp.int32)
    run = run._replace(code=zero, quiet=zero, pinned=jnp.zeros((), bool))
    return run._replace(**_nothing_kept(problem, method, run.state, output)) if fresh else run


def _answer(problem: Problem, method: AbstractMethod, state: PyTree) -> Answer:
    return state.point.x, state.point.y, method.multipliers(problem, state)


def advance(problem: Problem, method: AbstractMethod, output: Output, run: Run, tickets: Tickets) -> Run:
    """One step; a step to where a value is not finite, or further out than `run.limit`, is undone and ends the run."""
    state, metrics = method.step(problem, run.state, tickets)
    numbers = (metrics.upper, metrics.lower, metrics.violation, metrics.raw_x, metrics.raw_y)
    finite = all_finite((state, numbers, _values(problem, state.point.x, state.point.y, tickets)))
    near = trees.norm((state.point.x, state.point.y)) <= run.limit
    code = jnp.where(finite, jnp.where(near, RUNNING, DIVERGED), NONFINITE).astype(jnp.int32)
    if not isinstance(metrics.lower_status, int):
        below = metrics.lower_status
        code = jnp.where(below == INFEASIBLE, NO_LOWER_POINT, jnp.where(below == UNBOUNDED, NO_LOWER_BOUND, code))
    code = jnp.where(run.code == RUNNING, code, run.code)
    kept, weight = _keep(problem, method, output, run, state, metrics)
    last = jnp.stack([metrics.violation, metrics.push, metrics.distance]).astype(run.last.dtype)
    window = added(run.window, metrics, run.state.step)
    new = run._replace(state=state, window=window, last=last, kept=kept, kept_weight=weight)
    return select(code == RUNNING, new, run)._replace(code=code)


def _values(problem: Problem, x: PyTree, y: PyTree, tickets: Tickets) -> PyTree:
    """Every function at a point, on the batches of the step: metrics are of the point before it."""
    zeta, xi = samples.fetch(problem.zeta, tickets.zeta), samples.fetch(problem.xi, tickets.xi)
    return problem.upper(x, y, zeta), problem.lower(x, y, xi), problem.rows(x, y), problem.upper_constraints(x, y)


def _keep(
    problem: Problem, method: AbstractMethod, output: Output, run: Run, state: PyTree, metrics: Metrics
) -> tuple[Answer | None, Scalar]:
    """Update the answer that is averaged over the tail, or drawn at random, as the run goes."""
    if output == "tail":
        new, k = _answer(problem, method, state), state.step.astype(run.kept_weight.dtype)
        share = (TAIL_POWER + 1) / (k + TAIL_POWER)
        return jax.tree.map(lambda a, b: a + share * (b - a), run.kept, new), run.kept_weight
    if output in ("random", "random_after"):
        # A one-slot weighted reservoir: step k stays with probability alpha_k / sum of alpha, and with it the iterate
        # before it (eq. 2.13), or the one after it (Corollary C.3).
        total = run.kept_weight + metrics.weight
        key = jax.random.fold_in(jax.random.fold_in(state.key, 4), state.step)
        chosen = jax.random.uniform(key, dtype=total.dtype) * total < metrics.weight
        return select(chosen, _answer(problem, method, run.state if output == "random" else state), run.kept), total
    return run.kept, run.kept_weight


def record(problem: Problem, method: AbstractMethod, output: Output, run: Run, tol: Scalar) -> tuple[Run, Record]:
    """Close the window: a row of the history, the stop test and, for "best", the comparison with the best so far."""
    window, step = run.window, run.state.step
    steps = jnp.maximum(step - window.first, 1).astype(window.numbers.dtype)
    upper, lower, step_x, step_y, step_z, raw_x, raw_y, slope_x, *_ = window.numbers / steps
    residuals, cycling = _residuals(window, steps)
    held_x, held_y, _, inner = residuals
    held = _joint(residuals)
    # Both blocks: at an ordinary active bound of x the direction in y is not held back.
    pinned = (held_x <= PINNED_SHARE * raw_x) & (raw_x > 0) & (held_y <= PINNED_SHARE * raw_y) & (raw_y > 0)
    violation, push, distance = run.last
    shown = (upper, lower, violation, held, inner, distance, step_x, step_y, step_z)
    row = Record(step, *shown, pinned, cycling, slope_x)
    met = (violation <= tol) & (held <= tol) & (inner <= tol) & ~pinned
    quiet = jnp.where(met, run.quiet + 1, 0)
    code = jnp.where((run.code == RUNNING) & (quiet >= 2), CONVERGED, run.code).astype(jnp.int32)
    kept, weight = run.kept, run.kept_weight
    if output == "best":
        score = jnp.where(pinned, jnp.inf, held + push).astype(weight.dtype)
        kept = select(score < weight, _answer(problem, method, run.state), kept)
        weight = jnp.minimum(score, weight)
    empty = jax.tree.map(jnp.zeros_like, window)._replace(first=step)
    running = run.code == RUNNING  # a start that has stopped keeps what it stopped with
    new = run._replace(window=empty, quiet=quiet, code=code, kept=kept, kept_weight=weight, pinned=pinned)
    return select(running, new, run), row


def over_starts(function: Callable[..., PyTree], spread: Spread) -> Callable[..., PyTree]:
    """Apply `function(method, run, ...)` to one start or to all of them; arrays carry the axis of starts."""
    if spread == "one":
        return function
    if spread == "vmap":
        return eqx.filter_vmap(function, in_axes=eqx.if_array(0))

    def mapped(*args: PyTree) -> PyTree:
        arrays, rest = eqx.partition(args, eqx.is_array)
        others: list[PyTree] = []

        def one(part: PyTree) -> PyTree:
            out, other = eqx.partition(function(*eqx.combine(part, rest)), eqx.is_array)
            others.append(other)
            return out

        return eqx.combine(jax.lax.map(one, arrays), others[-1])

    return mapped


class Orders(NamedTuple):
    """What the host asks of a chunk: `lead` steps (then a record, if asked for), then `rows` times `period` steps
    and a record. All counts are traced, so that one compilation serves every cutting of a run.

    Attributes:
        first_step: number of steps made before this chunk.
        lead: steps before the first record.
        lead_record: whether a record follows them.
        rows: further records.
        period: steps before each of these.
        tol: tolerance of the stop test; negative: none.
        fed: batches of streams, stacked over the steps of the chunk, by the name of their field in `Tickets`.
    """

    first_step: Int[Array, ""]
    lead: Int[Array, ""]
    lead_record: Bool[Array, ""]
    rows: Int[Array, ""]
    period: Int[Array, ""]
    tol: Scalar
    fed: dict[str, PyTree]


class Carry(NamedTuple):
    """What a chunk carries from step to step: the runs, the block of drawn samples, the steps done in this chunk."""

    runs: Run
    rows: Tickets
    done: Int[Array, ""]


class Chunk(NamedTuple):
    """One call of the compiled loop: what stays the same in it."""

    output: Output
    spread: Spread
    problem: Problem
    method: AbstractMethod
    orders: Orders

    def run(self, runs: Run) -> tuple[Run, Record, Array]:
        """The runs after the ordered steps, a table of records, and how many of its rows were written.

        Stops early where no start is running any more.
        """
        zero = jnp.zeros((), jnp.int32)
        shapes = jax.eval_shape(self._closed, runs)[1]
        blank = jax.tree.map(lambda a: jnp.zeros((MAX_CHUNK_RECORDS, *a.shape), a.dtype), shapes)
        undrawn = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(self._drawn, runs))

        def going(state: tuple[Carry, Record, Array, Array]) -> Bool[Array, ""]:
            return (state[2] <= self.orders.rows) & _some_running(state[0].runs)

        begin = Carry(runs, undrawn, zero), blank, zero, zero
        carry, table, _, written = jax.lax.while_loop(going, self._segment, begin)
        return carry.runs, table, written

    @property
    def _block(self) -> int:
        return self.method.batches(self.problem).block(self.problem)

    def _each(self, function: Callable[..., PyTree], *of_starts: PyTree) -> PyTree:
        """`function(method, run, ...)` of every start."""
        return over_starts(function, self.spread)(self.method, *of_starts)

    def _drawn(self, runs: Run) -> Tickets:
        """The samples of the block of steps that comes next."""
        return self._each(lambda method, run: method.batches(self.problem).rows(self.problem, run.state), runs)

    def _closed(self, runs: Run) -> tuple[Run, Record]:
        """The runs after a record, and the record."""
        return self._each(lambda method, run: record(self.problem, method, self.output, run, self.orders.tol), runs)

    def _segment(self, state: tuple[Carry, Record, Array, Array]) -> tuple[Carry, Record, Array, Array]:
        """The steps up to the next record, and the record."""
        carry, table, number, written = state
        leading = number == 0
        carry = self._steps(carry, jnp.where(leading, self.orders.lead, self.orders.period))
        recorded = ~leading | self.orders.lead_record
        runs, row = self._closed(carry.runs)
        # `.at[].set` would be a scatter, which takes several times as long to compile.
        table = jax.tree.map(lambda t, r: jax.lax.dynamic_update_index_in_dim(t, r, written, 0), table, row)
        carry = carry._replace(runs=select(recorded, runs, carry.runs))
        return carry, table, number + 1, written + recorded.astype(jnp.int32)

    def _steps(self, carry: Carry, count: Array) -> Carry:
        """`count` steps, in pieces that end where a block of drawn samples does."""
        block, first = self._block, self.orders.first_step

        def piece(state: tuple[Carry, Array]) -> tuple[Carry, Array]:
            carry, left = state
            rows = self._refreshed(carry)
            length = jnp.minimum(left, block - (first + carry.done) % block)

            def body(state: tuple[Run, Array]) -> tuple[Run, Array]:
                runs, i = state
                return self._step(runs, rows, carry.done + i), i + 1

            runs, i = jax.lax.while_loop(
                lambda state: (state[1] < length) & _some_running(state[0]),
                body,
                (carry.runs, jnp.zeros((), jnp.int32)),
            )
            return Carry(runs, rows, carry.done + i), left - length

        return jax.lax.while_loop(lambda state: (state[1] > 0) & _some_running(state[0].runs), piece, (carry, count))[0]

    def _refreshed(self, carry: Carry) -> Tickets:
        """The samples of the current block: drawn at the start of the chunk and of every block."""
        stale = (carry.done == 0) | ((self.orders.first_step + carry.done) % self._block == 0)

        def body(state: tuple[Tickets, Array]) -> tuple[Tickets, Array]:
            return self._drawn(carry.runs), jnp.zeros((), bool)

        # A loop of at most one turn: unlike a conditional it needs no second buffer for the rows.
        return jax.lax.while_loop(lambda state: state[1], body, (carry.rows, stale))[0]

    def _step(self, runs: Run, rows: Tickets, count: Array) -> Run:
        at = (self.orders.first_step + count) % self._block
        fed = jax.tree.map(lambda a: a[count], self.orders.fed)  # a stream's batches are the same for all starts

        def one(method: AbstractMethod, run: Run, rows: Tickets) -> Run:
            tickets = method.batches(self.problem).cut(rows, at)._replace(**fed)
            return advance(self.problem, method, self.output, run, tickets)

        return self._each(one, runs, rows)


def _some_running(runs: Run) -> Bool[Array, ""]:
    return jnp.any(runs.code == RUNNING)
