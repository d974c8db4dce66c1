"""Step sizes of the blocks x, y and z: numbers, schedules or optax transformations, and how a block moves by one."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.errors import InputError
from hierax._base.imports import lazy
from hierax._base.settings import NOT_NEGATIVE, POSITIVE_GIVEN, check_schedule, check_settings, is_transformation
from hierax._base.trees import Number, move, relaxed_promotion
from hierax._problem import sets

optax = lazy("optax")

LOOKED_AT = (0, 1, 1000)  # steps at which a schedule is tried out

StepRule = Any
"""A number, a schedule k -> number, an optax transformation, or None: to be estimated."""


class Decay(eqx.Module):
    """A step length that decays; its numbers are traced, so a sweep over them compiles once.

        alpha_k = scale min(1, a (k+1)^(-power)),    k = 0, 1, ...

    Args:
        scale: the largest step.
        a: how long the first steps stay at `scale`: as long as a (k+1)^(-power) >= 1.
        power: how fast they fall; 1/3 is that of the paper's SALVF-VR.

    Examples:
        >>> import hierax as hx
        >>> [round(float(hx.Decay(0.1)(k)), 4) for k in (0, 7, 26)]
        [0.1, 0.075, 0.05]

    References:
        docs/methods/salvf.md, What is estimated where you set nothing
    """

    scale: Number
    a: Number = 1.5
    power: Number = 1 / 3

    def __post_init__(self) -> None:
        """Refuse numbers that would make a step go backwards."""
        check_settings(self, {"scale": POSITIVE_GIVEN, "a": POSITIVE_GIVEN, "power": NOT_NEGATIVE})

    def __call__(self, step: Array) -> Array:
        """The step size at outer step `step`."""
        scale, a, power = (jnp.asarray(number, float) for number in (self.scale, self.a, self.power))
        return scale * jnp.minimum(1.0, a * (jnp.asarray(step, float) + 1.0) ** -power)


class Steps(eqx.Module):
    """How the blocks move; whatever is None is estimated from the problem.

        x <- Proj_X(x - a_k d_x),   y <- Proj_Y(y - b_k d_y),   z <- Proj_Z(z - c_k d_z)

    with a_k, b_k, c_k the numbers given here or what the schedules say at step k; an optax transformation takes the
    place of the step, and the projection follows it.

    Args:
        x: a number, a schedule k -> number, or an optax transformation.
        y: the same. Its schedule is the alpha_k of the paper.
        z: the same, for the envelope's centre. Natural unit: 1/(c1 gamma2), which would set z = lam.

    Examples:
        >>> import hierax as hx
        >>> hx.SALVF(steps=hx.Steps(x=0.01, y=hx.Decay(0.1))).steps.x
        0.01

    References:
        docs/methods/salvf.md, What is estimated where you set nothing
    """

    x: StepRule = None
    y: StepRule = None
    z: StepRule = None

    def __post_init__(self) -> None:
        """Refuse what is no rule."""
        for name in ("x", "y", "z"):
            check_rule(f"Steps({name})", getattr(self, name))


def check_steps(owner: str, steps: object) -> None:
    """Refuse what is neither None nor `Steps`, which checks its rules itself."""
    if steps is not None and not isinstance(steps, Steps):
        raise InputError(f"{owner}(steps): needs hx.Steps(x=, y=, z=), got {type(steps).__name__}.")


def check_rule(name: str, rule: StepRule) -> None:
    """Refuse what is neither a positive number, a schedule nor a transformation."""
    if rule is None or is_transformation(rule) or isinstance(rule, Decay | jax.core.Tracer):
        return
    if callable(rule):
        check_schedule(name, rule, ((step,) for step in LOOKED_AT))
        return
    number = isinstance(rule, int | float | np.ndarray | np.generic | jax.Array) and not isinstance(rule, bool)
    if not number or not bool(np.all(np.asarray(rule) > 0)) or (np.ndim(rule) and not isinstance(rule, jax.Array)):
        raise InputError(f"{name}: needs a positive number, a schedule or an optax transformation, got {rule!r}.")


def filled_rule(asked: StepRule, default: StepRule, dtype: jnp.dtype) -> StepRule:
    """The rule that was asked for, or the default where it is None, with every number an array."""
    rule = default if asked is None else asked
    if is_transformation(rule) or (callable(rule) and not isinstance(rule, Decay)):
        return rule
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), rule)


def rate(rule: StepRule, step: Array, dtype: jnp.dtype) -> Array:
    """alpha_k of a number or a schedule."""
    return jnp.asarray(rule(step) if callable(rule) else rule, dtype)


def init_rule(rule: StepRule, tree: PyTree) -> PyTree:
    """State of the rule for a block.

    Args:
        rule: a number, a schedule or an optax transformation.
        tree: the block that it will move.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> hx.extend.init_rule(0.1, jnp.zeros(2)) is None  # only optax transformations have a state
        True
    """
    if not is_transformation(rule):
        return None
    with relaxed_promotion():
        return rule.init(tree)


def init_rules(steps: Steps, x: PyTree, y: PyTree, z: PyTree) -> tuple[PyTree, PyTree, PyTree]:
    """States of the rules of all three blocks."""
    return init_rule(steps.x, x), init_rule(steps.y, y), init_rule(steps.z, z)


def apply_rule(
    rule: StepRule,
    state: PyTree,
    convex_set: PyTree,
    tree: PyTree,
    direction: PyTree,
    step: Array,
    factor: Array | float = 1.0,
) -> tuple[PyTree, PyTree]:
    """One projected step of a block: the new block and the rule's new state.

        u <- Proj(u - factor alpha_k direction)

    Args:
        rule: a number, a schedule or an optax transformation.
        state: the rule's state, from `init_rule` or the last step.
        convex_set: a set, or a tree of sets, to project on.
        tree: the block.
        direction: shaped like the block; the step goes against it.
        step: the number k of the outer step, for schedules.
        factor: a number that the step is multiplied with; optax transformations ignore it.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> block, state = hx.extend.apply_rule(0.5, None, hx.NonNegative(), jnp.array([0.8]), jnp.array([2.0]), 0)
        >>> block
        Array([0.], dtype=float32)

    References:
        docs/guides/own-method.md
    """
    if not jax.tree.leaves(tree):  # z of a problem without constraints
        return tree, state
    if is_transformation(rule):
        with relaxed_promotion():
            updates, state = rule.update(direction, state, tree)
            moved = optax.apply_updates(tree, updates)
    else:
        moved = move(tree, factor * rate(rule, step, jax.tree.leaves(tree)[0].dtype), direction)
    return sets.project(convex_set, moved), state
