"""A kink of y*(x), and a minimum on it: `python kinks.py kinks.svg`."""

import numpy as np
from _style import BLUE, GREEN, GREY, ORANGE, RED, axes, save


def phi(x):
    """F = (x - 0.5)^2/2 + (y - 2)^2/2 at y*(x) = min(x, 1)."""
    return 0.5 * (x - 0.5) ** 2 + 0.5 * (np.minimum(x, 1.0) - 2.0) ** 2


def penalised(x, c1):
    """min over y <= 1 of F + c1 (G - v), G = (y - x)^2."""
    y = np.minimum((2.0 + 2 * c1 * x) / (1 + 2 * c1), 1.0)
    return 0.5 * (x - 0.5) ** 2 + 0.5 * (y - 2.0) ** 2 + c1 * ((y - x) ** 2 - (np.minimum(x, 1.0) - x) ** 2)


figure, (left, right) = axes(2)
x = np.linspace(0.4, 1.6, 400)
left.plot(x, np.minimum(x, 1.0), color=BLUE, label="$y^*(x)$")
left.plot(x, 2 * np.maximum(x - 1.0, 0.0), color=GREEN, label=r"$\lambda^*(x)$")
left.axvline(1.0, color=GREY, lw=0.8, ls=":")
left.set(xlabel="$x$", title="the follower's answer and its price")
left.legend()
right.plot(x, phi(x), color=RED, label=r"$\varphi(x)$")
for c1, colour in ((20.0, ORANGE), (5.0, GREEN)):
    right.plot(x, penalised(x, c1), color=colour, lw=1, label=f"$c_1 = {c1:g}$")
right.plot([1.0], [phi(1.0)], "o", color=RED)
for slope, side in ((-0.5, -1), (0.5, 1)):
    right.plot([1.0, 1.0 + side * 0.3], [phi(1.0), phi(1.0) + side * 0.3 * slope], color=GREY, lw=0.8, ls="--")
right.set(xlabel="$x$", title=r"$\varphi$, its slopes, and $\min_y$ of the penalised $F$")
right.legend()
save(figure)
