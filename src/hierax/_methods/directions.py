r"""From gradients of Psi to a direction: as they are (SALVF), or variance-reduced (SALVF-VR).

    d_k = grad Psi^k(u_k) + (1 - beta_k)(d_{k-1} - grad Psi^k(u_{k-1}))                                  eq. 17

Both gradients use the same batch and the same (w_k, lam_k); the old one uses the old nu, or the sum would not
telescope. (w, lam) being frozen, the correction misses how they move with x, and the recursion is unstable once
beta_k < 2.5 c1 alpha_k or so, without any noise. The printed beta_{k+1} = beta alpha_k^2 falls faster than alpha_k and
always gets there; the default beta_{k+1} = min(1, kappa c1 alpha_k) does not.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from hierax._base.trees import Number
from hierax._math.psi import Point, PsiGradient


class Plain(eqx.Module):
    """The stochastic gradient itself.

        d_k = grad Psi(u_k),    u = (x, y, z)

    Examples:
        >>> import hierax as hx
        >>> hx.SALVF(direction=hx.Plain()).direction.gradients_per_step
        1

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, Algorithm 2.
        docs/methods/salvf.md
    """

    gradients_per_step = 1

    def init(self, point: Point) -> None:
        """No memory."""

    def direction(
        self, gradient: Callable[[Point], PyTree], point: Point, memory: None, alpha: Array, c1: Scalar
    ) -> tuple[PyTree, None]:
        """`gradient(point)`."""
        return gradient(point), None


class StormMemory(NamedTuple):
    """What the correction needs of the step before: u and nu, the direction's corrected blocks, and beta_k."""

    point: Point
    direction: tuple[PyTree, ...]
    beta: Array


class Storm(eqx.Module):
    """Variance reduction by momentum on gradient differences (the paper's SALVF-VR).

        d_k = grad Psi(u_k) + (1 - beta_k) (d_{k-1} - grad Psi(u_{k-1})),    beta_0 = 1
        beta_{k+1} = min(1, kappa unit c1 alpha_k)

    with both gradients on the batch of step k and at its inner solution (w_k, lam_k).

    Args:
        kappa: beta_{k+1} = min(1, kappa c1 alpha_k unit).
        schedule: None for the stable rule above; "paper" for beta_{k+1} = beta alpha_k^2, which warns.
        beta: with "paper", its coefficient (None: 1/alpha_0^2, alpha_0 before any cap, so that beta_k = k^(-2/3));
            otherwise a constant beta_k, needed where an optax transformation hides alpha_k.
        unit: curvature of the lower level in x, relative to the toy on which kappa = 10 was measured; it makes the
            rule independent of the units of G. None: estimated.
        z: correct the z part of the direction as well, as the paper's u = (x, y, z) has it. By default z moves by its
            own gradient, which needs no batch and so has no noise but that of lam.

    Examples:
        >>> import hierax as hx
        >>> hx.SALVF(direction=hx.Storm(kappa=5.0)).direction.kappa
        5.0

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, eq. 17.
        Cutkosky, Orabona: Momentum-based variance reduction in non-convex SGD, NeurIPS 2019.
        docs/methods/salvf.md, docs/methods/corrections.md (item 10: why beta_k is not the printed one)
    """

    kappa: Number = 10.0
    schedule: Literal["paper"] | None = eqx.field(static=True, default=None)
    beta: Number = None
    unit: Number = None
    z: bool = eqx.field(static=True, default=False)

    gradients_per_step = 2

    def init(self, point: Point) -> StormMemory:
        """Before the first step beta = 1, so that d_0 is the plain gradient."""
        zeros = jax.tree.map(jnp.zeros_like, self._blocks(point))
        return StormMemory(point, zeros, jnp.ones((), jax.tree.leaves(point.y)[0].dtype))

    def _blocks(self, of: Point | PsiGradient) -> tuple[PyTree, ...]:
        """The blocks of u that are corrected."""
        return (of.x, of.y, of.z) if self.z else (of.x, of.y)

    def next_beta(self, alpha: Array, c1: Scalar) -> Array:
        """beta_{k+1} from alpha_k."""
        if self.schedule == "paper":
            return jnp.clip(self.beta * alpha**2, 0.0, 1.0)
        if self.beta is not None:
            return jnp.asarray(self.beta)
        return jnp.minimum(1.0, self.kappa * self.unit * c1 * alpha)

    def direction(
        self, gradient: Callable[[Point], PyTree], point: Point, memory: StormMemory, alpha: Array, c1: Scalar
    ) -> tuple[PyTree, StormMemory]:
        """Replace the x and y parts of the gradient by their corrected versions; z keeps its own unless asked for."""
        new, old = gradient(point), gradient(memory.point)
        keep = 1.0 - memory.beta
        corrected = jax.tree.map(
            lambda fresh, previous, stale: fresh + keep * (previous - stale),
            self._blocks(new),
            memory.direction,
            self._blocks(old),
        )
        beta = self.next_beta(alpha, c1).astype(memory.beta.dtype)
        return new._replace(**dict(zip("xyz", corrected, strict=False))), StormMemory(point, corrected, beta)
