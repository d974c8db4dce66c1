"""Unit tests of hierax._base.text and .trees."""

import numpy as np

from hierax._base.text import named_point
from hierax._base.trees import on_device
from hierax.reports import facts


def test_an_answer_of_moderate_size_is_shown_in_full():
    (name, short), (_, whole) = named_point("x", np.arange(40.0)) + named_point(
        "x", np.arange(40.0), facts.MAX_NUMBERS_IN_FULL
    )
    assert name == "x" and "..." in short
    assert [float(number) for number in whole.strip("[]").split(",")] == list(range(40))
    assert "..." in named_point("x", np.arange(facts.MAX_NUMBERS_IN_FULL + 1.0), facts.MAX_NUMBERS_IN_FULL)[0][1]


def test_arrays_on_the_device_do_not_follow_the_hosts():
    """JAX copies when it gets round to it, or shares the memory: what the host writes afterwards must not show."""
    for entries in range(1000, 100_000, 3000):
        numbers = np.ones(entries)
        there = on_device(numbers)
        numbers[:] = 5.0
        assert np.all(np.asarray(there) == 1.0)
