"""SALVF with an exact inner solver: gamma2 = 0, no z block, y and nu that follow; and how its failures are told."""

import jax.numpy as jnp
import numpy as np
import pytest
from cases import EXACT

import hierax as hx
from hierax.problems.toy import local_minimisers

METHOD = hx.SALVF(c1=5.0, c2=100.0, inner=hx.Exact())


@pytest.fixture(scope="module")
def solved():
    starts = jnp.array([0.1, 0.5, 1.3, 1.7, 2.3, 2.95])
    return starts, hx.solve_many(EXACT.problem, starts, jnp.ones(6), METHOD, max_steps=1500)


def test_every_start_ends_at_a_local_minimiser(solved):
    _, sol = solved
    distance = np.abs(np.asarray(sol.x)[:, None] - local_minimisers()).min(axis=1)
    assert distance.max() <= 1e-3
    np.testing.assert_allclose(sol.multipliers.inequalities, 2 * sol.x, atol=5e-3)


def test_there_is_no_z_block(solved):
    _, sol = solved
    np.testing.assert_array_equal(sol.method.gamma2, 0.0)
    state = sol.state.run.state
    np.testing.assert_array_equal(state.point.z.inequalities, state.lam.inequalities)


def test_an_exact_solve_is_counted_as_one(solved):
    _, sol = solved
    assert sol.counts.lower_solves == 1500 + 1
    assert sol.counts.xi == 0


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        # y <= -x and y >= x: empty once x > 0, and the upper level pulls x there.
        (
            hx.Problem(
                upper=lambda x, y, zeta: (x - 1.0) ** 2,
                lower=lambda x, y, xi: y**2,
                constraints=lambda x, y: jnp.stack([y + x, x - y]),
            ),
            "infeasible",
        ),
        (
            hx.Problem(
                upper=lambda x, y, zeta: (x - 1.0) ** 2 + 0.0 * y,
                lower=lambda x, y, xi: x * y,
                constraints=lambda x, y: y - 1.0,
            ),
            "unbounded_lower",
        ),
    ],
)
def test_a_lower_level_without_solution_ends_the_run_by_name(problem, name):
    method = hx.SALVF(c1=1.0, c2=10.0, inner=hx.Exact(), steps=hx.Steps(x=0.2, y=0.05))
    sol = hx.solve(problem, -0.5, 0.1, method, max_steps=50, throw=False)
    assert sol.status.name == name
    assert sol.status.step > 0
    assert np.isfinite(sol.x)
    with pytest.raises(hx.RunFailed, match=name):
        hx.solve(problem, -0.5, 0.1, method, max_steps=50)


def test_repair_by_an_exact_solver_returns_the_lower_solution():
    sol = hx.solve(EXACT.problem, 0.5, 0.5, hx.SALVF(c1=5.0, c2=20.0, repair=hx.Exact()), max_steps=20)
    np.testing.assert_allclose(sol.y, sol.x, atol=1e-7)
    np.testing.assert_allclose(sol.multipliers.inequalities, 2 * sol.x, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"gamma2": 1.0, "inner": hx.Exact()}, "gamma2 is 0; leave it unset"),
        ({"repair": 5, "inner": hx.Exact()}, r"give repair=hx.Exact\(\)"),
        ({"inner": "exact"}, r"needs hx.SALM\(\), hx.Exact\(\) or hx.Conic\(\), got str"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, text):
    with pytest.raises(hx.InputError, match=text):
        hx.SALVF(**settings)


def test_a_stream_is_refused():
    def batches():
        while True:
            yield np.zeros((2, 1))

    problem = hx.Problem(
        upper=lambda x, y, zeta: (x - y) ** 2,
        lower=lambda x, y, xi: (y - x) ** 2 + jnp.mean(xi) * y,
        xi=hx.Stream(batches()),
    )
    with pytest.raises(hx.InputError, match="which a Stream never shows"):
        hx.solve(problem, 0.5, 0.5, METHOD, max_steps=2)
