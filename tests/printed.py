"""Algorithms 1, 2 and 3 of the paper in plain NumPy, written from its text and from nothing else.

Only what the paper itself contradicts is corrected (docs/methods/corrections.md): the sign of the z-gradient (2) and
the index of the inner solve (3). Samples are given from outside. Gradients of the problem are by hand.
"""

from typing import NamedTuple

import numpy as np


class Settings(NamedTuple):
    """What Algorithms 2 and 3 take as input; sequences are functions of k, those of the inner loop of (k, j)."""

    c1: float
    c2: float
    gamma1: float
    gamma2: float
    bound: float
    alpha: object
    beta: object  # of beta_{k+1} = beta alpha_k^2, or the sequence beta_k as a function of k; None: Algorithm 2
    eta: object
    rho: object


class Batches(NamedTuple):
    """The samples of one outer step: zeta (r_k, .), xi~ (q_k, .) and xi (s_k, samples of each inner step, .)."""

    zeta: np.ndarray
    xi: np.ndarray
    inner: np.ndarray


class Curved:
    """f, g and H of a small problem with every gradient written out.

    f(x, y; zeta) = |y - 1 - zeta|^2/2 + sin(x_0) y_1 + |x|^2/10,   g(x, y; xi) = (y - Mx - xi)' D (y - Mx - xi)/2,
    H = (y_0^2 + y_1^2 + x_0/2 - 1/5, y_2 + x_1 y_0 + 2/5),   X = [-1, 1]^2,   Y = [-2, 2]^3.
    """

    M = np.array([[1.0, 0.5], [0.3, -0.8], [0.6, 0.9]])
    D = np.array([1.0, 2.0, 1.5])
    X, Y = (-1.0, 1.0), (-2.0, 2.0)

    def f(self, x, y, zeta):
        d_x = 0.2 * x + np.array([np.cos(x[0]) * y[1], 0.0])
        d_y = np.mean(y - 1.0 - zeta, axis=0) + np.array([0.0, np.sin(x[0]), 0.0])
        return d_x, d_y

    def g(self, x, y, xi):
        r = self.D * np.mean(y - self.M @ x - xi, axis=0)
        return -self.M.T @ r, r

    def h(self, x, y):
        return np.array([y[0] ** 2 + y[1] ** 2 + 0.5 * x[0] - 0.2, y[2] + x[1] * y[0] + 0.4])

    def h_x(self, x, y):
        return np.array([[0.5, 0.0], [0.0, y[0]]])

    def h_y(self, x, y):
        return np.array([[2 * y[0], 2 * y[1], 0.0], [x[1], 0.0, 1.0]])


def multiplier(gamma1, lam, h):
    """[gamma1 lam + H]_+ / gamma1, and lam for the plain Lagrangian."""
    return lam if np.isinf(gamma1) else np.maximum(gamma1 * lam + h, 0.0) / gamma1


def salm(p, x, z, w, batches, eta, rho, gamma1, gamma2):
    """Algorithm 1: s steps of eq. 2.8 from (w, 0)."""
    lam = np.zeros(2)
    for j, xi in enumerate(batches):
        h = p.h(x, w)
        d_w = p.g(x, w, xi)[1] + p.h_y(x, w).T @ multiplier(gamma1, lam, h)
        d_lam = (h if np.isinf(gamma1) else np.maximum(-gamma1 * lam, h)) - gamma2 * (lam - z)
        w = np.clip(w - eta(j) * d_w, *p.Y)
        lam = np.maximum(lam + rho(j) * d_lam, 0.0)
    return w, lam


def gradient(p, u, w, lam, batches, s):
    """grad Psi^k(u; zeta, xi~), eqs. 2.10 and 2.11, with (w, lam) of the inner loop; both g-terms share the batch."""
    x, y, z = u
    f_x, f_y = p.f(x, y, batches.zeta)
    g_x, g_y = p.g(x, y, batches.xi)
    below = p.g(x, w, batches.xi)[0] + p.h_x(x, w).T @ multiplier(s.gamma1, lam, p.h(x, w))
    over = s.c2 * np.maximum(p.h(x, y), 0.0)
    return (
        f_x + s.c1 * (g_x - below) + p.h_x(x, y).T @ over,
        f_y + s.c1 * g_y + p.h_y(x, y).T @ over,
        s.c1 * s.gamma2 * (z - lam),  # printed with the other sign
    )


def salvf(p, x, y, z, s, samples):
    """Algorithm 2, and Algorithm 3 where s.beta is given: all iterates u^0, ..., u^K."""
    u, path, d, before = (x, y, z), [(x, y, z)], None, None
    side = s.bound / np.sqrt(2)
    for k, batches in enumerate(samples):
        rates = (lambda j, k=k: s.eta(k, j)), (lambda j, k=k: s.rho(k, j))
        w, lam = salm(p, u[0], u[2], u[1], batches.inner, *rates, s.gamma1, s.gamma2)
        new = gradient(p, u, w, lam, batches, s)
        if s.beta is not None and k > 0:
            beta = s.beta(k) if callable(s.beta) else min(1.0, s.beta * s.alpha(k - 1) ** 2)
            old = gradient(p, before, w, lam, batches, s)
            new = tuple(a + (1 - beta) * (b - c) for a, b, c in zip(new, d, old, strict=True))
        before, d, step = u, new, s.alpha(k)
        x, y, z = (a - step * b for a, b in zip(u, d, strict=True))
        u = np.clip(x, *p.X), np.clip(y, *p.Y), np.clip(z, 0.0, side)
        path.append(u)
    return path


def random_index(alphas, uniforms):
    """R with Prob(R = k) = alpha_k / sum of alpha (eq. 2.13), from one uniform number per step."""
    chosen, total = 0, 0.0
    for k, (alpha, uniform) in enumerate(zip(alphas, uniforms, strict=True)):
        total += alpha
        chosen = k if uniform * total < alpha else chosen
    return chosen
