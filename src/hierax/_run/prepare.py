"""A call is prepared once: problem and variables checked, streams opened, functions made ready to compile.

Everything that runs on the problem afterwards (a method, or every stage of `Auto`) starts from the same `Prepared`, so
that nothing is split, projected, traced or compiled twice.

Several processes may make one run together (`jax.distributed`). Every one executes the same programs in the same order,
or all of them wait for ever. So whatever a process finds out by itself (the time, Ctrl-C, an answer of a callback, a
batch that does not come, a refusal of its data) is told to the others at fixed places, and all of them act on the same
numbers. A run on devices of one process agrees with itself.

What tells one call or problem from another stands here too: of a call each part by name, as a text or a hash; of a
problem a hash. A checkpoint belongs to problem, data, start, method and settings. Limits of a run (`max_steps`,
`seconds`) and who watches it are no part of it: a run may go on with others.

Two statements of a problem have the same hash where their functions have the same traces (the text of the jaxprs), the
same numbers and arrays in them, and the same sets and sources. The text is JAX's own: another version of JAX may write
another one. Names of variables, comments and files do not matter. Where a part has no such text, there is no hash, and
a reason.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from hierax._base.errors import InputError, warn
from hierax._base.imports import lazy
from hierax._base.jaxprs import depends_on_arguments
from hierax._base.settings import is_number
from hierax._base.trees import size, split_variable
from hierax._compile import checked
from hierax._compile.bound import FUNCTIONS, Bound, with_rests
from hierax._compile.configuration import as_answer, doubled, float64
from hierax._compile.placement import Placement, at_home, placement_of, read
from hierax._compile.tracing import Function, trace_function
from hierax._problem import samples, sets
from hierax._problem.problem import Problem
from hierax._problem.samples import TRACED_SAMPLES, AbstractSource, Finite, FiniteFiles, HostBatches, Sampler, Stream
from hierax._run.call import Call, Patience
from hierax._run.checkpoints import FUNCTION, HASH, UNKNOWN, hash_of_arrays
from hierax._run.device import Spread
from hierax._run.feeding import Exhausted, Feeder, Place, feeder_of
from hierax._run.method import MAX_DRAWN_NUMBERS, AbstractMethod, Batches

MAX_VMAPPED_ENTRIES = MAX_DRAWN_NUMBERS  # starts with more variables than this are stepped one after another

multihost_utils = lazy("jax.experimental.multihost_utils")


class Processes:
    """The processes whose devices a mesh has; without a mesh, or where all are its own, this one alone."""

    def __init__(self, mesh: object = None) -> None:
        owners = {device.process_index for device in mesh.devices.flat} if isinstance(mesh, Mesh) else set()
        self.shared = len(owners) > 1 or (bool(owners) and owners != {jax.process_index()})
        self.count = len(owners) if self.shared else 1
        self.index = jax.process_index() if self.shared else 0
        self.first = self.index == 0  # the one that writes, shows and decides
        if self.shared and len(owners) < jax.process_count():
            raise InputError(
                f"mesh: has devices of {len(owners)} of the {jax.process_count()} processes. Make it of all devices, "
                'jax.make_mesh((jax.device_count(),), ("data",)), or of this process alone (jax.local_devices()).'
            )

    def exchanged(self, *numbers: int) -> np.ndarray:
        """Whole numbers of every process, one row each, known to all: here the processes wait for one another."""
        own = np.array(numbers, np.int32)
        return np.asarray(multihost_utils.process_allgather(own)) if self.shared else own[None]

    def from_first(self, content: bytes) -> bytes:
        """What the first process has; what the others give does not matter."""
        if not self.shared:
            return content
        length = self.exchanged(*np.array([len(content)]).view(np.int32))[0].view(np.int64)  # in numbers of 32 bits
        whole = np.zeros(int(length[0]), np.uint8)
        if self.first:
            whole[:] = np.frombuffer(content, np.uint8)
        return np.asarray(multihost_utils.broadcast_one_to_all(whole)).tobytes()

    def hash_of_all(self, text: str) -> str:
        """A hash of the texts of all processes, in their order."""
        own = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.int32)
        return hashlib.sha256(self.exchanged(*own.tolist()).tobytes()).hexdigest()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work without exchange that may fail: where it fails in one process, all of them leave it with an error."""
        try:
            yield
        except BaseException:
            self.exchanged(1)
            raise
        failed = np.flatnonzero(self.exchanged(0)[:, 0])
        if failed.size:
            raise InputError(f"process {failed[0]} could not go on; its own error says why. This one ends with it.")

    def check_alike(self, given: Mapping[str, object]) -> None:
        """Refuse arguments, by name, that are not the same in every process."""
        if not self.shared:
            return
        told = self.exchanged(*(_digest(value) for value in given.values()))
        for name, column in zip(given, told.T, strict=True):
            odd = np.flatnonzero(column != column[0])
            if odd.size:
                raise InputError(
                    f"{name}: is another one in process {odd[0]} than in process 0. All processes have to make the "
                    "same calls with the same arguments; only Finite(..., local=True) and Stream hold a part each."
                )


def _digest(value: PyTree) -> int:
    """A number of 31 bits that differs where a text, or the numbers in a tree, do."""
    return zlib.crc32((value if isinstance(value, str) else hash_of_arrays(value)).encode()) >> 1


# -- the problem ------------------------------------------------------------------------------------------------------


def _sources(problem: Problem) -> dict[str, Any]:
    return {"zeta": problem.zeta, "xi": problem.xi}


def _replace_sources(
    bound: Bound, problem: Problem, feeders: dict[str, Feeder], placement: Placement | None, processes: Processes
) -> None:
    """Give programs the sources that they see otherwise than the user gave them."""
    for name, source in _sources(problem).items():
        if name in feeders:
            batch = len(jax.tree.leaves(feeders[name].peek())[0])
            if processes.shared:
                _check_parts(f"Stream {name}: a batch", batch, placement, processes)
            bound.replace_source(name, HostBatches(batch * processes.count))
        elif isinstance(source, FiniteFiles):
            if processes.shared:
                raise InputError(
                    f"Problem({name}): rows of files are read by one process, and there are {processes.count}. Give "
                    "each of them its own rows in memory, hx.Finite(rows, local=True)."
                )
            bound.replace_source(name, HostBatches(source.default_batch()))
        elif isinstance(source, Finite) and placement is not None:
            bound.replace_source(name, _placed(name, source, placement, processes))


def _placed(name: str, source: Finite, placement: Placement, processes: Processes) -> Finite:
    if all(placement.holds(leaf) for leaf in jax.tree.leaves(source.arrays)):
        return source  # the user has put them there
    if source.local and processes.shared:
        _check_parts(f"Finite {name}", source.size, placement, processes)
        arrays = placement.put_own_rows(source.arrays)
    else:
        processes.check_alike({f"Finite {name}": source.arrays})
        arrays = placement.put_rows(source.arrays)
    return eqx.tree_at(lambda finite: finite.arrays, source, arrays)


def _check_parts(what: str, rows: int, placement: Placement | None, processes: Processes) -> None:
    """Refuse parts of the data that do not make up a whole which the mesh can spread."""
    assert placement is not None
    if placement.starts is not None:
        raise InputError(
            f"{what}: solve_many spreads its starts over the devices, and each of them needs all of the data. Give "
            "every process all of it, as hx.Finite(arrays)."
        )
    if not placement.processes_have_rows_of_their_own:
        raise InputError(
            f"{what}: the mesh puts the same rows on devices of several processes, so that none has a part of its own. "
            f"Let the axis {placement.data or 'data'!r} run across the processes and 'model' inside of each."
        )
    counts = processes.exchanged(rows)[:, 0]
    each = placement.parts // processes.count
    if len(set(counts.tolist())) > 1 or rows % each:
        raise InputError(
            f"{what}: the processes have {counts.tolist()} rows; each needs as many as the others, and a multiple of "
            f"the {each} devices that it has along {placement.data!r}. Drop or repeat some."
        )


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A problem that was found sound, with its variables as arrays.

    Attributes:
        problem: as the user gave it.
        bound: the problem ready to compile.
        x: the arrays of the upper variable, inside X; with many starts, on a leading axis.
        y: likewise of the lower variable.
        x_rest: what else x0 held (functions of an Equinox module), put back before anything is shown.
        y_rest: likewise.
        feeders: the open streams, by name.
        count: number of starts; None: a single run.
        placement: how everything is spread over the devices of a mesh; None: on the device that JAX chooses.
        processes: those that make the run together.
        used: names of objectives that were found to depend on the variables.
    """

    problem: Problem
    bound: Bound
    x: PyTree
    y: PyTree
    x_rest: PyTree
    y_rest: PyTree
    feeders: dict[str, Feeder]
    count: int | None
    placement: Placement | None = None
    processes: Processes = dataclasses.field(default_factory=Processes)
    used: set[str] = dataclasses.field(default_factory=set)

    @property
    def spread(self) -> Spread:
        """How its starts share a program."""
        if self.count is None:
            return "one"
        small = size((self.x, self.y)) // self.count <= MAX_VMAPPED_ENTRIES
        return "vmap" if small or self.placement is not None else "map"  # on a mesh each device has starts of its own

    @property
    def files(self) -> dict[str, FiniteFiles]:
        """The data in files, by name."""
        return {name: source for name, source in _sources(self.problem).items() if isinstance(source, FiniteFiles)}

    def at(self, x: PyTree, y: PyTree, count: int | None = None) -> Prepared:
        """The same problem from another start (arrays only), or from `count` of them."""
        return dataclasses.replace(self, x=x, y=y, count=count)

    def placed(self, tree: PyTree) -> PyTree:
        """Arrays of an earlier run, wherever that ran, where this one runs."""
        placement = self.placement
        if placement is None:
            return at_home(tree)
        return jax.tree.map(lambda leaf: placement.put(leaf) if eqx.is_array(leaf) else leaf, tree)

    def on_mesh(self, batches: PyTree, axis: int) -> PyTree:
        """Batches of the host, with their samples along an axis, where the run's programs want them."""
        if self.placement is None:
            return batches
        return (self.placement.put_own_rows if self.processes.shared else self.placement.put_rows)(batches, axis)

    def one_start(self) -> tuple[PyTree, PyTree]:
        """The variables of the first start."""
        return (self.x, self.y) if self.count is None else jax.tree.map(lambda a: a[0], (self.x, self.y))

    def inside(self, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        """Arrays of the variables as an answer, in X and Y to the last digit of float64: single precision may miss a
        bound by a rounding error.
        """
        with float64():
            pairs = ((self.problem.x_set, x), (self.problem.y_set, y))
            projected = tuple(sets.project(convex_set, doubled(tree)) for convex_set, tree in pairs)
        return as_answer(projected)

    def whole(self, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        """Arrays of the variables as the user knows them."""
        return eqx.combine(x, self.x_rest), eqx.combine(y, self.y_rest)

    def stated(self, name: str) -> Callable[..., PyTree]:
        """A function of the problem, as the user gave it, of arrays of the variables."""
        return with_rests(getattr(self.problem, name), self.x_rest, self.y_rest)

    def few(self, name: str) -> PyTree:
        """The shapes of a small batch of a source; of a stream, those of its batches."""
        source = getattr(self.problem, name)
        drawn = isinstance(source, Sampler)  # not traced by `bound`: its programs would no longer be known
        return source.shapes(TRACED_SAMPLES) if drawn else _batch_shape(self, name, TRACED_SAMPLES)

    def places(self) -> dict[str, Place]:
        """Where the streams are: behind the last batch that was taken from each."""
        return {name: feeder.place for name, feeder in self.feeders.items()}

    def move_streams_to(self, places: dict[str, Place]) -> None:
        """Open the streams anew at the places where an earlier run was."""
        for name, place in places.items():
            stream, old = getattr(self.problem, name), self.feeders[name]
            old.close()
            self.feeders[name] = stream._feeder = Feeder(name, stream, old.patience, place, old.restorable)


def prepare(
    problem: Problem, x0: PyTree, y0: PyTree, many: bool = False, patience: Patience | None = None, call: Call = Call()
) -> Prepared:
    """Check a problem and its start; with `many`, every leaf of x0 and y0 has a leading axis of starts.

    A stream that gives no batch is waited for as long as `patience` allows; where the call keeps checkpoints, one whose
    position no other process could restore is refused. With the call's mesh everything is put there.
    """
    processes, mesh, restorable = Processes(call.mesh), call.mesh, call.notes.kept
    with processes.together():
        checked.check_problem(problem)
        (x, x_rest), (y, y_rest), count = split_start(x0, y0, many)
        placement = None if mesh is None else placement_of(mesh, y, count)
        feeders = _checked_sources(problem, mesh, patience, restorable)
        if feeders and restorable and processes.shared:
            raise InputError(
                "checkpoint: a Stream that several processes read cannot be resumed: one of them writes for all and "
                "knows only its own place. Give the data as hx.Finite(rows, local=True), or leave checkpoint out."
            )
        x, y = checked.into_sets(problem, x, y, many)
    sources = _sources(problem).items()
    kinds = {f"kind of {name}": f"{type(one).__name__} {getattr(one, 'local', '')}" for name, one in sources}
    processes.check_alike({"x0": x, "y0": y, **kinds, "whether there is a checkpoint": restorable})
    bound = Bound(problem, x_rest, y_rest, placement=placement)
    _replace_sources(bound, problem, feeders, placement, processes)
    if placement is not None:
        x, y = jax.tree.map(placement.put, (x, y))
    return Prepared(problem, bound, x, y, x_rest, y_rest, feeders, count, placement, processes)


def split_start(x0: PyTree, y0: PyTree, many: bool) -> tuple[tuple[PyTree, PyTree], tuple[PyTree, PyTree], int | None]:
    """The arrays of x0 and of y0, each with what else it holds, and the number of starts (None: a single one)."""
    x, x_rest = split_variable("x0s" if many else "x0", x0)
    y, y_rest = split_variable("y0s" if many else "y0", y0)
    for name, tree in (("x0", x), ("y0", y)):
        if not size(tree):
            raise InputError(f"{name}{'s' * many}: has no entries (shapes {[a.shape for a in jax.tree.leaves(tree)]}).")
    if not many:
        return (x, x_rest), (y, y_rest), None
    shapes = [leaf.shape for leaf in jax.tree.leaves((x, y))]
    if () in shapes or len({shape[0] for shape in shapes}) != 1:
        raise InputError(f"x0s, y0s: every leaf needs the same leading axis of starts; got shapes {shapes}.")
    return (x, x_rest), (y, y_rest), shapes[0][0]


def _checked_sources(
    problem: Problem, mesh: Mesh | None, patience: Patience | None, restorable: bool
) -> dict[str, Feeder]:
    """The open streams, by name; refuse a part of the data as if it were all of it, and samples that repeat or cannot
    be repeated.
    """
    feeders = {}
    for name, source in _sources(problem).items():
        if mesh is None and samples.is_spread_over_processes(source):
            raise InputError(
                f"Problem({name}): Finite(..., local=True) has this process's rows only. Let the processes run "
                'together, mesh=jax.make_mesh((jax.device_count(),), ("data",)), with a named method; or read all rows.'
            )
        if isinstance(source, Sampler):
            samples.check_draw(name, source)
        if isinstance(source, Stream):
            try:
                feeders[name] = feeder_of(name, source, patience, restorable)
                feeders[name].peek()
            except Exhausted as error:
                raise InputError(f"Problem({name}): {error}, before the first step.") from error
    return feeders


def check_method(prepared: Prepared, method: AbstractMethod, asked: AbstractMethod | None) -> None:
    """Refuse a method that does not fit the problem, and functions that do not fit its batches.

    `asked` is the method as the user gave it, None in a run that goes on with what it had: `method` has the earlier
    run's settings filled in, which are not the user's.
    """
    problem = prepared.bound.problem
    method.check(prepared.problem)
    sizes = method.batches(problem)
    if sizes.needs_all_xi and ("xi" in prepared.feeders or "xi" in prepared.files):
        what = "a Stream never shows" if "xi" in prepared.feeders else "data in files are too large for"
        raise InputError(
            f"method: {type(method).__name__} with these settings solves the lower level on all of xi, which {what}. "
            "Give xi as hx.Finite(arrays) or hx.Sampler(draw), or use hx.SALVF(inner=hx.SALM())."
        )
    if asked is not None:
        _check_sizes(prepared, asked.batches(problem))
    check_batches_fit(prepared, sizes)
    if prepared.placement is not None:
        _say_what_is_not_spread(prepared, prepared.placement, sizes)


def check_batches_fit(prepared: Prepared, batches: Batches) -> None:
    """Trace every function at the shapes that these batches will have, and refuse wrong results."""
    shapes = {name: _batch_shape(prepared, name, getattr(batches, name)) for name in ("zeta", "xi")}
    checked.check_functions(prepared.bound, *prepared.one_start(), shapes)
    for name, batch in (("upper", "zeta"), ("lower", "xi")):
        if name not in prepared.used:
            _check_uses_variables(prepared, name, shapes[batch])


def _check_uses_variables(prepared: Prepared, name: str, batch: PyTree) -> None:
    """Refuse an objective that is a constant."""
    function = getattr(prepared.bound.problem, name)

    def of_variables(x: PyTree, y: PyTree) -> PyTree:
        return function(x, y, jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), batch))

    if not depends_on_arguments(of_variables, *prepared.one_start()):
        raise InputError(
            f"Problem({name}): returns the same number whatever x and y are, so there is nothing to optimise. Check "
            "that it uses its arguments."
        )
    prepared.used.add(name)


def _check_sizes(prepared: Prepared, batches: Batches) -> None:
    """Refuse batch sizes that the user set and that the sources cannot give."""
    for name, n in batches.asked:
        source = prepared.files.get(name, getattr(prepared.bound.problem, name))
        if source is None:
            raise InputError(f"batch size {n} for {name}, but Problem({name}=None) has no samples; leave it unset.")
        if name in prepared.feeders:
            raise InputError(f"batch_{name}: the Stream given as {name} sets the batch size; leave it unset.")
        if isinstance(source, Finite | FiniteFiles) and not source.replace and n > source.size:
            raise InputError(f"batch size {n} for {name} exceeds the {source.size} rows of Finite(replace=False).")


def _batch_shape(prepared: Prepared, name: str, n: int) -> PyTree:
    if name in prepared.feeders:
        batch = prepared.feeders[name].peek()
        of_all = prepared.processes.count  # each has a part of the batch
        return jax.tree.map(
            lambda a: jax.ShapeDtypeStruct((len(a) * of_all, *a.shape[1:]), jnp.asarray(a[:0]).dtype), batch
        )
    if name in prepared.files:
        return prepared.files[name].shapes(n)
    return checked.batch_shape(prepared.bound, name, n)


def _say_what_is_not_spread(prepared: Prepared, placement: Placement, batches: Batches) -> None:
    """Warn of sizes that the mesh's axis does not divide."""
    problem = prepared.bound.problem
    sizes = {f"rows of {name}": one.size for name, one in _sources(problem).items() if isinstance(one, Finite)}
    sizes["samples of zeta in a batch"] = 0 if problem.zeta is None else batches.zeta
    sizes["samples of xi in a batch"] = 0 if problem.xi is None else batches.xi
    sizes["samples of xi in an inner batch"] = 0 if problem.xi is None or not batches.inner else batches.inner_size
    sizes = sizes if prepared.count is None else {"starts": prepared.count}
    uneven = [f"{size} {name}" for name, size in sizes.items() if size % placement.parts]
    if uneven:
        warn(
            f"mesh: {placement.parts} devices along {placement.data!r} do not divide {' and '.join(uneven)}: every "
            f"device computes all of them. Choose multiples of {placement.parts}."
        )


# -- what tells calls apart -------------------------------------------------------------------------------------------


def identity_of(prepared: Prepared, asked: object, call: Call) -> dict[str, str]:
    """The parts of a call by name; `asked`: the method, None for that of the state to go on from."""
    problem, (x, y) = prepared.problem, prepared.one_start()
    batches = {"upper": (prepared.few("zeta"),), "lower": (prepared.few("xi"),)}
    signatures = {name: (x, y, *batches.get(name, ())) for name in FUNCTIONS}
    found = {f"{FUNCTION}{name}": hash_of_function(name, prepared.stated(name), at) for name, at in signatures.items()}
    found |= {f"problem {name}": described(getattr(problem, name)) for name in ("x_set", "y_set")}
    for name in ("zeta", "xi"):
        source = getattr(problem, name)
        text, spread = _source(name, source), samples.is_spread_over_processes(source)
        found[f"data {name}"] = HASH + prepared.processes.hash_of_all(text) if spread else text
    found |= {"x0": hash_of_arrays(prepared.x), "y0": hash_of_arrays(prepared.y)}
    found["method"] = type(asked).__name__ if asked is not None else "that of the state"
    if dataclasses.is_dataclass(asked):
        names = [field.name for field in dataclasses.fields(asked) if field.name != "seconds"]  # a limit of `Auto`
        found |= {f"method setting {name}": described(getattr(asked, name)) for name in names}
    seed = call.seed if isinstance(call.seed, int) else np.asarray(jax.random.key_data(call.seed)).tolist()
    return found | {
        "seed": str(seed),
        "output": call.output_of(prepared.problem),
        "tol": str(call.tol),
        "record_every": str(call.record_every),
        "state": "none" if call.state is None else hash_of_arrays(call.state.run),
        "starts": "one" if prepared.count is None else str(prepared.count),
    }


def _source(name: str, source: object) -> str:
    if isinstance(source, Stream):
        return UNKNOWN
    if isinstance(source, FiniteFiles):
        return source.fingerprint()
    if isinstance(source, Sampler):
        draw = hash_of_function(f"{name}.draw", source.draw, (jax.random.key(0), TRACED_SAMPLES))
        return f"{draw} {hash_of_arrays(source.exact)}" if draw != UNKNOWN else UNKNOWN
    return described(source)


def described(value: object, around: tuple[object, ...] = ()) -> str:
    """A setting as a text that tells it from others: numbers as they are, functions by what they are made of.

    `around`: what the value is part of; a function may close over itself.
    """
    if value is None or isinstance(value, bool | str):
        return str(value)
    if is_number(value):
        return repr(float(value)) if np.asarray(value).dtype.kind == "f" else repr(int(value))
    if isinstance(value, np.ndarray | jax.Array):
        return hash_of_arrays(value)
    if any(value is one for one in around):
        return type(value).__name__
    inside = functools.partial(described, around=(*around, value))
    if isinstance(value, types.FunctionType):
        made_of = " ".join(_made_of(value, inside))
        return f"{value.__qualname__}({hashlib.sha256(made_of.encode()).hexdigest()[:12]})"
    if isinstance(value, functools.partial):
        return f"partial({inside(value.func)}, {inside(value.args)}, {inside(value.keywords)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [f"{field.name}={inside(getattr(value, field.name))}" for field in dataclasses.fields(value)]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {inside(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(inside, value))})"
    return type(value).__name__


def _made_of(function: types.FunctionType, inside: Callable[[object], str]) -> Iterator[str]:
    """A function's code, its defaults and what it closes over."""
    code = function.__code__
    yield code.co_code.hex()
    yield from (repr(one) for one in code.co_consts if not isinstance(one, types.CodeType))
    yield from (*code.co_names, inside(function.__defaults__))
    for cell in function.__closure__ or ():
        try:
            yield inside(cell.cell_contents)
        except ValueError:  # not set yet
            yield "empty"


# -- the hash of a problem ---------------------------------------------------------------------------------------------


class Fingerprint(NamedTuple):
    """The hash of a problem in hexadecimal digits, or None and the reason why there is none."""

    sha256: str | None
    why: str = ""


class _NoText(Exception):
    """A part of a problem that its text does not determine."""


def fingerprint(problem: Problem, x: PyTree, y: PyTree) -> Fingerprint:
    """The hash of a problem of variables shaped like x and y (their values do not matter).

    Examples:
        >>> import hierax as hx
        >>> def stated(slope):
        ...     return hx.Problem(upper=lambda x, y, zeta: (x - y) ** 2, lower=lambda x, y, xi: (y - slope * x) ** 2)
        >>> one, same, other = (fingerprint(stated(slope), 0.0, 0.0).sha256 for slope in (2.0, 2.0, 3.0))
        >>> one == same, one == other, len(one)
        (True, False, 64)
    """
    try:
        with float64(), jax.numpy_dtype_promotion("standard"):
            return Fingerprint(_hash_of(_parts(problem, x, y)))
    except _NoText as reason:
        return Fingerprint(None, str(reason))


def hash_of_function(name: str, function: Function, args: tuple[PyTree, ...]) -> str:
    """The hash of what a function computes on arguments shaped like `args` and of the data that it closes over;
    `UNKNOWN` where its trace does not determine that.
    """
    try:
        return HASH + _hash_of(_traced(name, function, args))
    except _NoText:
        return UNKNOWN


def _hash_of(parts: Iterator[bytes]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())  # of parts: where one ends is part of it
    return whole.hexdigest()


def _parts(problem: Problem, x: PyTree, y: PyTree) -> Iterator[bytes]:
    (x, x_rest), (y, y_rest) = split_variable("x", x), split_variable("y", y)
    x, y = doubled((x, y))
    batches = {"upper": (_batch("zeta", problem.zeta),), "lower": (_batch("xi", problem.xi),)}
    for name in FUNCTIONS:
        yield from _traced(name, with_rests(getattr(problem, name), x_rest, y_rest), (x, y, *batches.get(name, ())))
    for name in ("x_set", "y_set"):
        yield from _tree(name, getattr(problem, name))
    for name in ("zeta", "xi"):
        yield from _hashed_source(name, getattr(problem, name))


def _traced(name: str, function: Function, args: tuple[PyTree, ...]) -> Iterator[bytes]:
    """The text of a function's trace and the bytes of every array that it closes over, its numbers among them."""
    trace, arrays = trace_function(name, function, function, args, lambda identity: None)
    _, identity, *texts = cast(tuple[PyTree, ...], trace.key)
    if not isinstance(identity, str):
        raise _NoText(f"{name} calls back to Python, or closes over arrays inside of loops or derivative rules")
    yield "\n".join([name, identity, *map(str, texts)]).encode()
    for array in arrays:
        yield _bytes(read(array))


def _bytes(array: np.ndarray) -> bytes:
    """Shape, kind and numbers, the same on every machine."""
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    return f"{array.dtype.name}{array.shape}".encode() + little.tobytes()


def _tree(name: str, tree: PyTree) -> Iterator[bytes]:
    """The structure of a tree of sets or data, and its numbers in double precision."""
    leaves, structure = jax.tree.flatten(tree)
    text = str(structure)
    if " at 0x" in text or not all(map(eqx.is_array_like, leaves)):
        raise _NoText(f"{name} holds functions")
    yield f"{name}\n{text}".encode()
    for leaf in leaves:
        numbers = np.asarray(leaf)
        yield _bytes(numbers.astype(np.float64) if numbers.dtype.kind in "fiub" else numbers)


def _batch(name: str, source: AbstractSource | None) -> PyTree:
    """A batch of a source as shapes."""
    if source is None:
        return None
    if isinstance(source, Finite | Sampler):
        return source.shapes(TRACED_SAMPLES)
    raise _NoText(f"{name} comes from a stream, from files or a source of the user's own, which no text determines")


def _hashed_source(name: str, source: Finite | Sampler | None) -> Iterator[bytes]:
    if isinstance(source, Sampler):
        yield from _traced(f"{name}.draw", source.draw, (jax.random.key(0), TRACED_SAMPLES))
        yield from _tree(f"{name}.exact", source.exact)
    elif source is not None:
        yield from _tree(name, source.arrays)
