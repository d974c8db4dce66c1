"""SALVF and SALVF-VR: projected stochastic gradient steps on Psi(x, y, z), the paper's Algorithms 2 and 3.

Per outer step k: (w, lam) = inner solver at (x_k, z_k); draw zeta and xi~; d = grad Psi (or its variance-reduced
version); step per block; with the outer multiplier, nu follows. The cost is s + 3 gradients (SALVF-VR: s + 6).

The inner solver is SALM, or one that is exact, with which gamma2 = 0 and the
envelope is the value function itself: it does not depend on z, the z block is dropped and z stands for lam.

The parts of SALVF's outer step: its state, the set of z, how y follows and x keeps pace, and what a step reports.
"""

import dataclasses
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.errors import InputError, warn
from hierax._base.settings import is_transformation, size_at, stage_of, values_of
from hierax._base.trees import dtype_of, select, size
from hierax._judge.psi import Penalty
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.salm import SALM, START_ROUNDS, InnerSolution
from hierax._math import spectrum as estimate
from hierax._math.lower_level import SOLVED
from hierax._math.psi import (
    Inner,
    Point,
    PsiGradient,
    Weights,
    all_constraints,
    nonnegative,
    psi_gradient,
    push,
    updated_nu,
)
from hierax._math.spectrum import POWER_STEPS
from hierax._methods import common
from hierax._methods.pace import Watch, first_watch, grown, looked
from hierax._methods.salvf_settings import (
    FORGETS,
    FORGETS_NOISY,
    SALVFSettings,
    StepInfo,
    Storm,
    below_curvature,
    filled,
    structured,
)
from hierax._problem import samples, sets
from hierax._problem.problem import Multipliers, Problem, Rows, scaled, with_y_in
from hierax._problem.samples import FiniteFiles, Tickets
from hierax._run.method import Advice, Batches, Begun, Costs, Metrics, Residual, RunCosts, look_at


class SALVFState(NamedTuple):
    """Everything that changes from step to step.

    Attributes:
        point: x, y, the envelope's centre z and the outer multiplier nu.
        w: the inner solver's last w.
        lam: its last lam, of the scaled constraints.
        memory: what the direction remembers (Storm).
        rules: states of the three step rules.
        watch: what corrects the estimated steps on the way.
        step: outer steps made.
        key: of all samples of the run.
    """

    point: Point
    w: PyTree
    lam: Rows
    memory: PyTree
    rules: tuple[PyTree, PyTree, PyTree]
    watch: Watch
    step: Int[Array, ""]
    key: PRNGKeyArray


def top_of_z(method: SALVFSettings) -> Rows | None:
    """The upper corner of Z = [0, B/sqrt(p)]^p in the units of the scaled constraints; None where B is not given."""
    if method.bound is None:
        return None
    rows = Rows(method.scales.inequalities, method.scales.equalities)
    side = method.bound / np.sqrt(max(1, size(rows)))
    return jax.tree.map(lambda scale: side * scale, rows)


def with_y(state: SALVFState, units: PyTree, change: Callable[[Array, Array], Array]) -> SALVFState:
    """The state with y and w divided by their units, or multiplied with them."""
    y, w = (jax.tree.map(change, one, units) for one in (state.point.y, state.w))
    return state._replace(point=state.point._replace(y=y), w=w)


def followed(method: SALVFSettings, problem: Problem, state: SALVFState, inner: Inner, point: Point) -> Point:
    """A point whose y and nu have moved as the inner solution has since the last step."""
    y = jax.tree.map(lambda a, new, old: a + (new - old), point.y, inner.w, state.w)
    if method.penalty != "multiplier":
        return point._replace(y=sets.project(problem.y_set, y))
    c1 = state.watch.growth * method.c1
    rows = jax.tree.map(lambda a, new, old: a + c1 * (new - old), Rows(*point.nu[:2]), inner.lam, state.lam)
    nu = point.nu._replace(**nonnegative(rows)._asdict())
    return point._replace(y=sets.project(problem.y_set, y), nu=nu)


def with_larger_c1(point: Point, inner: Inner, kept: Scalar, more: Scalar) -> Point:
    """The point whose c1 (y - w) is the same, as that answers to F; c1 grows by `more`, its old share is `kept`."""
    y = jax.tree.map(lambda a, b: b + kept.astype(a.dtype) * (a - b), point.y, inner.w)
    rows = jax.tree.map(lambda a, b: a + more * b, Rows(*point.nu[:2]), inner.lam)
    return point._replace(y=y, nu=point.nu._replace(**rows._asdict()))


def without_noise_of(
    problem: Problem, x: PyTree, inner: Inner, nu: Multipliers, weights: Weights, tau: Scalar
) -> Multipliers:
    """nu less the update of c1 lam by the rows at w: zero at the inner solution, and as noisy as the update of nu."""
    rows, begin = problem.rows(x, inner.w), jax.tree.map(lambda a: weights.c1 * a, inner.lam)
    shifted = jax.tree.map(lambda a, b, c: a - (b - c), Rows(*nu[:2]), updated_nu(rows, begin, weights.c2, tau), begin)
    return nu._replace(**nonnegative(shifted)._asdict())


def inner_solution(
    method: SALVFSettings, problem: Problem, state: SALVFState, plan: PyTree, share: Scalar
) -> tuple[InnerSolution, Array | int]:
    """(w, lam) at (x_k, z_k), warm from the last ones, and the status of an exact solve; `share`: of SALM's steps."""
    (x, y, z, _), salm = state.point, method.salm
    if method.solver is not None:
        found = method.solver.solve(problem, x, state.w, samples.whole(problem.xi, state.key), state.lam)
        return InnerSolution(found.y, found.multipliers, found.residual), found.status
    assert salm is not None
    if "inner" in (method.adapt or ()):
        salm = dataclasses.replace(salm, eta_max=share * salm.eta_max, rho_max=share * salm.rho_max)
    begin = state.w if salm.warm else y
    return salm.solve(problem, x, z, begin, state.lam, plan, method.gamma1, method.gamma2, state.step), SOLVED


def repaired(method: SALVFSettings, salm: SALM, problem: Problem, state: SALVFState, steps: int) -> InnerSolution:
    """(y', z') after further steps of SALM with gamma2 = 0, the paper's eq. 2.14."""
    solver, lam = dataclasses.replace(salm, steps=steps, warm=True, dual_free=False), state.lam
    size = size_at(solver.batch, 0) or 1
    plan = samples.plan(problem.xi, jax.random.fold_in(state.key, 2), state.step, steps, size)
    none = jnp.zeros_like(method.gamma2)
    return solver.solve(problem, state.point.x, lam, state.point.y, lam, plan, method.gamma1, none, state.step)


def alphas(method: SALVFSettings, state: SALVFState, factor: Scalar | float, dtype: jnp.dtype) -> tuple[Array, Array]:
    """alpha_k of the y block, and the length of the x-step over that of its direction, which Storm's beta_k follows.

    An optax transformation hides its step: iterates then weigh the same, and Storm has a constant beta. Where the
    x-step is given, the longer one of both counts.
    """
    steps, step = method.steps, state.step
    if is_transformation(steps.y):
        return jnp.ones((), dtype), jnp.ones((), dtype)
    alpha = common.rate(steps.y, step, dtype) * factor
    if isinstance(steps.x, common.Normalised) and getattr(method.direction, "schedule", None) != "paper":
        return alpha, state.rules[0].ratio.astype(dtype)
    if is_transformation(steps.x) or getattr(method.direction, "schedule", None) == "paper":
        return alpha, alpha
    return alpha, jnp.maximum(alpha, common.rate(steps.x, step, dtype))


class SALVF(SALVFSettings):
    r"""Stochastic augmented Lagrangian value function method. Whatever is None is estimated from the problem.

        L(x, w, lam) = G(x, w) + 1/(2 gamma1) sum_i ([gamma1 lam_i + H_i(x, w)]_+^2 - gamma1^2 lam_i^2)
        E(x, z)      = min over w in Y of max over lam >= 0 of  L(x, w, lam) - gamma2/2 ||lam - z||^2
        Psi(x, y, z) = F(x, y) + c1 (G(x, y) - E(x, z)) + 1/(2 c2) sum_i ([nu_i + c2 H_i(x, y)]_+^2 - nu_i^2)

    One step: (w, lam) from the inner solver at (x, z), then, with u = (x, y, z) and a step length per block,

        u <- Proj_U(u - alpha_k grad Psi(u; zeta, xi~)),     nu <- [nu + tau c2 max(-nu/c2, H(x, y))]_+

    It costs s + 3 gradients, s the steps of the inner loop.

    Args:
        c1: weight of the value-function gap G - E; the bias of y along the constraints is about |F_y|/(c1 mu_G).
        c2: weight of the outer constraint term.
        gamma1: penalty parameter of the augmented Lagrangian; inf: the plain Lagrangian.
        gamma2: proximal parameter of the envelope; 0 where the inner solver is exact, and allowed with SALM: E is then
            the augmented dual's best value v(x), and z plays no part.
        tau: step of the outer multiplier nu, in (0, 1].
        penalty: "multiplier" (default) or the paper's "quadratic", whose bias is c1 |lam| / c2 in y and, in x, that of
            phi(x) - c1^2 |lam*(x)|^2 / (2 c2).
        steps: `Steps(x=, y=, z=)`; each a number, a schedule or an optax transformation.
        batch_zeta: samples of zeta per outer step (the paper's r_k): a number, or a `Staircase` over the outer steps.
            None: of a `Sampler` as many as of xi in the whole step, the inner loop included.
        batch_xi: samples of xi~ per outer step (the paper's q_k), likewise.
        inner: the inner solver: `SALM()`, or one that is exact, `Exact()` or `Conic()`; these see all of xi (a fixed
            sample where it is a `Sampler` without `exact`).
        direction: `Plain()`, `Storm()` (variance reduction), or one of your own (docs/guides/own-direction.md).
        control_variate: subtract the inner gradient, noise and error, from the y-gradient, and likewise from the update
            of nu; None: where it applies (an exact inner solver, or a warm inner loop of at least 10 steps).
        follow: let y and nu move along with the inner solution, y <- y + (w_k - w_{k-1}), nu <- nu + c1 (lam_k -
            lam_{k-1}), before each step: they then need not catch up with x, which may take far longer steps. None:
            where the inner solver is exact, and where the steps of x and of SALM are estimated.
        start: "solve" first solves the lower level at x0 for (y, w, z, nu); "given" takes (x0, y0) as they are with
            z = 0, as in the paper; where all numbers are given too, no samples go into a look at the start.
        repair: steps of a final SALM run with gamma2 = 0 whose (y', z'), nearly feasible, is returned as y and lam (the
            paper's eq. 2.14), or a solver, `Exact()` or `Conic()`, whose answer (y*(x), lam*(x)) is; 0: none.
        scales: divisors of the constraints; None: the norm of each constraint's gradient in y at the start, unless c2,
            gamma1, gamma2 or bound is given (they carry the constraints' units).
        smoothness: the L_Psi of the stationarity measure; None: estimated.
        adapt: which of the estimates are corrected on the way, of "x", "y", "inner" and "c1": the steps of y and of the
            inner solver are shortened where the curvature of the lower level grows, and c1 grows (c2 with it) as long
            as y is not close to the inner solution; with "x" and "inner" y follows it. None: all that are not given;
            (): none. What is given is never changed.
        bound: B of the paper's Z = [0, B/sqrt(p)]^p, the set of z with p constraints; None: z >= 0 alone. A B below
            sqrt(p) max lam*(x) keeps z from lam* without further notice.
        z0: the first z, shaped like the constraints, or `hx.Multipliers` where there are equalities; None: see `start`.
        units: powers of two in which y is measured while the method works; estimated at the start, not set by you.
        stage: the outer step whose sizes are in use where some size is a `Staircase`; set by the run, not by you.

    Examples:
        >>> import hierax as hx
        >>> method = hx.SALVF(c1=5.0, c2=100.0, inner=hx.SALM(steps=20))

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, eqs. 2.1, 2.2, 2.9 and 2.10, Algorithm 2.
        docs/methods/salvf.md, docs/methods/corrections.md (where the printed text is wrong)
    """

    @property
    def advice(self) -> Advice:  # type: ignore[override]  # c1 may be given or not
        """What the messages of a run recommend."""
        given = "a larger c1 brings it closer, or c1, c2 and steps.y left unset: c1 then grows on the way"
        return Advice(
            bring_y_closer="more steps bring it closer" if self.c1_grows else given,
            shorten_steps="Shorten the steps (hx.Steps, hx.SALM(eta=...)) or leave them unset.",
            lengthen_x_step="lengthen its step, hx.SALVF(steps=hx.Steps(x=...)); sol.method.steps.x shows its own.",
            no_step_too_long="No step exceeds 2/L there; raise tau or c2, lengthen the inner loop, or shorten steps.x.",
        )

    state_settings: ClassVar[dict[str, str]] = {"direction": "Plain()", "inner": "SALM()"}

    def check(self, problem: Problem) -> None:
        """A repair draws anew inside of a program, where the host cannot feed it; the printed beta_k are unstable."""
        if self.repair and isinstance(problem.xi, samples.Stream | FiniteFiles):
            raise InputError(
                "SALVF(repair): needs an xi that can be drawn from (hx.Finite(arrays) or hx.Sampler(draw)), not a "
                "Stream or files."
            )
        if isinstance(self.direction, Storm) and self.direction.schedule == "paper":
            warn(
                'Storm(schedule="paper"): the printed beta_k = beta alpha_k^2 falls below 5 c1 alpha_k in a long run, '
                "and the recursion is then unstable even without noise; the default schedule is not.",
                above=7,  # the line that called solve
            )

    def staged(self, step: int) -> tuple["SALVF", int]:
        """With the sizes s_k, r_k and q_k of an outer step, and the next step at which one of them changes."""
        inner = (self.inner.steps, self.inner.batch) if isinstance(self.inner, SALM) else ()
        stage, until = stage_of((self.batch_zeta, self.batch_xi, *inner), step)
        return (self if stage == self.stage else dataclasses.replace(self, stage=stage)), until

    # -- before the first step --------------------------------------------------------------------------------------

    def batches(self, problem: Problem) -> Batches:
        """Those of the outer step and of the inner loop."""
        xi = samples.default_size(problem.xi, size_at(self.batch_xi, self.stage))
        steps, inner_size = (0, xi) if self.salm is None else (self.salm.count, size_at(self.salm.batch, 0) or xi)
        zeta = size_at(self.batch_zeta, self.stage)
        if zeta is None and isinstance(problem.zeta, samples.Sampler) and problem.xi is not None:
            zeta = xi + steps * inner_size
        asked = (("zeta", self.batch_zeta), ("xi", self.batch_xi), ("xi", getattr(self.inner, "batch", None)))
        return Batches(
            zeta=samples.default_size(problem.zeta, zeta),
            xi=xi,
            inner=steps,
            inner_size=inner_size,
            start=0 if self.is_complete else START_ROUNDS * steps,
            needs_all_xi=self.solver is not None,
            asked=tuple((name, n) for name, size in asked for n in values_of(size)),
            stage=self.stage,
        )

    def begin(self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, look: Tickets | None = None) -> Begun:
        """Estimate what is unset and solve the lower level at x0, once; where all is given only L_Psi is estimated.

        The estimate looks at the first batches of zeta, which the run draws again: they cost no further samples.
        """
        complete = self.is_complete
        doubts = self.solver.doubts(problem, x0, y0, samples.whole(problem.xi, key)) if self.solver else {}
        self = structured(self, problem)
        dtype = dtype_of(x0, y0)
        look = self.batches(problem).first_look(problem, key) if look is None else look
        zeta, xi = look_at(problem.zeta, look.zeta), look_at(problem.xi, look.xi)
        free = "y" in (self.adapt or ()) and (self.salm is None or "inner" in (self.adapt or ()))
        units = estimate.units_of_y(problem, x0, y0, xi) if free else jax.tree.map(jnp.ones_like, y0)
        self, start, problem = dataclasses.replace(self, units=units), problem, with_y_in(problem, units)
        y0 = jax.tree.map(jnp.divide, y0, units)
        scales = self.scales_at(problem, x0, y0, key)
        rescaled = scaled(problem, scales)

        def lengths(at: estimate.Curvature) -> PyTree:
            return common.lengths_of(problem, x0, common.newton_length(at))

        forgets = FORGETS if problem.zeta is None and problem.xi is None else FORGETS_NOISY

        def norms_at(carry: tuple[PyTree, ...], first: Array) -> tuple[tuple[PyTree, ...], None]:
            """Norms at a point; after those at y0, on to the lower level's solution as these norms find it."""
            most, w, lam = carry
            most = estimate.larger(most, estimate.curvature(rescaled, x0, w, lam, zeta, xi, bool(self.follow)))
            rough = filled(self, most, scales, lengths(most), forgets, dtype)

            def solved() -> tuple[PyTree, Rows]:
                if rough.salm is not None:
                    return rough.salm.solve_in_rounds(rescaled, x0, y0, look.inner, rough.gamma1, rough.gamma2)
                assert rough.solver is not None
                found = rough.solver.solve(rescaled, x0, y0, samples.whole(problem.xi, key))
                return found.y, found.multipliers

            w, lam = jax.lax.cond(first, solved, lambda: (w, lam))
            return (most, w, lam), None

        # Both points in one loop, so that the norms compile once.
        most, w, lam = begin = (estimate.nothing(dtype), y0, common.no_multipliers(problem, x0, y0))
        if complete:
            most = estimate.curvature(rescaled, x0, w, lam, zeta, xi, bool(self.follow))
        else:
            (most, w, lam), _ = jax.lax.scan(norms_at, begin, jnp.array([True, False]))
        method = filled(self, most, scales, lengths(most), forgets, dtype)
        if self.start == "given":
            w, lam = y0, common.no_multipliers(problem, x0, y0)
        if self.z0 is not None:
            method = dataclasses.replace(method, z0=common.rows_like(problem.rows(x0, y0), self.z0, "SALVF(z0)"))
        w = jax.tree.map(jnp.multiply, w, units)
        state = first_state(method, start, x0, w, lam, key, below_curvature(method, most))
        return Begun(method, state, doubts)

    # -- a step -----------------------------------------------------------------------------------------------------

    def step(self, problem: Problem, state: SALVFState, tickets: Tickets) -> tuple[SALVFState, Metrics]:
        """One outer step."""
        user = scaled(problem, self.scales)
        problem, state = with_y_in(user, self.units), with_y(state, self.units, operator.truediv)
        point = state.point
        # 1. The inner problem at (x_k, z_k), with steps for the curvature there; where the lower level is sampled, for
        #    that of the last point: the batch of the direction must not tell how the inner problem is solved.
        watch, adapt = state.watch, self.adapt or ()
        if problem.xi is None:
            watch = looked(watch, problem, point.x, Inner(state.w, state.lam), self.stiffness, None)
        solved, lower_status = inner_solution(self, problem, state, tickets.inner, watch.share)
        inner = Inner(solved.w, solved.lam)
        memory = state.memory
        if self.follow:
            follow = partial(followed, self, problem, state, inner)
            point, memory = follow(point), self.direction.moved(memory, follow)
        # 2. The direction, on fresh batches.
        zeta, xi = samples.fetch(problem.zeta, tickets.zeta), samples.fetch(problem.xi, tickets.xi)
        longest = self.inner.eta_max if isinstance(self.inner, SALM) else 1 / watch.curved
        control, weights = longest if self.control_variate else None, self.weights_at(watch.growth)

        def gradient(at: Point) -> PsiGradient:
            return psi_gradient(problem, at, inner, weights, zeta, xi, control)

        factor_y = (watch.share if "y" in adapt else jnp.ones_like(watch.share)) / watch.growth
        alpha, fastest = alphas(self, state, factor_y, dtype_of(point.x, point.y))
        info = StepInfo(state.step, fastest, weights.c1)
        d, memory = self.direction.direction(gradient, point, memory, info)
        # 3. One projected step per block; nu follows the constraints at the new point.
        x, x_rule = common.apply_rule(self.steps.x, state.rules[0], problem.x_set, point.x, d.x, state.step)
        y, y_rule = common.apply_rule(self.steps.y, state.rules[1], problem.y_set, point.y, d.y, state.step, factor_y)
        z, z_rule = solved.lam, state.rules[2]
        if self.solver is None:
            z, z_rule = common.apply_rule(
                self.steps.z, z_rule, common.MultiplierSet(top_of_z(self)), point.z, d.z, state.step, 1 / watch.growth
            )
        values = all_constraints(problem, x, y)
        nu = point.nu
        if self.penalty == "multiplier":
            nu = updated_nu(values, nu, weights.c2, self.tau)
            if self.control_variate:
                nu = without_noise_of(problem, point.x, inner, nu, weights, self.tau)
        rules = (x_rule, y_rule, z_rule)
        if problem.xi is not None:
            watch = looked(watch, problem, point.x, inner, self.stiffness, xi)
        reached = Point(x, y, z, nu)
        if self.c1_grows:
            watch = grown(watch, y, solved.w, state.step)
            more, kept = (watch.growth - state.watch.growth) * self.c1, state.watch.growth / watch.growth
            scale = partial(with_larger_c1, inner=inner, kept=kept, more=more)
            reached, memory = scale(reached), self.direction.moved(memory, scale)
        after = SALVFState(reached, solved.w, solved.lam, memory, rules, watch, state.step + 1, state.key)
        free = nonnegative(jax.tree.map(lambda a, b: a - b / self.smoothness, point.z, d.z), top_of_z(self))
        after, before = (with_y(one, self.units, operator.mul) for one in (after, state._replace(point=point)))
        taken = common.StepTaken(
            old=before.point,
            new=after.point,
            d_x=d.x,
            d_y=jax.tree.map(jnp.divide, d.y, self.units),
            upper=d.upper,
            lower=d.lower,
            distance=trees.norm(trees.sub(after.point.y, after.w)),
            inner=solved.residual if self.salm is None else jax.tree.map(jnp.divide, solved.residual, self.units),
            z=jax.tree.map(lambda a, b: self.smoothness * (a - b), point.z, free),
            status=lower_status,
        )
        metrics = common.step_metrics(user, self.scales, taken, self.smoothness, values)
        return after, metrics._replace(push=weights.c2 * metrics.push, weight=alpha)

    # -- what the loop asks -----------------------------------------------------------------------------------------

    def zero_residual(self, state: SALVFState) -> Residual:
        """Zeros like x, y, z and the inner solver's residual."""
        inner = state.w if self.solver is None else self.smoothness
        return jax.tree.map(jnp.zeros_like, Residual(*state.point[:3], inner))

    def multipliers(self, problem: Problem, state: SALVFState) -> Multipliers:
        """lam of the lower level and the multipliers of the upper constraints, in the user's units."""
        point = state.point
        values = all_constraints(scaled(problem, self.scales), point.x, point.y)
        pushed = push(values, point.nu, state.watch.growth * self.c2)
        return jax.tree.map(jnp.divide, pushed._replace(**state.lam._asdict()), self.scales)

    def moved_to(self, state: SALVFState, x: PyTree, y: PyTree, multipliers: Multipliers) -> SALVFState:
        """The state at another point of the run: the average, the best or the random iterate."""
        upper = jax.tree.map(jnp.multiply, multipliers.upper, self.scales.upper)
        point = state.point._replace(x=x, y=y, nu=state.point.nu._replace(upper=upper))
        return state._replace(point=point, lam=common.in_scaled_units(multipliers, self.scales))

    def finish(self, problem: Problem, state: SALVFState) -> tuple[PyTree, PyTree, Multipliers]:
        """(x, y, multipliers in the user's units), after the repair of eq. 2.14 where it is asked for."""
        x, y = state.point.x, state.point.y
        kept = self.multipliers(problem, state)
        if isinstance(self.repair, AbstractLowerSolver):
            found = self.repair.solve(problem, x, y, samples.whole(problem.xi, state.key))
            solved = found.status == SOLVED
            y, lam = select(solved, (found.y, found.multipliers), (y, Rows(*kept[:2])))
            return x, y, kept._replace(**lam._asdict())
        if self.repair and self.salm is not None:
            inside = with_y(state, self.units, operator.truediv)
            w, lam, _ = repaired(
                self, self.salm, scaled(with_y_in(problem, self.units), self.scales), inside, self.repair
            )
            w = jax.tree.map(jnp.multiply, w, self.units)
            lam = jax.tree.map(jnp.divide, lam, Rows(*self.scales[:2]))
            return x, w, kept._replace(**lam._asdict())
        return x, y, kept

    def step_limits(self, problem: Problem, state: SALVFState) -> dict[str, tuple[Scalar, Scalar]]:
        """Each step length in use and the longest that is stable where the state is: what to blame for a failure."""
        inner, limits = self.salm or self.inner, {}
        if self.salm is not None:
            inner = dataclasses.replace(self.salm, eta=None, rho=None, eta_max=None, rho_max=None)
        able = common.estimated_anew(self, problem, state, {"steps": None, "inner": inner})
        if self.salm is not None:
            first, _ = self.salm.rates(0, jnp.zeros_like(able.inner.eta_max))
            name = "eta(0, 0)" if callable(self.salm.eta) else f"eta/{1 + self.salm.offset:g}"
            limits = {f"first lower step {name}": (first, 2 * able.inner.eta_max)}
        return limits | common.limits_against(self, able, state, ("steps.x", "steps.y"))

    def shown(self, state: SALVFState) -> dict[str, PyTree]:
        """z, w and lam of a state, in the user's units."""
        scales = Rows(*self.scales[:2])
        z, lam = (jax.tree.map(jnp.divide, rows, scales) for rows in (state.point.z, state.lam))
        return {"z": z, "w": state.w, "lam": lam}

    def psi_penalty(self, state: SALVFState) -> Penalty:
        """What Psi was made of at a state, for the certificate of a run."""
        return Penalty(
            self.weights_at(state.watch.growth),
            self.scales,
            self.smoothness,
            state.point.z,
            state.point.nu,
            top_of_z(self),
        )

    def costs(self, problem: Problem) -> RunCosts:
        """Samples and gradients; the estimate of the start and its lower solve use the same samples."""
        sizes, points = self.batches(problem), self.direction.gradients_per_step
        sampled = problem.xi is not None
        size, zeta = sizes.inner_size * sampled, sizes.zeta * (problem.zeta is not None)
        products_per_step = 3 if problem.xi is None else 1  # with a Hessian (`pace.py`)
        watched = 2 * products_per_step * bool({"x", "y", "inner"} & set(structured(self, problem).adapt or ()))
        products = 4 * (2 - self.is_complete) * POWER_STEPS  # Hessian-vector products, about 2 gradients each
        repair = 0 if isinstance(self.repair, AbstractLowerSolver) else self.repair
        start, below = sizes.start + products, sizes.inner + 2 * points + watched  # gradients of g
        return RunCosts(
            start=Costs(0, sizes.start * size, products, start, start, lower_solves=int(not self.is_complete)),
            step=Costs(zeta, sizes.xi * sampled + sizes.inner * size, points, below, below, lower_solves=1),
            end=Costs(0, repair * size, 0, repair, repair, lower_solves=int(bool(self.repair))),
        )


def first_state(
    method: SALVF, problem: Problem, x: PyTree, y: PyTree, lam: Rows, key: PRNGKeyArray, curved: Scalar | None = None
) -> SALVFState:
    """SALVF's state before its first step from a given point: `begin` without estimates and without a lower solve.

        z = lam, or z0 where the method has one,     nu = c1 lam

    Args:
        method: a SALVF whose numbers are all filled in, for example `begin(...).method`.
        problem: the problem.
        x: the upper variable.
        y: the lower variable.
        lam: multipliers of the lower level, for example `no_multipliers(problem, x, y)`.
        key: of the run's samples.
        curved: the lower level's curvature that the steps were estimated for; None: they do not follow it.

    Examples:
        >>> import hierax as hx, jax, jax.numpy as jnp
        >>> from hierax.problems import toy
        >>> problem, x, y = toy(0.0).problem, jnp.asarray(1.4), jnp.asarray(0.5)
        >>> method = hx.SALVF().begin(problem, x, y, jax.random.key(0)).method
        >>> zero = hx.extend.no_multipliers(problem, x, y)
        >>> int(hx.extend.first_state(method, problem, x, y, zero, jax.random.key(0)).step)
        0

    References:
        docs/methods/salvf.md
    """
    upper = jax.tree.map(jnp.zeros_like, problem.upper_constraints(x, y))
    scale = method.c1 if method.penalty == "multiplier" else jnp.zeros_like(method.c1)
    weighted = jax.tree.map(lambda a: scale * a, lam)
    top = top_of_z(method)
    scales = Rows(*method.scales[:2])
    z = lam if method.z0 is None else jax.tree.map(jnp.multiply, method.z0, scales)
    z = z if top is None else nonnegative(z, top)
    point = Point(x, y, z, Multipliers(weighted.inequalities, weighted.equalities, upper))
    rules = common.init_rules(method.steps, x, y, lam)
    watch = first_watch(method.adapt or (), curved, x, y)
    return SALVFState(point, y, lam, method.direction.init(point), rules, watch, jnp.zeros((), jnp.int32), key)


def SALVF_VR(**settings: Any) -> SALVF:
    """SALVF with variance reduction: `SALVF(direction=Storm(), **settings)`.

        d_k = grad Psi(u_k) + (1 - beta_k) (d_{k-1} - grad Psi(u_{k-1})),     u = (x, y)

    with both gradients on the same batch and at the same inner solution; `Storm` has beta_k. A step costs s + 6
    gradients.

    Args:
        settings: those of `SALVF`, but for `direction`.

    Examples:
        >>> import hierax as hx
        >>> type(hx.SALVF_VR(c1=5.0).direction).__name__
        'Storm'

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, eq. 2.15, Algorithm 3.
        docs/methods/salvf.md, docs/methods/corrections.md (item 10)
    """
    return SALVF(**{"direction": Storm(), **settings})
