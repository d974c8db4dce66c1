"""hierax: bilevel optimisation with a constrained lower level, from noisy samples, on JAX.

State a problem (`Problem`, sets, samples), `solve` it, judge the answer (`certify`, `check`), or extend the library
(`AbstractMethod`, `AbstractLowerSolver`, `AbstractSet`, and `hierax.extend`). Problems with known answers are in
`hierax.problems`, classifiers for scikit-learn in `hierax.estimators`. Experiments, benchmarks and data sets are a
package of their own, hierax-lab.
"""

from hierax._auto.auto import Auto
from hierax._base.errors import HieraxWarning, InputError, MissingExtra, RunFailed
from hierax._base.imports import lazy as _lazy
from hierax._base.settings import Staircase
from hierax._bridges.cvxpy_level import from_cvxpy
from hierax._bridges.scipy_style import minimize_bilevel
from hierax._bridges.torch_function import from_torch
from hierax._compile.configuration import cache
from hierax._compile.configuration import cache_where_the_environment_says as _cache_where_the_environment_says
from hierax._judge.certificate import Certificate
from hierax._judge.certifying import certify
from hierax._judge.check import check
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.conic import Conic
from hierax._lower.exact import Exact
from hierax._lower.salm import SALM
from hierax._methods.augmented import ALM
from hierax._methods.blocc import BLOCC, MaxMin
from hierax._methods.common import Decay, Steps
from hierax._methods.implicit_gradient import GAM, IGAL, SIGD
from hierax._methods.penalties import Barrier, FirstOrderPenalty, Moreau
from hierax._methods.salvf import SALVF, SALVF_VR
from hierax._methods.salvf_settings import Plain, Storm
from hierax._methods.single_loop import LVHBA, BiCGAFFA
from hierax._problem.problem import Multipliers, Problem
from hierax._problem.samples import Finite, Sampler, Stream
from hierax._problem.sets import AbstractSet, Ball, Box, Free, NonNegative, Simplex
from hierax._run import solution as _solution
from hierax._run.call import Info
from hierax._run.method import AbstractMethod
from hierax._run.solution import Solution, Solutions, Status
from hierax._theory.theory import Theory, theory
from hierax._theory.values import EnvelopeAt, GradientErrors, PsiAt, dual, envelope, gradient_errors, psi
from hierax.solving import solve, solve_many

__version__ = "0.1.0"

estimators = _lazy("hierax.estimators")
extend = _lazy("hierax.extend")
problems = _lazy("hierax.problems")

# fmt: off
__all__ = [
    "ALM", "BLOCC", "GAM", "IGAL", "LVHBA", "SALM", "SALVF", "SALVF_VR", "SIGD", "AbstractLowerSolver",
    "AbstractMethod", "AbstractSet", "Auto", "Ball", "Barrier", "BiCGAFFA", "Box", "Certificate", "Conic", "Decay",
    "EnvelopeAt", "Exact", "Finite", "FirstOrderPenalty", "Free", "GradientErrors", "HieraxWarning", "Info",
    "InputError", "MaxMin", "MissingExtra", "Moreau", "Multipliers", "NonNegative", "Plain", "Problem", "PsiAt",
    "RunFailed", "Sampler", "Simplex", "Solution", "Solutions", "Staircase", "Status", "Steps", "Storm", "Stream",
    "Theory", "cache", "certify", "check", "dual", "envelope", "estimators", "extend", "from_cvxpy", "from_torch",
    "gradient_errors", "minimize_bilevel", "problems", "psi", "solve", "solve_many", "theory",
]
# fmt: on

datasets = _lazy("hierax.datasets")  # deprecated, so not in __all__
_solution.reports = _lazy("hierax.reports.folder")  # for `sol.report` and `sol.plot`
_cache_where_the_environment_says()


def __dir__() -> list[str]:
    """The public names only."""
    return sorted([*__all__, "__doc__", "__version__"])
