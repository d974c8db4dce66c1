"""What the author of a method, a lower solver, a set or a command needs beside the abstract classes of `hierax`.

`docs/guides/own-method.md` writes a method with these names; the published methods use the same. For experiments and
commands of other packages, such as hierax-lab:

- `METHODS`: the published methods by name;
- `first_state`, `psi_stationarity`: SALVF from a given point, and how far a point is from stationary;
- `interruptible`, `Interrupt`, `die_when_terminated`: Ctrl-C and SIGTERM without loss;
- `forget_programs`: drops compiled programs, so that the next call is a first one;
- `lazy`: a module that is imported at its first use.
"""

from hierax._base.imports import lazy as lazy
from hierax._base.interrupt import Interrupt as Interrupt
from hierax._base.interrupt import die_when_terminated as die_when_terminated
from hierax._base.interrupt import interruptible as interruptible
from hierax._compile.bound import forget_programs as forget_programs
from hierax._lower.base import AbstractLowerSolver as AbstractLowerSolver
from hierax._math.lower_level import INACCURATE as INACCURATE
from hierax._math.lower_level import INFEASIBLE as INFEASIBLE
from hierax._math.lower_level import SOLVED as SOLVED
from hierax._math.lower_level import UNBOUNDED as UNBOUNDED
from hierax._math.lower_level import LowerSolution as LowerSolution
from hierax._math.psi import Iterate as Iterate
from hierax._math.psi import all_constraints as all_constraints
from hierax._math.psi import gradient_mapping as gradient_mapping
from hierax._math.psi import psi_stationarity as psi_stationarity
from hierax._math.psi import violation as violation
from hierax._methods.common import StepTaken as StepTaken
from hierax._methods.common import apply_rule as apply_rule
from hierax._methods.common import as_arrays as as_arrays
from hierax._methods.common import batch_costs as batch_costs
from hierax._methods.common import init_rule as init_rule
from hierax._methods.common import no_multipliers as no_multipliers
from hierax._methods.common import step_metrics as step_metrics
from hierax._methods.registry import METHODS as METHODS
from hierax._methods.salvf import first_state as first_state
from hierax._problem.problem import Multipliers as Multipliers
from hierax._problem.problem import Rows as Rows
from hierax._problem.samples import Tickets as Tickets
from hierax._problem.samples import fetch as fetch
from hierax._problem.samples import whole as whole
from hierax._problem.sets import AbstractSet as AbstractSet
from hierax._problem.sets import Faces as Faces
from hierax._problem.sets import project as project
from hierax._run.method import AbstractMethod as AbstractMethod
from hierax._run.method import Advice as Advice
from hierax._run.method import Batches as Batches
from hierax._run.method import Begun as Begun
from hierax._run.method import Costs as Costs
from hierax._run.method import Metrics as Metrics
from hierax._run.method import Residual as Residual
from hierax._run.method import RunCosts as RunCosts

__all__ = [name for name in dir() if not name.startswith("_")]
