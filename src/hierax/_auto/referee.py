"""How the large route sees a point: the lower level's own answer there, F on all of the data, and the certificate."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from hierax._base.constants import FRESH_SAMPLES, LOWER_STARTS
from hierax._base.trees import largest, select, size, split_variable
from hierax._compile.checked import finite_values
from hierax._compile.precision import doubled_on_host
from hierax._judge.certificate import Certificate, certificate_in
from hierax._judge.segments import not_convex
from hierax._judge.setting import Data, Setting
from hierax._lower.exact import Exact
from hierax._math.lower_level import SOLVED
from hierax._math.psi import all_constraints, violation
from hierax._math.scatter import Cube, cover, unit_cube
from hierax._problem.problem import Multipliers, Problem
from hierax._problem.samples import Stream

JUDGED_EXACTLY = 200  # entries of y and multipliers up to which every stage is judged at the exact y*(x)
EXACT_UP_TO = 2000  # entries for which the lower level is solved exactly in the end, and certificates are made


class Seen(NamedTuple):
    """A point as the referee sees it.

    Attributes:
        x: the point.
        y: the lower level's solution there: exact where its size allows, else the inner solver's.
        multipliers: likewise.
        upper: F(x, y) on all of the data, or many samples.
        violation: the largest of all constraints.
        above: the largest of the upper constraints.
        gap: G of the run's iterate minus G of y: what the weight c1 leaves of the lower level.
        below: status of the exact solve; None where there was none.
    """

    x: PyTree
    y: PyTree
    multipliers: Multipliers
    upper: float
    violation: float
    above: float
    gap: float
    below: int | None


class Referee:
    """Judges points of one problem, with programs that all stages share. Not for problems with a `Stream`."""

    def __init__(self, problem: Problem, x0: PyTree, y0: PyTree, seed: int) -> None:
        self.seed = seed
        self.setting = setting = Setting.of(problem, x0, y0, FRESH_SAMPLES, seed)
        self.entries = size(setting.y) + size((setting.shapes("constraints"), setting.shapes("equalities")))
        # How samples show that the lower level is not convex.
        self.bent = not_convex(setting, setting.y, seed) if self.exact else None
        self.lower = Exact() if self.bent is None else Exact(starts=LOWER_STARTS)

    @property
    def exact(self) -> bool:
        """Whether every point is judged at the exact y*(x)."""
        return self.entries <= JUDGED_EXACTLY

    def look(self, x: PyTree, iterate: PyTree, w: PyTree, multipliers: Multipliers, most: int = JUDGED_EXACTLY) -> Seen:
        """F, violations and gap at x, with the exact y*(x) up to `most` entries and else with w."""
        (own, _), (guess, rest) = split_variable("x", x), split_variable("y", w)
        below = None
        at, y, last = doubled_on_host((own, guess, split_variable("y", iterate)[0]))
        if self.entries <= most:
            found = self.setting.solve_lower(self.lower, at, y)
            below = int(found.status)
            if below == SOLVED:
                y = found.y
                multipliers = Multipliers(*found.multipliers, multipliers.upper)
        numbers = self.setting.run("stage", _stage, at, y, last)
        settled = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), y, guess)
        upper, worst, above, gap = map(float, numbers)
        return Seen(x, eqx.combine(settled, rest), multipliers, upper, worst, above, gap, below)

    def starts(self, x0: PyTree, y0: PyTree, count: int) -> tuple[PyTree, PyTree]:
        """(x0, y0) and points that cover X and Y, stacked; where a function is not finite the point is (x0, y0)."""
        variables = split_variable("x", x0), split_variable("y", y0)
        cubes = [unit_cube(size(tree), count - 1, self.seed + k) for k, (tree, _) in enumerate(variables)]
        x, y = doubled_on_host(tuple(tree for tree, _ in variables))
        stacked = self.setting.run("starts", _scattered, x, y, *cubes)
        found = [
            jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), new, old)
            for new, (old, _) in zip(stacked, variables, strict=True)
        ]
        return eqx.combine(found[0], variables[0][1]), eqx.combine(found[1], variables[1][1])

    def certificate(self, seen: Seen) -> Certificate | None:
        """The certificate of a point; None where the problem is too large to make one at every stage."""
        if self.entries > EXACT_UP_TO:
            return None
        here = self.setting.at(seen.x, seen.y)
        return certificate_in(here, Exact(), seen.multipliers, None, self.seed)


def sees(problem: Problem) -> bool:
    """Whether a referee can judge the problem: a Stream is never seen as a whole."""
    return not any(isinstance(source, Stream) for source in (problem.zeta, problem.xi))


def _scattered(problem: Problem, data: Data, x: PyTree, y: PyTree, x_cube: Cube, y_cube: Cube) -> tuple[PyTree, PyTree]:
    def stacked(convex: PyTree, tree: PyTree, cube: Cube) -> PyTree:
        return jax.vmap(jax.flatten_util.ravel_pytree(tree)[1])(cover(convex, tree, cube))

    def usable(at: PyTree, below: PyTree) -> tuple[PyTree, PyTree]:
        fine = jnp.stack(list(finite_values(problem, at, below, *data).values()))
        return select(jnp.all(fine), (at, below), (x, y))

    return jax.vmap(usable)(stacked(problem.x_set, x, x_cube), stacked(problem.y_set, y, y_cube))


def _stage(problem: Problem, data: Data, x: PyTree, y: PyTree, iterate: PyTree) -> Array:
    zeta, xi = data
    gap = problem.lower(x, iterate, xi) - problem.lower(x, y, xi)
    beyond = violation(all_constraints(problem, x, y))
    worst, above = (largest(part, jnp.float64) for part in (beyond, beyond.upper))
    return jnp.stack([problem.upper(x, y, zeta), worst, above, gap])
