r"""The single-loop methods LV-HBA and BiC-GAFFA: one step of every variable at a time, and a gap of growing weight.

LV-HBA (Yao, Yu, Zeng, Zhang, ICLR 2024): a single loop on the proximal Lagrangian value function.

Per step, with c_k = c (k+1)^q, v(x, y, z) of `hierax._math.psi` and C = {(x, y) in X x Y: H <= 0, e = 0}:

    th  <- Proj_Y(th - eta d_th),   lam <- Proj_Z(lam + rho d_lam)          both from the old pair (th, lam)
    d    = gradient of F/c_k + G - v at (x, y, z), with the new pair
    (x, y) <- Proj_C((x, y) - alpha (d_x, d_y)),   z <- Proj_Z(z - beta d_z),   Z = [0, r]^p, equalities [-r, r]

x and y are off by O(1/c_k). The projection is a convex problem of its own, in (x, y) jointly: a lower solver finds it,
with the point to be projected in the place of the upper variable. Where C is a linear space it is closed form.

The paper has one step eta for th and lam. They carry different units, so here lam has a step of its own, rho; it is
eta where the user sets eta only. With samples every g-gradient of a step is taken on one batch xi~.

BiC-GAFFA (Yao, Yin, Zeng, Zhang, NeurIPS 2024): a single loop of gradient steps on the regularised gap function.

Per step, with c_k = c (k+1)^q and gap(x, y, z) of `hierax._math.psi`:

    th  <- Proj_Y(th - eta (grad_y G(x, th) + J_y H(x, th)' z + (th - y)/g1))
    lam  = [z + g2 H(x, y)]_+
    d    = gradient of F/c_k + gap at (x, y, z), with this th and this lam
    x, y, z <- projections of (x, y, z) - (a_x d_x, a_y d_y, a_z d_z) on X, Y and Z,   Z = [0, r]^p, equalities [-r, r]

x and y are off by O(1/c_k), and c_k grows for ever: a bound on it would leave that error. What a large c costs is time,
because x travels no further than a_x sum_k 1/c_k. With samples, every g-gradient of a step is taken on one batch xi~.
"""

import abc
import dataclasses
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.constants import MUCH
from hierax._base.errors import InputError
from hierax._base.settings import POSITIVE, in_interval, instance_of, is_transformation
from hierax._base.trees import Number, dtype_of, given, largest, move, or_one
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math.convexity import is_linear_space, joint_convexity, onto_linear_space, projection_problem
from hierax._math.lower_level import SOLVED
from hierax._math.psi import Inner, Iterate, gap_gradient, gradient_mapping, inner_gradient, nonnegative, outer_gradient
from hierax._math.spectrum import curvature, jacobian_norm
from hierax._methods import common
from hierax._methods.common import setting
from hierax._problem import samples, sets
from hierax._problem.problem import Multipliers, Problem, Rows, scaled
from hierax._problem.samples import Tickets
from hierax._run.method import Advice, Begun, Metrics, Residual, RunCosts

NOT_CONVEX = (
    "LVHBA: the set {H(x, y) <= 0} is not jointly convex in (x, y): between two points near the start a constraint "
    "lies above its chord, or its curvature is negative. LV-HBA projects on this set at every step. Use hx.BiCGAFFA(), "
    "hx.SALVF() or hx.BLOCC(), which need convexity in y only."
)
NOT_AFFINE = (
    "LVHBA: an equality is not jointly affine in (x, y), so the set of feasible (x, y) is not jointly convex. LV-HBA "
    "projects on this set at every step. Use hx.BiCGAFFA() or hx.SALVF()."
)


class SingleLoopState(NamedTuple):
    """Everything that changes from step to step.

    Attributes:
        point: x, y and z.
        inner: the inner variables: th and lam of LV-HBA, th of BiC-GAFFA.
        memory: multipliers of the last projection on C (LV-HBA), states of the step rules (BiC-GAFFA).
        step: steps made.
        key: of all samples of the run.
    """

    point: Iterate
    inner: PyTree
    memory: PyTree
    step: Int[Array, ""]
    key: PRNGKeyArray


class GrowingWeight(common.PublishedMethod, common.FromLowerSolution):
    """What LV-HBA and BiC-GAFFA share; their gap has the growing weight c_k = c (k+1)^q.

    Args:
        c: first weight of the gap relative to F; None: estimated.
        q: exponent of its growth.
        g1: proximal parameter of the inner variable; None: estimated.
        g2: proximal parameter of the inner multiplier; None: estimated.
        r: bound of the multipliers; None: estimated.
    """

    c: Number = setting(POSITIVE)
    q: Number = 0.3
    g1: Number = setting(POSITIVE)
    g2: Number = setting(POSITIVE)
    r: Number = setting(POSITIVE)

    with_units: ClassVar[tuple[str, ...]] = ("g2", "r")  # settings that carry the constraints' units
    moves: ClassVar[tuple[str, ...]]  # the steps

    def weight(self, step: Int[Array, ""]) -> Scalar:
        """c_k."""
        return self.c * (step.astype(self.c.dtype) + 1) ** self.q

    def begin(self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, look: Tickets | None = None) -> Begun:
        """Estimate what is unset where the lower level is solved at x0, and begin there."""
        zeta, xi = common.first_batches(self, problem, key, look)
        seen = self.seen(problem, x0, y0, key, zeta)
        mixed = jacobian_norm(lambda v: jax.grad(problem.lower, 1)(v, seen.lower.y, xi), x0)
        method = self.filled(problem, seen, mixed, dtype_of(x0, y0))
        y, z = y0, common.no_multipliers(problem, x0, y0)
        if self.start == "solve":
            y, z = seen.lower.y, nonnegative(seen.lower.multipliers, method.r)
        inner, memory = method.first(problem, x0, y, z)
        state = SingleLoopState(Iterate(x0, y, z), inner, memory, jnp.zeros((), jnp.int32), key)
        return Begun(method, state, self.doubts(problem, x0, y0, key))

    @abc.abstractmethod
    def seen(self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, zeta: PyTree) -> common.StartLook:
        """The lower level's solution at x0, and the scales and norms there."""

    @abc.abstractmethod
    def filled(self, problem: Problem, seen: common.StartLook, mixed: Scalar, dtype: jnp.dtype) -> Self:
        """Every unset number from the norms at the start; `mixed` is ||G_xy||."""

    @abc.abstractmethod
    def first(self, problem: Problem, x: PyTree, y: PyTree, z: Rows) -> tuple[PyTree, PyTree]:
        """The inner variables and the memory before the first step."""

    def has_units(self) -> bool:
        """Whether a setting is given that carries the constraints' units: these are then left as they are."""
        return any(getattr(self, name) is not None for name in self.with_units)

    def doubts(self, problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray) -> dict[str, Bool[Array, ""]]:
        """Reasons why the method does not fit the problem, each with a flag."""
        return {}

    def with_numbers(self, problem: Problem, seen: common.StartLook, dtype: jnp.dtype, **numbers: PyTree) -> Self:
        """With the numbers of the method, and those that both methods fill in alike."""
        method = dataclasses.replace(self.sized(problem), scales=seen.scales, **numbers)
        # Of z: a bound that is too small is silently wrong, one that is too large costs nothing.
        bound = MUCH * (1 + largest(jax.tree.map(jnp.abs, seen.lower.multipliers), dtype))
        return common.with_defaults(method, dtype, q=self.q, r=bound)

    def zero_residual(self, state: SingleLoopState) -> Residual:
        """Zeros like x, y, z and the inner variables."""
        return Residual(*jax.tree.map(jnp.zeros_like, (*state.point, state.inner)))

    def step_limits(self, problem: Problem, state: SingleLoopState) -> dict[str, tuple[Scalar, Scalar]]:
        """Each step in use and twice what the rules give where the state is."""
        unset = {name.partition(".")[0]: None for name in self.moves}
        return common.limits_against(self, common.estimated_anew(self, problem, state, unset), state, self.moves)


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

    q: Number = setting(in_interval(lambda q: 0 < q < 0.5, "(0, 1/2)"), GrowingWeight.q)
    alpha: common.StepRule = setting(common.check_rule)
    beta: Number = setting(POSITIVE)
    eta: Number = setting(POSITIVE)
    rho: Number = setting(POSITIVE)
    projection: AbstractLowerSolver = setting(instance_of(AbstractLowerSolver, "hx.Exact() or hx.Conic()"), Exact())

    with_units: ClassVar[tuple[str, ...]] = ("g2", "r", "beta", "eta", "rho")
    moves: ClassVar[tuple[str, ...]] = ("eta", "rho", "alpha")
    advice: ClassVar[Advice] = Advice(
        bring_y_closer="more steps, a larger c or a larger q bring it closer",
        shorten_steps="Shorten alpha, eta and beta, or leave them unset.",
        lengthen_x_step="lengthen its step, hx.LVHBA(alpha=...); sol.method.alpha shows the one it had.",
    )

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        super().__post_init__()
        if is_transformation(self.alpha):
            raise InputError(
                "LVHBA(alpha): (x, y) moves by one projected step, so it needs a number or a schedule, not an optax "
                "transformation."
            )

    def seen(self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, zeta: PyTree) -> common.StartLook:
        """The lower level at x0, and the scales of the constraints where they hold (y0 may be a centre)."""
        xi = samples.whole(problem.xi, key)
        found = self.projection.solve(problem, x0, y0, xi)
        scales = self.scales_at(problem, x0, found.y, key)
        lam = jax.tree.map(jnp.multiply, found.multipliers, Rows(*scales[:2]))
        at = curvature(scaled(problem, scales), x0, found.y, lam, zeta, xi)
        return common.StartLook(found._replace(multipliers=lam), scales, at)

    def first(self, problem: Problem, x: PyTree, y: PyTree, z: Rows) -> tuple[Inner, Rows]:
        """The inner variables before the first step, and the multipliers that its projection starts from."""
        return Inner(y, z), common.no_multipliers(problem, x, y)

    def doubts(self, problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray) -> dict[str, Bool[Array, ""]]:
        """Those of the solver about the lower level and the projection, and a C that is not convex."""
        convex, affine = joint_convexity(problem, x, y, jax.random.fold_in(key, 6))
        doubts = {NOT_CONVEX: ~convex, NOT_AFFINE: ~affine}
        if self.start == "solve":
            doubts |= self.projection.doubts(problem, x, y, samples.whole(problem.xi, key))
        if not is_linear_space(problem, x, y):
            doubts |= self.projection.doubts(projection_problem(problem), (x, y), (x, y), None)
        return doubts

    def filled(self, problem: Problem, seen: common.StartLook, mixed: Scalar, dtype: jnp.dtype) -> Self:
        """Every unset number from the norms at the start; `mixed` is ||G_xy||."""
        at, tiny = seen.curvature, jnp.finfo(dtype).tiny
        lower, steep = or_one(at.lower_yy, tiny), or_one(at.jacobian_y**2, tiny)
        c = given(self.c, or_one(common.WEIGHT * common.upper_curvature(at) / lower, tiny), dtype)
        g1, g2 = given(self.g1, 2 / lower, dtype), given(self.g2, lower / steep, dtype)
        least, most = at.lower_yy_min + 1 / g1, lower + at.constraint_yy + 1 / g1
        stable = _longest_inner_step(least, most, 1 / g1, at.jacobian_y**2 * g2 / g1)
        rho = 0.5 * stable * g2 / g1 if self.eta is None else self.eta
        eta = given(self.eta, 0.5 * stable, dtype)
        smooth = (at.upper_xx + at.upper_yy) / c + lower + mixed**2 / least + g2 * at.jacobian_x**2
        alpha = jnp.minimum(eta, 1 / smooth)
        alpha = common.filled_rule(self.alpha, common.Decay(alpha) if is_sampled(problem) else alpha, dtype)
        beta, rho = given(self.beta, common.Z_STEP * g2, dtype), given(self.rho, rho, dtype)
        return self.with_numbers(problem, seen, dtype, c=c, g1=g1, g2=g2, alpha=alpha, beta=beta, eta=eta, rho=rho)

    def step(self, problem: Problem, state: SingleLoopState, tickets: Tickets) -> tuple[SingleLoopState, Metrics]:
        """One step of (th, lam), then one of (x, y) and one of z."""
        problem = scaled(problem, self.scales)
        x, y, z = state.point
        zeta, xi = samples.fetch(problem.zeta, tickets.zeta), samples.fetch(problem.xi, tickets.xi)
        c = self.weight(state.step)
        alpha = common.rate(self.alpha, state.step, self.c.dtype)

        slope = inner_gradient(problem, state.point, state.inner, self.g1, self.g2, xi)
        ascended = move(state.inner.lam, -self.rho, slope.lam)
        th = sets.project(problem.y_set, move(state.inner.w, self.eta, slope.w))
        inner = Inner(th, nonnegative(ascended, self.r))
        d = outer_gradient(problem, state.point, inner, c, self.g1, self.g2, zeta, xi)
        target = move(x, alpha, d.x), move(y, alpha, d.y)
        (new_x, new_y), held, status = self._project(problem, target, (x, y), state.memory)
        moved_z = move(z, self.beta, d.z)
        new = Iterate(new_x, new_y, nonnegative(moved_z, self.r))

        # Residuals are those of F + c (G - v), comparable with other methods; those of the multipliers over their cone,
        # without the bound r.
        taken = common.StepTaken(
            old=state.point,
            new=new,
            d_x=d.x,
            d_y=d.y,
            upper=d.upper,
            lower=d.lower,
            distance=trees.norm(trees.sub(new_y, inner.w)),
            inner=Inner(
                jax.tree.map(lambda a: c * a, gradient_mapping(problem.y_set, state.inner.w, slope.w, self.eta)),
                jax.tree.map(lambda a, b: c * (a - b) / self.rho, state.inner.lam, nonnegative(ascended)),
            ),
            z=jax.tree.map(lambda a, b: c * (a - b) / self.beta, z, nonnegative(moved_z)),
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
        return SingleLoopState(new, inner, held, state.step + 1, state.key), metrics

    def _project(
        self, problem: Problem, target: tuple[PyTree, PyTree], start: tuple[PyTree, PyTree], held: Rows
    ) -> tuple[tuple[PyTree, PyTree], Rows, Array | int]:
        """Proj_C(target), the multipliers of that problem, and how it ended."""
        if is_linear_space(problem, *target):
            return onto_linear_space(problem, target), held, SOLVED
        found = self.projection.solve(projection_problem(problem), target, start, None, held)
        landed = sets.project((problem.x_set, problem.y_set), found.y)  # to the last digit
        return landed, found.multipliers, found.status

    def multipliers(self, problem: Problem, state: SingleLoopState) -> Multipliers:
        """lam in the user's units."""
        return common.in_user_units(problem, *state.point[:2], state.inner.lam, self.scales)

    def moved_to(self, state: SingleLoopState, x: PyTree, y: PyTree, multipliers: Multipliers) -> SingleLoopState:
        """The state at another point of the run."""
        lam = common.in_scaled_units(multipliers, self.scales)
        return state._replace(point=Iterate(x, y, lam), inner=state.inner._replace(lam=lam))

    def costs(self, problem: Problem) -> RunCosts:
        """The projection on C counts as a lower solve; what exact solvers do is not counted in gradients."""
        step = common.batch_costs(self, problem)._replace(grad_upper=1, grad_lower=3, vjp_constraints=2, lower_solves=1)
        return RunCosts(common.estimate_costs(), step)


def _longest_inner_step(least: Scalar, most: Scalar, b: Scalar, k2: Scalar) -> Scalar:
    """The longest stable step of (th, lam): a in [least, most] is the curvature of th's problem.

    Descent in th, ascent in lam, in units in which both proximal terms weigh the same, behave like the matrix
    [[a, k], [-k, b]]: stable for steps below 2/a (real eigenvalues; here 1/a) and (a + b)/(a b + k^2) (complex ones).
    """
    complex_ones = jnp.minimum(*((a + b) / (a * b + k2) for a in (least, most)))
    return jnp.minimum(1 / most, complex_ones)


class BiCGAFFA(GrowingWeight, common.WithSmoothness):
    r"""Single-loop method on the regularised gap function. Whatever is None is estimated from the problem.

        gap(x, y, z) = max over lam >= 0 of [G(x, y) + lam'H(x, y) - ||lam - z||^2/(2 g2)]
                     - min over th in Y of [G(x, th) + z'H(x, th) + ||th - y||^2/(2 g1)]

    One step:

        th <- Proj_Y(th - eta (grad_y G(x, th) + J_y H(x, th)' z + (th - y)/g1)),     lam = [z + g2 H(x, y)]_+
        d_x = grad_x F/c_k + grad_x G(x, y) + J_x H(x, y)' lam - grad_x G(x, th) - J_x H(x, th)' z
        d_y = grad_y F/c_k + grad_y G(x, y) + J_y H(x, y)' lam - (y - th)/g1
        d_z = (lam - z)/g2 - H(x, th)
        x, y, z <- Proj(x - a_x d_x), Proj(y - a_y d_y), Proj(z - a_z d_z)     on X, Y and [0, r]^p

    Args:
        c: c_k = c (k+1)^q is the weight of the gap relative to F; None: 10 times (curvature of F) / L_G, both in y;
            the curvature ratio itself where something is sampled, because the noise of g enters x with weight c_k.
        q: in [0, 1/2); 0 keeps c_k = c, and an error of O(1/c) with it.
        g1: proximal parameter of th; None: 10/L_G.
        g2: proximal parameter of lam; None: 3 L_G/||J_y H||^2.
        r: bound of the multipliers z; it must exceed those met on the way. None: 10 times (1 + the largest at the
            start). Stationarity is measured without this bound, so a z that presses against it shows there.
        steps: `Steps(x=, y=, z=)`; each a number, a schedule or an optax transformation. None:
            a_x = 1/(L_F/c + 2 g2 ||J_x||^2 + 2 ||G_xy||^2/(mu_G + 1/g1)),
            a_y = 1/(L_F/c + L_G + L_H + g2 ||J_y||^2 + 1/g1) with L_H the curvature of <lam, H>,
            a_z = 0.5 min(g2, (mu_G + 1/g1)/||J_y||^2); where something is sampled a_x and a_y decay like (k+1)^(-1/3).
        eta: step of th; None: 1/(L_G + L_H + 1/g1).
        batch_zeta: samples of zeta per step.
        batch_xi: samples of xi~ per step.
        start: "solve" first solves the lower level at x0, exactly, for (y, th, z); "given" takes (x0, y0) with z = 0,
            from where the method may stop at spurious points.
        scales: divisors of the constraints; None: the norm of each constraint's gradient in y at the start, unless g2
            or r is given (they carry the constraints' units).
        smoothness: 1/step of the stationarity measure; None: the largest of 1/a_x, 1/a_y.

    Examples:
        >>> import hierax as hx
        >>> method = hx.BiCGAFFA(c=10.0, q=0.3)

    References:
        Yao, Yin, Zeng, Zhang: Overcoming lower-level constraints in bilevel optimization: a novel approach with
            regularized gap functions, NeurIPS 2024.
        docs/methods/bic-gaffa.md (cost and when to use it)
    """

    q: Number = setting(in_interval(lambda q: 0 <= q < 0.5, "[0, 1/2)"), GrowingWeight.q)
    steps: PyTree = setting(common.STEPS)
    eta: Number = setting(POSITIVE)

    moves: ClassVar[tuple[str, ...]] = ("eta", "steps.x", "steps.y", "steps.z")
    advice: ClassVar[Advice] = Advice(
        bring_y_closer="more steps, a larger c or a larger q bring it closer",
        shorten_steps="Shorten the steps (hx.Steps, eta) or leave them unset.",
        lengthen_x_step="lengthen its step, hx.BiCGAFFA(steps=hx.Steps(x=...)); sol.method.steps.x shows it.",
    )

    def seen(self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, zeta: PyTree) -> common.StartLook:
        """The lower level at x0, solved with the scales at y0."""
        return self.look_at_start(problem, x0, y0, key, zeta, Exact())

    def first(self, problem: Problem, x: PyTree, y: PyTree, z: Rows) -> tuple[PyTree, PyTree]:
        """th before the first step, and the states of the step rules."""
        return y, common.init_rules(self.steps, x, y, z)

    def filled(self, problem: Problem, seen: common.StartLook, mixed: Scalar, dtype: jnp.dtype) -> Self:
        """Every unset number from the norms at the start; `mixed` is ||G_xy||."""
        at, tiny = seen.curvature, jnp.finfo(dtype).tiny
        lower, bent, steep = or_one(at.lower_yy, tiny), at.constraint_yy, or_one(at.jacobian_y**2, tiny)
        sampled = is_sampled(problem)
        weight = common.upper_curvature(at) / lower
        weight = weight if sampled else 2 * common.WEIGHT * weight  # the noise of g in x is c_k times that of F
        c = given(self.c, or_one(weight, tiny), dtype)
        g1, g2 = given(self.g1, MUCH / lower, dtype), given(self.g2, common.SEVERAL * lower / steep, dtype)
        held = at.lower_yy_min + 1 / g1  # strong convexity of what th minimises
        smooth_x = at.upper_xx / c + 2 * g2 * at.jacobian_x**2 + 2 * mixed**2 / held
        smooth_y = at.upper_yy / c + lower + bent + g2 * at.jacobian_y**2 + 1 / g1
        smooth_x = jnp.where(smooth_x > tiny, smooth_x, smooth_y)
        asked = self.steps or common.Steps()
        steps = common.Steps(
            x=common.filled_rule(asked.x, common.Decay(1 / smooth_x) if sampled else 1 / smooth_x, dtype),
            y=common.filled_rule(asked.y, common.Decay(1 / smooth_y) if sampled else 1 / smooth_y, dtype),
            z=common.filled_rule(asked.z, 0.5 * jnp.minimum(g2, held / steep), dtype),
        )
        eta = given(self.eta, 1 / (lower + bent + 1 / g1), dtype)
        smoothness = given(self.smoothness, jnp.maximum(smooth_x, smooth_y), dtype)
        return self.with_numbers(problem, seen, dtype, c=c, g1=g1, g2=g2, steps=steps, eta=eta, smoothness=smoothness)

    def step(self, problem: Problem, state: SingleLoopState, tickets: Tickets) -> tuple[SingleLoopState, Metrics]:
        """One step of th, then one of x, y and z."""
        problem = scaled(problem, self.scales)
        z, c = state.point.z, self.weight(state.step)
        zeta, xi = samples.fetch(problem.zeta, tickets.zeta), samples.fetch(problem.xi, tickets.xi)
        slope = inner_gradient(problem, state.point, Inner(state.inner, z), self.g1, self.g2, xi).w
        th = sets.project(problem.y_set, move(state.inner, self.eta, slope))
        d = gap_gradient(problem, state.point, th, c, self.g1, self.g2, zeta, xi)
        rules = (self.steps.x, self.steps.y, self.steps.z)
        places = (problem.x_set, problem.y_set, common.MultiplierSet(self.r))
        blocks = zip(rules, state.memory, places, state.point, d[:3], strict=True)
        moved, memory = zip(*(common.apply_rule(*block, state.step) for block in blocks), strict=True)
        new = Iterate(*moved)
        # Residuals are those of F + c gap, comparable with other methods; that of z over z >= 0, without the bound r.
        free = nonnegative(jax.tree.map(lambda a, b: a - b / self.smoothness, z, d.z))
        taken = common.StepTaken(
            old=state.point,
            new=new,
            d_x=jax.tree.map(lambda a: c * a, d.x),
            d_y=jax.tree.map(lambda a: c * a, d.y),
            upper=d.upper,
            lower=d.lower,
            distance=trees.norm(trees.sub(new.y, th)),
            inner=jax.tree.map(lambda a: c * a, gradient_mapping(problem.y_set, state.inner, slope, self.eta)),
            z=jax.tree.map(lambda a, b: c * self.smoothness * (a - b), z, free),
        )
        after = SingleLoopState(new, th, memory, state.step + 1, state.key)
        return after, common.step_metrics(problem, self.scales, taken, c * self.smoothness)

    def multipliers(self, problem: Problem, state: SingleLoopState) -> Multipliers:
        """z in the user's units."""
        return common.in_user_units(problem, *state.point, self.scales)

    def moved_to(self, state: SingleLoopState, x: PyTree, y: PyTree, multipliers: Multipliers) -> SingleLoopState:
        """The state at another point of the run."""
        return state._replace(point=Iterate(x, y, common.in_scaled_units(multipliers, self.scales)))

    def costs(self, problem: Problem) -> RunCosts:
        """Three gradients of g per step; what the exact solver of the start does is not counted in gradients."""
        step = common.batch_costs(self, problem)._replace(grad_upper=1, grad_lower=3, vjp_constraints=3)
        return RunCosts(common.estimate_costs(), step)


def is_sampled(problem: Problem) -> bool:
    """Whether anything is drawn."""
    return problem.zeta is not None or problem.xi is not None
