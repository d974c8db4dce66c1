r"""Exponents: S of Algorithms 2 and 3 as printed against K and the samples, at fixed c and in Theorem 3.2's regime.

One row, quadratic objectives and additive noise,

    F = 2 (x - 1)^2 + (y - 5)^2,   G = (y - 2x)^2/2,   H = y - x <= 0,   gamma1 = gamma2 = 1,

chosen from the constants so that the asymptotic regime is reached early. At c1 = c2 = 1 the row is active for w and
violated by y at the minimiser of Psi, far from where either changes: Psi is quadratic where the runs are. Its
eigenvalues are 0.3 to 10, so that the start is forgotten after some hundred steps. With (w, lam) frozen, as eq. 2.15
has it, its Hessian is still positive definite, so that the printed beta_k is stable. Samples of zeta have a standard
deviation of 4 against 1 of xi: sampling dominates. With (x - 1)^2/8 for 2 (x - 1)^2 the frozen Hessian is indefinite,
and the printed beta_k is not stable; so it is in the regime, c1 = 1/eps and c2 = eps^-3.
"""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hierax import SALM, SALVF, Box, Problem
from hierax.problems.noise import gaussian, linear_term
from hierax_lab.reproduce.published import as_printed, printed_schedule_allowed
from hierax_lab.reproduce.rates_fit import Slope, Values, fit_independent
from hierax_lab.reproduce.rates_outer import Case, Noise, filled, follow, newton_point, squared_stationarity, tail_mean
from hierax_lab.reproduce.rates_sizes import ExponentSizes, Sizes

CURVATURE, LOW = 4.0, 0.25  # of F in x: frozen Hessian positive definite, and indefinite
CURVATURE_Y, TARGETS = 2.0, (1.0, 5.0)  # of F in y, and its minimiser
NOISE = Noise(zeta=4.0, xi=1.0, inner=1.0)
STEP = 0.45  # alpha in units of 1/L_Psi; the theorem wants less than 1/2
SALVF_UNIT, VR_UNIT, REGIME_UNIT = 1 / 50, 1 / 10, 4  # r, q, s over K; q, s over K^(2/3); K over c2/eps


@functools.cache  # one problem, one set of compiled programs
def level_case(curvature: float) -> Case:
    """The problem of this file; runs start at x = y = z = 1, where y = y*(x) and z = lam*(x)."""

    def upper(x: Array, y: Array, zeta: Array | None) -> Array:
        value = jnp.sum(curvature / 2 * (x - TARGETS[0]) ** 2 + CURVATURE_Y / 2 * (y - TARGETS[1]) ** 2)
        return value if zeta is None else value + linear_term(zeta, x, y)

    def lower(x: Array, y: Array, xi: Array | None) -> Array:
        value = jnp.sum((y - 2.0 * x) ** 2) / 2
        return value if xi is None else value + linear_term(xi, x, y)

    box, one = Box(-20.0, 20.0), jnp.ones(1)
    problem = Problem(
        upper, lower, lambda x, y: y - x, x_set=box, y_set=box, zeta=gaussian(1.0, 2), xi=gaussian(1.0, 2)
    )
    return Case("level", problem, one, one, one, np.ones((1, 1)), newton_point, 1.0)


def hessian(c1: float, c2: float, curvature: float, frozen: bool = False) -> Values:
    """Of Psi in (x, y, z) where the row is active; `frozen`: with (w, lam) held fixed."""
    of_e = np.array([[5.0, 0.0], [0.0, -1.0]]) if frozen else np.array([[2.0, 1.0], [1.0, -1.0]]) / 3  # in (x, z)
    found = np.diag([curvature + 4 * c1 + c2, CURVATURE_Y + c1 + c2, 0.0])
    found[0, 1] = found[1, 0] = -2 * c1 - c2
    found[np.ix_([0, 2], [0, 2])] -= c1 * of_e
    return found


def printed(case: Case, smooth: float, c1: float, c2: float, reduced: bool, r: int, q: int, s: int) -> SALVF:
    """Algorithm 2, or 3 where `reduced`, with Algorithm 1 inside, both as printed, at the theorems' step sizes."""
    inner = SALM(steps=s, batch=1, eta=1.0, rho=1.0, warm=False, rule="paper")  # 1/mu_G and 1/gamma2
    weights: dict[str, Any] = {"c1": c1, "c2": c2, "gamma1": 1.0, "gamma2": 1.0}
    method = as_printed(STEP / smooth, reduced, **weights, inner=inner, batch_zeta=r, batch_xi=q)
    return filled(case, method, smooth)


def stationarity(
    c1: float, c2: float, reduced: bool, steps: int, r: int, qs: int, seeds: int, curvature: float = CURVATURE
) -> dict[str, Values]:
    """S per seed: of the random iterate R in mean (Prob(R = k + 1) ~ alpha_k), and over the last tenth of the steps."""
    case, smooth = level_case(curvature), float(np.linalg.norm(hessian(c1, c2, curvature), 2))
    method = printed(case, smooth, c1, c2, reduced, r, qs, qs)
    values = squared_stationarity(case, method, follow(case, method, NOISE, steps, seeds))
    alphas = np.arange(1.0, steps + 1) ** (-1 / 3 if reduced else 0.0)
    return {"R": values @ (alphas / alphas.sum()), "last tenth": tail_mean(values)}


def at_fixed_c(reduced: bool, sizes: ExponentSizes, curvature: float = CURVATURE) -> dict[str, Slope]:
    """c1 = c2 = 1. SALVF with r, q, s ~ K; SALVF-VR with r = 1 and q, s ~ K^(2/3), as the remarks have them.

    The theorem of SALVF-VR has a factor log K, from the sum of alpha_k beta_k ~ 1/k: its S is divided by 1 + log K too.
    """
    steps = sizes.vr_lengths if reduced else sizes.lengths
    batches = [max(1, round(VR_UNIT * k ** (2 / 3) if reduced else SALVF_UNIT * k)) for k in steps]
    first = [1] * len(steps) if reduced else batches
    each = zip(steps, first, batches, strict=True)
    runs = [stationarity(1.0, 1.0, reduced, k, r, qs, sizes.seeds, curvature) for k, r, qs in each]
    found = {name: fit_independent([*steps], [run[name] for run in runs]) for name in runs[0]}
    random = [run["R"] for run in runs]
    if reduced:
        random = [values / (1 + np.log(k)) for k, values in zip(steps, random, strict=True)]
        found["R over 1 + log K"] = fit_independent([*steps], random)
    zeta, xi = np.multiply(steps, first), 2 * np.multiply(steps, batches)
    return found | {"samples of zeta": fit_independent(zeta, random), "samples of xi": fit_independent(xi, random)}


def in_the_regime(reduced: bool, sizes: ExponentSizes) -> Slope:
    """S against eps with c1 = 1/eps, c2 = eps^-3 and q = s = c1^2/eps; both with 4 eps^-5 samples of zeta.

    SALVF takes r = 1/eps of them per step, as the remark has it; SALVF-VR one, so that it makes more steps.
    """
    runs = []
    for c1 in sizes.weights:
        r = 1 if reduced else c1
        runs.append(stationarity(c1, c1**3, reduced, REGIME_UNIT * c1**5 // r, r, c1**3, sizes.seeds)["R"])
    return fit_independent([1 / c1 for c1 in sizes.weights], runs)


def measure(sizes: Sizes) -> dict[str, Any]:
    """Both methods, at fixed c and in the regime, and what the choice of the problem rests on."""
    found: dict[str, Any] = {
        "eigenvalues of Psi": np.linalg.eigvalsh(hessian(1.0, 1.0, CURVATURE)),
        "eigenvalues, (w, lam) frozen": np.linalg.eigvalsh(hessian(1.0, 1.0, CURVATURE, frozen=True)),
        "eigenvalues, (w, lam) frozen, low curvature": np.linalg.eigvalsh(hessian(1.0, 1.0, LOW, frozen=True)),
    }
    with printed_schedule_allowed():
        for name, reduced in (("SALVF", False), ("SALVF-VR", True)):
            fixed, regime = at_fixed_c(reduced, sizes.exponents), in_the_regime(reduced, sizes.exponents)
            found[name] = {"fixed c": fixed, "regime": regime}
        found["SALVF-VR"]["low curvature"] = at_fixed_c(True, sizes.exponents, LOW)
    pairs = zip(*(found[name]["regime"]["mean"] for name in ("SALVF-VR", "SALVF")), strict=True)
    found["VR over SALVF in the regime"] = [reduced / plain for reduced, plain in pairs]
    return found
