"""SALVF-VR's direction, stable and not: `python variance_reduction.py variance-reduction.svg`."""

import numpy as np
from _style import BLUE, GREEN, GREY, ORANGE, RED, axes, save

C1 = 5.0


def gradient(x, frozen):
    """grad_x of F + c1 (G - ell) with y = x and (w, lam) = (frozen, 2 frozen), the lower solution at `frozen`."""
    return 2 * (x - 1) + 0.2 * x + C1 * (2 * x - (-4 * (frozen - 2 * x) - 2 * frozen))


def run(alpha, beta, steps, noise=0.0, seed=0):
    """|d_k - phi'(x_k)| and x_k along the recursion (2.15)."""
    rng = np.random.default_rng(seed)
    x = old = 0.5
    direction, errors, points = 0.0, [], []
    for k in range(steps):
        sample = noise * rng.normal()
        kept = 0.0 if k == 0 else 1.0 - beta
        direction = gradient(x, x) + sample + kept * (direction - gradient(old, x) - sample)
        errors.append(abs(direction - gradient(x, x)))
        points.append(x)
        old, x = x, np.clip(x - alpha * direction, 0.0, 3.0)
    return np.array(errors), np.array(points)


ALPHA = 0.01
figure, (left, right) = axes(2)
for beta, colour in ((0.5, GREEN), (0.35, BLUE), (0.25, ORANGE), (0.1, RED)):
    errors, _ = run(ALPHA, beta, 300)
    left.semilogy(np.maximum(errors, 1e-12), color=colour, lw=1, label=rf"$\beta = {beta:g}$")
left.set(xlabel="step", title=r"no noise: $|d_k - \varphi'(x_k)|$, $c_1 C \alpha = 0.3$", ylim=(1e-12, 1e2))
left.legend(fontsize=8)
for beta, colour, name in ((1.0, GREY, "plain"), (0.5, GREEN, r"$\beta = 0.5$")):
    errors = np.mean([run(ALPHA, beta, 400, 1.0, seed)[0] ** 2 for seed in range(100)], axis=0)
    right.plot(errors, color=colour, lw=1, label=name)
right.set(xlabel="step", title=r"noise of variance 1: mean of $(d_k - \varphi'(x_k))^2$", ylim=(0, None))
right.legend(fontsize=8)
save(figure)
