"""Lower levels that are trained: a product u * v is fitted to data under a norm bound, which has a closed form.

min over (u, v) of |u * v - t|^2 / 2 with |u|^2 + |v|^2 <= 2 C is, because min of (u^2 + v^2) / 2 under u v = p is |p|,
the projection of t (the mean of the data) on the l1-ball of radius C: soft thresholding. It is not convex in (u, v).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx

ENTRIES, ROWS, TRUE = 120, 40, 12


def data(seed: int) -> np.ndarray:
    """Rows of noise around a mean with a few entries that are one."""
    return np.where(np.arange(ENTRIES) < TRUE, 1.0, 0.0) + 0.8 * np.random.default_rng(seed).normal(
        size=(ROWS, ENTRIES)
    )


TRAIN, VALIDATION = data(1), data(2)


def problem() -> hx.Problem:
    def fit(y, rows):
        return 0.5 * jnp.mean(jnp.sum(((y["u"] * y["v"])[None] - rows) ** 2, axis=1))

    return hx.Problem(
        upper=lambda x, y, zeta: fit(y, zeta),
        lower=lambda x, y, xi: fit(y, xi),
        constraints=lambda x, y: 0.5 * (jnp.sum(y["u"] ** 2) + jnp.sum(y["v"] ** 2)) - x,
        x_set=hx.Box(1.0, 60.0),
        zeta=hx.Finite(VALIDATION),
        xi=hx.Finite(TRAIN),
    )


def start() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"u": 0.2 * rng.normal(size=ENTRIES), "v": 0.2 * rng.normal(size=ENTRIES)}


def solved(bound: float) -> np.ndarray:
    """The projection of the mean of the training rows on the l1-ball."""
    t = TRAIN.mean(axis=0)
    if np.abs(t).sum() <= bound:
        return t
    sizes = np.sort(np.abs(t))[::-1]
    count = np.arange(1, ENTRIES + 1)
    cuts = (np.cumsum(sizes) - bound) / count
    cut = cuts[np.flatnonzero(sizes > cuts)[-1]]
    return np.sign(t) * np.maximum(np.abs(t) - cut, 0.0)


def loss(p: np.ndarray, rows: np.ndarray) -> float:
    return 0.5 * float(np.mean(np.sum((p - rows) ** 2, axis=1)))


def phi(bound: float) -> float:
    return loss(solved(bound), VALIDATION)


def test_auto_finds_the_best_bound_and_claims_no_proof():
    best = min(np.linspace(1.0, 60.0, 2000), key=phi)
    sol = hx.solve(problem(), 3.0, start(), seed=0)
    assert phi(float(sol.x)) <= phi(best) + 1e-3 * (phi(3.0) - phi(best))
    assert sol.status.name == "unproved"
    certificate = sol.certificate
    assert certificate.verdict() == "unknown" and certificate.max_violation <= 1e-4
    assert certificate.lower_gap == pytest.approx(0.0, abs=1e-4)
    assert "trained, not solved" in certificate.reasons()[-1] and "retrained" in str(certificate)


@pytest.mark.usefixtures("as_users_start")
def test_in_single_precision_no_array_of_double_precision_leaks():
    """JAX would warn of it, and warnings are errors here."""
    sol = hx.solve(problem(), np.float32(20.0), jax.tree.map(np.float32, start()), hx.Auto(seconds=8.0), throw=False)
    assert {leaf.dtype for leaf in jax.tree.leaves((sol.x, sol.y))} == {np.dtype("float64")}
    assert sol.certificate.verdict() != "yes"


def test_a_bound_that_is_too_tight_is_refuted():
    best, rng = solved(3.0), np.random.default_rng(0)
    size = np.sqrt(np.abs(best)) + 1e-6 * np.abs(rng.normal(size=ENTRIES))  # where both are zero no training moves
    y = {"u": jnp.asarray(size), "v": jnp.asarray(np.where(best < 0, -size, size))}
    certificate = hx.certify(problem(), 3.0, y)
    assert certificate.verdict() == "no"
    assert any("not a minimum above" in reason for reason in certificate.reasons())


def test_out_of_time_says_so():
    sol = hx.solve(problem(), 3.0, start(), seconds=0.5)
    assert sol.status.name == "seconds" and np.isfinite(sol.value)
