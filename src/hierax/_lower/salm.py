r"""SALM, the paper's Algorithm 1: stochastic gradient descent ascent on ell(x, z, ., .).

    w   <- Proj_Y(w - eta_j d_w ell(x, z, w, lam; xi_j))                        eq. 10
    lam <- [lam + rho_j d_lam ell(x, z, w, lam)]_+

The printed steps eta_j = eta/(j+1), rho_j = rho/(j+1) need eta >= 1/mu_G, which can exceed 2/L: the first steps then
throw w to the boundary of Y and, without compactness, away. The default caps both and shifts j by j0 where the loop is
warm (measured: docs/method.md); `rule="paper"` is Algorithm 1 to the letter.
"""

import dataclasses
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree, Scalar

from hierax._base.settings import COUNT, COUNT_GIVEN, POSITIVE, check_settings, one_of
from hierax._base.trees import Number, all_finite, move, select
from hierax._math.envelope import best_multiplier, joint_gamma
from hierax._math.lagrangian import nonnegative, saddle_gradient
from hierax._math.psi import gradient_mapping
from hierax._problem import samples, sets
from hierax._problem.problem import Problem, Rows

START_ROUNDS = 20  # the first lower solve: rounds of an ordinary inner loop, z <- lam after each
TOO_MUCH = 4.0  # residual, relative to the first one, at which a round of the first lower solve is undone


class InnerSolution(NamedTuple):
    """(w, lam) after the last inner step, and that step's gradient mapping of w: zero in the mean at the solution."""

    w: PyTree
    lam: Rows
    residual: PyTree


class SALM(eqx.Module):
    r"""Settings of the inner solver; whatever is None is estimated from the problem.

    Args:
        steps: inner steps s per call.
        batch: samples of xi per inner step; None: the method's `batch_xi`.
        eta: primal step numerator, eta_j = eta/(j+1+j0); None: 1/mu_G.
        rho: dual step numerator, rho_j = rho/(j+1+j0); None: 1/gamma2.
        warm: start from the previous (w, lam), with j0 = 10; else from (y, closed-form lam) with j0 = 0.
        dual_free: keep no dual variable: minimise G + A_{g'} over w and read lam off in closed form. Better than the
            dual steps for short loops (about 20 times at s = 10), worse beyond s = 50 or so.
        rule: "capped" bounds the steps by 1/L_w and L_w/||J||^2; "paper" is Algorithm 1 as printed: no caps, every
            call starts at lam = 0.
        eta_max: the cap 1/L_w; None: estimated.
        rho_max: the cap L_w/||J||^2; None: estimated.
    """

    steps: int = eqx.field(static=True, default=10)
    batch: int | None = eqx.field(static=True, default=None)
    eta: Number = None
    rho: Number = None
    warm: bool = eqx.field(static=True, default=True)
    dual_free: bool = eqx.field(static=True, default=False)
    rule: Literal["capped", "paper"] = eqx.field(static=True, default="capped")
    eta_max: Number = None
    rho_max: Number = None

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        rules = dict.fromkeys(("eta", "rho", "eta_max", "rho_max"), POSITIVE)
        check_settings(self, rules | {"rule": one_of("capped", "paper"), "batch": COUNT, "steps": COUNT_GIVEN})

    @property
    def offset(self) -> float:
        """j0 of the step rules."""
        return 10.0 if self.warm and self.rule == "capped" else 0.0

    def solve(
        self,
        problem: Problem,
        x: PyTree,
        z: Rows,
        w: PyTree,
        lam: Rows,
        plan: PyTree,
        gamma1: Scalar,
        gamma2: Scalar,
    ) -> InnerSolution:
        """Run s steps at (x, z) from (w, lam) on the s planned batches; needs every number set."""

        def body(carry: InnerSolution, at: tuple[Array, PyTree]) -> tuple[InnerSolution, None]:
            j, planned = at
            xi = samples.fetch(problem.xi, planned)
            return self.step(problem, x, z, carry.w, carry.lam, j, xi, gamma1, gamma2), None

        numbers = jnp.arange(self.steps, dtype=jax.tree.leaves(w)[0].dtype)
        start = InnerSolution(w, self.first_lam(problem, x, z, w, lam, gamma1, gamma2), jax.tree.map(jnp.zeros_like, w))
        found, _ = jax.lax.scan(body, start, (numbers, plan), length=self.steps)
        if self.dual_free:
            found = found._replace(lam=best_multiplier(problem.rows(x, found.w), z, gamma1, gamma2))
        return found

    def solve_in_rounds(
        self, problem: Problem, x: PyTree, y: PyTree, plan: PyTree, gamma1: Scalar, gamma2: Scalar
    ) -> tuple[PyTree, Rows]:
        """A bounded first solve at x from y: rounds of the inner loop, each followed by z <- lam.

        The steps come from norms at the start, and constraints may be far steeper on the way: a round that ends with a
        residual several times the first one is undone, and the steps are quartered. `plan` holds
        START_ROUNDS * steps planned batches.
        """
        rounds = dataclasses.replace(self, warm=True, rule="capped")
        plans = samples.folded(plan, START_ROUNDS, self.steps)
        zero = jax.tree.map(jnp.zeros_like, problem.rows(x, y))
        xi = samples.fetch(problem.xi, jax.tree.map(lambda a: a[0, 0], plans))
        gradient = saddle_gradient(problem, x, zero, y, zero, gamma1, gamma2, xi)
        most = TOO_MUCH * optax.tree.norm(gradient_mapping(problem.y_set, y, gradient.w, rounds.eta_max))

        def body(carry: tuple[PyTree, Rows, Scalar], plan: PyTree) -> tuple[tuple[PyTree, Rows, Scalar], None]:
            w, z, share = carry
            shorter = dataclasses.replace(rounds, eta_max=share * rounds.eta_max, rho_max=share * rounds.rho_max)
            found = shorter.solve(problem, x, z, w, z, plan, gamma1, gamma2)
            sound = all_finite(found) & (optax.tree.norm(found.residual) <= most)
            w, z = select(sound, (found.w, found.lam), (w, z))
            return (w, z, jnp.where(sound, share, 0.25 * share)), None

        (w, lam, _), _ = jax.lax.scan(body, (y, zero, jnp.ones_like(gamma1)), plans, length=START_ROUNDS)
        return w, lam

    def first_lam(
        self, problem: Problem, x: PyTree, z: Rows, w: PyTree, lam: Rows, gamma1: Scalar, gamma2: Scalar
    ) -> Rows:
        """The lam a loop starts from: zero (the paper), the closed form (cold), or the given one (warm)."""
        if self.rule == "paper":
            return jax.tree.map(jnp.zeros_like, lam)
        return lam if self.warm else best_multiplier(problem.rows(x, w), z, gamma1, gamma2)

    def step(
        self,
        problem: Problem,
        x: PyTree,
        z: Rows,
        w: PyTree,
        lam: Rows,
        j: Array,
        xi: PyTree,
        gamma1: Scalar,
        gamma2: Scalar,
    ) -> InnerSolution:
        """Inner step number j (from 0) on the batch xi. A dual-free loop hands lam on as it is."""
        eta, rho = self.eta / (j + 1 + self.offset), self.rho / (j + 1 + self.offset)
        if self.rule == "capped":
            eta, rho = jnp.minimum(eta, self.eta_max), jnp.minimum(rho, self.rho_max)
        if self.dual_free:
            joint = joint_gamma(gamma1, gamma2)
            gradient = saddle_gradient(problem, x, z, w, z, joint, joint, xi)
        else:
            gradient = saddle_gradient(problem, x, z, w, lam, gamma1, gamma2, xi)
            lam = nonnegative(move(lam, -rho, gradient.lam))
        landed = sets.project(problem.y_set, move(w, eta, gradient.w))
        return InnerSolution(landed, lam, jax.tree.map(lambda a, b: (a - b) / eta, w, landed))
