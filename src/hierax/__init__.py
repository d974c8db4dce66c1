"""hierax: bilevel optimisation with a constrained lower level, from noisy samples, on JAX."""

from hierax.assumptions import check as check
from hierax.auto.auto import Auto as Auto
from hierax.certificate import Certificate as Certificate
from hierax.certificate import certify as certify
from hierax.driver import Info as Info
from hierax.errors import HieraxWarning as HieraxWarning
from hierax.errors import InputError as InputError
from hierax.errors import RunFailed as RunFailed
from hierax.lower.conic import Conic as Conic
from hierax.lower.exact import Exact as Exact
from hierax.lower.maxmin import MaxMin as MaxMin
from hierax.lower.salm import SALM as SALM
from hierax.methods.blocc import BLOCC as BLOCC
from hierax.methods.directions import Plain as Plain
from hierax.methods.directions import Storm as Storm
from hierax.methods.gaffa import BiCGAFFA as BiCGAFFA
from hierax.methods.gam import GAM as GAM
from hierax.methods.lvhba import LVHBA as LVHBA
from hierax.methods.salvf import SALVF as SALVF
from hierax.methods.salvf import SALVF_VR as SALVF_VR
from hierax.methods.steps import Decay as Decay
from hierax.methods.steps import Steps as Steps
from hierax.problem import Multipliers as Multipliers
from hierax.problem import Problem as Problem
from hierax.samples import Finite as Finite
from hierax.samples import Sampler as Sampler
from hierax.samples import Stream as Stream
from hierax.sets import Ball as Ball
from hierax.sets import Box as Box
from hierax.sets import Free as Free
from hierax.sets import NonNegative as NonNegative
from hierax.sets import Simplex as Simplex
from hierax.solution import Solution as Solution
from hierax.solution import Status as Status
from hierax.solve import solve as solve
from hierax.solve import solve_many as solve_many

__version__ = "0.1.0"
