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
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base.errors import InputError
from hierax._base.settings import check_choice, check_count, check_positive
from hierax._base.trees import Number, dtype_of, move
from hierax._lower.exact import Exact
from hierax._math import curvature as estimate
from hierax._math.gap import gap_gradient, proximal_gradient
from hierax._math.lagrangian import nonnegative
from hierax._math.psi import gradient_mapping
from hierax._math.spectrum import jacobian_norm
from hierax._methods import baseline
from hierax._methods.baseline import Iterate, Moved, into_box
from hierax._methods.steps import Decay, Steps, apply_rule, check_rule, init_rule, is_transformation, rate
from hierax._problem import samples, sets
from hierax._problem.problem import Multipliers, Problem, Rows, scaled
from hierax._problem.sets import AbstractSet
from hierax._run.method import AbstractMethod, Costs, Metrics, look_at

C_FACTOR = 10.0  # c in units of (curvature of F) / L_G, both in y
C_SAMPLED = 1.0  # the same where g is sampled: its noise in x is c_k times that of F
SLOPE = 5.0  # weight of F's slope where it stands in for curvature, as in SALVF
G1_FACTOR = 10.0  # g1 in units of 1 / L_G
G2_FACTOR = 3.0  # g2 in units of L_G / ||J_y H||^2
Z_STEP = 0.5  # a_z in units of min(g2, (mu_G + 1/g1) / ||J_y H||^2)


class GAFFAState(NamedTuple):
    """Everything that changes from step to step."""

    point: Iterate
    th: PyTree
    rules: tuple[PyTree, PyTree, PyTree]
    step: Int[Array, ""]
    key: PRNGKeyArray


class _MultiplierBox(AbstractSet):
    """Z."""

    r: Scalar

    def project(self, tree: Rows) -> Rows:
        return into_box(tree, self.r)


class BiCGAFFA(AbstractMethod):
    r"""Single-loop method on the regularised gap function. Whatever is None is estimated from the problem.

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
        >>> from hierax._methods.gaffa import BiCGAFFA
        >>> method = BiCGAFFA(c=10.0, q=0.3)
    """

    c: Number = None
    q: Number = 0.3
    g1: Number = None
    g2: Number = None
    r: Number = None
    steps: Any = None
    eta: Number = None
    batch_zeta: int | None = eqx.field(static=True, default=None)
    batch_xi: int | None = eqx.field(static=True, default=None)
    start: Literal["solve", "given"] = eqx.field(static=True, default="solve")
    scales: Any = None
    smoothness: Number = None

    closer: ClassVar[str] = "more steps, a larger c or a larger q bring it closer"
    shorten: ClassVar[str] = "Shorten the steps (hx.Steps, eta) or leave them unset."

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        for name in ("c", "g1", "g2", "r", "eta", "smoothness"):
            check_positive("BiCGAFFA", name, getattr(self, name))
        if isinstance(self.q, int | float) and not 0 <= self.q < 0.5:
            raise InputError(f"BiCGAFFA(q={self.q}): must lie in [0, 1/2).")
        check_choice("BiCGAFFA", "start", self.start, ("solve", "given"))
        check_count("BiCGAFFA", "batch_zeta", self.batch_zeta)
        check_count("BiCGAFFA", "batch_xi", self.batch_xi)
        if self.steps is not None and not isinstance(self.steps, Steps):
            raise InputError(f"BiCGAFFA(steps): needs hx.Steps(x=, y=, z=), got {type(self.steps).__name__}.")
        for name in ("x", "y", "z"):
            check_rule(name, getattr(self.steps, name, None))

    # -- settings ---------------------------------------------------------------------------------------------------

    def refuse(self, problem: Problem) -> None:
        """No constraints at the upper level."""
        baseline.refuse_upper_constraints("BiCGAFFA", problem)

    def resolve(
        self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, look: samples.Tickets | None = None
    ) -> "BiCGAFFA":
        """The method with every unset value estimated at (x0, y0) and every number an array."""
        self = self.with_batches(problem)
        dtype = dtype_of(x0, y0)
        look = self.first_look(problem, key) if look is None else look
        scales = self.scales
        if scales is None and (self.g2 is not None or self.r is not None):
            scales = estimate.unit_scales(problem, x0, y0)
        zeta = look_at(problem.zeta, look.zeta)
        seen = baseline.look_around(problem, x0, y0, key, zeta, Exact(), scales)
        rescaled, xi, at = scaled(problem, seen.scales), samples.whole(problem.xi, key), seen.curvature
        mixed = jacobian_norm(lambda v: jax.grad(rescaled.lower, 1)(v, seen.lower.y, xi), x0)

        def given(value: Number, default: Scalar | float) -> Array:
            return jnp.asarray(default if value is None else value, dtype)

        def or_one(value: Scalar) -> Scalar:
            return jnp.where(value > jnp.finfo(dtype).tiny, value, 1.0)

        lower, bent, steep = or_one(at.lower_yy), at.constraint_yy, or_one(at.jacobian_y**2)
        curved_upper = jnp.where(at.upper_yy > 1e-3 * at.upper_slope, at.upper_yy, SLOPE * at.upper_slope)
        sampled = problem.zeta is not None or problem.xi is not None
        c = given(self.c, or_one((C_SAMPLED if sampled else C_FACTOR) * curved_upper / lower))
        g1, g2 = given(self.g1, G1_FACTOR / lower), given(self.g2, G2_FACTOR * lower / steep)
        held = at.lower_yy_min + 1 / g1  # strong convexity of what th minimises
        smooth_x = at.upper_xx / c + 2 * g2 * at.jacobian_x**2 + 2 * mixed**2 / held
        smooth_y = at.upper_yy / c + lower + bent + g2 * at.jacobian_y**2 + 1 / g1
        smooth_x = jnp.where(smooth_x > jnp.finfo(dtype).tiny, smooth_x, smooth_y)
        asked = self.steps or Steps()
        return dataclasses.replace(
            self,
            c=c,
            q=given(self.q, 0.0),
            g1=g1,
            g2=g2,
            r=given(self.r, baseline.multiplier_bound(seen.lower.multipliers, dtype)),
            steps=Steps(
                x=_rule(asked.x, Decay(1 / smooth_x) if sampled else 1 / smooth_x, dtype),
                y=_rule(asked.y, Decay(1 / smooth_y) if sampled else 1 / smooth_y, dtype),
                z=_rule(asked.z, Z_STEP * jnp.minimum(g2, held / steep), dtype),
            ),
            eta=given(self.eta, 1 / (lower + bent + 1 / g1)),
            scales=seen.scales,
            smoothness=given(self.smoothness, jnp.maximum(smooth_x, smooth_y)),
        )

    # -- a run ------------------------------------------------------------------------------------------------------

    def init(
        self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, look: samples.Tickets | None = None
    ) -> GAFFAState:
        """State before the first step (of a resolved method)."""
        y, z = y0, jax.tree.map(jnp.zeros_like, problem.rows(x0, y0))
        if self.start == "solve":
            found = Exact().solve(scaled(problem, self.scales), x0, y0, samples.whole(problem.xi, key))
            y, z = found.y, into_box(found.multipliers, self.r)
        rules = tuple(
            init_rule(rule, block) for rule, block in ((self.steps.x, x0), (self.steps.y, y), (self.steps.z, z))
        )
        return GAFFAState(Iterate(x0, y, z), y, rules, jnp.zeros((), jnp.int32), key)

    def step(self, problem: Problem, state: GAFFAState, tickets: samples.Tickets) -> tuple[GAFFAState, Metrics]:
        """One step of th, then one of x, y and z."""
        problem = scaled(problem, self.scales)
        x, y, z = state.point
        assert z is not None
        zeta, xi = samples.fetch(problem.zeta, tickets.zeta), samples.fetch(problem.xi, tickets.xi)
        c = self.c * (state.step.astype(self.c.dtype) + 1) ** self.q
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
        told = Moved(
            old=state.point,
            new=new,
            d_x=jax.tree.map(lambda a: c * a, d.x),
            d_y=jax.tree.map(lambda a: c * a, d.y),
            upper=d.upper,
            lower=d.lower,
            distance=optax.tree.norm(optax.tree.sub(y, th)),
            inner=jax.tree.map(lambda a: c * a, gradient_mapping(problem.y_set, state.th, slope, self.eta)),
            z=jax.tree.map(lambda a, b: c * self.smoothness * (a - b), state.point.z, free),
        )
        after = GAFFAState(new, th, (x_rule, y_rule, z_rule), state.step + 1, state.key)
        return after, baseline.metrics(problem, self.scales, told, c * self.smoothness)

    def blank(self, state: GAFFAState) -> tuple[PyTree, PyTree, PyTree, PyTree]:
        """Zeros like x, y, z and th."""
        return jax.tree.map(jnp.zeros_like, (*state.point, state.th))

    def multipliers(self, problem: Problem, state: GAFFAState) -> Multipliers:
        """z in the user's units."""
        x, y, z = state.point
        assert z is not None
        return baseline.in_user_units(problem, x, y, z, self.scales)

    def moved_to(self, state: GAFFAState, x: PyTree, y: PyTree, multipliers: Multipliers) -> GAFFAState:
        """The state at another point of the run."""
        there = jax.tree.map(jnp.multiply, multipliers, self.scales)
        return state._replace(point=Iterate(x, y, Rows(there.inequalities, there.equalities)))

    def step_limits(self, problem: Problem, state: GAFFAState) -> dict[str, tuple[Scalar, Scalar]]:
        """Each step in use and twice what the rules give where the state is."""
        x, y, _ = state.point
        free = dataclasses.replace(self, steps=None, eta=None, smoothness=None)
        able = free.resolve(problem, x, y, state.key)
        limits = {"eta": (self.eta, 2 * able.eta)}
        for name in ("x", "y", "z"):
            rule = getattr(self.steps, name)
            if not is_transformation(rule):
                used, most = (rate(one, state.step, dtype_of(x, y)) for one in (rule, getattr(able.steps, name)))
                limits[f"steps.{name}"] = (used, 2 * most)
        return limits

    # -- accounting -------------------------------------------------------------------------------------------------

    def costs(self, problem: Problem) -> Costs:
        """Samples and gradients of one step."""
        return baseline.drawn(self, problem)._replace(grad_upper=1, grad_lower=3, vjp_constraints=3)

    def start_costs(self, problem: Problem) -> Costs:
        """Samples and gradients before the first step; what the exact solver does is not counted in gradients."""
        return baseline.look_costs(1 + (self.start == "solve"))


def _rule(asked: Any, default: Any, dtype: jnp.dtype) -> Any:
    rule = default if asked is None else asked
    if is_transformation(rule) or (callable(rule) and not isinstance(rule, Decay)):
        return rule
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), rule)
