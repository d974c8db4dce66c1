"""What the five methods on smooth phi_s(x) have in common: with nothing set each reaches its known answers."""

from typing import Any

import numpy as np
import pytest
from cases import EXACT

import hierax as hx
from hierax.problems.toy import local_minimisers
from hierax_lab.bench.medium_planted import planted_numbers, planted_qp

# A method, and how many steps it takes to come within 1e-3 in x of the minimiser of F(x, y*(x)), with nothing set.
METHODS: dict[str, tuple[Any, int]] = {
    "Barrier": (hx.Barrier(), 40),
    "SIGD": (hx.SIGD(), 40),
    "IGAL": (hx.IGAL(), 40),
    "Moreau": (hx.Moreau(), 40),
    "FirstOrderPenalty": (hx.FirstOrderPenalty(), 60),
}
EVERY = pytest.mark.parametrize("name", METHODS)


@pytest.mark.slow
@EVERY
def test_the_toy_with_nothing_set(name: str) -> None:
    """x within 1e-3 of one of the four minimisers of F(x, x), and y near y*(x) = x."""
    method, steps = METHODS[name]
    starts = np.array([0.1, 0.8, 1.3, 2.95])
    found = hx.solve_many(EXACT.problem, starts, starts, method, max_steps=steps)
    away = np.abs(np.asarray(found.x)[:, None] - local_minimisers())
    assert away.min(axis=1).max() < 1e-3
    assert len(set(away.argmin(axis=1))) == 3  # 0.149, 0.986 twice, 2.991
    np.testing.assert_allclose(found.y, found.x, atol=1e-2)


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_planted_quadratic_program_with_nothing_set(name: str, seed: int) -> None:
    """5 + 20 variables, 10 rows, y >= 0; judged by x alone, because y is what the lower level makes of it.

    What is planted is a local minimiser with F = 0 among others, so the runs begin near it: 0.02 away in every entry. A
    method whose first phi_s is much smoother than phi may find a lower one (seeds 0 and 3 have it within 0.1): then
    that has to be a minimiser itself, by the certificate.
    """
    method, steps = METHODS[name]
    numbers, case = planted_numbers(5, 20, 10, seed), planted_qp(5, 20, 10, seed)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], numbers["x"].shape)
    found = hx.solve(case.exact, numbers["x"] + 0.02 * signs, case.y0, method, max_steps=steps)
    lower = hx.Exact().solve(case.exact, found.x, found.y)
    value = float(case.exact.upper(found.x, lower.y, None))
    if value < -1e-4:
        assert hx.certify(case.exact, found.x, lower.y).ok(1e-3)
    else:
        np.testing.assert_allclose(found.x, numbers["x"], atol=1e-3)
        assert value < 1e-4


@EVERY
def test_upper_constraints_are_refused(name: str) -> None:
    above = hx.Problem(lambda x, y, _: x**2 + y, lambda x, y, _: (y - x) ** 2, upper_constraints=lambda x, y: y - 1)
    with pytest.raises(hx.InputError, match=f"{name}: the published method has no constraints at the upper level"):
        hx.solve(above, 1.0, 1.0, METHODS[name][0], max_steps=3)
