r"""
A weight for every training sample of an SVM
============================================

A clinic trains a linear support vector machine to tell malignant from benign tumours. A quarter of its training labels
are wrong (here on purpose: we flip them, and remember which), but a second, smaller group of patients was diagnosed
twice, and is right. Which training patients should count, and how much?

The upper level chooses the logarithm :math:`x_i` of the weight of training patient :math:`i`, so that the trained
machine is good on the patients diagnosed twice. The lower level is the training: with features :math:`z_i`
(standardised, without units, a constant one among them), labels :math:`l_i = \pm 1` and slacks :math:`s_i`,

.. math::

    \min_{w, s} \; \tfrac12 \|w\|^2 + \tfrac12 \sum_i e^{x_i} s_i^2
    \quad\text{subject to}\quad 1 - l_i\, z_i^\top w - s_i \le 0 .

The data are the Wisconsin breast cancer data that come with scikit-learn.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import hierax as hx

# Slacks and weights differ by orders of magnitude: double precision keeps the digits of both.
jax.config.update("jax_enable_x64", True)

# %%
# Eighty patients to train on, twenty of them with a flipped label, eighty diagnosed twice, and the other 409 to test.

features, kinds = load_breast_cancer(return_X_y=True)
rng = np.random.default_rng(0)
order = rng.permutation(len(kinds))
features = np.insert(StandardScaler().fit_transform(features[order]), 30, 1.0, axis=1)
labels = np.where(kinds[order] == 1, 1.0, -1.0)
train, judge, test = slice(0, 80), slice(80, 160), slice(160, None)
flipped = np.zeros(80, bool)
flipped[rng.choice(80, 20, replace=False)] = True
given = np.where(flipped, -labels[train], labels[train])

# %%
# The upper level measures the machine by the logistic loss on the patients diagnosed twice. A small price keeps the
# weights near their common start where these patients have no opinion.


def upper(x, y, zeta):
    """Mean logistic loss (natural logarithm) of the judging patients, and the price of unequal weights."""
    margins = labels[judge] * (features[judge] @ y["w"])
    return jnp.mean(jnp.logaddexp(0.0, -margins)) + 1e-3 * jnp.mean((x - jnp.mean(x)) ** 2)


problem = hx.Problem(
    upper=upper,
    lower=lambda x, y, xi: 0.5 * jnp.sum(y["w"] ** 2) + 0.5 * jnp.sum(jnp.exp(x) * y["slack"] ** 2),
    constraints=lambda x, y: {"margin": 1.0 - given * (features[train] @ y["w"]) - y["slack"]},
    x_set=hx.Box(-6.0, 3.0),
)
sol = hx.solve(problem, np.full(80, -2.0), {"w": np.zeros(31), "slack": np.ones(80)})
print(sol.certificate)
print(sol.status.name)

# %%
# Check: scikit-learn's ``LinearSVC`` solves the same lower level. With the weights that hierax found it must give the
# same machine, and with equal weights it is the ordinary one.


def machine(weights):
    """scikit-learn's machine for these sample weights (scaled to mean one; the cost takes the scale back)."""
    mean = weights.mean()
    svc = LinearSVC(loss="squared_hinge", dual=False, fit_intercept=False, C=0.5 * mean, tol=1e-10, max_iter=100_000)
    return svc.fit(features[train], given, sample_weight=weights / mean).coef_[0]


weights = np.exp(np.asarray(sol.x))
print(f"largest difference of a coefficient from scikit-learn's: {np.abs(machine(weights) - sol.y['w']).max():.1e}")
assert np.abs(machine(weights) - sol.y["w"]).max() < 1e-4

# %%
# The weights are a list of suspects. We take as many as were flipped, leave them out, and train on the other
# patients together with those diagnosed twice. Beside it: equal weights, at the cost that is best for the patients
# diagnosed twice.

suspects = np.argsort(weights)[:20]
print(f"flipped among the 20 suspects: {flipped[suspects].sum()}")
print(f"chance that a flipped label has the smaller weight: {roc_auc_score(~flipped, weights):.2f}")

accuracy = lambda w, part: 100 * np.mean(np.sign(features[part] @ w) == labels[part])  # per cent
keep = np.setdiff1d(np.arange(160), suspects)
both = np.concatenate([given, labels[judge]])
svc = LinearSVC(dual=False, fit_intercept=False, C=0.05)
machines = {
    "equal weights": max((machine(np.full(80, c)) for c in np.logspace(-4, 2, 13)), key=lambda w: accuracy(w, judge)),
    "weights by hierax": sol.y["w"],
    "suspects left out": svc.fit(features[keep], both[keep]).coef_[0],
    "diagnosed twice only": svc.fit(features[judge], labels[judge]).coef_[0],
}
for name, w in machines.items():
    print(f"{name:20s} test accuracy {accuracy(w, test):.1f} %")

# %%
# The weighted machine itself is not the better classifier: 80 weights were chosen by 80 patients, and fit them too well
# (their loss falls from 0.50, the best of the equal weights, to 0.10). What is learnt is which labels to look at again;
# eighty right diagnoses alone train as good a machine here. The picture shows the weights, sorted.

rank = np.argsort(weights)
fig, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
axes.scatter(np.arange(80), weights[rank], c=np.where(flipped[rank], "C3", "C0"), s=22)
axes.scatter([], [], c="C0", s=22, label="right label")
axes.scatter([], [], c="C3", s=22, label="flipped label")
axes.set(yscale="log", xlabel="training patients, sorted", ylabel="weight $e^{x_i}$")
axes.legend(loc="upper left")
plt.show()
