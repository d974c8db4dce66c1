"""What a run has cost by a step, where steps may cost different amounts in different parts of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from hierax._run.reports import Costs


class Spending:
    """Costs of the steps of a run, part after part; `before`: what was spent before its first one."""

    def __init__(self, before: Costs) -> None:
        self.before = before
        self.parts: list[
            tuple[int, Costs]
        ] = []  # the step that a part begins with, and what each step costs from it on

    def begin(self, step: int, each: Costs) -> None:
        """From this step on every step costs `each`."""
        self.parts.append((step, each))

    def until(self, step: int | np.ndarray) -> dict[str, Any]:
        """Costs by name after `steps` steps."""
        ends = [first for first, _ in self.parts[1:]] + [np.iinfo(np.int64).max]
        made = [np.clip(step, first, end) - first for (first, _), end in zip(self.parts, ends, strict=True)]
        return {
            name: getattr(self.before, name)
            + sum(n * getattr(c, name) for n, (_, c) in zip(made, self.parts, strict=True))
            for name in Costs._fields
        }
