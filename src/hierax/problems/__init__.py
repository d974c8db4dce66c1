"""Bilevel problems whose answers are known: for tests, comparisons and first steps.

Every factory returns an `Example`. The data come from `numpy.random.default_rng(seed)`; noise enters through the
sources of the problem, so `sigma=0` gives the deterministic version of the same problem.
"""

from hierax.problems.ellipsoid_qp import ellipsoid_qp as ellipsoid_qp
from hierax.problems.example import Example as Example
from hierax.problems.example import Known as Known
from hierax.problems.synthetic import synthetic as synthetic
from hierax.problems.toy import toy as toy
from hierax.problems.toy import toy_inner_solution as toy_inner_solution

__all__ = ["Example", "Known", "ellipsoid_qp", "synthetic", "toy", "toy_inner_solution"]
