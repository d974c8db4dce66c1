"""How the large route sees a point: the lower level's own answer there, F on all of the data, and the certificate."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.trees import largest, select, size, split_variable
from hierax._compile.checked import finite_values
from hierax._judge.certificate import Certificate, certificate_in
from hierax._judge.check import bends, look_around
from hierax._judge.numbers import SEGMENTS, STARTS
from hierax._judge.setting import Setting, double_precision, doubled, on_host, solve_lower
from hierax._lower.exact import Exact
from hierax._math.lower_level import SOLVED
from hierax._math.psi import all_constraints, violation
from hierax._math.scatter import Cube, scattered, unit_cube
from hierax._problem.problem import Multipliers, Problem
from hierax._problem.samples import Stream

SAMPLES = 4096  # stand for an expectation that is not known
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
        with double_precision(problem, x0, y0, SAMPLES, seed) as setting:
            self.setting = setting
            rows = [setting.bound.trace(name, (setting.x, setting.y)) for name in ("constraints", "equalities")]
            self.entries = size(setting.y) + sum(row.aval.size for row in jax.tree.leaves(rows, is_leaf=_has_aval))
            self.bent = None  # how samples show that the lower level is not convex
            if self.exact:
                self.bent = bends(look_around(setting, setting.y, SEGMENTS, np.random.default_rng(seed)))
        self.lower = Exact() if self.bent is None else Exact(starts=STARTS)

    @property
    def exact(self) -> bool:
        """Whether every point is judged at the exact y*(x)."""
        return self.entries <= JUDGED_EXACTLY

    def look(self, x: PyTree, iterate: PyTree, w: PyTree, multipliers: Multipliers, most: int = JUDGED_EXACTLY) -> Seen:
        """F, violations and gap at x, with the exact y*(x) up to `most` entries and else with w."""
        (own, _), (guess, rest) = split_variable("x", x), split_variable("y", w)
        below = None
        with jax.enable_x64(True):
            at, y, last = doubled((own, guess, split_variable("y", iterate)[0]))
            if self.entries <= most:
                found = solve_lower(self.setting, self.lower, at, y)
                below = int(found.status)
                if below == SOLVED:
                    y = found.y
                    own_rows = on_host(found.multipliers)
                    multipliers = Multipliers(own_rows.inequalities, own_rows.equalities, multipliers.upper)
            data = (self.setting.zeta.rows, self.setting.xi.rows)
            numbers = np.asarray(self.setting.bound.run("stage", _stage, at, y, last, data))
            settled = jax.tree.map(lambda new, old: jnp.asarray(np.asarray(new), old.dtype), y, guess)
        upper, worst, above, gap = map(float, numbers)
        return Seen(x, eqx.combine(settled, rest), multipliers, upper, worst, above, gap, below)

    def starts(self, x0: PyTree, y0: PyTree, count: int) -> tuple[PyTree, PyTree]:
        """(x0, y0) and points that cover X and Y, stacked; where a function is not finite the point is (x0, y0)."""
        variables = split_variable("x", x0), split_variable("y", y0)
        cubes = [unit_cube(size(tree), count - 1, self.seed + k) for k, (tree, _) in enumerate(variables)]
        with jax.enable_x64(True):
            x, y = doubled(tuple(tree for tree, _ in variables))
            stacked = self.setting.bound.run(
                "starts", _scattered, x, y, *cubes, self.setting.zeta.rows, self.setting.xi.rows
            )
            found = [
                jax.tree.map(lambda new, old: jnp.asarray(np.asarray(new), old.dtype), new, old)
                for new, (old, _) in zip(stacked, variables, strict=True)
            ]
        return eqx.combine(found[0], variables[0][1]), eqx.combine(found[1], variables[1][1])

    def certificate(self, seen: Seen) -> Certificate | None:
        """The certificate of a point; None where the problem is too large to make one at every stage."""
        if self.entries > EXACT_UP_TO:
            return None
        with jax.enable_x64(True):
            x, y, multipliers = doubled(
                (split_variable("x", seen.x)[0], split_variable("y", seen.y)[0], seen.multipliers)
            )
            here: Setting = self.setting._replace(x=x, y=y)
            return certificate_in(here, Exact(), multipliers, None, self.seed)


def sees(problem: Problem) -> bool:
    """Whether a referee can judge the problem: a Stream is never seen as a whole."""
    return not any(isinstance(source, Stream) for source in (problem.zeta, problem.xi))


def _has_aval(leaf: Any) -> bool:
    return hasattr(leaf, "aval")


def _scattered(
    problem: Problem, x: PyTree, y: PyTree, x_cube: Cube, y_cube: Cube, zeta: PyTree, xi: PyTree
) -> tuple[PyTree, PyTree]:
    def stacked(convex: PyTree, tree: PyTree, cube: Cube) -> PyTree:
        return jax.vmap(jax.flatten_util.ravel_pytree(tree)[1])(scattered(convex, tree, cube))

    def usable(at: PyTree, below: PyTree) -> tuple[PyTree, PyTree]:
        fine = jnp.stack(list(finite_values(problem, at, below, zeta, xi).values()))
        return select(jnp.all(fine), (at, below), (x, y))

    return jax.vmap(usable)(stacked(problem.x_set, x, x_cube), stacked(problem.y_set, y, y_cube))


def _stage(problem: Problem, x: PyTree, y: PyTree, iterate: PyTree, data: tuple[PyTree, PyTree]) -> Array:
    zeta, xi = data
    gap = problem.lower(x, iterate, xi) - problem.lower(x, y, xi)
    beyond = violation(all_constraints(problem, x, y))
    worst, above = (largest(part, jnp.float64) for part in (beyond, beyond.upper))
    return jnp.stack([problem.upper(x, y, zeta), worst, above, gap])
