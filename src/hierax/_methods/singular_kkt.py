"""Why a method that differentiates the KKT system of the lower level cannot start: that system is singular."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from hierax._math import hypergradient as hyper
from hierax._math.lower_level import SOLVED, LowerSolution
from hierax._problem.problem import Problem

TEXTS = (
    "{}: the KKT system of the lower level is singular at the start because the lower objective is flat along the "
    "active constraints: y*(x) is not unique and has no derivative. Use hx.SALVF(), hx.LVHBA() or hx.BiCGAFFA(), or "
    "add a small multiple of the squared norm of y to the lower objective.",
    "{}: the KKT system of the lower level is singular at the start because the gradients of its active constraints "
    "(active bounds of Y included) are linearly dependent: LICQ fails, and multipliers are not unique. Start at "
    "another x, drop redundant constraints, or use hx.SALVF().",
)


def doubts(name: str, problem: Problem, x: PyTree, found: LowerSolution, xi: PyTree) -> dict[str, Bool[Array, ""]]:
    """Both reasons, each with a flag that is True where it applies at the lower level's solution."""
    system = hyper.kkt_system(problem, x, found, xi)
    solved = hyper.adjoint(system, hyper.active_rows(system), jnp.ones_like(system.hessian[0]))
    singular = solved.singular & (found.status == SOLVED)
    flat, dependent = (text.format(name) for text in TEXTS)
    return {flat: singular & solved.flat, dependent: singular & ~solved.flat}


def too_large(name: str) -> str:
    """The refusal of a system that is too large to be factorised."""
    return (
        f"{name}: the KKT matrix of the lower level is larger than {hyper.MOST} x {hyper.MOST} (entries of y plus "
        f"constraints plus bounds of Y), and {name} factorises it at every step. Use hx.SALVF()."
    )
