"""The outer multiplier: x after each update of nu: `python multiplier.py multiplier.svg`."""

import numpy as np
from _style import BLUE, GREEN, GREY, ORANGE, RED, axes, save

C1 = 5.0
GRID = np.linspace(0.0, 3.0, 3001)


def minimised(nu, c2):
    """The x and y that minimise F + c1 (G - v) + ([nu + c2 H]_+^2 - nu^2) / (2 c2) on a grid of x, exactly in y."""
    x = GRID
    y = (1 + 2 * C1 * x + c2 / 2 * x - nu / 2) / (1 + C1 + c2 / 2)  # where nu + c2 (y - x) > 0
    y = np.where(nu + c2 * (y - x) > 0, y, (1 + 2 * C1 * x) / (1 + C1))
    row = (np.maximum(nu + c2 * (y - x), 0.0) ** 2 - nu**2) / (2 * c2)
    best = np.argmin((y - 1) ** 2 + 0.1 * x**2 + C1 * ((y - 2 * x) ** 2 - x**2) + row)
    return x[best], y[best]


def run(c2, tau, steps=20):
    """x and nu after each update."""
    nu, path = 0.0, []
    for _ in range(steps):
        x, y = minimised(nu, c2)
        nu = max(nu + tau * c2 * max(-nu / c2, y - x), 0.0)
        path.append((x, nu))
    return np.array(path)


figure, (left, right) = axes(2)
for c2, tau, colour in ((100.0, 1.0, GREEN), (100.0, 0.2, ORANGE), (50.0, 1.0, BLUE), (20.0, 1.0, GREY)):
    path = run(c2, tau)
    label = rf"$c_2 = {c2:g}$, $\tau = {tau:g}$"
    left.plot(path[:, 0], ".-", color=colour, lw=1, ms=4, label=label)
    right.plot(path[:, 1], ".-", color=colour, lw=1, ms=4, label=label)
left.axhline(1 / 1.1, color=RED, lw=1)
right.axhline(2 * C1 / 1.1 + 2 * (1 - 1 / 1.1), color=RED, lw=1)
left.set(xlabel="updates of $\\nu$", title="$x$; red: the solution", ylim=(0.0, 3.1))
right.set(xlabel="updates of $\\nu$", title=r"$\nu$; red: $c_1\lambda^* + 2(1 - x^*)$", ylim=(0, 35))
right.legend(fontsize=8, loc="upper right")
save(figure)
