"""SMD1 to SMD12: formulas against hand-derived solutions of the lower level, optima, bounds, sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax_lab.bench.outside_judge import Judge
from hierax_lab.problems.smd import NUMBERS, smd, smd12_as_published, smd_case

ROOT = 2**-0.5  # 1 / sqrt(r), and 1 / sqrt(q - 1)
LINKS = {  # z with link(v, z) = 0; of SMD11 and SMD12 with entries 1 / sqrt(r)
    1: np.arctan,
    2: np.exp,
    3: lambda v: np.arctan(v**2),
    4: lambda v: np.exp(np.abs(v)) - 1,
    5: lambda v: np.sqrt(np.abs(v)),
    6: lambda v: v,
    7: np.exp,
    8: np.cbrt,
    10: np.arctan,
    11: lambda v: np.exp(v + np.where(v > 0, -ROOT, ROOT)),
    12: lambda v: np.arctan(v - ROOT),
}
WS = {5: 1.0, 8: 1.0, 10: ROOT, 12: ROOT}  # the solution of w


def solution_below(number, x):
    """A solution of the lower level, derived by hand: its three parts are minimised one by one."""
    return np.concatenate([np.full(3, WS.get(number, 0.0)), LINKS[number](x[3:])])


def value_below(number, x):
    """The value of the lower level: that of u, and what w and the link cannot avoid."""
    u = x[:3]
    alone = {7: np.sum(u**3), 8: np.sum(np.abs(u))}.get(number, np.sum(u**2))
    return alone + (3 * (ROOT - 2) ** 2 if number in (10, 12) else 0.0) + (1.0 if number in (11, 12) else 0.0)


def random_point(box, rng):
    return rng.uniform(box.lower, box.upper)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_best_point(number):
    example = smd(number)
    problem, known = example.problem, example.solutions[0]
    x, y = jnp.asarray(known.x), jnp.asarray(known.y)
    expected = {10: 5 * 1.5**2 + 1.5, 11: -1.0, 12: 5 * 1.5**2 + 1.5 - 1 + np.sqrt(0.75) - 0.5}.get(number, 0.0)
    np.testing.assert_allclose(problem.upper(x, y, None), expected, atol=1e-12)
    np.testing.assert_allclose(problem.lower(x, y, None), value_below(number, known.x), atol=1e-12)
    for rows in (problem.constraints(x, y), problem.upper_constraints(x, y)):
        assert rows is None or float(jnp.max(rows)) <= 1e-12
    assert problem.x_set.contains(x) and problem.y_set.contains(y)
    assert problem.x_set.contains(example.x0) and problem.y_set.contains(example.y0)
    assert known.x.shape == known.y.shape == (5,)


@pytest.mark.parametrize("number", NUMBERS)
def test_solutions_below_and_finite_gradients(number):
    case, rng = smd_case(number), np.random.default_rng(number)
    for _ in range(5):
        x = random_point(case.x_set, rng)
        y = solution_below(number, x)
        assert case.y_set.contains(y)
        np.testing.assert_allclose(case.lower(x, y), value_below(number, x), rtol=1e-10, atol=1e-8)
        assert case.rows is None or float(jnp.max(jnp.stack(case.rows(x, y)))) <= 1e-12
    both = jax.jit(lambda x, y: jax.tree.map(lambda f: jax.value_and_grad(f, (0, 1))(x, y), (case.upper, case.lower)))
    corners = [(case.x_set.lower, case.y_set.lower), (case.x_set.upper, case.y_set.upper), (np.zeros(5), y)]
    for at in [*corners, *((random_point(case.x_set, rng), random_point(case.y_set, rng)) for _ in range(5))]:
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(both(*at)))


@pytest.mark.slow  # 25 runs of SLSQP for each point; the same values are checked by hand above
@pytest.mark.parametrize("number", NUMBERS)
def test_scipy_finds_nothing_lower_below(number):
    case, rng = smd_case(number), np.random.default_rng(number)
    judge = Judge(case)
    assert judge(*map(np.asarray, case.best)).solved
    x = random_point(case.x_set, rng)
    right, wrong = (judge(x, solution_below(number, x) + shift) for shift in (0.0, 0.1))
    assert abs(right.gap) <= 1e-8 and (wrong.gap > 1e-6 or wrong.violation > 1e-3)


def test_the_published_point_of_smd12_is_beaten():
    case = smd_case(12)
    x, y = map(np.asarray, smd12_as_published())
    published = float(case.upper(x, y))
    np.testing.assert_allclose(case.lower(x, y), case.values[1], rtol=1e-12)  # both solve the lower level
    assert float(jnp.max(jnp.stack([*case.rows(x, y), *case.upper_rows(x, y)]))) <= 1e-12
    assert published == pytest.approx(12.1642, abs=1e-4) and case.values[0] == pytest.approx(12.1160, abs=1e-4)
    one = smd_case(12, p=1, q=2, r=1)  # with a single v there is nothing to choose
    np.testing.assert_allclose(smd12_as_published(1, 2, 1)[1], one.best[1], atol=1e-12)
    assert one.values == pytest.approx((3.0, 4.0))


def test_sizes():
    example = smd(6, p=2, q=2, r=1, s=4)
    assert example.x0.shape == (3,) and example.y0.shape == (7,)
    y = jnp.asarray([0.0, 0.0, 2.0, 2.0, -1.0, -1.0, 0.5])  # pairs may be anything, as long as they are equal
    x = jnp.asarray([0.0, 0.0, 0.5])
    assert float(example.problem.lower(x, y, None)) == 0.0
    assert float(example.problem.upper(x, y, None)) == 10.25
    assert smd(1, p=7, q=4, r=3).x0.shape == (10,)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"number": 9}, "SMD9 rounds with floor"),
        ({"number": 13}, "no such problem"),
        ({"number": 5, "q": 1}, "q >= 2"),
        ({"number": 6, "s": 3}, "s even"),
        ({"number": 1, "s": 2}, "0 unless the problem is SMD6"),
        ({"number": 1, "r": 0}, "p and r >= 1"),
    ],
)
def test_wrong_sizes(arguments, text):
    with pytest.raises(hx.InputError, match=text):
        smd(**arguments)
