"""What a run returns: solution, status, history, counts."""

import csv
import dataclasses
import functools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from hierax._problem.problem import Multipliers, Problem

if TYPE_CHECKING:
    from hierax._judge.certificate import Certificate, Certificates

FAILURES = frozenset({"nonfinite", "diverged", "infeasible", "unbounded_lower", "unbounded_upper", "data_error"})
FINE = frozenset({"converged", "max_steps", "seconds", "samples", "stopped", "best_of_branches", "no_multiplier"})


@dataclasses.dataclass(frozen=True)
class Status:
    """How a run ended: a name, cause and cure in words, and the step."""

    name: str
    message: str
    step: int

    @property
    def ok(self) -> bool:
        """Whether the run ended as it was asked to: neither failed nor pinned in a corner of the sets."""
        return self.name in FINE

    @property
    def failed(self) -> bool:
        """Whether `throw=True` raises."""
        return self.name in FAILURES


@dataclasses.dataclass(frozen=True)
class Counts:
    """Samples and gradient evaluations of a run (per start), and its seconds with compilation apart."""

    zeta: int = 0
    xi: int = 0
    grad_upper: int = 0
    grad_lower: int = 0
    vjp_constraints: int = 0
    lower_solves: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0


class History:
    """Records of a run: one NumPy array per name, one row per record.

    Examples:
        >>> history = History({"step": np.array([1, 2]), "upper": np.array([0.5, 0.25])})
        >>> history["upper"].min()
        np.float64(0.25)
    """

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self.columns = columns

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.columns)}")
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns["step"])

    def __repr__(self) -> str:
        return f"History({len(self)} records of {', '.join(self.columns)})"

    def to_csv(self, path: str | Path) -> None:
        """Write the records of a single run as a table."""
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self.columns)
            writer.writerows(zip(*(column.tolist() for column in self.columns.values()), strict=True))


@dataclasses.dataclass(frozen=True, repr=False)
class Solution:
    """The result of `solve` (of `solve_many`: every array has a leading axis of starts, `status` is a list).

    Attributes:
        x: upper variable.
        y: lower variable.
        multipliers: lam of the lower level (in the user's units) and those of the upper constraints.
        status: how the run ended.
        history: records by name.
        counts: samples, gradients, seconds.
        state: everything needed to go on: `solve(..., state=sol.state)`.
        method: the method with every unset value filled in.
        problem: the problem as it was given, for `certificate`; keeps its data alive as long as the solution.
        log: what `Auto` tried and found, in words.
    """

    x: PyTree
    y: PyTree
    multipliers: Multipliers
    status: Any
    history: History
    counts: Counts
    state: Any
    method: Any
    problem: Problem | None = None
    log: tuple[str, ...] = ()

    @functools.cached_property
    def certificate(self) -> "Certificate | Certificates":
        """`certify` of this solution, computed on first access; of `solve_many`, a sequence of them, one per start.

        For another solver, other samples or data of a `Stream`, call `hierax.certify` yourself.
        """
        from hierax._judge.certificate import (  # here, because it needs solvers that need this module
            Certificates,
            certify,
        )

        problem = self.problem
        if problem is None:
            raise ValueError("this solution does not know its problem: call hierax.certify(problem, sol.x, sol.y).")
        if isinstance(self.status, Status):
            return certify(problem, self.x, self.y, multipliers=self.multipliers, state=self.state)

        def of_start(i: int) -> "Certificate":
            x, y, multipliers, method, run = jax.tree.map(
                lambda leaf: leaf[i] if eqx.is_array(leaf) else leaf,
                (self.x, self.y, self.multipliers, self.state.method, self.state.run),
            )
            state = self.state._replace(method=method, run=run)
            return certify(problem, x, y, multipliers=multipliers, state=state)

        return Certificates(len(self.status), of_start)

    def __repr__(self) -> str:
        """x, y, multipliers and status; the rest is there to be asked for."""
        status = self.status if isinstance(self.status, Status) else Counter(one.name for one in self.status)
        return f"Solution(x={self.x}, y={self.y}, multipliers={self.multipliers}, status={status})"
