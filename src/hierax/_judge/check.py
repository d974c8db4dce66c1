"""`check`: does a problem satisfy what the methods assume of it, and if not, which assumption fails where.

Samples can refute an assumption, never prove it: "holds" means that nothing spoke against it at the points looked at.
The assumptions themselves: `segments.py` (convexity) and `qualification.py` (Slater, uniqueness, LICQ).
"""

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.constants import FRESH_SAMPLES
from hierax._base.errors import InputError
from hierax._base.interrupt import Interrupt, interruptible
from hierax._base.text import shown
from hierax._compile.checked import finite_values, refused
from hierax._compile.configuration import in_own_configuration, refuse_to_be_traced
from hierax._engine.float64_problem import Data, Float64Problem, refuse
from hierax._engine.segments import Finding, Findings, convexity, finite_around, segments_around, strong_convexity
from hierax._judge.qualification import at_the_solution, slater_point, solvable
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math.lower_level import SOLVED
from hierax._problem.problem import Problem


@in_own_configuration
def check(
    problem: Problem,
    x0: PyTree,
    y0: PyTree,
    *,
    points: int = 32,
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
    fine = _finite(setting)
    yield fine
    if not fine.holds:
        return
    found = setting.solve_lower(lower, setting.x, setting.y)
    solved = int(found.status) == SOLVED
    yield solvable(setting, found)
    y, rng = found.y if solved else setting.y, np.random.default_rng(seed)

    def on_segments() -> list[Finding]:
        segments = segments_around(setting, y, points, rng, away=1.0)
        below, rows, equalities = convexity(segments)
        bent, strong = strong_convexity(setting, segments)
        return [finite_around(segments), below if bent is None else bent, strong, rows, equalities]

    looks: dict[str, Callable[[], list[Finding]]] = {
        "convexity": on_segments,
        "Slater point": lambda: [slater_point(setting, lower, y, rng)],
        "constraint qualifications": lambda: at_the_solution(setting, found if solved else None),
    }
    for name, look in looks.items():
        yield from [Finding(name, None, "not looked at: interrupted")] if interrupt.asked else look()


def _finite(setting: Float64Problem) -> Finding:
    def program(problem: Problem, data: Data, x: PyTree, y: PyTree) -> dict[str, Array]:
        return finite_values(problem, x, y, *data)

    x, y = setting.x, setting.y
    flags = setting.run("finite", program, x, y)
    wrong = [name for name, fine in flags.items() if not fine]
    if wrong:
        return Finding("values and shapes", False, f"{', '.join(wrong)} not finite at x = {shown(x)}, y = {shown(y)}")
    return Finding("values and shapes", True, "every function and gradient is finite at (x0, y0)")
