"""What every solver of the lower level offers; what it answers is `hierax._math.lower_level.LowerSolution`."""

import abc
import dataclasses
import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from hierax._base.constants import FINE
from hierax._compile.bound import Bound
from hierax._compile.configuration import in_own_configuration
from hierax._math.lower_level import Level, LowerSolution, RowVector
from hierax._problem.problem import Problem, Rows

CLEAR = FINE  # violations (in lengths) below this are never called infeasible, slacks below it are none


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
        bound = None if is_traced((arguments, problem, jnp.zeros(()))) else _bound_at(problem, x, y, xi)
        if bound is None:
            return solve(self, problem, x, y, xi, multipliers)

        def program(problem: Problem, solver: AbstractLowerSolver, *arrays: PyTree) -> LowerSolution:
            return solve(solver, problem, *arrays)

        return bound.run("lower solve", program, *arguments, quick=True)

    return wrapped


def _bound_at(problem: Problem, *point: PyTree) -> Bound | None:
    """The problem made ready for compilation; None where one of its functions closes over a traced array."""
    x, y, xi = jax.tree.map(jnp.asarray, point)
    no_x, no_y = (jax.tree.map(lambda _: None, tree) for tree in (x, y))
    bound = Bound(dataclasses.replace(problem, zeta=None, xi=None), no_x, no_y)
    for name, batch in (("lower", (xi,)), ("constraints", ()), ("equalities", ())):
        bound.trace(name, (x, y, *batch))
    return None if is_traced(bound.problem) else bound


def is_traced(tree: PyTree) -> bool:
    """Whether some leaf is a traced array."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def completed(level: Level, mu: RowVector, which: Bool[np.ndarray, " rows"]) -> RowVector:
    """Multipliers completed by those of the active rows among `which` that balance the Lagrangian's gradient.

    The least-squares solution, by conjugate gradients: the faces of Y are orthogonal, or nearly, and take few steps.
    """
    if not which.any():
        return mu
    rows, push = jax.linearize(level.rows, level.start)
    pull = jax.linear_transpose(push, level.start)
    active = which & (level.equal | (rows >= -CLEAR))
    gradient = jax.grad(level.objective)(level.start) + pull(mu)[0]

    def normal(m: RowVector) -> RowVector:
        return jnp.where(active, push(pull(jnp.where(active, m, 0.0))[0]), m)

    found, _ = jax.scipy.sparse.linalg.cg(normal, jnp.where(active, -push(gradient), 0.0))
    return level.signed(mu + jnp.where(active, found, 0.0))
