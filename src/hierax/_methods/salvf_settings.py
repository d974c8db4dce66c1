"""The settings of SALVF: what they must be, the rules that fill in what a user leaves unset, and its inner solver.

Dimensionless constants are fixed here; everything that carries units is estimated from the norms of the problem
(docs/methods/salvf.md).

With SALM, which lives on batches of xi, the inner problem is the envelope's, at (x, z) with gamma2 > 0. With an exact
solver (`Exact`, `Conic`), on all of xi, gamma2 = 0: the envelope is the value function itself, it does not depend on z,
and z stands for lam.

From gradients of Psi to a direction: as they are (SALVF), or variance-reduced (SALVF-VR).

    d_k = grad Psi^k(u_k) + (1 - beta_k)(d_{k-1} - grad Psi^k(u_{k-1}))                                  eq. 2.15

Both gradients use the same batch and the same (w_k, lam_k); the old one uses the old nu, or the sum would not
telescope. (w, lam) being frozen, the correction misses how they move with x, and the recursion is unstable once
beta_k < 2.5 c1 alpha_k or so, without any noise. The printed beta_{k+1} = beta alpha_k^2 falls faster than alpha_k and
always gets there; the default beta_{k+1} = min(1, kappa c1 alpha_k) does not.
"""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from hierax._base import settings
from hierax._base.constants import LITTLE, MUCH
from hierax._base.errors import InputError
from hierax._base.trees import INFINITE, Number, given
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.salm import SALM
from hierax._math.psi import Point, PsiGradient, Weights, is_plain, joint_gamma
from hierax._math.spectrum import Curvature
from hierax._methods import common
from hierax._methods.common import setting
from hierax._problem.problem import Multipliers, Problem

Gradient = Callable[[Point], PsiGradient]


class StepInfo(NamedTuple):
    """What a direction is told of the step that it is made for.

        u_{k+1} = Proj_U(u_k - alpha_k d_k)

    Attributes:
        step: k, the number of the outer step.
        alpha: alpha_k, of the y-step; where the x-step is longer, that.
        c1: the weight of the gap.

    Examples:
        >>> import hierax as hx
        >>> hx.extend.StepInfo(step=0, alpha=0.1, c1=5.0).alpha
        0.1

    References:
        docs/guides/own-direction.md
    """

    step: Array | int
    alpha: Array | float
    c1: Scalar | float


class AbstractDirection(eqx.Module):
    """From gradients of Psi to the direction of a step; subclass it to add one (`docs/guides/own-direction.md`).

        u <- Proj_U(u - alpha_k d_k),     u = (x, y, z)

    Examples:
        >>> import hierax as hx
        >>> sorted(hx.extend.AbstractDirection.__abstractmethods__)
        ['direction', 'init']
        >>> issubclass(hx.Storm, hx.extend.AbstractDirection)
        True

    References:
        docs/guides/own-direction.md
    """

    gradients_per_step: ClassVar[int] = 1

    @abc.abstractmethod
    def init(self, point: Point) -> PyTree:
        """What it remembers before the first step: a pytree of arrays, or None."""

    @abc.abstractmethod
    def direction(self, gradient: Gradient, point: Point, memory: PyTree, info: StepInfo) -> tuple[PsiGradient, PyTree]:
        """d_k and what is remembered of it. `gradient(u)` is grad Psi^k(u) on the batches of this step, with its inner
        solution, at any u = (x, y, z, nu); `point` is u_k.
        """

    def moved(self, memory: PyTree, move: Callable[[Point], Point]) -> PyTree:
        """What is remembered, as if points in it had moved like the present one does other than by a step.

        y and nu follow the inner solution, and c1 grows: a memory of points that are compared with the present one
        needs `move(point)` of each. By itself nothing is moved.
        """
        return memory


class Plain(AbstractDirection):
    """The stochastic gradient itself.

        d_k = grad Psi(u_k),    u = (x, y, z)

    Examples:
        >>> import hierax as hx
        >>> hx.SALVF(direction=hx.Plain()).direction.gradients_per_step
        1

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, Algorithm 2.
        docs/methods/salvf.md
    """

    def init(self, point: Point) -> None:
        """No memory."""

    def direction(self, gradient: Gradient, point: Point, memory: None, info: StepInfo) -> tuple[PsiGradient, None]:
        """`gradient(point)`."""
        return gradient(point), None


class StormMemory(NamedTuple):
    """What the correction needs of the step before: u and nu, the direction's corrected blocks, and beta_k."""

    point: Point
    direction: tuple[PyTree, ...]
    beta: Array


class Storm(AbstractDirection):
    """Variance reduction by momentum on gradient differences (the paper's SALVF-VR).

        d_k = grad Psi(u_k) + (1 - beta_k) (d_{k-1} - grad Psi(u_{k-1})),    beta_0 = 1
        beta_{k+1} = min(1, kappa unit c1 alpha_k)

    with both gradients on the batch of step k and at its inner solution (w_k, lam_k).

    Args:
        kappa: beta_{k+1} = min(1, kappa c1 alpha_k unit).
        schedule: None for the stable rule above; "paper" for beta_{k+1} = beta alpha_k^2, which warns.
        beta: with "paper", its coefficient (None: 1/alpha_0^2, alpha_0 before any cap, so that beta_k = k^(-2/3));
            otherwise beta_k itself: a constant, a function of k, or an array whose entry k it is (the last one from
            there on). beta_0 counts as 1. Needed where an optax transformation hides alpha_k.
        unit: curvature of the lower level in x, relative to the toy on which kappa = 10 was measured; it makes the
            rule independent of the units of G. None: estimated.
        z: correct the z part of the direction as well, as the paper's u = (x, y, z) has it. By default z moves by its
            own gradient, which needs no batch and so has no noise but that of lam.

    Examples:
        >>> import hierax as hx
        >>> hx.SALVF(direction=hx.Storm(kappa=5.0)).direction.kappa
        5.0

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, eq. 2.15.
        Cutkosky, Orabona: Momentum-based variance reduction in non-convex SGD, NeurIPS 2019.
        docs/methods/salvf.md, docs/methods/corrections.md (item 10: why beta_k is not the printed one)
    """

    kappa: Number = 10.0
    schedule: Literal["paper"] | None = eqx.field(static=True, default=None)
    beta: PyTree = None
    unit: Number = None
    z: bool = eqx.field(static=True, default=False)

    gradients_per_step: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        settings.check_settings(self, dict.fromkeys(("kappa", "unit"), settings.POSITIVE))

    def init(self, point: Point) -> StormMemory:
        """Before the first step beta = 1, so that d_0 is the plain gradient."""
        zeros = jax.tree.map(jnp.zeros_like, self._blocks(point))
        return StormMemory(point, zeros, jnp.ones((), jax.tree.leaves(point.y)[0].dtype))

    def _blocks(self, of: Point | PsiGradient) -> tuple[PyTree, ...]:
        """The blocks of u that are corrected."""
        return (of.x, of.y, of.z) if self.z else (of.x, of.y)

    def moved(self, memory: StormMemory, move: Callable[[Point], Point]) -> StormMemory:
        """The memory with its point moved."""
        return memory._replace(point=move(memory.point))

    def next_beta(self, info: StepInfo) -> Array:
        """beta_{k+1} after step k."""
        if self.schedule == "paper":
            return jnp.clip(self.beta * info.alpha**2, 0.0, 1.0)
        if self.beta is None:
            return jnp.minimum(1.0, self.kappa * self.unit * info.c1 * info.alpha)
        if callable(self.beta):
            return jnp.asarray(self.beta(jnp.asarray(info.step + 1, float)))
        given = jnp.asarray(self.beta)
        return given[jnp.minimum(info.step + 1, given.size - 1)] if given.ndim else given

    def direction(
        self, gradient: Gradient, point: Point, memory: StormMemory, info: StepInfo
    ) -> tuple[PsiGradient, StormMemory]:
        """Replace the x and y parts of the gradient by their corrected versions; z keeps its own unless asked for."""
        new, old = gradient(point), gradient(memory.point)
        keep = 1.0 - memory.beta
        corrected = jax.tree.map(
            lambda fresh, previous, stale: fresh + keep * (previous - stale),
            self._blocks(new),
            memory.direction,
            self._blocks(old),
        )
        beta = self.next_beta(info).astype(memory.beta.dtype)
        return new._replace(**dict(zip("xyz", corrected, strict=False))), StormMemory(point, corrected, beta)


FORGETS, FORGETS_NOISY = 2.0, 4.0  # powers of k with which x forgets the size of directions, without noise and with it
X_SHARE, X_STEPS = 0.01, 50.0  # an entry of x moves at most that share of a length in the first 50 steps, then as 1/k
C1_LEAST = 1.5  # the same in units of (curvature of F) / L_G, should the rows that are active at the start not stay so
GAMMA_FACTOR = 0.08  # gamma in units of ||J||^2 / L_G: stiff enough to keep the noise of w off the constraints
KAPPA_CURVATURE = 9.0  # curvature in x of the lower level on which Storm's kappa was measured: the toy with gamma = 1


REPAIR = settings.Rule(
    lambda value: isinstance(value, AbstractLowerSolver) or (settings.is_whole(value) and value >= 0),
    "needs a number of steps, which cannot be negative, or a solver, hx.Exact() or hx.Conic()",
)
ADAPT = settings.Rule(
    lambda value: value is None or (isinstance(value, tuple) and set(value) <= {"x", "y", "inner", "c1"}),
    'needs a tuple of names out of "x", "y", "inner" and "c1", or None for all that are not given',
)
GAMMA1 = settings.Rule(
    lambda value: settings.POSITIVE.fits(value) or (isinstance(value, float) and value == math.inf),
    "needs a positive number, inf for the plain Lagrangian, or None to have it estimated",
)
PENALTY = settings.one_of("multiplier", "quadratic")
INNER = settings.instance_of((SALM, AbstractLowerSolver), "hx.SALM(), hx.Exact() or hx.Conic()")
DIRECTION = settings.instance_of(AbstractDirection, "hx.Plain(), hx.Storm() or another hx.extend.AbstractDirection")
BETA = settings.Rule(
    lambda value: callable(value) or bool(np.all(np.abs(np.asarray(value) - 0.5) <= 0.5)),
    "needs numbers in [0, 1]: one, one for every step, or a function k -> beta_k",
)


class SALVFSettings(common.FromLowerSolution, common.WithSmoothness):
    """The settings of SALVF, which documents them, and what they must be."""

    c1: Number = setting(settings.POSITIVE)
    c2: Number = setting(settings.POSITIVE)
    gamma1: Number = setting(GAMMA1)
    gamma2: Number = None
    tau: Number = setting(settings.POSITIVE)
    penalty: Literal["multiplier", "quadratic"] = setting(PENALTY, "multiplier", static=True)
    steps: PyTree = setting(common.STEPS)
    inner: SALM | AbstractLowerSolver = setting(INNER, SALM())
    direction: AbstractDirection = setting(DIRECTION, Plain())
    control_variate: bool | None = setting(settings.TRUE_FALSE_OR_UNSET, static=True)
    follow: bool | None = setting(settings.TRUE_FALSE_OR_UNSET, static=True)
    repair: int | AbstractLowerSolver = setting(REPAIR, 0, static=True)
    adapt: tuple[str, ...] | None = setting(ADAPT, static=True)
    bound: Number = setting(settings.POSITIVE)
    z0: PyTree = None
    # What y is measured in while the method works: powers of two; ones where a step in y is given.
    units: PyTree = eqx.field(default=None, kw_only=True, repr=False)
    # The outer step whose sizes are in use, where some size is a `Staircase`: set by the run (`staged`).
    stage: int = eqx.field(static=True, default=0, kw_only=True, repr=False)

    size_rule: ClassVar[settings.Rule] = settings.SIZE

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        super().__post_init__()
        settings.check_setting("SALVF", "tau", self.tau, settings.AT_MOST_ONE)
        check_inner(self)
        check_direction(self)
        if isinstance(self.gamma1, float) and self.gamma1 == math.inf:
            self.gamma1 = INFINITE

    @property
    def salm(self) -> SALM | None:
        """The inner solver with the sizes of the current stage; None where it is exact."""
        return self.inner.at(self.stage) if isinstance(self.inner, SALM) else None

    def has_units(self) -> bool:
        """Whether a number is given that carries the constraints' units."""
        gamma2 = None if self.solver is not None or is_zero(self.gamma2) else self.gamma2  # 0 has no units
        return any(value is not None for value in (self.c2, self.gamma1, gamma2, self.bound))

    @property
    def solver(self) -> AbstractLowerSolver | None:
        """The inner solver where it gives the lower level's solution itself: gamma2 = 0, and z is lam. Else None."""
        return self.inner if isinstance(self.inner, AbstractLowerSolver) else None

    @property
    def is_complete(self) -> bool:
        """Whether nothing that moves the run is left to the lower level's solution at x0: it is then not solved."""
        inner, steps, storm = self.inner, self.steps or common.Steps(), self.direction
        given = [self.c1, self.c2, self.gamma1, steps.x, steps.y]
        if isinstance(inner, SALM):
            given += [self.gamma2, steps.z, inner.eta, inner.rho]
            given += [] if inner.rule == "paper" else [inner.eta_max, inner.rho_max]
        if isinstance(storm, Storm) and storm.schedule is None:
            given += [storm.unit if storm.beta is None else storm.beta]
        return self.start == "given" and all(value is not None for value in given)

    @property
    def weights(self) -> Weights:
        """The numbers in Psi."""
        return Weights(self.c1, self.c2, self.gamma1, self.gamma2)

    @property
    def longest_inner_step(self) -> Scalar:
        """SALM's longest step, 1/L_w; where the inner solver is exact that of the stationarity measure."""
        return self.inner.eta_max if isinstance(self.inner, SALM) else 1 / self.smoothness

    @property
    def c1_grows(self) -> bool:
        """Whether c1 grows on the way: it is estimated, and so is all that has to follow it."""
        return {"c1", "y"} <= set(self.adapt or ()) and self.penalty == "multiplier"

    def weights_at(self, growth: Scalar) -> Weights:
        """The numbers in Psi once c1 and c2 have grown."""
        return Weights(growth * self.c1, growth * self.c2, self.gamma1, self.gamma2)

    @property
    def stiffness(self) -> Scalar | float:
        """The gamma of the augmented Lagrangian that the inner solver descends on."""
        return stiffness_of(self.inner, self.weights)


S = TypeVar("S", bound=SALVFSettings)


def is_zero(gamma2: Number) -> bool:
    """Whether a 0 is given: no number that a program computes."""
    return not isinstance(gamma2, jax.core.Tracer) and settings.NOT_NEGATIVE.fits(gamma2) and not np.any(gamma2)


def check_inner(method: SALVFSettings) -> None:
    """Refuse settings that do not fit the inner solver: with an exact one gamma2 is 0, and a repair has no steps.

    With gamma2 = 0 the best multiplier at fixed w is infinite, so SALM has to find it by steps of its own.
    """
    gamma2, repair, inner, name = method.gamma2, method.repair, method.inner, type(method.inner).__name__
    if isinstance(inner, SALM):
        settings.check_setting("SALVF", "gamma2", None if is_zero(gamma2) else gamma2, settings.POSITIVE)
        cold = not inner.warm and inner.rule == "capped"
        if is_zero(gamma2) and (inner.dual_free or cold or (inner.rho is None and method.gamma1 == math.inf)):
            raise InputError(
                "SALVF(gamma2=0): needs SALM with dual steps (dual_free=False), from the last lam or from 0 (warm=True "
                'or rule="paper"), and rho where gamma1 is inf.'
            )
        return
    if gamma2 is not None and not eqx.is_array(gamma2) and not is_zero(gamma2):
        raise InputError(f"SALVF(gamma2={gamma2}): with inner={name}() gamma2 is 0; leave it unset.")
    if isinstance(repair, int) and repair:
        raise InputError(f"SALVF(repair={repair}): steps need inner=hx.SALM(); give repair=hx.{name}().")


def check_direction(method: SALVFSettings) -> None:
    """Refuse a direction that does not fit the steps."""
    direction = method.direction
    if not isinstance(direction, Storm):
        return
    settings.check_settings(direction, {"schedule": settings.one_of(None, "paper"), "z": settings.TRUE_OR_FALSE})
    one = direction.schedule is not None or not (callable(direction.beta) or np.ndim(direction.beta))
    settings.check_settings(direction, {"beta": settings.POSITIVE if one else BETA})
    settings.check_setting("Storm", "beta", None if direction.schedule else direction.beta, settings.AT_MOST_ONE)
    hidden = method.steps is not None and settings.is_transformation(method.steps.y)
    if hidden and (direction.beta is None or direction.schedule == "paper"):
        raise InputError(
            "Storm with an optax transformation as steps.y: alpha_k is hidden inside it, so beta_k cannot be "
            "formed. Give a constant, hx.Storm(beta=0.1), or use a number or schedule for steps.y."
        )


def structured(method: S, problem: Problem) -> S:
    """With batch sizes, control variate and follow filled in: they are structure, and so never traced."""
    sizes, salm, control = method.batches(problem), method.salm, method.control_variate
    adapt = _unset(method) if method.adapt is None else method.adapt
    if control is None:  # it needs an inner solution that is close
        control = salm is None or (salm.warm and salm.count >= MUCH)
    size, inner = method.batch_xi or sizes.xi, method.inner
    # Without noise below: where x waits for an inner loop that lags behind (`pace.py`).
    keeps_up = method.solver is not None or {"x", "inner"} <= set(adapt)
    return dataclasses.replace(
        method,
        batch_zeta=method.batch_zeta or sizes.zeta,
        batch_xi=size,
        inner=dataclasses.replace(inner, batch=inner.batch or size) if isinstance(inner, SALM) else inner,
        control_variate=bool(control),
        follow=keeps_up if method.follow is None else method.follow,
        adapt=adapt,
    )


def _unset(method: SALVFSettings) -> tuple[str, ...]:
    """The steps that are estimated, and c1 where c2 is as well."""
    steps = method.steps or common.Steps()
    inner = isinstance(method.inner, SALM) and method.inner.eta_max is None and method.inner.rule == "capped"
    weights = method.c1 is None and method.c2 is None
    free = {"x": steps.x is None, "y": steps.y is None, "inner": inner, "c1": weights}
    return tuple(name for name, unset in free.items() if unset)


def filled(method: S, at: Curvature, scales: Multipliers, lengths: PyTree, forgets: float, dtype: jnp.dtype) -> S:
    """SALVF with every unset number from the norms of the problem and the lengths of x."""
    weights = _weights(method, at, dtype)
    smooth_x, smooth_y = _smoothness(at, weights, dtype)
    steps = _steps(
        method,
        weights,
        common.Normalised(lengths, common.Decay(X_SHARE, a=X_STEPS, power=1.0), 1 / smooth_x, forgets),
        smooth_y,
        dtype,
    )
    method = dataclasses.replace(
        method,
        **weights._asdict(),
        steps=steps,
        inner=_filled_salm(method.inner, at, weights, dtype) if isinstance(method.inner, SALM) else method.inner,
        direction=_direction(method, at, weights.gamma1, steps, dtype),
        scales=scales,
        bound=None if method.bound is None else given(method.bound, 0.0, dtype),
    )
    return common.with_defaults(method, dtype, tau=LITTLE, smoothness=jnp.maximum(smooth_x, smooth_y))


def _filled_salm(salm: SALM, at: Curvature, weights: Weights, dtype: jnp.dtype) -> SALM:
    """eta = 1/mu_G, rho = 1/gamma2, capped by 1/L_w and L_w/||J||^2."""
    tiny, square = jnp.finfo(dtype).tiny, at.jacobian_y**2
    lower, weakest = jnp.maximum(at.lower_yy, tiny), jnp.maximum(at.lower_yy_min, tiny)
    curved = lower + square / stiffness_of(salm, weights) + at.constraint_yy  # L_w
    most = _ratio(curved, square)
    rho = 1 / dual_curvature(weights)
    return common.with_defaults(salm, dtype, eta=1 / weakest, rho=rho, eta_max=1 / curved, rho_max=most)


def dual_curvature(weights: Weights) -> Scalar:
    """gamma2; where that is 0 gamma1, which is the curvature of the augmented Lagrangian's dual function at most."""
    return jnp.where(weights.gamma2 > 0, weights.gamma2, weights.gamma1)


def stiffness_of(inner: SALM | AbstractLowerSolver, weights: Weights) -> Scalar | float:
    """`stiffness` of a method with these weights."""
    free = isinstance(inner, SALM) and inner.dual_free
    return joint_gamma(weights.gamma1, weights.gamma2) if free else weights.gamma1


def below_curvature(method: SALVFSettings, at: Curvature) -> Scalar:
    """L_w: the largest curvature in y of the lower level's augmented Lagrangian that the steps are made for."""
    return at.lower_yy + at.jacobian_y**2 / method.stiffness + at.constraint_yy


def _ratio(a: Scalar, b: Scalar, otherwise: float = 1.0) -> Scalar:
    """a / b where both are positive."""
    tiny = jnp.finfo(a.dtype).tiny
    return jnp.where((a > tiny) & (b > tiny), a / jnp.where(b > tiny, b, 1.0), otherwise)


def _weights(method: SALVFSettings, at: Curvature, dtype: jnp.dtype) -> Weights:
    """c1, c2, gamma1, gamma2."""
    tiny = jnp.finfo(dtype).tiny
    lower, weakest = jnp.maximum(at.lower_yy, tiny), jnp.maximum(at.lower_yy_min, tiny)
    steepest = jnp.maximum(at.jacobian_y, at.outer_y)
    natural = _ratio(steepest**2, lower)  # the gamma at which penalty and objective are equally curved
    gamma1 = method.gamma1 if is_plain(method.gamma1) else given(method.gamma1, GAMMA_FACTOR * natural, dtype)
    gamma2 = given(method.gamma2 if method.solver is None else 0.0, GAMMA_FACTOR * natural, dtype)
    c1 = given(method.c1, _gap_weight(at, lower, weakest, bool(method.follow)), dtype)
    c2 = given(method.c2, (MUCH if method.penalty == "multiplier" else MUCH**2) * c1 / natural, dtype)
    return Weights(c1, c2, gamma1, gamma2)


def _gap_weight(at: Curvature, lower: Scalar, weakest: Scalar, without_noise: bool) -> Scalar:
    """c1: several times what it takes for the lower level to be more curved in y than F.

    Rows count as curvature below only where the lower level has no noise: c2 goes with c1, and a small c2 lets noise
    move y across the constraints.
    """
    above = common.upper_curvature(at)
    most, least = _ratio(above, jnp.sqrt(lower * weakest)), _ratio(above, lower)
    if not without_noise:
        return common.WEIGHT * most
    return jnp.clip(common.WEIGHT * at.above_over_below, C1_LEAST * least, common.WEIGHT * most)


def _smoothness(at: Curvature, weights: Weights, dtype: jnp.dtype) -> tuple[Scalar, Scalar]:
    """L_Psi of the blocks x and y."""
    tiny = jnp.finfo(dtype).tiny
    c1, c2 = weights.c1, weights.c2
    lower = jnp.maximum(at.lower_yy, tiny)
    smooth_y = at.upper_yy + c1 * (lower + at.constraint_yy) + c2 * (at.jacobian_y**2 + at.outer_y**2)
    smooth_x = at.upper_xx + c1 * at.response + c2 * (at.jacobian_x**2 + at.outer_x**2)
    return jnp.where(smooth_x > tiny, smooth_x, smooth_y), smooth_y


def _steps(
    method: SALVFSettings, weights: Weights, along_x: common.Normalised, smooth_y: Scalar, dtype: jnp.dtype
) -> common.Steps:
    asked = method.steps or common.Steps()
    # y - w has no noise but that of F; the recursion of Storm sees the noise of all steps before.
    quiet = method.follow and method.control_variate and isinstance(method.direction, Plain)
    z_step = (1.0 if method.follow else common.Z_STEP) / (weights.c1 * dual_curvature(weights))
    return common.Steps(
        x=common.filled_rule(asked.x, along_x, dtype),
        y=common.filled_rule(asked.y, common.Decay(1 / smooth_y, power=0.0 if quiet else 1 / 3), dtype),
        z=common.filled_rule(asked.z, z_step, dtype),
    )


def _direction(
    method: SALVFSettings, at: Curvature, gamma1: Scalar | float, steps: common.Steps, dtype: jnp.dtype
) -> AbstractDirection:
    """The direction with every number an array; Storm's are filled in."""
    direction = method.direction
    if not isinstance(direction, Storm):
        return common.as_arrays(direction, dtype)
    # What the frozen (w, lam) miss: how grad_x ell moves through w*(x), and the stiffness J_x^2/gamma1 of mu at
    # fixed w.
    moving = at.response + at.jacobian_x**2 / gamma1
    beta = direction.beta
    if direction.schedule == "paper" and beta is None:
        uncapped = isinstance(steps.y, common.Decay)
        first = steps.y.scale * steps.y.a if uncapped else common.rate(steps.y, jnp.zeros((), int), dtype)
        beta = 1 / first**2
    return dataclasses.replace(
        direction,
        kappa=given(direction.kappa, Storm.kappa, dtype),
        beta=beta if beta is None or callable(beta) else jnp.asarray(beta, dtype),
        unit=given(direction.unit, moving / KAPPA_CURVATURE, dtype),
    )
