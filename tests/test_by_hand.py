"""Unit tests of hierax.estimators._linear, and through it of the engine's problems by hand and of blocks.

Derivatives by hand are those of the stated problem, systems are solved, and the certificate is that of `hx.certify`.
"""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import hierax as hx
from hierax._lower.linear import KKTSystem
from hierax.estimators import BilevelSVC, HyperCleaner
from hierax.estimators._linear import LinearByHand

ROWS, FEATURES = 40, 3


def data(classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(ROWS) % classes
    return rng.normal(size=(ROWS, FEATURES)) + 1.5 * np.eye(FEATURES)[labels], labels


@pytest.fixture(scope="module", params=["svc", "cleaner"])
def fitted(request):
    if request.param == "svc":
        return BilevelSVC(cv=2, random_state=0).fit(*data(3))
    return HyperCleaner(cv=2, random_state=0).fit(*data(2))


class Autodiff:
    """The stated problem as functions of vectors, at a point beside the tuned one."""

    def __init__(self, fitted):
        self.problem, x, y = fitted.stated_
        rng = np.random.default_rng(1)
        (self.x, self._x_of), (self.y, self._y_of) = ravel_pytree(x), ravel_pytree(y)
        self.x = np.asarray(self.x) + 0.01 * rng.normal(size=self.x.size)
        self.y = np.asarray(self.y) + 0.01 * rng.normal(size=self.y.size)
        self.mu = rng.uniform(size=self.rows(self.x, self.y).size)

    def rows(self, x, y):
        return ravel_pytree(self.problem.constraints(self._x_of(x), self._y_of(y)))[0].astype(float)

    def upper(self, x, y):
        return self.problem.upper(self._x_of(x), self._y_of(y), None)

    def lower(self, x, y):
        return self.problem.lower(self._x_of(x), self._y_of(y), None)

    def lagrangian(self, x, y):
        return self.lower(x, y) + self.mu @ self.rows(x, y)


def test_derivatives_are_those_of_the_stated_problem(fitted):
    auto, hand = Autodiff(fitted), LinearByHand(fitted._kept)
    at, close = (auto.x, auto.y), {"rtol": 1e-9, "atol": 1e-12}
    found = hand.slopes(*at, auto.mu)
    in_x, in_y = jax.jit(jax.grad(auto.lagrangian, (0, 1)))(*at)
    wanted = auto.lower(*at), in_x, in_y, auto.rows(*at)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, **close)
    matrices = hand.matrices(*at, auto.mu)
    np.testing.assert_allclose(matrices.hessian.toarray(), jax.jit(jax.hessian(auto.lagrangian, 1))(*at), **close)
    np.testing.assert_allclose(matrices.jacobian.toarray(), jax.jit(jax.jacobian(auto.rows, 1))(*at), **close)

    def below(x):
        return jnp.concatenate([jax.grad(auto.lagrangian, 1)(x, auto.y), auto.rows(x, auto.y)])

    mixed = hand.mixed(*at, auto.mu)
    np.testing.assert_allclose(mixed, jax.jit(jax.jacobian(below))(auto.x), **close)
    adjoints = np.random.default_rng(2).normal(size=(3, mixed.shape[0]))
    np.testing.assert_allclose(hand.pulled(*at, auto.mu, adjoints), adjoints @ mixed, **close)
    value, slopes = jax.jit(jax.value_and_grad(auto.upper, (0, 1)))(*at)
    for mine, theirs in zip(hand.upper(*at), (value, *slopes), strict=True):
        np.testing.assert_allclose(mine, theirs, **close)


def test_blocks_are_their_matrices_and_solve_them(fitted):
    auto = Autodiff(fitted)
    rng = np.random.default_rng(3)
    units = rng.uniform(0.5, 2.0, auto.y.size), rng.uniform(0.5, 2.0, auto.mu.size), 3.0
    plain = LinearByHand(fitted._kept).matrices(auto.x, auto.y, auto.mu)
    blocks = plain.scaled(*units)
    hessian, jacobian = blocks.hessian.toarray(), blocks.jacobian.toarray()
    np.testing.assert_allclose(hessian, plain.hessian.toarray() * units[0] * units[0][:, None] / 3.0)
    np.testing.assert_allclose(jacobian, plain.jacobian.toarray() * units[0] / units[1][:, None])
    active = rng.uniform(size=auto.mu.size) < 0.5
    of_y, of_rows = rng.normal(size=(auto.y.size, 2)), rng.normal(size=(auto.mu.size, 2))
    dy, dmu = KKTSystem(blocks, active).solve(of_y, of_rows)
    np.testing.assert_allclose(hessian @ dy + jacobian.T @ dmu, of_y, atol=1e-9)
    np.testing.assert_allclose((jacobian @ dy)[active], of_rows[active], atol=1e-9)
    assert not dmu[~active].any()
    one, _ = KKTSystem(blocks, active).solve(of_y[:, 0], of_rows[:, 0])
    np.testing.assert_allclose(one, dy[:, 0])
    np.testing.assert_allclose(blocks.along(dy), jacobian @ dy, atol=1e-12)
    np.testing.assert_allclose(blocks.back(dmu), jacobian.T @ dmu, atol=1e-12)
    everything = np.ones(auto.y.size, bool)
    assert blocks.least_curvature(everything) == pytest.approx(np.linalg.eigvalsh(hessian)[0])
    assert blocks.convex(0.0) and blocks.finite
    np.testing.assert_allclose(blocks.curvatures(), np.diag(hessian))
    size, norms = blocks.sizes()
    assert size == pytest.approx(np.sqrt(np.sum(hessian**2) / len(hessian)))
    np.testing.assert_allclose(norms, np.linalg.norm(jacobian, axis=1))


def test_the_certificate_is_that_of_certify(fitted):
    mine, theirs = fitted.certificate_, hx.certify(*fitted.stated_)
    assert mine.own_tol == fitted.tol and mine.verdict() == mine.verdict(fitted.tol)
    assert f"verdict at tol {fitted.tol:g}" in str(mine)
    assert mine.verdict(1e-4) == theirs.verdict(1e-4) and mine.verdict(1e-2) == theirs.verdict(1e-2)
    assert mine.distance <= 1e-6 and mine.kkt_residual <= 1e-8 and mine.max_violation <= 1e-12
    assert float(mine.reference.value) == pytest.approx(float(theirs.reference.value), rel=1e-9)
    if mine.hypergradient_norm is not None:
        assert mine.hypergradient_norm == pytest.approx(theirs.hypergradient_norm, rel=1e-3, abs=1e-6)


def test_a_certificate_by_hand_objects_to_other_weights(fitted):
    wrong = copy.copy(fitted)
    wrong._kept = {**fitted._kept, "log_cost": fitted._kept["log_cost"] + 1.0}
    wrong.__dict__.pop("_certificate", None)
    assert wrong.certificate_.verdict() == "no"  # the planes are those of another cost
