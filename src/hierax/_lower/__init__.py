"""Solvers of the lower level."""
