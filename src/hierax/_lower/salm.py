r"""SALM, the paper's Algorithm 1: stochastic gradient descent ascent on ell(x, z, ., .).

    w   <- Proj_Y(w - eta_j d_w ell(x, z, w, lam; xi_j))                        eq. 2.8
    lam <- [lam + rho_j d_lam ell(x, z, w, lam)]_+

The printed steps eta_j = eta/(j+1), rho_j = rho/(j+1) need eta >= 1/mu_G, which can exceed 2/L: the first steps then
throw w to the boundary of Y and, without compactness, away. The default caps both and shifts j by j0 where the loop is
warm (measured: docs/methods/salvf.md); `rule="paper"` is Algorithm 1 to the letter.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from hierax._base import settings, trees
from hierax._base.settings import POSITIVE, Rule, Staircase, check_settings, size_at
from hierax._base.trees import Number, all_finite, move, select
from hierax._math.psi import best_multiplier, gradient_mapping, joint_gamma, nonnegative, saddle_gradient
from hierax._problem import samples, sets
from hierax._problem.problem import Problem, Rows

START_ROUNDS = 20  # the first lower solve: rounds of an ordinary inner loop, z <- lam after each
LOOKED_AT = tuple(itertools.product((0.0, 1.0, 1000.0), repeat=2))  # (k, j) at which a step rule is tried out
MAX_RESIDUAL_GROWTH = 4.0  # residual, relative to the first one, at which a round of the first lower solve is undone


INNER_STEP = Rule(
    lambda value: callable(value) or POSITIVE.fits(value),
    "needs a positive, finite number, a function (k, j) -> step, or None to have it estimated",
)


class InnerSolution(NamedTuple):
    """(w, lam) after the last inner step, and that step's gradient mapping of w: zero in the mean at the solution."""

    w: PyTree
    lam: Rows
    residual: PyTree


class SALM(eqx.Module):
    r"""The paper's inner solver: stochastic gradient descent ascent. Whatever is None is estimated from the problem.

        ell(w, lam) = L(x, w, lam) - gamma2/2 ||lam - z||^2,     L the augmented Lagrangian of `SALVF`
        w   <- Proj_Y(w - eta_j (grad_y g(x, w; xi_j) + J_y H(x, w)' mu)),     mu = [gamma1 lam + H(x, w)]_+/gamma1
        lam <- [lam + rho_j (max(-gamma1 lam, H(x, w)) - gamma2 (lam - z))]_+

    for j = 0..s-1, towards the saddle point min over w in Y, max over lam >= 0.

    Args:
        steps: inner steps s_k per call: a number, or a `Staircase` over the outer steps k.
        batch: samples of xi per inner step, likewise; None: the method's `batch_xi`.
        eta: primal step numerator, eta_j = eta/(j+1+j0); None: 1/mu_G. Or a function (k, j) -> eta_j of outer step k
            and inner step j, both from 0: a free sequence of Algorithm 1 (j) and of Algorithms 2 and 3 (k).
        rho: dual step numerator, rho_j = rho/(j+1+j0); None: 1/gamma2. Or a function, as for eta.
        warm: start from the previous (w, lam), with j0 = 10; else from (y, closed-form lam) with j0 = 0.
        dual_free: keep no dual variable: minimise G + A_{g'} over w and read lam off in closed form. Better than the
            dual steps for short loops (about 20 times at s = 10), worse beyond s = 50 or so.
        rule: "capped" bounds the steps, those of a function too, by 1/L_w and L_w/||J||^2; "paper" is Algorithm 1 as
            printed: no caps, every call starts at lam = 0.
        eta_max: the cap 1/L_w; None: estimated.
        rho_max: the cap L_w/||J||^2; None: estimated.

    Examples:
        >>> import hierax as hx
        >>> hx.SALVF(inner=hx.SALM(steps=20)).inner.steps
        20

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, eq. 2.8, Algorithm 1.
        docs/methods/salvf.md, docs/methods/lower-solvers.md
    """

    steps: int | Staircase = eqx.field(static=True, default=10)
    batch: int | Staircase | None = eqx.field(static=True, default=None)
    eta: Number = None
    rho: Number = None
    warm: bool = eqx.field(static=True, default=True)
    dual_free: bool = eqx.field(static=True, default=False)
    rule: Literal["capped", "paper"] = eqx.field(static=True, default="capped")
    eta_max: Number = None
    rho_max: Number = None

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        rules = dict.fromkeys(("eta", "rho"), INNER_STEP) | dict.fromkeys(("eta_max", "rho_max"), POSITIVE)
        sizes = {"batch": settings.SIZE, "steps": settings.SIZE_GIVEN}
        check_settings(self, rules | sizes | {"rule": settings.one_of("capped", "paper")})
        for name in ("eta", "rho"):
            rule = getattr(self, name)
            if callable(rule):
                settings.check_schedule(f"SALM({name})", rule, LOOKED_AT, where="(k, j) =")

    @property
    def offset(self) -> float:
        """j0 of the step rules."""
        return 10.0 if self.warm and self.rule == "capped" else 0.0

    def at(self, step: int) -> "SALM":
        """With the sizes of an outer step."""
        if not any(isinstance(size, Staircase) for size in (self.steps, self.batch)):
            return self
        steps = size_at(self.steps, step) or self.steps
        return dataclasses.replace(self, steps=steps, batch=size_at(self.batch, step))

    @property
    def count(self) -> int:
        """Inner steps per call, once a staircase has been looked at (`at`)."""
        assert not isinstance(self.steps, Staircase)
        return self.steps

    def solve(
        self,
        problem: Problem,
        x: PyTree,
        z: Rows,
        w: PyTree,
        lam: Rows,
        plan: PyTree,
        gamma1: Scalar | float,
        gamma2: Scalar,
        k: Array | int = 0,
    ) -> InnerSolution:
        """Run s steps at (x, z) from (w, lam) on the s planned batches, in outer step k; needs every number set."""

        def body(carry: InnerSolution, at: tuple[Array, PyTree]) -> tuple[InnerSolution, None]:
            j, planned = at
            xi = samples.fetch(problem.xi, planned)
            return self.step(problem, x, z, carry.w, carry.lam, j, xi, gamma1, gamma2, k), None

        numbers = jnp.arange(self.count, dtype=jax.tree.leaves(w)[0].dtype)
        start = InnerSolution(w, self.first_lam(problem, x, z, w, lam, gamma1, gamma2), jax.tree.map(jnp.zeros_like, w))
        found, _ = jax.lax.scan(body, start, (numbers, plan), length=self.count)
        if self.dual_free:
            found = found._replace(lam=best_multiplier(problem.rows(x, found.w), z, gamma1, gamma2))
        return found

    def solve_in_rounds(
        self, problem: Problem, x: PyTree, y: PyTree, plan: PyTree, gamma1: Scalar | float, gamma2: Scalar
    ) -> tuple[PyTree, Rows]:
        """A bounded first solve at x from y: rounds of the inner loop, each followed by z <- lam.

        The steps come from norms at the start, and constraints may be far steeper on the way: a round that ends with a
        residual several times the first one is undone, and the steps are quartered. `plan` holds
        START_ROUNDS * steps planned batches.
        """
        rounds = dataclasses.replace(self, warm=True, rule="capped")._with_numbers()
        plans = samples.folded(plan, START_ROUNDS, self.count)
        zero = jax.tree.map(jnp.zeros_like, problem.rows(x, y))
        xi = samples.fetch(problem.xi, jax.tree.map(lambda a: a[0, 0], plans))
        gradient = saddle_gradient(problem, x, zero, y, zero, gamma1, gamma2, xi)
        most = MAX_RESIDUAL_GROWTH * trees.norm(gradient_mapping(problem.y_set, y, gradient.w, rounds.eta_max))

        def body(carry: tuple[PyTree, Rows, Scalar], plan: PyTree) -> tuple[tuple[PyTree, Rows, Scalar], None]:
            w, z, share = carry
            shorter = dataclasses.replace(rounds, eta_max=share * rounds.eta_max, rho_max=share * rounds.rho_max)
            found = shorter.solve(problem, x, z, w, z, plan, gamma1, gamma2)
            sound = all_finite(found) & (trees.norm(found.residual) <= most)
            w, z = select(sound, (found.w, found.lam), (w, z))
            return (w, z, jnp.where(sound, share, 0.25 * share)), None

        (w, lam, _), _ = jax.lax.scan(body, (y, zero, jnp.ones_like(gamma2)), plans, length=START_ROUNDS)
        return w, lam

    def _with_numbers(self) -> "SALM":
        """A step rule that is a function knows no outer step before the first: the caps, decaying, stand for it."""
        first = 1 + self.offset
        eta = first * self.eta_max if callable(self.eta) else self.eta
        rho = first * self.rho_max if callable(self.rho) else self.rho
        return dataclasses.replace(self, eta=eta, rho=rho)

    def first_lam(
        self, problem: Problem, x: PyTree, z: Rows, w: PyTree, lam: Rows, gamma1: Scalar | float, gamma2: Scalar
    ) -> Rows:
        """The lam a loop starts from: zero (the paper), the closed form (cold), or the given one (warm)."""
        if self.rule == "paper":
            return jax.tree.map(jnp.zeros_like, lam)
        return lam if self.warm else best_multiplier(problem.rows(x, w), z, gamma1, gamma2)

    def rates(self, k: Array | int, j: Array) -> tuple[Array, Array]:
        """eta_j and rho_j in outer step k."""

        def one(rule: Number | Callable[[Array, Array], Array]) -> Array:
            if callable(rule):
                return jnp.asarray(rule(jnp.asarray(k, j.dtype), j), j.dtype)
            return rule / (j + 1 + self.offset)

        eta, rho = one(self.eta), one(self.rho)
        if self.rule == "capped":
            eta, rho = jnp.minimum(eta, self.eta_max), jnp.minimum(rho, self.rho_max)
        return eta, rho

    def step(
        self,
        problem: Problem,
        x: PyTree,
        z: Rows,
        w: PyTree,
        lam: Rows,
        j: Array,
        xi: PyTree,
        gamma1: Scalar | float,
        gamma2: Scalar,
        k: Array | int = 0,
    ) -> InnerSolution:
        """Inner step number j of outer step k (from 0) on the batch xi. A dual-free loop hands lam on as it is."""
        eta, rho = self.rates(k, j)
        if self.dual_free:
            joint = joint_gamma(gamma1, gamma2)
            gradient = saddle_gradient(problem, x, z, w, z, joint, joint, xi)
        else:
            gradient = saddle_gradient(problem, x, z, w, lam, gamma1, gamma2, xi)
            lam = nonnegative(move(lam, -rho, gradient.lam))
        landed = sets.project(problem.y_set, move(w, eta, gradient.w))
        return InnerSolution(landed, lam, jax.tree.map(lambda a, b: (a - b) / eta, w, landed))
