"""What the author of a method, a lower solver, a set or a command needs beside the abstract classes of `hierax`.

`docs/guides/own-method.md` writes a method with these names; the published methods use the same. For experiments and
commands of other packages, such as hierax-lab:

- `METHODS`: the published methods by name;
- `first_state`, `psi_stationarity`: SALVF from a given point, and how far a point is from stationary;
- `interruptible`, `Interrupt`, `die_when_terminated`: Ctrl-C and SIGTERM without loss;
- `forget_programs`: drops compiled programs, so that the next call is a first one;
- `lazy`: a module that is imported at its first use.
"""

from hierax._base.imports import lazy
from hierax._base.interrupt import Interrupt, die_when_terminated, interruptible
from hierax._compile.bound import forget_programs
from hierax._lower.base import AbstractLowerSolver
from hierax._math.lower_level import INACCURATE, INFEASIBLE, SOLVED, UNBOUNDED, LowerSolution
from hierax._math.psi import Iterate, all_constraints, gradient_mapping, psi_stationarity, violation
from hierax._methods.common import (
    StepTaken,
    apply_rule,
    as_arrays,
    batch_costs,
    init_rule,
    no_multipliers,
    step_metrics,
)
from hierax._methods.registry import METHODS
from hierax._methods.salvf import first_state
from hierax._methods.salvf_settings import AbstractDirection, StepInfo
from hierax._problem.problem import Multipliers, Rows
from hierax._problem.samples import Tickets, fetch, whole
from hierax._problem.sets import AbstractSet, Faces, project
from hierax._run.method import AbstractMethod, Advice, Batches, Begun, Costs, Metrics, Residual, RunCosts

# fmt: off
__all__ = [
    "INACCURATE", "INFEASIBLE", "METHODS", "SOLVED", "UNBOUNDED", "AbstractDirection", "AbstractLowerSolver",
    "AbstractMethod", "AbstractSet", "Advice", "Batches", "Begun", "Costs", "Faces", "Interrupt", "Iterate",
    "LowerSolution", "Metrics", "Multipliers", "Residual", "Rows", "RunCosts", "StepInfo", "StepTaken", "Tickets",
    "all_constraints", "apply_rule", "as_arrays", "batch_costs", "die_when_terminated", "fetch", "first_state",
    "forget_programs", "gradient_mapping", "init_rule", "interruptible", "lazy", "no_multipliers", "project",
    "psi_stationarity", "step_metrics", "violation", "whole",
]
# fmt: on
