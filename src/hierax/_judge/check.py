"""`check`: does a problem satisfy what the methods assume of it, and if not, which assumption fails where.

Samples can refute an assumption, never prove it: "holds" means that nothing spoke against it at the points looked at.
Convexity is looked at in `segments.py`, the other assumptions (Slater, uniqueness, LICQ) here.
"""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base import trees
from hierax._base.constants import FRESH_SAMPLES
from hierax._base.errors import InputError
from hierax._base.interrupt import Interrupt, interruptible
from hierax._base.text import entries, numbers_of, shown
from hierax._compile.checked import finite_values, refused
from hierax._compile.configuration import in_own_configuration, refuse_to_be_traced
from hierax._engine import segments
from hierax._engine.float64_problem import FEW, Data, Float64Problem, refuse
from hierax._engine.programs import FEASIBLE
from hierax._engine.segments import FLAT, Finding, Findings
from hierax._judge.measuring import SAME_POINT, listed
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math.hypergradient import System, fits, kkt_system
from hierax._math.lower_level import MEANING, SOLVED, LowerSolution, row_names
from hierax._math.scatter import normal_around
from hierax._math.spectrum import constraint_scales
from hierax._problem import sets
from hierax._problem.problem import Problem


@in_own_configuration
def check(
    problem: Problem,
    x0: PyTree,
    y0: PyTree,
    *,
    points: int = segments.SEGMENTS,
    lower: AbstractLowerSolver | None = None,
    samples: int = FRESH_SAMPLES,
    seed: int = 0,
) -> Findings:
    """Sample the assumptions that the methods make of a problem, and say which fails where.

        convexity    G(x, (y + y')/2) <= (G(x, y) + G(x, y'))/2,   the same for every row of h;   e affine in y
        curvature    smallest eigenvalue of G_yy > 0
        Slater       some y in Y with h(x, y) < 0, e(x, y) = 0
        LICQ         the gradients in y of the active rows are linearly independent at y*(x0)
        strictness   h_i = 0 only where its multiplier is > 0

    Looked at: everything `solve` would refuse; finite values; convexity of G and of every constraint in y, and that
    equalities are affine in y (midpoints of random segments in Y, at x0 and around it); strong convexity of G (smallest
    eigenvalue of its Hessian at the midpoints); a Slater point, at x0 and around it; and at the lower level's solution
    y*(x0) its uniqueness, independence of the active constraints' gradients (LICQ) and strict complementarity.

    Args:
        problem: the problem.
        x0: a point of X, as `solve` takes it.
        y0: a point of Y.
        points: how many segments are sampled.
        lower: the solver for y*(x0) and for the Slater point; None: `Exact()`.
        samples: fresh samples that stand for an expectation which is not known.
        seed: of the points and samples.

    Returns:
        The findings: `print` them, or ask `ok` and `failures`.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (x - y) ** 2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: 1.0 - y**2,
        ... )
        >>> [finding.name for finding in hx.check(problem, 1.0, 2.0).failures]
        ['convex constraints']

    References:
        docs/guides/certificate.md, The assumptions, before a run
    """
    refuse_to_be_traced("check", (x0, y0))
    refuse(problem, samples, seed)
    if isinstance(points, bool) or not isinstance(points, int) or points < 1:
        raise InputError(f"points={points!r}: needs a whole number >= 1.")
    objection = refused(problem, x0, y0)
    if objection is not None:
        return Findings((Finding("values and shapes", False, objection),))
    setting = Float64Problem.of(problem, x0, y0, samples, seed)
    with interruptible() as interrupt:
        return Findings(tuple(_findings(setting, points, lower or Exact(), seed, interrupt)))


def _findings(
    setting: Float64Problem, points: int, lower: AbstractLowerSolver, seed: int, interrupt: Interrupt
) -> Iterator[Finding]:
    """One after the other; after Ctrl-C those that are left are not looked at."""
    fine = setting.run("finite", lambda problem, data, x, y: finite_values(problem, x, y, *data), setting.x, setting.y)
    wrong = [name for name in fine if not fine[name]]
    where = f"{', '.join(wrong)} not finite at x = {shown(setting.x)}, y = {shown(setting.y)}"
    yield _told("values and shapes", not wrong, "every function and gradient is finite at (x0, y0)", where)
    if wrong:
        return
    found = setting.solve_lower(lower, setting.x, setting.y)
    solved = int(found.status) == SOLVED
    why = f"{MEANING[int(found.status)]} (at x = {shown(setting.x)}, residual {float(found.residual):.2g})"
    yield _told("solvable lower level", solved, f"y*(x0) = {shown(found.y)}", why)
    y, rng = found.y if solved else setting.y, np.random.default_rng(seed)

    def on_segments() -> list[Finding]:
        seen = segments.segments_around(setting, y, points, rng, away=1.0)
        below, rows, equalities = segments.convexity(seen)
        bent, strong = segments.strong_convexity(setting, seen)
        return [segments.finite_around(seen), below if bent is None else bent, strong, rows, equalities]

    def in_turn(name: str, look: Callable[[], list[Finding]]) -> list[Finding]:
        return [Finding(name, None, "not looked at: interrupted")] if interrupt.asked else look()

    yield from in_turn("convexity", on_segments)
    yield from in_turn("Slater point", lambda: [slater_point(setting, lower, y, rng)])
    yield from in_turn("constraint qualifications", lambda: at_the_solution(setting, found if solved else None))


def slater_point(setting: Float64Problem, lower: AbstractLowerSolver, y: PyTree, rng: np.random.Generator) -> Finding:
    """Minimise the largest row over Y and the equalities, near y: a Slater point is where it is negative.

    The objective t + t^2/2 + rho/2 ||v - y||^2 over h_i(v) / ||grad h_i|| <= t, t >= -1, is strongly convex, and at a
    feasible y it is below zero exactly where a strictly feasible direction exists, whatever rho > 0.
    """

    def program(
        problem: Problem, data: Data, solver: AbstractLowerSolver, x: PyTree, y: PyTree
    ) -> tuple[PyTree, LowerSolution]:
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
        return x, solver.solve(level, x, (y, jnp.maximum(largest, -1.0) + 0.1))

    name = "Slater point"
    if not jax.tree.leaves(setting.shapes().inequalities):
        return Finding(name, True, "there are no constraints")
    xs = normal_around(setting.x, np.array([0.0] + [0.1] * FEW)[:, None], rng)
    for i in range(1 + FEW):
        x, found = setting.run("Slater", program, lower, jax.tree.map(lambda leaf, i=i: leaf[i], xs), y)
        where, (inside, largest), status = f"at x = {shown(x)}", found.y, int(found.status)
        if status != SOLVED:
            return Finding(name, None, f"the search ended without an answer {where}: {MEANING[status]}")
        if float(largest) > -FEASIBLE * (1 + np.sqrt(np.mean(numbers_of(inside) ** 2))):  # in units of y
            weights = found.multipliers.inequalities
            row = entries("constraints", weights)[int(np.argmax(numbers_of(weights)))]
            state = "is empty" if float(largest) > FEASIBLE else "has no interior"
            return Finding(name, False, f"the feasible set {state} {where}: {row} is in the way")
    return Finding(name, True, f"at x0 and {FEW} points around it")


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
    near = system.equal | (system.slack < SAME_POINT)
    weak = near & ~system.equal & (system.force < SAME_POINT)
    kink = f"{listed(rows[weak])} active at y*(x0) with multiplier zero: y*(x) has a kink there"
    return [
        _unique(names[0], system, near & ~weak),
        _licq(names[1], system.jacobian[near], rows[near]),
        _told(names[2], not weak.any(), "every active row at y*(x0) has a positive multiplier", kink),
    ]


def _unique(name: str, system: System, held: np.ndarray) -> Finding:
    """Curvature of the Lagrangian along what the rows with a multiplier leave free (second-order sufficiency)."""
    _, singular, right = np.linalg.svd(np.vstack([system.jacobian[held], np.zeros((1, len(system.hessian)))]))
    free = right[int(np.sum(singular > FLAT)) :]
    bottom = float(np.min(np.linalg.eigvalsh(free @ system.hessian @ free.T), initial=np.inf))
    flat = f"the Lagrangian is flat along the active constraints at x0 (curvature {bottom:.2g})"
    return _told(name, bottom > FLAT, "the Lagrangian is curved along the active constraints", flat)


def _licq(name: str, gradients: np.ndarray, rows: np.ndarray) -> Finding:
    """Independence of the gradients (unit vectors) of the rows that are active at y*(x0)."""
    if not len(rows):
        return Finding(name, True, "no row is active at y*(x0)")
    left, singular, _ = np.linalg.svd(gradients)
    independent = len(singular) == len(rows) and bool(singular[-1] > FLAT)
    dependent = f"the gradients of {listed(rows[np.abs(left[:, -1]) > SAME_POINT])} are dependent at y*(x0)"
    return _told(name, independent, f"{len(rows)} active rows at y*(x0), independent", dependent)


def _told(name: str, holds: bool, fine: str, wrong: str) -> Finding:
    """An assumption with the words for either case."""
    return Finding(name, bool(holds), fine if holds else wrong)
