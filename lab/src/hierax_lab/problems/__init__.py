"""Collections of bilevel problems with known solutions: `smd` and the package `bolib`.

Small problems for first steps are in `hierax.problems`.
"""

from hierax_lab.problems.smd import smd as smd

__all__ = ["smd"]
