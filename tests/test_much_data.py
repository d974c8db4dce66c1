"""Much data: solved and certified on all rows, where little is made of them on the way.

Unit tests of hierax._auto.auto.choose_route among them.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import hierax as hx
from hierax._auto import auto, constants
from hierax._run.prepare import check_batches_fit, prepare

ROWS, FEATURES, GROUPS = 12_000, 9, 3
GROUP = np.arange(FEATURES) % GROUPS


def table(seed):
    rng = np.random.default_rng(seed)
    mixed = np.eye(FEATURES) + 0.3 * np.random.default_rng(9).normal(size=(FEATURES, FEATURES))
    features = rng.normal(size=(ROWS, FEATURES)) @ mixed
    return features, features @ np.where(GROUP == 1, 0.0, 1.0) + 3.0 * rng.normal(size=ROWS)


TRAIN, VALIDATION = table(0), table(1)


def error(y, rows):
    return jnp.mean((rows[0] @ y - rows[1]) ** 2)


RIDGE = hx.Problem(
    upper=lambda x, y, zeta: error(y, zeta),
    lower=lambda x, y, xi: error(y, xi) + jnp.sum(jnp.exp(x)[GROUP] * y**2),
    x_set=hx.Box(-10.0, 4.0),
    zeta=hx.Finite(VALIDATION),
    xi=hx.Finite(TRAIN),
)
START = np.zeros(GROUPS), np.zeros(FEATURES)


def validation_loss(x):
    """F(x, y*(x)) by NumPy: the lower level is a ridge regression."""
    features, target = TRAIN
    matrix = features.T @ features / ROWS + np.diag(np.exp(x)[GROUP])
    y = np.linalg.solve(matrix, features.T @ target / ROWS)
    return float(np.mean((VALIDATION[0] @ y - VALIDATION[1]) ** 2))


@pytest.fixture(autouse=True, scope="module")
def few_numbers_are_much_data():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "WHOLE_DATA", 100_000)
        yield


@pytest.fixture(scope="module")
def solved(few_numbers_are_much_data):
    return hx.solve(RIDGE, *START, hx.Auto(starts=4))


def test_the_answer_is_that_of_all_rows(solved):
    starts = [np.zeros(GROUPS), np.full(GROUPS, -5.0), np.array([-8.0, 3.0, -8.0])]
    bounds = [(-10.0, 4.0)] * GROUPS
    best = min(scipy.optimize.minimize(validation_loss, x, method="L-BFGS-B", bounds=bounds).fun for x in starts)
    assert solved.status.name == "converged"
    assert validation_loss(np.asarray(solved.x)) <= best + 1e-6 * best
    assert solved.value == pytest.approx(validation_loss(np.asarray(solved.x)), rel=1e-6)
    assert solved.method.route == "penalty"
    assert "solved on all of it" in solved.log[0]


def test_the_certificate_is_one_of_all_rows(solved):
    assert solved.known_certificate is not None
    assert solved.certificate.verdict() == "yes"
    assert solved.problem is RIDGE
    assert float(solved.certificate.hypergradient_norm) < 1e-3


def test_evaluations_to_the_answer_are_counted(solved):
    counts = solved.counts
    assert 0 < counts.evaluations_to_answer <= counts.evaluations
    assert 0 < counts.seconds_to_answer <= counts.seconds + counts.compile_seconds


def route_of(problem):
    prepared = prepare(problem, *START)
    check_batches_fit(prepared, hx.SALVF().batches(prepared.bound.problem))  # as `Auto` does first: it traces
    return auto.choose_route(prepared, 0, unlimited=True)[0]


def noise(key, n):
    return jax.random.normal(key, (n, FEATURES)), jnp.zeros(n)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"lower": lambda x, y, xi: error(y, xi) + jnp.sum(jnp.cos(9 * y + x[GROUP]))}, id="not convex"),
        pytest.param({"zeta": hx.Sampler(noise)}, id="a sampler"),
    ],
)
def test_what_else_is_much_goes_to_the_large_route(changes):
    assert route_of(dataclasses.replace(RIDGE, **changes)) in ("large", "average")


def test_numbers_that_are_made_on_the_way_count(monkeypatch):
    monkeypatch.setattr(constants, "MUCH_DATA", 600_000)  # of 240,000 in the data

    def route(columns):
        def lower(x, y, xi):
            return error(y, xi) + jnp.sum(y**2) * jnp.exp(jnp.mean(xi[0][:, :1] * jnp.zeros((1, columns))))

        return route_of(dataclasses.replace(RIDGE, lower=lower))

    assert route(1) == "penalty"
    assert route(30) == "average"


@pytest.mark.parametrize("settings", [{"route": "large"}, {"samples": 4096}])
def test_what_the_user_asks_for_is_done(settings):
    """Whoever bounds samples, or names a route, gets it: averages of rows that are drawn."""
    sol = hx.solve(
        RIDGE, *START, hx.Auto(**settings, starts=1), seconds=1.0 if "route" in settings else 20.0, throw=False
    )
    assert sol.method.route == settings.get("route", "average")
    assert max(sol.counts.zeta, sol.counts.xi) <= 4096 or "route" in settings


def test_short_limits_are_left_to_averages_of_some_rows():
    assert hx.solve(RIDGE, *START, hx.Auto(starts=1), seconds=1.0, throw=False).method.route == "average"
