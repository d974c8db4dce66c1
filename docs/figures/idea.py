"""The picture of the start page: `python docs/figures/idea.py docs/figures/idea.svg`."""

import sys

import jax
import matplotlib as mpl
import numpy as np

import hierax as hx

mpl.use("agg")
import matplotlib.pyplot as plt

jax.config.update("jax_enable_x64", True)

problem = hx.Problem(
    upper=lambda x, y, zeta: (x - 1.2) ** 2 + (y - 0.5) ** 2,
    lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
    constraints=lambda x, y: x**2 + y**2 - 2.0,
    x_set=hx.Box(0.0, 1.4),
)
sol = hx.solve(problem, 0.2, 0.2)
# The nearest point of the circle to (1.2, 0.5), which lies on the part of the curve where the constraint is active.
known = np.sqrt(2.0) * np.array([1.2, 0.5]) / np.hypot(1.2, 0.5)
assert sol.certificate.ok() and np.allclose([sol.x, sol.y], known, atol=1e-6)

plt.rcParams.update({"svg.hashsalt": "hierax", "svg.fonttype": "path", "font.size": 11})
figure, axes = plt.subplots(figsize=(6.6, 4.6), layout="constrained")
x, y = np.meshgrid(np.linspace(0, 1.65, 200), np.linspace(0, 1.7, 200))
axes.contourf(x, y, x**2 + y**2 - 2.0, levels=[-9, 0], colors=["#e3edf5"])
levels = [0.0127, 0.1, 0.3, 0.6, 1.0, 1.5]
axes.contour(x, y, (x - 1.2) ** 2 + (y - 0.5) ** 2, levels=levels, colors="#b9b9b9", linewidths=0.9)
xs = np.linspace(0, np.sqrt(2.0), 2000)
axes.plot(xs, np.minimum(2 * xs, np.sqrt(np.maximum(2 - xs**2, 0))), color="#1f5f8b", lw=2.4)
axes.annotate("y*(x)", (0.30, 0.60), (0.10, 0.78), color="#1f5f8b", fontsize=13)
at = 0.95
best = np.sqrt(2 - at**2)
axes.plot([at, at], [0, 1.7], color="#777777", lw=0.9, ls=":")
axes.annotate("", (at, best), (at, 0.28), arrowprops={"arrowstyle": "-|>", "color": "#444444", "lw": 1.2})
axes.text(at - 0.03, 0.33, "at this x the lower\nlevel goes up to here", ha="right", color="#444444")
axes.plot(at, best, "o", color="#1f5f8b", ms=5)
axes.annotate("kink: the constraint\nbecomes active", (np.sqrt(0.4), 2 * np.sqrt(0.4)), (0.74, 1.44), color="#444444",
              arrowprops={"arrowstyle": "-", "color": "#999999"})  # fmt: skip
axes.plot(1.2, 0.5, "x", color="#b03a2e", ms=9, mew=2)
axes.annotate("least F:\nnot on the curve", (1.2, 0.5), (1.04, 0.12), color="#b03a2e",
              arrowprops={"arrowstyle": "-", "color": "#d9a29c"})  # fmt: skip
axes.plot(float(sol.x), float(sol.y), "o", color="#b03a2e", ms=9)
axes.annotate("the answer", (float(sol.x), float(sol.y)), (1.34, 0.75), color="#b03a2e", weight="bold",
              arrowprops={"arrowstyle": "-", "color": "#d9a29c"})  # fmt: skip
axes.text(0.30, 0.08, "H(x, y) ≤ 0", color="#5b7d97")
axes.set(xlabel="x, chosen by the upper level", ylabel="y, chosen by the lower level", xlim=(0, 1.65), ylim=(0, 1.7))
axes.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1], metadata={"Date": None})
