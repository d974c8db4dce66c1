r"""The inner loop against its number of steps s: E||w_s - w*||^2, E||lam_s - lam*||^2 and E ell(w_s, lam_s) - E(x, z).

z is the multiplier lam*, so that the saddle point is (y*, lam*), which is known exactly, and E(x, z) = v(x). Every run
is a cold start of the library's SALM, made of its own `first_lam` and `step`; only the errors on the way are kept.
"""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, Scalar

from hierax import SALM, Problem
from hierax.extend import Rows, fetch
from hierax.problems import toy
from hierax_lab.problems import ellipsoid_qp
from hierax_lab.reproduce.rates_fit import Slope, Values, fit, standard_error
from hierax_lab.reproduce.rates_outer import best_multiplier
from hierax_lab.reproduce.rates_sizes import Sizes

EVERY = 100  # steps between two measured errors; also the number of samples that are drawn at once
SIGNIFICANT = 4.0  # standard errors from zero of a mean whose logarithm is taken
FIT_POINTS = 13  # values of s that a slope is fitted to
TOY_X = (0.1, 0.986, 2.0)  # where the toy's inner loop is measured


class Target(NamedTuple):
    """A lower level at one x, with its exact solution; noise sigma = 1."""

    problem: Problem
    x: Array
    start: Array
    w: Array
    lam: Array
    curvature: float  # mu_G


class Errors(NamedTuple):
    """Squared errors of w and lam, and ell at (w, lam) minus the envelope; axes (seed, s)."""

    s: Values
    w: Values
    lam: Values
    gap: Values


def toy_target(x: float) -> Target:
    """The toy at x: y* = x, lam* = 2x."""
    example = toy(1.0)
    return Target(example.problem, jnp.asarray(x), jnp.asarray(1.5), jnp.asarray(x), jnp.asarray(2 * x), 2.0)


def qp_target(n: int, p: int) -> Target:
    """A quadratic problem over p ellipsoids in n dimensions, half of them active."""
    example = ellipsoid_qp(n, p, sigma=1.0)
    known = example.solutions[0]
    x, start = jnp.asarray(example.x0), jnp.asarray(example.y0)
    return Target(example.problem, x, start, jnp.asarray(known.y), jnp.asarray(known.multipliers), 1.0)


class Curvature(NamedTuple):
    """Spectral norms at a lower solution: of the Hessians of G and of lam'H, and of the Jacobian of H, all in y."""

    lower_yy: Scalar
    constraint_yy: Scalar
    jacobian_y: Scalar


@eqx.filter_jit
def _curvature(target: Target) -> Curvature:
    problem, x = target.problem, target.x
    w = jnp.atleast_1d(target.w)

    def lower(w: Array) -> Scalar:
        return problem.lower(x, w.reshape(target.w.shape), None)

    def rows(w: Array) -> Array:
        return jnp.ravel(problem.constraints(x, w.reshape(target.w.shape)))

    curved = jax.hessian(lambda w: jnp.ravel(target.lam) @ rows(w))(w)
    norms = (jnp.linalg.norm(matrix, 2) for matrix in (jax.hessian(lower)(w), curved, jax.jacobian(rows)(w)))
    return Curvature(*norms)


def with_steps(target: Target, solver: SALM, rho: float) -> SALM:
    """The solver with eta = 1/mu_G, the given rho, and the caps 1/L_w and L_w/||J||^2 at the solution."""
    at = _curvature(target)
    penalty = 2.0 if solver.dual_free else 1.0  # 1/gamma1 (+ 1/gamma2) with gamma = 1
    curved = at.lower_yy + penalty * at.jacobian_y**2 + at.constraint_yy
    return dataclasses.replace(
        solver,
        eta=jnp.asarray(1 / target.curvature),
        rho=jnp.asarray(rho),
        eta_max=1 / curved,
        rho_max=curved / at.jacobian_y**2,
    )


@eqx.filter_jit
def _errors(target: Target, solver: SALM, keys: PRNGKeyArray, blocks: int) -> tuple[Array, ...]:
    problem, x, z, one = target.problem, target.x, Rows(target.lam, None), jnp.ones(())

    def ell(w: Array, lam: Array) -> Scalar:
        """Eq. 2.5b at (x, z), with the -gamma1^2 lam^2 of correction 1 and both gammas 1."""
        term = jnp.maximum(lam + problem.constraints(x, w), 0.0) ** 2 - lam**2 - (lam - target.lam) ** 2
        return problem.lower(x, w, None) + jnp.sum(term) / 2

    def distance(w: Array, lam: Rows) -> tuple[Scalar, Scalar, Scalar]:
        if solver.dual_free:
            lam = best_multiplier(problem, x, w, z, one, one)
        off = lam.inequalities - target.lam
        gap = ell(w, lam.inequalities) - ell(target.w, target.lam)
        return jnp.sum((w - target.w) ** 2), jnp.sum(off**2), gap

    def run(key: PRNGKeyArray) -> tuple[Array, ...]:
        def step(carry: tuple[Array, Rows], at: tuple[Array, Array]) -> tuple[tuple[Array, Rows], None]:
            j, xi = at
            found = solver.step(problem, x, z, *carry, j, fetch(problem.xi, xi), one, one)
            return (found.w, found.lam), None

        def block(carry: tuple[Array, Rows], number: Array) -> tuple[tuple[Array, Rows], tuple[Scalar, ...]]:
            plan = problem.xi.plan(key, number, EVERY, 1)
            counts = (number * EVERY + jnp.arange(EVERY)).astype(x.dtype)
            carry, _ = jax.lax.scan(step, carry, (counts, plan))
            return carry, distance(*carry)

        lam = solver.first_lam(problem, x, z, target.start, z, one, one)
        return jax.lax.scan(block, (target.start, lam), jnp.arange(blocks))[1]

    return jax.vmap(run)(keys)


def errors(target: Target, solver: SALM, steps: int, seeds: int, rho: float = 1.0) -> Errors:
    """Errors after 100, 200, ..., `steps` inner steps."""
    key = jax.random.key(round(1000 * float(target.x)))  # independent noise for every x
    blocks = steps // EVERY
    found = _errors(target, with_steps(target, solver, rho), jax.random.split(key, seeds), blocks)
    return Errors(EVERY * np.arange(1.0, blocks + 1), *map(np.asarray, found))


def slopes(found: Errors) -> dict[str, Slope]:
    """Fits over s = 100..steps, at points spread evenly over log s."""
    chosen = np.unique(np.geomspace(1, len(found.s), FIT_POINTS).round().astype(int)) - 1
    at = found.s[chosen]
    return {"w": fit(at, found.w[:, chosen]), "lam": fit(at, found.lam[:, chosen])}


def envelope_error(found: Errors) -> Slope | None:
    """|E ell(w_s, lam_s) - E| against s; None where its sign, and so its size, is not known at every s."""
    chosen = np.unique(np.geomspace(1, len(found.s), FIT_POINTS).round().astype(int)) - 1
    gaps = found.gap[:, chosen]
    mean, error = gaps.mean(axis=0), gaps.std(axis=0, ddof=1) / np.sqrt(len(gaps))
    sign = np.sign(mean[0])
    return fit(found.s[chosen], sign * gaps) if np.all(sign * mean > SIGNIFICANT * error) else None


def log_factor(found: Errors) -> dict[str, float]:
    """Growth of s E||w_s - w*||^2 over the last part of the runs: 1 for a rate 1/s, that of log s for log s / s."""
    end = found.s[-1]
    begin = min(1000.0, end / 4)
    scaled = found.s * found.w

    def around(s: float) -> Values:
        # An error at one s is one draw per seed; a window of s gives each seed several.
        return scaled[:, (found.s >= 0.8 * s) & (found.s <= 1.2 * s)].mean(axis=1)

    early, late = around(begin), around(end / 1.2)
    ratio = late.mean() / early.mean()
    relative = [standard_error(part) / part.mean() for part in (early, late)]
    return {
        "measured": float(ratio),
        "error": float(ratio * np.hypot(*relative)),
        "log_s_would_give": float(np.log(end / 1.2) / np.log(begin)),
    }


def _variants(target: Target, sizes: Sizes) -> dict[str, Errors]:
    """Capped, as printed, with too short dual steps, and without dual variable."""
    cold = SALM(warm=False)
    steps, seeds = sizes.inner.steps, sizes.inner.variant_seeds
    return {
        "capped": errors(target, cold, steps, seeds),
        "no cap (as printed)": errors(target, SALM(warm=False, rule="paper"), steps, seeds),
        "rho = 0.25/gamma2": errors(target, cold, steps, seeds, rho=0.25),
        "dual-free": errors(target, SALM(warm=False, dual_free=True), steps, seeds),
    }


def measure(sizes: Sizes) -> dict:
    """All measurements of the inner loop."""
    targets = {f"toy, x = {x:g}": (toy_target(x), sizes.inner.toy_seeds) for x in TOY_X}
    for n, p, seeds in sizes.inner.qps:
        targets[f"QP, n = {n}"] = (qp_target(n, p), seeds)
    found = {
        name: errors(target, SALM(warm=False), sizes.inner.steps, seeds) for name, (target, seeds) in targets.items()
    }
    envelopes = {name: envelope_error(one) for name, one in found.items()}
    for name in list(targets)[: len(TOY_X)]:
        printed = errors(targets[name][0], SALM(warm=False, rule="paper"), sizes.inner.steps, sizes.inner.toy_seeds)
        envelopes[f"{name}, as printed"] = envelope_error(printed)
    n, p, _ = sizes.inner.qps[min(1, len(sizes.inner.qps) - 1)]
    variants = _variants(targets[f"QP, n = {n}"][0], sizes)
    at = int(np.searchsorted(variants["capped"].s, 1000.0))
    at_1000 = {name: float(one.w.mean(axis=0)[at]) for name, one in variants.items()}
    return {
        "seeds": {name: seeds for name, (_, seeds) in targets.items()},
        "slopes": {name: slopes(one) for name, one in found.items()},
        "envelope": envelopes,
        "log_factor": {name: log_factor(one) for name, one in found.items()},
        "variants_on": f"QP, n = {n}, p = {p}, {sizes.inner.variant_seeds} seeds",
        "variants": {name: slopes(one) for name, one in variants.items()},
        "uncapped_over_capped_at_1000": at_1000["no cap (as printed)"] / at_1000["capped"],
    }
