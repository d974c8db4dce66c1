r"""
A portfolio against the worst returns of an ellipsoid
=====================================================

A pension fund splits its money over five asset classes. It knows the covariance of their returns well and the expected
returns badly, as ten years of data give no more than that. So it plays against an adversary: whatever the weights
:math:`w`, the returns :math:`r` (percent per year) are the worst in the ellipsoid of all that the data do not exclude,

.. math:: \min_r\; w^\top r \quad\text{subject to}\quad (r - \hat r)^\top S^{-1} (r - \hat r) \le \kappa^2 ,

with the estimate :math:`\hat r` and its covariance :math:`S`. The fund maximises the return that is left minus a charge
for risk, :math:`w^\top r - \tfrac{\gamma}{2} w^\top \Sigma w`. The lower level has a linear objective and one nonlinear
constraint, which is always active at its solution. The answer is known from a cone program, which is the check.
"""

import clarabel
import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy import sparse

import hierax as hx

jax.config.update("jax_enable_x64", True)  # weights are compared with Clarabel's to 1e-4

NAMES = ["bonds", "credit", "property", "shares", "private equity"]
MEAN = np.array([1.5, 2.6, 3.4, 5.2, 6.0])  # percent per year, used to draw the data
DEVIATION = np.array([3.0, 5.0, 9.0, 15.0, 19.0])  # percent per year
CORRELATION = 0.25 + 0.75 * np.eye(5)
CORRELATION[3, 4] = CORRELATION[4, 3] = 0.7
SIGMA = CORRELATION * np.outer(DEVIATION, DEVIATION)

years = 10
returns = np.random.default_rng(1).multivariate_normal(MEAN, SIGMA, years)
ESTIMATE, S = returns.mean(0), SIGMA / years  # the estimate and its covariance
INVERSE = np.linalg.inv(S)
KAPPA, GAMMA = 1.0, 0.02  # standard errors; charge per squared percent of variance

# %%
# The problem in hierax
# ---------------------
problem = hx.Problem(
    upper=lambda w, r, _: -(w @ r) + 0.5 * GAMMA * w @ SIGMA @ w,
    lower=lambda w, r, _: w @ r,
    constraints=lambda w, r: {"ellipsoid": (r - ESTIMATE) @ INVERSE @ (r - ESTIMATE) - KAPPA**2},
    x_set=hx.Simplex(),
)
sol = hx.solve(problem, np.full(5, 0.2), ESTIMATE)
print("estimate     ", ESTIMATE.round(2), "percent per year")
print("worst returns", np.round(sol.y, 2), "percent per year")
print("weights      ", np.round(sol.x, 4), f"({sol.status.name})")

# %%
# Two checks
# ----------
# The worst returns have a closed form, :math:`r = \hat r - \kappa S w / \sqrt{w^\top S w}`. With it the fund's problem
# is a cone program in :math:`w` and :math:`t \ge \sqrt{w^\top S w}`, which Clarabel solves.
w = np.asarray(sol.x)
closed = ESTIMATE - KAPPA * S @ w / np.sqrt(w @ S @ w)
assert np.allclose(sol.y, closed, atol=1e-4)  # percent per year


def by_clarabel(kappa):
    """The weights of the cone program."""
    n, half = len(MEAN), np.linalg.cholesky(S).T
    quadratic = sparse.csc_matrix(np.triu(np.pad(GAMMA * SIGMA, (0, 1))))
    rows = np.zeros((2 * n + 2, n + 1))
    rows[0, :n], rows[1 : n + 1, :n], rows[n + 1, n], rows[n + 2 :, :n] = 1.0, -np.eye(n), -1.0, -half
    right = np.eye(2 * n + 2)[0]
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(n), clarabel.SecondOrderConeT(n + 1)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    linear = np.append(-ESTIMATE, kappa)
    solver = clarabel.DefaultSolver(quadratic, linear, sparse.csc_matrix(rows), right, cones, settings)
    return np.array(solver.solve().x[:n])


reference = by_clarabel(KAPPA)
print("Clarabel     ", reference.round(4))
assert np.allclose(w, reference, atol=1e-4)

# %%
# What is known
# -------------
# The fund's problem is convex in :math:`w`, so the local statement of the certificate is a global one here.
print(sol.certificate)

# %%
# The more the estimate is doubted, the more of the money goes into bonds, whose return is known best. The line at
# :math:`\kappa = 1` is the answer above. Property and private equity are not held at any :math:`\kappa`.
kappas = np.linspace(0.0, 3.0, 31)
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
left.stackplot(kappas, np.array([by_clarabel(k) for k in kappas]).T, labels=NAMES)
left.axvline(KAPPA, color="k", linewidth=0.8)
left.plot(np.full(5, KAPPA), np.cumsum(w), "ko", markersize=4, label="hierax")
left.set(xlabel=r"size of the ellipsoid $\kappa$, standard errors", ylabel="weights", xlim=(0, 3), ylim=(0, 1))
left.legend(loc="upper right", fontsize=8)
at = np.arange(5)
right.bar(at - 0.2, ESTIMATE, 0.4, label="estimate")
right.bar(at + 0.2, np.asarray(sol.y), 0.4, label="worst in the ellipsoid")
right.set_xticks(at, NAMES, fontsize=8)
right.set(ylabel="return, percent per year")
right.legend()
fig.tight_layout()
plt.show()
