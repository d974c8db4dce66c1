"""The parts of SALVF's outer step: its state, the set of z, how y follows and x keeps pace, and what a step reports."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.settings import is_transformation
from hierax._base.trees import dtype_of, largest, size
from hierax._math.lagrangian import nonnegative
from hierax._math.psi import Inner, Point, PsiGradient, gradient_mapping, violation
from hierax._methods.common import raw_size
from hierax._methods.pace import Below, Pace, Watch, paced
from hierax._methods.salvf_settings import SALVFSettings
from hierax._methods.steps import rate
from hierax._problem import sets
from hierax._problem.problem import Multipliers, Problem, Rows
from hierax._problem.sets import AbstractSet
from hierax._run.method import Metrics, Residual


class SALVFState(NamedTuple):
    """Everything that changes from step to step.

    Attributes:
        point: x, y, the envelope's centre z and the outer multiplier nu.
        w: the inner solver's last w.
        lam: its last lam, of the scaled constraints.
        memory: what the direction remembers (Storm).
        rules: states of the three step rules.
        watch: what corrects the estimated steps on the way.
        step: outer steps made.
        key: of all samples of the run.
    """

    point: Point
    w: PyTree
    lam: Rows
    memory: PyTree
    rules: tuple[PyTree, PyTree, PyTree]
    watch: Watch
    step: Int[Array, ""]
    key: PRNGKeyArray


class MultiplierSet(AbstractSet):
    """Where z lives: z >= 0 for inequalities, free for equalities; with `top` the box Z of the paper's eq. 11."""

    top: Rows | None = None

    def project(self, tree: Rows) -> Rows:
        return nonnegative(tree, self.top)


def top_of_z(method: SALVFSettings) -> Rows | None:
    """The upper corner of Z = [0, B/sqrt(p)]^p in the units of the scaled constraints; None where B is not given."""
    if method.bound is None:
        return None
    rows = Rows(method.scales.inequalities, method.scales.equalities)
    side = method.bound / np.sqrt(max(1, size(rows)))
    return jax.tree.map(lambda scale: side * scale, rows)


def paced_after(
    method: SALVFSettings, state: SALVFState, factor: Scalar | float, before: Point, x: PyTree, inner: Inner
) -> Pace:
    """The pace of the x-step after the step from `before` to x, `factor` times as long as estimated."""
    assert state.watch.pace is not None
    length = factor * rate(method.steps.x, state.step, state.watch.share.dtype)
    way = trees.sub(before.x, x)
    taken = jax.tree.map(lambda a: a / length.astype(a.dtype), way)
    forced = jax.tree.map(lambda a: a / method.c1, Rows(*before.nu[:2]))
    return paced(state.watch.pace, taken, trees.norm(way), Below(before.y, forced), Below(*inner))


def step_metrics(
    method: SALVFSettings, problem: Problem, old: Point, new: Point, d: PsiGradient, values: Multipliers
) -> Metrics:
    """The report of a step, but for what the inner solver and the schedule know."""
    dtype = dtype_of(new.x, new.y)
    beyond = violation(values)
    landed = nonnegative(jax.tree.map(lambda a, b: a - b / method.smoothness, old.z, d.z), top_of_z(method))
    return Metrics(
        upper=d.upper,
        lower=d.lower,
        violation=largest(jax.tree.map(jnp.multiply, beyond, method.scales), dtype),
        step_x=trees.norm(trees.sub(new.x, old.x)),
        step_y=trees.norm(trees.sub(new.y, old.y)),
        residual=Residual(
            gradient_mapping(problem.x_set, old.x, d.x, 1 / method.smoothness),
            gradient_mapping(problem.y_set, old.y, d.y, 1 / method.smoothness),
            jax.tree.map(lambda a, b: method.smoothness * (a - b), old.z, landed),
        ),
        raw_x=raw_size(old.x, d.x, 1 / method.smoothness),
        raw_y=raw_size(old.y, d.y, 1 / method.smoothness),
        push=method.c2 * largest(beyond, dtype),
        distance=jnp.zeros((), dtype),
        weight=jnp.ones((), dtype),
    )


def followed(method: SALVFSettings, problem: Problem, state: SALVFState, inner: Inner) -> Point:
    """y and nu moved as the inner solution has moved since the last step."""
    point = state.point
    y = jax.tree.map(lambda a, new, old: a + (new - old), point.y, inner.w, state.w)
    if method.penalty != "multiplier":
        return point._replace(y=sets.project(problem.y_set, y))
    rows = jax.tree.map(lambda a, new, old: a + method.c1 * (new - old), Rows(*point.nu[:2]), inner.lam, state.lam)
    nu = point.nu._replace(**nonnegative(rows)._asdict())
    return point._replace(y=sets.project(problem.y_set, y), nu=nu)


def alphas(
    method: SALVFSettings, step: Array, factors: tuple[Scalar | float, Scalar | float], dtype: jnp.dtype
) -> tuple[Array, Array]:
    """alpha_k of the y block, and the longest of the x and y steps, which is what Storm's beta_k must keep up with.

    An optax transformation hides its step: iterates then weigh the same, and Storm has a constant beta.
    """
    if is_transformation(method.steps.y):
        return jnp.ones((), dtype), jnp.ones((), dtype)
    alpha = rate(method.steps.y, step, dtype) * factors[1]
    if is_transformation(method.steps.x) or getattr(method.direction, "schedule", None) == "paper":
        return alpha, alpha
    return alpha, jnp.maximum(alpha, rate(method.steps.x, step, dtype) * factors[0])
