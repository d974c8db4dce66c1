"""Settings of the whole suite: float64 unless a test says otherwise, and hypothesis without surprises."""

import jax
from hypothesis import settings

jax.config.update("jax_enable_x64", True)

# The first example of a test compiles, so no deadline; derandomised, so that a failure is there again tomorrow.
settings.register_profile("hierax", deadline=None, max_examples=10, derandomize=True, database=None)
settings.load_profile("hierax")
