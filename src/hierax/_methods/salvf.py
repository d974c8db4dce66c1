r"""SALVF and SALVF-VR: projected stochastic gradient steps on Psi(x, y, z), the paper's Algorithms 2 and 3.

Per outer step k: (w, lam) = inner solver at (x_k, z_k); draw zeta and xi~; d = grad Psi (or its variance-reduced
version); step per block; with the outer multiplier, nu follows. The cost is s + 3 gradients (SALVF-VR: s + 6).

With an exact inner solver (`Exact`, `Conic`) gamma2 = 0 and the envelope is the value function itself: it does not
depend on z, the z block is dropped and z stands for lam.
"""

import dataclasses
import warnings
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base.errors import HieraxWarning, InputError
from hierax._base.trees import Number, dtype_of, largest, select
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.salm import SALM, START_ROUNDS, InnerSolution
from hierax._math import curvature as estimate
from hierax._math.lagrangian import nonnegative
from hierax._math.lower_level import SOLVED
from hierax._math.psi import (
    Inner,
    Point,
    Weights,
    all_constraints,
    gradient_mapping,
    psi_gradient,
    push,
    updated_nu,
    violation,
)
from hierax._math.spectrum import POWER_STEPS
from hierax._methods.defaults import filled
from hierax._methods.directions import Plain, Storm
from hierax._methods.salvf_settings import refuse_settings
from hierax._methods.steps import apply_rule, init_rule, is_transformation, rate
from hierax._problem import samples, sets
from hierax._problem.problem import Multipliers, Problem, Rows, scaled
from hierax._problem.sets import AbstractSet
from hierax._run.method import AbstractMethod, Costs, Metrics, look_at

CONTROL_FROM = 10  # inner steps from which the control variate pays


class SALVFState(NamedTuple):
    """Everything that changes from step to step."""

    point: Point
    w: PyTree
    lam: Rows
    memory: PyTree
    rules: tuple[PyTree, PyTree, PyTree]
    step: Int[Array, ""]
    key: PRNGKeyArray


class _Multiplied(AbstractSet):
    """The cone of z: z >= 0 for inequalities, free for equalities."""

    def project(self, tree: Rows) -> Rows:
        return nonnegative(tree)


class SALVF(AbstractMethod):
    r"""Stochastic augmented Lagrangian value function method. Whatever is None is estimated from the problem.

    Args:
        c1: weight of the value-function gap G - E; the bias of y along the constraints is about |F_y|/(c1 mu_G).
        c2: weight of the outer constraint term.
        gamma1: penalty parameter of the augmented Lagrangian.
        gamma2: proximal parameter of the envelope.
        tau: step of the outer multiplier nu, in (0, 1].
        penalty: "multiplier" (default) or the paper's "quadratic", whose bias is c1 |lam| / c2 in y and, in x, that of
            phi(x) - c1^2 |lam*(x)|^2 / (2 c2).
        steps: `Steps(x=, y=, z=)`; each a number, a schedule or an optax transformation.
        batch_zeta: samples of zeta per outer step (the paper's r).
        batch_xi: samples of xi~ per outer step (the paper's q).
        inner: the inner solver: `SALM()`, or one that is exact, `Exact()` or `Conic()`; these see all of xi (a fixed
            sample where it is a `Sampler` without `exact`).
        direction: `Plain()` or `Storm()` (variance reduction).
        control_variate: subtract the inner gradient's noise from the y-gradient; None: where it applies (xi is
            sampled, a warm inner loop of at least 10 steps).
        follow: let y and nu move along with the inner solution, y <- y + (w_k - w_{k-1}), nu <- nu + c1 (lam_k -
            lam_{k-1}), before each step: they then need not catch up with x, which may take far longer steps. None:
            where the inner solver is exact; with SALM the inner loop has to be accurate (and xi without noise).
        start: "solve" first solves the lower level at x0 for (y, w, z, nu); "given" takes (x0, y0) as they are with
            z = 0, as in the paper.
        repair: steps of a final SALM run with gamma2 = 0 that makes y feasible (the paper's eq. 15), or a solver,
            `Exact()` or `Conic()`, whose answer y*(x) is returned as y; 0: none.
        scales: divisors of the constraints; None: the norm of each constraint's gradient in y at the start, unless c2,
            gamma1 or gamma2 is given (they carry the constraints' units).
        smoothness: the L_Psi of the stationarity measure; None: estimated.

    Examples:
        >>> import hierax as hx
        >>> method = hx.SALVF(c1=5.0, c2=100.0, inner=hx.SALM(steps=20))
    """

    c1: Number = None
    c2: Number = None
    gamma1: Number = None
    gamma2: Number = None
    tau: Number = None
    penalty: Literal["multiplier", "quadratic"] = eqx.field(static=True, default="multiplier")
    steps: Any = None
    batch_zeta: int | None = eqx.field(static=True, default=None)
    batch_xi: int | None = eqx.field(static=True, default=None)
    inner: SALM | AbstractLowerSolver = SALM()
    direction: Plain | Storm = Plain()
    control_variate: bool | None = eqx.field(static=True, default=None)
    follow: bool | None = eqx.field(static=True, default=None)
    start: Literal["solve", "given"] = eqx.field(static=True, default="solve")
    repair: int | AbstractLowerSolver = eqx.field(static=True, default=0)
    scales: Any = None
    smoothness: Number = None

    closer: ClassVar[str] = "a larger c1 brings it closer"
    otherwise: ClassVar[str] = (
        "No step exceeds 2/L there; raise tau or c2, lengthen the inner loop, or shorten steps.x."
    )
    shorten: ClassVar[str] = "Shorten the steps (hx.Steps, hx.SALM(eta=...)) or leave them unset."

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        refuse_settings(self)

    @property
    def exact(self) -> bool:
        """Whether the inner solver gives the lower level's solution itself: gamma2 = 0, and z is lam."""
        return not isinstance(self.inner, SALM)

    # -- settings ---------------------------------------------------------------------------------------------------

    def takes_streams(self) -> bool:
        """An exact inner solver needs xi as a whole."""
        return not self.exact

    def with_batches(self, problem: Problem) -> "SALVF":
        """Fill in the batch sizes and the control variate (structure, so never traced)."""
        self = super().with_batches(problem)
        control, inner = self.control_variate, self.inner
        if isinstance(inner, SALM):
            inner = dataclasses.replace(inner, batch=inner.batch or self.batch_xi)
        if control is None:
            settled = not isinstance(inner, SALM) or (inner.warm and inner.steps >= CONTROL_FROM)
            control = problem.xi is not None and settled
        follow = self.exact if self.follow is None else self.follow
        return dataclasses.replace(self, inner=inner, control_variate=bool(control), follow=follow)

    def asked_batches(self) -> list[tuple[str, int | None]]:
        """Those of the outer and of the inner loop."""
        inner = [("xi", self.inner.batch)] if isinstance(self.inner, SALM) else []
        return [*super().asked_batches(), *inner]

    def inner_draws(self) -> tuple[int, int]:
        """SALM's steps and batch; an exact solver draws nothing."""
        if isinstance(self.inner, SALM):
            return self.inner.steps, self.inner.batch or 1
        return 0, self.batch_xi or 1

    def start_draws(self) -> int:
        """Batches of the first lower solve."""
        return START_ROUNDS * self.inner_draws()[0]

    def refuse(self, problem: Problem) -> None:
        """A repair draws anew, which a Stream cannot."""
        if self.repair and isinstance(problem.xi, samples.Stream):
            raise InputError("SALVF(repair): needs an xi that can be drawn from (Finite or Sampler), not a Stream.")

    def refuse_state(self, known: "SALVF") -> None:  # type: ignore[override]
        """The state holds what its direction and its inner solver need, and nothing else."""
        for name in ("direction", "inner"):
            then, now = type(getattr(known, name)).__name__, type(getattr(self, name)).__name__
            if then != now:
                raise InputError(
                    f"method: the state was made with {name}={then}(), which does not fit {now}(). Leave the method "
                    "unset, or start a new run from (sol.x, sol.y)."
                )

    def warn(self) -> None:
        """The printed schedule of beta."""
        if isinstance(self.direction, Storm) and self.direction.schedule == "paper":
            warnings.warn(
                'Storm(schedule="paper"): the printed beta_k = beta alpha_k^2 falls below 5 c1 alpha_k in a long run, '
                "and the recursion is then unstable even without noise; the default schedule is not.",
                HieraxWarning,
                stacklevel=4,
            )

    def doubts(self, problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray) -> dict[str, Bool[Array, ""]]:
        """Those of an exact inner solver."""
        if isinstance(self.inner, SALM):
            return {}
        return self.inner.doubts(problem, x, y, samples.whole(problem.xi, key))

    def resolve(
        self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, look: samples.Tickets | None = None
    ) -> "SALVF":
        """The method with every unset value estimated at (x0, y0) and every number an array.

        The estimate looks at the first batches of zeta, which the run draws again: they cost no further samples.
        `look` are the planned samples to use (default: `first_look`); a problem with a `Stream` needs it.
        """
        self = self.with_batches(problem)
        dtype = dtype_of(x0, y0)
        look = self.first_look(problem, key) if look is None else look
        zeta, xi = look_at(problem.zeta, look.zeta), look_at(problem.xi, look.xi)
        scales = self.scales
        if scales is None:
            known = any(value is not None for value in (self.c2, self.gamma1, self.gamma2))
            scales = (
                estimate.unit_scales(problem, x0, y0)
                if known
                else estimate.constraint_scales(problem, x0, y0, jax.random.fold_in(key, 1))
            )
        rescaled = scaled(problem, scales)
        zero = jax.tree.map(jnp.zeros_like, rescaled.rows(x0, y0))

        def look_around(carry: tuple[estimate.Curvature, PyTree, Rows], first: Array) -> tuple:
            """Norms at a point; after those at y0, on to the lower level's solution as these norms find it."""
            most, w, lam = carry
            most = estimate.larger(most, estimate.curvature(rescaled, x0, w, lam, zeta, xi))
            rough = filled(self, most, scales, dtype)
            w, lam = jax.lax.cond(first, lambda: rough.lower_solve(problem, x0, y0, look.inner, key), lambda: (w, lam))
            return (most, w, lam), None

        # Both points in one loop, so that the norms compile once.
        start = (estimate.nothing(dtype), y0, zero)
        (most, _, _), _ = jax.lax.scan(look_around, start, jnp.array([True, False]))
        return filled(self, most, scales, dtype)

    # -- a run ------------------------------------------------------------------------------------------------------

    def lower_solve(
        self, problem: Problem, x: PyTree, y: PyTree, plan: PyTree, key: PRNGKeyArray
    ) -> tuple[PyTree, Rows]:
        """A first solve of the lower level at x: exact, or a bounded number of SALM's rounds on the planned batches."""
        problem = scaled(problem, self.scales)
        if isinstance(self.inner, SALM):
            return self.inner.solve_in_rounds(problem, x, y, plan, self.gamma1, self.gamma2)
        found = self.inner.solve(problem, x, y, samples.whole(problem.xi, key))
        return found.y, found.multipliers

    def init(
        self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, look: samples.Tickets | None = None
    ) -> SALVFState:
        """State before the first step (of a resolved method); `look` as in `resolve`."""
        if self.start == "solve":
            look = self.first_look(problem, key) if look is None else look
            y, lam = self.lower_solve(problem, x0, y0, look.inner, key)
        else:
            y, lam = y0, jax.tree.map(jnp.zeros_like, problem.rows(x0, y0))
        upper = jax.tree.map(jnp.zeros_like, problem.upper_constraints(x0, y0))
        scale = self.c1 if self.penalty == "multiplier" else jnp.zeros_like(self.c1)
        weighted = jax.tree.map(lambda a: scale * a, lam)
        nu = Multipliers(weighted.inequalities, weighted.equalities, upper)
        point = Point(x0, y, lam, nu)
        rules = tuple(
            init_rule(rule, block) for rule, block in ((self.steps.x, x0), (self.steps.y, y), (self.steps.z, lam))
        )
        return SALVFState(point, y, lam, self.direction.init(point), rules, jnp.zeros((), jnp.int32), key)

    def step(self, problem: Problem, state: SALVFState, tickets: samples.Tickets) -> tuple[SALVFState, Metrics]:
        """One outer step."""
        problem = scaled(problem, self.scales)
        point, weights = state.point, Weights(self.c1, self.c2, self.gamma1, self.gamma2)
        dtype = dtype_of(point.x, point.y)
        # 1. The inner problem at (x_k, z_k).
        solved, lower_status = self._solve_inner(problem, state, tickets.inner)
        inner = Inner(solved.w, solved.lam)
        if self.follow:
            point = self._followed(problem, state, inner)
        # 2. The direction, on fresh batches.
        zeta = samples.fetch(problem.zeta, tickets.zeta)
        xi = samples.fetch(problem.xi, tickets.xi)
        control = None
        if self.control_variate:
            control = self.inner.eta_max if isinstance(self.inner, SALM) else 1 / self.smoothness

        def gradient(at: Point) -> Any:
            return psi_gradient(problem, at, inner, weights, zeta, xi, control)

        alpha, fastest = self._alpha(state.step, dtype)
        d, memory = self.direction.direction(gradient, point, state.memory, fastest, self.c1)
        # 3. One projected step per block; nu follows the constraints at the new point.
        x, x_rule = apply_rule(self.steps.x, state.rules[0], problem.x_set, point.x, d.x, state.step)
        y, y_rule = apply_rule(self.steps.y, state.rules[1], problem.y_set, point.y, d.y, state.step)
        z, z_rule = solved.lam, state.rules[2]
        if not self.exact:
            z, z_rule = apply_rule(self.steps.z, z_rule, _Multiplied(), point.z, d.z, state.step)
        values = all_constraints(problem, x, y)
        nu = updated_nu(values, point.nu, self.c2, self.tau) if self.penalty == "multiplier" else point.nu
        new = SALVFState(
            Point(x, y, z, nu), solved.w, solved.lam, memory, (x_rule, y_rule, z_rule), state.step + 1, state.key
        )
        beyond = violation(values)
        landed = nonnegative(jax.tree.map(lambda a, b: a - b / self.smoothness, point.z, d.z))
        metrics = Metrics(
            upper=d.upper,
            lower=d.lower,
            violation=largest(jax.tree.map(jnp.multiply, beyond, self.scales), dtype),
            step_x=optax.tree.norm(optax.tree.sub(x, point.x)),
            step_y=optax.tree.norm(optax.tree.sub(y, point.y)),
            residual=(
                gradient_mapping(problem.x_set, point.x, d.x, 1 / self.smoothness),
                gradient_mapping(problem.y_set, point.y, d.y, 1 / self.smoothness),
                jax.tree.map(lambda a, b: self.smoothness * (a - b), point.z, landed),
                solved.residual,
            ),
            raw_x=optax.tree.norm(d.x),
            raw_y=optax.tree.norm(d.y),
            push=self.c2 * largest(beyond, dtype),
            distance=optax.tree.norm(optax.tree.sub(y, solved.w)),
            weight=alpha,
            lower_status=lower_status,
        )
        return new, metrics

    def _followed(self, problem: Problem, state: SALVFState, inner: Inner) -> Point:
        """y and nu moved as the inner solution has moved since the last step."""
        point = state.point
        y = jax.tree.map(lambda a, new, old: a + (new - old), point.y, inner.w, state.w)
        if self.penalty != "multiplier":
            return point._replace(y=sets.project(problem.y_set, y))
        rows = jax.tree.map(lambda a, new, old: a + self.c1 * (new - old), Rows(*point.nu[:2]), inner.lam, state.lam)
        nu = point.nu._replace(**nonnegative(rows)._asdict())
        return point._replace(y=sets.project(problem.y_set, y), nu=nu)

    def _solve_inner(self, problem: Problem, state: SALVFState, plan: PyTree) -> tuple[InnerSolution, Array | int]:
        """(w, lam) at (x_k, z_k), and the status of an exact solve."""
        x, y, z, _ = state.point
        if isinstance(self.inner, SALM):
            begin = state.w if self.inner.warm else y
            return self.inner.solve(problem, x, z, begin, state.lam, plan, self.gamma1, self.gamma2), SOLVED
        found = self.inner.solve(problem, x, state.w, samples.whole(problem.xi, state.key), state.lam)
        return InnerSolution(found.y, found.multipliers, found.residual), found.status

    def blank(self, state: SALVFState) -> tuple[PyTree, PyTree, PyTree, PyTree]:
        """Zeros like x, y, z and w (an exact solver's residual is a number)."""
        x, y, z, _ = state.point
        return jax.tree.map(jnp.zeros_like, (x, y, z, self.smoothness if self.exact else state.w))

    def _alpha(self, step: Array, dtype: jnp.dtype) -> tuple[Array, Array]:
        """alpha_k of the y block, and the longest of the x and y steps, which is what Storm's beta_k must keep up with.

        An optax transformation hides its step: iterates then weigh the same, and Storm has a constant beta.
        """
        if is_transformation(self.steps.y):
            return jnp.ones((), dtype), jnp.ones((), dtype)
        alpha = rate(self.steps.y, step, dtype)
        if is_transformation(self.steps.x) or getattr(self.direction, "schedule", None) == "paper":
            return alpha, alpha
        return alpha, jnp.maximum(alpha, rate(self.steps.x, step, dtype))

    def postprocess(self, problem: Problem, state: SALVFState) -> tuple[PyTree, PyTree, Multipliers]:
        """(x, y, multipliers in the user's units), after the repair of eq. 15 where it is asked for."""
        x, y = state.point.x, state.point.y
        if isinstance(self.repair, AbstractLowerSolver):
            found = self.repair.solve(problem, x, y, samples.whole(problem.xi, state.key))
            solved = found.status == SOLVED
            kept = self.multipliers(problem, state)
            y, lam = select(solved, (found.y, found.multipliers), (y, Rows(*kept[:2])))
            return x, y, kept._replace(**lam._asdict())
        if self.repair and isinstance(self.inner, SALM):
            rescaled = scaled(problem, self.scales)
            solver = dataclasses.replace(self.inner, steps=self.repair, warm=True, dual_free=False)
            key = jax.random.fold_in(state.key, 2)
            plan = samples.plan(problem.xi, key, state.step, self.repair, self.inner.batch or 1)
            zero = jnp.zeros_like(self.gamma2)
            y = solver.solve(rescaled, x, state.lam, y, state.lam, plan, self.gamma1, zero).w
        return x, y, self.multipliers(problem, state)

    def moved_to(self, state: SALVFState, x: PyTree, y: PyTree, multipliers: Multipliers) -> SALVFState:
        """The state at another point of the run: the average, the best or the random iterate."""
        there = jax.tree.map(jnp.multiply, multipliers, self.scales)
        point = state.point._replace(x=x, y=y, nu=state.point.nu._replace(upper=there.upper))
        return state._replace(point=point, lam=Rows(there.inequalities, there.equalities))

    def step_limits(self, problem: Problem, state: SALVFState) -> dict[str, tuple[Scalar, Scalar]]:
        """Each step length in use and the longest that is stable where the state is: what to blame for a failure."""
        point, inner = state.point, self.inner
        if isinstance(inner, SALM):
            inner = dataclasses.replace(inner, eta=None, rho=None, eta_max=None, rho_max=None)
        free = dataclasses.replace(self, steps=None, inner=inner, smoothness=None)
        able = free.resolve(problem, point.x, point.y, state.key)
        step, dtype = state.step, dtype_of(point.x, point.y)
        limits = {}
        if isinstance(self.inner, SALM) and isinstance(able.inner, SALM):
            first = self.inner.eta / (1 + self.inner.offset)
            if self.inner.rule == "capped":
                first = jnp.minimum(first, self.inner.eta_max)
            limits[f"first lower step eta/{1 + self.inner.offset:g}"] = (first, 2 * able.inner.eta_max)
        for name in ("x", "y"):
            rule = getattr(self.steps, name)
            if not is_transformation(rule):
                limits[f"steps.{name}"] = (rate(rule, step, dtype), 2 * getattr(able.steps, name).scale)
        return limits

    def multipliers(self, problem: Problem, state: SALVFState) -> Multipliers:
        """lam of the lower level and the multipliers of the upper constraints, in the user's units."""
        point = state.point
        pushed = push(all_constraints(scaled(problem, self.scales), point.x, point.y), point.nu, self.c2)
        return jax.tree.map(jnp.divide, pushed._replace(**state.lam._asdict()), self.scales)

    # -- accounting -------------------------------------------------------------------------------------------------

    def costs(self, problem: Problem) -> Costs:
        """Samples and gradients of one outer step."""
        (steps, batch), points = self.inner_draws(), self.direction.gradients_per_step
        return Costs(
            zeta=(self.batch_zeta or 1) * (problem.zeta is not None),
            xi=((self.batch_xi or 1) + steps * batch) * (problem.xi is not None),
            grad_upper=points,
            grad_lower=steps + 2 * points,
            vjp_constraints=steps + 2 * points,
            lower_solves=1,
        )

    def start_costs(self, problem: Problem) -> Costs:
        """Samples and gradients before the first step: the lower solves of estimate and start, on the same samples."""
        solves = 1 + (self.start == "solve")
        steps = self.start_draws()
        products = 2 * 4 * POWER_STEPS  # Hessian-vector products at two points, about 2 gradients each
        return Costs(
            xi=steps * self.inner_draws()[1] * (problem.xi is not None),
            grad_upper=products,
            grad_lower=solves * steps + products,
            vjp_constraints=solves * steps + products,
            lower_solves=solves,
        )

    def end_costs(self, problem: Problem) -> Costs:
        """Samples and gradients of the repair after the last step."""
        if isinstance(self.repair, AbstractLowerSolver):
            return Costs(lower_solves=1)
        return Costs(
            xi=self.repair * self.inner_draws()[1] * (problem.xi is not None),
            grad_lower=self.repair,
            vjp_constraints=self.repair,
            lower_solves=int(self.repair > 0),
        )


def SALVF_VR(**settings: Any) -> SALVF:
    """SALVF with variance reduction: `SALVF(direction=Storm(), **settings)`."""
    return SALVF(**{"direction": Storm(), **settings})
