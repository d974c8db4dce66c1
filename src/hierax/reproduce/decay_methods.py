"""The methods of the weight-decay experiment and their constants, chosen on seeds that the experiment does not use."""

from collections.abc import Callable
from typing import NamedTuple

from hierax.lower.salm import SALM
from hierax.methods.protocol import AbstractMethod
from hierax.methods.salvf import SALVF
from hierax.methods.steps import Decay, Steps
from hierax.problems.weight_decay import Bounds

BATCH = 32


class Entry(NamedTuple):
    """A method as the experiment runs it."""

    name: str
    build: Callable[[], AbstractMethod]
    steps: int
    bounds: Bounds = "all"


ENTRIES: tuple[Entry, ...] = (
    Entry("SALVF", lambda: SALVF(c1=2.0, steps=Steps(x=Decay(0.5, 2.0)), inner=SALM(steps=10)), 400),
)
