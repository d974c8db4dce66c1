"""Settings of the whole suite: float64 unless a test says otherwise, and hypothesis without surprises."""

import os

import jax
from hypothesis import settings

# Compiling is most of the suite's time, and the older emitters compile in two thirds of it. The flag is known to the
# JAX that Python 3.11 resolves to; an XLA that does not know it would stop the process.
if jax.__version_info__ == (0, 10, 2) and "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false"

jax.config.update("jax_enable_x64", True)

# The first example of a test compiles, so no deadline; derandomised, so that a failure is there again tomorrow.
settings.register_profile("hierax", deadline=None, max_examples=8, derandomize=True, database=None)
settings.load_profile("hierax")
