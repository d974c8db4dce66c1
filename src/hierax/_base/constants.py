"""Numbers that several rooms must agree on, each with its reason; what only one file needs stays in that file."""

FRESH_SAMPLES = 4096
"""Samples that stand for an expectation which is not known: the standard error of a mean over them is 1/64 of the
standard deviation of a single sample."""

LOWER_STARTS = 24
"""Starts of a lower level that is not convex, which run as one batched program. `tests/test_branches.py` holds the best
of that many against dense grids, on non-convex lower levels of the BOLIB collection."""

LITTLE_DATA = 100_000
"""Numbers that functions, or the arguments of a program, have up to which calls, not evaluations, take the time."""

ARMIJO = 1e-4
"""Share of the decrease that the slope promises which a step must reach: the textbook value."""
