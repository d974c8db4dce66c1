"""Bilevel problems with known answers, for tests and comparisons, and collections: `smd` and the package `bolib`.

Every factory returns an `Example` of `hierax.problems`, where the toy for first steps is. The data come from
`numpy.random.default_rng(seed)`; noise enters through the sources of the problem, so `sigma=0` gives the deterministic
version of the same problem. `svm` takes the user's data: its minimisers are not known, but its lower level and its
hyper-gradient are (`svm_reference`, `svm_hypergradient`). `weight_decay` takes images and labels; nothing about it is
known beforehand.
"""

from hierax_lab.problems._svm_reference import SVMSolution, svm_hypergradient, svm_reference
from hierax_lab.problems.ellipsoid_qp import ellipsoid_qp
from hierax_lab.problems.equality_toys import gaffa_toy, lvhba_toy
from hierax_lab.problems.kinked import kinked
from hierax_lab.problems.random_qp import random_qp
from hierax_lab.problems.smd import smd
from hierax_lab.problems.sparse import chain, flows, membrane
from hierax_lab.problems.svm import svm
from hierax_lab.problems.synthetic import synthetic
from hierax_lab.problems.weight_decay import weight_decay

__all__ = [
    "SVMSolution",
    "chain",
    "ellipsoid_qp",
    "flows",
    "gaffa_toy",
    "kinked",
    "lvhba_toy",
    "membrane",
    "random_qp",
    "smd",
    "svm",
    "svm_hypergradient",
    "svm_reference",
    "synthetic",
    "weight_decay",
]
