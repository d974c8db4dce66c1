"""Psi, E and D at a point, exact and sampled, and how far SALVF's estimates of Psi and its gradient are from them.

The formulas are those of the methods (`hierax._math.psi`), in double precision and on all of the data. Where a row is
divided by a scale inside of a method, z, lam and what is differentiated by them are in the user's units here.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base import trees
from hierax._base.constants import FINE, FRESH_SAMPLES
from hierax._base.errors import InputError
from hierax._base.settings import COUNT_GIVEN, check_setting
from hierax._base.trees import or_one
from hierax._compile.configuration import as_answer, doubled_on_host, float64
from hierax._engine.float64_problem import Data, Float64Problem
from hierax._judge.psi import Kind, saddle_point
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math import psi as formulas
from hierax._math.lower_level import SOLVED
from hierax._math.psi import Inner, Point, Weights
from hierax._methods.common import rows_like
from hierax._methods.salvf import SALVF, first_state, inner_solution
from hierax._methods.salvf_settings import is_zero
from hierax._problem import samples as sampling
from hierax._problem.problem import Multipliers, Problem, Rows, scaled, with_y_in
from hierax._problem.samples import Tickets
from hierax._run.call import Call
from hierax._run.prepare import prepare
from hierax._run.stepping import started
from hierax._theory.estimates import refuse_files


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
        docs/methods/elements.md
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
        docs/methods/elements.md
    """

    value: float
    x: PyTree
    y: PyTree
    z: Multipliers
    envelope: EnvelopeAt
    gap: float
    infeasibility: float
    stationarity: float


class Measured(NamedTuple):
    """A number that was measured, and its standard error."""

    value: float
    se: float


class GradientErrors(NamedTuple):
    """How far SALVF's estimate d of grad Psi(u) is from it at a point; each number has a `value` and its error, `se`.

        b = d - grad Psi(u),     mean_square = E||b||^2 = bias^2 + variance

    Attributes:
        delta: |E ell(x, z, w, lam) - E(x, z)|, the error of the inner solver that the set P(delta) bounds.
        w_error: E||w - w*||^2.
        lam_error: E||lam - lam*||^2.
        bias: ||E d - grad Psi(u)||; its `se` is the length of that of the mean: below it no bias can be told from none.
        variance: E||d - E d||^2.
        mean_square: E||b||^2.
        exact: Psi at the point.

    Examples:
        >>> import hierax as hx
        >>> from hierax.problems import toy
        >>> method = hx.SALVF(c1=5.0, c2=100.0, gamma1=1.0, gamma2=1.0)
        >>> found = hx.gradient_errors(toy(0.1).problem, 1.0, 1.0, 2.0, method, draws=64)
        >>> found.bias.value**2 <= found.mean_square.value
        True

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, eq. 2.6, Theorem 3.3, Lemma 3.1.
        docs/methods/elements.md
    """

    delta: Measured
    w_error: Measured
    lam_error: Measured
    bias: Measured
    variance: Measured
    mean_square: Measured
    exact: PsiAt


def psi(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    z: PyTree,
    method: SALVF,
    *,
    nu: PyTree = None,
    inner: tuple[PyTree, PyTree] | None = None,
    zeta: PyTree = None,
    xi: PyTree = None,
    step: float | None = None,
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
        nu: multipliers of the outer term, like z; an `upper` part belongs to the upper constraints. None: 0, as in the
            paper.
        inner: (w, lam) of your own, lam like z; None: the saddle point, by `hx.Exact`.
        zeta: a batch that stands for the upper expectation; None: all of the data, or 4,096 fresh samples.
        xi: likewise for the lower one.
        step: of the gradient mapping in `stationarity`; None: so short that it is dist(0, grad Psi + N_U). What is
            nearer to a face than 1e-6 of the point's size counts as on it.
        seed: of fresh samples.

    Examples:
        >>> import hierax as hx
        >>> from hierax.problems import toy
        >>> method = hx.SALVF(c1=5.0, c2=100.0, gamma1=1.0, gamma2=1.0)
        >>> problem = toy(0.0).problem
        >>> found = hx.psi(problem, 1.0, 1.0, 2.0, method)  # y = y*(1) and z = lam*(1), so that Psi = F
        >>> round(found.value, 6), round(hx.psi(problem, 1.0, 1.0, 7.0, method).value, 6)  # E(1, 7) = v(1) - 3
        (1.723005, 16.723005)

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, eqs. 2.9, 2.10 and 3.1.
        docs/methods/elements.md
    """
    at = _point(problem, x, y, z, method, nu, seed, Weights._fields)
    return _psi_at(at, inner=inner, zeta=zeta, xi=xi, step=step)


def envelope(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    z: PyTree,
    method: SALVF,
    *,
    inner: tuple[PyTree, PyTree] | None = None,
    xi: PyTree = None,
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
        inner, xi, seed: as for `psi`.

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
    at = _point(problem, x, y, z, method, None, seed, ("gamma1", "gamma2"))
    return _psi_at(at, inner=inner, xi=xi).envelope


def dual(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    z: PyTree,
    method: SALVF,
    *,
    xi: PyTree = None,
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
        xi, seed: as for `psi`.

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
    at = _point(problem, x, y, z, method, None, seed, ("gamma1",))
    return _psi_at(at, dual=True, xi=xi).envelope


def gradient_errors(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    z: PyTree,
    method: SALVF,
    *,
    draws: int = 256,
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
        seed: as for `psi`; the draws are those of the first steps of a run with this seed.

    Examples:
        >>> import hierax as hx
        >>> from hierax.problems import toy
        >>> sizes = [hx.SALVF(c1=5.0, c2=100.0, gamma1=1.0, gamma2=1.0, batch_zeta=r, batch_xi=r) for r in (1, 100)]
        >>> one, many = (hx.gradient_errors(toy(0.1).problem, 1.0, 1.0, 2.0, method) for method in sizes)
        >>> many.variance.value < 0.1 * one.variance.value
        True

    References:
        Nie, Li, Wen: An augmented Lagrangian value function method for lower-level constrained stochastic bilevel
            optimization, eq. 2.6, Theorem 3.3, Lemmas 3.1, C.2 and C.3.
        docs/methods/corrections.md (items 28 to 30)
    """
    check_setting("gradient_errors", "draws", draws, COUNT_GIVEN)
    refuse_files(problem, "gradient_errors")
    at = _point(problem, x, y, z, method, None, seed, ("units",))
    exact = _psi_at(at)
    saddle = doubled_on_host((exact.envelope.w, Rows(*exact.envelope.lam[:2])))

    def program(problem: Problem, data: Data, method: SALVF, x: PyTree, y: PyTree, made: PyTree) -> PyTree:
        z, (w_star, lam_star), key = made
        divisors, units = Rows(*method.scales[:2]), method.units
        own = scaled(with_y_in(problem, units), method.scales)
        centre = jax.tree.map(jnp.multiply, z, divisors)
        inside = jax.tree.map(jnp.divide, y, units)
        state = first_state(dataclasses.replace(method, z0=None), own, x, inside, centre, jax.random.key(key))
        no_push = jax.tree.map(jnp.zeros_like, state.point.nu)
        state = state._replace(point=state.point._replace(z=centre, nu=no_push))
        gammas = method.weights[2:]
        control = method.longest_inner_step if method.control_variate else None

        def one(tickets: Tickets) -> tuple[PyTree, ...]:
            solution, _ = inner_solution(method, own, state, tickets.inner, jnp.ones_like(gammas[1]))
            inner = Inner(solution.w, solution.lam)
            zeta, xi = sampling.fetch(problem.zeta, tickets.zeta), sampling.fetch(problem.xi, tickets.xi)
            d = formulas.psi_gradient(own, state.point, inner, method.weights, zeta, xi, control)
            w = jax.tree.map(jnp.multiply, inner.w, units)
            lam = jax.tree.map(jnp.divide, inner.lam, divisors)
            slopes = d.x, jax.tree.map(jnp.divide, d.y, units), jax.tree.map(jnp.multiply, d.z, divisors)
            ell = formulas.saddle_value(own, x, centre, *inner, *gammas, data.xi)
            off = trees.norm_squared(trees.sub(w, w_star)), trees.norm_squared(trees.sub(lam, lam_star))
            return jax.flatten_util.ravel_pytree(slopes)[0], ell, *off

        batches = method.batches(problem)
        block = batches.block(problem)

        def of_block(first: Array) -> PyTree:
            return jax.lax.map(one, batches.draws(problem, SimpleNamespace(key=state.key, step=first)))

        return sampling.joined(jax.lax.map(of_block, block * jnp.arange(-(-draws // block))))

    made = at.z, saddle, np.int64(seed)
    found = at.setting.run(
        "errors of the gradient", program, doubled_on_host(at.method), at.setting.x, at.setting.y, made, static=draws
    )
    gradients, ell, off_w, off_lam = (part[:draws] for part in found)
    target = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves((exact.x, exact.y, exact.z))])
    middle = gradients.mean(axis=0)
    scatter = np.sum((gradients - middle) ** 2, axis=1) * draws / max(1, draws - 1)
    missed = ell - exact.envelope.value, off_w, off_lam, scatter, np.sum((gradients - target) ** 2, axis=1)
    delta, w, lam, variance, square = map(_mean, missed)
    bias = Measured(float(np.linalg.norm(middle - target)), (variance.value / draws) ** 0.5)
    return GradientErrors(delta._replace(value=abs(delta.value)), w, lam, bias, variance, square, exact)


# -- how it is computed -----------------------------------------------------------------------------------------------


class _Point(NamedTuple):
    """A problem at (x, y), z and nu, in double precision and in the user's units, and the SALVF whose Psi it is."""

    setting: Float64Problem
    method: SALVF
    scales: Multipliers
    z: Rows
    nu: Multipliers


def _point(
    problem: Problem, x: PyTree, y: PyTree, z: PyTree, method: SALVF, nu: PyTree, seed: int, needed: tuple[str, ...]
) -> _Point:
    """`needed`: numbers that the method must have; where one is unset it is filled in, as in a run."""
    if not isinstance(method, SALVF):
        raise InputError(f"method: needs a hx.SALVF, whose Psi it is; got {type(method).__name__}.")
    if any(getattr(method, name) is None for name in needed if not _is_exact(method, name)):
        method = started(prepare(problem, x, y), method, Call(seed=seed)).method  # type: ignore[assignment]
    setting = Float64Problem.of(problem, x, y, FRESH_SAMPLES, seed)
    shapes = setting.shapes()
    zeros, ones = (jax.tree.map(lambda row, a=a: np.full(row.shape, a), shapes) for a in (0.0, 1.0))
    rows, nu = Rows(*shapes[:2]), zeros if nu is None else nu
    given = nu.upper if isinstance(nu, Multipliers) else None
    with float64():
        pushed = Multipliers(*rows_like(rows, nu, "nu"), zeros.upper if given is None else given)
        made = method.scales or ones, rows_like(rows, z, "z"), pushed
    return _Point(setting, method, *doubled_on_host(made))


def _is_exact(method: SALVF, name: str) -> bool:
    """Whether the inner problem is the lower level itself, of which no gamma is asked."""
    return name.startswith("gamma") and (method.solver is not None or is_zero(method.gamma2))


def _psi_at(point: _Point, dual: bool = False, inner: PyTree = None, step: float | None = None, **given: Any) -> PsiAt:
    """Psi and what belongs to it; `given`: batches."""
    setting, method, scales, z, nu = point
    kind: Kind = "dual" if dual else "value" if _is_exact(method, "gamma2") else "envelope"
    numbers: list[Any] = [1.0 if number is None else number for number in method.weights]  # 1: what is not needed
    numbers[3] = 0.0 if kind == "value" else numbers[3]
    if inner is not None:
        with float64():
            lam = rows_like(Rows(*setting.shapes()[:2]), inner[1], "inner")
            inner = Inner(trees.split_variable("w", inner[0])[0], jax.tree.map(jnp.multiply, lam, Rows(*scales[:2])))
    side = method.bound if method.bound is None else method.bound / np.sqrt(max(1, trees.size(z)))
    top = side if side is None else jax.tree.map(lambda row: np.full(row.shape, side), z)

    def program(
        problem: Problem, data: Data, solver: AbstractLowerSolver, x: PyTree, y: PyTree, made: PyTree
    ) -> tuple[PyTree, ...]:
        weights, scales, z, nu, top, inner, step = made
        own, divisors, solved = scaled(problem, scales), Rows(*scales[:2]), jnp.array(True)
        at = Point(x, y, jax.tree.map(jnp.multiply, z, divisors), jax.tree.map(jnp.multiply, nu, scales))
        if inner is None:
            inner, status = saddle_point(own, solver, x, y, at.z, weights, data.xi, kind)
            solved = status == SOLVED
        d = formulas.psi_gradient(own, at, inner, weights, *data)
        d_x, _ = formulas.saddle_gradient_xw(own, x, inner.w, inner.lam, weights.gamma1, data.xi)
        d_z = jax.tree.map(lambda a, b: weights.gamma2 * (a - b), inner.lam, at.z)
        if kind == "dual":
            d_z = formulas.saddle_gradient(own, x, at.z, inner.w, inner.lam, weights.gamma1, jnp.zeros(()), data.xi).lam
        ell = formulas.saddle_value(own, x, at.z, inner.w, inner.lam, weights.gamma1, weights.gamma2, data.xi)
        d, d_z = d._replace(z=jax.tree.map(jnp.multiply, d.z, divisors)), jax.tree.map(jnp.multiply, d_z, divisors)
        length = FINE * (1 + trees.norm((x, y, z))) / or_one(trees.norm(d[:3]))
        still = formulas.stationarity(problem, Point(x, y, z, nu), d, jnp.where(step > 0, step, length), top)
        beyond = 0.5 * trees.norm_squared(formulas.excess(problem.rows(x, y)))
        value = formulas.psi_value(own, at, inner, weights, *data)
        lam = jax.tree.map(jnp.divide, inner.lam, divisors)
        dual_parts = (Multipliers(one.inequalities, one.equalities, None) for one in (d.z, d_z, lam))
        values = jnp.stack([value, ell, d.lower - ell, beyond, still])
        return values, d.x, d.y, d_x, inner.w, *dual_parts, solved

    made = doubled_on_host((Weights(*numbers), scales, z, nu, top, inner, np.float64(step or 0.0)))
    setting = setting.on_samples(**{name: batch for name, batch in given.items() if batch is not None})
    found = setting.run("Psi at a point", program, Exact(), setting.x, setting.y, made, static=kind, quick=True)
    values, d_x, d_y, e_x, w, d_z, e_z, lam, solved = as_answer(found)
    value, ell, gap, beyond, still = values.tolist()
    return PsiAt(value, d_x, d_y, d_z, EnvelopeAt(ell, e_x, e_z, w, lam, bool(solved)), gap, beyond, still)


def _mean(each: np.ndarray) -> Measured:
    return Measured(float(np.mean(each)), float(np.std(each, ddof=min(1, len(each) - 1)) / len(each) ** 0.5))
