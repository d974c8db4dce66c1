"""hierax: bilevel optimisation with a constrained lower level, from noisy samples, on JAX."""

from hierax._auto.auto import Auto as Auto
from hierax._base.errors import HieraxWarning as HieraxWarning
from hierax._base.errors import InputError as InputError
from hierax._base.errors import RunFailed as RunFailed
from hierax._judge.certificate import Certificate as Certificate
from hierax._judge.certificate import certify as certify
from hierax._judge.check import check as check
from hierax._lower.conic import Conic as Conic
from hierax._lower.exact import Exact as Exact
from hierax._lower.maxmin import MaxMin as MaxMin
from hierax._lower.salm import SALM as SALM
from hierax._methods.blocc import BLOCC as BLOCC
from hierax._methods.directions import Plain as Plain
from hierax._methods.directions import Storm as Storm
from hierax._methods.gaffa import BiCGAFFA as BiCGAFFA
from hierax._methods.gam import GAM as GAM
from hierax._methods.lvhba import LVHBA as LVHBA
from hierax._methods.salvf import SALVF as SALVF
from hierax._methods.salvf import SALVF_VR as SALVF_VR
from hierax._methods.steps import Decay as Decay
from hierax._methods.steps import Steps as Steps
from hierax._problem.problem import Multipliers as Multipliers
from hierax._problem.problem import Problem as Problem
from hierax._problem.samples import Finite as Finite
from hierax._problem.samples import Sampler as Sampler
from hierax._problem.samples import Stream as Stream
from hierax._problem.sets import Ball as Ball
from hierax._problem.sets import Box as Box
from hierax._problem.sets import Free as Free
from hierax._problem.sets import NonNegative as NonNegative
from hierax._problem.sets import Simplex as Simplex
from hierax._run.host import Info as Info
from hierax._run.solution import Solution as Solution
from hierax._run.solution import Status as Status
from hierax.solving import solve as solve
from hierax.solving import solve_many as solve_many

__version__ = "0.1.0"
