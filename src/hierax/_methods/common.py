"""What the published methods have in common: shared settings, the look at the start, units, and the report of a step.

Most begin best at the lower level's solution at x0 (from a zero multiplier several of them stop at spurious points) and
divide the constraints by the norms of their gradients there. The published methods other than SALVF know no constraints
at the upper level.
"""

from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.errors import InputError
from hierax._base.settings import POSITIVE, Rule, check_settings, one_of
from hierax._base.trees import Number, dtype_of, largest
from hierax._lower.base import AbstractLowerSolver
from hierax._math.curvature import Curvature, constraint_scales, curvature
from hierax._math.lagrangian import blockwise
from hierax._math.lower_level import LowerSolution
from hierax._math.psi import all_constraints, gradient_mapping, violation
from hierax._math.spectrum import POWER_STEPS
from hierax._problem import samples
from hierax._problem.problem import Multipliers, Problem, Rows, scaled
from hierax._problem.sets import Free
from hierax._run.method import AbstractMethod, Costs, Metrics, Residual

ROOM = 10.0  # the multiplier box reaches this many times beyond the largest multiplier at the start
SLOPE = 5.0  # weight of F's slope where it stands in for curvature: y is then off by |y|/25 or so
NEGLIGIBLE = 1e-3  # share of L_G that mu_G is at least taken for; of F's slope over |y| below which F is not curved
NOT_CONVEX_SHARE = 1e-6  # share of L_G that mu_G must exceed for G to count as strongly convex
GAP_WEIGHT = 100.0  # weight of a gap of G, in units of (curvature of F) / sqrt(L_G mu_G): y is then off by 1/100


SCALES = Rule(
    lambda value: value is None or isinstance(value, Multipliers),
    "needs hx.Multipliers of divisors, shaped like the constraints, or None to have them estimated",
    shows_kind=True,
)


class PublishedMethod(AbstractMethod):
    """A method whose paper knows no constraints at the upper level: every one but SALVF."""

    def check(self, problem: Problem) -> None:
        """No constraints at the upper level."""
        if problem.has_upper_constraints:
            raise InputError(
                f"{type(self).__name__}: the published method has no constraints at the upper level, but the problem "
                "states upper_constraints. Use hx.SALVF(), or put what concerns x alone into x_set."
            )


class FromLowerSolution(AbstractMethod):
    """Settings of methods that begin at the lower level's solution and scale its constraints.

    Args:
        start: "solve" first solves the lower level at x0; "given" takes (x0, y0) with zero multipliers.
        scales: divisors of the constraints; None: estimated.
    """

    start: Literal["solve", "given"] = eqx.field(static=True, default="solve", kw_only=True)
    scales: PyTree = eqx.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, {"start": one_of("solve", "given"), "scales": SCALES})


class WithSmoothness(AbstractMethod):
    """Setting of methods that measure stationarity with a smoothness constant of their own.

    Args:
        smoothness: the L (one over the step) of the gradient mappings that measure stationarity; None: estimated.
    """

    smoothness: Number = eqx.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, {"smoothness": POSITIVE})


class GrowingWeight(PublishedMethod, FromLowerSolution):
    """Settings of the single-loop methods LV-HBA and BiC-GAFFA, whose gap has the growing weight c_k = c (k+1)^q.

    Args:
        c: first weight of the gap relative to F; None: estimated.
        q: exponent of its growth.
        g1: proximal parameter of the inner variable; None: estimated.
        g2: proximal parameter of the inner multiplier; None: estimated.
        r: bound of the multipliers; None: estimated.
    """

    c: Number = None
    q: Number = 0.3
    g1: Number = None
    g2: Number = None
    r: Number = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, dict.fromkeys(("c", "g1", "g2", "r"), POSITIVE))

    def weight(self, step: Int[Array, ""]) -> Scalar:
        """c_k."""
        return self.c * (step.astype(self.c.dtype) + 1) ** self.q


class Iterate(NamedTuple):
    """The point of a method: x, y and the multiplier z (None where the method has none).

    Attributes:
        x: the upper variable.
        y: the lower variable.
        z: the multiplier of the lower level's constraints.

    Examples:
        >>> import hierax as hx
        >>> hx.extend.Iterate(0.5, 0.2)
        Iterate(x=0.5, y=0.2, z=None)
    """

    x: PyTree
    y: PyTree
    z: Rows | None = None


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


def look_at_start(
    problem: Problem,
    x0: PyTree,
    y0: PyTree,
    key: PRNGKeyArray,
    zeta: PyTree,
    solver: AbstractLowerSolver,
    scales: Multipliers | None,
) -> StartLook:
    """Solve the lower level at x0 (on all of xi), and take scales and curvatures where it ends."""
    xi = samples.whole(problem.xi, key)
    if scales is None:
        scales = constraint_scales(problem, x0, y0, jax.random.fold_in(key, 1))
    scales = as_arrays(scales, dtype_of(x0, y0))
    rescaled = scaled(problem, scales)
    found = solver.solve(rescaled, x0, y0, xi)
    return StartLook(found, scales, curvature(rescaled, x0, found.y, found.multipliers, zeta, xi))


def upper_curvature(at: Curvature) -> Scalar:
    """The curvature of F in y; where F is not curved (a price times a quantity), its slope over the size of y."""
    return jnp.where(at.upper_yy > NEGLIGIBLE * at.upper_slope, at.upper_yy, SLOPE * at.upper_slope)


def as_arrays(tree: PyTree, dtype: jnp.dtype) -> PyTree:
    """Every number of a tree of settings as an array: with many starts they get an axis.

    Args:
        tree: settings, for example a method.
        dtype: of the arrays that its numbers become.

    Examples:
        >>> import hierax as hx
        >>> import numpy as np
        >>> hx.extend.as_arrays({"c": 2.0}, np.dtype("float32"))["c"].dtype
        dtype('float32')
    """
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), tree)


def multiplier_bound(lam: Rows, dtype: jnp.dtype) -> Scalar:
    """r of the box for z: too small is silently wrong, too large costs nothing."""
    return ROOM * (1 + largest(jax.tree.map(jnp.abs, lam), dtype))


def into_box(z: Rows, r: Scalar) -> Rows:
    """Project multipliers on [0, r] (inequalities) and [-r, r] (equalities)."""
    return blockwise(lambda a: jnp.clip(a, 0.0, r), lambda a: jnp.clip(a, -r, r), z)


def in_user_units(problem: Problem, x: PyTree, y: PyTree, lam: Rows, scales: Multipliers) -> Multipliers:
    """Multipliers of scaled constraints as multipliers of the user's."""
    upper = jax.tree.map(jnp.zeros_like, problem.upper_constraints(x, y))
    return jax.tree.map(jnp.divide, Multipliers(*lam, upper), scales)


def in_scaled_units(multipliers: Multipliers, scales: Multipliers) -> Rows:
    """Multipliers of the user's constraints as multipliers of the lower level's scaled ones."""
    there = jax.tree.map(jnp.multiply, multipliers, scales)
    return Rows(there.inequalities, there.equalities)


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

    old: Iterate
    new: Iterate
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


def step_metrics(problem: Problem, scales: Multipliers, taken: StepTaken, smoothness: Scalar) -> Metrics:
    """The report of a step; `problem` has scaled constraints, `smoothness` is the 1/step of the gradient mappings.

        violation = max over i of scale_i [h_i]_+, scale_j |e_j|  at the new point,     step_x = ||x_new - x_old||_2
        residual  = L (u - Proj(u - d/L))  at the old point,  L = smoothness

    Args:
        problem: the problem, its constraints divided by `scales`.
        scales: divisors of the constraints, so that violations are reported in the user's units.
        taken: the step.
        smoothness: one over the step of the gradient mappings that tell how stationary a point is.

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
    beyond = violation(all_constraints(problem, new.x, new.y))
    dtype = dtype_of(new.x, new.y)
    own_y = bool(jax.tree.leaves(taken.d_y))

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
    )
