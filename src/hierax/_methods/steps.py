"""Step sizes of the blocks x, y and z: numbers, schedules or optax transformations."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from hierax._base.errors import InputError
from hierax._base.trees import Number, move
from hierax._problem import sets


class Decay(eqx.Module):
    """alpha_k = scale * min(1, a (k+1)^(-power)); the numbers are traced, so a sweep compiles once.

    Examples:
        >>> import hierax as hx
        >>> [round(float(hx.Decay(0.1)(step)), 3) for step in (0, 7, 26)]
        [0.1, 0.075, 0.05]
    """

    scale: Number
    a: Number = 1.5
    power: Number = 1 / 3

    def __call__(self, step: Array) -> Array:
        """The step size at outer step `step`."""
        return self.scale * jnp.minimum(1.0, self.a * (jnp.asarray(step, float) + 1.0) ** -self.power)


class Steps(eqx.Module):
    """How the blocks move; whatever is None is estimated from the problem.

    Args:
        x: a number, a schedule k -> number, or an optax transformation.
        y: the same. Its schedule is the alpha_k of the paper.
        z: the same, for the envelope's centre. Natural unit: 1/(c1 gamma2), which would set z = lam.
    """

    x: Any = None
    y: Any = None
    z: Any = None


def is_transformation(rule: Any) -> bool:
    """Whether the rule is an optax transformation."""
    return isinstance(rule, optax.GradientTransformation)


def check_rule(name: str, rule: Any) -> None:
    """Refuse what is neither a number, a schedule nor a transformation."""
    if rule is None or is_transformation(rule) or callable(rule):
        return
    if isinstance(rule, jax.core.Tracer):
        return
    if (isinstance(rule, jax.Array) or np.ndim(rule) == 0) and bool(np.all(np.asarray(rule) > 0)):
        return
    raise InputError(f"steps.{name}: needs a positive number, a schedule or an optax transformation, got {rule!r}.")


def rate(rule: Any, step: Array, dtype: jnp.dtype) -> Array:
    """alpha_k of a number or a schedule."""
    return jnp.asarray(rule(step) if callable(rule) else rule, dtype)


def init_rule(rule: Any, tree: PyTree) -> PyTree:
    """State of the rule for a block."""
    return rule.init(tree) if is_transformation(rule) else None


def apply_rule(
    rule: Any, state: PyTree, convex_set: PyTree, tree: PyTree, direction: PyTree, step: Array
) -> tuple[PyTree, PyTree]:
    """One projected step of a block: the new block and the rule's new state."""
    if not jax.tree.leaves(tree):  # z of a problem without constraints
        return tree, state
    if is_transformation(rule):
        updates, state = rule.update(direction, state, tree)
        moved = optax.apply_updates(tree, updates)
    else:
        moved = move(tree, rate(rule, step, jax.tree.leaves(tree)[0].dtype), direction)
    return sets.project(convex_set, moved), state
