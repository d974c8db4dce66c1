"""Benchmarks on external problems: `hierax bench`."""
