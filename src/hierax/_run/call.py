"""The arguments that steer a run, checked, and what a callback and a continued run get to see."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray, PyTree

from hierax._base.errors import InputError
from hierax._base.settings import NEVER, is_number, is_whole
from hierax._judge.psi import Penalty, RunState
from hierax._run.checkpoints import NOTHING_KEPT, Notes
from hierax._run.device import Output, Run
from hierax._run.method import AbstractMethod, Costs
from hierax._run.progress import Clock, News

DEFAULT_RECORDS = 100  # of a run where the user does not say how often to record
DEFAULT_STEPS = DEFAULT_RECORDS * DEFAULT_RECORDS  # then there are as many steps between two records as records


class Info(NamedTuple):
    """What a callback sees between chunks: the point and the latest record.

    Attributes:
        step: outer steps made.
        x: the upper variable.
        y: the lower variable.
        record: the latest entry of the history, by name.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> seen = []
        >>> watch = lambda info: seen.append(info.step)
        >>> sol = hx.solve(problem, 0.5, 0.5, hx.SALVF(), max_steps=20, record_every=10, callback=watch)
        >>> seen
        [10, 20]
    """

    step: int
    x: PyTree
    y: PyTree
    record: dict[str, Any]


class StateFields(NamedTuple):
    """The fields of `State`: a named tuple that has a base class is written in two parts."""

    method: AbstractMethod
    run: Run
    output: Output
    seconds: float
    spent: Costs
    waiting: float = 0.0


class State(StateFields, RunState):
    """Everything a run needs to go on.

    Attributes:
        method: the method with every value filled in.
        run: iterates, optimiser states, key and step (arrays only).
        output: which iterate the run returns.
        seconds: spent in all calls so far, compilation apart.
        spent: samples and gradients before the first step and in all calls so far.
        waiting: seconds spent waiting for data, in all calls so far.
    """

    __slots__ = ()

    @property
    def method_name(self) -> str:
        """The name of the method's class."""
        return type(self.method).__name__

    def psi_penalty(self) -> Penalty | None:
        """What the penalty function Psi of the run was made of, for its certificate; None for methods without Psi."""
        return self.method.psi_penalty(self.run.state)


Seed = int | PRNGKeyArray


@dataclasses.dataclass(frozen=True)
class Call:
    """What `solve` was asked for beside the problem, the start and the method; None: not said.

    The meaning of each is that of the argument of `solve`; `quiet`, which `solve` has not, keeps failures out of the
    warnings, for a caller to whom they are part of the game. `notes` hold what an earlier call of the same kind has
    done. `clock` starts when the call is made; `news` are where it has come to.
    """

    max_steps: int | None = None
    seconds: float | None = None
    seed: Seed = 0
    tol: float | None = None
    record_every: int | None = None
    callback: Callable[[Info], object] | None = None
    output: Output = "last"
    progress: bool | None = None
    state: State | None = None
    mesh: Mesh | None = None
    quiet: bool = False
    notes: Notes = NOTHING_KEPT
    clock: Clock = dataclasses.field(init=False)
    news: News = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Refuse values that no method could make sense of."""
        for name in ("max_steps", "record_every"):
            value = getattr(self, name)
            if value is not None and not (is_whole(value) and 1 <= value <= NEVER):
                raise InputError(f"{name}={value!r}: needs a whole number >= 1, and below 2**31.")
        for name in ("seconds", "tol"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise InputError(f"{name}={value!r}: needs a positive number or None.")
        if self.output not in get_args(Output):
            raise InputError(f"output={self.output!r}: choose 'last', 'tail', 'best' or 'random'.")
        if self.callback is not None and not callable(self.callback):
            raise InputError(f"callback: needs a function of one argument, got {type(self.callback).__name__}.")
        if self.callback is not None and not isinstance(self.callback, Guarded):
            object.__setattr__(self, "callback", Guarded(self.callback))
        if self.state is not None and not isinstance(self.state, State):
            raise InputError(f"state: needs the state of an earlier solution, got {type(self.state).__name__}.")
        if not (is_whole(self.seed) and 0 <= self.seed <= np.iinfo(np.int64).max) and not _is_key(self.seed):
            raise InputError(f"seed={self.seed!r}: needs a whole number or a JAX key; the number >= 0, below 2**63.")
        for name in ("max_steps", "record_every", "seed"):
            if isinstance(getattr(self, name), np.integer):
                object.__setattr__(self, name, int(getattr(self, name)))
        object.__setattr__(self, "clock", Clock(self.seconds))
        object.__setattr__(self, "news", News())

    def under(self, name: str) -> Call:
        """The same call, by the same clock, with the notes of a part of the work."""
        part = copy.copy(self)
        object.__setattr__(part, "notes", self.notes.under(name))
        return part

    def arguments(self) -> dict[str, object]:
        """The arguments that it takes to repeat the call, as they were given; those left unset are left out."""
        names = ("max_steps", "seconds", "tol", "record_every")
        given: dict[str, object] = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        given["seed"] = self.seed if isinstance(self.seed, int) else "a JAX key"
        if self.output != "last":
            given["output"] = self.output
        if self.state is not None:
            given["state"] = "goes on from an earlier run"
        return given

    @property
    def steps(self) -> int:
        """Outer steps to make."""
        return DEFAULT_STEPS if self.max_steps is None else self.max_steps

    @property
    def period(self) -> int:
        """Outer steps between records."""
        return self.record_every or max(1, self.steps // DEFAULT_RECORDS)


def _is_key(seed: object) -> bool:
    return isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key)


def start_keys(seed: Array | PRNGKeyArray, count: int | None) -> PRNGKeyArray:
    """The key of a single run (start 0 of its seed), or those of `count` starts; a key given as seed is used as is
    (many starts: one key each, or one that is folded). Part of a compiled program.
    """
    if _is_key(seed) and (count is None or seed.shape == (count,)):
        return seed
    base = seed if _is_key(seed) else jax.random.key(seed)
    if count is None:
        return jax.random.fold_in(base, 0)
    return jax.vmap(lambda i: jax.random.fold_in(base, i))(jnp.arange(count))


class Guarded:
    """Calls a callback; one that fails ends the run as if it had asked for that."""

    def __init__(self, function: Callable[[Info], object]) -> None:
        self._function = function
        self.error: BaseException | None = None
        self.stopped = False  # whether the latest call ended its run

    def __call__(self, info: Info) -> bool:
        """Whether the run is to end: the callback says True, of Python or NumPy, or has failed; Ctrl-C is the run's own
        business.
        """
        try:
            answer = self._function(info) if self.error is None else True
            self.stopped = isinstance(answer, bool | np.bool_) and bool(answer)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit and its like are raised as well, once the run has ended
            self.error, self.stopped = error, True
        return self.stopped


def raise_error_of(callback: object, solution: object) -> None:
    """Raise what the callback raised, with the solution as its attribute `solution`."""
    error = callback.error if isinstance(callback, Guarded) else None
    if error is not None:
        with contextlib.suppress(AttributeError):
            error.solution = solution  # type: ignore[attr-defined]
        error.add_note("It was raised by the callback of hierax: what was computed is its attribute `solution`.")
        raise error
