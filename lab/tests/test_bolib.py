"""The external problems: formulas against their reference values, starts, names."""

import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax_lab.bench.kkt_slsqp import kkt_slsqp
from hierax_lab.bench.outside_judge import Judge
from hierax_lab.problems import bolib


@pytest.mark.parametrize("name", bolib.CASES)
def test_values_and_feasibility_at_the_best_point(name):
    case = bolib.load(name)
    problem, (x, y) = case.problem(), map(jnp.asarray, case.best)
    np.testing.assert_allclose(problem.upper(x, y, None), case.values[0], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(problem.lower(x, y, None), case.values[1], rtol=1e-8, atol=1e-8)
    for rows in (problem.constraints(x, y), problem.upper_constraints(x, y)):
        assert rows is None or float(jnp.max(rows)) <= 1e-8
    assert problem.x_set.contains(x, 1e-9) and problem.y_set.contains(y, 1e-9)
    x0, y0 = case.x0y0()
    assert x0.shape == x.shape and y0.shape == y.shape
    assert problem.x_set.contains(x0) and problem.y_set.contains(y0)


def test_the_collection():
    assert len(bolib.CASES) == 71
    classes = [case.lower_class for case in bolib.CASES.values()]
    assert classes.count("strongly convex") == 28
    assert classes.count("nonconvex") == 22
    assert all(case.source for case in bolib.CASES.values())
    with pytest.raises(hx.InputError, match="no such problem; there are AiyoshiShimizu1984Ex2"):
        bolib.load("Bard")


def test_the_judge_accepts_the_best_point_and_rejects_others():
    judge = Judge(bolib.load("Bard1988Ex1"))
    assert judge(*map(np.asarray, bolib.load("Bard1988Ex1").best)).solved
    worse = judge(np.array([5.0]), np.array([2.0]))  # the other local optimum, F = 25
    assert worse.violation <= 1e-8 and worse.gap <= 1e-6 and not worse.solved
    vogel = Judge(bolib.load("Vogel2012"))
    stationary = vogel(np.array([-3.0]), np.array([1.0]))  # a local minimum below, not the global one
    assert stationary.gap > 0.5 and not stationary.solved


def test_the_baseline_finds_a_kkt_point_of_the_lower_level():
    """Judged by the many starts of the outside judge; out of time, it returns the last point it looked at."""
    case = bolib.load("AiyoshiShimizu1984Ex2")
    x, y = kkt_slsqp(case, 60.0)
    found = Judge(case)(x, y)
    assert found.violation <= 1e-5 and found.gap <= 1e-5
    np.testing.assert_allclose(np.concatenate(kkt_slsqp(case, -1.0)), np.concatenate(case.x0y0()))
