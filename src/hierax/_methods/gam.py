r"""GAM (Xu, Zhu, AAAI 2023): gradient steps on x -> F(x, y*(x)), with the lower level solved exactly at every x.

    y*(x), lam*(x) from an exact solver;  d = grad_x F + (dy*/dx)' grad_y F from the KKT system on the active set

(`_math.hypergradient`). Where rows are weakly active y* has a kink, and the gradient that one active set gives
holds on one side of it only. Then the gradients d_1..d_m of all active sets with these rows in or out take part, and
x moves along minus the least-norm point of their convex hull. Over a set X the least norm is that of the gradient
mapping: the weights maximise the concave function

    min over x' in X of  <sum_i w_i d_i, x' - x> + ||x' - x||^2 / (2 t),      w >= 0,  sum_i w_i = 1,

which is -t/2 ||sum_i w_i d_i||^2 where X is the whole space.

**Steps.** Where f is exact, one trial point per outer step (`line_search`), so a step costs exactly one lower solve,
and some steps do not move. Where f is sampled, x <- Proj_X(x - eta_k d).

**Tolerance of activity.** It must fit the step: too small, and the steps bounce across a kink; too large, and x stops
early. With Armijo's rule it is divided by 10 whenever x stalls: the hull's point is short against the single gradient,
or a step too short to leave the kink's surroundings fails. Otherwise it shrinks with eta_k.

The method needs second derivatives and dense matrices, as SIGD, IG-AL and Barrier do.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base import tree_math
from hierax._base.errors import InputError
from hierax._base.schedules import is_transformation
from hierax._base.settings import COUNT_GIVEN, POSITIVE_GIVEN, check_settings, instance_of
from hierax._base.trees import Number, dtype_of, given, move, or_one, select
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math import curvature as estimate
from hierax._math import hypergradient as hyper
from hierax._math.hull import HULL_STEPS, least_norm_weights
from hierax._math.lower_level import INACCURATE, SOLVED, LowerSolution
from hierax._math.psi import gradient_mapping
from hierax._methods import common, line_search, singular_kkt
from hierax._methods.common import Iterate, StepTaken, WithSmoothness
from hierax._methods.line_search import LineSearch
from hierax._methods.steps import (
    Decay,
    StepRule,
    apply_rule,
    check_rule,
    filled_rule,
    init_rule,
    rate,
)
from hierax._problem import samples, sets
from hierax._problem.problem import Multipliers, Problem
from hierax._problem.samples import Tickets
from hierax._run.batches import look_at
from hierax._run.reports import Advice, Begun, Costs, Metrics, Residual, RunCosts

FINER = 0.1  # factor of the activity tolerance at a stall
SHORT = 0.1  # a failed step that moves y by less than this part of the tolerance is a stall

FLAT, DEPENDENT = (text.format("GAM") for text in singular_kkt.TEXTS)


class Search(NamedTuple):
    """What Armijo's rule remembers, and the tolerance of activity."""

    line: LineSearch
    tol: Scalar


class GAMState(NamedTuple):
    """Everything that changes from step to step; `found` is the lower level's solution at the point."""

    point: Iterate
    found: LowerSolution
    search: Search
    rule: PyTree
    step: Int[Array, ""]
    key: PRNGKeyArray


class Direction(NamedTuple):
    """d; the gradient that the likeliest active set alone gives; the size of y that tolerances are relative to."""

    d: PyTree
    single: PyTree
    length: Scalar


class GAM(WithSmoothness):
    r"""Gradient descent on F(x, y*(x)) through the KKT system. Whatever is None is estimated from the problem.

        [L_yy  J_A'] [dy*/dx ]     [L_yx ]
        [J_A   0   ] [dlam/dx] = - [J_x,A],     d = grad_x F + (dy*/dx)' grad_y F,     x <- Proj_X(x - eta d)

    with L the Lagrangian of the lower level and A its active rows. At a kink, where rows are active with multipliers of
    zero, d is the least-norm point of the convex hull of the gradients of the possible active sets.

    Args:
        lower: solver of the lower level, `Exact()` or `Conic()`; it sees all of xi.
        eta: x-step: a number, a schedule or an optax transformation. None: Armijo's rule where f is exact, a decaying
            step eta_k = min(1, 1.5 (k+1)^(-1/3)) / L where it is sampled, L the curvature of F(x, y*(x)) met along the
            gradient at the start (at least ||d||/||x||).
        tol_active: a row is weakly active where its slack and its multiplier are both below this, as shares of the size
            of y (`_math.hypergradient`). It shrinks as the run goes on, see the module.
        candidates: most active sets compared at a kink (2, 4, 8, ...); 1 ignores kinks.
        batch_zeta: samples of zeta per step.
        batch_xi: not used: the lower level is solved on all of xi.
        smoothness: 1/step of the stationarity measure; None: that of the current step length.

    Examples:
        >>> import hierax as hx
        >>> method = hx.GAM(tol_active=0.01, candidates=4)

    References:
        Xu, Zhu: Efficient gradient approximation method for constrained bilevel optimization, AAAI 2023.
        docs/methods/gam.md (cost and when to use it)
    """

    lower: AbstractLowerSolver = Exact(tol=1e-10)
    eta: StepRule = None
    tol_active: Number = 0.1
    candidates: int = eqx.field(static=True, default=8)

    advice: ClassVar[Advice] = Advice(
        bring_y_closer="as near as the lower solver's tolerance brings it",
        shorten_steps="Give a smaller eta, or leave it unset.",
        lengthen_x_step="lengthen its step, hx.GAM(eta=...).",
    )
    state_settings: ClassVar[dict[str, str]] = {"eta": "Armijo's"}

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        super().__post_init__()
        check_settings(self, {"lower": instance_of(AbstractLowerSolver, "hx.Exact() or hx.Conic()")})
        check_settings(self, {"tol_active": POSITIVE_GIVEN, "candidates": COUNT_GIVEN})
        check_rule("eta", self.eta)

    def check(self, problem: Problem) -> None:
        """No constraints at the upper level."""
        common.refuse_upper_constraints("GAM", problem)

    # -- before the first step --------------------------------------------------------------------------------------

    def begin(self, problem: Problem, x0: PyTree, y0: PyTree, key: PRNGKeyArray, look: Tickets | None = None) -> Begun:
        """The lower level solved at x0; unless Armijo's rule does without, the step estimated there."""
        if not hyper.fits(problem, x0, y0):
            raise InputError(singular_kkt.too_large("GAM"))
        dtype, xi = dtype_of(x0, y0), samples.whole(problem.xi, key)
        sizes = self.batches(problem)
        method = dataclasses.replace(self, batch_zeta=sizes.zeta, batch_xi=sizes.xi)
        eta, smoothness = self.eta, self.smoothness
        if self._searches(problem):
            found = self.lower.solve(problem, x0, y0, xi)
        else:
            look = sizes.first_look(problem, key) if look is None else look
            found, curved = self._curvature(problem, x0, y0, look_at(problem.zeta, look.zeta), xi)
            eta = filled_rule(eta, Decay(1 / curved), dtype)
            smoothness = given(smoothness, curved, dtype)
        method = dataclasses.replace(
            method, eta=eta, tol_active=jnp.asarray(self.tol_active, dtype), smoothness=smoothness
        )
        search = Search(line_search.first_search(x0, dtype), method.tol_active)
        step = jnp.zeros((), jnp.int32)
        state = GAMState(Iterate(x0, found.y), found, search, init_rule(eta, x0), step, key)
        return Begun(method, state, self._doubts(problem, x0, y0, found, xi))

    def _doubts(
        self, problem: Problem, x: PyTree, y: PyTree, found: LowerSolution, xi: PyTree
    ) -> dict[str, Bool[Array, ""]]:
        """Those of the solver, and a KKT system without a solution."""
        return self.lower.doubts(problem, x, y, xi) | singular_kkt.doubts("GAM", problem, x, found, xi)

    def _searches(self, problem: Problem) -> bool:
        """Whether Armijo's rule sets the step: it compares values of F(x, y*(x)), so they must be exact."""
        return self.eta is None and problem.zeta is None

    def _curvature(
        self, problem: Problem, x0: PyTree, y0: PyTree, zeta: PyTree, xi: PyTree
    ) -> tuple[LowerSolution, Scalar]:
        """The lower level's solution at x0, and how fast the gradient of F(x, y*(x)) changes along itself there."""
        size = line_search.size_of(x0)
        jax.eval_shape(problem.upper, x0, y0, zeta)  # first: a program that meets new shapes is started again

        def look(x: PyTree, _: None) -> tuple[PyTree, tuple[PyTree, PyTree, LowerSolution]]:
            found = self.lower.solve(problem, x, y0, xi)
            d = hyper.hypergradient(problem, x, found, zeta, xi).gradient
            step = line_search.PROBE * size / or_one(tree_math.norm(d))
            return sets.project(problem.x_set, move(x, step, d)), (x, d, found)

        _, (xs, ds, both) = jax.lax.scan(look, x0, None, length=2)  # a loop, so that the solver compiles once
        moved, turned = (tree_math.norm(jax.tree.map(lambda a: a[1] - a[0], tree)) for tree in (xs, ds))
        slope = tree_math.norm(jax.tree.map(lambda a: a[0], ds))
        curved = or_one(jnp.maximum(turned / or_one(moved), slope / size))
        return jax.tree.map(lambda a: a[0], both), curved

    # -- a step -----------------------------------------------------------------------------------------------------

    def step(self, problem: Problem, state: GAMState, tickets: Tickets) -> tuple[GAMState, Metrics]:
        """One trial point (Armijo's rule), or one step of the given rule."""
        zeta, xi = samples.fetch(problem.zeta, tickets.zeta), samples.whole(problem.xi, state.key)
        if self._searches(problem):
            return self._try(problem, state, xi)
        dtype = dtype_of(state.point.x, state.point.y)
        share = jnp.ones((), dtype)
        if not is_transformation(self.eta):
            share = rate(self.eta, state.step, dtype) / rate(self.eta, jnp.zeros_like(state.step), dtype)
        tol = share * self.tol_active
        ahead = self._direction(problem, state, tol, 1 / self.smoothness, zeta, xi)
        x, rule = apply_rule(self.eta, state.rule, problem.x_set, state.point.x, ahead.d, state.step)
        found = self.lower.solve(problem, x, state.point.y, xi, state.found.multipliers)
        upper = problem.upper(*state.point[:2], zeta)
        search = state.search._replace(tol=tol)
        new = GAMState(Iterate(x, found.y), found, search, rule, state.step + 1, state.key)
        return new, self._metrics(problem, state, new, ahead.d, upper, self.smoothness, found.status)

    def _try(self, problem: Problem, state: GAMState, xi: PyTree) -> tuple[GAMState, Metrics]:
        """A trial point of Armijo's rule, and what its success or failure says about length and tolerance."""
        x, y, search = state.point.x, state.point.y, state.search
        dtype = dtype_of(x, y)
        eps = jnp.finfo(dtype).eps
        waiting = search.line.length
        ahead = self._direction(problem, state, search.tol, jnp.where(waiting == 0, 1.0, waiting), None, xi)
        line = line_search.trial(search.line, x, ahead.d)
        t, good = line.length, line.good

        trial = sets.project(problem.x_set, move(x, t, ahead.d))
        tried = self.lower.solve(problem, trial, y, xi, state.found.multipliers)
        value, slope = jax.value_and_grad(problem.upper, 1)(x, y, None)
        reached = problem.upper(trial, tried.y, None)
        way = tree_math.norm(tree_math.sub(trial, x))
        # What the solver's residual and rounding may make of the two values; without it the last digits never pass.
        rough = tree_math.norm(slope) * ahead.length * (state.found.residual + tried.residual)
        noise = jnp.minimum(rough, jnp.sqrt(eps) * jnp.abs(value)) + 10 * eps * jnp.abs(value)
        sound = (tried.status == SOLVED) | ((tried.status == INACCURATE) & (state.found.status == INACCURATE))
        taken = sound & line_search.falls_enough(value, reached, way, t, noise)

        mapped = tree_math.norm(gradient_mapping(problem.x_set, x, ahead.d, good))
        alone = tree_math.norm(gradient_mapping(problem.x_set, x, ahead.single, good))
        changed = tree_math.norm(tree_math.sub(tried.y, y))
        stuck = ~taken & (changed <= SHORT * search.tol * ahead.length)
        stalled = (mapped <= search.tol * alone) | stuck
        finest = jnp.sqrt(eps)
        finer = jnp.maximum(FINER * search.tol, jnp.minimum(finest, search.tol))
        after = Search(line_search.tried(line, taken, way), jnp.where(stalled, finer, search.tol))
        found = select(taken, tried, state.found)
        point = select(taken, Iterate(trial, tried.y), state.point)
        new = GAMState(point, found, after, state.rule, state.step + 1, state.key)
        # A trial x without a lower solution only shortens the step, unless no step is short enough.
        hopeless = line_search.leads_nowhere(x, way) & (tried.status > INACCURATE)
        here = jnp.where(state.found.status > INACCURATE, state.found.status, found.status)
        status = jnp.where(hopeless, tried.status, here)
        return new, self._metrics(problem, state, new, ahead.d, value, 1 / good, status)

    def _direction(
        self, problem: Problem, state: GAMState, tol: Scalar, t: Scalar, zeta: PyTree, xi: PyTree
    ) -> Direction:
        """The least-norm point of the hull of the gradients that the possible active sets give."""
        x, found = state.point.x, state.found
        system = hyper.kkt_system(problem, x, found, xi)
        likely, margins = hyper.active_rows(system), hyper.margins(system)
        grad_y = hyper.upper_gradient_y(problem, x, found.y, zeta)
        flat, tree = jax.flatten_util.ravel_pytree(x)
        doubted = min(self.candidates.bit_length() - 1, margins.size)
        least, rows = jax.lax.top_k(-margins, doubted)  # the weakest rows first
        count = 2 ** jnp.sum(-least <= tol)
        solved = hyper.adjoints(system, likely, rows, grad_y)

        def gradient_of(one: hyper.Adjoint) -> Array:
            return jax.flatten_util.ravel_pytree(hyper.total_gradient(problem, x, found, one, zeta, xi))[0]

        gradients = jax.vmap(gradient_of)(solved)
        regular = ~solved.singular & (jnp.arange(2**doubted) < count)
        # Sets with dependent gradients are left out; where there are no others the likeliest one has to do.
        first = jnp.argmax(regular)
        gradients = jnp.where(regular[:, None], gradients, gradients[first])

        def landed(d: Array) -> Array:
            return jax.flatten_util.ravel_pytree(sets.project(problem.x_set, tree(flat - t * d)))[0] - flat

        # Without a kink all rows are the same gradient, and any weights will do.
        weights = least_norm_weights(gradients, landed, t, jnp.where(count > 1, HULL_STEPS, 0))
        return Direction(tree(weights @ gradients), tree(gradients[0]), system.length)

    def _metrics(
        self,
        problem: Problem,
        old: GAMState,
        new: GAMState,
        d: PyTree,
        upper: Scalar,
        smoothness: Scalar,
        status: Int[Array, ""],
    ) -> Metrics:
        taken = StepTaken(
            old=old.point,
            new=new.point,
            d_x=d,
            d_y=(),
            upper=upper,
            lower=old.found.value,
            distance=jnp.zeros_like(smoothness),
            inner=new.found.residual,
            status=status,
        )
        smoothness = smoothness if self.smoothness is None else self.smoothness
        return common.step_metrics(problem, estimate.unit_scales(problem, *new.point[:2]), taken, smoothness)

    # -- what the loop asks -----------------------------------------------------------------------------------------

    def zero_residual(self, state: GAMState) -> Residual:
        """Zeros like x; y has no residual of its own, and the solver's is a number."""
        return jax.tree.map(jnp.zeros_like, Residual(state.point.x, inner=state.found.residual))

    def multipliers(self, problem: Problem, state: GAMState) -> Multipliers:
        """Those of the lower level's solution."""
        upper = jax.tree.map(jnp.zeros_like, problem.upper_constraints(*state.point[:2]))
        return Multipliers(*state.found.multipliers, upper)

    def moved_to(self, state: GAMState, x: PyTree, y: PyTree, multipliers: Multipliers) -> GAMState:
        """The state at another point of the run."""
        found = state.found._replace(
            y=y,
            multipliers=state.found.multipliers._replace(
                inequalities=multipliers.inequalities, equalities=multipliers.equalities
            ),
        )
        return state._replace(point=Iterate(x, y), found=found)

    def costs(self, problem: Problem) -> RunCosts:
        """One lower solve per step; F at the point and at the trial. Second derivatives are not counted."""
        probes = 0 if self._searches(problem) else 2
        start = Costs(grad_upper=probes, grad_lower=2 * probes, vjp_constraints=2 * probes, lower_solves=max(1, probes))
        zeta = common.batch_costs(self, problem).zeta
        return RunCosts(start, Costs(zeta=zeta, grad_upper=2, grad_lower=2, vjp_constraints=2, lower_solves=1))
