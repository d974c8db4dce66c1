"""The published methods by name: the one line that a new method adds for the command line to know it.

`Auto` is not here, because it is above the methods and chooses among them; the command line adds it.
"""

from collections.abc import Callable

from hierax._methods.blocc import BLOCC
from hierax._methods.implicit_gradient import GAM, IGAL, SIGD
from hierax._methods.penalties import Barrier, FirstOrderPenalty, Moreau
from hierax._methods.salvf import SALVF, SALVF_VR
from hierax._methods.single_loop import LVHBA, BiCGAFFA
from hierax._run.method import AbstractMethod

METHODS: dict[str, Callable[[], AbstractMethod]] = {
    "salvf": SALVF,
    "salvf-vr": SALVF_VR,
    "blocc": BLOCC,
    "lv-hba": LVHBA,
    "bic-gaffa": BiCGAFFA,
    "gam": GAM,
    "barrier": Barrier,
    "sigd": SIGD,
    "ig-al": IGAL,
    "moreau": Moreau,
    "first-order-penalty": FirstOrderPenalty,
}
