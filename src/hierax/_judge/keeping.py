"""A y that keeps the constraints of the lower level, near one that does not: for lower levels too large to be solved.

The inner solver's answer violates active rows by what its penalty leaves. Every round moves y by the shortest way to
where the linearised rows that are violated vanish, v = J'(JJ')^-1 h, and projects it on Y: Newton's method on the
violated rows, without their matrix (conjugate gradients on JJ').
"""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree, Scalar

from hierax._base import trees
from hierax._base.trees import largest, select
from hierax._engine.float64_problem import Data
from hierax._math.lagrangian import blockwise
from hierax._math.spectrum import conjugate_gradients
from hierax._problem import sets
from hierax._problem.problem import Problem, Rows

ROUNDS = 20  # a convex row is kept to rounding after four or five
CLOSE = 1e-7  # violation, in the user's units, that ends the rounds


def excess(problem: Problem, x: PyTree, y: PyTree) -> Rows:
    """By how much y violates the rows of the lower level at x."""
    return blockwise(lambda h: jnp.maximum(h, 0.0), lambda e: e, problem.rows(x, y))


def nearer(problem: Problem, x: PyTree, y: PyTree) -> PyTree:
    """y after one round; in Y, and unchanged where it keeps all rows."""
    beyond, pull_back = jax.vjp(lambda at: excess(problem, x, at), y)
    if not jax.tree.leaves(beyond):
        return sets.project(problem.y_set, y)

    def product(v: Rows) -> Rows:
        return jax.jvp(lambda at: excess(problem, x, at), (y,), (pull_back(v)[0],))[1]

    return sets.project(problem.y_set, trees.sub(y, pull_back(conjugate_gradients(product, beyond))[0]))


def nearest_kept(problem: Problem, data: Data, x: PyTree, y: PyTree) -> tuple[PyTree, Scalar]:
    """y moved until it keeps the rows at x, and the largest violation that is left; y itself where none gets smaller.

    The samples are not looked at: what the lower level asks for beyond its constraints stays as y has it.
    """
    del data

    def worst(y: PyTree) -> Scalar:
        return largest(jax.tree.map(jnp.abs, excess(problem, x, y)), jax.tree.leaves(y)[0].dtype)

    def body(state: tuple[PyTree, Scalar, Scalar]) -> tuple[PyTree, Scalar, Scalar]:
        y, left, rounds = state
        moved = nearer(problem, x, y)
        after = worst(moved)
        better = after < left
        return (
            select(better, moved, y),
            jnp.where(better, after, left),
            jnp.where(better, rounds + 1, ROUNDS).astype(rounds.dtype),
        )

    def going(state: tuple[PyTree, Scalar, Scalar]) -> Scalar:
        return (state[1] > CLOSE) & (state[2] < ROUNDS)

    y, left, _ = jax.lax.while_loop(going, body, (y, worst(y), jnp.zeros((), jnp.int32)))
    return y, left
