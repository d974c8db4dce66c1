"""The value function of the example, and its envelope in z: `python value_function.py value-function.svg`."""

import numpy as np
from _style import BLUE, GREEN, GREY, ORANGE, RED, axes, save


def envelope(x, z, g):
    """E(x, z) of G = (y - 2x)^2, H = y - x, in closed form: 1/g = 1/gamma1 + 1/gamma2."""
    u = (2 * x - z) / (2 + 1 / g)  # w - x, where the row is active: g z + u > 0
    active = (u - x) ** 2 + z * u + u**2 / (2 * g)
    return np.where(g * z + u > 0, active, np.nan)


figure, (left, right) = axes(2)
y = np.linspace(0.2, 2.2, 200)
x = 1.0
G = (y - 2 * x) ** 2
left.plot(y[y <= x], G[y <= x], color=BLUE, label="$G(x, y)$, feasible")
left.plot(y[y > x], G[y > x], color=GREY, ls="--", label="$G(x, y)$, $H > 0$")
left.axhline(x**2, color=RED, lw=1, label="$v(x)$")
left.plot([x], [x**2], "o", color=RED)
left.annotate("$y^*(x)$", (x, x**2), (1.08, 1.25))
left.set(xlabel="$y$", title="$x = 1$: the follower's problem", ylim=(-0.1, 3.3))
left.legend()

z = np.linspace(0.0, 4.0, 200)
for gamma, colour in ((4.0, GREEN), (1.0, ORANGE), (0.25, BLUE)):
    right.plot(z, envelope(x, z, gamma / 2), color=colour, label=rf"$\gamma_1 = \gamma_2 = {gamma:g}$")
right.axhline(x**2, color=RED, lw=1, label="$v(x)$")
right.plot([2 * x], [x**2], "o", color=RED)
right.annotate(r"$z = \lambda^*(x)$", (2 * x, x**2), (1.6, 1.06))
right.set(xlabel="$z$", title="$x = 1$: the envelope $E(x, z)$", ylim=(0.0, 1.25))
right.legend(loc="lower center", fontsize=8)
save(figure)
