"""What x sees of the penalised problem with a quadratic penalty: `python penalty_bias.py penalty-bias.svg`."""

import numpy as np
from _style import BLUE, GREEN, ORANGE, RED, axes, save

C1 = 5.0


def seen(x, c2):
    """min over y of Psi, and its y: F = (y-1)^2 + 0.1 x^2, G = (y - 2x)^2, H = y - x, v = x^2."""
    y = (1 + 2 * C1 * x + c2 / 2 * x) / (1 + C1 + c2 / 2)  # where y > x
    y = np.where(y > x, y, (1 + 2 * C1 * x) / (1 + C1))
    return (y - 1) ** 2 + 0.1 * x**2 + C1 * ((y - 2 * x) ** 2 - x**2) + c2 / 2 * np.maximum(y - x, 0.0) ** 2, y


figure, (left, right) = axes(2)
x = np.linspace(0.0, 3.0, 400)
left.plot(x, (x - 1) ** 2 + 0.1 * x**2, color=RED, label=r"$\varphi(x)$")
left.plot([1 / 1.1], [1 / 11], "o", color=RED)
for c2, colour in ((1000.0, GREEN), (200.0, ORANGE), (50.0, BLUE)):
    value, y = seen(x, c2)
    left.plot(x, value, color=colour, label=f"$c_2 = {c2:g}$")
    best = np.argmin(value)
    left.plot(x[best], value[best], "o", color=colour)
    right.plot(x, y - x, color=colour, label=f"$c_2 = {c2:g}$")
    right.plot(x, C1 * 2 * x / c2, color=colour, ls=":")
left.set(xlabel="$x$", title=r"$\min_y \Psi$, $c_1 = 5$, and its minimisers", ylim=(-1.7, 2.5))
left.legend(fontsize=8)
right.set(xlabel="$x$", title=r"violation $H(x, y)$; dotted: $c_1 \lambda^* / c_2$", ylim=(0.0, 0.6))
right.legend(fontsize=8)
save(figure)
