"""Much data: solved on some rows first, answered and certified on all."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import hierax as hx

ROWS, FEATURES, GROUPS = 12_000, 9, 3
UNUSED = np.zeros((ROWS, 170))  # that no function looks at: only two million numbers are much data
GROUP = np.arange(FEATURES) % GROUPS


def table(seed):
    rng = np.random.default_rng(seed)
    mixed = np.eye(FEATURES) + 0.3 * np.random.default_rng(9).normal(size=(FEATURES, FEATURES))
    features = rng.normal(size=(ROWS, FEATURES)) @ mixed
    return features, features @ np.where(GROUP == 1, 0.0, 1.0) + 3.0 * rng.normal(size=ROWS), UNUSED


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
    features, target, _ = TRAIN
    matrix = features.T @ features / ROWS + np.diag(np.exp(x)[GROUP])
    y = np.linalg.solve(matrix, features.T @ target / ROWS)
    return float(np.mean((VALIDATION[0] @ y - VALIDATION[1]) ** 2))


@pytest.fixture(scope="module")
def solved():
    return hx.solve(RIDGE, *START, hx.Auto(starts=4))


def test_the_answer_is_that_of_all_rows(solved):
    starts = [np.zeros(GROUPS), np.full(GROUPS, -5.0), np.array([-8.0, 3.0, -8.0])]
    bounds = [(-10.0, 4.0)] * GROUPS
    best = min(scipy.optimize.minimize(validation_loss, x, method="L-BFGS-B", bounds=bounds).fun for x in starts)
    assert solved.status.name == "converged"
    assert validation_loss(np.asarray(solved.x)) <= best + 1e-6 * best
    assert solved.value == pytest.approx(validation_loss(np.asarray(solved.x)), rel=1e-6)


def test_the_certificate_is_one_of_all_rows(solved):
    assert solved.known_certificate is not None
    assert solved.certificate.verdict() == "yes"
    assert solved.problem is RIDGE
    assert float(solved.certificate.hypergradient_norm) < 1e-3


def test_the_log_says_which_rows_told_what(solved):
    assert solved.log[1].startswith(f"First on 4000 of {ROWS} rows of zeta and 4000 of {ROWS} rows of xi. Globality")
    assert solved.log[2].startswith(
        "Then on all rows, from 1 of these ends and, as time allowed, from other starts: F = "
    )
    assert solved.starts.said.startswith("On all rows, from 1 of these ends")
    assert np.nanmin(solved.starts.values) == pytest.approx(solved.value, rel=1e-6)
    assert solved.method.starts == 4


@pytest.mark.parametrize("settings", [{"route": "large"}, {"samples": 10_000}])
def test_what_the_user_asks_for_is_done(settings):
    """As before: whoever bounds samples, or names a route, gets it."""
    sol = hx.solve(RIDGE, *START, hx.Auto(**settings, starts=1), seconds=1.0, throw=False)
    assert sol.method.route == "large"


def test_short_limits_are_left_to_the_large_route():
    assert hx.solve(RIDGE, *START, hx.Auto(starts=1), seconds=1.0, throw=False).method.route == "large"


@pytest.mark.parametrize("way", ["stop", "interrupt"])
def test_a_callback_that_stops_is_obeyed(way):
    seen = []

    def callback(info):
        seen.append(info.step)
        if way == "interrupt":
            raise KeyboardInterrupt
        return True

    stopped = hx.solve(RIDGE, *START, hx.Auto(starts=2), callback=callback)
    assert len(seen) == 2  # on some rows, and the answer
    assert stopped.status.name in ("stopped", "interrupted") or stopped.certificate.verdict() == "yes"
    assert stopped.value == pytest.approx(validation_loss(np.asarray(stopped.x)), rel=1e-6)


def test_steps_are_counted_on_all_rows():
    """With `max_steps` nothing is solved on fewer rows: the points that count are those of the problem."""
    sol = hx.solve(RIDGE, *START, hx.Auto(starts=2), max_steps=3)
    assert not any(line.startswith("First on") for line in sol.log)


def test_a_point_that_holds_on_some_rows_only():
    """An upper constraint that the first rows allow and all rows do not: the log does not say that there were ends."""
    rows = np.sort(np.random.default_rng(0).choice(ROWS, 4000, replace=False))  # those that are taken
    marked = np.zeros(ROWS)
    marked[np.setdiff1d(np.arange(ROWS), rows)[:3000]] = 1.0
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.mean((y - zeta[0][:, 0]) ** 2),
        lower=lambda x, y, xi: (y - jnp.mean(xi[0]) - 1e-3 * x) ** 2,
        upper_constraints=lambda x, y: y - 0.1,
        x_set=hx.Box(-1.0, 1.0),
        zeta=hx.Finite(VALIDATION),
        xi=hx.Finite((marked, UNUSED)),
    )
    sol = hx.solve(problem, 0.0, 0.0, hx.Auto(starts=2), throw=False)
    assert not sol.status.ok
    assert sol.log[2].endswith("no point passed the validation.")


def test_a_search_that_time_cut_short_goes_on(tmp_path, clock):
    """The first rows are not done where their time was up: the same call with more time searches on."""

    def run(**call):
        return hx.solve(RIDGE, *START, hx.Auto(starts=4), throw=False, **call)

    cut = run(seconds=60.0, checkpoint=tmp_path, callback=lambda info: clock.forward(100.0))
    assert cut.status.name == "seconds"
    assert run(seconds=60.0, checkpoint=tmp_path).log[-3:] == run(seconds=60.0).log[-3:]
