r"""LV-HBA (Yao, Yu, Zeng, Zhang, ICLR 2024): a single loop on the proximal Lagrangian value function.

Per step, with c_k = c (k+1)^q, v(x, y, z) of `reformulation.proximal` and C = {(x, y) in X x Y: H <= 0, e = 0}:

    th  <- Proj_Y(th - eta d_th),   lam <- Proj_Z(lam + rho d_lam)          both from the old pair (th, lam)
    d    = gradient of F/c_k + G - v at (x, y, z), with the new pair
    (x, y) <- Proj_C((x, y) - alpha (d_x, d_y)),   z <- Proj_Z(z - beta d_z),   Z = [0, r]^p, equalities [-r, r]

x and y are off by O(1/c_k). The projection is a convex problem of its own, in (x, y) jointly: a lower solver finds it,
with the point to be projected in the place of the upper variable. Where C is a linear space it is closed form.

The paper has one step eta for th and lam. They carry different units, so here lam has a step of its own, rho; it is
eta where the user sets eta only. With samples every g-gradient of a step is taken on one batch xi~.
"""

import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base.errors import InputError
from hierax._base.settings import check_choice, check_count, check_positive
from hierax._base.trees import Number, dtype_of, move
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math import curvature as estimate
from hierax._math.convexity import joint_convexity
from hierax._math.joint_set import is_linear_space, onto_linear_space, projection_problem
from hierax._math.lagrangian import nonnegative
from hierax._math.lower_level import SOLVED
from hierax._math.proximal import Centre, Saddle, inner_gradient, outer_gradient
from hierax._math.psi import gradient_mapping
from hierax._math.spectrum import jacobian_norm
from hierax._methods import baseline
from hierax._methods.baseline import Iterate, Moved, into_box
from hierax._methods.steps import Decay, check_rule, is_transformation, rate
from hierax._problem import samples, sets
from hierax._problem.problem import Multipliers, Problem, Rows, scaled
from hierax._run.method import AbstractMethod, Costs, Metrics, look_at

C_FACTOR = 5.0  # c in units of (curvature of F) / L_G, both in y
SLOPE = 5.0  # weight of F's slope where it stands in for curvature, as in SALVF
G1_FACTOR = 2.0  # g1 in units of 1 / L_G
G2_FACTOR = 1.0  # g2 in units of L_G / ||J_y H||^2
INNER_STEP = 0.5  # eta in units of the longest step at which (th, lam) is stable
Z_STEP = 0.3  # beta in units of g2, which would set z = lam

NOT_CONVEX = (
    "LVHBA: the set {H(x, y) <= 0} is not jointly convex in (x, y): between two points near the start a constraint "
    "lies above its chord, or its curvature is negative. LV-HBA projects on this set at every step. Use hx.BiCGAFFA(), "
    "hx.SALVF() or hx.BLOCC(), which need convexity in y only."
)
NOT_AFFINE = (
    "LVHBA: an equality is not jointly affine in (x, y), so the set of feasible (x, y) is not jointly convex. LV-HBA "
    "projects on this set at every step. Use hx.BiCGAFFA() or hx.SALVF()."
)


class LVHBAState(NamedTuple):
    """Everything that changes from step to step; `held` are the multipliers of the last projection on C."""

    point: Iterate
    inner: Saddle
    held: Rows
    step: Int[Array, ""]
    key: PRNGKeyArray


class LVHBA(AbstractMethod):
    r"""Single-loop method on the proximal Lagrangian value function. Whatever is None is estimated from the problem.

    Args:
        c: c_k = c (k+1)^q is the weight of G - v relative to F; None: 5 times (curvature of F) / L_G, both in y.
        q: in (0, 1/2).
        g1: proximal parameter of th; None: 2/L_G.
        g2: proximal parameter of lam; None: L_G/||J_y H||^2.
        r: bound of the multipliers; it must exceed those met on the way. None: 10 times (1 + the largest at the start).
            Stationarity is measured without this bound, so a z that presses against it shows there.
        alpha: step of (x, y): a number or a schedule. None: the smaller of eta and
            1/((L_Fx + L_Fy)/c + L_G + ||G_xy||^2/(mu_G + 1/g1) + g2 ||J_x||^2), decaying like (k+1)^(-1/3) where
            something is sampled.
        beta: step of z; None: 0.3 g2.
        eta: step of th; None: half the longest stable one, 1/2 min(1/a, (a + b)/(a b + k^2)) with b = 1/g1,
            k^2 = ||J_y H||^2 g2/g1 and a the curvature of th's problem, L_G + L_H + 1/g1 and mu_G + 1/g1 (L_H that of
            <lam, H>).
        rho: step of lam; None: eta g2/g1, or eta itself where that is given (the paper's).
        projection: solver of the projection on C, and of the lower level at the start: `Exact()` or `Conic()`.
        batch_zeta: samples of zeta per step.
        batch_xi: samples of xi~ per step.
        start: "solve" first solves the lower level at x0 for (y, th, z, lam); "given" takes (x0, y0) with z = lam = 0,
            from where the method may stop at spurious points.
        scales: divisors of the constraints; None: the norm of each constraint's gradient in y at the lower level's
            solution for x0, unless g2, r, beta, eta or rho is given (they carry the constraints' units).

    Examples:
        >>> from hierax._methods.lvhba import LVHBA
        >>> method = LVHBA(c=2.0, q=0.4)
    """

    c: Number = None
    q: Number = 0.3
    g1: Number = None
    g2: Number = None
    r: Number = None
    alpha: Any = None
    beta: Number = None
    eta: Number = None
    rho: Number = None
    projection: AbstractLowerSolver = Exact()
    batch_zeta: int | None = eqx.field(static=True, default=None)
    batch_xi: int | None = eqx.field(static=True, default=None)
    start: Literal["solve", "given"] = eqx.field(static=True, default="solve")
    scales: Any = None

    closer: ClassVar[str] = "more steps, a larger c or a larger q bring it closer"
    shorten: ClassVar[str] = "Shorten alpha, eta and beta, or leave them unset."

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        for name in ("c", "g1", "g2", "r", "beta", "eta", "rho"):
            check_positive("LVHBA", name, getattr(self, name))
        if isinstance(self.q, int | float) and not 0 < self.q < 0.5:
            raise InputError(f"LVHBA(q={self.q}): must lie in (0, 1/2).")
        check_rule("alpha", self.alpha)
        if is_transformation(self.alpha):
            raise InputError(
                "LVHBA(alpha): (x, y) moves by one projected step, so it needs a number or a schedule, not an optax "
                "transformation."
            )
        if not isinstance(self.projection, AbstractLowerSolver):
            raise InputError(f"LVHBA(projection): needs hx.Exact() or hx.Conic(), got {self.projection!r}.")
        check_choice("LVHBA", "start", self.start, ("solve", "given"))
        check_count("LVHBA", "batch_zeta", self.batch_zeta)
        check_count("LVHBA", "batch_xi", self.batch_xi)

    # -- settings ---------------------------------------------------------------------------------------------------

    def refuse(self, problem: Problem) -> None:
        """No constraints at the upper level."""
        baseline.refuse_upper_constraints("LVHBA", problem)

    def doubts(self, problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray) -> dict[str, Bool[Array, ""]]:
        """Those of the solver about the lower level and the projection, and a C that is not convex."""
        convex, affine = joint_convexity(problem, x, y, jax.random.fold_in(key, 6))
        doubts = {NOT_CONVEX: ~convex, NOT_AFFINE: ~affine}
        if self.start == "solve":
            doubts |= self.projection.doubts(problem, x, y, samples.whole(problem.xi, key))
        if not is_linear_space(problem, x, y):
            doubts |= self.projection.doubts(projection_problem(problem), (x, y), (x, y), None)
        return doubts

    def resolve(
        self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, look: samples.Tickets | None = None
    ) -> "LVHBA":
        """The method with every unset value estimated at (x0, y0) and every number an array."""
        self = self.with_batches(problem)
        dtype = dtype_of(x0, y0)
        tiny = jnp.finfo(dtype).tiny
        look = self.first_look(problem, key) if look is None else look
        zeta, xi = look_at(problem.zeta, look.zeta), samples.whole(problem.xi, key)
        y, lam = self._lower_solution(problem, x0, y0, xi)
        scales = self._scales(problem, x0, y, key, dtype)
        rescaled, lam = scaled(problem, scales), _times(lam, scales)
        at = estimate.curvature(rescaled, x0, y, lam, zeta, xi)
        mixed = jacobian_norm(lambda v: jax.grad(problem.lower, 1)(v, y, xi), x0)

        def given(value: Number, default: Scalar | float) -> Array:
            return jnp.asarray(default if value is None else value, dtype)

        def or_one(value: Scalar) -> Scalar:
            return jnp.where(value > tiny, value, 1.0)

        lower, steep = or_one(at.lower_yy), or_one(at.jacobian_y**2)
        curved_upper = jnp.where(at.upper_yy > 1e-3 * at.upper_slope, at.upper_yy, SLOPE * at.upper_slope)
        c = given(self.c, or_one(C_FACTOR * curved_upper / lower))
        g1, g2 = given(self.g1, G1_FACTOR / lower), given(self.g2, G2_FACTOR * lower / steep)
        least, most = at.lower_yy_min + 1 / g1, lower + at.constraint_yy + 1 / g1
        # Descent in th, ascent in lam, in units in which both proximal terms weigh the same, behave like the matrix
        # [[a, k], [-k, b]]: stable for steps below 2/a (real eigenvalues) and (a + b)/(a b + k^2) (complex ones).
        b, k2 = 1 / g1, at.jacobian_y**2 * g2 / g1
        eta = INNER_STEP * jnp.minimum(1 / most, jnp.minimum(*((a + b) / (a * b + k2) for a in (least, most))))
        rho = eta * g2 / g1 if self.eta is None else self.eta
        eta = given(self.eta, eta)
        smooth = (at.upper_xx + at.upper_yy) / c + lower + mixed**2 / least + g2 * at.jacobian_x**2
        alpha = self.alpha
        if alpha is None:
            alpha = jnp.minimum(eta, 1 / smooth)
            alpha = alpha if problem.zeta is None and problem.xi is None else Decay(alpha)
        if not callable(alpha) or isinstance(alpha, Decay):
            alpha = jax.tree.map(lambda a: jnp.asarray(a, dtype), alpha)
        return dataclasses.replace(
            self,
            c=c,
            q=given(self.q, 0.0),
            g1=g1,
            g2=g2,
            r=given(self.r, baseline.multiplier_bound(lam, dtype)),
            alpha=alpha,
            beta=given(self.beta, Z_STEP * g2),
            eta=eta,
            rho=given(self.rho, rho),
            scales=scales,
        )

    def _lower_solution(self, problem: Problem, x: PyTree, y: PyTree, xi: PyTree) -> tuple[PyTree, Rows]:
        """y*(x) and its multipliers, both in the user's units."""
        found = self.projection.solve(problem, x, y, xi)
        return found.y, found.multipliers

    def _scales(self, problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray, dtype: jnp.dtype) -> Multipliers:
        """Norms of the constraints' gradients at the lower level's solution, where they hold (y0 may be a centre)."""
        scales = self.scales
        if scales is None and any(getattr(self, name) is not None for name in ("g2", "r", "beta", "eta", "rho")):
            scales = estimate.unit_scales(problem, x, y)
        if scales is None:
            scales = estimate.constraint_scales(problem, x, y, jax.random.fold_in(key, 1))
        return jax.tree.map(lambda a: jnp.asarray(a, dtype), scales)

    # -- a run ------------------------------------------------------------------------------------------------------

    def init(
        self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, look: samples.Tickets | None = None
    ) -> LVHBAState:
        """State before the first step (of a resolved method)."""
        zero = jax.tree.map(jnp.zeros_like, problem.rows(x0, y0))
        y, z = y0, zero
        if self.start == "solve":
            y, lam = self._lower_solution(problem, x0, y0, samples.whole(problem.xi, key))
            z = into_box(_times(lam, self.scales), self.r)
        return LVHBAState(Iterate(x0, y, z), Saddle(y, z), zero, jnp.zeros((), jnp.int32), key)

    def step(self, problem: Problem, state: LVHBAState, tickets: samples.Tickets) -> tuple[LVHBAState, Metrics]:
        """One step of (th, lam), then one of (x, y) and one of z."""
        problem = scaled(problem, self.scales)
        x, y, z = state.point
        assert z is not None
        zeta, xi = samples.fetch(problem.zeta, tickets.zeta), samples.fetch(problem.xi, tickets.xi)
        c = self.c * (state.step.astype(self.c.dtype) + 1) ** self.q
        alpha = rate(self.alpha, state.step, self.c.dtype)
        centre = Centre(x, y, z)

        slope = inner_gradient(problem, centre, state.inner, self.g1, self.g2, xi)
        inner = Saddle(
            sets.project(problem.y_set, move(state.inner.th, self.eta, slope.th)),
            into_box(move(state.inner.lam, -self.rho, slope.lam), self.r),
        )
        d = outer_gradient(problem, centre, inner, c, self.g1, self.g2, zeta, xi)
        target = move(x, alpha, d.x), move(y, alpha, d.y)
        (new_x, new_y), held, status = self._project(problem, target, (x, y), state.held)
        new = Iterate(new_x, new_y, into_box(move(z, self.beta, d.z), self.r))

        # Residuals are those of F + c (G - v), comparable with other methods; those of the multipliers over their cone,
        # without the bound r.
        ascent = nonnegative(move(state.inner.lam, -self.rho, slope.lam))
        free = nonnegative(move(z, self.beta, d.z))
        told = Moved(
            old=state.point,
            new=new,
            d_x=d.x,
            d_y=d.y,
            upper=d.upper,
            lower=d.lower,
            distance=optax.tree.norm(optax.tree.sub(new_y, inner.th)),
            inner=(
                jax.tree.map(lambda a: c * a, gradient_mapping(problem.y_set, state.inner.th, slope.th, self.eta)),
                jax.tree.map(lambda a, b: c * (a - b) / self.rho, state.inner.lam, ascent),
            ),
            z=jax.tree.map(lambda a, b: c * (a - b) / self.beta, z, free),
            status=status,
        )
        metrics = baseline.metrics(problem, self.scales, told, 1 / alpha)
        # (x, y) is stationary over C, not over X and Y apart: what counts is how far the projected step went, and a
        # point that C holds is no corner of X and Y.
        gone = jax.tree.map(lambda a, b: c * (a - b) / alpha, (x, y), (new_x, new_y))
        metrics = metrics._replace(
            residual=(*gone, *metrics.residual[2:]), raw_x=optax.tree.norm(gone[0]), raw_y=optax.tree.norm(gone[1])
        )
        return LVHBAState(new, inner, held, state.step + 1, state.key), metrics

    def _project(
        self, problem: Problem, target: tuple[PyTree, PyTree], start: tuple[PyTree, PyTree], held: Rows
    ) -> tuple[tuple[PyTree, PyTree], Rows, Array | int]:
        """Proj_C(target), the multipliers of that problem, and how it ended."""
        if is_linear_space(problem, *target):
            return onto_linear_space(problem, target), held, SOLVED
        found = self.projection.solve(projection_problem(problem), target, start, None, held)
        landed = sets.project((problem.x_set, problem.y_set), found.y)  # to the last digit
        return landed, found.multipliers, found.status

    def blank(self, state: LVHBAState) -> tuple[PyTree, PyTree, PyTree, PyTree]:
        """Zeros like x, y, z and (th, lam)."""
        return jax.tree.map(jnp.zeros_like, (*state.point, tuple(state.inner)))

    def multipliers(self, problem: Problem, state: LVHBAState) -> Multipliers:
        """lam in the user's units."""
        x, y, _ = state.point
        return baseline.in_user_units(problem, x, y, state.inner.lam, self.scales)

    def moved_to(self, state: LVHBAState, x: PyTree, y: PyTree, multipliers: Multipliers) -> LVHBAState:
        """The state at another point of the run."""
        there = jax.tree.map(jnp.multiply, multipliers, self.scales)
        lam = Rows(there.inequalities, there.equalities)
        return state._replace(point=Iterate(x, y, lam), inner=state.inner._replace(lam=lam))

    def step_limits(self, problem: Problem, state: LVHBAState) -> dict[str, tuple[Scalar, Scalar]]:
        """Each step in use and twice what the rules give where the state is."""
        x, y, _ = state.point
        free = dataclasses.replace(self, alpha=None, eta=None, rho=None)
        able = free.resolve(problem, x, y, state.key)
        most = able.alpha.scale if isinstance(able.alpha, Decay) else able.alpha
        alpha = rate(self.alpha, state.step, dtype_of(x, y))
        return {"eta": (self.eta, 2 * able.eta), "rho": (self.rho, 2 * able.rho), "alpha": (alpha, 2 * most)}

    # -- accounting -------------------------------------------------------------------------------------------------

    def costs(self, problem: Problem) -> Costs:
        """Samples and gradients of one step; its projection on C counts as a lower solve."""
        once = baseline.drawn(self, problem)
        return once._replace(grad_upper=1, grad_lower=3, vjp_constraints=2, lower_solves=1)

    def start_costs(self, problem: Problem) -> Costs:
        """Samples and gradients before the first step; what the exact solver does is not counted in gradients."""
        return baseline.look_costs(1 + (self.start == "solve"))


def _times(lam: Rows, scales: Multipliers) -> Rows:
    """Multipliers of the user's constraints as multipliers of the scaled ones."""
    return jax.tree.map(jnp.multiply, lam, Rows(scales.inequalities, scales.equalities))
