"""Much data: solved on some rows first, answered and certified on all."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import hierax as hx
from hierax._auto import fewer_rows
from hierax._run.prepare import prepare

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
        patch.setattr(fewer_rows, "WHOLE_DATA", 100_000)
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


def test_the_certificate_is_one_of_all_rows(solved):
    assert solved.known_certificate is not None
    assert solved.certificate.verdict() == "yes"
    assert solved.problem is RIDGE
    assert float(solved.certificate.hypergradient_norm) < 1e-3


def test_the_log_says_which_rows_told_what(solved):
    assert solved.log[1].startswith(f"First on 4000 of {ROWS} rows of zeta and 4000 of {ROWS} rows of xi. Globality")
    assert solved.log[2].startswith("Then on all rows, from the")
    assert solved.starts.said.startswith("On all rows, the first ")
    assert np.nanmin(solved.starts.values) == pytest.approx(solved.value, rel=1e-6)
    assert solved.method.starts == 4


def noise(key, n):
    return jax.random.normal(key, (n, FEATURES)), jnp.zeros(n)


def few(problem, *start):
    return fewer_rows.fewer_rows(prepare(problem, *(start or START)), 0)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"zeta": hx.Finite((VALIDATION[0][:500], VALIDATION[1][:500])), "xi": None}, id="few rows"),
        pytest.param({"lower": lambda x, y, xi: error(y, xi) + jnp.sum(jnp.cos(9 * y + x[GROUP]))}, id="not convex"),
        pytest.param({"zeta": hx.Sampler(noise)}, id="a sampler"),
    ],
)
def test_where_all_rows_are_taken_at_once(changes):
    if changes.get("xi", 0) is None:
        changes = {**changes, "lower": lambda x, y, xi: jnp.sum(jnp.exp(x)[GROUP] * (y - 1.0) ** 2)}
    assert few(dataclasses.replace(RIDGE, **changes)) is None


def test_only_data_with_many_rows_are_cut():
    short = dataclasses.replace(RIDGE, zeta=hx.Finite((VALIDATION[0][:500], VALIDATION[1][:500])))
    cut = few(dataclasses.replace(short, xi=hx.Finite(tuple(np.concatenate([part, part]) for part in TRAIN))))
    assert cut.said == f"4000 of {2 * ROWS} rows of xi"
    assert cut.prepared.problem.zeta.size == 500


def test_a_callback_that_stops_is_obeyed():
    seen = []

    def stop(info):
        seen.append(info.step)
        return True

    stopped = hx.solve(RIDGE, *START, hx.Auto(starts=2), callback=stop)
    assert len(seen) == 1
    assert stopped.status.name == "stopped" or stopped.certificate.verdict() == "yes"
    assert stopped.value == pytest.approx(validation_loss(np.asarray(stopped.x)), rel=1e-6)


def test_steps_are_counted_on_all_rows():
    """With `max_steps` nothing is solved on fewer rows: the points that count are those of the problem."""
    sol = hx.solve(RIDGE, *START, hx.Auto(starts=2), max_steps=3)
    assert not any(line.startswith("First on") for line in sol.log)
