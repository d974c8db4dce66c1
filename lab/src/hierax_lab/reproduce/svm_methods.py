"""The methods of the SVM experiment, and the one rule by which their constants are chosen.

Every method has a grid of six settings: its penalty weight (GAM has none: six steps) and the length of its x-step
(three in ratio 3, around those that the method can use), which for all of them is step * min(1, 2 (k+1)^(-1/3)). The
setting with the largest mean decrease of phi, after as many steps as the experiment has, on divisions of the data that
the experiment does not use is taken. A setting with a failed run is never taken, unless every setting has one; then the
method has no result. Whatever else a method needs is what the library estimates.
"""

from collections.abc import Callable
from typing import NamedTuple

from hierax import (
    BLOCC,
    GAM,
    LVHBA,
    SALM,
    SALVF,
    AbstractMethod,
    BiCGAFFA,
    Conic,
    Decay,
    Exact,
    MaxMin,
    Plain,
    Steps,
    Storm,
)

BATCH = 32  # validation samples per step, for every method
SHORT_STEPS, LONG_STEPS = (0.07, 0.2, 0.6), (0.2, 0.6, 1.8)  # x-steps of the grids
GAM_STEPS = (0.05, 0.1, 0.2, 0.35, 0.6, 1.0)  # x-steps of GAM, which has no penalty weight to vary
VR_BETA = 0.3  # a constant: with these x-steps Storm's own rule gives 1, which is SALVF

INNER = SALM(steps=50)  # inner loop of SALVF and SALVF-VR


class Setting(NamedTuple):
    """One point of a grid: the penalty weight (None where the method has none) and the x-step."""

    weight: float | None
    step: float


class Entry(NamedTuple):
    """A method as the experiment runs it."""

    name: str
    build: Callable[[Setting], AbstractMethod]
    grid: tuple[Setting, ...]
    lower: str  # how its lower level is solved, for the report


def _grid(weights: tuple[float, float], steps: tuple[float, float, float]) -> tuple[Setting, ...]:
    return tuple(Setting(weight, step) for weight in weights for step in steps)


def _x_step(setting: Setting) -> Decay:
    return Decay(setting.step, 2.0)


def _against_weight(setting: Setting) -> float:
    """The x-step of a method whose direction is 1/c_k times a hyper-gradient: c_k, which grows, makes it decay."""
    assert setting.weight is not None
    return setting.step * setting.weight


def _salvf(inner: SALM | Conic, direction: Plain | Storm = Plain()) -> Callable[[Setting], AbstractMethod]:
    return lambda setting: SALVF(
        c1=setting.weight,
        steps=Steps(x=_x_step(setting)),
        batch_zeta=BATCH,
        follow=True,
        repair=Conic(),
        inner=inner,
        direction=direction,
    )


ENTRIES = (
    Entry("SALVF", _salvf(INNER), _grid((2.0, 4.0), LONG_STEPS), "SALM, 50 steps"),
    Entry("SALVF-VR", _salvf(INNER, Storm(beta=VR_BETA)), _grid((2.0, 4.0), LONG_STEPS), "SALM, 50 steps"),
    Entry("SALVF, exact inner", _salvf(Conic()), _grid((3.0, 10.0), LONG_STEPS), "Conic"),
    Entry(
        "BLOCC",
        lambda s: BLOCC(
            c=s.weight,
            lower=Exact(),
            penalised=MaxMin(dual_steps=200, primal_steps=20),
            eta=_x_step(s),
            batch_zeta=BATCH,
        ),
        _grid((3.0, 10.0), SHORT_STEPS),
        "Exact and MaxMin, 200 x 20 steps",
    ),
    Entry(
        "LV-HBA",
        lambda s: LVHBA(c=s.weight, alpha=_against_weight(s), projection=Conic(), batch_zeta=BATCH),
        _grid((0.3, 1.0), SHORT_STEPS),
        "Conic (projection)",
    ),
    Entry(
        "GAM",
        lambda s: GAM(lower=Exact(), eta=_x_step(s), candidates=1, batch_zeta=BATCH),
        tuple(Setting(None, step) for step in GAM_STEPS),
        "Exact",
    ),
    Entry(
        "BiC-GAFFA",
        lambda s: BiCGAFFA(c=s.weight, steps=Steps(x=_against_weight(s)), batch_zeta=BATCH),
        _grid((0.3, 1.0), SHORT_STEPS),
        "none (single loop)",
    ),
)
