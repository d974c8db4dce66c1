"""The central path of a lower level on the host, and descents along it: conditions, derivatives, and where they end.

Unit tests of hierax._lower.active_set and hierax._auto.descents.
"""

import time

import clarabel
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse

import hierax as hx
from hierax._auto.descents import central_descent, descent, solved_below
from hierax._auto.hunt import Space
from hierax._auto.session import Work
from hierax._engine.float64_problem import Float64Problem
from hierax._lower.active_set import Level, Slopes, centre
from hierax._lower.linear import Matrices
from hierax.extend import Interrupt


class Quadratic:
    """min 1/2 y'My + q'y subject to A y <= b, E y = e, as `Level` sees it; rows of A first."""

    def __init__(self, seed: int, n: int = 6, p: int = 4, held: int = 1) -> None:
        rng = np.random.default_rng(seed)
        root = rng.normal(size=(n, n))
        self.m, self.q = root @ root.T / n + 0.1 * np.eye(n), rng.normal(size=n)
        self.rows = np.concatenate([rng.normal(size=(p, n)), -np.eye(n), rng.normal(size=(held, n))])
        inside = rng.uniform(0.2, 1.0, size=n)
        self.right = self.rows @ inside + np.concatenate([rng.uniform(0.1, 1.0, size=p), inside, np.zeros(held)])
        self.equal = np.arange(p + n + held) >= p + n
        self.right[p : p + n] = 0.0  # y >= 0

    def level(self) -> Level:
        def slopes(y: np.ndarray, mu: np.ndarray) -> Slopes:
            gradient = self.m @ y + self.q + self.rows.T @ mu
            return Slopes(float(0.5 * y @ self.m @ y + self.q @ y), np.zeros(0), gradient, self.rows @ y - self.right)

        return Level(self.equal, slopes, lambda y, mu: Matrices(self.rows, self.m), lambda y: y)

    def solved_outside(self) -> np.ndarray:
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        order = np.argsort(~self.equal, kind="stable")
        cones = [clarabel.ZeroConeT(int(self.equal.sum())), clarabel.NonnegativeConeT(int((~self.equal).sum()))]
        rows, right = sparse.csc_matrix(self.rows[order]), self.right[order]
        solver = clarabel.DefaultSolver(sparse.csc_matrix(np.triu(self.m)), self.q, rows, right, cones, settings)
        return np.array(solver.solve().x)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("t", [1.0, 1e-2, 1e-6])
def test_conditions_of_the_central_path(seed, t):
    problem = Quadratic(seed)
    found = centre(problem.level(), np.full(6, 0.5), np.ones(11), t)
    assert found is not None
    rows, free = problem.rows @ found.y - problem.right, ~problem.equal
    np.testing.assert_allclose(problem.m @ found.y + problem.q + problem.rows.T @ found.mu, 0.0, atol=1e-7)
    np.testing.assert_allclose(-rows[free] * found.mu[free], t, atol=1e-7)
    np.testing.assert_allclose(rows[problem.equal], 0.0, atol=1e-8)
    assert (rows[free] < 0).all() and (found.mu[free] > 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_the_path_ends_at_the_solution(seed):
    """G(y_t) - v <= t times the number of inequalities, and y_t comes to Clarabel's y* as t falls."""
    problem = Quadratic(seed)
    best = problem.solved_outside()
    y, mu = np.full(6, 0.5), np.ones(11)
    for t in (1.0, 1e-2, 1e-4, 1e-6):
        found = centre(problem.level(), y, mu, t)
        assert found is not None
        y, mu = found.y, found.mu
        gap = found.slopes.value - (0.5 * best @ problem.m @ best + problem.q @ best)
        assert -1e-7 <= gap <= 10 * t + 1e-7
    np.testing.assert_allclose(y, best, atol=2e-3)


def test_the_system_is_the_derivative():
    """y_t moves with q by what the system answers: against differences."""
    problem, t, step = Quadratic(0), 1e-2, 1e-5
    direction = np.random.default_rng(1).normal(size=6)
    found = centre(problem.level(), np.full(6, 0.5), np.ones(11), t)
    assert found is not None
    dy, dmu = found.system.solve(-direction, np.zeros(11))
    ends = []
    for side in (step, -step):
        moved = Quadratic(0)
        moved.q = moved.q + side * direction
        ends.append(centre(moved.level(), found.y, found.mu, t))
    np.testing.assert_allclose((ends[0].y - ends[1].y) / (2 * step), dy, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose((ends[0].mu - ends[1].mu) / (2 * step), dmu, rtol=1e-4, atol=1e-5)


def test_without_an_inside_there_is_no_centre():
    problem = Quadratic(0)
    problem.right[:2], problem.rows[1] = -1.0, -problem.rows[0]  # a'y <= -1 and -a'y <= -1
    assert centre(problem.level(), np.full(6, 0.5), np.ones(11), 1e-2) is None


def jagged(seed: int, n: int = 30) -> hx.Problem:
    """One x, and n entries of y that are clipped lines of it: F(x, y*(x)) has dozens of kinks, and a grid tells it."""
    rng = np.random.default_rng(seed)
    a, b, target = (jnp.asarray(part) for part in (rng.normal(size=n), rng.normal(size=n), rng.uniform(size=n)))
    return hx.Problem(
        upper=lambda x, y, _: jnp.mean((y - target) ** 2) + 0.01 * x[0] ** 2,
        lower=lambda x, y, _: jnp.sum(0.05 * y**2 + (a + b * x[0]) * y),
        x_set=hx.Box(-3.0, 3.0),
        y_set=hx.Box(0.0, 1.0),
    )


def upper_on_a_grid(seed: int, n: int = 30) -> float:
    rng = np.random.default_rng(seed)
    a, b, target = rng.normal(size=n), rng.normal(size=n), rng.uniform(size=n)
    x = np.linspace(-3.0, 3.0, 60_001)[:, None]
    y = np.clip(-(a + b * x) / 0.1, 0.0, 1.0)
    return float(np.min(np.mean((y - target) ** 2, axis=1) + 0.01 * x[:, 0] ** 2))


@pytest.mark.slow  # what it rests on is checked above; 18 s
def test_descents_along_the_path_pass_kinks():
    """Seeds 0 to 5, two starts each: lower in sum than descents that stop at kinks, and more often at the bottom."""
    direct, central, bottom = [], [], []
    endless = Work(1e9, Interrupt(), time.perf_counter())
    for seed in range(6):
        space = Space.of(
            Float64Problem.of(jagged(seed), np.array([0.5]), np.full(30, 0.5), 64, 0), 3, 0, 0, lambda: False
        )
        scale = space.vectors.units.upper
        for start in (1, 2):
            first, _ = solved_below(space.vectors, space.xs[start], space.ys[start])
            ends = [descent(space, endless, first), central_descent(space, endless, first)]
            values = [float(space.vectors.values(*end).upper) * scale.unit + scale.origin for end in ends]
            direct.append(values[0])
            central.append(values[1])
            bottom.append(upper_on_a_grid(seed))
    direct, central, bottom = map(np.array, (direct, central, bottom))
    assert np.all(central >= bottom - 1e-7)  # nothing below what the grid allows
    at_bottom = [int(np.sum(values <= bottom + 1e-5)) for values in (direct, central)]
    assert central.sum() <= direct.sum()
    assert at_bottom[1] > at_bottom[0]
