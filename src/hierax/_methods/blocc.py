r"""BLOCC (Jiang, Xiao, Tenorio, Real-Rojas, Marques, Chen, NeurIPS 2024): penalty of the value-function gap.

    F_c(x) = max over mu >= 0 of min over y in Y of F(x, y) + c (G(x, y) - v(x)) + <mu, H(x, y)>

Per outer step, at x = x_k:

    (y_g, mu_g) = lower solver on G,      (y_F, mu_F) = lower solver on F + c G,      both warm
    d = grad_x F(x, y_F) + c (grad_x G(x, y_F) - grad_x G(x, y_g) - J_x H(x, y_g)^T mu_g) + J_x H(x, y_F)^T mu_F
    x <- Proj_X(x - eta d)

**With samples** the upper level's update is stochastic, the lower level's solves are not: y_g and y_F see G on all of
xi, y_F sees f on the step's batch of zeta, and d takes f on that batch and both g-terms on one batch xi~. Then d is the
gradient of F_c(.; zeta), in which y_F belongs to zeta; it is unbiased for the gradient of the mean over zeta of
F_c(.; zeta), which misses F_c by the variance of grad_y f over 2 c mu_G. Its noise does not grow with c: the g-terms
are taken at points that are O(1/c) apart, so the noise of xi~ cancels up to O(1). A y_F on a batch of xi, against a y_g
on all of it, would put c times the noise of g into d; batches of xi in both solves would minimise E F(x, y*(x; xi)),
which is another problem.


MaxMin, the lower solver of BLOCC: accelerated ascent in the multipliers, projected gradient descent in y.

    max over mu >= 0 of  min over y in Y of  G(x, y) + <mu, H(x, y)>          (equality multipliers are free in sign)

    mu_half  = [mu_t + (t-1)/(t+2) (mu_t - mu_{t-1})]_+,   mu_{-1} = mu_0       t = 0..T-1, from 0 again in every call
    T_y times:  y <- Proj_Y(y - eta1 (grad_y G + J_y H^T mu_half))
    mu_{t+1} = [mu_half + eta2 H(x, y)]_+

The order matters: with the steps in y at mu_t instead of mu_half this is a heavy-ball method, which does not settle.
Only vector-Jacobian products are used, and a few copies of y; second derivatives only to estimate steps left unset.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.constants import FINE, LITTLE, MUCH, NEGLIGIBLE
from hierax._base.settings import COUNT_GIVEN, POSITIVE, check_settings, instance_of, is_transformation
from hierax._base.trees import Number, dtype_of, given, largest, move, or_one
from hierax._lower.base import AbstractLowerSolver, compiled_where_called
from hierax._math.convexity import lower_curvatures
from hierax._math.lower_level import INACCURATE, SOLVED, LowerSolution
from hierax._math.psi import Iterate, gradient_mapping, nonnegative
from hierax._math.spectrum import POWER_STEPS, hessian_product, jacobian_square, power_iterations
from hierax._methods import common
from hierax._problem import samples, sets
from hierax._problem.problem import Multipliers, Problem, Rows, scaled
from hierax._problem.samples import Tickets
from hierax._problem.sets import Faces
from hierax._run.method import Advice, Begun, Metrics, Residual, RunCosts

NOT_STRONGLY_CONVEX = (
    "MaxMin: the lower objective is not strongly convex in y at the start (its smallest curvature is about zero, or "
    "negative), and the minimum over y of G + <mu, H> then does not exist for every mu. Use lower=hx.Exact() and "
    "penalised=hx.Exact(), add a small multiple of the squared norm of y to the lower objective, or use hx.SALVF()."
)


class _Carry(NamedTuple):
    y: PyTree
    mu: Rows
    before: Rows  # mu_{t-1}
    t: Scalar


class MaxMin(AbstractLowerSolver):
    """BLOCC's accelerated max-min. Needs an objective that is strongly convex in y; whatever is None is estimated.

        max over mu >= 0 of min over y in Y of  G(x, y) + <mu, H(x, y)>

    by T dual steps t = 0..T-1, before each of which y makes T_y steps at the extrapolated multiplier:

        mu_half  = [mu_t + (t-1)/(t+2) (mu_t - mu_{t-1})]_+     (equalities: without [.]_+, here and below)
        y        <- Proj_Y(y - eta1 (grad_y G + J_y H' mu_half))     T_y times
        mu_{t+1} = [mu_half + eta2 H(x, y)]_+

    The multipliers of the faces of Y are not computed: Y enters through its projection.

    Args:
        dual_steps: T, the steps in mu.
        primal_steps: T_y, the steps in y before each of them.
        eta1: primal step; None: 1/L, L = L_G + (curvature of <mu, H> at the multipliers met).
        eta2: dual step; None: mu_G/||J_y H||^2.
        restart: drop the momentum (t <- 1) where <H, mu_{t+1} - mu_t> < 0. Without it, and nearly parallel constraints,
            T_y = 1 does not settle, and more steps cost a factor of ten thousand in accuracy at T = 500.
        tol: `status` is SOLVED where the residual is below. The residual is the distance by which a further step would
            move y, or by which y misses the constraints, relative to the size of y.
        bend: curvature that the constraints add to L per unit of the largest multiplier; None: estimated, and zero
            where eta1 is given.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: y**2, lower=lambda x, y, xi: (y - 2.0 * x) ** 2, constraints=lambda x, y: y - x
        ... )
        >>> found = hx.MaxMin(200).solve(problem, 1.0, 0.0)
        >>> [round(float(value), 3) for value in (found.y, found.multipliers.inequalities)]
        [1.0, 2.0]

    References:
        Jiang, Xiao, Tenorio, Real-Rojas, Marques, Chen: A primal-dual-assisted penalty approach to bilevel
            optimization with coupled constraints, NeurIPS 2024.
        docs/methods/blocc.md, docs/methods/lower-solvers.md
    """

    dual_steps: int = eqx.field(static=True, default=50)
    primal_steps: int = eqx.field(static=True, default=20)
    eta1: Number = None
    eta2: Number = None
    restart: bool = eqx.field(static=True, default=True)
    tol: Number = 1e-6
    bend: Number = None

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        steps = dict.fromkeys(("dual_steps", "primal_steps"), COUNT_GIVEN)
        check_settings(self, steps | dict.fromkeys(("eta1", "eta2", "tol"), POSITIVE))

    def doubts(self, problem: Problem, x: PyTree, y: PyTree, xi: PyTree) -> dict[str, Bool[Array, ""]]:
        """The objective must be strongly convex in y; with both steps given the user vouches for it (a network)."""
        if not self.estimates:
            return {}
        bottom, top = lower_curvatures(problem, x, y, xi)
        flat = jnp.maximum(FINE, 100 * jnp.finfo(top.dtype).eps)
        return {NOT_STRONGLY_CONVEX: ~(bottom > flat * jnp.abs(top))}

    def filled(self, problem: Problem, x: PyTree, y: PyTree, xi: PyTree, mu: Rows) -> "MaxMin":
        """The solver with every unset step from norms at a point with multipliers mu, by Lanczos and power iteration.

        L_G and mu_G are the largest and the smallest curvature of the objective in y. Without multipliers the
        constraints' curvature is that of their plain sum, which bounds it for every mu: for convex H_i the Hessian of
        <mu, H> is at most the largest mu_i times that of sum_i H_i.
        """

        def rows(v: PyTree) -> Rows:
            return problem.rows(x, v)

        bottom, top = lower_curvatures(problem, x, y, xi)
        product, dtype, tiny = jacobian_square(rows, y), top.dtype, jnp.finfo(top.dtype).tiny
        squared, bend = jnp.ones_like(top), jnp.zeros_like(top)
        if product is not None:
            most = largest(jax.tree.map(jnp.abs, mu), dtype_of(y))
            weights = jax.tree.map(lambda a: jnp.where(most > 0, a / or_one(most), 1.0), mu)
            bent = hessian_product(lambda v: trees.vdot(weights, rows(v)), y)
            found = power_iterations({"jacobian": (product, y), "bend": (bent, y)})
            squared, bend = or_one(found["jacobian"][0]), found["bend"][0]
        return dataclasses.replace(
            self,
            eta1=given(self.eta1, 1 / jnp.maximum(jnp.abs(top), tiny), dtype),
            eta2=given(self.eta2, jnp.maximum(bottom, tiny) / squared, dtype),
            bend=given(self.bend, bend if self.eta1 is None else jnp.zeros_like(bend), dtype),
        )

    @property
    def estimates(self) -> bool:
        """Whether a call first estimates steps."""
        return any(value is None for value in (self.eta1, self.eta2))

    def gradients(self) -> tuple[int, int]:
        """Gradients of the objective and vector-Jacobian products of the constraints per call.

        A product with a Hessian, or with J'J, counts as two.
        """
        steps = self.dual_steps * self.primal_steps + 1 + 4 * POWER_STEPS * self.estimates
        return steps, steps + 1

    @compiled_where_called
    def solve(
        self, problem: Problem, x: PyTree, y: PyTree, xi: PyTree = None, multipliers: Rows | None = None
    ) -> LowerSolution:
        """T dual steps from (y, multipliers); without multipliers from mu = 0."""
        x, y = jax.tree.map(jnp.asarray, (x, y))
        dtype = dtype_of(y)
        mu = jax.tree.map(jnp.zeros_like, problem.rows(x, y)) if multipliers is None else multipliers
        if self.estimates or self.bend is None:
            return self.filled(problem, x, y, xi, mu).solve(problem, x, y, xi, mu)

        def gradient(y: PyTree, mu: Rows) -> PyTree:
            _, pull_back = jax.vjp(lambda v: problem.rows(x, v), y)
            return trees.add(jax.grad(problem.lower, 1)(x, y, xi), pull_back(mu)[0])

        def primal_step(mu: Rows) -> Scalar:
            return 1 / (1 / self.eta1 + self.bend * largest(jax.tree.map(jnp.abs, mu), dtype))

        def body(_: Array, at: _Carry) -> _Carry:
            momentum = (at.t - 1) / (at.t + 2)
            # A negative multiplier of a curved constraint would bend the minimum over y the wrong way.
            half = nonnegative(jax.tree.map(lambda a, b: a + momentum * (a - b), at.mu, at.before))
            eta1 = primal_step(half)

            def descend(_: Array, y: PyTree) -> PyTree:
                return sets.project(problem.y_set, move(y, eta1, gradient(y, half)))

            y = jax.lax.fori_loop(0, self.primal_steps, descend, at.y)
            values = problem.rows(x, y)
            mu = nonnegative(move(half, -self.eta2, values))
            t = at.t + 1
            if self.restart:
                t = jnp.where(trees.vdot(values, trees.sub(mu, at.mu)) < 0, 1.0, t)
            return _Carry(y, mu, at.mu, t)

        end = jax.lax.fori_loop(0, self.dual_steps, body, _Carry(y, mu, mu, jnp.zeros((), dtype)))
        value, slope = jax.value_and_grad(problem.lower, 1)(x, end.y, xi)
        residual = self._residual(problem, x, y, end, slope, primal_step(end.mu))
        status = jnp.where(residual <= self.tol, SOLVED, INACCURATE).astype(jnp.int32)
        iterations = jnp.asarray(self.dual_steps * self.primal_steps, jnp.int32)
        return LowerSolution(end.y, end.mu, Faces(None, None), value, residual, status, iterations)

    def _residual(self, problem: Problem, x: PyTree, start: PyTree, end: _Carry, slope: PyTree, eta1: Scalar) -> Scalar:
        """The largest of two distances in y, relative to the size of y; `slope` is the objective's gradient.

        v = (mu - [mu + eta2 H]_+)/eta2 is zero exactly where mu and H are feasible and complementary; the shortest
        move along J^T v that would remove it has length ||v||^2/||J^T v||.
        """
        y, mu, dtype = end.y, end.mu, dtype_of(end.y)
        values, pull_back = jax.vjp(lambda v: problem.rows(x, v), y)
        gradient = trees.add(slope, pull_back(mu)[0])
        moved = eta1 * trees.norm(gradient_mapping(problem.y_set, y, gradient, eta1))
        landed = nonnegative(move(mu, -self.eta2, values))
        missed = jnp.zeros((), dtype)
        if jax.tree.leaves(values):
            v = jax.tree.map(lambda a, b: (a - b) / self.eta2, mu, landed)
            square, slope = trees.norm_squared(v), trees.norm(pull_back(v)[0])
            missed = jnp.where(square > 0, square / slope, 0.0)
        unit = jnp.maximum(trees.norm(y), trees.norm(trees.sub(y, start)))
        return jnp.maximum(moved, missed) / or_one(unit)


SOLVER = instance_of(AbstractLowerSolver, "hx.MaxMin() or hx.Exact()")


class BLOCCState(NamedTuple):
    """Everything that changes from step to step; the y of `point` is y_F at the x before the last step."""

    point: Iterate
    y_lower: PyTree
    mu_lower: Rows
    mu_penalised: Rows
    memory: PyTree
    step: Int[Array, ""]
    key: PRNGKeyArray


class BLOCC(common.PublishedMethod, common.FromLowerSolution, common.WithSmoothness):
    r"""Penalty method with two lower-level solves per step. Whatever is None is estimated from the problem.

        F_c(x) = max over mu >= 0 of min over y in Y of  F(x, y) + c (G(x, y) - v(x)) + <mu, H(x, y)>

    One step, with (y_g, mu_g) of G + <mu, H> from `lower` and (y_F, mu_F) of F + c G + <mu, H> from `penalised`:

        d = grad_x F(x, y_F) + c (grad_x G(x, y_F) - grad_x G(x, y_g) - J_x H(x, y_g)' mu_g) + J_x H(x, y_F)' mu_F
        x <- Proj_X(x - eta d)

    Args:
        c: weight of the gap; x and y are off by O(1/c). The cost of a step does not depend on it, but the solvers'
            errors enter d multiplied by c. None: 100 times (curvature of F) / sqrt(L_G mu_G), both in y.
        lower: solver of the lower level for (y_g, mu_g): `MaxMin()`, `Exact()` or `Conic()`. What MaxMin's steps leave
            unset is estimated in every call, because curvatures change with x.
        penalised: solver for (y_F, mu_F) of F + c G: `MaxMin()` or `Exact()`. F + c G must be strongly convex in y for
            `MaxMin`, hence c mu_G > -(smallest curvature of F).
        eta: x-step; a number, a schedule, an optax transformation, or None: `Adaptive`, min(1.2 eta_{k-1},
            ||dx||/(2 ||dd||)), where nothing is sampled, and a decaying step 1/L_x where something is.
        batch_zeta: samples of zeta per outer step.
        batch_xi: samples of xi~ per outer step.
        start: "solve" first solves the lower level at x0; "given" starts both solvers at y0 with zero multipliers.
        scales: divisors of the constraints; None: the norm of each constraint's gradient in y at the start, unless an
            eta2 is given (it carries the constraints' units).
        smoothness: the L_x of the stationarity measure; None: estimated.

    Examples:
        >>> import hierax as hx
        >>> method = hx.BLOCC(c=100.0, penalised=hx.MaxMin(dual_steps=20, primal_steps=5))

    References:
        Jiang, Xiao, Tenorio, Real-Rojas, Marques, Chen: A primal-dual-assisted penalty approach to bilevel
            optimization with coupled constraints, NeurIPS 2024.
        docs/methods/blocc.md (cost and when to use it)
    """

    c: Number = common.setting(POSITIVE)
    lower: AbstractLowerSolver = common.setting(SOLVER, MaxMin())
    penalised: AbstractLowerSolver = common.setting(SOLVER, MaxMin())
    eta: common.StepRule = common.setting(common.check_rule)

    advice: ClassVar[Advice] = Advice(
        shorten_steps="Shorten the x-step (eta) or leave it unset, or take more steps in hx.MaxMin.",
        lengthen_x_step="lengthen its step, hx.BLOCC(eta=...).",
    )
    state_settings: ClassVar[dict[str, str]] = {"eta": "Adaptive()"}

    # -- before the first step --------------------------------------------------------------------------------------

    def begin(self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, look: Tickets | None = None) -> Begun:
        """Estimate what is unset where the lower level is solved at x0; begin there with y_F = y_g, mu_F = c mu_g."""
        zeta, xi = common.first_batches(self, problem, key, look)
        seen = self.look_at_start(problem, x0, y0, key, zeta, self._first_solver)
        weakest, _ = lower_curvatures(problem, x0, seen.lower.y, xi)
        method = self._filled(problem, seen, weakest, dtype_of(x0, y0))
        y, mu = y0, common.no_multipliers(problem, x0, y0)
        if self.start == "solve":
            y, mu = seen.lower.y, seen.lower.multipliers
        memory, weighted = common.init_rule(method.eta, x0), jax.tree.map(lambda a: method.c * a, mu)
        state = BLOCCState(Iterate(x0, y), y, mu, weighted, memory, jnp.zeros((), jnp.int32), key)
        below = method.lower.doubts(problem, x0, y0, xi)
        doubts = {f"BLOCC(lower=...): {text}": flag for text, flag in below.items()}
        second = "BLOCC(penalised=...), on F + c G in the place of the lower objective, where a larger c may help"
        as_convex = self.c is None and isinstance(self.penalised, MaxMin)  # with an estimated c, F + c G is so as G is
        level = (problem, x0, y0, xi) if as_convex else (penalised_problem(problem, method.c), x0, y0, (zeta, xi))
        above = method.penalised.doubts(*level)
        return Begun(method, state, doubts | {f"{second}: {text}": flag for text, flag in above.items()})

    def _filled(self, problem: Problem, seen: common.StartLook, weakest: Scalar, dtype: jnp.dtype) -> "BLOCC":
        """Every unset number from the norms at the start; `weakest` is the smallest curvature of G in y."""
        at, tiny = seen.curvature, jnp.finfo(dtype).tiny
        mean = jnp.sqrt(jnp.maximum(at.lower_yy * jnp.clip(weakest, NEGLIGIBLE * at.lower_yy, at.lower_yy), tiny))
        curved_upper = common.upper_curvature(at)
        c = given(self.c, jnp.where(curved_upper > tiny, MUCH**2 * curved_upper / mean, MUCH**2), dtype)
        # y*(x) moves with G's mixed derivatives and with the constraints; its curvature is left out.
        speed = jnp.maximum(at.response / mean, (at.jacobian_x / or_one(at.jacobian_y)) ** 2)
        smoothness = or_one(given(self.smoothness, at.upper_xx + curved_upper * speed, dtype), tiny)
        sampled = problem.zeta is not None or problem.xi is not None
        default = common.Decay(1 / smoothness, a=2.0) if sampled else common.Adaptive(LITTLE / smoothness)
        return dataclasses.replace(
            self.sized(problem),
            c=c,
            lower=common.as_arrays(self.lower, dtype),  # MaxMin's unset steps stay unset, and follow x
            penalised=common.as_arrays(self.penalised, dtype),
            eta=common.filled_rule(self.eta, default, dtype),
            scales=seen.scales,
            smoothness=smoothness,
        )

    def has_units(self) -> bool:
        """Whether a dual step is given."""
        return any(getattr(solver, "eta2", None) is not None for solver in (self.lower, self.penalised))

    @property
    def _first_solver(self) -> AbstractLowerSolver:
        """The lower solver; MaxMin needs more steps from a cold start."""
        if isinstance(self.lower, MaxMin):
            return dataclasses.replace(self.lower, dual_steps=int(MUCH) * self.lower.dual_steps)
        return self.lower

    # -- a step -----------------------------------------------------------------------------------------------------

    def step(self, problem: Problem, state: BLOCCState, tickets: Tickets) -> tuple[BLOCCState, Metrics]:
        """One outer step."""
        problem = scaled(problem, self.scales)
        x, xi_all = state.point.x, samples.whole(problem.xi, state.key)
        zeta, xi = samples.fetch(problem.zeta, tickets.zeta), samples.fetch(problem.xi, tickets.xi)
        # 1. The two lower problems at x_k, each from where it was solved last.
        low = self.lower.solve(problem, x, state.y_lower, xi_all, state.mu_lower)
        penalised = penalised_problem(problem, self.c)
        high = self.penalised.solve(penalised, x, state.point.y, (zeta, xi_all), state.mu_penalised)

        # 2. The gradient of F_c by the envelope theorem: both solutions are held fixed.
        def gap_and_upper(x: PyTree) -> tuple[Scalar, tuple[Scalar, Scalar]]:
            upper, lower = problem.upper(x, high.y, zeta), problem.lower(x, high.y, xi)
            value = problem.lower(x, low.y, xi) + trees.vdot(low.multipliers, problem.rows(x, low.y))
            pushed = trees.vdot(high.multipliers, problem.rows(x, high.y))
            return upper + self.c * (lower - value) + pushed, (upper, lower)

        d, (upper, lower) = jax.grad(gap_and_upper, has_aux=True)(x)
        # 3. One projected step.
        moved, memory = common.apply_rule(self.eta, state.memory, problem.x_set, x, d, state.step)
        new, status = Iterate(moved, high.y), jnp.maximum(low.status, high.status)
        inner = low.residual, high.residual
        distance = trees.norm(trees.sub(high.y, low.y))
        taken = common.StepTaken(state.point, new, d, (), upper, lower, distance, inner, status=status)
        after = BLOCCState(new, low.y, low.multipliers, high.multipliers, memory, state.step + 1, state.key)
        return after, common.step_metrics(problem, self.scales, taken, self.smoothness)

    # -- what the loop asks -----------------------------------------------------------------------------------------

    def zero_residual(self, state: BLOCCState) -> Residual:
        """Zeros like x and the residuals of the two solvers."""
        zero = jnp.zeros_like(self.smoothness)
        return Residual(jax.tree.map(jnp.zeros_like, state.point.x), inner=(zero, zero))

    def multipliers(self, problem: Problem, state: BLOCCState) -> Multipliers:
        """mu_g in the user's units."""
        return common.in_user_units(problem, state.point.x, state.point.y, state.mu_lower, self.scales)

    def moved_to(self, state: BLOCCState, x: PyTree, y: PyTree, multipliers: Multipliers) -> BLOCCState:
        """The state at another point of the run."""
        return state._replace(point=Iterate(x, y), mu_lower=common.in_scaled_units(multipliers, self.scales))

    def step_limits(self, problem: Problem, state: BLOCCState) -> dict[str, tuple[Scalar, Scalar]]:
        """The steps of MaxMin that were set against 2/L, and the x-step against 2/L_x, where the state is."""
        rescaled, x = scaled(problem, self.scales), state.point.x
        zeta, xi = common.first_batches(self, problem, state.key, None)
        penalised = penalised_problem(rescaled, self.c), x, state.point.y, (zeta, xi), state.mu_penalised
        levels = {"lower": (rescaled, x, state.y_lower, xi, state.mu_lower), "penalised": penalised}
        limits: dict[str, tuple[Scalar, Scalar]] = {}
        for name, level in levels.items():
            solver = getattr(self, name)
            if isinstance(solver, MaxMin):
                able = dataclasses.replace(solver, eta1=None, eta2=None, bend=None).filled(*level)
                for step in ("eta1", "eta2"):
                    if getattr(solver, step) is not None:
                        limits[f"{name}.{step}"] = getattr(solver, step), 2 * getattr(able, step)
        if not isinstance(self.eta, common.Adaptive) and not is_transformation(self.eta):
            free = dataclasses.replace(self, eta=None, smoothness=None)
            smoothness = free.begin(problem, x, state.y_lower, state.key).method.smoothness
            limits["eta"] = (common.rate(self.eta, state.step, dtype_of(x)), 2 / smoothness)
        return limits

    def costs(self, problem: Problem) -> RunCosts:
        """Two lower solves per step; what an exact solver does is not counted in gradients."""
        (low, low_rows), (high, high_rows) = _gradients(self.lower), _gradients(self.penalised)
        first, first_rows = _gradients(self._first_solver)
        estimated = common.estimate_costs()
        step = common.batch_costs(self, problem)._replace(
            grad_upper=high + 1, grad_lower=low + high + 2, vjp_constraints=low_rows + high_rows + 2, lower_solves=2
        )
        start = estimated._replace(
            grad_lower=estimated.grad_lower + first, vjp_constraints=estimated.vjp_constraints + first_rows
        )
        return RunCosts(start, step)


def penalised_problem(problem: Problem, c: Scalar) -> Problem:
    """The lower level with the objective F + c G; its batches are pairs (zeta, xi)."""
    return dataclasses.replace(
        problem, lower=lambda x, y, batches: problem.upper(x, y, batches[0]) + c * problem.lower(x, y, batches[1])
    )


def _gradients(solver: AbstractLowerSolver) -> tuple[int, int]:
    return solver.gradients() if isinstance(solver, MaxMin) else (0, 0)
