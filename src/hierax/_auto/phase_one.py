"""Is there a point that satisfies all constraints at once? The least violation over X and Y, from several starts.

min t subject to rows <= t, |equalities| <= t and upper constraints <= t. Where even that stays positive the problem has
no feasible point, whatever the lower level chooses (for convex constraints this is a proof, else as far as the starts
show); where it reaches zero the search begins there.
"""

import numpy as np

from hierax._auto.constants import PHASE_ONE_MORE, PHASE_ONE_STARTS, SQP_CHANGE, SQP_ITERATIONS
from hierax._auto.space import Space
from hierax._auto.sqp import Evaluated, Stop, slsqp
from hierax._engine.branches import FEASIBLE
from hierax._math.scatter import unit_cube


def feasible_points(space: Space) -> tuple[list[tuple[np.ndarray, np.ndarray]], float]:
    """Points (x, y) that satisfy everything, and the least violation that was found."""
    vectors, found, least = space.vectors, [], np.inf
    nx, none = vectors.layout.nx, np.zeros(vectors.layout.rows)
    equal, live = vectors.layout.equal, space.structure.live

    def evaluate(u: np.ndarray) -> Evaluated:
        values, slopes = vectors.at(u[:nx], u[nx:-1], none)
        above, slack = [values.above, values.rows[live & ~equal]], [slopes.above, slopes.rows[live & ~equal]]
        for sign in (1.0, -1.0):
            above += [sign * values.rows[equal], sign * values.above_equal]
            slack += [sign * slopes.rows[equal], sign * slopes.above_equal]
        slope = np.concatenate(slack)
        return Evaluated.of(
            (u[-1], np.eye(u.size)[-1]),
            (u[-1] - np.concatenate(above), np.concatenate([-slope, np.ones((len(slope), 1))], axis=1)),
            (np.zeros(0), np.zeros((0, u.size))),
        )

    low = np.concatenate([vectors.x_limits.low, vectors.y_limits.low, np.zeros(1)])
    high = np.concatenate([vectors.x_limits.high, vectors.y_limits.high, np.full(1, np.inf)])
    stop = Stop(SQP_ITERATIONS, SQP_CHANGE, space.deadline)
    for x, y in _starts(space):
        if space.deadline.passed:
            break
        violation = vectors.violation(x, y, vectors.at(x, y, none)[0])
        u = slsqp(evaluate, np.concatenate([x, y, [min(violation, 1e6)]]), (low, high), stop)
        at = vectors.landed(u[:nx], u[nx:-1])
        violation = vectors.violation(*at, vectors.at(*at, none)[0])
        least = min(least, violation)
        if violation <= FEASIBLE:
            found.append(at)
        if len(found) >= PHASE_ONE_STARTS:
            break
    return found, least


def _starts(space: Space) -> list[tuple[np.ndarray, np.ndarray]]:
    """Those of the search, and for a small problem many more: a feasible x may be hard to find."""
    starts = list(zip(space.xs, space.ys, strict=True))[:PHASE_ONE_STARTS]
    if space.vectors.programs.by_table:
        cube = unit_cube(space.vectors.layout.nx, PHASE_ONE_MORE, len(starts))
        starts += [(x, space.ys[i % len(space.ys)]) for i, x in enumerate(space.vectors.cover_x(space.xs[0], cube)[1:])]
    return starts
