r"""
Shrink wrap: a membrane over an obstacle
========================================

A packaging machine stretches a film over a tray of 20 cm by 20 cm, 4 cm above its bottom, and draws it down on to the
product by four suction nozzles. On the place of the label the film must lie on the product; suction costs energy. How
much should each nozzle draw? Everybody who shapes something that ends in contact has this problem: where the film will
touch is not known in advance, and it changes with the design.

The lower level is the film. Its height :math:`u` (cm) on a grid minimises the energy of a membrane under tension
:math:`T` (N/cm) and suction :math:`p_x` (N/cm²), and stays above the product :math:`\psi`:

.. math:: \min_{u \ge \psi}\; \int \tfrac{T}{2} |\nabla u|^2 + p_x u , \qquad u = 4 \text{ at the rim.}

The upper level chooses the suction :math:`x` of the nozzles (mbar, 100 mbar = 1 N/cm²): the mean squared gap on the
label's place plus a price for suction is to be least. Such problems are called mathematical programs with equilibrium
constraints; the packaging problem is a classic of them (Outrata, Kocvara and Zowe 1998).
"""

import clarabel
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy import sparse
from scipy.optimize import minimize

import hierax as hx

jax.config.update("jax_enable_x64", True)  # contact is a matter of small differences

# %%
# Film, product and nozzles on a grid
# -----------------------------------
N, SIDE, RIM, TENSION = 13, 20.0, 4.0, 0.5  # inner grid points per side; cm; cm; N/cm
STEP = SIDE / (N + 1)
S, T = np.meshgrid(*[np.linspace(-SIDE / 2 + STEP, SIDE / 2 - STEP, N)] * 2, indexing="ij")  # cm from the middle
PRODUCT = 2.8 - ((S - 1.5) / 5.5) ** 2 - ((T + 1.0) / 4.5) ** 2  # cm; a loaf, off the middle
LABEL = np.hypot(S - 2.5, T + 0.5) < 3.2  # the label's place
NOZZLES = np.stack([np.exp(-((S - a) ** 2 + (T - b) ** 2) / (2 * 3.0**2)) for a in (-5, 5) for b in (-5, 5)])
WEIGHT = 0.002  # mm² of mean squared gap that a squared mbar is worth


def energy(x, u, _):
    """Energy of the film, N cm: half the tension times squared slopes, and the work of the suction."""
    film = jnp.pad(u, 1, constant_values=RIM)
    slopes = jnp.sum(jnp.diff(film, axis=0) ** 2) + jnp.sum(jnp.diff(film, axis=1) ** 2)
    return 0.5 * TENSION * slopes + STEP**2 * jnp.sum(0.01 * jnp.tensordot(x, NOZZLES, 1) * u)


problem = hx.Problem(
    upper=lambda x, u, _: jnp.mean((10.0 * (u - PRODUCT)[LABEL]) ** 2) + WEIGHT * jnp.sum(x**2),
    lower=energy,
    constraints=lambda x, u: {"product": PRODUCT - u},
    x_set=hx.Box(0.0, 50.0),
)
sol = hx.solve(problem, np.full(4, 5.0), np.full((N, N), RIM))
x, u = np.asarray(sol.x), np.asarray(sol.y)
print(f"suction {x.round(3)} mbar, value {sol.value:.5f} mm² ({sol.status.name})")
print(f"the film touches the product at {np.sum(u - PRODUCT < 1e-6)} of {N * N} points; label: {LABEL.sum()}")

# %%
# A check
# -------
# Clarabel solves the film's quadratic program, from matrices of our own; SciPy's L-BFGS-B moves the nozzles by finite
# differences, from the same start.
laplace = sparse.diags([-np.ones(N - 1), 2 * np.ones(N), -np.ones(N - 1)], [-1, 0, 1])
stiffness = TENSION * (sparse.kron(laplace, sparse.eye(N)) + sparse.kron(sparse.eye(N), laplace))
rim = stiffness @ np.full(N * N, RIM)  # what the rim pulls: the flat film is at rest
SETTINGS = clarabel.DefaultSettings()
SETTINGS.verbose = False
SETTINGS.tol_gap_abs = SETTINGS.tol_gap_rel = SETTINGS.tol_feas = 1e-10


def film(x):
    """The film's heights by Clarabel."""
    linear = STEP**2 * 0.01 * np.tensordot(x, NOZZLES, 1).ravel() - rim
    cones = [clarabel.NonnegativeConeT(N * N)]
    rows = -sparse.eye(N * N, format="csc")
    upper = sparse.triu(stiffness, format="csc")
    solver = clarabel.DefaultSolver(upper, linear, rows, -PRODUCT.ravel(), cones, SETTINGS)
    return np.array(solver.solve().x).reshape(N, N)


value = lambda x: float(np.mean((10.0 * (film(x) - PRODUCT)[LABEL]) ** 2) + WEIGHT * np.sum(x**2))
best = minimize(value, np.full(4, 5.0), bounds=[(0.0, 50.0)] * 4, method="L-BFGS-B", options={"eps": 1e-4})
print(f"SciPy and Clarabel: suction {best.x.round(3)} mbar, value {best.fun:.5f} mm²; at the answer {value(x):.5f}")
assert abs(value(x) - sol.value) < 1e-4 and sol.value < best.fun + 1e-4  # mm²

# %%
# What is known
# -------------
# Whenever a further point comes into contact, the upper objective has a kink. The answer lies between two of them: the
# line *active rows* says how far the suction may move, in units of half its range, until the contact changes.
print(*(line for line in sol.log if "Globality" in line))
print(sol.certificate)

# %%
# The film lies on 12 of the label's 15 points. To close the gap at the others would take more suction than it is worth.
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
extent = [-SIDE / 2 + STEP / 2, SIDE / 2 - STEP / 2] * 2
shown = left.imshow((u - PRODUCT).T, origin="lower", extent=extent, vmax=2.0)
fig.colorbar(shown, ax=left, extend="max", label="gap between film and product, cm")
left.contour(S, T, u - PRODUCT, levels=[1e-4], colors="white")
left.contour(S, T, LABEL, levels=[0.5], colors="red", linestyles="--")
left.set(xlabel="cm from the middle", ylabel="cm from the middle", title="white: contact; red: the label's place")
row = int(np.argmin(np.abs(T[0] + 0.5)))
right.plot(S[:, row], PRODUCT[:, row], "k", label="product")
for heights, name in ((film(np.full(4, 5.0)), "film, 5 mbar at every nozzle"), (u, "film, answer")):
    right.plot([-SIDE / 2, *S[:, row], SIDE / 2], [RIM, *heights[:, row], RIM], ".-", label=name)
right.set(xlabel="cm from the middle", ylabel="height, cm", ylim=(0.0, 5.0))
right.legend(fontsize=8, loc="upper center")
fig.tight_layout()
plt.show()
