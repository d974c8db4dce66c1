"""SALVF with the outer multiplier on the BLOCC toy, in plain NumPy: what the library's speed is measured against.

The toy, on X = Y = [0, 3]::

    F(x, y) = exp(2 - y) / (2 + cos 6x) + 1/2 log((4x - 2)^2 + 1)      upper level
    G(x, y) = (y - 2x)^2,  H(x, y) = y - x <= 0                        lower level: y*(x) = x, lam*(x) = 2x

Every gradient of F and G, a pair, carries additive Gaussian noise of standard deviation ``sigma`` in both components.
Three baselines run the same algorithm and draw all of its noise, 2 (s + 2) numbers per outer step with s inner steps:

* :func:`plain_loop`: one start after another, written from the formulas with small NumPy arrays;
* :func:`inlined_loop`: one start after another, everything put into one loop over Python floats;
* :func:`vectorised`: all starts at once.

The last two are written to be fast, so that a comparison with them means something:

* gamma1 = gamma2 = 1 are put into the formulas: mu = [lam + H(x, w)]_+ and max(-lam, H) = mu - lam;
* noise that cannot change the result is drawn but not used: the x-part of an inner gradient, the x-part of the shared
  xi~ (it cancels between the two g-terms) and, with the control variate, also its y-part;
* lam, z and nu are not projected on [0, inf), for they cannot leave it: each new value is a convex combination of
  nonnegative numbers (rho_j <= 1/11, z-step 0.3 and tau = 0.1 are all at most 1/2).

The noise of an outer step is drawn in the order xi_0, ..., xi_{s-1}, zeta, xi~. With the same seed the two loops follow
the same path up to rounding, and so does :func:`vectorised` when there is one start. `hierax bench toy` times them.
"""

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[np.floating[Any]]
Start = Literal["given", "solve"]

UPPER = 3.0  # X = Y = [0, UPPER]
C1, C2, TAU = 5.0, 100.0, 0.1  # value-function penalty, constraint penalty, step of the outer multiplier
L_PSI = 2 * C2 + 10 * C1 + 20
Z_STEP = 0.3  # in units of 1 / (c1 gamma2)
GAMMA1 = GAMMA2 = 1.0  # of the augmented Lagrangian and of the envelope
MU_G = L_G = 2.0
L_W = L_G + 1 / GAMMA1  # L_G + ||J||^2 / gamma1, with ||J|| = 1
STEP_SHIFT = 10  # j0: shift of the inner schedules of a warm-started loop


class Final(NamedTuple):
    """Last iterates, one entry per start."""

    x: Array
    y: Array
    z: Array
    nu: Array


class Setup(NamedTuple):
    """How a baseline is run.

    Attributes:
        steps: outer steps.
        inner_steps: steps s of the warm-started inner loop in each outer step.
        seed: seed of the noise.
        sigma: standard deviation of the noise in each gradient component.
        control_variate: subtract the inner y-gradient at (w, lam), with the same noise, in the outer y-gradient.
        start: ``"given"`` or ``"solve"``, see :func:`initial`.
    """

    steps: int = 2500
    inner_steps: int = 10
    seed: int = 0
    sigma: float = 0.1
    control_variate: bool = False
    start: Start = "given"


def inner_schedules(inner_steps: int) -> tuple[Array, Array]:
    """Primal steps eta_j and dual steps rho_j of the inner loop, for ||J|| = 1."""
    shifted = np.arange(inner_steps) + 1.0 + STEP_SHIFT
    return np.minimum(1 / (MU_G * shifted), 1 / L_W), np.minimum(1 / (GAMMA2 * shifted), L_W)


def outer_schedule(steps: int) -> Array:
    """Outer steps alpha_k = min(1, 1.5 (k+1)^(-1/3)) / L_Psi."""
    return np.asarray(np.minimum(1.0, 1.5 * (np.arange(steps) + 1.0) ** (-1 / 3)) / L_PSI)


def initial(starts: Array, start: Start) -> tuple[Array, Array, Array, Array]:
    """Initial x, y, lam and nu; the inner w begins at y and z at lam.

    ``"given"`` takes (x0, y0) with zero multipliers, ``"solve"`` the lower level's solution at x0: y = x0, lam = 2 x0,
    nu = c1 lam.
    """
    x, y = starts.T
    if start == "given":
        return x, y, np.zeros_like(x), np.zeros_like(x)
    return x, x, 2 * x, 2 * C1 * x


def grad_F(x: float, y: float) -> Array:
    """Gradient of the upper objective F in (x, y)."""
    denominator = 2 + np.cos(6 * x)
    decay = np.exp(2 - y) / denominator
    inside = 4 * x - 2
    return np.array([6 * decay * np.sin(6 * x) / denominator + 4 * inside / (inside**2 + 1), -decay])


def grad_G(x: float, y: float) -> Array:
    """Gradient of the lower objective G in (x, y)."""
    residual = y - 2 * x
    return np.array([-4 * residual, 2 * residual])


def H(x: float, y: float) -> float:
    """Constraint of the lower level, H <= 0."""
    return y - x


def jac_H(x: float, y: float) -> Array:
    """Gradient of H in (x, y)."""
    return np.array([-1.0, 1.0])


def grad_ell(x: float, w: float, lam: float, xi: Array) -> Array:
    """Gradient of the augmented Lagrangian in (x, w), with the noise xi of the gradient of G."""
    mu: float = np.maximum(GAMMA1 * lam + H(x, w), 0.0) / GAMMA1
    return grad_G(x, w) + xi + mu * jac_H(x, w)


def plain_loop(starts: Array, setup: Setup = Setup()) -> Final:
    """Run one start after another, written as the formulas stand; `starts` is an (n, 2) array of (x0, y0)."""
    steps, inner_steps, seed, sigma, control_variate, start = setup
    rng = np.random.Generator(np.random.SFC64(seed))
    etas, rhos = inner_schedules(inner_steps)
    alphas = outer_schedule(steps)
    finals = []
    for x, y, lam, nu in zip(*initial(starts, start), strict=True):
        w, z = y, lam
        for alpha in alphas:
            for eta, rho in zip(etas, rhos, strict=True):
                xi = rng.normal(0.0, sigma, 2)
                d_w = grad_ell(x, w, lam, xi)[1]
                d_lam = np.maximum(-GAMMA1 * lam, H(x, w)) - GAMMA2 * (lam - z)
                w = np.clip(w - eta * d_w, 0.0, UPPER)
                lam = np.maximum(lam + rho * d_lam, 0.0)

            zeta = rng.normal(0.0, sigma, 2)
            xi = rng.normal(0.0, sigma, 2)
            inner = grad_ell(x, w, lam, xi)
            push = np.maximum(nu + C2 * H(x, y), 0.0)
            d = grad_F(x, y) + zeta + C1 * (grad_G(x, y) + xi) + push * jac_H(x, y)
            d[0] -= C1 * inner[0]
            if control_variate:
                d[1] -= C1 * inner[1]
            d_z = C1 * GAMMA2 * (z - lam)

            x, y = np.clip(np.array([x, y]) - alpha * d, 0.0, UPPER)
            z = np.maximum(z - Z_STEP / (C1 * GAMMA2) * d_z, 0.0)
            nu = np.maximum(nu + TAU * C2 * np.maximum(-nu / C2, H(x, y)), 0.0)
        finals.append((x, y, z, nu))
    return Final(*np.array(finals).reshape(-1, 4).T)


def inlined_loop(starts: Array, setup: Setup = Setup()) -> Final:
    """Run one start after another with Python floats; the noise of a start is drawn in one call."""
    steps, inner_steps, seed, sigma, control_variate, start = setup
    rng = np.random.Generator(np.random.SFC64(seed))
    etas, rhos = (schedule.tolist() for schedule in inner_schedules(inner_steps))
    alphas = outer_schedule(steps).tolist()
    cos, sin, exp = math.cos, math.sin, math.exp
    outer = 2 * inner_steps  # column of the first outer draw
    used = [*range(1, outer, 2), outer, outer + 1, outer + 3]  # y-parts of the xi_j, zeta, y-part of xi~
    finals = []
    for x, y, lam, nu in zip(*(column.tolist() for column in initial(starts, start)), strict=True):
        w, z = y, lam
        push = nu + C2 * (y - x)
        if push < 0.0:
            push = 0.0
        draws = sigma * rng.standard_normal((steps, outer + 4))[:, used]
        for alpha, noise in zip(alphas, draws.tolist(), strict=True):
            x4 = 4.0 * x
            for eta, rho, xi in zip(etas, rhos, noise):  # noqa: B905 (the outer draws follow the inner ones)
                mu = lam + w - x
                if mu < 0.0:
                    mu = 0.0
                w -= eta * (2.0 * w - x4 + xi + mu)
                if w < 0.0:
                    w = 0.0
                elif w > UPPER:
                    w = UPPER
                lam += rho * (mu - lam - lam + z)
            mu = lam + w - x
            if mu < 0.0:
                mu = 0.0
            denominator = 2.0 + cos(6.0 * x)
            decay = exp(2.0 - y) / denominator
            inside = x4 - 2.0
            d_x = 6.0 * decay * sin(6.0 * x) / denominator + 4.0 * inside / (inside * inside + 1.0)
            d_x += noise[inner_steps] + C1 * (4.0 * (w - y) + mu) - push
            d_y = noise[inner_steps + 1] - decay + push
            if control_variate:
                d_y += C1 * (2.0 * (y - w) - mu)
            else:
                d_y += C1 * (2.0 * y - x4 + noise[inner_steps + 2])
            z += Z_STEP * (lam - z)
            x -= alpha * d_x
            if x < 0.0:
                x = 0.0
            elif x > UPPER:
                x = UPPER
            y -= alpha * d_y
            if y < 0.0:
                y = 0.0
            elif y > UPPER:
                y = UPPER
            scaled = C2 * (y - x)
            nu += TAU * (scaled if scaled > -nu else -nu)
            push = nu + scaled
            if push < 0.0:
                push = 0.0
        finals.append((x, y, z, nu))
    return Final(*np.array(finals).reshape(-1, 4).T)


def vectorised(starts: Array, setup: Setup = Setup(), dtype: DTypeLike = np.float64) -> Final:
    """Run all starts at once, in place; the noise of an outer step is drawn in one call for all starts.

    An inner step is written as w <- (1 - 2 eta) w + eta (4x - xi) - eta mu, lam <- (1 - 2 rho) lam + rho z + rho mu;
    the middle terms do not depend on (w, lam) and are formed for the whole inner loop at once. Constants are arrays of
    no dimension, because a ufunc call on a short array takes about half as long with them as with Python floats.
    `dtype` is ``float64`` or ``float32``, of the iterates and of the noise.
    """
    steps, inner_steps, seed, sigma, control_variate, start = setup

    def const(value: float) -> Array:
        return np.array(value, dtype)

    rng = np.random.Generator(np.random.SFC64(seed))
    x0, y0, lam0, nu0 = initial(starts.astype(dtype), start)
    u = np.stack([x0, y0])
    x, y = u
    w, lam, z, nu = y0.copy(), lam0.copy(), lam0.copy(), nu0.copy()
    n = len(x)

    etas, rhos = (schedule.astype(dtype) for schedule in inner_schedules(inner_steps))
    factors = np.stack([1 - 2 * etas, etas, 1 - 2 * rhos, rhos], axis=1)
    constants = [tuple(const(factor) for factor in row) for row in factors]
    alphas = outer_schedule(steps).astype(dtype)
    noise = np.empty((2 * inner_steps + 4, n), dtype)
    xi_y, zeta, shared_y = noise[1 : 2 * inner_steps : 2], noise[-4:-2], noise[-1]
    w_terms, lam_terms = np.empty((2, inner_steps, n), dtype)
    mu, scratch = np.empty((2, n), dtype)
    zero, one, two, four, six, upper = (const(v) for v in (0, 1, 2, 4, 6, UPPER))
    c1, c2, tau, z_step, scale = (const(v) for v in (C1, C2, TAU, Z_STEP, sigma))
    add, subtract, multiply, maximum, minimum = np.add, np.subtract, np.multiply, np.maximum, np.minimum

    push = maximum(nu + c2 * (y - x), zero)
    for k in range(steps):
        rng.standard_normal(out=noise, dtype=dtype)  # type: ignore[arg-type]  # typed for a literal dtype only
        noise *= scale
        x4 = four * x
        subtract(x4, xi_y, out=w_terms)
        w_terms *= etas[:, None]
        multiply(rhos[:, None], z, out=lam_terms)
        for (w_keep, eta, lam_keep, rho), w_term, lam_term in zip(constants, w_terms, lam_terms, strict=True):
            add(lam, w, out=mu)
            subtract(mu, x, out=mu)
            maximum(mu, zero, out=mu)
            multiply(w, w_keep, out=w)
            add(w, w_term, out=w)
            multiply(mu, eta, out=scratch)
            subtract(w, scratch, out=w)
            maximum(w, zero, out=w)
            minimum(w, upper, out=w)
            multiply(lam, lam_keep, out=lam)
            add(lam, lam_term, out=lam)
            multiply(mu, rho, out=mu)
            add(lam, mu, out=lam)
        mu = maximum(lam + w - x, zero)
        angle = six * x
        denominator = two + np.cos(angle)
        decay = np.exp(two - y) / denominator
        inside = x4 - two
        d_x = six * decay * np.sin(angle) / denominator + four * inside / (inside * inside + one)
        d_x += zeta[0] + c1 * (four * (w - y) + mu) - push
        d_y = zeta[1] - decay + push
        if control_variate:
            d_y += c1 * (two * (y - w) - mu)
        else:
            d_y += c1 * (two * y - x4 + shared_y)
        z += z_step * (lam - z)
        x -= alphas[k, ...] * d_x
        y -= alphas[k, ...] * d_y
        maximum(u, zero, out=u)
        minimum(u, upper, out=u)
        scaled = c2 * (y - x)
        nu += tau * maximum(-nu, scaled)
        push = maximum(nu + scaled, zero)
    return Final(x, y, z, nu)
