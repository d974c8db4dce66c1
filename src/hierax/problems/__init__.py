"""The first bilevel problem, whose answers are known: `toy`, in closed form.

A factory returns an `Example`; noise enters through the sources of the problem, so `sigma=0` gives the deterministic
version of the same problem. Other problems with known answers, and collections, are in `hierax_lab.problems`.
"""

from hierax._base.imports import moved
from hierax.problems.example import Example, Known
from hierax.problems.toy import toy, toy_inner_solution

__all__ = ["Example", "Known", "toy", "toy_inner_solution"]

__getattr__ = moved(
    __name__,
    "SVMSolution ellipsoid_qp gaffa_toy kinked lvhba_toy random_qp smd svm svm_hypergradient svm_reference synthetic "
    "weight_decay",
)
