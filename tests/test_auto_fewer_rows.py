"""Unit tests of hierax._auto.fewer_rows: whose data are cut, on the problem of test_fewer_rows.py."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_fewer_rows import FEATURES, GROUP, RIDGE, ROWS, START, TRAIN, VALIDATION, error

import hierax as hx
from hierax._auto import fewer_rows
from hierax._run.prepare import prepare


def noise(key, n):
    return jax.random.normal(key, (n, FEATURES)), jnp.zeros(n)


def few(problem, *start):
    return fewer_rows.fewer_rows(prepare(problem, *(start or START)), 0)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"zeta": hx.Finite(tuple(part[:500] for part in VALIDATION)), "xi": None}, id="few rows"),
        pytest.param({"lower": lambda x, y, xi: error(y, xi) + jnp.sum(jnp.cos(9 * y + x[GROUP]))}, id="not convex"),
        pytest.param({"zeta": hx.Sampler(noise)}, id="a sampler"),
    ],
)
def test_where_all_rows_are_taken_at_once(changes):
    if changes.get("xi", 0) is None:
        changes = {**changes, "lower": lambda x, y, xi: jnp.sum(jnp.exp(x)[GROUP] * (y - 1.0) ** 2)}
    assert few(dataclasses.replace(RIDGE, **changes)) is None


def test_only_data_with_many_rows_are_cut():
    short = dataclasses.replace(RIDGE, zeta=hx.Finite(tuple(part[:500] for part in VALIDATION)))
    cut = few(dataclasses.replace(short, xi=hx.Finite(tuple(np.concatenate([part, part]) for part in TRAIN))))
    assert cut.said == f"4000 of {2 * ROWS} rows of xi"
    assert cut.prepared.problem.zeta.size == 500


def test_data_that_are_much_after_the_cut_or_on_the_way_are_not_cut():
    wide = hx.Finite(np.ones((300, 7000)))
    assert few(dataclasses.replace(RIDGE, upper=lambda x, y, zeta: jnp.sum(y**2) + 0 * zeta[0, 0], zeta=wide)) is None

    def made_on_the_way(rows):
        return few(
            dataclasses.replace(
                RIDGE,
                lower=lambda x, y, xi: (
                    error(y, xi) + jnp.sum(y**2) * jnp.exp(jnp.mean(xi[0][:, :1] * jnp.zeros((1, rows))))
                ),
            )
        )

    assert made_on_the_way(1) is not None
    assert made_on_the_way(1500) is None  # 18 million, and four in the data
