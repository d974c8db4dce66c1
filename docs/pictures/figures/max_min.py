"""Descent ascent on ell, and the function that is left without lam: `python max_min.py max-min.svg`."""

import numpy as np
from _style import BLUE, GREY, ORANGE, RED, axes, save

X, Z, GAMMA1, GAMMA2 = 1.0, 0.5, 0.5, 0.5
G_PRIME = 1 / (1 / GAMMA1 + 1 / GAMMA2)


def augmented(h, z, gamma):
    """A: the augmented term of one row."""
    return (np.maximum(gamma * z + h, 0.0) ** 2 - (gamma * z) ** 2) / (2 * gamma)


def ell(w, lam):
    """The saddle function (7b) with G = (w - 2x)^2, H = w - x."""
    return (w - 2 * X) ** 2 + augmented(w - X, lam, GAMMA1) - GAMMA2 / 2 * (lam - Z) ** 2


w, lam = np.meshgrid(np.linspace(0.0, 2.2, 150), np.linspace(0.0, 2.5, 150))
figure, (left, right) = axes(2)
left.contour(w, lam, ell(w, lam), levels=np.linspace(-1, 4, 21), colors=GREY, linewidths=0.6)
path = [(0.1, 2.3)]
for _ in range(60):  # descent in w, ascent in lam, (10a) and (10b) with constant steps
    a, b = path[-1]
    mu = max(GAMMA1 * b + a - X, 0.0) / GAMMA1
    path.append((a - 0.12 * (2 * (a - 2 * X) + mu), max(b + 0.5 * (max(-GAMMA1 * b, a - X) - GAMMA2 * (b - Z)), 0.0)))
left.plot(*zip(*path, strict=True), "o-", ms=2.5, lw=0.8, color=ORANGE, label="descent ascent")
left.plot(*path[-1], "*", ms=11, color=RED, label="saddle point")
left.set(xlabel="$w$", ylabel=r"$\lambda$", title=r"$\ell(x, z, w, \lambda)$ at $x = 1$, $z = 0.5$")
left.legend(loc="upper right", fontsize=8)

line = np.linspace(0.0, 2.2, 200)
best = np.max(ell(line[None, :], np.linspace(0.0, 6.0, 4001)[:, None]), axis=0)
right.plot(line, best, color=BLUE, lw=4, alpha=0.4, label=r"$\max_{\lambda \geq 0} \ell$, on a grid of $\lambda$")
right.plot(line, (line - 2 * X) ** 2 + augmented(line - X, Z, G_PRIME), "k--", lw=1, label=r"$G + A_{\gamma'}$")
right.plot([path[-1][0]], [ell(*path[-1])], "*", ms=11, color=RED)
right.set(xlabel="$w$", title=r"$\lambda$ eliminated: a function of $w$ alone", ylim=(0.0, 5.0))
right.legend(fontsize=8)
save(figure)
