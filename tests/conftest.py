"""Settings of the whole suite: float64 unless a test says otherwise, and hypothesis without surprises."""

import os

import jax
from hypothesis import settings

# Compiling is most of the suite's time: the older emitters take two thirds of it, and unoptimised code half of that.
# These flags are known to the JAX that Python 3.11 resolves to; an XLA that does not know them would stop the process.
if jax.__version_info__ == (0, 10, 2) and "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"

jax.config.update("jax_enable_x64", True)

# The first example of a test compiles, so no deadline; derandomised, so that a failure is there again tomorrow.
settings.register_profile("hierax", deadline=None, max_examples=8, derandomize=True, database=None)
settings.load_profile("hierax")
