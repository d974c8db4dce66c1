"""What the published methods have in common: shared settings, the look at the start, units, and the report of a step.

Most begin best at the lower level's solution at x0 (from a zero multiplier several of them stop at spurious points) and
divide the constraints by the norms of their gradients there. The published methods other than SALVF know no constraints
at the upper level.

Step sizes of the blocks x, y and z: numbers, schedules or optax transformations, and how a block moves by one.
"""

import abc
import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self, TypeVar

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar

from hierax._base import settings, trees
from hierax._base.constants import LITTLE, MANY, NEGLIGIBLE
from hierax._base.errors import InputError
from hierax._base.imports import lazy
from hierax._base.trees import Number, dtype_of, given, largest, move, or_one, relaxed_promotion
from hierax._lower.base import AbstractLowerSolver
from hierax._math.lower_level import LowerSolution
from hierax._math.psi import Iterate, Point, all_constraints, gradient_mapping, nonnegative, violation
from hierax._math.spectrum import POWER_STEPS, Curvature, constraint_scales, curvature, unit_scales
from hierax._problem import samples, sets
from hierax._problem.problem import Multipliers, Problem, Rows, scaled
from hierax._problem.samples import Tickets
from hierax._problem.sets import AbstractSet, Free
from hierax._run.method import AbstractMethod, Costs, Metrics, Residual, look_at

optax = lazy("optax")

M = TypeVar("M", bound=eqx.Module)

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
        positive = dict.fromkeys(("scale", "a"), settings.POSITIVE_GIVEN)
        settings.check_settings(self, {**positive, "power": settings.NOT_NEGATIVE})

    def __call__(self, step: Array) -> Array:
        """The step size at outer step `step`."""
        scale, a, power = (jnp.asarray(number, float) for number in (self.scale, self.a, self.power))
        return scale * jnp.minimum(1.0, a * (jnp.asarray(step, float) + 1.0) ** -power)


class Adaptive(eqx.Module):
    """eta_k = min(1.2 eta_{k-1}, ||x_k - x_{k-1}|| / (2 ||d_k - d_{k-1}||)), after Malitsky and Mishchenko (2020).

    Args:
        first: eta_0.
    """

    first: Number

    def init(self, x: PyTree) -> tuple[PyTree, PyTree, Scalar]:
        """(x_{k-1}, d_{k-1}, eta_{k-1})."""
        return x, jax.tree.map(jnp.zeros_like, x), self.first

    def length(self, memory: tuple[PyTree, PyTree, Scalar], x: PyTree, d: PyTree, step: Array) -> Scalar:
        """eta_k. A step that did not move x (it is held by X) says nothing about the curvature."""
        before, d_before, eta = memory
        moved, turned = (trees.norm(trees.sub(a, b)) for a, b in ((x, before), (d, d_before)))
        known = (step > 0) & (moved > 0) & (turned > 0)
        local = jnp.where(known, moved / jnp.where(known, 2 * turned, 1.0), jnp.inf)
        return jnp.where(step == 0, self.first, jnp.minimum(X_STEP_GROWTH * eta, local))


class NormalisedMemory(NamedTuple):
    """What a normalised step remembers.

    Attributes:
        start: where the block began.
        mean: of the directions.
        root: of the mean of their squares.
        spent: j, for every entry.
        ratio: the length of the last step over that of its direction.
    """

    start: PyTree
    mean: PyTree
    root: PyTree
    spent: PyTree
    ratio: Scalar


class Normalised(eqx.Module):
    """Steps in lengths of the block, entry by entry, whatever the units of the direction.

        m <- 0.9 m + 0.1 d,    v <- v + s/(k+s) (d^2 - v),    step = alpha_j max(length, |x - x_0|) m' / sqrt(v)

    with m' corrected for its start at zero, after Adam (Kingma and Ba 2015), without its absolute epsilon. Where the
    directions vanish v falls as k^-s, so that with alpha_j = c/j and s = 2 the step over m' stays what it is: with
    more it would grow until it is unstable, with less it would vanish. Directions with noise do not vanish.
    j counts the steps of an entry; of those more than a length from its start, only the share that did not go straight
    on, 1 - |m'| / sqrt(v'): a way far longer than the length takes as many steps as its logarithm says.

    Args:
        length: of every entry.
        share: alpha_k, the share of a length that an entry moves while its direction stays the same.
        longest: the step that would be stable without all this; it is not used here.
        forgets: s.
    """

    length: PyTree
    share: Decay
    longest: Number
    forgets: Number

    def init(self, x: PyTree) -> NormalisedMemory:
        """Before the first step."""
        zero = jax.tree.map(jnp.zeros_like, x)
        longest = jnp.asarray(jnp.finfo(dtype_of(x)).max)  # a state is finite, also where the first direction is 0
        return NormalisedMemory(x, zero, zero, zero, longest)

    def moved(
        self, memory: NormalisedMemory, x: PyTree, d: PyTree, step: Array, factor: Number
    ) -> tuple[PyTree, NormalisedMemory]:
        """x after the step, before any projection; `memory.ratio` is the length of the step over that of d."""
        count = (step + 1).astype(dtype_of(x))
        kept_square = (count - 1) / (count + self.forgets - 1)

        def root_of(old: Array, new: Array) -> Array:
            """Of the mean square, without squares of anything that has units: they leave the range of float32."""
            unit = or_one(jnp.maximum(old, jnp.abs(new)))
            return unit * jnp.sqrt(kept_square * (old / unit) ** 2 + (1 - kept_square) * (new / unit) ** 2)

        mean = jax.tree.map(lambda old, new: KEPT * old + (1 - KEPT) * new, memory.mean, d)
        root = jax.tree.map(root_of, memory.root, d)
        correction = 1 / (1 - KEPT**count)
        straight = jax.tree.map(lambda m, r: correction.astype(m.dtype) * (m / or_one(r)), mean, root)

        def way_of(s: Array, length: Array, a: Array, begun: Array, spent: Array) -> Array:
            far = jnp.maximum(length.astype(s.dtype), jnp.abs(a - begun))
            return (factor * self.share(spent)).astype(s.dtype) * far * s

        way = jax.tree.map(way_of, straight, self.length, x, memory.start, memory.spent)

        def spent_of(old: Array, s: Array, length: Array, a: Array, begun: Array) -> Array:
            beyond = jnp.abs(a - begun) > length.astype(s.dtype)
            return old + jnp.where(beyond, jnp.clip(1 - jnp.abs(s), 0.0, 1.0), 1.0)

        spent = jax.tree.map(spent_of, memory.spent, straight, self.length, x, memory.start)
        long = trees.norm(d)
        ratio = jnp.where(long > 0, trees.norm(way) / or_one(long), memory.ratio).astype(memory.ratio.dtype)
        return trees.sub(x, way), NormalisedMemory(memory.start, mean, root, spent, ratio)


def lengths_of(problem: Problem, x: PyTree, newton: Scalar) -> PyTree:
    """The length of every entry of x: half the width of its set, or its size, or `newton`, that of a Newton step.

    The size counts where it is less than half the width, down to a tenth of that. The size of an array is that of all
    its entries.
    """

    def one(x: Array, low: Array, high: Array) -> Array:
        half = 0.5 * (high - low)
        size = trees.norm(x) / x.size**0.5
        inside = jnp.where(size > 0, jnp.clip(size, LITTLE * half, half), half)
        free = jnp.where(size > 0, size, or_one(newton)).astype(x.dtype)
        return jnp.where(jnp.isfinite(half) & (half > 0), inside, free)

    flat, tree = jax.flatten_util.ravel_pytree(x)
    return jax.tree.map(one, x, *(tree(bound.astype(flat.dtype)) for bound in sets.bounds(problem.x_set, x)))


def newton_length(at: Curvature) -> Scalar:
    """How far x would go to where F(x, y*(x)) is flat, were it as curved everywhere as it can be; 0: unknown."""
    tiny = jnp.finfo(at.lower_yy.dtype).tiny
    followed = jnp.sqrt(at.response / or_one(at.lower_yy, tiny)) + at.jacobian_x / or_one(at.jacobian_y, tiny)
    curved = at.upper_xx + upper_curvature(at) * followed**2
    return (at.upper_x + at.upper_y * followed) / or_one(curved, tiny)


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


STEPS = settings.instance_of((Steps, type(None)), "hx.Steps(x=, y=, z=)")  # which checks its rules itself


def check_rule(name: str, rule: StepRule) -> None:
    """Refuse what is neither a positive number, a schedule nor a transformation."""
    if (
        rule is None
        or settings.is_transformation(rule)
        or isinstance(rule, Decay | Adaptive | Normalised | jax.core.Tracer)
    ):
        return
    if callable(rule):
        settings.check_schedule(name, rule, ((step,) for step in (0, 1, MANY)))
        return
    number = isinstance(rule, int | float | np.ndarray | np.generic | jax.Array) and not isinstance(rule, bool)
    if not number or not bool(np.all(np.asarray(rule) > 0)) or (np.ndim(rule) and not isinstance(rule, jax.Array)):
        raise InputError(f"{name}: needs a positive number, a schedule or an optax transformation, got {rule!r}.")


def filled_rule(asked: StepRule, default: StepRule, dtype: jnp.dtype) -> StepRule:
    """The rule that was asked for, or the default where it is None, with every number an array."""
    rule = default if asked is None else asked
    if settings.is_transformation(rule) or (callable(rule) and not isinstance(rule, Decay)):
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
    if isinstance(rule, Adaptive | Normalised):
        return rule.init(tree)
    if not settings.is_transformation(rule):
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
    factor: Number = 1.0,
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
    if isinstance(rule, Adaptive):
        length = rule.length(state, tree, direction, step)
        moved, state = move(tree, length, direction), (tree, direction, length)
    elif isinstance(rule, Normalised):
        moved, state = rule.moved(state, tree, direction, step, factor)
    elif settings.is_transformation(rule):
        with relaxed_promotion():
            updates, state = rule.update(direction, state, tree)
            moved = optax.apply_updates(tree, updates)
    else:
        moved = move(tree, factor * rate(rule, step, jax.tree.leaves(tree)[0].dtype), direction)
    return sets.project(convex_set, moved), state


KEPT = 0.9  # of a normalised step: share of the mean of directions kept from step to step
X_STEP_GROWTH = 1.2  # an adaptive step grows at most by this factor per step
WEIGHT = 5.0  # of a gap, in units of (curvature of F) / (that of G); of F's slope where it stands in for curvature
SEVERAL = 3.0  # how many times larger counts as somewhat larger, where nothing finer was measured
Z_STEP = 0.3  # step of z, in units of the one that would set z = lam

DIVISORS = "hx.Multipliers of divisors, shaped like the constraints, or None to have them estimated"
SCALES = settings.instance_of((Multipliers, type(None)), DIVISORS)
SHARE = settings.in_interval(lambda share: 0 < share < 1, "(0, 1)")


def setting(rule: settings.Rule | Callable[[str, Any], None], default: Any = None, **how: Any) -> Any:
    """A field of a method, with what it must be: a rule, or a function of its name and value that raises."""
    return eqx.field(default=default, metadata={"rule": rule}, **how)


class CheckedMethod(AbstractMethod):
    """A method whose fields say what they must be (`setting`)."""

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        super().__post_init__()
        for field in dataclasses.fields(self):
            rule, value = field.metadata.get("rule"), getattr(self, field.name)
            if isinstance(rule, settings.Rule):
                settings.check_setting(type(self).__name__, field.name, value, rule)
            elif rule is not None:
                rule(field.name, value)

    def sized(self, problem: Problem) -> Self:
        """With its batch sizes filled in."""
        sizes = self.batches(problem)
        return dataclasses.replace(self, batch_zeta=sizes.zeta, batch_xi=sizes.xi)


class PublishedMethod(CheckedMethod):
    """A method whose paper knows no constraints at the upper level: every one but SALVF."""

    def check(self, problem: Problem) -> None:
        """No constraints at the upper level."""
        if problem.has_upper_constraints:
            raise InputError(
                f"{type(self).__name__}: the published method has no constraints at the upper level, but the problem "
                "states upper_constraints. Use hx.SALVF(), or put what concerns x alone into x_set."
            )


class StartLook(NamedTuple):
    """What a method knows before its first step.

    Attributes:
        lower: the lower level's solution at x0, in the units of the scaled constraints.
        scales: divisors of the constraints.
        curvature: norms of the scaled problem at that solution.
    """

    lower: LowerSolution
    scales: Multipliers
    curvature: Curvature


class FromLowerSolution(CheckedMethod):
    """Settings of methods that begin at the lower level's solution and scale its constraints.

    Args:
        start: "solve" first solves the lower level at x0; "given" takes (x0, y0) with zero multipliers.
        scales: divisors of the constraints; None: estimated.
    """

    start: Literal["solve", "given"] = setting(settings.one_of("solve", "given"), "solve", static=True, kw_only=True)
    scales: PyTree = setting(SCALES, kw_only=True)

    @abc.abstractmethod
    def has_units(self) -> bool:
        """Whether a setting is given that carries the constraints' units: they are then left as they are."""

    def scales_at(self, problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray) -> Multipliers:
        """Divisors of the constraints: those given, ones, or the norms of their gradients in y."""
        scales = self.scales
        if scales is None and self.has_units():
            scales = unit_scales(problem, x, y)
        elif scales is None:
            scales = constraint_scales(problem, x, y, jax.random.fold_in(key, 1))
        return as_arrays(scales, dtype_of(x, y))

    def look_at_start(
        self, problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray, zeta: PyTree, solver: AbstractLowerSolver
    ) -> StartLook:
        """Solve the lower level at x (on all of xi) with the scales at y, and take curvatures where it ends."""
        scales, xi = self.scales_at(problem, x, y, key), samples.whole(problem.xi, key)
        rescaled = scaled(problem, scales)
        found = solver.solve(rescaled, x, y, xi)
        return StartLook(found, scales, curvature(rescaled, x, found.y, found.multipliers, zeta, xi))


class WithSmoothness(CheckedMethod):
    """Setting of methods that measure stationarity with a smoothness constant of their own.

    Args:
        smoothness: the L (one over the step) of the gradient mappings that measure stationarity; None: estimated.
    """

    smoothness: Number = eqx.field(default=None, kw_only=True, metadata={"rule": settings.POSITIVE})


def first_batches(
    method: AbstractMethod, problem: Problem, key: PRNGKeyArray, look: Tickets | None
) -> tuple[PyTree, PyTree]:
    """What is looked at before the first step: the first batches of zeta, and all of xi."""
    look = method.batches(problem).first_look(problem, key) if look is None else look
    return look_at(problem.zeta, look.zeta), samples.whole(problem.xi, key)


def estimated_anew(method: AbstractMethod, problem: Problem, state: PyTree, unset: Mapping[str, PyTree]) -> PyTree:
    """The method with the given settings, and its smoothness, estimated where the state is."""
    known = {"smoothness": None} if isinstance(method, WithSmoothness) else {}
    x, y = state.point[:2]
    return dataclasses.replace(method, **unset, **known).begin(problem, x, y, state.key).method


def limits_against(
    method: AbstractMethod, able: AbstractMethod, state: PyTree, names: Sequence[str]
) -> dict[str, tuple[Scalar, Scalar]]:
    """Each of the named steps of a method, and twice that of `able`, the same with steps that were estimated."""
    limits = {}
    for name in names:
        used, most = (operator.attrgetter(name)(one) for one in (method, able))
        if not (settings.is_transformation(used) or isinstance(used, Normalised)):
            longest = most.scale if isinstance(most, Decay) else most
            longest = most.longest if isinstance(most, Normalised) else longest
            limits[name] = (rate(used, state.step, dtype_of(*state.point[:2])), 2 * longest)
    return limits


def upper_curvature(at: Curvature) -> Scalar:
    """The curvature of F in y; where F is not curved (a price times a quantity), its slope over the size of y."""
    return jnp.where(at.upper_yy > NEGLIGIBLE * at.upper_slope, at.upper_yy, WEIGHT * at.upper_slope)


def as_arrays(tree: PyTree, dtype: jnp.dtype) -> PyTree:
    """Every number of a tree of settings as an array: with many starts they get an axis. Functions stay what they are.

    Args:
        tree: settings, for example a method.
        dtype: of the arrays that its numbers become.

    Examples:
        >>> import hierax as hx
        >>> import numpy as np
        >>> hx.extend.as_arrays({"c": 2.0}, np.dtype("float32"))["c"].dtype
        dtype('float32')
    """
    return jax.tree.map(lambda a: jnp.asarray(a, dtype) if eqx.is_array_like(a) else a, tree)


def with_defaults(module: M, dtype: jnp.dtype, **defaults: Number) -> M:
    """The settings with these defaults where they are unset, each of them an array; functions stay what they are."""
    asked = {name: getattr(module, name) for name in defaults}
    filled = {name: one if callable(one) else given(one, defaults[name], dtype) for name, one in asked.items()}
    return dataclasses.replace(module, **filled)


class MultiplierSet(AbstractSet):
    """Where multipliers live: z >= 0 for inequalities, free for equalities; with `top` its part below that."""

    top: Rows | Scalar | None = None

    def project(self, tree: Rows) -> Rows:
        return nonnegative(tree, self.top)


def of_lower_level(problem: Problem, x: PyTree, y: PyTree, lam: Rows) -> Multipliers:
    """The multipliers of the lower level beside zeros for the upper one."""
    return Multipliers(*lam, jax.tree.map(jnp.zeros_like, problem.upper_constraints(x, y)))


def in_user_units(problem: Problem, x: PyTree, y: PyTree, lam: Rows, scales: Multipliers) -> Multipliers:
    """Multipliers of scaled constraints as multipliers of the user's."""
    return jax.tree.map(jnp.divide, of_lower_level(problem, x, y, lam), scales)


def in_scaled_units(multipliers: Multipliers, scales: Multipliers) -> Rows:
    """Multipliers of the user's constraints as multipliers of the lower level's scaled ones."""
    return Rows(*jax.tree.map(jnp.multiply, multipliers, scales)[:2])


def no_multipliers(problem: Problem, x: PyTree, y: PyTree) -> Rows:
    """Zero for every constraint of the lower level.

        lam = 0,   nu = 0     (one entry per row of h and e)

    Args:
        problem: the problem.
        x: the upper variable.
        y: the lower variable.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> float(hx.extend.no_multipliers(problem, jnp.ones(()), jnp.ones(())).inequalities)
        0.0

    References:
        docs/guides/own-method.md
    """
    return jax.tree.map(jnp.zeros_like, problem.rows(x, y))


def rows_like(rows: Rows, z: PyTree, name: str) -> Rows:
    """Multipliers as a user gives them, shaped like the constraints or `Multipliers`, as rows."""
    given = Rows(*z[:2]) if isinstance(z, Multipliers | Rows) else Rows(z, None)
    try:
        return jax.tree.map(lambda row, a: jnp.broadcast_to(jnp.asarray(a, row.dtype), row.shape), rows, given)
    except ValueError as error:
        shapes = jax.tree.map(jnp.shape, rows)
        raise InputError(f"{name}: needs numbers shaped like the constraints, here {shapes}.") from error


# -- costs ------------------------------------------------------------------------------------------------------------


def batch_costs(method: AbstractMethod, problem: Problem) -> Costs:
    """The samples of one step: a batch of zeta and one of xi~.

    Args:
        method: the method, which knows its batch sizes.
        problem: the problem, which knows its sources.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> hx.extend.batch_costs(hx.GAM(), problem).zeta  # nothing is sampled
        0
    """
    sizes = method.batches(problem)
    return Costs(zeta=sizes.zeta * (problem.zeta is not None), xi=sizes.xi * (problem.xi is not None))


def estimate_costs() -> Costs:
    """Norms at one point, and one lower solve; what an exact solver does is not counted in gradients."""
    products = 2 * 4 * POWER_STEPS  # products with Hessians, about 2 gradients each
    return Costs(grad_upper=products, grad_lower=products, vjp_constraints=products, lower_solves=1)


# -- the report of a step ---------------------------------------------------------------------------------------------


class StepTaken(NamedTuple):
    """One step of a method, as `step_metrics` needs it.

    Attributes:
        old: where it began.
        new: where it ended.
        d_x: the direction in x.
        d_y: the direction in y; () where y is not moved by a gradient of its own.
        upper: F on the step's batch.
        lower: G on the step's batch.
        distance: how far the method says y is from the lower level's solution.
        inner: residual of the inner variable.
        z: residual of z.
        status: of an exact lower solve.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> one, zero = jnp.ones(()), jnp.zeros(())
        >>> old, new = hx.extend.Iterate(one, one), hx.extend.Iterate(zero, one)
        >>> taken = hx.extend.StepTaken(old, new, d_x=one, d_y=(), upper=one, lower=one, distance=zero, inner=zero)
        >>> float(taken.new.x)
        0.0
    """

    old: Iterate | Point
    new: Iterate | Point
    d_x: PyTree
    d_y: PyTree
    upper: Scalar
    lower: Scalar
    distance: Scalar
    inner: PyTree
    z: PyTree = ()
    status: Array | int = 0


def raw_size(point: PyTree, direction: PyTree, step: Scalar) -> Scalar:
    """The norm of a direction before a set held it back.

    Rounded like the gradient mapping: a direction too short to move the point must not count as held back.
    """
    return trees.norm(gradient_mapping(Free(), point, direction, step))


def step_metrics(
    problem: Problem, scales: Multipliers, taken: StepTaken, smoothness: Scalar, values: Multipliers | None = None
) -> Metrics:
    """The report of a step; `problem` has scaled constraints, `smoothness` is the 1/step of the gradient mappings.

        violation = max over i of scale_i [h_i]_+, scale_j |e_j|  at the new point,     step_x = ||x_new - x_old||_2
        residual  = L (u - Proj(u - d/L))  at the old point,  L = smoothness

    Args:
        problem: the problem, its constraints divided by `scales`.
        scales: divisors of the constraints, so that violations are reported in the user's units.
        taken: the step.
        smoothness: one over the step of the gradient mappings that tell how stationary a point is.
        values: of the constraints at the new point, where they are known.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> one, zero = jnp.ones(()), jnp.zeros(())
        >>> old, new = hx.extend.Iterate(one, one), hx.extend.Iterate(zero, one)
        >>> taken = hx.extend.StepTaken(old, new, d_x=one, d_y=(), upper=one, lower=one, distance=zero, inner=zero)
        >>> metrics = hx.extend.step_metrics(problem, hx.Multipliers(one, None, None), taken, one)
        >>> float(metrics.step_x), float(metrics.violation)
        (1.0, 1.0)

    References:
        docs/guides/own-method.md
    """
    old, new = taken.old, taken.new
    beyond = violation(all_constraints(problem, new.x, new.y) if values is None else values)
    dtype = dtype_of(new.x, new.y)
    own_y = bool(jax.tree.leaves(taken.d_y))
    moved_z = () if new.z is None else jax.tree.map(lambda a, b, s: (a - b) / s, new.z, old.z, Rows(*scales[:2]))

    return Metrics(
        upper=taken.upper,
        lower=taken.lower,
        violation=largest(jax.tree.map(jnp.multiply, beyond, scales), dtype),
        step_x=trees.norm(trees.sub(new.x, old.x)),
        step_y=trees.norm(trees.sub(new.y, old.y)),
        residual=Residual(
            gradient_mapping(problem.x_set, old.x, taken.d_x, 1 / smoothness),
            gradient_mapping(problem.y_set, old.y, taken.d_y, 1 / smoothness) if own_y else (),
            taken.z,
            taken.inner,
        ),
        raw_x=raw_size(old.x, taken.d_x, 1 / smoothness),
        raw_y=raw_size(old.y, taken.d_y, 1 / smoothness) if own_y else jnp.zeros((), dtype),
        push=largest(beyond, dtype),
        distance=taken.distance,
        weight=jnp.ones((), dtype),
        lower_status=taken.status,
        step_z=trees.norm(moved_z),
    )
