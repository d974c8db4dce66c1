"""The settings of the large route's runs: how long they are, which x-step and which weight c1 come next.

Every stage is a race of two x-steps at one c1. A longer step that wins becomes the normal one; a longer step that loses
brings the two closer together; without progress the weight c1 grows, which removes the bias that a small c1 leaves.
"""

from typing import NamedTuple

from hierax._auto.constants import C1_GROWTH, C1_POWER_MOST, FIRST_STEP_RATIO, FIRST_STEPS, PATIENCE, STEPS_GROWTH


class RunSettings(NamedTuple):
    """How a run of SALVF differs from what it would estimate by itself.

    Attributes:
        steps: outer steps.
        step_factor: the x-step, in units of the estimate.
        c1_power: c1 is its estimate times C1_GROWTH to this power.
    """

    steps: int
    step_factor: float
    c1_power: int

    @property
    def c1_factor(self) -> float:
        """c1 in units of the estimate."""
        return C1_GROWTH**self.c1_power

    def __str__(self) -> str:
        return f"x-step {self.step_factor:g} and c1 {self.c1_factor:g} times the estimate"


AS_ESTIMATED = RunSettings(FIRST_STEPS, 1.0, 0)


class Schedule:
    """Which settings come next, after what the stages so far have shown."""

    def __init__(self) -> None:
        self.settings = AS_ESTIMATED
        self._ratio = FIRST_STEP_RATIO  # of the two x-steps in the next race
        self._without_progress = 0  # stages in a row
        self._longer_lost = 0  # stages in a row in which there was no progress, and the longer step did not win either

    def first_race(self) -> list[RunSettings]:
        """The estimated weight c1, and weights far below it, where steps are longer: which wins depends on the problem.

        On the toy, where a constraint pins y, small c1 wins.
        """
        return [self.settings._replace(c1_power=-2 * power) for power in range(3)]

    def next_race(self) -> tuple[RunSettings, RunSettings]:
        """A longer run with the x-step that did best so far, and one with a longer x-step."""
        self.settings = self.settings._replace(steps=int(STEPS_GROWTH * self.settings.steps))
        return self.settings, self.settings._replace(step_factor=self._ratio * self.settings.step_factor)

    def learn(self, winner: RunSettings | None, progress: bool) -> None:
        """Adapt the x-step to which run of a race won (None: neither was any good), and whether it brought progress."""
        factor = self.settings.step_factor
        longer_won = winner is not None and winner.step_factor > factor
        if longer_won:
            factor *= self._ratio
        else:  # the longer step is too long; without any progress the shorter one is, too
            self._ratio = max(self._ratio**0.5, FIRST_STEP_RATIO**0.25)
            factor /= 1.0 if progress else self._ratio
        self.settings = self.settings._replace(step_factor=factor)
        self._without_progress = 0 if progress else self._without_progress + 1
        self._longer_lost = 0 if progress or longer_won else self._longer_lost + 1

    @property
    def stalled(self) -> bool:
        """Whether this weight c1 has brought no progress for long enough."""
        return self._longer_lost >= 2 or self._without_progress >= PATIENCE

    def go_on(self) -> None:
        """Further stages with this weight, although it has brought no progress."""
        self._without_progress = self._longer_lost = 0

    def raise_c1(self) -> None:
        """The next weight, up to a largest one."""
        power = min(self.settings.c1_power + 1, C1_POWER_MOST)
        self.settings = self.settings._replace(c1_power=power)
        self.go_on()
