"""Constraint qualifications: a Slater point, and what the KKT system says at the lower level's solution y*(x0).

Each function makes findings of `check`. Convexity is `segments.py`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, Scalar

from hierax._base import trees
from hierax._base.text import entries, numbers_of, shown
from hierax._engine.float64_problem import Data, Float64Problem
from hierax._engine.segments import FLAT, Finding
from hierax._lower.base import AbstractLowerSolver
from hierax._math.hypergradient import System, fits, kkt_system
from hierax._math.lower_level import MEANING, SOLVED, LowerSolution, row_names
from hierax._math.scatter import normal_around
from hierax._math.spectrum import constraint_scales
from hierax._problem import sets
from hierax._problem.problem import Problem

WEAK = 1e-5  # rows whose slack and multiplier are both below this share of y's size are weakly active
STRICT = 1e-6  # a largest row below minus this, in units of y, makes a Slater point
ELSEWHERE = 3  # further points x at which a Slater point is looked for
LISTED = 4  # rows named in one text


class _Inside(NamedTuple):
    """The point of Y whose largest row is least.

    Attributes:
        x: where it was looked for.
        y: the point.
        largest: its largest row, in units of y.
        status: of the search.
        weights: how much each constraint is in the way.
    """

    x: PyTree
    y: PyTree
    largest: Scalar
    status: Int[Array, ""]
    weights: PyTree


def slater_point(setting: Float64Problem, lower: AbstractLowerSolver, y: PyTree, rng: np.random.Generator) -> Finding:
    """Minimise the largest row over Y and the equalities, near y: a Slater point is where it is negative.

    The objective t + t^2/2 + rho/2 ||v - y||^2 over h_i(v) / ||grad h_i|| <= t, t >= -1, is strongly convex, and at a
    feasible y it is below zero exactly where a strictly feasible direction exists, whatever rho > 0.
    """

    def program(problem: Problem, data: Data, solver: AbstractLowerSolver, x: PyTree, y: PyTree) -> _Inside:
        x = sets.project(problem.x_set, x)
        scales = constraint_scales(problem, x, y, jax.random.key(0)).inequalities
        rho = 1 / (1 + trees.norm_squared(y))

        def rows(x: PyTree, v: PyTree) -> PyTree:
            return jax.tree.map(lambda h, s: h / s, problem.constraints(x, v), scales)

        def objective(x: PyTree, u: tuple[PyTree, Array], batch: None) -> Array:
            v, t = u
            return t + 0.5 * t**2 + 0.5 * rho * trees.norm_squared(trees.sub(v, y))

        largest = jnp.max(jnp.stack([jnp.max(leaf) for leaf in jax.tree.leaves(rows(x, y))]))
        level = Problem(
            upper=objective,
            lower=objective,
            constraints=lambda x, u: jax.tree.map(lambda h: h - u[1], rows(x, u[0])),
            equalities=lambda x, u: problem.equalities(x, u[0]),
            y_set=(problem.y_set, sets.Box(-1.0, jnp.inf)),
        )
        found = solver.solve(level, x, (y, jnp.maximum(largest, -1.0) + 0.1))
        return _Inside(x, found.y[0], found.y[1], found.status, found.multipliers.inequalities)

    name = "Slater point"
    if not jax.tree.leaves(setting.shapes("constraints")):
        return Finding(name, True, "there are no constraints")
    xs = normal_around(setting.x, np.array([0.0] + [0.1] * ELSEWHERE)[:, None], rng)
    for i in range(1 + ELSEWHERE):
        at = jax.tree.map(lambda leaf, i=i: leaf[i], xs)
        found = setting.run("Slater", program, lower, at, y)
        where = f"at x = {shown(found.x)}"
        if int(found.status) != SOLVED:
            return Finding(name, None, f"the search ended without an answer {where}: {MEANING[int(found.status)]}")
        if float(found.largest) > -STRICT * (1 + np.sqrt(np.mean(numbers_of(found.y) ** 2))):
            row = entries("constraints", found.weights)[int(np.argmax(numbers_of(found.weights)))]
            state = "is empty" if float(found.largest) > STRICT else "has no interior"
            return Finding(name, False, f"the feasible set {state} {where}: {row} is in the way")
    return Finding(name, True, f"at x0 and {ELSEWHERE} points around it")


def solvable(setting: Float64Problem, found: LowerSolution) -> Finding:
    """Whether the solver found y*(x0)."""
    status, where = int(found.status), f"at x = {shown(setting.x)}"
    if status == SOLVED:
        return Finding("solvable lower level", True, f"y*(x0) = {shown(found.y)}")
    return Finding("solvable lower level", False, f"{MEANING[status]} ({where}, residual {float(found.residual):.2g})")


def at_the_solution(setting: Float64Problem, found: LowerSolution | None) -> list[Finding]:
    """Uniqueness, LICQ and strict complementarity at y*(x0); `found` is None where that is not known."""
    names = ("unique lower solution", "LICQ", "strict complementarity")
    if found is None:
        return [Finding(name, None, "not looked at: the lower level is not solved at x0") for name in names]

    def program(problem: Problem, data: Data, x: PyTree, found: LowerSolution) -> System | None:
        return kkt_system(problem, x, found, data.xi) if fits(problem, x, found.y) else None

    system = setting.run("KKT system", program, setting.x, found)
    if system is None:
        return [Finding(name, None, "not computed: too large") for name in names]
    rows = np.array(row_names(found))
    near = system.equal | (system.slack < WEAK)
    weak = near & ~system.equal & (system.force < WEAK)
    held = near & ~weak
    return [
        _unique(names[0], system, held),
        _licq(names[1], system.jacobian[near], rows[near]),
        _strict(names[2], rows[weak]),
    ]


def _unique(name: str, system: System, held: np.ndarray) -> Finding:
    """Curvature of the Lagrangian along what the rows with a multiplier leave free (second-order sufficiency)."""
    _, singular, right = np.linalg.svd(np.vstack([system.jacobian[held], np.zeros((1, len(system.hessian)))]))
    free = right[int(np.sum(singular > FLAT)) :]
    bottom = float(np.min(np.linalg.eigvalsh(free @ system.hessian @ free.T), initial=np.inf))
    if bottom > FLAT:
        return Finding(name, True, "the Lagrangian is curved along the active constraints")
    return Finding(name, False, f"the Lagrangian is flat along the active constraints at x0 (curvature {bottom:.2g})")


def _licq(name: str, gradients: np.ndarray, rows: np.ndarray) -> Finding:
    """Independence of the gradients (unit vectors) of the rows that are active at y*(x0)."""
    if not len(rows):
        return Finding(name, True, "no row is active at y*(x0)")
    left, singular, _ = np.linalg.svd(gradients)
    if len(singular) == len(rows) and singular[-1] > FLAT:
        return Finding(name, True, f"{len(rows)} active rows at y*(x0), independent")
    involved = rows[np.abs(left[:, -1]) > WEAK]
    return Finding(name, False, f"the gradients of {_listed(involved)} are dependent at y*(x0)")


def _strict(name: str, weak: np.ndarray) -> Finding:
    if not len(weak):
        return Finding(name, True, "every active row at y*(x0) has a positive multiplier")
    return Finding(name, False, f"{_listed(weak)} active at y*(x0) with multiplier zero: y*(x) has a kink there")


def _listed(rows: np.ndarray) -> str:
    return ", ".join(rows[:LISTED]) + (f" and {len(rows) - LISTED} others" if len(rows) > LISTED else "")
