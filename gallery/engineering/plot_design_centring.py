r"""
Design centring: the largest tolerance in which every part works
================================================================

A low-pass filter consists of a resistor :math:`R` (kΩ) and a capacitor :math:`C` (nF). Parts differ from their nominal
values, and the wider the tolerance a designer can accept, the cheaper they are. Which nominal values allow the widest
tolerance, so that *every* filter within it keeps its specifications? With :math:`y = (\ln R, \ln C)` a tolerance is a
disc of radius :math:`r` around the centre :math:`c`; a radius of 0.1 is about 10 %.

"Every part" makes it bilevel: for each specification :math:`g_k(y) \le 0` a lower level looks for the worst part,

.. math:: y_k = \operatorname{argmax}_y\; g_k(y) \quad\text{subject to}\quad \|y - c\|^2 \le r^2 ,

and the upper level chooses :math:`c` and the largest :math:`r` with :math:`g_k(y_k) \le 0` for all :math:`k`.
Programs with infinitely many constraints are solved in this way (generalised semi-infinite programming; Stein 2003).
The specifications are written such that every :math:`g_k` is concave: the worst part is then the solution of a convex
problem.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import differential_evolution
from scipy.spatial import KDTree

import hierax as hx

jax.config.update("jax_enable_x64", True)  # the radius is checked to 1e-5

# %%
# The specifications
# ------------------
# 1 kΩ · 1 nF is 1 µs. The source has 1 kΩ of its own, and at 20 kHz a capacitor of 1 nF has 7.958 kΩ.
SETTLE, RIPPLE, LOAD, IMPEDANCE, SOURCE, REACTANCE = 30.0, 25.0, 6.0, 2.0, 1.0, 7.958


def specifications(y):
    """What must be <= 0, for parts with y[..., 0] = ln R, y[..., 1] = ln C."""
    u, v = y[..., 0], y[..., 1]
    return {
        "settles in time": u + v - jnp.log(SETTLE),  # R C <= 30 µs
        "damps the ripple": jnp.log(RIPPLE) - v - jnp.log(SOURCE + jnp.exp(u)),  # (1 kΩ + R) C >= 25 µs
        "drives its load": u - jnp.log(LOAD),  # R <= 6 kΩ
        "input impedance": jnp.log(IMPEDANCE) - 0.5 * jnp.logaddexp(2 * u, 2 * (jnp.log(REACTANCE) - v)),  # >= 2 kΩ
    }


NAMES = list(specifications(np.zeros(2)))


def worst(y):
    """Every specification at its own part: row k of y is the part that specification k looks at."""
    return {name: specifications(y[k])[name] for k, name in enumerate(NAMES)}


problem = hx.Problem(
    upper=lambda x, y, _: -x["radius"],
    lower=lambda x, y, _: -sum(worst(y).values()),
    constraints=lambda x, y: {"within the tolerance": jnp.sum((y - x["centre"]) ** 2, 1) - x["radius"] ** 2},
    upper_constraints=lambda x, y: worst(y),
    x_set={"centre": hx.Box(-1.0, 4.0), "radius": hx.Box(0.01, 2.0)},
)
start = np.log([3.0, 8.0])
sol = hx.solve(problem, {"centre": start, "radius": 0.05}, np.tile(start, (4, 1)))
centre, radius = np.asarray(sol.x["centre"]), float(sol.x["radius"])
print(f"R = {np.exp(centre[0]):.3f} kΩ, C = {np.exp(centre[1]):.3f} nF, radius {radius:.5f} ({sol.status.name})")

# %%
# Two checks
# ----------
# Geometry: the radius of the largest disc around a centre is its distance to the nearest boundary curve. The curves are
# known, so SciPy can move the centre. Sampling: a hundred thousand filters from the disc all work.
u = np.linspace(-1.0, 3.0, 50_001)
inner = u[u < np.log(IMPEDANCE) - 1e-6]
CURVES = {
    "settles in time": (u, np.log(SETTLE) - u),
    "damps the ripple": (u, np.log(RIPPLE) - np.log(SOURCE + np.exp(u))),
    "drives its load": (np.full_like(u, np.log(LOAD)), u),
    "input impedance": (inner, np.log(REACTANCE) - 0.5 * np.log(IMPEDANCE**2 - np.exp(2 * inner))),
}
tree = KDTree(np.concatenate([np.stack(curve, 1) for curve in CURVES.values()]))
works = jax.jit(lambda c: jnp.all(jnp.array(list(specifications(c).values())) <= 0.0))
away = lambda c: -tree.query(c)[0] if works(c) else 1.0
best = differential_evolution(away, [(0.3, 1.8), (1.0, 2.7)], rng=0, tol=1e-10, polish=False)
print(f"by geometry: R = {np.exp(best.x[0]):.3f} kΩ, C = {np.exp(best.x[1]):.3f} nF, radius {-best.fun:.5f}")
assert abs(radius + best.fun) < 1e-5 and np.allclose(centre, best.x, atol=1e-3)

rng = np.random.default_rng(0)
angle, share = rng.uniform(0.0, 2.0 * np.pi, 100_000), np.sqrt(rng.uniform(0.0, 1.0, 100_000))
parts = centre + radius * (share * np.array([np.cos(angle), np.sin(angle)])).T
assert max(float(jnp.max(g)) for g in specifications(parts).values()) < 1e-6

# %%
# What is known
# -------------
# Every worst part is found as the solution of a convex problem, so "every part works" is more than a sample of parts.
print(sol.certificate)

# %%
# Dots are the worst parts: three of the four specifications stop the disc.
fig, axis = plt.subplots(figsize=(7.5, 4.8))
for name, curve in CURVES.items():
    axis.plot(*np.exp(curve), label=name)
turn = np.linspace(0.0, 2.0 * np.pi, 200)
axis.fill(*np.exp(centre[:, None] + radius * np.array([np.cos(turn), np.sin(turn)])), color="0.85", label="tolerance")
axis.plot(*np.exp(np.asarray(sol.y)).T, "ko", markersize=4, label="worst parts")
axis.plot(*np.exp(centre), "r*", markersize=12, label="nominal values")
axis.set(xlabel="resistor R, kΩ", ylabel="capacitor C, nF")
axis.set(xscale="log", yscale="log", xlim=(1.2, 7.5), ylim=(3.0, 20.0), aspect="equal")
axis.set_xticks([1.5, 2, 3, 4, 6], ["1.5", "2", "3", "4", "6"])
axis.set_yticks([3, 5, 10, 20], ["3", "5", "10", "20"])
axis.minorticks_off()
axis.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
fig.tight_layout()
plt.show()
