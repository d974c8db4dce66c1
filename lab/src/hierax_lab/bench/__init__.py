"""Benchmarks on external problems: `external` (BOLIB) and `sampled` (stochastic problems), each judged from outside."""
