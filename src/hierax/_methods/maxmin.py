r"""MaxMin, the lower solver of BLOCC: accelerated ascent in the multipliers, projected gradient descent in y.

    max over mu >= 0 of  min over y in Y of  G(x, y) + <mu, H(x, y)>          (equality multipliers are free in sign)

    mu_half  = [mu_t + (t-1)/(t+2) (mu_t - mu_{t-1})]_+,   mu_{-1} = mu_0       t = 0..T-1, from 0 again in every call
    T_y times:  y <- Proj_Y(y - eta1 (grad_y G + J_y H^T mu_half))
    mu_{t+1} = [mu_half + eta2 H(x, y)]_+

The order matters: with the steps in y at mu_t instead of mu_half this is a heavy-ball method, which does not settle.
Only vector-Jacobian products are used, and a few copies of y; second derivatives only to estimate steps left unset.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree, Scalar

from hierax._base import trees
from hierax._base.constants import FINE
from hierax._base.settings import COUNT_GIVEN, POSITIVE, check_settings
from hierax._base.trees import Number, dtype_of, given, largest, move, or_one
from hierax._lower.base import AbstractLowerSolver, compiled_where_called
from hierax._math import spectrum
from hierax._math.convexity import lower_curvatures
from hierax._math.lower_level import INACCURATE, SOLVED, LowerSolution
from hierax._math.psi import gradient_mapping, nonnegative
from hierax._problem import sets
from hierax._problem.problem import Problem, Rows
from hierax._problem.sets import Faces

NOT_STRONGLY_CONVEX = (
    "MaxMin: the lower objective is not strongly convex in y at the start (its smallest curvature is about zero, or "
    "negative), and the minimum over y of G + <mu, H> then does not exist for every mu. Use lower=hx.Exact() and "
    "penalised=hx.Exact(), add a small multiple of the squared norm of y to the lower objective, or use hx.SALVF()."
)


class Norms(NamedTuple):
    """What the steps of MaxMin come from.

    Attributes:
        top: L_G, the largest curvature of the objective in y.
        bottom: mu_G, the smallest.
        jacobian: ||J_y H||.
        bend: curvature that the constraints add per unit of the largest multiplier.
    """

    top: Scalar
    bottom: Scalar
    jacobian: Scalar
    bend: Scalar


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
        return self.doubted(*lower_curvatures(problem, x, y, xi)) if self.estimates else {}

    def doubted(self, bottom: Scalar, top: Scalar) -> dict[str, Bool[Array, ""]]:
        """`doubts` where the objective's smallest and largest curvature are known."""
        flat = jnp.maximum(FINE, 100 * jnp.finfo(top.dtype).eps)
        return {NOT_STRONGLY_CONVEX: ~(bottom > flat * jnp.abs(top))} if self.estimates else {}

    def filled(self, norms: Norms) -> "MaxMin":
        """The solver with every unset step from the norms of its problem."""
        dtype, tiny = norms.top.dtype, jnp.finfo(norms.top.dtype).tiny

        squared = or_one(norms.jacobian) ** 2
        return dataclasses.replace(
            self,
            eta1=given(self.eta1, 1 / jnp.maximum(norms.top, tiny), dtype),
            eta2=given(self.eta2, jnp.maximum(norms.bottom, tiny) / squared, dtype),
            bend=given(self.bend, norms.bend if self.eta1 is None else jnp.zeros_like(norms.bend), dtype),
        )

    @property
    def estimates(self) -> bool:
        """Whether a call first estimates steps."""
        return any(value is None for value in (self.eta1, self.eta2))

    @property
    def unfinished(self) -> bool:
        """Whether anything is left to be filled by `filled`."""
        return self.estimates or self.bend is None

    def gradients(self) -> tuple[int, int]:
        """Gradients of the objective and vector-Jacobian products of the constraints per call.

        A product with a Hessian, or with J'J, counts as two.
        """
        steps = self.dual_steps * self.primal_steps + 1
        if not self.estimates:
            return steps, steps + 1
        return steps + 4 * spectrum.POWER_STEPS, steps + 1 + 4 * spectrum.POWER_STEPS

    def step_limits(self, norms: Norms) -> dict[str, tuple[Scalar, Scalar]]:
        """The steps that were set, and the longest that are stable at these norms."""
        free = dataclasses.replace(self, eta1=None, eta2=None, bend=None).filled(norms)
        return {
            name: (getattr(self, name), 2 * getattr(free, name))
            for name in ("eta1", "eta2")
            if getattr(self, name) is not None
        }

    @compiled_where_called
    def solve(
        self, problem: Problem, x: PyTree, y: PyTree, xi: PyTree = None, multipliers: Rows | None = None
    ) -> LowerSolution:
        """T dual steps from (y, multipliers); without multipliers from mu = 0."""
        x, y = jax.tree.map(jnp.asarray, (x, y))
        dtype = dtype_of(y)
        mu = jax.tree.map(jnp.zeros_like, problem.rows(x, y)) if multipliers is None else multipliers
        if self.unfinished:
            return self.filled(*norms_of(Place(problem, x, y, xi, mu))).solve(problem, x, y, xi, mu)

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
        return LowerSolution(
            y=end.y,
            multipliers=end.mu,
            faces=Faces(None, None),
            value=value,
            residual=residual,
            status=jnp.where(residual <= self.tol, SOLVED, INACCURATE).astype(jnp.int32),
            iterations=jnp.asarray(self.dual_steps * self.primal_steps, jnp.int32),
        )

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


class Place(NamedTuple):
    """A lower level, a point (x, y) with its multipliers mu, and the batch that stands for the expectation."""

    problem: Problem
    x: PyTree
    y: PyTree
    xi: PyTree
    mu: Rows


def with_steps(solvers: Sequence[AbstractLowerSolver], places: Sequence[Place]) -> list[AbstractLowerSolver]:
    """The solvers with every unset step of a MaxMin from the norms at its place, all found together."""
    asking = [i for i, solver in enumerate(solvers) if isinstance(solver, MaxMin) and solver.unfinished]
    norms = dict(zip(asking, norms_of(*(places[i] for i in asking)), strict=True)) if asking else {}
    return [
        solver.filled(norms[i]) if isinstance(solver, MaxMin) and i in norms else solver
        for i, solver in enumerate(solvers)
    ]


def norms_of(*places: Place) -> list[Norms]:
    """The norms of lower levels, each at its own place, by Lanczos and power iteration: one loop each for all of them.

    Without multipliers the constraints' curvature is that of their plain sum, which bounds it for every mu: for convex
    H_i the Hessian of <mu, H> is at most the largest mu_i times that of sum_i H_i.
    """
    curved, steep = {}, {}
    for name, (problem, x, y, xi, mu) in enumerate(places):
        curved[f"{name}"] = (spectrum.hessian_product(functools.partial(_objective, problem, x, xi), y), y)
        rows = functools.partial(problem.rows, x)
        product = spectrum.jacobian_square(rows, y)
        if product is not None:
            most = largest(jax.tree.map(jnp.abs, mu), dtype_of(y))
            weights = jax.tree.map(lambda a, most=most: jnp.where(most > 0, a / or_one(most), 1.0), mu)
            steep[f"jacobian {name}"] = (product, y)
            steep[f"bend {name}"] = (spectrum.hessian_product(functools.partial(_weighted, weights, rows), y), y)
    ends, found = spectrum.all_extreme_eigenvalues(curved), spectrum.power_iterations(steep)

    def one(name: int) -> Norms:
        bottom, top = ends[f"{name}"]
        zero = jnp.zeros_like(top)
        square, bend = (found.get(f"{kind} {name}", (zero, None))[0] for kind in ("jacobian", "bend"))
        return Norms(jnp.abs(top), bottom, jnp.sqrt(square), bend)

    return [one(name) for name in range(len(places))]


def _objective(problem: Problem, x: PyTree, xi: PyTree, y: PyTree) -> Scalar:
    return problem.lower(x, y, xi)


def _weighted(weights: Rows, rows: Callable[[PyTree], Rows], y: PyTree) -> Scalar:
    return trees.vdot(weights, rows(y))
