"""Numbers that several rooms must agree on, each with its reason; what only one file needs stays in that file."""

FRESH_SAMPLES = 4096
"""Samples that stand for an expectation which is not known: the standard error of a mean over them is 1/64 of the
standard deviation of a single sample."""

LOWER_STARTS = 24
"""Starts of a lower level that is not convex, which run as one batched program. `tests/test_branches.py` holds the best
of that many against dense grids, on non-convex lower levels of the BOLIB collection."""

SHOWN_TOLERANCE = 1e-4
"""Of the verdict that `print` shows, and of `Auto`."""

LITTLE_DATA = 100_000
"""Numbers that functions, or the arguments of a program, have up to which calls, not evaluations, take the time."""

ARMIJO = 1e-4
"""Share of the decrease that the slope promises which a step must reach: the textbook value."""

MUCH = 10.0
"""How many times larger counts as clearly larger, wherever nothing finer was measured."""

LITTLE = 0.1
"""The inverse of `MUCH`."""

NEGLIGIBLE = 1e-3
"""Share of a quantity, known to a digit or two, below which something may be left out."""

FINE = 1e-6
"""Share of a quantity below which a difference is none: far above rounding in double precision."""

CHUNK_SECONDS = 0.5
"""How long the host stays away: progress, Ctrl-C, callbacks and the clock wait this long."""

MANY = 1000
"""Steps of a small loop that ends by a test of its own long before; rounding units that cancelling terms may cost;
steps or dimensions that count as many."""
