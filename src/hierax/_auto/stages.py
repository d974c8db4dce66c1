"""The stages of the large route so far, and the best of them."""

import numpy as np

from hierax._auto.constants import GAIN
from hierax._auto.stage_runner import Stage
from hierax._run.records import History


class Stages:
    """The best end of every run that came to something, in their order; `best` is where the next runs begin."""

    def __init__(self) -> None:
        self._all: list[Stage] = []
        self.best: Stage | None = None

    def __len__(self) -> int:
        return len(self._all)

    def add(self, stage: Stage) -> None:
        """Count a stage; whether the route goes on from it is decided once its race is over."""
        self._all.append(stage)

    def go_on_from(self, stage: Stage | None) -> bool:
        """Go on from a stage that is better than all before; whether it is clearly so."""
        if stage is None or (self.best is not None and stage.merit >= self.best.merit):
            return False
        progress = self.best is None or stage.merit < self.best.merit - GAIN * (1 + abs(self.best.merit))
        self.best = stage
        return progress

    @property
    def least_upper_violation(self) -> float:
        """The least violation of the upper constraints that was met."""
        return min((stage.upper_violation for stage in self._all), default=0.0)

    def history(self) -> History:
        """A record of every stage."""
        return History(
            {
                "step": np.arange(1, len(self) + 1),
                "upper": np.array([stage.upper for stage in self._all]),
                "violation": np.array([stage.violation for stage in self._all]),
                "gap": np.array([stage.end.iterate_gap for stage in self._all]),
                "factor": np.array([stage.settings.step_factor for stage in self._all]),
            }
        )
