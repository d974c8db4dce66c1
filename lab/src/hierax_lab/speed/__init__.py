"""Benchmarks of hierax: `make bench` runs them all; speed is given as a ratio within one run, compilation apart."""
