"""The constants of the paper's assumptions on a problem, seen at sampled points; suprema are seen from below.

Gradients and rows at every point, curvatures at as many as the size allows (dense Hessians, eigenvalues on the host),
lower solves at a few x for what the theory asks of y*(x), and single samples for the noise.

The points lie around a start and within the sets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.constants import FINE, MANY
from hierax._base.errors import InputError
from hierax._base.trees import dtype_of, size
from hierax._compile.configuration import float64
from hierax._engine.float64_problem import Data, Float64Problem
from hierax._lower.exact import Exact
from hierax._math.lower_level import SOLVED, raveled
from hierax._math.psi import violation
from hierax._math.scatter import Cube, cover, unit_cube
from hierax._math.spectrum import extreme_eigenvalues, hessian_product, power_iteration
from hierax._problem import samples, sets
from hierax._problem.problem import Multipliers, Problem
from hierax._theory.formulas import Constants

PLACES = 8  # at which the lower level is solved, noise is looked at, and dense Hessians whatever the size


class Looks(NamedTuple):
    """Points on a leading axis, the start among them, and whether X and Y have bounds."""

    x: PyTree
    y: PyTree
    x_bounded: bool
    y_bounded: bool


class Seen(NamedTuple):
    """What was seen beside the constants.

    Attributes:
        convexity: the least curvature of G in y, with its sign.
        row_convexity: that of a row.
        multiplier: the largest |lam*(x)|.
        unsolved: at how many x the solver did not get there.
        on_faces: at how many x a face of Y was active.
        slater: at how many x a point was found at which every row is clearly negative.
        looked: at how many x the lower level was solved.
    """

    convexity: float
    row_convexity: float
    multiplier: float
    unsolved: int
    on_faces: int
    slater: int
    looked: int


def refuse_files(problem: Problem, name: str) -> None:
    """Raise InputError where the data are in files: these are not drawn from inside of a program."""
    for source in ("zeta", "xi"):
        if isinstance(getattr(problem, source, None), samples.FiniteFiles):
            raise InputError(
                f"Problem({source}): {name} draws samples of its own, which files do not give. Load some rows: "
                f"dataclasses.replace(problem, {source}=hx.Finite(arrays))."
            )


def points_around(setting: Float64Problem, count: int, radius: float, seed: int) -> Looks:
    """`count` points of X x Y, the start first; a set without bounds is looked at as far as `radius` lengths of it.

    A quarter of the points lies at corners of X's bounds, a quarter at corners of Y's, and a quarter at both.
    """

    def program(problem: Problem, data: Data, x: PyTree, y: PyTree, cube: Cube) -> tuple[PyTree, list[Array]]:
        whole = problem.x_set, problem.y_set
        _, tree = jax.flatten_util.ravel_pytree((x, y))
        bounds = [sets.bounds(one, part) for one, part in zip(whole, (x, y), strict=True)]
        return jax.vmap(tree)(cover(whole, (x, y), cube)), [jnp.all(jnp.isfinite(jnp.stack(both))) for both in bounds]

    n, m, rng = size(setting.x), size(setting.y), np.random.default_rng(seed)
    place, away = (np.asarray(part) for part in unit_cube(n + m, count - 1, seed))
    quarter = rng.permutation(np.arange(count - 1) % 4)
    place = np.where(quarter[:, None] & np.repeat([1, 2], [n, m]), np.round(place), place)
    away *= radius * rng.uniform(size=(count - 1, 1)) / np.linalg.norm(away, axis=1, keepdims=True)
    (x, y), bounded = setting.run("theory: points", program, setting.x, setting.y, Cube(place, away), quick=True)
    return Looks(x, y, *map(bool, bounded))


def constants_at(setting: Float64Problem, looks: Looks, seed: int) -> tuple[Constants, Seen]:
    """Suprema over the points, and what else was seen there."""
    first, scale = slopes(setting, looks)
    second = curvatures(setting, looks)
    convexity, row_convexity = second.pop("convexity"), second.pop("row_convexity")
    sigma_0, under = below(setting, looks, scale)
    with float64():
        keys = jax.random.split(jax.random.key(seed))
    upper_noise, upper_mean = noise(setting, looks, "upper", keys[0])
    lower_noise, lower_mean = noise(setting, looks, "lower", keys[1])
    constants = Constants(
        **first,
        **second,
        convexity=max(0.0, convexity),
        sigma_0=sigma_0,
        upper_noise=upper_noise,
        lower_noise=lower_noise,
        # Averaged constants are no smaller than those of the means; they are looked at in fewer points.
        upper_mean=max(second["upper"], upper_mean),
        lower_mean=max(second["lower"], lower_mean),
        p=scale.size,
    )
    return constants, Seen(convexity, row_convexity, **under)


def slopes(setting: Float64Problem, looks: Looks) -> tuple[dict[str, float], np.ndarray]:
    """First-order constants, and the scale of every row."""

    def program(problem: Problem, data: Data, x: PyTree, y: PyTree) -> dict[str, Array]:
        def one(at: tuple[PyTree, PyTree]) -> dict[str, Array]:
            h, jacobian = rows_and_jacobian(problem.rows, *at)
            return {
                "lipschitz": trees.norm(jax.grad(problem.upper, 1)(*at, data.zeta)),
                "gradient": trees.norm(jax.grad(problem.lower, (0, 1))(*at, data.xi)),
                "value": jnp.abs(h),
                "row": jnp.linalg.norm(jacobian, axis=1),
                "jacobian": jnp.linalg.norm(jacobian, 2) if h.size else jnp.zeros(()),
                "violation": jnp.asarray(trees.total(violation(Multipliers(*problem.rows(*at), None)))),
            }

        return jax.lax.map(one, (x, y))

    found = setting.run("theory: slopes", program, looks.x, looks.y, quick=True)
    scale = 1 + np.max(found["value"], axis=0, initial=0.0)
    return {name: float(np.max(values, initial=0.0)) for name, values in found.items()}, scale


def curvatures(setting: Float64Problem, looks: Looks) -> dict[str, float]:
    """Extreme curvatures over as many points as dense Hessians are affordable at."""
    n, m = size(setting.x), size(setting.y)
    count = int(max(PLACES, min(_count(looks), (MANY / (n + m)) ** 3)))
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
    return {
        "upper": float(np.max(np.abs(np.linalg.eigvalsh(upper)))),
        "lower": float(np.max(np.abs(np.linalg.eigvalsh(lower)))),
        "convexity": _clean(float(own.min()), float(np.max(np.abs(own)))),
        "rows": float(np.max(np.abs(rows[..., 1]), initial=0.0)),
        "row_convexity": _clean(float(np.min(rows[..., 0], initial=0.0)), float(np.max(np.abs(rows), initial=0.0))),
    }


def _row_curvatures(problem: Problem, at: tuple[PyTree, PyTree]) -> Array:
    """Of every row: its smallest curvature in y, and its largest (in size) in (x, y)."""

    def rows(x: PyTree, y: PyTree) -> Array:
        return raveled(problem.rows(x, y), dtype_of(y))

    count = jax.eval_shape(rows, *at).size

    def one(which: Array) -> Array:
        def row(point: tuple[PyTree, PyTree]) -> Scalar:
            return jnp.vdot(which, rows(*point))

        least = extreme_eigenvalues(hessian_product(lambda v: row((at[0], v)), at[1]), at[1])[0]
        return jnp.stack([least, extreme_eigenvalues(hessian_product(row, at), at)[1]])

    return jax.lax.map(one, jnp.eye(count)) if count else jnp.zeros((0, 2))


def below(setting: Float64Problem, looks: Looks, scale: np.ndarray) -> tuple[float, dict[str, Any]]:
    """Lower solves at a few x, from the start's y; `scale` of every row.

    The smallest singular value of the active rows at y*(x) (inf: no row was active anywhere), and counts.
    """

    def active_rows(problem: Problem, data: Data, x: PyTree, y: PyTree) -> tuple[Array, Array]:
        return rows_and_jacobian(lambda v: problem.rows(x, v), y)

    looked = min(PLACES, _count(looks))
    sigma, largest, counts = np.inf, 0.0, dict.fromkeys(("unsolved", "on_faces", "slater"), 0)
    for x in (jax.tree.map(lambda a, i=i: a[i], looks.x) for i in range(looked)):
        found = setting.solve_lower(Exact(), x, setting.y)
        if int(found.status) != SOLVED:
            counts["unsolved"] += 1
            continue
        h, jacobian = setting.run("theory: active rows", active_rows, x, found.y, quick=True)
        active = np.abs(h) <= FINE * scale
        if np.any(active):
            values = np.linalg.svd(jacobian[active], compute_uv=False)
            deficient = active.sum() > jacobian.shape[1]
            sigma = min(sigma, 0.0 if deficient else _clean(float(values.min()), float(values.max())))
        largest = max(largest, float(np.sqrt(sum(np.sum(a**2) for a in jax.tree.leaves(found.multipliers)))))
        counts["on_faces"] += any(np.any(np.abs(a) > FINE) for a in jax.tree.leaves(found.faces))
        counts["slater"] += _strictly_feasible(setting, x, found.y, scale)
    return float(sigma), {"multiplier": largest, "looked": looked, **counts}


def _strictly_feasible(setting: Float64Problem, x: PyTree, y: PyTree, scale: np.ndarray) -> bool:
    """Whether the lower level still has a point when every inequality is asked to be clearly negative."""

    def program(problem: Problem, data: Data, x: PyTree, y: PyTree, room: Array) -> Array:
        _, unravel = jax.flatten_util.ravel_pytree(problem.rows(x, y))

        def tighter(x: PyTree, y: PyTree) -> PyTree:
            return jax.tree.map(jnp.add, problem.constraints(x, y), unravel(room).inequalities)

        asked = Problem(problem.upper, problem.lower, tighter, problem.equalities, y_set=problem.y_set)
        return Exact().solve(asked, x, y, data.xi).status

    return int(setting.run("theory: Slater", program, x, y, np.sqrt(FINE) * scale)) == SOLVED


def noise(setting: Float64Problem, looks: Looks, name: str, key: PRNGKeyArray) -> tuple[float, float]:
    """Variance of the gradient of one sample of zeta ("upper") or xi ("lower"), and its averaged Lipschitz constant."""
    source = "zeta" if name == "upper" else "xi"
    if getattr(setting.bound.problem, source) is None:
        return 0.0, 0.0
    at = jax.tree.map(lambda a: a[: min(PLACES, len(a))], (looks.x, looks.y))

    def program(problem: Problem, data: Data, points: tuple[PyTree, PyTree], key: PRNGKeyArray) -> tuple[Array, Array]:
        plan = samples.plan(getattr(problem, source), key, 0, MANY, 1)
        few = jax.tree.map(lambda a: a[: MANY // PLACES], plan)
        function: Callable[..., Scalar] = getattr(problem, name)

        def of_sample(point: tuple[PyTree, PyTree], planned: PyTree) -> Scalar:
            return function(*point, samples.fetch(getattr(problem, source), planned))

        def one(point: tuple[PyTree, PyTree]) -> tuple[Scalar, Scalar]:
            each = jax.lax.map(lambda one: jax.flatten_util.ravel_pytree(jax.grad(of_sample)(point, one))[0], plan)

            def squared(v: PyTree) -> PyTree:
                """The mean over the samples of (Hessian)^2 v."""

                def of_one(planned: PyTree) -> PyTree:
                    product = hessian_product(lambda u: of_sample(u, planned), point)
                    return product(product(v))

                return jax.tree.map(lambda a: jnp.mean(a, axis=0), jax.lax.map(of_one, few))

            return jnp.sum(jnp.var(each, axis=0, ddof=1)), jnp.sqrt(power_iteration(squared, point)[0])

        return jax.lax.map(one, points)

    with float64():
        variance, lipschitz = setting.run(f"theory: noise of {name}", program, at, key, static=name)
    return float(np.max(variance)), float(np.max(lipschitz))


# -- small parts ------------------------------------------------------------------------------------------------------


def rows_and_jacobian(rows: Callable[..., PyTree], *at: PyTree) -> tuple[Array, Array]:
    """All rows as one vector, inequalities before equalities, and its Jacobian in all arguments."""
    flat, unravel = jax.flatten_util.ravel_pytree(at)

    def vector(v: Array) -> Array:
        return raveled(rows(*unravel(v)), v.dtype)

    return vector(flat), jax.jacrev(vector)(flat)


def _count(looks: Looks) -> int:
    return len(jax.tree.leaves(looks.x)[0])


def _clean(value: float, largest: float) -> float:
    """Zero where rounding could have made the value."""
    return 0.0 if abs(value) <= 1e-10 * largest else value
