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
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.errors import InputError
from hierax._base.settings import POSITIVE, check_settings, in_interval, instance_of, is_transformation
from hierax._base.trees import Number, dtype_of, given, move, or_one
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math import spectrum as estimate
from hierax._math.convexity import joint_convexity
from hierax._math.gap import Centre, Saddle, inner_gradient, outer_gradient
from hierax._math.joint_set import is_linear_space, onto_linear_space, projection_problem
from hierax._math.lagrangian import nonnegative
from hierax._math.lower_level import SOLVED
from hierax._math.psi import gradient_mapping
from hierax._math.spectrum import jacobian_norm
from hierax._methods import common
from hierax._methods.common import (
    Decay,
    GrowingWeight,
    Iterate,
    StepRule,
    StepTaken,
    as_arrays,
    check_rule,
    filled_rule,
    into_box,
    rate,
)
from hierax._problem import samples, sets
from hierax._problem.problem import Multipliers, Problem, Rows, scaled
from hierax._problem.samples import Tickets
from hierax._run.batches import look_at
from hierax._run.method import Advice, Begun, Metrics, Residual, RunCosts

C_FACTOR = 5.0  # c in units of (curvature of F) / L_G, both in y
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


class LVHBA(GrowingWeight):
    r"""Single-loop method on the proximal Lagrangian value function. Whatever is None is estimated from the problem.

        v_g(x, y, z) = min over th in Y of max over lam in [0, r]^p of
                       G(x, th) + lam'H(x, th) + ||th - y||^2/(2 g1) - ||lam - z||^2/(2 g2)

    One step, th and lam both from their old values:

        th  <- Proj_Y(th - eta (grad_y G(x, th) + J_y H(x, th)' lam + (th - y)/g1))
        lam <- Proj_Z(lam + rho (H(x, th) - (lam - z)/g2)),     Z = [0, r]^p
        d_x = grad_x F/c_k + grad_x G(x, y) - grad_x G(x, th) - J_x H(x, th)' lam
        d_y = grad_y F/c_k + grad_y G(x, y) - (y - th)/g1
        (x, y) <- Proj_C((x, y) - alpha (d_x, d_y)),     C = {(x, y) in X x Y : H(x, y) <= 0, e(x, y) = 0}
        z      <- Proj_Z(z - beta (z - lam)/g2)

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
        >>> import hierax as hx
        >>> method = hx.LVHBA(c=2.0, q=0.4)

    References:
        Yao, Yu, Zeng, Zhang: Constrained bi-level optimization: proximal Lagrangian value function approach and
            Hessian-free algorithm, ICLR 2024.
        docs/methods/lv-hba.md (cost and when to use it)
    """

    alpha: StepRule = None
    beta: Number = None
    eta: Number = None
    rho: Number = None
    projection: AbstractLowerSolver = Exact()

    advice: ClassVar[Advice] = Advice(
        bring_y_closer="more steps, a larger c or a larger q bring it closer",
        shorten_steps="Shorten alpha, eta and beta, or leave them unset.",
        lengthen_x_step="lengthen its step, hx.LVHBA(alpha=...); sol.method.alpha shows the one it had.",
    )

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        super().__post_init__()
        rules = dict.fromkeys(("beta", "eta", "rho"), POSITIVE)
        check_settings(self, rules | {"q": in_interval(lambda q: 0 < q < 0.5, "(0, 1/2)")})
        check_settings(self, {"projection": instance_of(AbstractLowerSolver, "hx.Exact() or hx.Conic()")})
        check_rule("alpha", self.alpha)
        if is_transformation(self.alpha):
            raise InputError(
                "LVHBA(alpha): (x, y) moves by one projected step, so it needs a number or a schedule, not an optax "
                "transformation."
            )

    def begin(self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, look: Tickets | None = None) -> Begun:
        """Estimate what is unset where the lower level is solved at x0, and begin there."""
        look = self.batches(problem).first_look(problem, key) if look is None else look
        zeta, xi = look_at(problem.zeta, look.zeta), samples.whole(problem.xi, key)
        found = self.projection.solve(problem, x0, y0, xi)
        scales = as_arrays(self._scales(problem, x0, found.y, key), dtype_of(x0, y0))
        lam = jax.tree.map(jnp.multiply, found.multipliers, Rows(scales.inequalities, scales.equalities))
        at = estimate.curvature(scaled(problem, scales), x0, found.y, lam, zeta, xi)
        mixed = jacobian_norm(lambda v: jax.grad(problem.lower, 1)(v, found.y, xi), x0)
        method = self._filled(problem, at, mixed, lam, scales)
        zero = common.no_multipliers(problem, x0, y0)
        y, z = (found.y, into_box(lam, method.r)) if self.start == "solve" else (y0, zero)
        state = LVHBAState(Iterate(x0, y, z), Saddle(y, z), zero, jnp.zeros((), jnp.int32), key)
        return Begun(method, state, self._doubts(problem, x0, y0, key))

    def _scales(self, problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray) -> Multipliers:
        """Norms of the constraints' gradients at the lower level's solution, where they hold (y0 may be a centre)."""
        if self.scales is not None:
            return self.scales
        if any(getattr(self, name) is not None for name in ("g2", "r", "beta", "eta", "rho")):
            return estimate.unit_scales(problem, x, y)
        return estimate.constraint_scales(problem, x, y, jax.random.fold_in(key, 1))

    def _doubts(self, problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray) -> dict[str, Bool[Array, ""]]:
        """Those of the solver about the lower level and the projection, and a C that is not convex."""
        convex, affine = joint_convexity(problem, x, y, jax.random.fold_in(key, 6))
        doubts = {NOT_CONVEX: ~convex, NOT_AFFINE: ~affine}
        if self.start == "solve":
            doubts |= self.projection.doubts(problem, x, y, samples.whole(problem.xi, key))
        if not is_linear_space(problem, x, y):
            doubts |= self.projection.doubts(projection_problem(problem), (x, y), (x, y), None)
        return doubts

    def _filled(
        self, problem: Problem, at: estimate.Curvature, mixed: Scalar, lam: Rows, scales: Multipliers
    ) -> "LVHBA":
        """Every unset number from the norms at the start; `mixed` is ||G_xy||, `lam` the multipliers there."""
        dtype = at.lower_yy.dtype
        tiny = jnp.finfo(dtype).tiny
        lower, steep = or_one(at.lower_yy, tiny), or_one(at.jacobian_y**2, tiny)
        c = given(self.c, or_one(C_FACTOR * common.upper_curvature(at) / lower, tiny), dtype)
        g1, g2 = given(self.g1, 2 / lower, dtype), given(self.g2, lower / steep, dtype)
        least, most = at.lower_yy_min + 1 / g1, lower + at.constraint_yy + 1 / g1
        stable = _longest_inner_step(least, most, 1 / g1, at.jacobian_y**2 * g2 / g1)
        rho = 0.5 * stable * g2 / g1 if self.eta is None else self.eta
        eta = given(self.eta, 0.5 * stable, dtype)
        smooth = (at.upper_xx + at.upper_yy) / c + lower + mixed**2 / least + g2 * at.jacobian_x**2
        alpha = jnp.minimum(eta, 1 / smooth)
        sampled, sizes = problem.zeta is not None or problem.xi is not None, self.batches(problem)
        return dataclasses.replace(
            self,
            batch_zeta=sizes.zeta,
            batch_xi=sizes.xi,
            c=c,
            q=given(self.q, 0.0, dtype),
            g1=g1,
            g2=g2,
            r=given(self.r, common.multiplier_bound(lam, dtype), dtype),
            alpha=filled_rule(self.alpha, Decay(alpha) if sampled else alpha, dtype),
            beta=given(self.beta, Z_STEP * g2, dtype),
            eta=eta,
            rho=given(self.rho, rho, dtype),
            scales=scales,
        )

    def step(self, problem: Problem, state: LVHBAState, tickets: Tickets) -> tuple[LVHBAState, Metrics]:
        """One step of (th, lam), then one of (x, y) and one of z."""
        problem = scaled(problem, self.scales)
        x, y, z = state.point
        assert z is not None
        zeta, xi = samples.fetch(problem.zeta, tickets.zeta), samples.fetch(problem.xi, tickets.xi)
        c = self.weight(state.step)
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
        taken = StepTaken(
            old=state.point,
            new=new,
            d_x=d.x,
            d_y=d.y,
            upper=d.upper,
            lower=d.lower,
            distance=trees.norm(trees.sub(new_y, inner.th)),
            inner=(
                jax.tree.map(lambda a: c * a, gradient_mapping(problem.y_set, state.inner.th, slope.th, self.eta)),
                jax.tree.map(lambda a, b: c * (a - b) / self.rho, state.inner.lam, ascent),
            ),
            z=jax.tree.map(lambda a, b: c * (a - b) / self.beta, z, free),
            status=status,
        )
        metrics = common.step_metrics(problem, self.scales, taken, 1 / alpha)
        # (x, y) is stationary over C, not over X and Y apart: what counts is how far the projected step went, and a
        # point that C holds is no corner of X and Y.
        gone = jax.tree.map(lambda a, b: c * (a - b) / alpha, (x, y), (new_x, new_y))
        metrics = metrics._replace(
            residual=metrics.residual._replace(x=gone[0], y=gone[1]),
            raw_x=trees.norm(gone[0]),
            raw_y=trees.norm(gone[1]),
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

    def zero_residual(self, state: LVHBAState) -> Residual:
        """Zeros like x, y, z and (th, lam)."""
        return Residual(*jax.tree.map(jnp.zeros_like, (*state.point, tuple(state.inner))))

    def multipliers(self, problem: Problem, state: LVHBAState) -> Multipliers:
        """lam in the user's units."""
        x, y, _ = state.point
        return common.in_user_units(problem, x, y, state.inner.lam, self.scales)

    def moved_to(self, state: LVHBAState, x: PyTree, y: PyTree, multipliers: Multipliers) -> LVHBAState:
        """The state at another point of the run."""
        lam = common.in_scaled_units(multipliers, self.scales)
        return state._replace(point=Iterate(x, y, lam), inner=state.inner._replace(lam=lam))

    def step_limits(self, problem: Problem, state: LVHBAState) -> dict[str, tuple[Scalar, Scalar]]:
        """Each step in use and twice what the rules give where the state is."""
        x, y, _ = state.point
        free = dataclasses.replace(self, alpha=None, eta=None, rho=None)
        able = free.begin(problem, x, y, state.key).method
        most = able.alpha.scale if isinstance(able.alpha, Decay) else able.alpha
        alpha = rate(self.alpha, state.step, dtype_of(x, y))
        return {"eta": (self.eta, 2 * able.eta), "rho": (self.rho, 2 * able.rho), "alpha": (alpha, 2 * most)}

    def costs(self, problem: Problem) -> RunCosts:
        """The projection on C counts as a lower solve; what exact solvers do is not counted in gradients."""
        once = common.batch_costs(self, problem)
        step = once._replace(grad_upper=1, grad_lower=3, vjp_constraints=2, lower_solves=1)
        return RunCosts(common.estimate_costs(), step)


def _longest_inner_step(least: Scalar, most: Scalar, b: Scalar, k2: Scalar) -> Scalar:
    """The longest stable step of (th, lam): a in [least, most] is the curvature of th's problem.

    Descent in th, ascent in lam, in units in which both proximal terms weigh the same, behave like the matrix
    [[a, k], [-k, b]]: stable for steps below 2/a (real eigenvalues; here 1/a) and (a + b)/(a b + k^2) (complex ones).
    """
    complex_ones = jnp.minimum(*((a + b) / (a * b + k2) for a in (least, most)))
    return jnp.minimum(1 / most, complex_ones)
