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
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.settings import COUNT_GIVEN, POSITIVE_GIVEN, check_settings, is_transformation
from hierax._base.trees import Number, dtype_of
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math import hypergradient as hyper
from hierax._math.hull import HULL_STEPS, least_norm_weights
from hierax._math.psi import gradient_mapping
from hierax._methods.implicit_gradient import ImplicitGradient, solution_of
from hierax._methods.smoothed import Ahead, Look, Prepared, Samples, SmoothedState, Trial, eta_advice
from hierax._methods.steps import rate
from hierax._problem import sets
from hierax._problem.problem import Problem
from hierax._run.method import Advice, RunCosts

REFINEMENT = 0.1  # factor of the activity tolerance at a stall, and share of it that y must move by not to stall


class Hull(NamedTuple):
    """What GAM knows of its direction.

    Attributes:
        single: the gradient that the likeliest active set alone gives.
        length: the size of y that tolerances are relative to.
        steep: norm of F's gradient in y.
    """

    single: PyTree
    length: Scalar
    steep: Scalar


class GAM(ImplicitGradient):
    r"""Gradient descent on F(x, y*(x)) through the KKT system. Whatever is None is estimated from the problem.

        [L_yy  J_A'] [dy*/dx ]     [L_yx ]
        [J_A   0   ] [dlam/dx] = - [J_x,A],     d = grad_x F + (dy*/dx)' grad_y F,     x <- Proj_X(x - eta d)

    with L the Lagrangian of the lower level and A its active rows. At a kink, where rows are active with multipliers of
    zero, d is the least-norm point of the convex hull of the gradients of the possible active sets.

    Args:
        lower: solver of the lower level, `Exact()` or `Conic()`; it sees all of xi.
        tol_active: a row is weakly active where its slack and its multiplier are both below this, as shares of the size
            of y (`_math.hypergradient`). It shrinks as the run goes on, see the module.
        candidates: most active sets compared at a kink (2, 4, 8, ...); 1 ignores kinks.
        eta: x-step: a number, a schedule or an optax transformation. None: Armijo's rule where f is exact, a decaying
            step eta_k = min(1, 1.5 (k+1)^(-1/3)) / L where it is sampled, L the curvature of F(x, y*(x)) met along the
            gradient at the start (at least ||d||/||x||).
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
    tol_active: Number = eqx.field(default=0.1, kw_only=True)
    candidates: int = eqx.field(static=True, default=8, kw_only=True)

    advice: ClassVar[Advice] = eta_advice("GAM", "as near as the lower solver's tolerance brings it")
    changes: ClassVar[bool] = False
    measures_before: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        super().__post_init__()
        check_settings(self, {"tol_active": POSITIVE_GIVEN, "candidates": COUNT_GIVEN})

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Samples, key: PRNGKeyArray) -> Prepared:
        """The first solve starts without multipliers; the memory is the tolerance of activity."""
        jax.eval_shape(problem.upper, x, y, at.zeta)  # first: a program that meets new shapes is started again
        tol = jnp.asarray(self.tol_active, dtype_of(x, y))
        found = super(GAM, dataclasses.replace(self, tol_active=tol)).prepared(problem, x, y, at, key)
        return found._replace(inner=found.inner._replace(multipliers=None), memory=tol)

    def direction(self, problem: Problem, state: SmoothedState, here: Look, at: Samples) -> Ahead:
        """The least-norm point of the hull of the gradients that the possible active sets give."""
        tol, t = self._tolerance_and_length(problem, state)
        x, found = state.point.x, solution_of(here)
        system = hyper.kkt_system(problem, x, found, at.xi)
        likely, margins = hyper.active_rows(system), hyper.margins(system)
        grad_y = hyper.upper_gradient_y(problem, x, found.y, at.zeta)
        flat, tree = jax.flatten_util.ravel_pytree(x)
        doubted = min(self.candidates.bit_length() - 1, margins.size)
        least, rows = jax.lax.top_k(-margins, doubted)  # the weakest rows first
        count = 2 ** jnp.sum(-least <= tol)
        solved = hyper.adjoints(system, likely, rows, grad_y)

        def gradient_of(one: hyper.Adjoint) -> Array:
            return jax.flatten_util.ravel_pytree(hyper.total_gradient(problem, x, found, one, at.zeta, at.xi))[0]

        gradients = jax.vmap(gradient_of)(solved)
        regular = ~solved.singular & (jnp.arange(2**doubted) < count)
        # Sets with dependent gradients are left out; where there are no others the likeliest one has to do.
        first = jnp.argmax(regular)
        gradients = jnp.where(regular[:, None], gradients, gradients[first])

        def landed(d: Array) -> Array:
            return jax.flatten_util.ravel_pytree(sets.project(problem.x_set, tree(flat - t * d)))[0] - flat

        # Without a kink all rows are the same gradient, and any weights will do.
        weights = least_norm_weights(gradients, landed, t, jnp.where(count > 1, HULL_STEPS, 0))
        return Ahead(tree(weights @ gradients), Hull(tree(gradients[0]), system.length, trees.norm(grad_y)))

    def _tolerance_and_length(self, problem: Problem, state: SmoothedState) -> tuple[Scalar, Scalar]:
        """The tolerance of activity, and the step that the least norm is measured with."""
        if self.searches(problem):
            waiting = state.line.length
            return state.memory, jnp.where(waiting == 0, 1.0, waiting)
        share = jnp.ones((), self.tol_active.dtype)
        if not is_transformation(self.eta):
            share = rate(self.eta, state.step, share.dtype) / rate(self.eta, jnp.zeros_like(state.step), share.dtype)
        return share * self.tol_active, 1 / self.smoothness

    def noise(self, here: Look, there: Look, ahead: Ahead) -> Scalar:
        """What the solver's residual and rounding may make of the two values; without it the last digits never pass."""
        eps = jnp.finfo(here.value.dtype).eps
        rough = ahead.known.steep * ahead.known.length * (here.residual + there.residual)
        return jnp.minimum(rough, jnp.sqrt(eps) * jnp.abs(here.value)) + 10 * eps * jnp.abs(here.value)

    def remembered(self, problem: Problem, state: SmoothedState, ahead: Ahead, trial: Trial) -> PyTree:
        """The tolerance of activity: finer where the hull's point is short, or a failed step hardly moves y."""
        x, tol, good = state.point.x, state.memory, trial.line.good
        mapped = trees.norm(gradient_mapping(problem.x_set, x, ahead.d, good))
        alone = trees.norm(gradient_mapping(problem.x_set, x, ahead.known.single, good))
        changed = trees.norm(trees.sub(trial.look.y, state.point.y))
        stuck = ~trial.taken & (changed <= REFINEMENT * tol * ahead.known.length)
        finest = jnp.sqrt(jnp.finfo(tol.dtype).eps)
        finer = jnp.maximum(REFINEMENT * tol, jnp.minimum(finest, tol))
        return jnp.where((mapped <= tol * alone) | stuck, finer, tol)

    def costs(self, problem: Problem) -> RunCosts:
        """Armijo's rule needs no gradient before the first step; an estimated step those at two points."""
        probes, found = 0 if self.searches(problem) else 2, super().costs(problem)
        start = found.start._replace(grad_upper=probes, grad_lower=2 * probes, vjp_constraints=2 * probes)
        return found._replace(start=start)
