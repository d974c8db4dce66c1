"""What GAM, SIGD and IG-AL share: the gradient of F(x, y*(x)) through the KKT system of the lower level.

The derivative is that of `hierax._math.hypergradient`, with the one active set that the solution shows; GAM looks at
further sets where it is in doubt. SIGD and IG-AL are stated for linear constraints A y <= b + B x, so rows that are not
affine in (x, y) are refused: their second derivatives are looked at, at sampled points, before the first step.

The shortest step that the convex hull of several gradients offers: what stationarity means at a kink of y*(x).


GAM (Xu, Zhu, AAAI 2023): gradient steps on x -> F(x, y*(x)), with the lower level solved exactly at every x.

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


IG-AL (Tsaknakis, Khanduri, Hong, ICASSP 2022): implicit gradients from an augmented Lagrangian lower solve.

    (y*, mu*)(x) by the augmented Lagrangian method;  A = the rows whose multipliers are positive
    d = grad_x F + (dy*/dx)' grad_y F,     [ G_yy  J_A' ] [ dy  ]     [ G_yx  ]
                                           [ J_A   0    ] [ dmu ] = - [ J_x,A ] dx

for linear constraints of the lower level. y*(x) is differentiable where complementarity is strict, which the method
assumes along its way; GAM (hulls at kinks) and SIGD (a random perturbation) do without.


SIGD (Khanduri, Tsaknakis, Zhang, Liu, Liu, Zhang, Hong, ICML 2023): smoothed implicit gradients.

    y_q(x)   = argmin over y of G(x, y) + q'y  subject to A y <= b + B x,      q random, ||q|| <= sigma
    phi_q(x) = F(x, y_q(x)),    d = its implicit gradient on the active rows,   x <- Proj_X(x - eta d)

y*(x) has kinks where a constraint is weakly active. With a random linear term in the lower objective complementarity is
strict with probability one, and phi_q has a gradient wherever the run is. q is drawn anew for every line search, and is
the same within one: Armijo's rule compares values of one function (where f is sampled: a q for every step). y_q is off
by at most sigma / mu_G. The stochastic form, [S]SIGD, takes f on a batch.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.constants import FINE, LITTLE, MANY, MUCH, NEGLIGIBLE
from hierax._base.errors import InputError
from hierax._base.settings import COUNT_GIVEN, POSITIVE, POSITIVE_GIVEN, instance_of, is_transformation
from hierax._base.trees import Number, dtype_of, or_one
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math import hypergradient as hyper
from hierax._math.convexity import affine_rows, lower_curvatures
from hierax._math.lower_level import SOLVED, LowerSolution, reachable
from hierax._math.psi import gradient_mapping
from hierax._math.spectrum import hessian_product, power_iteration
from hierax._methods.augmented import ALM, accelerated
from hierax._methods.common import as_arrays, rate, setting, with_defaults
from hierax._methods.smoothed import Look, Prepared, Round, Smoothed, SmoothedState, blank, eta_advice, look_through
from hierax._problem import sets
from hierax._problem.problem import Problem
from hierax._run.method import Advice

TOO_LARGE = (
    "{0}: the KKT matrix of the lower level is larger than {1} x {1} (entries of y plus constraints plus bounds of Y), "
    "and {0} factorises it at every step. Use hx.SALVF()."
)
FLAT_LOWER_LEVEL = (
    "{}: the KKT system of the lower level is singular at the start because the lower objective is flat along the "
    "active constraints: y*(x) is not unique and has no derivative. Use hx.SALVF(), hx.LVHBA() or hx.BiCGAFFA(), or "
    "add a small multiple of the squared norm of y to the lower objective."
)
DEPENDENT_ROWS = (
    "{}: the KKT system of the lower level is singular at the start because the gradients of its active constraints "
    "(active bounds of Y included) are linearly dependent: LICQ fails, and multipliers are not unique. Start at "
    "another x, drop redundant constraints, or use hx.SALVF()."
)
NOT_AFFINE = (
    "{}: a constraint of the lower level, or a face of Y, is not affine in (x, y): its second derivative does not "
    "vanish near the start. The published method is for linear constraints. Use hx.GAM(), which differentiates the "
    "same system, hx.Barrier() or hx.SALVF()."
)
NOT_STRONGLY_CONVEX = (
    "{}: the lower objective is not strongly convex in y at the start (its smallest curvature is about zero, or "
    "negative), which the published method assumes. Use hx.GAM(), which needs curvature along the active constraints "
    "only, hx.SALVF(), or add a small multiple of the squared norm of y to the lower objective."
)


LOWER = instance_of(AbstractLowerSolver, "hx.Exact(), hx.ALM() or hx.Conic()")


class ImplicitGradient(Smoothed):
    """Base of GAM, SIGD and IG-AL; `inner` of a look is the lower level's solution."""

    lower: eqx.AbstractVar[AbstractLowerSolver]

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Round, key: PRNGKeyArray) -> Prepared:
        """Nothing is estimated; a system that is too large is refused."""
        if not hyper.fits(problem, x, y):
            raise InputError(TOO_LARGE.format(type(self).__name__, hyper.MOST))
        method = dataclasses.replace(self, lower=as_arrays(self.lower, dtype_of(x, y)))
        return Prepared(method, blank(problem, x, y), {})

    def doubts_at(self, problem: Problem, x: PyTree, look: Look, at: Round) -> Mapping[str, Bool[Array, ""]]:
        """Those of the solver, and a KKT system without a solution."""
        system = hyper.kkt_system(problem, x, look.inner, at.xi)
        solved = hyper.adjoint(system, hyper.active_rows(system), jnp.ones_like(system.hessian[0]))
        singular, name = solved.singular & (look.status == SOLVED), type(self).__name__
        return self.lower.doubts(problem, x, look.y, at.xi) | {
            FLAT_LOWER_LEVEL.format(name): singular & solved.flat,
            DEPENDENT_ROWS.format(name): singular & ~solved.flat,
        }

    def seen(self, problem: Problem, y: PyTree, at: Round) -> Problem:
        """The problem with the lower level that is solved in this line search."""
        return problem

    def look(self, problem: Problem, x: PyTree, inner: PyTree, at: Round) -> Look:
        """F at the solution of the lower level."""
        found = self.lower.solve(self.seen(problem, inner.y, at), x, inner.y, at.xi, inner.multipliers)
        return look_through(problem, x, found, found, self.offset(problem, x, found, at), at)

    def offset(self, problem: Problem, x: PyTree, found: LowerSolution, at: Round) -> Scalar:
        """How far the method itself keeps y from the lower level's solution."""
        return jnp.zeros_like(found.residual)

    def slope(self, problem: Problem, x: PyTree, look: Look, at: Round) -> PyTree:
        """The implicit gradient; a linear term in y changes the solution, but not the system that is differentiated."""
        return hyper.hypergradient(problem, x, solution_of(look), at.zeta, at.xi)


class LinearRows(ImplicitGradient):
    """Base of SIGD and IG-AL, which assume affine rows and a strongly convex lower objective."""

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Round, key: PRNGKeyArray) -> Prepared:
        """Nothing is estimated; the assumptions are looked at."""
        name, (bottom, top) = type(self).__name__, lower_curvatures(problem, x, y, at.xi)
        doubts = {
            NOT_AFFINE.format(name): ~affine_rows(problem, x, y, jax.random.fold_in(key, 6)),
            NOT_STRONGLY_CONVEX.format(name): ~(bottom > FINE * jnp.abs(top)),
        }
        return super().prepared(problem, x, y, at, key)._replace(doubts=doubts)


def solution_of(look: Look) -> LowerSolution:
    """The lower level's solution at the point of a look, which may have been moved."""
    return look.inner._replace(y=look.y, multipliers=look.multipliers)


def least_norm_weights(
    gradients: Float[Array, "m n"], landed: Callable[[Array], Array], t: Scalar
) -> Float[Array, " m"]:
    """The weights on the simplex that maximise q(w) = min over x' in X of <d, x' - x> + ||x' - x||^2/(2t), d = sum w d.

    `landed(d)` is Proj_X(x - t d) - x, hence the gradient of q is (<d_i, landed(d)>)_i, with Lipschitz constant
    t ||D||^2.
    """

    def below(w: Array) -> Scalar:
        d = w @ gradients
        gone = jax.lax.stop_gradient(landed(d))
        return -jnp.vdot(d, gone) - jnp.vdot(gone, gone) / (2 * t)

    start = jnp.full(len(gradients), 1 / len(gradients), gradients.dtype)
    curved = or_one(t * jnp.linalg.norm(gradients @ gradients.T))
    enough = jnp.finfo(start.dtype).eps * curved
    return accelerated(below, sets.Simplex().project, start, curved, enough, MANY).v


class Hull(NamedTuple):
    """What GAM knows of its direction.

    Attributes:
        single: the gradient that the likeliest active set alone gives.
        length: the size of y that tolerances are relative to.
    """

    single: PyTree
    length: Scalar


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

    lower: AbstractLowerSolver = setting(LOWER, Exact(tol=1e-10))
    tol_active: Number = setting(POSITIVE_GIVEN, 0.1, kw_only=True)
    candidates: int = setting(COUNT_GIVEN, 8, static=True, kw_only=True)

    advice: ClassVar[Advice] = eta_advice("GAM", "as near as the lower solver's tolerance brings it")
    changes: ClassVar[bool] = False
    measures_before: ClassVar[bool] = True

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Round, key: PRNGKeyArray) -> Prepared:
        """The first solve starts without multipliers; the memory is the tolerance of activity."""
        jax.eval_shape(problem.upper, x, y, at.zeta)  # first: a program that meets new shapes is started again
        tol = jnp.asarray(self.tol_active, dtype_of(x, y))
        found = super(GAM, dataclasses.replace(self, tol_active=tol)).prepared(problem, x, y, at, key)
        return found._replace(inner=found.inner._replace(multipliers=None), memory=tol)

    def direction(self, problem: Problem, state: SmoothedState, here: Look, at: Round) -> tuple[PyTree, Hull]:
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

        def visit(number: Array, kept: tuple[Array, Array]) -> tuple[Array, Array]:
            """The set in which those of the doubted rows have changed sides that the digits of its number name."""
            changed = (number >> jnp.arange(doubted)) % 2 == 1
            one = hyper.adjoint(system, likely.at[rows].set(likely[rows] ^ changed), grad_y)
            d = hyper.total_gradient(problem, x, found, one, at.zeta, at.xi)
            return kept[0].at[number].set(jax.flatten_util.ravel_pytree(d)[0]), kept[1].at[number].set(~one.singular)

        none = jnp.zeros((2**doubted, flat.size), flat.dtype), jnp.zeros(2**doubted, bool)
        gradients, regular = jax.lax.fori_loop(0, count, visit, none)
        # Sets with dependent gradients are left out; where there are no others the likeliest one has to do.
        first = jnp.argmax(regular)
        gradients = jnp.where(regular[:, None], gradients, gradients[first])

        def landed(d: Array) -> Array:
            return jax.flatten_util.ravel_pytree(sets.project(problem.x_set, tree(flat - t * d)))[0] - flat

        weights = least_norm_weights(gradients, landed, t)  # equal ones where there is no kink
        return tree(weights @ gradients), Hull(tree(gradients[0]), system.length)

    def _tolerance_and_length(self, problem: Problem, state: SmoothedState) -> tuple[Scalar, Scalar]:
        """The tolerance of activity, and the step that the least norm is measured with."""
        if self.searches(problem):
            waiting = state.line.length
            return state.memory, jnp.where(waiting == 0, 1.0, waiting)
        share = jnp.ones((), self.tol_active.dtype)
        if not is_transformation(self.eta):
            share = rate(self.eta, state.step, share.dtype) / rate(self.eta, jnp.zeros_like(state.step), share.dtype)
        return share * self.tol_active, 1 / self.smoothness

    def remembered(
        self, problem: Problem, state: SmoothedState, known: PyTree, there: Look, taken: Bool[Array, ""]
    ) -> PyTree:
        """The tolerance of activity: finer where the hull's point is short, or a failed step hardly moves y."""
        x, tol, good = state.point.x, state.memory, state.line.good
        mapped = trees.norm(gradient_mapping(problem.x_set, x, state.line.d, good))
        alone = trees.norm(gradient_mapping(problem.x_set, x, known.single, good))
        changed = trees.norm(trees.sub(there.y, state.point.y))
        stuck = ~taken & (changed <= LITTLE * tol * known.length)
        finest = jnp.sqrt(jnp.finfo(tol.dtype).eps)
        finer = jnp.maximum(LITTLE * tol, jnp.minimum(finest, tol))
        return jnp.where((mapped <= tol * alone) | stuck, finer, tol)


class IGAL(LinearRows):
    r"""Implicit gradients with the multipliers and active rows of an augmented Lagrangian method.

        y  <- argmin over y in Y of G(x, y) + sum_i ([mu_i + rho r_i(x, y)]_+^2 - mu_i^2)/(2 rho),  mu <- [mu + rho r]_+
        d = grad_x F + (dy*/dx)' grad_y F,     x <- Proj_X(x - eta d)

    with dy*/dx from the KKT system of the rows r whose multipliers mu are positive, as in `GAM`.

    Args:
        lower: solver of the lower level: `ALM()`, the method of the paper (first-order), or `Exact()`, which is an
            augmented Lagrangian method too, with a proximal term and Newton steps.
        eta, batch_zeta, batch_xi, smoothness: as in `GAM`.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> sol = hx.solve(problem, 0.5, 0.5, hx.IGAL(), max_steps=30)
        >>> round(float(sol.x), 2)
        0.91

    References:
        Tsaknakis, Khanduri, Hong: An implicit gradient-type method for linearly constrained bilevel problems,
            ICASSP 2022.
        docs/methods/ig-al.md (cost and when to use it)
    """

    lower: AbstractLowerSolver = setting(LOWER, ALM())

    changes: ClassVar[bool] = False
    advice: ClassVar[Advice] = eta_advice("IGAL", "as near as the lower solver's tolerance brings it")


class SIGD(LinearRows):
    r"""Implicit gradients of a randomly perturbed lower level. Whatever is None is estimated from the problem.

        y_q(x) = argmin over y of {G(x, y) + q'y : A y <= b + B x},     q uniform in the ball of radius sigma
        d = grad_x F + (dy_q/dx)' grad_y F,     x <- Proj_X(x - eta d)

    with dy_q/dx from the KKT system of the active rows, as in `GAM`.

    Args:
        sigma: bound of the perturbation q, in units of grad_y G; x and y are off by O(sigma). None: 1e-5 times the
            curvature of G in y times the size of y at the start (more in single precision).
        lower: solver of the lower level, `Exact()`, `Conic()` or `ALM()`; its tolerance must be far below sigma.
        eta, batch_zeta, batch_xi, smoothness: as in `GAM`.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> sol = hx.solve(problem, 0.5, 0.5, hx.SIGD(), max_steps=30)
        >>> round(float(sol.x), 2)
        0.91

    References:
        Khanduri, Tsaknakis, Zhang, Liu, Liu, Zhang, Hong: Linearly constrained bilevel optimization: a smoothed
            implicit gradient approach, ICML 2023.
        docs/methods/sigd.md (cost and when to use it)
    """

    sigma: Number = setting(POSITIVE)
    lower: AbstractLowerSolver = setting(LOWER, GAM.lower)

    advice: ClassVar[Advice] = eta_advice("SIGD", "a smaller sigma brings it closer")

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Round, key: PRNGKeyArray) -> Prepared:
        """sigma from the curvature of G and the size of y; the assumptions are looked at."""
        dtype = dtype_of(x, y)
        curved, _ = power_iteration(hessian_product(lambda v: problem.lower(x, v, at.xi), y), y)
        push = trees.norm(jax.grad(problem.lower, 1)(x, y, at.xi))
        unit = or_one(jnp.maximum(or_one(curved) * trees.norm(y), push))
        # In units of what moves y by its own size: the bias is of this order, far above the solver's tolerance.
        share = jnp.maximum(NEGLIGIBLE / MUCH**2, MUCH**2 * reachable(getattr(self.lower, "tol", 0.0), dtype))
        filled = with_defaults(self, dtype, sigma=share * unit)
        return super(SIGD, filled).prepared(problem, x, y, at, key)

    def perturbation(self, y: PyTree, at: Round) -> PyTree:
        """q of a line search: uniform in the ball of radius sigma."""
        flat, tree = jax.flatten_util.ravel_pytree(y)
        draw = jax.random.normal(
            jax.random.fold_in(jax.random.fold_in(at.key, 7), at.number), (flat.size + 2,), flat.dtype
        )
        # The first n of n + 2 entries of a uniform point of the sphere are uniform in the ball.
        return tree(self.sigma.astype(flat.dtype) * draw[:-2] / jnp.linalg.norm(draw))

    def seen(self, problem: Problem, y: PyTree, at: Round) -> Problem:
        """With G + q'y in the place of G."""
        q = self.perturbation(y, at)
        return dataclasses.replace(problem, lower=lambda x, y, xi: problem.lower(x, y, xi) + trees.vdot(q, y))

    def offset(self, problem: Problem, x: PyTree, found: LowerSolution, at: Round) -> Scalar:
        """How far q moves y where no row holds it: ||q|| over the curvature of G along q."""
        q = self.perturbation(found.y, at)
        size = or_one(trees.norm(q))
        bent = hessian_product(lambda v: problem.lower(x, v, at.xi), found.y)(q)
        return size / or_one(trees.vdot(q, bent) / size**2)
