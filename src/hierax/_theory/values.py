"""Psi, the envelope E and the dual function D at a point, exact and sampled, and how far SALVF's estimates are from them.

The formulas are those of the methods (`hierax._math.psi`), in double precision and on all of the data. Where a row is
divided by a scale inside of a method, z, lam and what is differentiated by them are in the user's units here.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.constants import FINE, FRESH_SAMPLES
from hierax._base.errors import InputError
from hierax._base.settings import COUNT_GIVEN, check_setting
from hierax._base.trees import INFINITE, dtype_of, or_one
from hierax._compile.configuration import as_answer, doubled_on_host
from hierax._engine.float64_problem import Data, Float64Problem
from hierax._judge.psi import Penalty, saddle_point
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math import psi as formulas
from hierax._math.lower_level import SOLVED
from hierax._math.psi import Inner, Point, PsiGradient, Weights
from hierax._methods.common import rows_like
from hierax._methods.salvf import SALVF, first_state, inner_solution, top_of_z
from hierax._methods.salvf_settings import is_zero
from hierax._problem import samples as sampling
from hierax._problem.problem import Multipliers, Problem, Rows, scaled, with_y_in
from hierax._problem.samples import FiniteFiles, Tickets
from hierax._run.call import Call
from hierax._run.prepare import prepare
from hierax._run.stepping import started

Kind = Literal["value", "envelope", "dual", "given"]


class EnvelopeAt(NamedTuple):
    """E, ell or D at (x, z), and its gradient.

        E(x, z) = ell(x, z, w, lam) = L(x, w, lam) - gamma2/2 ||lam - z||^2     at the saddle point (w, lam)

    Attributes:
        value: E(x, z); with an inner point of your own ell(x, z, w, lam).
        x: its gradient in x.
        z: its gradient in z.
        w: the inner minimiser.
        lam: the inner multiplier.
        solved: whether the solver arrived (with an inner point of your own True).

    Examples:
        >>> import hierax as hx
        >>> from hierax.problems import toy
        >>> method = hx.SALVF(gamma1=1.0, gamma2=1.0)
        >>> hx.envelope(toy(0.0).problem, 1.0, 1.0, 2.0, method).solved
        True

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, eqs. 2.2 and 2.5.
    """

    value: float
    x: PyTree
    z: Multipliers
    w: PyTree
    lam: Multipliers
    solved: bool


class PsiAt(NamedTuple):
    """Psi at (x, y, z), its gradient, and what the paper measures of a point.

        dist(0, grad Psi(u) + N_U(u)) = lim ||u - Proj_U(u - t grad Psi(u))||/t  for t -> 0

    Attributes:
        value: Psi(x, y, z).
        x: its gradient in x.
        y: in y.
        z: in z.
        envelope: E at (x, z).
        gap: G(x, y) - E(x, z), the paper's eps_1 at least.
        infeasibility: 1/2 sum [H_i]_+^2 (equalities: e_i^2), the square of the paper's eps_2 at least.
        stationarity: dist(0, grad Psi + N_U), or the norm of the gradient mapping with the `step` that was asked for.

    Examples:
        >>> import hierax as hx
        >>> from hierax.problems import toy
        >>> method = hx.SALVF(c1=5.0, c2=100.0, gamma1=1.0, gamma2=1.0)
        >>> found = hx.psi(toy(0.0).problem, 1.0, 1.0, 2.0, method)
        >>> round(found.gap, 6), found.infeasibility
        (0.0, 0.0)

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, eqs. 2.7, 2.9 and 2.10, Corollary 3.1.
    """

    value: float
    x: PyTree
    y: PyTree
    z: Multipliers
    envelope: EnvelopeAt
    gap: float
    infeasibility: float
    stationarity: float


class GradientErrors(NamedTuple):
    """How far SALVF's estimate d of grad Psi(u) is from it at a point, with standard errors (`_se`).

        b = d - grad Psi(u),     mean_square = E||b||^2 = bias^2 + variance

    Attributes:
        delta: |E ell(x, z, w, lam) - E(x, z)|, the error of the inner solver that the set P(delta) bounds.
        delta_se: of the mean behind it.
        w_error: E||w - w*||^2.
        w_error_se: its standard error.
        lam_error: E||lam - lam*||^2.
        lam_error_se: its standard error.
        bias: ||E d - grad Psi(u)||; what is below `bias_se` cannot be told from none.
        bias_se: length of the standard error of the mean of d.
        variance: E||d - E d||^2.
        variance_se: its standard error.
        mean_square: E||b||^2.
        mean_square_se: its standard error.
        draws: how many estimates were made.
        exact: Psi at the point.

    Examples:
        >>> import hierax as hx
        >>> from hierax.problems import toy
        >>> method = hx.SALVF(c1=5.0, c2=100.0, gamma1=1.0, gamma2=1.0)
        >>> found = hx.gradient_errors(toy(0.1).problem, 1.0, 1.0, 2.0, method, draws=64)
        >>> bool(found.bias**2 <= found.mean_square)
        True

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, eq. 2.6, Theorem 3.3, Lemma 3.1.
    """

    delta: float
    delta_se: float
    w_error: float
    w_error_se: float
    lam_error: float
    lam_error_se: float
    bias: float
    bias_se: float
    variance: float
    variance_se: float
    mean_square: float
    mean_square_se: float
    draws: int
    exact: PsiAt


def psi(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    z: PyTree,
    method: SALVF,
    *,
    nu: PyTree = 0.0,
    inner: tuple[PyTree, PyTree] | None = None,
    zeta: PyTree = None,
    xi: PyTree = None,
    step: float | None = None,
    samples: int = FRESH_SAMPLES,
    seed: int = 0,
) -> PsiAt:
    """The penalty function Psi at a point, and its gradient, in double precision.

        Psi(x, y, z) = F(x, y) + c1 (G(x, y) - E(x, z)) + 1/(2 c2) sum_i ([nu_i + c2 H_i(x, y)]_+^2 - nu_i^2)

    with the paper's c2/2 sum [H_i]_+^2 at nu = 0. Given `inner`, E is replaced by ell(x, z, w, lam); given `zeta` and
    `xi`, the gradient is the stochastic one of eq. 2.10, on these batches.

    Args:
        problem: the problem.
        x: the upper variable.
        y: the lower variable, where the inner solver begins.
        z: the centre of the envelope, shaped like the constraints, or `hx.Multipliers` where there are equalities.
        method: the SALVF whose Psi it is: its c1, c2, gamma1, gamma2, scales and bound, for example `sol.method`. What
            it leaves unset is estimated as in a run from (x, y).
        nu: multipliers of the outer term, like z; an `upper` part belongs to the upper constraints.
        inner: (w, lam) of your own, lam like z; None: the saddle point, by `hx.Exact`.
        zeta: a batch that stands for the upper expectation; None: all of the data, or `samples` fresh ones.
        xi: likewise for the lower one.
        step: of the gradient mapping in `stationarity`; None: so short that it is dist(0, grad Psi + N_U). What is
            nearer to a face than 1e-6 of the point's size counts as on it.
        samples: of a `Sampler` without `exact`.
        seed: of these.

    Examples:
        >>> import hierax as hx
        >>> from hierax.problems import toy
        >>> method = hx.SALVF(c1=5.0, c2=100.0, gamma1=1.0, gamma2=1.0)
        >>> problem = toy(0.0).problem
        >>> found = hx.psi(problem, 1.0, 1.0, 2.0, method)  # y = y*(1), z = lam*(1): Psi = F
        >>> round(found.value, 4), round(float(problem.upper(1.0, 1.0, None)), 4)
        (1.7252, 1.7252)

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, eqs. 2.9, 2.10 and 3.2.
        docs/methods/elements.md
    """
    made = _Made.of(problem, x, y, z, method, nu, samples, seed, ("c1", "c2", "gamma1", "gamma2"))
    return made.at(inner, zeta, xi, step)


def envelope(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    z: PyTree,
    method: SALVF,
    *,
    inner: tuple[PyTree, PyTree] | None = None,
    xi: PyTree = None,
    samples: int = FRESH_SAMPLES,
    seed: int = 0,
) -> EnvelopeAt:
    """The envelope E at (x, z), the saddle point there, and its gradient, in double precision.

        E(x, z) = max over lam >= 0 of  D(x, lam) - gamma2/2 ||lam - z||^2,     E <= v(x), equal at a multiplier

    With gamma2 = 0 it is v(x). Given `inner`, it is ell(x, z, w, lam), the sampled value that stands for it.

    Args:
        problem: the problem.
        x: the upper variable.
        y: where the inner solver begins.
        z: the centre.
        method: a SALVF with gamma1 and gamma2.
        inner, xi, samples, seed: as for `psi`.

    Examples:
        >>> import hierax as hx
        >>> from hierax.problems import toy
        >>> method = hx.SALVF(gamma1=1.0, gamma2=1.0)
        >>> [round(hx.envelope(toy(0.0).problem, 1.0, 1.0, z, method).value, 4) for z in (0.0, 1.0, 2.0, 7.0)]
        [0.5, 0.875, 1.0, -2.0]

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, eqs. 2.2 and 2.5, Lemma A.7, Lemma C.1.
        docs/methods/corrections.md (items 1, 2 and 13)
    """
    return _Made.of(problem, x, y, z, method, 0.0, samples, seed, ("gamma1", "gamma2")).at(inner, None, xi, None).envelope


def dual(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    z: PyTree,
    method: SALVF,
    *,
    xi: PyTree = None,
    samples: int = FRESH_SAMPLES,
    seed: int = 0,
) -> EnvelopeAt:
    """The augmented dual function D at (x, z), and its gradient, in double precision; `lam` is z.

        D(x, z) = min over y in Y of  L(x, y, z),     d_z D = max(-gamma1 z, H(x, w))

    Args:
        problem: the problem.
        x: the upper variable.
        y: where the inner solver begins.
        z: the multiplier.
        method: a SALVF with gamma1.
        xi, samples, seed: as for `psi`.

    Examples:
        >>> import hierax as hx
        >>> from hierax.problems import toy
        >>> method = hx.SALVF(gamma1=1.0)
        >>> round(hx.dual(toy(0.0).problem, 1.0, 1.0, 2.0, method).value, 6)  # at a multiplier: v(1)
        1.0

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, eq. 2.2.
        docs/methods/elements.md
    """
    made = _Made.of(problem, x, y, z, method, 0.0, samples, seed, ("gamma1",))
    return made._replace(kind="dual").at(None, None, xi, None).envelope


def gradient_errors(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    z: PyTree,
    method: SALVF,
    *,
    draws: int = 256,
    samples: int = FRESH_SAMPLES,
    seed: int = 0,
) -> GradientErrors:
    """How far SALVF's inner solver and its estimate of grad Psi are from exact at a point, over many draws.

        d = grad Psi(u; zeta, xi~) with (w, lam) of the inner loop,     b = d - grad Psi(u)

    Every draw runs the inner loop at (x, z) from (y, z) (rule="paper": from lam = 0) and takes batches of the method's
    sizes. It is compared with the saddle point and the gradient on all of the data, with nu = 0.

    Args:
        problem: with zeta and xi as `Finite` or `Sampler`.
        x, y, z: the point, as for `psi`.
        method: with its inner solver and batch sizes.
        draws: how many.
        samples, seed: as for `psi`; the draws are those of the first steps of a run with this seed.

    Examples:
        >>> import hierax as hx
        >>> from hierax.problems import toy
        >>> sizes = [hx.SALVF(c1=5.0, c2=100.0, gamma1=1.0, gamma2=1.0, batch_zeta=r, batch_xi=r) for r in (1, 100)]
        >>> one, many = (hx.gradient_errors(toy(0.1).problem, 1.0, 1.0, 2.0, method) for method in sizes)
        >>> bool(many.variance < 0.1 * one.variance)
        True

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, eq. 2.6, Theorem 3.3, Lemmas 3.1, C.2 and C.3.
        docs/methods/corrections.md (items 28 to 30)
    """
    check_setting("gradient_errors", "draws", draws, COUNT_GIVEN)
    made = _Made.of(problem, x, y, z, method, 0.0, samples, seed, None)
    exact, method = made.at(None, None, None, None), doubled_on_host(made.method)
    saddle = Inner(exact.envelope.w, Rows(*exact.envelope.lam[:2]))

    def program(problem: Problem, data: Data, method: SALVF, x: PyTree, y: PyTree, key: Int[Array, ""]) -> PyTree:
        scales = Rows(*method.scales[:2])
        own = scaled(with_y_in(problem, method.units), method.scales)
        z, lam = (jax.tree.map(jnp.multiply, one, scales) for one in (made.penalty.z, saddle.lam))
        inside, w_star = (jax.tree.map(jnp.divide, one, method.units) for one in (y, saddle.w))
        state = first_state(method, own, x, inside, z, jax.random.key(key))
        point, weights = state.point._replace(z=z, nu=jax.tree.map(jnp.zeros_like, state.point.nu)), method.weights
        state = state._replace(point=point)
        control = method.longest_inner_step if method.control_variate else None

        def one(tickets: Tickets) -> tuple[Array, Scalar, Scalar, Scalar]:
            found = inner_solution(method, own, state, tickets.inner, jnp.ones_like(weights.c1))[0]
            zeta, xi = sampling.fetch(problem.zeta, tickets.zeta), sampling.fetch(problem.xi, tickets.xi)
            inner = Inner(found.w, found.lam)
            d = formulas.psi_gradient(own, point, inner, weights, zeta, xi, control)
            ell = formulas.saddle_value(own, x, z, *inner, weights.gamma1, weights.gamma2, data.xi)
            off_w = trees.norm_squared(jax.tree.map(lambda a, b, u: u * (a - b), inner.w, w_star, method.units))
            off_lam = trees.norm_squared(jax.tree.map(lambda a, b, s: (a - b) / s, inner.lam, lam, scales))
            return _flat(d.x, jax.tree.map(jnp.divide, d.y, method.units), d.z, scales), ell, off_w, off_lam

        batches = method.batches(problem)
        block = batches.block(problem)

        def of_block(first: Array) -> PyTree:
            return jax.lax.map(one, batches.draws(problem, SimpleNamespace(key=state.key, step=first)))

        return sampling.joined(jax.lax.map(of_block, block * jnp.arange(-(-draws // block))))

    found = made.setting.run("gradient errors", program, method, made.setting.x, made.setting.y, seed, static=draws)
    gradients, ell, off_w, off_lam = (part[:draws] for part in found)
    target = np.asarray(_flat(exact.x, exact.y, Rows(*exact.z[:2]), None))
    mean = gradients.mean(axis=0)
    away, errors = (np.sum((gradients - middle) ** 2, axis=1) for middle in (mean, target))
    spread = away * draws / max(1, draws - 1)
    value, w, lam, variance, square = (_mean(part) for part in (ell - exact.envelope.value, off_w, off_lam, spread, errors))
    bias = float(np.linalg.norm(mean - target)), float(np.sqrt(variance[0] / draws))
    return GradientErrors(abs(value[0]), value[1], *w, *lam, *bias, *variance, *square, draws, exact)


class _Made(NamedTuple):
    """A problem and a point in double precision, and what Psi is made of there."""

    setting: Float64Problem
    method: SALVF
    penalty: Penalty  # in the user's units
    kind: Kind

    @staticmethod
    def of(
        problem: Problem,
        x: PyTree,
        y: PyTree,
        z: PyTree,
        method: SALVF,
        nu: PyTree,
        samples: int,
        seed: int,
        needed: tuple[str, ...] | None,
    ) -> _Made:
        """`needed`: the numbers that the method must have; where one is unset (None: always) it is filled in."""
        if not isinstance(method, SALVF):
            raise InputError(f"method: needs a hx.SALVF, whose Psi it is; got {type(method).__name__}.")
        refuse_files(problem, "this")
        setting = Float64Problem.of(problem, x, y, samples, seed)
        unset = needed is None or any(getattr(method, name) is None for name in needed if not _is_value(method, name))
        if unset or (method.scales is None and not method.has_units()):
            filled = started(prepare(problem, x, y), method, Call(seed=seed)).method
            assert isinstance(filled, SALVF)
            method = filled
        shapes = setting.shapes()
        scales = method.scales or jax.tree.map(lambda row: np.ones(row.shape), shapes)
        rows, upper = Rows(*shapes[:2]), nu.upper if isinstance(nu, Multipliers) else None
        centre, pushed = (rows_like(rows, one, name) for one, name in ((z, "z"), (nu, "nu")))
        upper = jax.tree.map(lambda row: np.zeros(row.shape), shapes.upper) if upper is None else upper
        exact = _is_value(method, "gamma2")
        numbers = (0.0 if exact and name == "gamma2" else getattr(method, name) for name in Weights._fields)
        weights = Weights(*(1.0 if number is None else number for number in numbers))
        made = Penalty(weights, scales, None, centre, Multipliers(*pushed, upper), top_of_z(method._replace_scales(scales)))
        return _Made(setting, method, doubled_on_host(made), "value" if exact else "envelope")
