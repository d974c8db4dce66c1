"""The one judge of a point (x, y): F, G, how much it violates, and how far it is from the lower level's value v(x).

    gap = (G(x, y) - v(x)) / (1 + |v(x)|)

is the one relative gap, here and wherever else a gap is reported. `point_values` goes into compiled programs;
`judge_in` and `judge_point` are for the host. What it takes to trust a point beyond that: `certificate.py`.

`nearest_kept` moves y to where it keeps the constraints of the lower level, for those too large to be solved: the inner
solver's answer violates active rows by what its penalty leaves. Every round moves y by the shortest way to where the
linearised rows that are violated vanish, v = J'(JJ')^-1 h, and projects it on Y: Newton's method on the violated rows,
without their matrix (conjugate gradients on JJ').
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree, Scalar

from hierax._base import trees
from hierax._base.constants import FRESH_SAMPLES
from hierax._base.trees import Number, dtype_of, largest, select
from hierax._compile.configuration import in_own_configuration
from hierax._engine.float64_problem import Data, Float64Problem
from hierax._judge.measuring import NOISE
from hierax._math.psi import all_constraints, excess, violation
from hierax._math.spectrum import conjugate_gradients
from hierax._problem import sets
from hierax._problem.problem import Problem, Rows


class Judgement(NamedTuple):
    """What is known of a point: scalars inside of programs, floats on the host.

    Attributes:
        upper: F(x, y).
        lower: G(x, y).
        violation: the largest [h_i]_+, |e_j|, upper constraint, or distance of an entry to X or Y.
        upper_violation: the largest of the upper constraints alone.
        gap: (G(x, y) - v) / (1 + |v|), v the value of the lower level; NaN where that is not known.
    """

    upper: Scalar | float
    lower: Scalar | float
    violation: Scalar | float
    upper_violation: Scalar | float
    gap: Scalar | float


def violations(problem: Problem, x: PyTree, y: PyTree) -> dict[str, PyTree]:
    """How much each constraint, and each entry's membership in X and Y, is violated, by the name of its block."""
    beyond = violation(all_constraints(problem, x, y))
    return {
        "constraints": beyond.inequalities,
        "equalities": beyond.equalities,
        "upper_constraints": beyond.upper,
        "x in X": jax.tree.map(lambda a, b: jnp.abs(a - b), x, sets.project(problem.x_set, x)),
        "y in Y": jax.tree.map(lambda a, b: jnp.abs(a - b), y, sets.project(problem.y_set, y)),
    }


def relative_gap(lower: Number, value: Number) -> Number:
    """(G - v) / (1 + |v|)."""
    return (lower - value) / (1 + abs(value))


def point_values(problem: Problem, data: Data, x: PyTree, y: PyTree) -> Judgement:
    """The judgement of (x, y), without the lower level's value."""
    beyond, lower = violations(problem, x, y), problem.lower(x, y, data.xi)
    return Judgement(
        upper=problem.upper(x, y, data.zeta),
        lower=lower,
        violation=largest(beyond, dtype_of(x, y)),
        upper_violation=largest(beyond["upper_constraints"], dtype_of(x, y)),
        gap=jnp.full_like(lower, jnp.nan),
    )


def judge_in(setting: Float64Problem) -> Judgement:
    """The judgement of the setting's point, on all of its data."""
    return Judgement(*map(float, setting.run("judge", point_values, setting.x, setting.y, quick=True)))


@in_own_configuration
def judge_point(problem: Problem, x: PyTree, y: PyTree) -> Judgement:
    """The judgement of a point of a problem, in float64 and without its lower level's value. Not for a `Stream`."""
    return judge_points(problem, [(x, y)])[0]


@in_own_configuration
def judge_points(problem: Problem, points: Sequence[tuple[PyTree, PyTree]]) -> list[Judgement]:
    """`judge_point` of several points, with one program and the same samples."""
    first = Float64Problem.of(problem, *points[0], FRESH_SAMPLES, seed=0)
    return [judge_in(first.at(x, y)) for x, y in points]


def nearer(problem: Problem, x: PyTree, y: PyTree) -> PyTree:
    """y after one round; in Y, and unchanged where it keeps all rows."""
    beyond, pull_back = jax.vjp(lambda at: excess(problem.rows(x, at)), y)
    if not jax.tree.leaves(beyond):
        return sets.project(problem.y_set, y)

    def product(v: Rows) -> Rows:
        return jax.jvp(lambda at: excess(problem.rows(x, at)), (y,), (pull_back(v)[0],))[1]

    return sets.project(problem.y_set, trees.sub(y, pull_back(conjugate_gradients(product, beyond))[0]))


def nearest_kept(problem: Problem, data: Data, x: PyTree, y: PyTree) -> tuple[PyTree, Scalar]:
    """y moved until it keeps the rows at x, and the largest violation that is left; y itself where none gets smaller.

    The rounds end where one of them does not halve the violation: a convex row is kept after four or five. The samples
    are not looked at: what the lower level asks for beyond its constraints stays as y has it.
    """
    del data

    def worst(y: PyTree) -> Scalar:
        return largest(jax.tree.map(jnp.abs, excess(problem.rows(x, y))), jax.tree.leaves(y)[0].dtype)

    def body(state: tuple[PyTree, Scalar, Scalar]) -> tuple[PyTree, Scalar, Scalar]:
        y, left, _ = state
        moved = nearer(problem, x, y)
        after = worst(moved)
        better = after < left
        return select(better, moved, y), jnp.where(better, after, left), after < 0.5 * left

    def going(state: tuple[PyTree, Scalar, Scalar]) -> Scalar:
        return (state[1] > NOISE) & state[2]

    y, left, _ = jax.lax.while_loop(going, body, (y, worst(y), jnp.asarray(True)))
    return y, left
