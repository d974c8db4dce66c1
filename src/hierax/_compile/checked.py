"""What can be wrong with a problem and its variables, whatever method will run on it: found before the first step.

Every error names the argument, what it got and what to do. What a method or a stream adds to these checks stands in
`_run.prepare`.
"""

import functools
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.errors import HieraxWarning, InputError, warn
from hierax._base.trees import all_finite, dtype_of, split_variable
from hierax._compile.bound import FUNCTIONS, Bound
from hierax._problem import samples, sets
from hierax._problem.problem import CONSTRAINTS, Problem, row_of_nan


def check_problem(problem: object) -> None:
    """Refuse what is no problem: functions that are none, sets that are none, sources that are none."""
    if not isinstance(problem, Problem):
        raise InputError(f"problem: needs a hx.Problem, got {type(problem).__name__}.")
    for name in FUNCTIONS:
        if not callable(getattr(problem, name)):
            raise InputError(f"Problem({name}): needs a function, got {type(getattr(problem, name)).__name__}.")
    for name in ("x_set", "y_set"):
        wrong = [leaf for leaf in jax.tree.leaves(getattr(problem, name), is_leaf=sets.is_set) if not sets.is_set(leaf)]
        if wrong:
            raise InputError(
                f"Problem({name}): needs a set (hx.Box, hx.Ball, ...) or a tree of sets, got {wrong[0]!r}."
            )
    for name in ("zeta", "xi"):
        source = getattr(problem, name)
        if source is not None and not isinstance(source, samples.AbstractSource | samples.Stream | samples.FiniteFiles):
            raise InputError(
                f"Problem({name}): needs hx.Finite(arrays), hx.Sampler(draw), hx.Stream(iterable) or None, got "
                f"{type(source).__name__}. Arrays go in as hx.Finite(arrays)."
            )


def batch_shape(bound: Bound, name: str, n: int) -> PyTree:
    """Shapes of a batch of n samples of a source that is not a Stream; None where the source is None."""
    source = getattr(bound.problem, name)
    if source is None:
        return None
    if isinstance(source, samples.Finite):
        return source.shapes(n)
    drawn = bound.trace(f"{name}.draw", (jax.eval_shape(lambda: jax.random.key(0)), n))
    for leaf in jax.tree.leaves(drawn):
        if leaf.aval.ndim == 0 or leaf.aval.shape[0] != n:
            raise InputError(
                f"Sampler(draw) of {name}: draw(key, {n}) must return leaves with leading axis {n}, got shape "
                f"{leaf.aval.shape}."
            )
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype), drawn)


def check_functions(bound: Bound, x: PyTree, y: PyTree, batches: dict[str, PyTree]) -> None:
    """Trace every function at the shapes it will be called with, and refuse wrong results; `batches` are shapes."""
    dtype = dtype_of(x, y)
    for name, batch in (("upper", "zeta"), ("lower", "xi")):
        leaves = jax.tree.leaves(bound.trace(name, (x, y, batches[batch])))
        if len(leaves) != 1 or leaves[0].aval.shape != ():
            got = [leaf.aval.shape for leaf in leaves]
            raise InputError(
                f"{name}(x, y, {batch}): must return a scalar, the mean over the batch; got shapes {got}. "
                "Sum over the entries of x and y, and average over the leading axis of a batch (jnp.sum, jnp.mean)."
            )
        _check_dtype(f"{name}(x, y, {batch})", leaves[0].aval.dtype, dtype)
    for name in CONSTRAINTS:
        for path, leaf in jax.tree_util.tree_leaves_with_path(bound.trace(name, (x, y))):
            _check_dtype(f"{name}(x, y){jax.tree_util.keystr(path)}", leaf.aval.dtype, dtype)


def _check_dtype(name: str, got: jnp.dtype, expected: jnp.dtype) -> None:
    if not jnp.issubdtype(got, jnp.floating):
        raise InputError(f"{name}: must return floating-point numbers, got dtype {got}.")
    if jnp.finfo(got).bits > jnp.finfo(expected).bits:
        raise InputError(
            f"{name}: returns {got} for variables of {expected}: some array it uses is {got}. Cast that data, or start "
            f"from x0, y0 of {got}."
        )


def into_sets(problem: Problem, x: PyTree, y: PyTree, many: bool = False) -> tuple[PyTree, PyTree]:
    """The start projected on its sets, with a warning where that moves it; with `many`, along a leading axis."""
    return _into_set("x", problem.x_set, x, many), _into_set("y", problem.y_set, y, many)


def _into_set(name: str, convex_set: PyTree, tree: PyTree, many: bool) -> PyTree:
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[many:], a.dtype), tree)
    shapes = jax.tree.map(jnp.shape, one)
    try:
        fits = jax.tree.map(jnp.shape, eqx.filter_eval_shape(sets.project, convex_set, one)) == shapes
    except (ValueError, TypeError) as error:
        raise InputError(f"Problem({name}_set): does not fit {name}0 of structure {shapes}: {error}") from error
    if not fits:
        raise InputError(f"Problem({name}_set): bounds do not broadcast to the shape of {name}0.")
    if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(tree)):
        raise InputError(f"{name}0: holds NaN or infinite entries; start from a finite point.")
    land = functools.partial(sets.project, convex_set)
    landed = jax.vmap(land)(tree) if many else land(tree)
    gap = _farthest(jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), tree, landed))
    if not np.isfinite(gap):
        raise InputError(f"Problem({name}_set): projecting {name}0 gives a non-finite point; check its numbers.")
    if gap > np.sqrt(float(jnp.finfo(dtype_of(tree)).eps)) * (1 + _farthest(tree)):  # more than rounding
        # Shown at the line that called solve.
        warn(f"{name}0 lies outside Problem({name}_set), by up to {gap:.3g}; its projection is used.", above=6)
    return landed


def _farthest(tree: PyTree) -> float:
    return max(float(np.max(np.abs(np.asarray(leaf)), initial=0.0)) for leaf in jax.tree.leaves(tree))


def refused(problem: object, x0: PyTree, y0: PyTree) -> str | None:
    """What `solve` would say before its first step, warnings included; None where it has nothing to object."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", HieraxWarning)
        try:
            check_problem(problem)
            assert isinstance(problem, Problem)
            (x, x_rest), (y, y_rest) = split_variable("x0", x0), split_variable("y0", y0)
            x, y = into_sets(problem, x, y)
            bound = Bound(problem, x_rest, y_rest)
            shapes = {}
            for name, source in (("zeta", problem.zeta), ("xi", problem.xi)):
                n = 1 if source is None else source.default_batch()
                in_files = isinstance(source, samples.FiniteFiles)
                shapes[name] = source.shapes(n) if in_files else batch_shape(bound, name, n)
            check_functions(bound, x, y, shapes)
        except (InputError, HieraxWarning) as objection:
            return str(objection)
    return None


def finite_values(problem: Problem, x: PyTree, y: PyTree, zeta: PyTree, xi: PyTree) -> dict[str, Array]:
    """Whether every function and its gradients are finite at a point, by name (part of a compiled program)."""
    rows, pull_back = jax.vjp(lambda x, y: {name: getattr(problem, name)(x, y) for name in CONSTRAINTS}, x, y)
    return {
        "upper": all_finite(problem.upper(x, y, zeta)),
        "lower": all_finite(problem.lower(x, y, xi)),
        **{name: all_finite(value) for name, value in rows.items()},
        "the gradient of upper": all_finite(jax.grad(problem.upper, (0, 1))(x, y, zeta)),
        "the gradient of lower": all_finite(jax.grad(problem.lower, (0, 1))(x, y, xi)),
        "the gradient of constraints": all_finite(pull_back(jax.tree.map(jnp.ones_like, rows))),
    }


def refuse_nonfinite(fine: dict[str, Array], problem: Problem) -> None:
    """Raise where `finite_values` of the start (or of some starts: an axis) says no."""
    for name, flags in fine.items():
        if not np.all(np.asarray(flags)):
            where = f"at {np.sum(~np.asarray(flags))} of the starts" if np.ndim(flags) else "at (x0, y0)"
            cure = row_of_nan(problem) or "Start from a point where every function is finite."
            raise InputError(f"{name} is not finite {where}. {cure}")
