"""The methods of the weight-decay experiment and their constants, chosen on seeds that the experiment does not use.

All have about the same number of gradients, and start from the same tight bound, where it is active. The norm of a
network is a constraint with a gradient of length one, so gamma = 1 and c2 = c1 are weak penalties that leave the inner
steps their full length; y moves by Adam, as networks are trained.
"""

from collections.abc import Callable
from typing import NamedTuple

import optax

from hierax import BLOCC, SALM, SALVF, AbstractMethod, BiCGAFFA, MaxMin, Plain, Steps, Storm
from hierax_lab.problems.weight_decay import Bounds

BATCH = 32  # rows of a batch, on both levels
START = 4.0  # the norm that the bounds allow at the start
C = 3.0  # weight of the lower level, for the methods that have a constant one
X_STEP = 2.0 / C  # of SALVF
RATE = 1e-2  # learning rate of Adam, which moves y
VR_BETA = 0.7  # Adam hides the length of its steps, so Storm needs a constant


class Entry(NamedTuple):
    """A method as the experiment runs it."""

    name: str
    build: Callable[[], AbstractMethod]
    steps: int
    bounds: Bounds = "all"


def _salvf(direction: Plain | Storm = Plain()) -> Callable[[], AbstractMethod]:
    return lambda: SALVF(
        c1=C,
        c2=C,
        gamma1=1.0,
        gamma2=1.0,
        steps=Steps(x=X_STEP, y=optax.adam(RATE)),
        inner=SALM(steps=10),
        batch_zeta=BATCH,
        batch_xi=BATCH,
        direction=direction,
    )


def _blocc() -> AbstractMethod:
    def solver(weight: float) -> MaxMin:
        return MaxMin(dual_steps=5, primal_steps=3, eta1=0.1 / weight, eta2=0.1 * weight)

    return BLOCC(c=C, lower=solver(1.0), penalised=solver(C), eta=3 * X_STEP, batch_zeta=BATCH, batch_xi=BATCH)


def _gaffa() -> AbstractMethod:
    return BiCGAFFA(
        c=1.0,
        g1=10.0,
        g2=1.0,
        r=10.0,
        steps=Steps(x=0.01, y=optax.adam(3e-3), z=0.1),
        eta=0.1,
        start="given",
        batch_zeta=BATCH,
        batch_xi=BATCH,
    )


ENTRIES = (
    Entry("SALVF", _salvf(), 400),
    Entry("SALVF-VR", _salvf(Storm(beta=VR_BETA)), 330),
    Entry("BLOCC", _blocc, 60),
    Entry("BiC-GAFFA", _gaffa, 1400),
    Entry("SALVF, bound per layer", _salvf(), 400, "layers"),
    Entry("SALVF, bound per array", _salvf(), 400, "tensors"),
)
