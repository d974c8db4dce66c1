r"""BiC-GAFFA (Yao, Yin, Zeng, Zhang, NeurIPS 2024): a single loop of gradient steps on the regularised gap function.

Per step, with c_k = c (k+1)^q and gap(x, y, z) of `reformulation.gap`:

    th  <- Proj_Y(th - eta (grad_y G(x, th) + J_y H(x, th)' z + (th - y)/g1))
    lam  = [z + g2 H(x, y)]_+
    d    = gradient of F/c_k + gap at (x, y, z), with this th and this lam
    x, y, z <- projections of (x, y, z) - (a_x d_x, a_y d_y, a_z d_z) on X, Y and Z,   Z = [0, r]^p, equalities [-r, r]

x and y are off by O(1/c_k), and c_k grows for ever: a bound on it would leave that error. What a large c costs is time,
because x travels no further than a_x sum_k 1/c_k. With samples, every g-gradient of a step is taken on one batch xi~.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.settings import POSITIVE, check_settings, in_interval, is_transformation
from hierax._base.trees import Number, dtype_of, given, move, or_one
from hierax._lower.exact import Exact
from hierax._math import spectrum as estimate
from hierax._math.gap import gap_gradient, proximal_gradient
from hierax._math.lagrangian import nonnegative
from hierax._math.psi import gradient_mapping
from hierax._math.spectrum import jacobian_norm
from hierax._methods import common
from hierax._methods.common import (
    Decay,
    GrowingWeight,
    Iterate,
    StartLook,
    Steps,
    StepTaken,
    WithSmoothness,
    apply_rule,
    check_steps,
    filled_rule,
    init_rules,
    into_box,
    rate,
)
from hierax._problem import samples, sets
from hierax._problem.problem import Multipliers, Problem, Rows, scaled
from hierax._problem.samples import Tickets
from hierax._problem.sets import AbstractSet
from hierax._run.batches import look_at
from hierax._run.method import Advice, Begun, Metrics, Residual, RunCosts

C_FACTOR = 10.0  # c in units of (curvature of F) / L_G, both in y
G1_FACTOR = 10.0  # g1 in units of 1 / L_G
G2_FACTOR = 3.0  # g2 in units of L_G / ||J_y H||^2


class GAFFAState(NamedTuple):
    """Everything that changes from step to step."""

    point: Iterate
    th: PyTree
    rules: tuple[PyTree, PyTree, PyTree]
    step: Int[Array, ""]
    key: PRNGKeyArray


class _MultiplierBox(AbstractSet):
    """The set Z of the multipliers: [0, r] for inequalities, [-r, r] for equalities."""

    r: Scalar

    def project(self, tree: Rows) -> Rows:
        return into_box(tree, self.r)


class BiCGAFFA(GrowingWeight, WithSmoothness):
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

    steps: PyTree = None
    eta: Number = None

    advice: ClassVar[Advice] = Advice(
        bring_y_closer="more steps, a larger c or a larger q bring it closer",
        shorten_steps="Shorten the steps (hx.Steps, eta) or leave them unset.",
        lengthen_x_step="lengthen its step, hx.BiCGAFFA(steps=hx.Steps(x=...)); sol.method.steps.x shows it.",
    )

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        super().__post_init__()
        check_settings(self, {"eta": POSITIVE, "q": in_interval(lambda q: 0 <= q < 0.5, "[0, 1/2)")})
        check_steps("BiCGAFFA", self.steps)

    def begin(self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, look: Tickets | None = None) -> Begun:
        """Estimate what is unset where the lower level is solved at x0, and begin there."""
        look = self.batches(problem).first_look(problem, key) if look is None else look
        scales = self.scales
        if scales is None and (self.g2 is not None or self.r is not None):
            scales = estimate.unit_scales(problem, x0, y0)
        zeta = look_at(problem.zeta, look.zeta)
        seen = common.look_at_start(problem, x0, y0, key, zeta, Exact(), scales)
        xi = samples.whole(problem.xi, key)
        mixed = jacobian_norm(lambda v: jax.grad(problem.lower, 1)(v, seen.lower.y, xi), x0)
        method = self._filled(problem, seen, mixed, dtype_of(x0, y0))
        y, z = y0, common.no_multipliers(problem, x0, y0)
        if self.start == "solve":
            y, z = seen.lower.y, into_box(seen.lower.multipliers, method.r)
        rules = init_rules(method.steps, x0, y, z)
        return Begun(method, GAFFAState(Iterate(x0, y, z), y, rules, jnp.zeros((), jnp.int32), key))

    def _filled(self, problem: Problem, seen: StartLook, mixed: Scalar, dtype: jnp.dtype) -> "BiCGAFFA":
        """Every unset number from the norms at the start; `mixed` is ||G_xy||."""
        at, tiny = seen.curvature, jnp.finfo(dtype).tiny
        lower, bent, steep = or_one(at.lower_yy, tiny), at.constraint_yy, or_one(at.jacobian_y**2, tiny)
        sampled = problem.zeta is not None or problem.xi is not None
        weight = common.upper_curvature(at) / lower
        weight = weight if sampled else C_FACTOR * weight  # the noise of g in x is c_k times that of F
        c = given(self.c, or_one(weight, tiny), dtype)
        g1, g2 = given(self.g1, G1_FACTOR / lower, dtype), given(self.g2, G2_FACTOR * lower / steep, dtype)
        held = at.lower_yy_min + 1 / g1  # strong convexity of what th minimises
        smooth_x = at.upper_xx / c + 2 * g2 * at.jacobian_x**2 + 2 * mixed**2 / held
        smooth_y = at.upper_yy / c + lower + bent + g2 * at.jacobian_y**2 + 1 / g1
        smooth_x = jnp.where(smooth_x > tiny, smooth_x, smooth_y)
        asked, sizes = self.steps or Steps(), self.batches(problem)
        return dataclasses.replace(
            self,
            batch_zeta=sizes.zeta,
            batch_xi=sizes.xi,
            c=c,
            q=given(self.q, 0.0, dtype),
            g1=g1,
            g2=g2,
            r=given(self.r, common.multiplier_bound(seen.lower.multipliers, dtype), dtype),
            steps=Steps(
                x=filled_rule(asked.x, Decay(1 / smooth_x) if sampled else 1 / smooth_x, dtype),
                y=filled_rule(asked.y, Decay(1 / smooth_y) if sampled else 1 / smooth_y, dtype),
                z=filled_rule(asked.z, 0.5 * jnp.minimum(g2, held / steep), dtype),
            ),
            eta=given(self.eta, 1 / (lower + bent + 1 / g1), dtype),
            scales=seen.scales,
            smoothness=given(self.smoothness, jnp.maximum(smooth_x, smooth_y), dtype),
        )

    def step(self, problem: Problem, state: GAFFAState, tickets: Tickets) -> tuple[GAFFAState, Metrics]:
        """One step of th, then one of x, y and z."""
        problem = scaled(problem, self.scales)
        x, y, z = state.point
        assert z is not None
        zeta, xi = samples.fetch(problem.zeta, tickets.zeta), samples.fetch(problem.xi, tickets.xi)
        c = self.weight(state.step)
        slope = proximal_gradient(problem, x, y, z, state.th, self.g1, xi)
        th = sets.project(problem.y_set, move(state.th, self.eta, slope))
        d = gap_gradient(problem, x, y, z, th, c, self.g1, self.g2, zeta, xi)
        blocks = (
            apply_rule(rule, memory, convex_set, block, along, state.step)
            for rule, memory, convex_set, block, along in zip(
                (self.steps.x, self.steps.y, self.steps.z),
                state.rules,
                (problem.x_set, problem.y_set, _MultiplierBox(self.r)),
                (x, y, z),
                (d.x, d.y, d.z),
                strict=True,
            )
        )
        (x, x_rule), (y, y_rule), (z, z_rule) = blocks
        new = Iterate(x, y, z)
        # Residuals are those of F + c gap, comparable with other methods; that of z over z >= 0, without the bound r.
        free = nonnegative(jax.tree.map(lambda a, b: a - b / self.smoothness, state.point.z, d.z))
        taken = StepTaken(
            old=state.point,
            new=new,
            d_x=jax.tree.map(lambda a: c * a, d.x),
            d_y=jax.tree.map(lambda a: c * a, d.y),
            upper=d.upper,
            lower=d.lower,
            distance=trees.norm(trees.sub(y, th)),
            inner=jax.tree.map(lambda a: c * a, gradient_mapping(problem.y_set, state.th, slope, self.eta)),
            z=jax.tree.map(lambda a, b: c * self.smoothness * (a - b), state.point.z, free),
        )
        after = GAFFAState(new, th, (x_rule, y_rule, z_rule), state.step + 1, state.key)
        return after, common.step_metrics(problem, self.scales, taken, c * self.smoothness)

    def zero_residual(self, state: GAFFAState) -> Residual:
        """Zeros like x, y, z and th."""
        return Residual(*jax.tree.map(jnp.zeros_like, (*state.point, state.th)))

    def multipliers(self, problem: Problem, state: GAFFAState) -> Multipliers:
        """z in the user's units."""
        x, y, z = state.point
        assert z is not None
        return common.in_user_units(problem, x, y, z, self.scales)

    def moved_to(self, state: GAFFAState, x: PyTree, y: PyTree, multipliers: Multipliers) -> GAFFAState:
        """The state at another point of the run."""
        return state._replace(point=Iterate(x, y, common.in_scaled_units(multipliers, self.scales)))

    def step_limits(self, problem: Problem, state: GAFFAState) -> dict[str, tuple[Scalar, Scalar]]:
        """Each step in use and twice what the rules give where the state is."""
        x, y, _ = state.point
        free = dataclasses.replace(self, steps=None, eta=None, smoothness=None)
        able = free.begin(problem, x, y, state.key).method
        limits = {"eta": (self.eta, 2 * able.eta)}
        for name in ("x", "y", "z"):
            rule = getattr(self.steps, name)
            if not is_transformation(rule):
                used, most = (rate(one, state.step, dtype_of(x, y)) for one in (rule, getattr(able.steps, name)))
                limits[f"steps.{name}"] = (used, 2 * most)
        return limits

    def costs(self, problem: Problem) -> RunCosts:
        """Three gradients of g per step; what the exact solver of the start does is not counted in gradients."""
        step = common.batch_costs(self, problem)._replace(grad_upper=1, grad_lower=3, vjp_constraints=3)
        return RunCosts(common.estimate_costs(), step)
