"""hierax-lab: the paper's experiments, benchmarks, collections of problems, data sets and long tests of hierax.

It brings the commands `hierax reproduce`, `hierax bench` and `hierax datasets`, and uses of hierax what is public.
"""

__version__ = "0.1.0"
