"""A problem made ready for compilation at given variables: each of its functions traced once per signature."""

from collections.abc import Callable, Hashable
from contextlib import nullcontext
from typing import Any, TypeVar

import equinox as eqx
import jax
from jax.stages import Compiled
from jaxtyping import PyTree

from hierax._base.errors import InputError
from hierax._base.trees import on_device
from hierax._compile import programs
from hierax._compile.placement import Placement
from hierax._compile.programs import Call, Flat, Form, Program, precision
from hierax._compile.tracing import Function, Hoisted, MissingTrace, Place, Trace, trace_function
from hierax._problem.problem import Problem, nothing
from hierax._problem.samples import AbstractSource, Sampler

Result = TypeVar("Result")
FUNCTIONS = ("upper", "lower", "constraints", "equalities", "upper_constraints")


class Bound:
    """A problem made ready for compilation at given variables: the host's side of the hoisting.

    `problem` is the pytree that programs take as an argument; `run` compiles and calls them. With `mixed`, functions
    may combine arrays of different precision even where the user forbids it: it is us who change the precision then.
    With a `placement` programs run on all devices of its mesh.
    """

    def __init__(
        self, problem: Problem, x_rest: PyTree, y_rest: PyTree, mixed: bool = False, placement: Placement | None = None
    ) -> None:
        self._mixed, self._placement = mixed, placement
        self._known: dict[Place, tuple[Trace, tuple[PyTree, ...]]] = {}  # in the order of tracing
        self._flat: dict[Hashable, Flat] = {}  # the problem, by the traces that it has and by precision
        self._first_forms: dict[Hashable, Form] = {}  # what the first program saw, by precision
        self.compile_seconds = 0.0

        def whole(function: Function) -> Function:
            return lambda x, y, *batch: function(eqx.combine(x, x_rest), eqx.combine(y, y_rest), *batch)

        # As called here, and as the user gave it:
        self._functions = {name: (whole(getattr(problem, name)), getattr(problem, name)) for name in FUNCTIONS}
        self._sources: dict[str, Any] = {"zeta": problem.zeta, "xi": problem.xi}
        for name, source in self._sources.items():
            if isinstance(source, Sampler):
                self._functions[f"{name}.draw"] = source.draw, source.draw
        self._sets = {name: getattr(problem, name) for name in ("x_set", "y_set")}

    def replace_source(self, name: str, source: AbstractSource) -> None:
        """What programs see as zeta or xi: data that lie on a mesh, or what stands for a Stream."""
        self._sources[name] = source
        self._flat.clear()
        self._first_forms.clear()

    @property
    def problem(self) -> Problem:
        """The problem with every function replaced by its traces so far."""
        return self._problem_with(tuple(self._known))

    def _problem_with(self, places: tuple[Place, ...]) -> Problem:
        functions = {name: self._hoisted(name, places) for name in FUNCTIONS}
        sources: dict[str, Any] = {name: self._source(name, places) for name in self._sources}
        return Problem(**functions, **self._sets, **sources)

    def _flattened(self, places: tuple[Place, ...]) -> Flat:
        """The problem with these traces as programs take it, in the precision of now."""
        key = places, precision()
        if key not in self._flat:
            self._flat[key] = programs.flattened(self._problem_with(places), self._placement)
        return self._flat[key]

    def _source(self, name: str, places: tuple[Place, ...]) -> AbstractSource | None:
        """A source as programs see it; a Stream or files that the host has not been asked to feed are none."""
        source = self._sources[name]
        if isinstance(source, Sampler):
            return Sampler(self._hoisted(f"{name}.draw", places), source.exact)
        return source if isinstance(source, AbstractSource) else None

    def _hoisted(self, name: str, places: tuple[Place, ...]) -> Hoisted:
        own = [(place.signature, *self._known[place]) for place in places if place.name == name]
        table = tuple((signature, trace) for signature, trace, _ in own)
        return Hoisted(tuple(arrays for _, _, arrays in own), name, table, self._placement)

    def trace(self, name: str, args: tuple[PyTree, ...]) -> PyTree:
        """Trace a function at a signature, once; returns the shapes of its output."""
        trace = self._traced(Place(name, args))
        return jax.tree.unflatten(trace.out_tree, trace.jaxpr.outvars)

    def _traced(self, place: Place) -> Trace:
        if place not in self._known:
            function, given = self._functions[place.name]
            with jax.numpy_dtype_promotion("standard") if self._mixed else nullcontext():
                traced = trace_function(place.name, function, given, place.args, programs.forget)
            if given is not nothing:
                _refuse_none(place.name, traced[0])
            self._known[place] = traced
        return self._known[place][0]

    def run(
        self,
        name: str,
        function: Function,
        *args: PyTree,
        static: Hashable = (),
        donate: bool = False,
        quick: bool = False,
    ) -> PyTree:
        """Call `function(problem, *args)` compiled; with `donate` the first of args may be overwritten.

        `quick` spends a quarter of the time on compiling, for code that takes two to three times as long to run.

        `function` must be determined by `name` and `static`, the problem and the arguments (no hidden inputs). A call
        that meets a user function at a new signature is started again once that is traced.
        """
        call, (compiled, other) = self._compiled(name, function, args, static, donate, quick)
        return eqx.combine(compiled(call.given, call.rest), other)

    def shapes(self, name: str, function: Function, *args: PyTree, static: Hashable = ()) -> PyTree:
        """What `run` would return with shapes in the place of arrays; nothing is compiled."""
        return self._with_traces(lambda call: programs.shapes_of(function, call), name, args, static, False)[1]

    def ready(self, name: str, function: Function, *args: PyTree, static: Hashable = ()) -> "Ready":
        """The program of `run`, compiled quickly, as a function of arrays shaped like `args`, for many short calls."""
        call, (compiled, other) = self._compiled(name, function, args, static, donate=False, quick=True)
        return Ready(compiled, call.rest[: call.of_problem], other)

    def _compiled(
        self, name: str, function: Function, args: tuple[PyTree, ...], static: Hashable, donate: bool, quick: bool
    ) -> tuple[Call, Program]:
        def attempt(call: Call) -> Program:
            program, seconds = programs.program_of(function, call, donate, quick, self._placement)
            self.compile_seconds += seconds
            return program

        return self._with_traces(attempt, name, args, static, donate)

    def _with_traces(
        self, attempt: Callable[[Call], Result], name: str, args: tuple[PyTree, ...], static: Hashable, donate: bool
    ) -> tuple[Call, Result]:
        """A call and the result of an attempt: with a program that is there, however its problem was traced; else with
        all traces so far, started again until every function is traced wherever it is called.
        """
        flat, now = programs.flattened(args, self._placement), precision()
        own = len(jax.tree.leaves(args[0], is_leaf=programs.is_number)) if donate else 0
        kind = (flat.form, name, static, donate, now)  # a program compiled without x64 is another one
        if (
            now not in self._first_forms
        ):  # the problem when the first program meets it: functions at the shapes of checks
            self._first_forms[now] = self._flattened(tuple(self._known)).form
        form = (self._first_forms[now], *kind)
        known = programs.traces_for(form)
        if known is not None:
            for place in known:
                self._traced(place)
            call = programs.taken_apart(self._flattened(known), flat, own, kind)
            if programs.known_program(call.key) is not None:
                return call, attempt(call)
        while True:
            places = tuple(self._known)
            call = programs.taken_apart(self._flattened(places), flat, own, kind)
            try:
                result = attempt(call)
            except MissingTrace as missing:
                self.trace(missing.name, missing.args_)
            else:
                programs.remember_traces(form, places)
                return call, result


def _refuse_none(name: str, trace: Trace) -> None:
    """Raise InputError where a user's function gives None instead of numbers, as one without a `return` does."""
    returned = jax.tree.unflatten(trace.out_tree, trace.jaxpr.outvars)
    for path, leaf in jax.tree_util.tree_leaves_with_path(returned, is_leaf=lambda node: node is None):
        if leaf is None:
            where = f" at {jax.tree_util.keystr(path)}" if path else ""
            raise InputError(
                f"{name}: gives None{where} where numbers are needed. Is its `return` missing? A problem that has no "
                "such function leaves the argument out."
            )


class Ready:
    """A compiled program with its first arguments: the problem, and what else stays the same from call to call."""

    def __init__(self, compiled: Compiled, first: list[PyTree], other: PyTree) -> None:
        self._compiled, self._first, self._other = compiled, first, other
        self._whole = not jax.tree.leaves(other)

    def __call__(self, *args: PyTree) -> PyTree:
        """The result for the other arguments."""
        result = self._compiled([], [*self._first, *jax.tree.leaves(args)])
        return result if self._whole else eqx.combine(result, self._other)

    def given(self, *args: PyTree) -> "Ready":
        """The same program with its next arguments fixed: handing over a NumPy array costs 4 us, every time."""
        arrays = [on_device(leaf) for leaf in jax.tree.leaves(args)]
        return Ready(self._compiled, [*self._first, *arrays], self._other)
