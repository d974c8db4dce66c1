"""What the author of a method, a lower solver or a set needs beside the abstract classes of `hierax`.

`docs/own-method.md` writes a method with these names; the published methods use the same.
"""

from hierax._lower.base import AbstractLowerSolver
from hierax._math.lower_level import INACCURATE, INFEASIBLE, SOLVED, UNBOUNDED, LowerSolution
from hierax._math.psi import all_constraints, gradient_mapping, violation
from hierax._methods.common import Iterate, StepTaken, as_arrays, batch_costs, no_multipliers, step_metrics
from hierax._methods.steps import apply_rule, init_rule
from hierax._problem.problem import Multipliers, Rows
from hierax._problem.samples import Tickets, fetch, whole
from hierax._problem.sets import AbstractSet, Faces, project
from hierax._run.batches import Batches
from hierax._run.method import AbstractMethod
from hierax._run.reports import Advice, Begun, Costs, Metrics, Residual, RunCosts

__all__ = [
    "INACCURATE",
    "INFEASIBLE",
    "SOLVED",
    "UNBOUNDED",
    "AbstractLowerSolver",
    "AbstractMethod",
    "AbstractSet",
    "Advice",
    "Batches",
    "Begun",
    "Costs",
    "Faces",
    "Iterate",
    "LowerSolution",
    "Metrics",
    "Multipliers",
    "Residual",
    "Rows",
    "RunCosts",
    "StepTaken",
    "Tickets",
    "all_constraints",
    "apply_rule",
    "as_arrays",
    "batch_costs",
    "fetch",
    "gradient_mapping",
    "init_rule",
    "no_multipliers",
    "project",
    "step_metrics",
    "violation",
    "whole",
]
