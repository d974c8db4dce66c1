"""Stub."""

from typing import NamedTuple

from jaxtyping import Scalar

from hierax._math.psi import Weights
from hierax._problem.problem import Multipliers, Rows


class Penalty(NamedTuple):
    """What Psi needs of a run beside (x, y)."""

    weights: Weights
    scales: Multipliers
    smoothness: Scalar
    z: Rows
    nu: Multipliers
