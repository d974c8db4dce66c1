"""What the experiments in the published setting share: where each value comes from, and the released code's figures.

A setting is a value with its source: the paper's text, the released code, our choice where neither states it, or our
change where what they state is wrong or too long to run. The stored figures are those of the results that the released
code comes with (docs/methods/released-code.md).
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from rich.console import Console

from hierax import SALVF, Decay, HieraxWarning, Plain, Steps, Storm
from hierax_lab.reproduce.comparison import headed, print_verdicts
from hierax_lab.reproduce.experiment import Content, Run
from hierax_lab.reproduce.verdict import Verdict

RELEASED = "github nht2018/salvf, 2025-08-03"
SEEDS = 10  # of the experiments with data, as in the paper

Source = Literal["paper", "released code", "ours: not stated", "ours: changed"]
PAPER: Source = "paper"
CODE: Source = "released code"
OURS: Source = "ours: not stated"
CHANGED: Source = "ours: changed"


class Given(NamedTuple):
    """A setting of an experiment, its value in words, and who states it."""

    name: str
    value: str
    source: Source


class Stored(NamedTuple):
    """Figures of one method in the released results."""

    method: str
    figures: tuple[float | None, ...]


# Final points of the 14 runs printed in the notebook of the toy.
TOY_X, TOY_X_SPREAD, TOY_GAP = 0.053, 0.025, 0.045
# Minimisers of the F of the notebook, which has an extra + x^2, on the line y = x; the second is the global one.
NOTEBOOK_MINIMISERS = (0.139, 0.881, 1.721)
# Test accuracy on diabetes after 120 epochs and on fourclass after 60, mean of 10 seeds.
SVM_SETS = ("diabetes", "fourclass")
SVM_ACCURACY = (
    Stored("SALVF", (0.7678, 0.7750)),
    Stored("BLOCC", (0.7661, 0.7575)),
    Stored("LV-HBA", (0.7356, 0.7722)),
    Stored("GAM", (0.7356, 0.6830)),
)
SVM_VALIDATION = {"diabetes": 2.3976, "fourclass": 2.4749}  # validation loss, the same from epoch 1 on
# Test accuracy of the network at epochs 50 and 100; None: not stored.
DECAY_EPOCHS = (50, 100)
DECAY_ACCURACY = (
    Stored("no weight decay", (0.9672, 0.9692)),
    Stored("SALVF", (0.9703, 0.9697)),
    Stored("SALVF-VR", (0.9703, 0.0917)),
    Stored("BLOCC", (0.9708, 0.8814)),
    Stored("LV-HBA", (0.9625, None)),
)


def as_printed(step: float, reduced: bool = False, **settings: Any) -> SALVF:
    """Algorithm 2, or 3 where `reduced`, as printed: one step size for x, y and z, and nothing adapted."""
    alpha = Decay(step, a=1.0, power=1 / 3 if reduced else 0.0)
    return SALVF(
        penalty="quadratic",
        steps=Steps(x=alpha, y=alpha, z=alpha),
        direction=Storm(schedule="paper", z=True) if reduced else Plain(),
        control_variate=False,
        follow=False,
        adapt=(),
        start="given",
        **settings,
    )


@contextmanager
def printed_schedule_allowed() -> Iterator[None]:
    """No warning about the printed schedule of beta, which the published runs have on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Storm", category=HieraxWarning)
        yield


def stored(table: Sequence[Stored], method: str) -> tuple[float | None, ...]:
    """The figures of a method; Nones where the released results have none."""
    for row in table:
        if row.method == method:
            return row.figures
    return (None,) * len(table[0].figures)


def shown(value: float | None, form: str = ".4f") -> str:
    """A figure as text; "-" where there is none."""
    return "-" if value is None else format(value, form)


def common_content(run: Run, settings: Sequence[Given]) -> Content:
    """What metrics.json of every published run begins with."""
    return {"settings": [setting._asdict() for setting in settings], "quick": run.quick}


def print_settings(console: Console, settings: Sequence[Given]) -> None:
    """The table of settings, each with its source."""
    table = headed(f"settings as published (released code: {RELEASED})", "value", "source")
    for setting in settings:
        table.add_row(setting.name, setting.value, setting.source)
    console.print(table)


def print_statements(console: Console, statements: Sequence[Verdict], quick: bool) -> None:
    """The paper's statements, with a word where the run was a quick one."""
    if quick:
        console.print("A quick run shows that everything works; it is not judged.\n")
    print_verdicts(console, statements)
