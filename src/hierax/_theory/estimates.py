"""The constants of the paper's assumptions on a problem, seen at sampled points; suprema are seen from below.

Gradients and rows at every point, curvatures at as many as the size allows (dense Hessians, eigenvalues on the host),
lower solves at a few x for what the theory asks of y*(x), and single samples for the noise.

Points around a start and within the sets, at which a problem is looked at; and whether the sets are bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar

from hierax._base.trees import size
from hierax._compile.configuration import float64
from hierax._engine.float64_problem import Data, Float64Problem
from hierax._lower.exact import Exact
from hierax._math.lower_level import SOLVED
from hierax._math.psi import violation
from hierax._math.spectrum import extreme_eigenvalues, hessian_product, power_iteration
from hierax._problem import samples, sets
from hierax._problem.problem import Multipliers, Problem, Rows

FAR = 1e6  # lengths from the start at which a bounded set has been left in every direction
NEAR = 0.1  # share of the reach within which a quarter of the points is drawn


class Looks(NamedTuple):
    """Points on a leading axis, the start among them, and whether X and Y were seen to be bounded."""

    x: PyTree
    y: PyTree
    x_bounded: bool
    y_bounded: bool


def points_around(setting: Float64Problem, count: int, radius: float, rng: np.random.Generator) -> Looks:
    """`count` points of X x Y; a set without bounds is looked at as far as `radius` lengths of the start."""
    (x, y), bounded = zip(*(_block(setting, name, count, radius, rng) for name in ("x", "y")), strict=True)
    return Looks(x, y, *bounded)


def _block(
    setting: Float64Problem, name: str, count: int, radius: float, rng: np.random.Generator
) -> tuple[PyTree, bool]:
    start = getattr(setting, name)
    flat = _flat(start)
    length = 1 + float(np.max(np.abs(flat)))
    away = rng.standard_normal((count, flat.size))
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    farthest = np.max(np.abs(_projected(setting, name, flat + FAR * length * away) - flat))
    bounded = bool(farthest < 1e-2 * FAR * length / np.sqrt(flat.size))
    reach = float(farthest) * np.sqrt(flat.size) if bounded else radius * length
    far = reach * rng.uniform(size=count)
    kind = rng.integers(4, size=count)  # anew for x and y: one may be far out without the other
    far[kind == 0] *= NEAR
    if bounded:  # far points land on the boundary, in corners of a box; every fourth does so in x and y at once
        far[(kind == 1) | (np.arange(count) % 4 == 1)] = FAR * reach
    drawn = flat + far[:, None] * away
    drawn[0] = flat
    return _trees(start, _projected(setting, name, drawn)), bounded


def _projected(setting: Float64Problem, name: str, rows: np.ndarray) -> np.ndarray:
    """Flat points, projected on X or Y."""

    def program(problem: Problem, data: Data, points: PyTree) -> PyTree:
        return jax.vmap(lambda point: sets.project(getattr(problem, f"{name}_set"), point))(points)

    landed = setting.run(f"theory: into {name}", program, _trees(getattr(setting, name), rows), quick=True)
    leaves = [np.reshape(leaf, (len(rows), -1)) for leaf in jax.tree.leaves(landed)]
    return np.concatenate(leaves, axis=1)


def _flat(tree: PyTree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def _trees(like: PyTree, rows: np.ndarray) -> PyTree:
    """Flat points as one tree with a leading axis."""
    leaves, form = jax.tree.flatten(like)
    cuts = np.cumsum([np.size(leaf) for leaf in leaves])[:-1]
    parts = zip(np.split(rows, cuts, axis=1), leaves, strict=True)
    return jax.tree.unflatten(form, [np.reshape(part, (len(rows), *np.shape(leaf))) for part, leaf in parts])


DENSE_WORK = 1e9  # variables cubed, over all points at which dense Hessians are looked at
LEAST_POINTS = 3  # of them, whatever the size
LOWER_SOLVES = 8
NOISE_POINTS = 3
NOISE_SAMPLES, HESSIAN_SAMPLES = 1024, 128  # single samples for a variance, and for an averaged Lipschitz constant
TIGHT = 1e-6  # rows within this share of their scale of zero are active
SLATER = 1e-4  # how far below zero every row must get, as a share of its scale


class Slopes(NamedTuple):
    """First-order quantities at a point."""

    upper_y: Scalar
    lower: Scalar
    rows: Array
    row_norms: Array
    jacobian: Scalar
    violation: Scalar


class Curvatures(NamedTuple):
    """Second-order quantities over all points looked at."""

    upper: float
    lower: float
    convexity: float
    rows: float
    row_convexity: float


class Below(NamedTuple):
    """What was seen of the lower level's solutions.

    Attributes:
        sigma_0: smallest singular value of the active rows at y*(x); inf: no row was active anywhere.
        multiplier: the largest |lam*(x)|.
        unsolved: at how many x the solver did not get there.
        on_faces: at how many x a face of Y was active.
        slater: at how many x a point was found at which every row is clearly negative.
        looked: at how many x.
    """

    sigma_0: float
    multiplier: float
    unsolved: int
    on_faces: int
    slater: int
    looked: int


class Noise(NamedTuple):
    """Variance of one sample's gradient, and its averaged Lipschitz constant."""

    variance: float
    lipschitz: float


def slopes(setting: Float64Problem, looks: Looks) -> Slopes:
    """First-order quantities at every point, on a leading axis."""

    def program(problem: Problem, data: Data, x: PyTree, y: PyTree) -> Slopes:
        def one(at: tuple[PyTree, PyTree]) -> Slopes:
            rows = flat_rows(problem)
            jacobian = rows_jacobian(rows, at)
            h = rows(*at)
            none = Multipliers(*problem.rows(*at), None)
            return Slopes(
                upper_y=_norm(jax.grad(problem.upper, 1)(*at, data.zeta)),
                lower=_norm(jax.grad(problem.lower, (0, 1))(*at, data.xi)),
                rows=h,
                row_norms=jnp.linalg.norm(jacobian, axis=1),
                jacobian=jnp.linalg.norm(jacobian, 2) if h.size else jnp.zeros(()),
                violation=_total(violation(none)),
            )

        return jax.lax.map(one, (x, y))

    return setting.run("theory: slopes", program, looks.x, looks.y, quick=True)


def curvatures(setting: Float64Problem, looks: Looks) -> Curvatures:
    """Extreme curvatures over as many points as dense Hessians are affordable at."""
    n, m = size(setting.x), size(setting.y)
    count = int(max(LEAST_POINTS, min(len(jax.tree.leaves(looks.x)[0]), DENSE_WORK // (n + m) ** 3)))
    x, y = jax.tree.map(lambda a: a[:count], (looks.x, looks.y))

    def program(problem: Problem, data: Data, x: PyTree, y: PyTree) -> tuple[Array, Array, Array]:
        def one(at: tuple[PyTree, PyTree]) -> tuple[Array, Array, Array]:
            flat, unravel = jax.flatten_util.ravel_pytree(at)

            def hessian(function: Callable[..., Scalar], batch: PyTree) -> Array:
                return jax.hessian(lambda v: function(*unravel(v), batch))(flat)

            return hessian(problem.upper, data.zeta), hessian(problem.lower, data.xi), _row_curvatures(problem, at)

        return jax.lax.map(one, (x, y))

    upper, lower, rows = setting.run("theory: curvatures", program, x, y, quick=True)
    own = np.linalg.eigvalsh(lower[:, n:, n:])
    return Curvatures(
        upper=float(np.max(np.abs(np.linalg.eigvalsh(upper)))),
        lower=float(np.max(np.abs(np.linalg.eigvalsh(lower)))),
        convexity=_clean(float(own.min()), float(np.max(np.abs(own)))),
        rows=float(np.max(np.abs(rows[..., 1]), initial=0.0)),
        row_convexity=float(np.min(rows[..., 0], initial=0.0)),
    )


def _row_curvatures(problem: Problem, at: tuple[PyTree, PyTree]) -> Array:
    """Of every row: its smallest curvature in y, and its largest (in size) in (x, y)."""
    rows = flat_rows(problem)
    count = jax.eval_shape(rows, *at).size

    def one(which: Array) -> Array:
        def row(point: tuple[PyTree, PyTree]) -> Scalar:
            return jnp.vdot(which, rows(*point))

        least = extreme_eigenvalues(hessian_product(lambda v: row((at[0], v)), at[1]), at[1])[0]
        return jnp.stack([least, extreme_eigenvalues(hessian_product(row, at), at)[1]])

    return jax.lax.map(one, jnp.eye(count)) if count else jnp.zeros((0, 2))


def below(setting: Float64Problem, looks: Looks, scale: np.ndarray) -> Below:
    """Lower solves at a few x, from the start's y; `scale` of every row."""
    chosen = [jax.tree.map(lambda a, i=i: a[i], looks.x) for i in range(min(LOWER_SOLVES, _count(looks)))]
    sigma, largest, unsolved, on_faces, slater = np.inf, 0.0, 0, 0, 0
    for x in chosen:
        found = setting.solve_lower(Exact(), x, setting.y)
        if int(found.status) != SOLVED:
            unsolved += 1
            continue
        h, jacobian = setting.run("theory: active rows", _rows_and_jacobian, x, found.y, quick=True)
        active = np.abs(h) <= TIGHT * scale
        if np.any(active):
            values = np.linalg.svd(jacobian[active], compute_uv=False)
            deficient = active.sum() > jacobian.shape[1]
            sigma = min(sigma, 0.0 if deficient else _clean(float(values.min()), float(values.max())))
        largest = max(largest, float(np.sqrt(sum(np.sum(a**2) for a in jax.tree.leaves(found.multipliers)))))
        on_faces += bool(
            max((np.max(np.abs(a), initial=0.0) for a in jax.tree.leaves(found.faces)), default=0.0) > TIGHT
        )
        slater += _strictly_feasible(setting, x, found.y, scale)
    return Below(float(sigma), largest, unsolved, on_faces, slater, len(chosen))


def _rows_and_jacobian(problem: Problem, data: Data, x: PyTree, y: PyTree) -> tuple[Array, Array]:
    rows = flat_rows(problem)
    return rows(x, y), rows_jacobian(lambda v: rows(x, v), (y,))


def _strictly_feasible(setting: Float64Problem, x: PyTree, y: PyTree, scale: np.ndarray) -> bool:
    """Whether the lower level still has a point when every inequality is asked to be clearly negative."""

    def program(problem: Problem, data: Data, x: PyTree, y: PyTree, room: Rows) -> tuple[Array, Array]:
        def tighter(x: PyTree, y: PyTree) -> PyTree:
            return jax.tree.map(jnp.add, problem.constraints(x, y), room.inequalities)

        asked = Problem(problem.upper, problem.lower, tighter, problem.equalities, y_set=problem.y_set)
        found = Exact().solve(asked, x, y, data.xi)
        return found.status, found.residual

    shapes = Rows(setting.shapes("constraints"), setting.shapes("equalities"))
    leaves, form = jax.tree.flatten(shapes)
    parts = np.split(SLATER * scale, np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])[:-1])
    room = jax.tree.unflatten(form, [np.reshape(p, leaf.shape) for p, leaf in zip(parts, leaves, strict=True)])
    status, _ = setting.run("theory: Slater", program, x, y, room)
    return int(status) == SOLVED


def noise(setting: Float64Problem, looks: Looks, name: str, key: PRNGKeyArray) -> Noise | None:
    """Of the samples of zeta ("upper") or xi ("lower"), one at a time; None where there is nothing to sample."""
    source = "zeta" if name == "upper" else "xi"
    if getattr(setting.bound.problem, source) is None:
        return None
    at = jax.tree.map(lambda a: a[: min(NOISE_POINTS, len(a))], (looks.x, looks.y))

    def program(problem: Problem, data: Data, points: tuple[PyTree, PyTree], key: PRNGKeyArray) -> tuple[Array, Array]:
        plan = samples.plan(getattr(problem, source), key, 0, NOISE_SAMPLES, 1)
        few = jax.tree.map(lambda a: a[:HESSIAN_SAMPLES], plan)
        function: Callable[..., Scalar] = getattr(problem, name)

        def of_sample(point: tuple[PyTree, PyTree], planned: PyTree) -> tuple[PyTree, PyTree]:
            return jax.grad(function, (0, 1))(*point, samples.fetch(getattr(problem, source), planned))

        def one(point: tuple[PyTree, PyTree]) -> tuple[Scalar, Scalar]:
            each = jax.lax.map(lambda planned: jax.flatten_util.ravel_pytree(of_sample(point, planned))[0], plan)

            def squared(v: PyTree) -> PyTree:
                """The mean over the samples of (Hessian)^2 v."""

                def of_one(planned: PyTree) -> PyTree:
                    def product(w: PyTree) -> PyTree:
                        return jax.jvp(lambda u: of_sample(u, planned), (point,), (w,))[1]

                    return product(product(v))

                return jax.tree.map(lambda a: jnp.mean(a, axis=0), jax.lax.map(of_one, few))

            return jnp.sum(jnp.var(each, axis=0, ddof=1)), jnp.sqrt(power_iteration(squared, point)[0])

        return jax.lax.map(one, points)

    with float64():
        variance, lipschitz = setting.run(f"theory: noise of {name}", program, at, key, static=name)
    return Noise(float(np.max(variance)), float(np.max(lipschitz)))


# -- small parts ------------------------------------------------------------------------------------------------------


def flat_rows(problem: Problem) -> Callable[[PyTree, PyTree], Array]:
    """All rows of the lower level as one vector: inequalities, then equalities."""

    def rows(x: PyTree, y: PyTree) -> Array:
        leaves = [jnp.ravel(leaf) for leaf in jax.tree.leaves(problem.rows(x, y))]
        return jnp.concatenate(leaves) if leaves else jnp.zeros(0)

    return rows


def rows_jacobian(rows: Callable[..., Array], at: tuple[PyTree, ...]) -> Array:
    """The Jacobian of the rows in all arguments, as a matrix."""
    flat, unravel = jax.flatten_util.ravel_pytree(at)
    return jax.jacrev(lambda v: rows(*unravel(v)))(flat)


def _count(looks: Looks) -> int:
    return len(jax.tree.leaves(looks.x)[0])


def _norm(tree: PyTree) -> Scalar:
    return jnp.linalg.norm(jax.flatten_util.ravel_pytree(tree)[0])


def _total(tree: PyTree) -> Scalar:
    return jnp.sum(jax.flatten_util.ravel_pytree(tree)[0])


def _clean(value: float, largest: float) -> float:
    """Zero where rounding could have made the value."""
    return 0.0 if abs(value) <= 1e-10 * largest else value
