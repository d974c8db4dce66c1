r"""
How much unfairness to allow a credit score
===========================================

A bank trains a credit score on past decisions. Its auditor wants the score to depend little on which of two districts
an applicant lives in. So the training has a constraint: the covariance between district and score, measured on the
training applicants, is at most :math:`x` in size (Zafar, Valera, Gomez Rodriguez and Gummadi, AISTATS 2017). At
:math:`x = 0` the score loses what it could know; with a large :math:`x` the constraint does nothing. The upper level
picks the slack :math:`x` on other applicants, where it weighs the loss of the score against the difference in
approvals. The lower level is

.. math::

    \min_w \; \frac1N \sum_i \log\big(1 + e^{-l_i z_i^\top w}\big) + \tfrac{\varrho}{2} \|w\|^2
    \quad\text{subject to}\quad
    \Big| \frac1N \sum_i (d_i - \bar d)\, z_i^\top w \Big| \le x ,

with labels :math:`l_i = \pm 1` (paid back or not), districts :math:`d_i \in \{0, 1\}` and losses in nats.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import LinearConstraint, minimize

import hierax as hx

jax.config.update("jax_enable_x64", True)  # the check below asks for seven digits

# %%
# Applicants, made up with a fixed seed: income (thousand euros a year), debt (share of income) and years in the present
# job, standardised, and a constant. Incomes in district 1 are lower by 8 thousand euros, and so are its past approvals.

rng = np.random.default_rng(0)
count = 900
district = (rng.random(count) < 0.4).astype(float)
income = 42.0 - 8.0 * district + 10.0 * rng.normal(size=count)
debt = np.clip(0.35 + 0.05 * district + 0.12 * rng.normal(size=count), 0.0, 1.0)
years = rng.gamma(2.0, 3.0, count)
merit = 0.09 * (income - 38.0) - 5.0 * (debt - 0.37) + 0.06 * (years - 6.0) - 0.5 * district
label = np.where(merit + rng.logistic(size=count) > 0.0, 1.0, -1.0)
columns = np.stack([income, debt, years], axis=1)
features = np.column_stack([(columns - columns.mean(0)) / columns.std(0), np.ones(count)])
train, judge = slice(0, 300), slice(300, 900)
RIDGE, PRICE = 1e-2, 2.0


def loss(w, part):
    """Mean logistic loss."""
    return jnp.mean(jnp.logaddexp(0.0, -label[part] * (features[part] @ w)))


def covariance(w):
    """Of district and score, over the training applicants."""
    return jnp.mean((district[train] - district[train].mean()) * (features[train] @ w))


def approvals(w):
    """Mean probability of approval in both districts, over the judging applicants."""
    chance = jax.nn.sigmoid(features[judge] @ w)
    return [jnp.sum(chance * (district[judge] == d)) / np.sum(district[judge] == d) for d in (0, 1)]


def upper(x, w, zeta):
    """Loss on the judging applicants, and a price of the squared difference in approvals."""
    zero, one = approvals(w)
    return loss(w, judge) + PRICE * (zero - one) ** 2


problem = hx.Problem(
    upper=upper,
    lower=lambda x, w, xi: loss(w, train) + 0.5 * RIDGE * jnp.sum(w**2),
    constraints=lambda x, w: {"district 0": covariance(w) - x, "district 1": -covariance(w) - x},
    x_set=hx.Box(0.0, 0.5),
)
sol = hx.solve(problem, 0.2, np.zeros(4))
print(f"slack {sol.x:.4f}, upper objective {sol.value:.5f}")
print(sol.certificate)
print(sol.status.name)

# %%
# Check: at every slack of a grid SciPy's SLSQP trains the score. No slack of the grid may be better than the one that
# hierax found, and at that one both must agree.

train_loss = jax.jit(jax.value_and_grad(lambda w: loss(w, train) + 0.5 * RIDGE * jnp.sum(w**2)))
direction = np.asarray(jax.grad(covariance)(np.zeros(4)))


def trained(slack):
    """The score under a slack, by SciPy."""
    row = LinearConstraint(direction, -slack, slack)
    return minimize(train_loss, np.zeros(4), jac=True, method="SLSQP", constraints=row, options={"ftol": 1e-14}).x


slacks = np.linspace(0.0, 0.5, 51)
scores = [trained(slack) for slack in slacks]
values = np.array([float(upper(None, w, None)) for w in scores])
print(f"best of the grid {values.min():.6f} at slack {slacks[values.argmin()]:.2f}")
assert sol.value <= values.min() + 1e-7
assert abs(float(upper(None, trained(float(sol.x)), None)) - sol.value) < 1e-6

# %%
# The picture: left what the upper level weighs, with the kink where the constraint stops to hold; right both parts of
# it.

free = abs(float(covariance(trained(10.0))))
gap = [float(np.subtract(*approvals(w))) for w in scores]
fig, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
left.plot(slacks, values, label="$F(x, y^*(x))$, by SciPy")
left.axvline(free, color="0.7", lw=1, label="the constraint lets go")
left.plot(sol.x, sol.value, "C3o", label=f"found: slack {sol.x:.3f}")
left.set(xlabel="slack $x$ (covariance of district and score)", ylabel="loss + price (nats)")
left.legend()
right.plot(100 * np.array(gap), [float(loss(w, judge)) for w in scores])
zero, one = approvals(sol.y)
right.plot(100 * float(zero - one), float(loss(sol.y, judge)), "C3o", label="found by hierax")
right.set(xlabel="difference in approvals (percentage points)", ylabel="loss on judging applicants (nats)")
right.legend()
plt.show()
