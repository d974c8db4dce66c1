"""hierax: bilevel optimisation with a constrained lower level, from noisy samples, on JAX.

State a problem (`Problem`, sets, samples), `solve` it, judge the answer (`certify`, `check`), or extend the library
(`AbstractMethod`, `AbstractLowerSolver`, `AbstractSet`, and `hierax.extend`). Problems with known answers are in
`hierax.problems`, classifiers for scikit-learn in `hierax.estimators`. Experiments, benchmarks and data sets are a
package of their own, hierax-lab.
"""

from hierax._auto.auto import Auto as Auto
from hierax._base.errors import HieraxWarning as HieraxWarning
from hierax._base.errors import InputError as InputError
from hierax._base.errors import MissingExtra as MissingExtra
from hierax._base.errors import RunFailed as RunFailed
from hierax._base.imports import lazy as _lazy
from hierax._base.settings import Staircase as Staircase
from hierax._bridges.cvxpy_level import from_cvxpy as from_cvxpy
from hierax._bridges.scipy_style import minimize_bilevel as minimize_bilevel
from hierax._bridges.torch_function import from_torch as from_torch
from hierax._compile.configuration import cache as cache
from hierax._compile.configuration import cache_where_the_environment_says as _cache_where_the_environment_says
from hierax._judge.certificate import Certificate as Certificate
from hierax._judge.certifying import certify as certify
from hierax._judge.check import check as check
from hierax._lower.base import AbstractLowerSolver as AbstractLowerSolver
from hierax._lower.conic import Conic as Conic
from hierax._lower.exact import Exact as Exact
from hierax._lower.salm import SALM as SALM
from hierax._methods.augmented import ALM as ALM
from hierax._methods.blocc import BLOCC as BLOCC
from hierax._methods.blocc import MaxMin as MaxMin
from hierax._methods.common import Decay as Decay
from hierax._methods.common import Steps as Steps
from hierax._methods.implicit_gradient import GAM as GAM
from hierax._methods.implicit_gradient import IGAL as IGAL
from hierax._methods.implicit_gradient import SIGD as SIGD
from hierax._methods.penalties import Barrier as Barrier
from hierax._methods.penalties import FirstOrderPenalty as FirstOrderPenalty
from hierax._methods.penalties import Moreau as Moreau
from hierax._methods.salvf import SALVF as SALVF
from hierax._methods.salvf import SALVF_VR as SALVF_VR
from hierax._methods.salvf_settings import Plain as Plain
from hierax._methods.salvf_settings import Storm as Storm
from hierax._methods.single_loop import LVHBA as LVHBA
from hierax._methods.single_loop import BiCGAFFA as BiCGAFFA
from hierax._problem.problem import Multipliers as Multipliers
from hierax._problem.problem import Problem as Problem
from hierax._problem.samples import Finite as Finite
from hierax._problem.samples import Sampler as Sampler
from hierax._problem.samples import Stream as Stream
from hierax._problem.sets import AbstractSet as AbstractSet
from hierax._problem.sets import Ball as Ball
from hierax._problem.sets import Box as Box
from hierax._problem.sets import Free as Free
from hierax._problem.sets import NonNegative as NonNegative
from hierax._problem.sets import Simplex as Simplex
from hierax._run import solution as _solution
from hierax._run.call import Info as Info
from hierax._run.method import AbstractMethod as AbstractMethod
from hierax._run.solution import Solution as Solution
from hierax._run.solution import Solutions as Solutions
from hierax._run.solution import Status as Status
from hierax._theory.theory import Theory as Theory
from hierax._theory.theory import theory as theory
from hierax.solving import solve as solve
from hierax.solving import solve_many as solve_many

__version__ = "0.1.0"

estimators = _lazy("hierax.estimators")
extend = _lazy("hierax.extend")
problems = _lazy("hierax.problems")

__all__ = [name for name in dir() if not name.startswith("_") and name != "solving"]  # that module is private

datasets = _lazy("hierax.datasets")  # deprecated, so not in __all__
_solution.reports = _lazy("hierax.reports.folder")  # for `sol.report` and `sol.plot`
_cache_where_the_environment_says()


def __dir__() -> list[str]:
    """The public names only."""
    return sorted([*__all__, "__doc__", "__version__"])
