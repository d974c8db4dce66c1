"""Bilevel problems whose answers are known: for tests, comparisons and first steps.

Every factory returns an `Example`. The data come from `numpy.random.default_rng(seed)`; noise enters through the
sources of the problem, so `sigma=0` gives the deterministic version of the same problem. `svm` takes the user's data:
its minimisers are not known, but its lower level and its hyper-gradient are (`svm_reference`, `svm_hypergradient`).
`weight_decay` takes images and labels; nothing about it is known beforehand.
"""

from typing import Any

from hierax._base.moved import from_the_lab
from hierax.problems._svm_reference import SVMSolution, svm_hypergradient, svm_reference
from hierax.problems.ellipsoid_qp import ellipsoid_qp
from hierax.problems.equality_toys import gaffa_toy, lvhba_toy
from hierax.problems.example import Example, Known
from hierax.problems.kinked import kinked
from hierax.problems.random_qp import random_qp
from hierax.problems.svm import svm
from hierax.problems.synthetic import synthetic
from hierax.problems.toy import toy, toy_inner_solution
from hierax.problems.weight_decay import weight_decay

__all__ = [
    "Example",
    "Known",
    "SVMSolution",
    "ellipsoid_qp",
    "gaffa_toy",
    "kinked",
    "lvhba_toy",
    "random_qp",
    "svm",
    "svm_hypergradient",
    "svm_reference",
    "synthetic",
    "toy",
    "toy_inner_solution",
    "weight_decay",
]


def __getattr__(name: str) -> Any:
    return from_the_lab(__name__, name, ("smd",), "hierax_lab.problems")
