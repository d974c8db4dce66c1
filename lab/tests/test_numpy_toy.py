"""The NumPy versions of SALVF that the toy is timed against: they compute the same, and come close to a minimiser."""

import numpy as np
import pytest

from hierax.problems.toy import local_minimisers
from hierax_lab.speed.numpy_toy import Setup, inlined_loop, plain_loop, vectorised

START = np.array([[1.2, 0.7]])


@pytest.mark.parametrize("control_variate", [False, True])
@pytest.mark.parametrize("start", ["given", "solve"])
def test_the_three_versions_follow_one_path(control_variate, start):
    setup = Setup(steps=40, inner_steps=4, seed=3, control_variate=control_variate, start=start)
    plain, inlined, together = (version(START, setup) for version in (plain_loop, inlined_loop, vectorised))
    for name in plain._fields:
        np.testing.assert_allclose(getattr(inlined, name), getattr(plain, name), rtol=1e-9)
        np.testing.assert_allclose(getattr(together, name), getattr(plain, name), rtol=1e-9)


def test_they_end_near_a_minimiser():
    starts = np.random.default_rng(0).uniform(0.0, 3.0, (50, 2))
    found = vectorised(starts, Setup(start="solve"))
    assert np.median(np.abs(found.x[:, None] - local_minimisers()).min(axis=1)) < 0.01
    assert np.abs(found.y - found.x).mean() < 0.01
