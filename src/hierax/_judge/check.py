"""`check`: does a problem satisfy what the methods assume of it, and if not, which assumption fails where.

Samples can refute an assumption, never prove it: "holds" means that nothing spoke against it at the points looked at.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from hierax._base.constants import FRESH_SAMPLES
from hierax._base.errors import InputError
from hierax._base.text import entries, flat, shown, text_table
from hierax._base.trees import all_finite, or_one, size
from hierax._compile.checked import finite_values
from hierax._compile.checked import refused as solve_refuses
from hierax._judge.setting import WEAK, Setting, double_precision, on_host, refuse, solve_lower
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math import curvature as estimate
from hierax._math.hypergradient import System, fits, kkt_system
from hierax._math.lower_level import MEANING, SOLVED, LowerSolution, row_names
from hierax._math.scatter import Cube, unit_cube
from hierax._math.scatter import scattered as cover
from hierax._math.spectrum import extreme_eigenvalues, hessian_product
from hierax._problem import sets
from hierax._problem.problem import Problem

ROUNDING = 1e-9  # excess over a chord, relative to the values, that counts as rounding
FLAT = 1e-8  # eigenvalues and singular values below this part of the largest count as zero
STRICT = 1e-6  # a largest row below minus this, in units of y, makes a Slater point
ELSEWHERE = 3  # further points x at which a Slater point is looked for
SHORT = 0.1  # half length of short segments, relative to one plus the size of an entry
AT_ONCE = 2**22  # numbers in all sampled points together: a large y gets fewer of them
LISTED = 4  # rows named in one text


class Finding(NamedTuple):
    """One assumption: whether it holds (None: not looked at, and why), and where it fails."""

    name: str
    holds: bool | None
    text: str


@dataclasses.dataclass(frozen=True)
class Findings:
    """What `check` found, one finding per assumption; `print` gives a table."""

    all: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    @property
    def failures(self) -> list[Finding]:
        """The assumptions that fail."""
        return [finding for finding in self.all if finding.holds is False]

    def __getitem__(self, name: str) -> Finding:
        """The finding of that name."""
        for finding in self.all:
            if finding.name == name:
                return finding
        raise KeyError(f"no finding {name!r}; there are {', '.join(finding.name for finding in self.all)}")

    def __str__(self) -> str:
        words = {True: "holds", False: "FAILS", None: "-"}
        return text_table("Assumptions", [(f.name, words[f.holds], f.text) for f in self.all])


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
    """
    refuse(problem, samples, seed)
    if isinstance(points, bool) or not isinstance(points, int) or points < 1:
        raise InputError(f"points={points!r}: needs a whole number >= 1.")
    refused = solve_refuses(problem, x0, y0)
    if refused is not None:
        return Findings((Finding("values and shapes", False, refused),))
    with double_precision(problem, x0, y0, samples, seed) as setting:
        return Findings(tuple(_findings(setting, points, lower or Exact(), seed)))


def _findings(setting: Setting, points: int, lower: AbstractLowerSolver, seed: int) -> list[Finding]:
    fine = _finite(setting)
    if not fine.holds:
        return [fine]
    found = solve_lower(setting, lower, setting.x, setting.y)
    solved = int(found.status) == SOLVED
    rng = np.random.default_rng(seed)
    looks = look_around(setting, found.y if solved else setting.y, points, rng, away=1.0)
    below, rows, equalities = convexity(looks)
    bent, strong = _curvature(setting, looks)
    return [
        fine,
        _finite_around(looks),
        below if bent is None else bent,
        strong,
        rows,
        equalities,
        _slater(setting, lower, found.y if solved else setting.y, rng),
        _solvable(setting, found),
        *_at_the_solution(setting, found if solved else None),
    ]


def _finite(setting: Setting) -> Finding:
    def program(problem: Problem, x: PyTree, y: PyTree, zeta: PyTree, xi: PyTree) -> dict[str, Array]:
        return finite_values(problem, x, y, zeta, xi)

    x, y = setting.x, setting.y
    flags = setting.bound.run("finite", program, x, y, setting.zeta.rows, setting.xi.rows)
    wrong = [name for name, fine in flags.items() if not fine]
    if wrong:
        return Finding("values and shapes", False, f"{', '.join(wrong)} not finite at x = {shown(x)}, y = {shown(y)}")
    return Finding("values and shapes", True, "every function and gradient is finite at (x0, y0)")


# -- convexity --------------------------------------------------------------------------------------------------------


class Looks(NamedTuple):
    """What random segments [a, b] in Y show; leading axis: the segments.

    Excess is f(middle) - (f(a) + f(b)) / 2, divided by the size of the three values: at most zero for a convex f, and
    zero for an affine one.
    """

    x: PyTree
    middle: PyTree
    finite: Any
    lower: Any
    inequalities: PyTree
    equalities: PyTree


def look_around(setting: Setting, y: PyTree, points: int, rng: np.random.Generator, away: float = 0.0) -> Looks:
    """Random segments in Y, at x and (every second one, up to the relative distance `away`) around it.

    Two of three are around y, of all lengths; the others are short, about points that cover Y: a hill between two
    valleys is seen from neither side, and on a long segment it counts for nothing.
    """

    def program(problem: Problem, xs: PyTree, ends: PyTree, y: PyTree, cube: Cube, ways: Array, xi: PyTree) -> Looks:
        _, unravel = jax.flatten_util.ravel_pytree(y)
        centres = cover(problem.y_set, y, cube)[1:]
        short = jnp.stack([centres - ways, centres + ways], axis=1)
        covering = jax.vmap(jax.vmap(unravel))(short)
        ends = jax.tree.map(lambda p, q: jnp.concatenate([p, q]), ends, covering)

        def one(x: PyTree, ends: PyTree) -> Looks:
            x = sets.project(problem.x_set, x)
            a, b = (sets.project(problem.y_set, jax.tree.map(lambda leaf, i=i: leaf[i], ends)) for i in (0, 1))
            middle = jax.tree.map(lambda p, q: 0.5 * (p + q), a, b)
            values = [(problem.lower(x, v, xi), problem.rows(x, v)) for v in (a, b, middle)]
            lower, rows = jax.tree.map(_excess, *values)
            return Looks(x, middle, all_finite(values), lower, rows.inequalities, rows.equalities)

        return jax.vmap(one)(xs, ends)

    points = max(2, min(points, AT_ONCE // size(y)))
    more = points // 2
    radius = np.where(np.arange(points + more) % 2, away * np.logspace(-2, 0, points + more), 0.0)
    xs = scattered(setting.x, radius[:, None], rng)
    ends = scattered(y, np.repeat(np.logspace(-2, 0.5, points), 2).reshape(points, 2, 1), rng)
    flat = np.asarray(jax.flatten_util.ravel_pytree(y)[0])
    ways = SHORT * (1 + np.abs(flat)) * rng.standard_normal((more, flat.size)) / flat.size**0.5
    cube = unit_cube(flat.size, more, int(rng.integers(2**31)))
    return on_host(setting.bound.run("look around", program, xs, ends, y, cube, ways, setting.xi.rows))


def scattered(tree: PyTree, radius: np.ndarray, rng: np.random.Generator) -> PyTree:
    """Normal points around a tree; `radius` (its last axis is 1) is relative to one plus the size of an entry."""
    flat, unravel = jax.flatten_util.ravel_pytree(tree)
    scale = 1.0 + float(np.sqrt(np.mean(np.square(flat))))
    spread = np.asarray(flat) + radius * scale * rng.standard_normal((*radius.shape[:-1], flat.size))
    for _ in radius.shape[:-1]:
        unravel = jax.vmap(unravel)
    return unravel(jnp.asarray(spread))


def _excess(a: Array, b: Array, middle: Array) -> Array:
    scale = jnp.abs(a) + jnp.abs(b) + jnp.abs(middle)
    return (middle - 0.5 * (a + b)) / or_one(scale)


def bends(looks: Looks) -> str | None:
    """What is not convex, and where; None where nothing was found."""
    failed = [finding.text for finding in convexity(looks) if not finding.holds]
    return f"not convex: {failed[0]}" if failed else None


def convexity(looks: Looks) -> list[Finding]:
    """G and every constraint convex in y, equalities affine: one finding each."""
    return [
        _rows_bend("convex lower objective", "lower", looks, looks.lower),
        _rows_bend("convex constraints", "constraints", looks, looks.inequalities),
        _rows_bend("affine equalities", "equalities", looks, jax.tree.map(np.abs, looks.equalities)),
    ]


def _rows_bend(name: str, what: str, looks: Looks, excess: PyTree) -> Finding:
    names = entries(what, jax.tree.map(lambda leaf: leaf[0], excess))
    if not names:
        return Finding(name, True, f"there are no {what}")
    every = np.concatenate([_in_roundings(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(excess)], axis=1)
    every = np.where(looks.finite[:, None], every, 0.0)
    bent = np.flatnonzero(every.max(axis=0) > 1)
    if not len(bent):
        return Finding(name, True, f"on {len(every)} segments in Y")
    segment, row = np.unravel_index(np.argmax(every), every.shape)
    others = f" (and {len(bent) - 1} others)" if len(bent) > 1 else ""
    how = "is not affine in y" if what == "equalities" else "is above its chord"
    return Finding(name, False, f"{names[row]}{others} {how} {_where(looks, int(segment))}")


def _in_roundings(excess: np.ndarray) -> np.ndarray:
    """In units of what may be rounding: functions that compute in float32 return it."""
    return excess / max(ROUNDING, 100 * float(np.finfo(excess.dtype).eps))


def _finite_around(looks: Looks) -> Finding:
    wrong = np.flatnonzero(~looks.finite)
    if not len(wrong):
        return Finding("finite around", True, f"on {len(looks.finite)} segments in Y")
    text = f"lower or constraints not finite {_where(looks, int(wrong[0]))}: restrict X and Y to where they are"
    return Finding("finite around", False, text)


def _curvature(setting: Setting, looks: Looks) -> tuple[Finding | None, Finding]:
    """Strong convexity of G from the extreme eigenvalues of G_yy at the middles; a negative one refutes convexity."""

    def program(problem: Problem, xs: PyTree, ys: PyTree, xi: PyTree) -> tuple[Array, Array]:
        def one(point: tuple[PyTree, PyTree]) -> tuple[Array, Array]:
            x, y = point
            return extreme_eigenvalues(hessian_product(lambda v: problem.lower(x, v, xi), y), y)

        return jax.lax.map(one, (xs, ys))

    xs, ys = jax.tree.map(jnp.asarray, (looks.x, looks.middle))
    bottom, top = (np.nan_to_num(part) for part in setting.bound.run("curvature", program, xs, ys, setting.xi.rows))
    worst, largest = int(np.argmin(bottom)), float(np.max(np.abs(top)))
    text = f"G_yy has the eigenvalue {bottom[worst]:.3g} {_where(looks, worst)}"
    name = "strongly convex lower objective"
    if bottom[worst] > FLAT * largest:
        strong = Finding(name, True, f"curvatures of G in y between {bottom[worst]:.3g} and {largest:.3g}")
    else:
        strong = Finding(name, False, f"{text}; y*(x) may not be unique: add a small quadratic in y to lower")
    return (Finding("convex lower objective", False, text) if bottom[worst] < -FLAT * largest else None), strong


def _where(looks: Looks, i: int) -> str:
    x, y = (jax.tree.map(lambda leaf: leaf[i], tree) for tree in (looks.x, looks.middle))
    return f"at x = {shown(x)}, y = {shown(y)}"


# -- constraint qualifications ----------------------------------------------------------------------------------------


def _slater(setting: Setting, lower: AbstractLowerSolver, y: PyTree, rng: np.random.Generator) -> Finding:
    """Minimise the largest row over Y and the equalities, near y: a Slater point is where it is negative.

    The objective t + t^2/2 + rho/2 ||v - y||^2 over h_i(v) / ||grad h_i|| <= t, t >= -1, is strongly convex, and at a
    feasible y it is below zero exactly where a strictly feasible direction exists, whatever rho > 0.
    """

    def program(problem: Problem, solver: AbstractLowerSolver, x: PyTree, y: PyTree) -> Any:
        x = sets.project(problem.x_set, x)
        scales = estimate.constraint_scales(problem, x, y, jax.random.key(0)).inequalities
        rho = 1 / (1 + optax.tree.norm(y, squared=True))

        def rows(x: PyTree, v: PyTree) -> PyTree:
            return jax.tree.map(lambda h, s: h / s, problem.constraints(x, v), scales)

        def objective(x: PyTree, u: tuple[PyTree, Array], batch: None) -> Array:
            v, t = u
            return t + 0.5 * t**2 + 0.5 * rho * optax.tree.norm(optax.tree.sub(v, y), squared=True)

        largest = jnp.max(jnp.stack([jnp.max(leaf) for leaf in jax.tree.leaves(rows(x, y))]))
        level = Problem(
            upper=objective,
            lower=objective,
            constraints=lambda x, u: jax.tree.map(lambda h: h - u[1], rows(x, u[0])),
            equalities=lambda x, u: problem.equalities(x, u[0]),
            y_set=(problem.y_set, sets.Box(-1.0, jnp.inf)),
        )
        found = solver.solve(level, x, (y, jnp.maximum(largest, -1.0) + 0.1))
        return x, found.y[0], found.y[1], found.status, found.multipliers.inequalities

    name = "Slater point"
    if not jax.tree.leaves(setting.bound.trace("constraints", (setting.x, setting.y))):
        return Finding(name, True, "there are no constraints")
    xs = scattered(setting.x, np.array([0.0] + [0.1] * ELSEWHERE)[:, None], rng)
    for i in range(1 + ELSEWHERE):
        at = jax.tree.map(lambda leaf, i=i: leaf[i], xs)
        x, v, t, status, weights = on_host(setting.bound.run("Slater", program, lower, at, y))
        where = f"at x = {shown(x)}"
        if int(status) != SOLVED:
            return Finding(name, None, f"the search ended without an answer {where}: {MEANING[int(status)]}")
        if float(t) > -STRICT * (1 + np.sqrt(np.mean(flat(v) ** 2))):
            row = entries("constraints", weights)[int(np.argmax(flat(weights)))]
            state = "is empty" if float(t) > STRICT else "has no interior"
            return Finding(name, False, f"the feasible set {state} {where}: {row} is in the way")
    return Finding(name, True, f"at x0 and {ELSEWHERE} points around it")


def _solvable(setting: Setting, found: LowerSolution) -> Finding:
    status, where = int(found.status), f"at x = {shown(setting.x)}"
    if status == SOLVED:
        return Finding("solvable lower level", True, f"y*(x0) = {shown(found.y)}")
    return Finding("solvable lower level", False, f"{MEANING[status]} ({where}, residual {float(found.residual):.2g})")


def _at_the_solution(setting: Setting, found: LowerSolution | None) -> list[Finding]:
    names = ("unique lower solution", "LICQ", "strict complementarity")
    if found is None:
        return [Finding(name, None, "not looked at: the lower level is not solved at x0") for name in names]

    def program(problem: Problem, x: PyTree, found: LowerSolution, xi: PyTree) -> System | None:
        return kkt_system(problem, x, found, xi) if fits(problem, x, found.y) else None

    system = on_host(setting.bound.run("KKT system", program, setting.x, found, setting.xi.rows))
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
