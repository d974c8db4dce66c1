"""`python -m hierax_lab.speed [NAME ...]`: run the benchmarks (all, or those named) and write lab/results."""

import jax

jax.config.update("jax_enable_x64", True)
