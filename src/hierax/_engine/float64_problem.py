"""A problem and a point in double precision, on all of the data: what every judgement is computed on.

A `Float64Problem` enters float64 by itself, in each of its methods, and hands out NumPy arrays: it can be kept, and
asked from anywhere, whatever the caller's configuration. Nothing else here or above enters float64. Functions that
close over float32 arrays promote: their results are float64, with the accuracy that those arrays leave.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from hierax._base.errors import InputError
from hierax._base.jaxprs import Curvature, curvatures, degree, depends_on_arguments
from hierax._base.kinks import KINKS, Function, can_be_opened, heights, nearest_kink, opened
from hierax._base.sample_kinks import has_sample_kinks, without_sample_kinks
from hierax._base.trees import split_variable
from hierax._compile.bound import Bound
from hierax._compile.configuration import doubled, doubled_on_host, float64, is_double, on_host
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.linear import ROUNDING as ROUNDING
from hierax._lower.linear import OutOfTime, Stop
from hierax._math.lower_level import EQUAL, Layout, LowerSolution, blocks_at, layout_of, unraveled
from hierax._problem import sets
from hierax._problem.problem import CONSTRAINTS, Multipliers, Problem, Rows, nothing
from hierax._problem.samples import Finite, FiniteFiles, Sampler, Stream, is_spread_over_processes

FEW = 3  # looks, starts, patterns or tries, where one should do or each is costly
GROUPS = 16  # groups of fresh samples, whose differences show the standard error


class Data(NamedTuple):
    """The batches that stand for both expectations, as programs get them."""

    zeta: PyTree
    xi: PyTree


class Expectation(NamedTuple):
    """What stands for an expectation, in words, and whether it is only a (`fresh`) sample."""

    fresh: bool
    text: str


Made = TypeVar("Made")
Program = Callable[..., PyTree]
"""What a Float64Problem compiles: program(problem, data, *args), determined by its name, `static` and its inputs."""

HostProgram = Callable[..., PyTree]
"""A compiled program in float64, from NumPy's arrays to NumPy's."""


@dataclasses.dataclass(frozen=True)
class Float64Problem:
    """A problem and a point (x, y) in double precision.

    Attributes:
        x: the arrays of the point, NumPy's of float64.
        y: likewise.
        x_rest: what of x is no array (the functions inside an Equinox module).
        y_rest: likewise.
        zeta: what stands for the upper expectation.
        xi: what stands for the lower expectation.
        bound: the compiled side of the problem.
        tops: the kinks of G at (x, y), where they became unknowns (`hierax._base.kinks`): y is a pair then.
        stop: where it says so, `OutOfTime` is raised instead of another call of a program.
    """

    x: PyTree
    y: PyTree
    x_rest: PyTree
    y_rest: PyTree
    zeta: Expectation
    xi: Expectation
    bound: Bound = dataclasses.field(repr=False)
    _data: Data = dataclasses.field(repr=False)
    tops: Callable[[PyTree, PyTree], Array] | None = None
    stop: Stop = lambda: False
    _known: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)  # see `once`

    @staticmethod
    def of(
        problem: Problem,
        x: PyTree,
        y: PyTree,
        samples: int,
        seed: int,
        bound: Bound | None = None,
        open_kinks: bool = False,
    ) -> "Float64Problem":
        """The setting of a problem at a point; `samples` fresh ones stand for an expectation that is not known.

        `bound` is the problem as it was made ready for a run at variables like x and y: where everything is float64
        already it is used, so that nothing is traced twice; else the setting makes its own. `open_kinks`: whether kinks
        of G may become unknowns, so that y is a pair.
        """
        refuse(problem, samples, seed)
        problem, _ = smooth_in_samples(problem, x, y)
        with float64():
            (x, x_rest), (y, y_rest) = split_variable("x", x), split_variable("y", y)
            if bound is None or not is_double(x, y, bound.problem):
                bound = _bound(problem, x_rest, y_rest)
            x, y = doubled_on_host((x, y))
            tops = _tops(bound, x, y) if open_kinks and problem.xi is None else None
            if tops is not None:
                problem, y, y_rest = _opened(problem), (y, doubled_on_host(tops(x, y))), (y_rest, None)
                bound = _bound(problem, x_rest, y_rest)
            above, below = (_batch(problem, bound, name, seed, samples) for name in ("zeta", "xi"))
            # The key of a program holds all traces of its problem: if they grew on the way, it would compile twice.
            for name in CONSTRAINTS:
                bound.trace(name, (x, y))
            for name, (expectation, rows) in (("upper", above), ("lower", below)):
                bound.trace(name, (x, y, rows))
                if expectation.fresh:
                    part = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), _grouped(rows))
                    bound.trace(name, (x, y, part))
        return Float64Problem(x, y, x_rest, y_rest, above[0], below[0], bound, Data(above[1], below[1]), tops)

    @property
    def sampled(self) -> bool:
        """Whether any expectation is only known from a sample."""
        return self.zeta.fresh or self.xi.fresh

    @property
    def fresh_samples(self) -> int:
        """How many fresh samples stand for an expectation; zero where both are known."""
        batch = self._data.xi if self.xi.fresh else self._data.zeta if self.zeta.fresh else None
        leaves = jax.tree.leaves(batch)
        return int(leaves[0].shape[0]) if leaves else 0

    @property
    def numbers(self) -> int:
        """How many numbers the functions go through: the data, and the arrays that they close over."""
        arrays = filter(eqx.is_array_like, jax.tree.leaves((self._data, self.bound.problem)))
        return sum(np.size(array) for array in {id(one): one for one in arrays}.values())

    def at(self, x: PyTree, y: PyTree) -> "Float64Problem":
        """The same problem, data and programs at another point."""
        with float64():
            x, y = (doubled_on_host(split_variable(name, tree)[0]) for name, tree in (("x", x), ("y", y)))
            y = y if self.tops is None else (y, doubled_on_host(self.tops(x, y)))
        return dataclasses.replace(self, x=x, y=y)

    def on_samples(self, **batches: PyTree) -> "Float64Problem":
        """The same problem and programs with other samples: `zeta`, `xi` or both."""
        with float64():
            return dataclasses.replace(self, _data=self._data._replace(**doubled(batches)))

    def run(self, name: str, program: Program, *args: PyTree, static: Hashable = (), **speed: bool) -> PyTree:
        """`program(problem, data, *args)`, compiled, in float64; the result's arrays are NumPy's (see `Bound.run`)."""
        _look_at_the_clock(self.stop)
        with float64():
            return on_host(self.bound.run(name, program, self._data, *args, static=static, **speed))

    def ready(self, name: str, program: Program, *args: PyTree, fixed: tuple[PyTree, ...] = ()) -> HostProgram:
        """The program of `run` as a function of arrays shaped like `args`, for many short calls (see `Bound.ready`).

        `fixed`: what stands before them in every call.
        """
        _look_at_the_clock(self.stop)
        with float64():
            compiled = self.bound.ready(name, program, self._data, *fixed, *args).given(self._data, *fixed)

        def call(*args: PyTree) -> PyTree:
            _look_at_the_clock(self.stop)
            with float64():
                result = compiled(*args)
            return np.asarray(result) if isinstance(result, jax.Array) else on_host(result)  # spares 6 of 50 us

        return call

    def run_on_groups(self, name: str, program: Program, *args: PyTree) -> PyTree:
        """`run` on each of GROUPS parts of what is only a sample, on a new leading axis; for standard errors."""

        def mapped(problem: Problem, data: Data, *args: PyTree) -> PyTree:
            parts = {key: leaves for key, leaves in data._asdict().items() if getattr(self, key).fresh}
            return jax.lax.map(lambda part: program(problem, data._replace(**part), *args), _grouped(parts))

        fresh = (self.zeta.fresh, self.xi.fresh)
        return self.run(name, mapped, *args, static=fresh, quick=True)  # it runs once

    def unvarying(self) -> tuple[str, ...]:
        """The sources ("zeta", "xi") whose fresh samples left a function that uses them, and its gradient, unchanged.

        Nothing is known of the noise then: it may be zero, or rare.
        """
        fresh = {name: of for name, of in (("zeta", "upper"), ("xi", "lower")) if getattr(self, name).fresh}

        def program(problem: Problem, data: Data, x: PyTree, y: PyTree) -> dict[str, PyTree]:
            gradients = {name: jax.value_and_grad(getattr(problem, of), (0, 1)) for name, of in fresh.items()}
            return {name: gradient(x, y, getattr(data, name)) for name, gradient in gradients.items()}

        def uses(name: str) -> bool:
            function = functools.partial(getattr(self.bound.problem, fresh[name]), self.x, self.y)
            return depends_on_arguments(function, getattr(self._data, name))

        seen = self.run_on_groups("variation", program, self.x, self.y) if fresh else {}
        same = [name for name in fresh if all(map(_is_rounding, jax.tree.leaves(seen[name])))]
        with float64():
            return tuple(filter(uses, same))

    def solve_lower(self, solver: AbstractLowerSolver, x: PyTree, y: PyTree) -> LowerSolution:
        """The lower level at x on all of xi, from y and multipliers of zero."""

        def program(
            problem: Problem, data: Data, solver: AbstractLowerSolver, x: PyTree, y: PyTree, multipliers: Rows
        ) -> LowerSolution:
            return solver.solve(problem, x, y, data.xi, multipliers)

        zero = Rows(*jax.tree.map(lambda row: np.zeros(row.shape), self.shapes()[:2]))
        return self.run("reference", program, solver, x, y, zero)

    def shapes(self) -> Multipliers:
        """Shapes and dtypes of what the functions of constraints return."""
        with float64():
            returned = Multipliers(*(self.bound.trace(name, (self.x, self.y)) for name in CONSTRAINTS))
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.aval.shape, leaf.aval.dtype), returned)

    def layout(self) -> Layout:
        """The rows of the lower level as a vector."""
        with float64():
            return self.once("layout", lambda: layout_of(self.bound.problem, self.x, self.y))

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """What `make` returns, made once for all points of the setting (`at`): it must not depend on the point."""
        if name not in self._known:
            self._known[name] = make()
        return self._known[name]

    def whole(self, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        """Arrays put back into the variables that the caller stated."""
        y = eqx.combine(y, self.y_rest)
        return eqx.combine(x, self.x_rest), y if self.tops is None else y[0]


def _look_at_the_clock(stop: Stop) -> None:
    if stop():
        raise OutOfTime


def kink_near(setting: Float64Problem) -> tuple[float, str]:
    """How far the setting's point is from the nearest kink of its programs, and which primitive makes it."""
    problem, (zeta, xi) = setting.bound.problem, setting._data

    def functions(x: PyTree, y: PyTree) -> PyTree:
        return (
            problem.upper(x, y, zeta),
            problem.lower(x, y, xi),
            problem.rows(x, y),
            problem.upper_constraints(x, y),
        )

    with float64():
        return nearest_kink(functions, setting.x, setting.y)


def own_rows(setting: Float64Problem, rows: PyTree) -> PyTree:
    """Of numbers of the constraints those of the caller's own."""
    return rows if setting.tops is None else rows.get("own")


def smooth_in_samples(problem: Problem, x: PyTree, y: PyTree) -> tuple[Problem, list[str]]:
    """The problem without kinks of single samples (`hierax._base.sample_kinks`), and the objectives that had some."""
    smooth: dict[str, Any] = {}
    for name, source in (("upper", problem.zeta), ("lower", problem.xi)):
        if isinstance(source, Sampler) and source.exact is None:
            batch = jax.eval_shape(lambda source=source: source.draw(jax.random.key(0), GROUPS))
            if has_sample_kinks(getattr(problem, name), x, y, batch):
                smooth[name] = without_sample_kinks(getattr(problem, name))
    return dataclasses.replace(problem, **smooth) if smooth else problem, list(smooth)


def proved_curvatures(setting: Float64Problem) -> list[Curvature]:
    """What is proved of every row as a function of (x, y): upper constraints, faces of X, rows of the lower level."""
    problem = setting.bound.problem

    def rows(x: PyTree, y: PyTree) -> PyTree:
        return problem.upper_constraints(x, y), upper_faces(problem.x_set, x), blocks_at(problem, x, y)

    with float64():
        leaves = jax.tree.leaves(jax.eval_shape(rows, setting.x, setting.y))
        found = curvatures(rows, setting.x, setting.y)
    return [one for one, leaf in zip(found, leaves, strict=True) for _ in range(leaf.size)]


def _bound(problem: Problem, x_rest: PyTree, y_rest: PyTree) -> Bound:
    """The problem ready to compile, in double precision."""
    zeta, xi = (one if isinstance(one, FiniteFiles) else doubled(one) for one in (problem.zeta, problem.xi))
    return Bound(dataclasses.replace(problem, zeta=zeta, xi=xi), x_rest, y_rest, mixed=True)


def _tops(bound: Bound, x: PyTree, y: PyTree) -> Function | None:
    """The kinks of G at a point, as a function of it; None where there are none that can be opened."""
    bound.trace("lower", (x, y, None))
    problem = bound.problem

    def lower(x: PyTree, y: PyTree) -> PyTree:
        return problem.lower(x, y, None)

    text = str(jax.make_jaxpr(lower)(x, y))
    if "stop_gradient" in text or not any(name in text for name in KINKS):
        return None
    boxes = [sets.bounds(part, tree) for part, tree in ((problem.x_set, x), (problem.y_set, y))]
    low, high = ([unraveled(tree, box[i]) for tree, box in zip((x, y), boxes, strict=True)] for i in (0, 1))
    return functools.partial(heights, lower) if can_be_opened(lower, x, y, tuple(low), tuple(high)) else None


def _opened(problem: Problem) -> Problem:
    """The problem whose y is a pair: the stated y, and unknowns in the place of the kinks of G."""

    def rows(x: PyTree, y: PyTree) -> PyTree:
        seen = opened(lambda x, y: problem.lower(x, y, None), x, *y)
        kinks = [piece - top for piece, top in zip(seen.pieces, seen.tops, strict=True)]
        own = {} if problem.constraints is nothing else {"own": problem.constraints(x, y[0])}
        return own | {"pieces of kinks": kinks}

    def of_stated(function: Function) -> Function:
        return nothing if function is nothing else lambda x, y: function(x, y[0])

    return dataclasses.replace(
        problem,
        upper=lambda x, y, zeta: problem.upper(x, y[0], zeta),
        lower=lambda x, y, xi: opened(lambda x, y: problem.lower(x, y, xi), x, *y).value,
        constraints=rows,
        equalities=of_stated(problem.equalities),
        upper_constraints=of_stated(problem.upper_constraints),
        y_set=(problem.y_set, sets.Free()),
    )


def convex_below(setting: Float64Problem, x: PyTree, convex_here: Callable[[], bool]) -> bool:
    """Whether the programs of G and the rows prove that L = G + mu.rows, mu >= 0, is convex in y at x.

    By the rules of convex programming, or as polynomials of second degree that are `convex_here`, at one y.
    """
    problem, blocks = setting.bound.problem, setting.layout().shapes

    def functions(y: PyTree) -> PyTree:
        return problem.lower(x, y, setting._data.xi), blocks_at(problem, x, y)

    with float64():
        if setting.once("degree below", lambda: degree(functions, setting.y)) <= 2:
            return convex_here()
        lower, *rows = curvatures(functions, setting.y)
    equal = [flag for flag, block in zip(EQUAL, blocks, strict=True) for _ in jax.tree.leaves(block)]
    return lower.is_convex and all(r.is_affine if e else r.is_convex for r, e in zip(rows, equal, strict=True))


def upper_faces(x_set: PyTree, x: PyTree) -> sets.Faces:
    """The faces of X among the upper constraints: none where they are bounds on single entries, which boxes keep."""
    return sets.Faces(None, None) if sets.all_entrywise(x_set) else sets.faces(x_set, x)


def standard_error(groups: np.ndarray) -> np.ndarray:
    """Of the mean over the groups (leading axis), entry by entry."""
    return np.std(groups, axis=0, ddof=1) / GROUPS**0.5


def _is_rounding(groups: np.ndarray) -> bool:
    """Whether means over groups (leading axis) differ by no more than adding up the same numbers in another order."""
    return bool(np.all(np.ptp(groups, axis=0) <= GROUPS**2 * np.finfo(float).eps * np.max(np.abs(groups), axis=0)))


def refuse(problem: object, samples: object, seed: object) -> None:
    """Raise InputError where nothing can be judged."""
    if not isinstance(problem, Problem):
        raise InputError(f"problem: needs a hx.Problem, got {type(problem).__name__}.")
    for name, value, least in (("samples", samples, 2 * GROUPS), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name}={value!r}: needs a whole number >= {least}.")
    for name in ("zeta", "xi"):
        if is_spread_over_processes(getattr(problem, name)):
            raise InputError(
                f"Problem({name}): Finite(..., local=True) has this process's rows only, so nothing can be judged on "
                "it. Judge the point in one process, on all rows: hx.certify(problem, x, y) with hx.Finite(arrays)."
            )
        if isinstance(getattr(problem, name), Stream):
            raise InputError(
                f"Problem({name}): a Stream is never seen as a whole, so nothing can be judged on it. Judge the point "
                f"on data at hand: dataclasses.replace(problem, {name}=hx.Finite(arrays))."
            )


def _grouped(rows: PyTree) -> PyTree:
    """A sample cut into GROUPS parts, on a new leading axis."""
    return jax.tree.map(lambda leaf: leaf.reshape(GROUPS, -1, *leaf.shape[1:]), rows)


def _batch(problem: Problem, bound: Bound, name: str, seed: int, samples: int) -> tuple[Expectation, PyTree]:
    """What stands for an expectation, in words and as a batch; inside of `float64()`."""
    files = getattr(problem, name)
    if isinstance(files, FiniteFiles):
        return _rows_of_files(name, files, seed, samples)
    source = getattr(bound.problem, name)
    if source is None:
        return Expectation(False, f"{name}: none"), None
    if isinstance(source, Finite):
        return Expectation(False, f"{name}: all {source.size} rows"), source.full()
    if source.exact is not None:
        return Expectation(False, f"{name}: the exact expectation"), source.exact
    count = samples - samples % GROUPS

    def draw(problem: Problem, seed: Int[Array, ""]) -> PyTree:
        above, below = jax.random.split(jax.random.key(seed))
        return getattr(problem, name).draw(above if name == "zeta" else below, count)

    drawn = doubled(bound.run("draw", draw, seed, static=(name, count)))
    return Expectation(True, f"{name}: {count} fresh samples"), drawn


def _rows_of_files(name: str, files: FiniteFiles, seed: int, samples: int) -> tuple[Expectation, PyTree]:
    """All rows of files where they are no more than `samples`, else that many different ones."""
    if files.size <= samples:
        text, count = f"{name}: all {files.size} rows", files.size
    else:
        count = samples - samples % GROUPS
        text = f"{name}: {count} of {files.size} rows"
    rows = files.some_rows(count, (seed, name == "xi"))
    return Expectation(count < files.size, text), doubled(jax.tree.map(jnp.asarray, rows))
