"""`solve` without a method: routes, answers, statuses, and what it says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax._auto.runs import Referee
from hierax._run.prepare import prepare
from hierax.problems import toy
from hierax_lab.problems import bolib


def quadratic(**changes):
    stated = {
        "upper": lambda x, y, zeta: (x - 1.0) ** 2 + (y - 2.0) ** 2,
        "lower": lambda x, y, xi: (y - 2.0 * x) ** 2,
        "constraints": lambda x, y: y - x,
    }
    return hx.Problem(**{**stated, **changes})


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("Bard1988Ex1", "converged"),  # two local optima
        ("DempeFranke2014Ex38", "converged"),  # a linear lower level whose solution jumps
        ("CalamaiVicente1994c", "converged"),  # badly scaled
        ("Vogel2012", "best_of_branches"),  # the optimum is at a tie of two branches
        ("DempeDutta2012Ex24", "no_multiplier"),  # y^2 <= 0: no multiplier exists
        ("Dempe1992b", "unproved or not_certified"),  # y^2 <= x at x = 0: feasible at a single point, or nowhere
    ],
)
def test_external_problems(name, status):
    case = bolib.load(name)
    sol = hx.solve(case.problem(), *case.x0y0(), hx.Auto(seconds=300.0))  # whatever else the machine does
    best = case.values[0]
    assert sol.status.name in status.split(" or ")
    assert sol.status.ok == (status in ("converged", "best_of_branches")) == sol.certificate.ok(1e-4)
    known = [best, 31.25] if name == "Dempe1992b" else [best]  # local at x = 1; which is met depends on rounding
    assert min(abs(case.upper(sol.x, sol.y) - value) for value in known) <= 1e-5 * (1 + abs(best))
    assert sol.method.route == "small"
    assert sol.log[0].startswith("Route small: deterministic")
    assert any(line.startswith("Globality: ") for line in sol.log)
    assert sol.log[-1] == sol.status.message
    assert sol.history["violation"].shape == sol.history["gap"].shape


@pytest.mark.parametrize(
    ("changes", "status"),
    [  # four more wrong problems are below: an empty X, functions that are not finite, and sampled ones
        ({"constraints": lambda x, y: jnp.stack([y - x, x - y + 1.0])}, "infeasible"),
        ({"lower": lambda x, y, xi: -y + 0 * x, "constraints": lambda x, y: -y - x}, "unbounded_lower"),
        ({"lower": lambda x, y, xi: -(y**2) + 0 * x, "constraints": lambda x, y: -y - x}, "unbounded_lower"),
        ({"upper": lambda x, y, zeta: -x + 0 * y}, "unbounded_upper"),
        ({"constraints": None, "equalities": lambda x, y: jnp.stack([y - x, y - x - 1.0])}, "infeasible"),
        ({"upper_constraints": lambda x, y: jnp.stack([x - 1.0, 2.0 - x])}, "infeasible"),
        ({"upper_constraints": lambda x, y: x - y + 1.0}, "infeasible"),
    ],
)
def test_wrong_problems(changes, status):
    problem = quadratic(**changes)
    with pytest.raises(hx.RunFailed, match=status) as failed:
        hx.solve(problem, 0.5, 0.5, hx.Auto(starts=4))
    assert failed.value.solution.status.name == status
    assert not failed.value.solution.status.ok


@pytest.mark.parametrize("far", [1e5, 1e7])
def test_an_optimum_far_from_the_start_is_no_fall_without_end(far):
    """F >= 0 was called unbounded below, at its minimum, because that was 1e5 lengths away and far below the start."""
    sol = hx.solve(quadratic(upper=lambda x, y, zeta: (y - jnp.asarray(far)) ** 2), 1.0, 0.0, hx.Auto(starts=4))
    # At 1e7 the slope that the certificate allows is that of the last digit of x: rounding decides, and it may say no.
    assert sol.status.name in (["converged"] if far < 1e6 else ["converged", "not_certified"])
    assert float(sol.y) == pytest.approx(far, rel=1e-6)


GAUSSIAN = hx.Sampler(lambda key, count: 0.1 * jax.random.normal(key, (count,)))


def sampled(**changes):
    noisy = {
        "upper": lambda x, y, zeta: (x - 1.0) ** 2 + (y - 2.0) ** 2 + jnp.mean(zeta) * x,
        "lower": lambda x, y, xi: (y - 2.0 * x) ** 2 + jnp.mean(xi) * y,
        "zeta": GAUSSIAN,
        "xi": GAUSSIAN,
    }
    return quadratic(**{**noisy, **changes})


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"constraints": lambda x, y: jnp.stack([y - x, x - y + 1.0])}, "infeasible"),
        ({"upper": lambda x, y, zeta: -x + 0 * y + jnp.mean(zeta) * x}, "unbounded_upper"),
    ],
)
def test_wrong_sampled_problems(changes, status, caplog):
    sol = hx.solve(sampled(**changes), 0.5, 0.5, throw=False)
    assert sol.status.name == status
    assert sol.status.failed
    assert sol.log[-1] == sol.status.message
    assert not caplog.records  # runs of the race that diverge are no news


def test_an_empty_x():
    with pytest.raises(hx.InputError, match=r"Box.*is empty"):
        quadratic(x_set=hx.Box(2.0, 1.0))


def test_functions_that_are_not_finite():
    with pytest.raises(hx.InputError, match="upper is not finite at"):
        hx.solve(quadratic(upper=lambda x, y, zeta: jnp.log(x - 1.0)), 0.5, 0.5)
    sol = hx.solve(quadratic(upper=lambda x, y, zeta: (x - 1.0) ** 2 - jnp.log(y + 0.5)), 0.5, 0.5, hx.Auto(starts=6))
    assert sol.status.ok
    np.testing.assert_allclose(sol.x, (1 + 17**0.5) / 4, atol=1e-4)  # 2 (x - 1) (x + 1/2) = 1


def test_starts_of_the_large_route_are_finite():
    problem = sampled(upper=lambda x, y, zeta: (x - 1.0) ** 2 - jnp.log(y + 0.5) + jnp.mean(zeta) * x)
    xs, ys = Referee(prepare(problem, 0.5, 0.5), 0).starts(8)
    given = (np.asarray(xs) == 0.5) & (np.asarray(ys) == 0.5)
    assert np.asarray(ys).min() > -0.5
    assert 1 < given.sum() < 8  # some points were outside the domain, and some were not


def test_trees_equalities_and_single_precision():
    problem = hx.Problem(
        upper=lambda x, y, zeta: (x["a"] - 1.0) ** 2 + jnp.sum(y["u"] ** 2) + 0.1 * y["v"] ** 2,
        lower=lambda x, y, xi: jnp.sum((y["u"] - x["a"]) ** 2) + (y["v"] - 1.0) ** 2,
        equalities=lambda x, y: jnp.sum(y["u"]) - y["v"],
        x_set={"a": hx.Box(0.0, 4.0)},
    )
    start = {"a": np.float32(3.0)}, {"u": np.zeros(2, np.float32), "v": np.float32(0.0)}
    sol = hx.solve(problem, *start, hx.Auto(starts=4))
    assert sol.x["a"].dtype == jnp.float32
    # y*(a): u = a + t, v = 1 - t with 2 (a + t) = 1 - t, so t = (1 - 2 a)/3.
    t = (1 - 2 * sol.x["a"]) / 3
    np.testing.assert_allclose(sol.y["u"], np.full(2, sol.x["a"] + t), atol=1e-5)
    np.testing.assert_allclose(sol.y["v"], 1 - t, atol=1e-5)
    grid = jnp.linspace(0.0, 4.0, 40001)
    curve = (grid - 1) ** 2 + 2 * ((grid + 1) / 3) ** 2 + 0.1 * ((2 + 2 * grid) / 3) ** 2
    np.testing.assert_allclose(sol.x["a"], grid[jnp.argmin(curve)], atol=2e-4)
    assert sol.multipliers.equalities.shape == ()
    assert sol.certificate.ok(1e-3)


def test_penalty_route():
    case = bolib.load("ShimizuEtal1997a")
    sol = hx.solve(case.problem(), *case.x0y0(), hx.Auto(route="penalty", starts=4))
    assert sol.log[0].startswith("Route penalty: asked for; by itself it would be small")
    np.testing.assert_allclose(case.upper(sol.x, sol.y), case.values[0], rtol=1e-3)


@pytest.mark.parametrize("starts", [1, 2])
def test_few_starts(starts):
    sol = hx.solve(quadratic(), 0.5, 0.5, hx.Auto(starts=starts))
    assert sol.status.name == "converged"
    np.testing.assert_allclose([sol.x, sol.y], 1.5, atol=1e-5)  # y*(x) = x: (x - 1)^2 + (x - 2)^2
    assert sol.log[1] == f"{starts} starts, the given one first."


def test_multipliers_of_upper_constraints():
    # y*(x) = x, so x minimises 2 (x - 3)^2 subject to 2 x <= 2: x = 1, and 4 (x - 3) + 2 nu = 0.
    problem = hx.Problem(
        upper=lambda x, y, zeta: (x - 3.0) ** 2 + (y - 3.0) ** 2,
        lower=lambda x, y, xi: (y - x) ** 2,
        upper_constraints=lambda x, y: {"sum": x + y - 2.0, "free": x - 50.0},
    )
    sol = hx.solve(problem, 0.0, 0.0, hx.Auto(starts=4))
    np.testing.assert_allclose(sol.multipliers.upper["sum"], 4.0, atol=1e-3)
    assert sol.multipliers.upper["free"] == 0.0
    assert sol.certificate.ok(1e-3), str(sol.certificate)


def test_a_kkt_point_comes_before_one_that_uses_up_its_gap():
    # By hand: the producers' ball is inactive, y = a - x/2, and the tax x = (2, 1.4) is stationary with y = (1, 0.8).
    problem = hx.Problem(
        upper=lambda x, y, zeta: -jnp.sum(x * y) + 0.5 * jnp.sum((y - 1.0) ** 2),
        lower=lambda x, y, xi: jnp.sum((y - jnp.array([2.0, 1.5])) ** 2) + jnp.sum(x * y),
        constraints=lambda x, y: jnp.sum(y**2) - 2.0,
        x_set=hx.Box(0.0, 3.0),
        y_set=hx.NonNegative(),
    )
    sol = hx.solve(problem, np.full(2, 0.5), np.full(2, 0.5), hx.Auto(starts=4))
    np.testing.assert_allclose(sol.x, [2.0, 1.4], atol=1e-5)
    np.testing.assert_allclose(sol.y, [1.0, 0.8], atol=1e-5)


def test_known_expectations_are_used_whole():
    example = toy(sigma=1.0)
    sol = hx.solve(example.problem, 2.5, 2.5)
    assert sol.method.route == "small"
    assert "samples are not needed" in sol.log[0]
    assert sol.status.name == "converged" and sol.counts.zeta == 0
    np.testing.assert_allclose(sol.x, example.solutions[1].x, atol=1e-5)  # the global one, from another's basin


@pytest.mark.slow  # the route itself: tests/test_large_route.py
def test_large_route_on_the_toy():
    example = toy(sigma=1.0)
    sol = hx.solve(example.problem, 2.5, 2.5, hx.Auto(route="large", tol=1e-3))
    assert sol.status.name == "converged"
    np.testing.assert_allclose(sol.x, example.solutions[1].x, atol=2e-3)
    assert sol.log[0].startswith("Route large: asked for")
    assert "from 8 starts" in sol.log[1]
    assert any(line.startswith("Certificate of the best point") for line in sol.log)
    assert sol.certificate.ok(1e-3)
    assert sol.counts.zeta > 0
    few = hx.solve(example.problem, 1.2, 1.2, hx.Auto(route="large", samples=50_000, tol=1e-6))
    assert few.status.name == "samples"
    assert few.counts.zeta + few.counts.xi <= 60_000


def test_what_auto_refuses():
    stated = quadratic()
    for settings, text in (
        ({"route": "fast"}, r"Auto\(route='fast'\): choose 'small', 'penalty', 'average', 'implicit', 'large' or None"),
        ({"seconds": 0}, r"Auto\(seconds=0\): needs a positive number"),
        ({"starts": 0}, r"Auto\(starts=0\): needs a whole number >= 1"),
    ):
        with pytest.raises(hx.InputError, match=text):
            hx.Auto(**settings)
    with pytest.raises(hx.InputError, match=r"record_every: belongs to methods that make steps.*hx.SALVF\(\)"):
        hx.solve(stated, 0.5, 0.5, record_every=10)
    with pytest.raises(hx.InputError, match=r"output: belongs to methods"):
        hx.solve(stated, 0.5, 0.5, hx.Auto(), output="tail")
    with pytest.raises(hx.InputError, match=r"(?s)seed=.*Auto needs a whole number"):
        hx.solve(stated, 0.5, 0.5, seed=jax.random.key(0))
    with pytest.raises(hx.InputError, match=r"output: belongs to methods"):
        hx.solve_many(stated, np.zeros(2), np.zeros(2), output="tail")


def test_functions_are_traced_once_where_the_run_is_in_double_precision():
    calls = {"upper": 0, "lower": 0}

    def upper(x, y, zeta):
        calls["upper"] += 1
        return (x - 1.0) ** 2 + (y - 2.0) ** 2

    def lower(x, y, xi):
        calls["lower"] += 1
        return (y - 2.0 * x) ** 2

    with jax.enable_x64(True):
        sol = hx.solve(quadratic(upper=upper, lower=lower), 0.5, 0.5, hx.Auto(starts=2))
    assert sol.status.name == "converged"
    assert calls == {"upper": 1, "lower": 1}
