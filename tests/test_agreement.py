"""Which ends of a search are the same optimum, and functions with many of them."""

import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax._auto.candidates import Candidate, chance_of_more, most_left, optima
from hierax._engine.vectors import Point
from hierax._judge.point import Judgement


def ended(start: int, upper: float, x: float, violation: float = 0.0) -> Candidate:
    point = Point(np.array([x]), np.zeros(1), np.zeros(0))
    judged = Judgement(upper, 0.0, violation, 0.0, 0.0)
    return Candidate(point, judged, point, 0.0, True, 1, start, "kkt")


def test_ends_are_the_same_by_value_or_by_place():
    found = optima(
        [
            ended(0, 1.0, 0.0),
            ended(1, 1.0 + 1e-9, 5.0),  # another minimiser with the same F
            ended(2, 1.0 + 1e-5, 3.0),  # nearly the same F elsewhere: a valley of its own
            ended(3, 1.0 + 2e-5, 3.001),  # and the same one, less exactly
            ended(4, 0.5, 9.0, violation=1.0),  # not accepted
            ended(5, 7.0, 9.0),
            ended(5, 2.0, 8.0),  # the lowest counts
        ]
    )
    assert [[end.start for end in optimum] for optimum in found] == [[0, 1], [2, 3], [5]]
    assert chance_of_more(found) == pytest.approx(3 / 5)  # at 0, 5 and 8 has been one start each
    assert chance_of_more(found[:1]) == 0.0  # no start has ended at another F
    assert chance_of_more([]) == 1.0
    assert 1 - (1 - most_left(found)) ** 5 == pytest.approx(0.95)  # a likelier place would have been met by five starts


def test_optima_with_the_same_value_are_several():
    """sum (u^2 - 1)^2 + u/20 with u = Qx has 16 optima on five levels of F, the lowest of them at one place.

    Counted by F every level was met twice, and 16 starts that had missed the best one said that none was left.
    """
    q, _ = np.linalg.qr(np.random.default_rng(2).standard_normal((4, 4)))
    problem = hx.Problem(
        upper=lambda x, y, zeta: 1e-5 * jnp.sum(((q @ y) ** 2 - 1.0) ** 2 + 0.05 * (q @ y)),
        lower=lambda x, y, xi: jnp.sum((y - x) ** 2),
        x_set=hx.Box(-3.0, 3.0),
    )
    sol = hx.solve(problem, np.full(4, 0.5), np.zeros(4))
    (line,) = [line for line in sol.log if line.startswith("Globality")]
    assert sol.value == pytest.approx(-2.0062e-6, rel=1e-3), line


def griewank(x):
    return 1.0 + jnp.sum(x**2) / 400.0 - jnp.prod(jnp.cos(x / jnp.sqrt(1.0 + jnp.arange(3.0))))


def test_an_optimum_among_many_is_found_and_the_others_are_told():
    """Griewank's function has about 25 minima here, and F = 0 at one of them.

    The second term is zero at y*(x) = x, but changes by thousands over X and Y: in such a unit of F the minima hardly
    differ, and all starts seemed to agree.
    """
    problem = hx.Problem(
        upper=lambda x, y, zeta: griewank(x) + 40.0 * jnp.sum((y - x) ** 2),
        lower=lambda x, y, xi: jnp.sum((y - x) ** 2),
        x_set=hx.Box(-5.0, 10.0),
        y_set=hx.Box(-5.0, 10.0),
    )
    sol = hx.solve(problem, np.full(3, 6.0), np.full(3, 6.0))
    assert sol.status.name == "converged"
    assert sol.value == pytest.approx(0.0, abs=1e-6)
    (line,) = [line for line in sol.log if line.startswith("Globality")]
    assert "others to F = 0.0" in line and " more" in line


def test_valleys_along_the_entries_of_x():
    """Rastrigin's function of 5 variables: 16 starts hit the best of 11^5 valleys with next to no chance."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum(y**2 + 10.0 * (1.0 - jnp.cos(2.0 * jnp.pi * y))),
        lower=lambda x, y, xi: jnp.sum((y - x) ** 2),
        x_set=hx.Box(-5.12, 5.12),
    )
    sol = hx.solve(problem, np.full(5, 2.2), np.full(5, 2.2))
    assert sol.status.name == "converged"
    assert sol.value == pytest.approx(0.0, abs=1e-6)
