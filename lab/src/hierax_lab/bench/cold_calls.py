"""The calls of `hierax bench cold`: scripts as a user would write them, on public names alone.

Each script runs in a fresh process. It finds its arrays, if it needs any, under `data` (see `cold_data`), and may set
`alone` to the CPU seconds of the part that counts; otherwise the whole process counts.
"""

from typing import NamedTuple

import numpy as np

from hierax_lab.bench.medium_data import regression_data, two_clouds
from hierax_lab.bench.medium_planted import ellipsoid_numbers, planted_numbers

README = """
problem = hx.Problem(
    upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
    lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
    constraints=lambda x, y: y - x,
    x_set=hx.Box(0.0, 3.0),
    y_set=hx.Box(0.0, 3.0),
)
sol = hx.solve(problem, 0.5, 0.5)
"""
CERTIFICATE = (
    README
    + """
began = time.process_time()
hx.certify(problem, sol.x, sol.y)
alone = time.process_time() - began
"""
)
TOY = """
from hierax.problems import toy
example = toy({noise})
sol = hx.solve(example.problem, example.x0, example.y0{method})
"""
GAFFA = """
from hierax_lab.problems import gaffa_toy
example = gaffa_toy()
sol = hx.solve(example.problem, example.x0, example.y0, hx.BiCGAFFA(), throw=False)
"""
SVM = """
from hierax_lab.problems import svm
example = svm((data["train"], data["train_labels"]), (data["validation"], data["validation_labels"]))
sol = hx.solve(example.problem, example.x0, example.y0, {method}, throw=False)
"""
PLANTED_UPPER = """
def upper(x, y, zeta):
    dx, dy = x - data["x"], y - data["y"]
    return data["gradient"] @ dy + 0.5 * dy @ dy - data["slope"] @ dx + 2.0 * dx @ dx
"""
PLANTED = (
    PLANTED_UPPER
    + """
problem = hx.Problem(
    upper=upper,
    lower=lambda x, y, xi: 0.5 * y @ data["hessian"] @ y + (data["coupling"] @ x + data["cost"]) @ y,
    constraints=lambda x, y: data["matrix"] @ y - data["rhs"] - data["moves"] @ x,
    x_set=hx.Box(-1.0, 1.0),
    y_set=hx.NonNegative(),
)
sol = hx.solve(problem, np.zeros(5), np.zeros(100), throw=False)
"""
)
RIDGE = """
order = np.random.default_rng(0).permutation(len(data["target"]))
train, rest = order[: len(order) // 2], order[len(order) // 2 :]
def error(y, batch):
    return jnp.mean((batch[0] @ y - batch[1]) ** 2)
problem = hx.Problem(
    upper=lambda x, y, zeta: error(y, zeta),
    lower=lambda x, y, xi: error(y, xi) + jnp.exp(x[0]) * jnp.sum(y**2),
    constraints=lambda x, y: jnp.concatenate([y - x[1], -y - x[1]]),
    x_set=hx.Box(np.array([-8.0, 0.01]), np.array([3.0, 1.0])),
    zeta=hx.Finite((data["features"][rest], data["target"][rest])),
    xi=hx.Finite((data["features"][train], data["target"][train])),
)
sol = hx.solve(problem, np.array([0.0, 0.1]), np.zeros(10), throw=False)
"""
NOISY = (
    PLANTED_UPPER
    + """
def noise(batch, x, y):
    mean = jnp.mean(batch, axis=0)
    return mean[: x.size] @ x + mean[x.size :] @ y
def lower(x, y, xi):
    return 0.5 * y @ data["hessian"] @ y - (data["cost"] + data["coupling"] @ x) @ y + noise(xi, x, y)
def constraints(x, y):
    bodies = 0.5 * jnp.sum(data["weights"] * (y[None] - data["centres"]) ** 2, axis=1) - data["levels"]
    return bodies - data["moves"] @ x + data["shift"]
draw = lambda key, n: 0.5 * jax.random.normal(key, (n, 100))
problem = hx.Problem(
    upper=lambda x, y, zeta: upper(x, y, zeta) + noise(zeta, x, y),
    lower=lower,
    constraints=constraints,
    x_set=hx.Box(-1.0, 1.0),
    zeta=hx.Sampler(draw),
    xi=hx.Sampler(draw),
)
sol = hx.solve(problem, np.zeros(50), np.zeros(50), throw=False)
"""
)


class ColdCall(NamedTuple):
    """A call of the benchmark.

    Attributes:
        script: what is run after the import.
        then: CPU seconds of the same script at commit 7a7040e, one thread, measured once on the machine that the
            targets were set on; None: it does not run there.
        target: CPU seconds that it should take at most; None: it only counts in the sum.
    """

    script: str
    then: float | None
    target: float | None = None


CALLS: dict[str, ColdCall] = {
    "README example, nothing set": ColdCall(README, 4.8),
    "its certificate": ColdCall(CERTIFICATE, 4.1, 1.5),
    "toy, SALVF": ColdCall(TOY.format(noise="", method=", hx.SALVF()"), 8.8, 4.0),
    "toy, BLOCC": ColdCall(TOY.format(noise="0.0", method=", hx.BLOCC(), max_steps=500"), 6.2, 2.0),
    "sampled toy, nothing set": ColdCall(TOY.format(noise="", method=""), 20.3, 8.0),
    "BiC-GAFFA's toy, BiC-GAFFA": ColdCall(GAFFA, 8.2),
    "SVM, GAM": ColdCall(SVM.format(method="hx.GAM(), max_steps=50"), 40.7, 12.0),
    "SVM, SALVF": ColdCall(SVM.format(method="hx.SALVF(), max_steps=2500"), 14.2),
    "planted QP 5+100, nothing set": ColdCall(PLANTED, 66.9),
    "ridge of 442 rows, nothing set": ColdCall(RIDGE, 56.1),
    "noisy quadratic 50+50, nothing set": ColdCall(NOISY, 47.0),
}


def cold_data(name: str) -> dict[str, np.ndarray]:
    """The arrays that a call's script finds under `data`, in double precision; none for most."""
    if name.startswith("SVM"):
        (train, train_labels), (validation, validation_labels) = two_clouds()
        return {
            "train": train,
            "train_labels": train_labels,
            "validation": validation,
            "validation_labels": validation_labels,
        }
    if name.startswith("planted"):
        return planted_numbers(5, 100, 50)
    if name.startswith("noisy"):
        return ellipsoid_numbers(50, 50, 5)
    if name.startswith("ridge"):
        features, target = regression_data()
        return {"features": features, "target": target}
    return {}
