"""What every solver of the lower level offers; what it answers is `hierax._math.lower_level.LowerSolution`."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Hashable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from hierax._base.trees import shape_of
from hierax._compile.bound import Bound
from hierax._compile.configuration import in_own_configuration
from hierax._compile.unchanged import Seen, Unknown
from hierax._math.lower_level import LowerSolution
from hierax._problem.problem import Problem, Rows

TRACING = ("jax_default_matmul_precision", "jax_numpy_rank_promotion")  # settings of JAX's that a trace depends on


class AbstractLowerSolver(eqx.Module):
    """A deterministic solver of the lower level, a pure function of arrays: it compiles and maps.

        y*(x) = argmin over y in Y of  G(x, y)   subject to  h(x, y) <= 0,  e(x, y) = 0

    Examples:
        >>> import hierax as hx
        >>> sorted(hx.AbstractLowerSolver.__abstractmethods__)  # what a solver of your own must write
        ['solve']
        >>> isinstance(hx.Exact(), hx.AbstractLowerSolver)
        True

    References:
        docs/methods/lower-solvers.md
    """

    @abc.abstractmethod
    def solve(
        self, problem: Problem, x: PyTree, y: PyTree, xi: PyTree = None, multipliers: Rows | None = None
    ) -> LowerSolution:
        """Solve the lower level at x from y; `xi` is the batch that stands for the expectation (`samples.whole`)."""

    def on_host(
        self, problem: Problem, x: PyTree, y: PyTree, xi: PyTree, multipliers: Rows | None
    ) -> LowerSolution | None:
        """What `solve` answers outside of jit, where arrays are known, by quicker means; None: by its own."""
        return None

    def doubts(self, problem: Problem, x: PyTree, y: PyTree, xi: PyTree) -> dict[str, Bool[Array, ""]]:
        """Reasons why the solver does not fit the problem, each with a flag that is True where it applies."""
        return {}


Solve = Callable[..., LowerSolution]


def compiled_where_called(solve: Solve) -> Solve:
    """The method `solve` of a lower solver, compiled by itself where nothing around it does.

    Inside of jit, vmap and grad it is what it is. Outside, problems of equal form share a program (`Bound.run`): loops
    of a solver that are compiled afresh for every call would take a hundred times as long as the call.
    """

    @functools.wraps(solve)
    @in_own_configuration
    def wrapped(
        self: AbstractLowerSolver,
        problem: Problem,
        x: PyTree,
        y: PyTree,
        xi: PyTree = None,
        multipliers: Rows | None = None,
    ) -> LowerSolution:
        arguments = (self, x, y, xi, multipliers)
        if _is_traced((arguments, problem, jnp.zeros(()))):
            return solve(self, problem, x, y, xi, multipliers)
        found = self.on_host(problem, x, y, xi, multipliers)
        if found is not None:
            return found
        bound = bound_at(problem, x, y, xi)
        if bound is None:
            return solve(self, problem, x, y, xi, multipliers)

        def program(problem: Problem, solver: AbstractLowerSolver, *arrays: PyTree) -> LowerSolution:
            return solve(solver, problem, *arrays)

        return bound.run("lower solve", program, *arguments)

    return wrapped


def bound_at(problem: Problem, x: PyTree, y: PyTree, xi: PyTree, mixed: bool = False) -> Bound | None:
    """The problem made ready for compilation; None where one of its functions closes over a traced array.

    With `mixed` the variables may be of another precision than the arrays that the functions close over. The last one
    serves again where it is the same problem and nothing that its functions can see has changed.
    """
    form = (*_shapes((x, y, xi)), mixed, *(getattr(jax.config, name) for name in TRACING))
    try:
        last = _last.pop()  # out of reach of other threads while it is in use here
    except IndexError:
        last = None
    if last is None or not last.serves(problem, form):
        bound = _newly_bound(problem, (x, y, xi), mixed)
        if bound is None:
            return None
        last = _Last.of(problem, form, bound)
    if last is not None:
        _last[:] = [last]
        return last.bound
    return bound


class _Last(NamedTuple):
    """A problem that was made ready, and when that serves again.

    Attributes:
        problem: as the user gave it.
        form: of its variables and batch, and what else tracing depends on.
        seen: all that its functions can see.
        bound: the problem made ready.
    """

    problem: Problem
    form: Hashable
    seen: Seen
    bound: Bound

    @staticmethod
    def of(problem: Problem, form: Hashable, bound: Bound) -> "_Last | None":
        """None where nobody can tell whether it has changed."""
        try:
            return _Last(problem, form, Seen(*_parts(problem)), bound)
        except Unknown:
            return None

    def serves(self, problem: Problem, form: Hashable) -> bool:
        return problem is self.problem and form == self.form and self.seen.unchanged(*_parts(problem))


_last: list[_Last] = []  # at most one


def _parts(problem: Problem) -> tuple[Callable[..., PyTree], Callable[..., PyTree], Callable[..., PyTree], PyTree]:
    return problem.lower, problem.constraints, problem.equalities, problem.y_set


def _shapes(tree: PyTree) -> tuple[PyTree, ...]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(shape_of(leaf) for leaf in leaves)


def _newly_bound(problem: Problem, point: tuple[PyTree, PyTree, PyTree], mixed: bool) -> Bound | None:
    x, y, xi = jax.tree.map(jnp.asarray, point)
    no_x, no_y = (jax.tree.map(lambda _: None, tree) for tree in (x, y))
    bound = Bound(dataclasses.replace(problem, zeta=None, xi=None), no_x, no_y, mixed=mixed)
    for name, batch in (("lower", (xi,)), ("constraints", ()), ("equalities", ())):
        bound.trace(name, (x, y, *batch))
    return None if _is_traced(bound.problem) else bound


def _is_traced(tree: PyTree) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))
