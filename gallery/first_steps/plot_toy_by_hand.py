r"""
A problem solved by hand, then by hierax
========================================

A leader sets one number :math:`x`; a follower answers with one number :math:`y`. The follower would like to have
:math:`y = 2x`, but must keep :math:`y \le x` and :math:`-2 \le y \le 2`. The leader knows this, and wants :math:`y` to
be near 1 at a small price for :math:`x`:

.. math::

    \min_{-1 \le x \le 3} \; F(x, y) = (y - 1)^2 + 0.1\,x^2
    \quad\text{where } y \text{ solves}\quad
    \min_{-2 \le y \le 2} \; G(x, y) = (y - 2x)^2 \;\text{ subject to }\; H(x, y) = y - x \le 0 .

It is the problem of the README on wider sets. All numbers are without units. It is small enough for paper, and it
already has what makes bilevel problems hard: the follower's answer has kinks, and so has what the leader minimises.
"""

# %%
# On paper
# --------
#
# The follower's objective is a parabola around :math:`2x`, so its answer is the allowed :math:`y` nearest to
# :math:`2x`. There are three cases.
#
# ============================  ======================  ==============================  ==========================
# :math:`x`                     :math:`y^*(x)`          what holds the follower         multiplier of :math:`H`
# ============================  ======================  ==============================  ==========================
# :math:`-1 \le x \le 0`        :math:`2x`              nothing: :math:`2x \le x`       0
# :math:`0 \le x \le 2`         :math:`x`               :math:`y \le x`                 :math:`2x`
# :math:`2 \le x \le 3`         2                       :math:`y \le 2`                 0
# ============================  ======================  ==============================  ==========================
#
# In the second case :math:`G_y + \lambda H_y = 2(y - 2x) + \lambda = 0` at :math:`y = x` gives
# :math:`\lambda = 2x`. Put into :math:`F`, the leader minimises
#
# .. math::
#
#     \varphi(x) = F(x, y^*(x)) =
#     \begin{cases}
#     (2x - 1)^2 + 0.1\,x^2 & x \le 0 \\
#     (x - 1)^2 + 0.1\,x^2 & 0 \le x \le 2 \\
#     1 + 0.1\,x^2 & x \ge 2
#     \end{cases}
#
# Its slope jumps from -4 to -2 at 0 and from 2.4 to 0.4 at 2: two kinks, neither of them a minimum. The middle piece
# has slope zero where :math:`2(x - 1) + 0.2\,x = 0`, so :math:`x^* = y^* = 1/1.1`, the multiplier is :math:`2/1.1`, and
# :math:`F = 0.1/1.1`.

import matplotlib.pyplot as plt
import numpy as np

import hierax as hx


def answer(x):
    """The follower's answer, from the table."""
    return np.minimum(np.minimum(2.0 * x, x), 2.0)


def leader(x):
    """What the leader minimises, F(x, y*(x))."""
    return (answer(x) - 1.0) ** 2 + 0.1 * x**2


# %%
# With hierax
# -----------
#
# Both levels are stated as they stand above. Nothing is said about cases, kinks or multipliers, and the start is on the
# wrong side of the first kink.

problem = hx.Problem(
    upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
    lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
    constraints=lambda x, y: y - x,
    x_set=hx.Box(-1.0, 3.0),
    y_set=hx.Box(-2.0, 2.0),
)
sol = hx.solve(problem, -0.5, -1.0)
print(f"x = {sol.x:.4f}, y = {sol.y:.4f}, multiplier {sol.multipliers.inequalities:.4f}, F = {sol.value:.5f}")
print(f"by hand: x = y = {1 / 1.1:.4f}, multiplier {2 / 1.1:.4f}, F = {0.1 / 1.1:.5f}")
# JAX computes in single precision unless told otherwise: five digits of x and y are what we may ask for.
assert abs(sol.x - 1 / 1.1) < 1e-5 and abs(sol.y - 1 / 1.1) < 1e-5
assert abs(sol.multipliers.inequalities - 2 / 1.1) < 1e-4

# %%
# The certificate solves the follower's problem once more at the point that was found and says whether the point is
# feasible, optimal below, and a local minimum above. ``sol.status`` rests on it.

print(sol.certificate)
print(sol.status.name)
assert sol.certificate.ok()

# The same question about the two kinks gets a no.
for kink in (0.0, 2.0):
    print(kink, hx.certify(problem, kink, float(answer(kink))).verdict())

# %%
# The picture
# -----------
#
# Left: the follower's wish, its limits and its answer. Right: what the leader sees.

x = np.linspace(-1.0, 3.0, 401)
fig, (below, above) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
below.plot(x, 2.0 * x, "--", color="0.6", label="wish $2x$")
below.fill_between(x, -2.2, np.minimum(x, 2.0), color="C0", alpha=0.12, label="allowed: $y \\leq x$, $y \\leq 2$")
below.plot(x, answer(x), "C0", lw=2, label="answer $y^*(x)$")
below.plot(sol.x, sol.y, "C3o", label="found by hierax")
below.set(xlabel="leader's number $x$", ylabel="follower's number $y$", ylim=(-2.2, 3.2), title="lower level")
below.legend(loc="upper left", fontsize=9)
above.plot(x, leader(x), "C0", lw=2, label="$F(x, y^*(x))$")
for kink in (0.0, 2.0):
    above.axvline(kink, color="0.8", lw=1, zorder=0)
above.plot([0.0, 2.0], leader(np.array([0.0, 2.0])), "ws", mec="C0", label="kinks")
above.plot(sol.x, sol.value, "C3o", label=f"found: $x$ = {sol.x:.3f}")
above.set(xlabel="leader's number $x$", ylabel="what the leader minimises, $F$", ylim=(-0.2, 5), title="upper level")
above.legend()
plt.show()
