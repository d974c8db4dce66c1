"""Everything that can be wrong with a call is found here, before the first step, and named."""

import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hierax._base.errors import HieraxWarning, InputError
from hierax._base.trees import all_finite, dtype_of, split_variable
from hierax._compile.programs import FUNCTIONS, Bound
from hierax._math.psi import all_constraints
from hierax._problem import samples, sets
from hierax._problem.problem import Problem
from hierax._run.streams import Exhausted, Feeder, feeder_of


class Prepared(NamedTuple):
    """A call that was found sound: the problem ready to compile and the variables as arrays."""

    bound: Bound
    x: PyTree
    y: PyTree
    x_rest: PyTree
    y_rest: PyTree
    method: Any
    feeders: dict[str, Feeder]


def prepare(problem: Problem, x0: PyTree, y0: PyTree, method: Any, asked: Any, many: bool) -> Prepared:
    """Check a call and make its problem ready; with `many`, every leaf of x0 and y0 has a leading axis of starts.

    `asked` is the method as the user gave it: in a continued run `method` has the earlier run's settings filled in.
    """
    _check_problem(problem)
    x, x_rest = split_variable("x0s" if many else "x0", x0)
    y, y_rest = split_variable("y0s" if many else "y0", y0)
    if many:
        _check_starts(x, y)
    _check_sets("x", problem.x_set, x, many)
    _check_sets("y", problem.y_set, y, many)
    method.refuse(problem)
    feeders = _open_streams(problem, asked)
    bound = Bound(problem, x_rest, y_rest)
    for name, feeder in feeders.items():
        bound.feed(name, feeder.batch)
    _check_batches(problem, asked)
    method = method.with_batches(bound.problem)
    one_x, one_y = jax.tree.map(lambda a: a[0], (x, y)) if many else (x, y)
    batches = {
        "zeta": _batch_shape(bound, "zeta", method.batch_zeta, feeders),
        "xi": _batch_shape(bound, "xi", method.batch_xi, feeders),
    }
    _check_functions(bound, one_x, one_y, batches)
    x, y = _into_sets(bound.problem, x, y, many)
    return Prepared(bound, x, y, x_rest, y_rest, method, feeders)


def _check_problem(problem: Any) -> None:
    if not isinstance(problem, Problem):
        raise InputError(f"problem: needs a hx.Problem, got {type(problem).__name__}.")
    for name in FUNCTIONS:
        if not callable(getattr(problem, name)):
            raise InputError(f"Problem({name}): needs a function, got {type(getattr(problem, name)).__name__}.")
    for name in ("x_set", "y_set"):
        wrong = [leaf for leaf in jax.tree.leaves(getattr(problem, name), is_leaf=sets.is_set) if not sets.is_set(leaf)]
        if wrong:
            raise InputError(
                f"Problem({name}): needs a set (hx.Box, hx.Ball, ...) or a tree prefix of sets, got {wrong[0]!r}."
            )
    for name in ("zeta", "xi"):
        source = getattr(problem, name)
        if source is not None and not isinstance(source, samples.AbstractSource | samples.Stream):
            raise InputError(
                f"Problem({name}): needs hx.Finite(arrays), hx.Sampler(draw), hx.Stream(iterable) or None, got "
                f"{type(source).__name__}. Arrays go in as hx.Finite(arrays)."
            )


def _check_starts(x: PyTree, y: PyTree) -> None:
    counts = {leaf.shape[0] if leaf.ndim else None for leaf in jax.tree.leaves((x, y))}
    if len(counts) != 1 or None in counts or 0 in counts:
        shapes = [leaf.shape for leaf in jax.tree.leaves((x, y))]
        raise InputError(f"x0s, y0s: every leaf needs the same leading axis of starts; got shapes {shapes}.")


def _check_sets(name: str, convex_set: PyTree, tree: PyTree, many: bool) -> None:
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:] if many else a.shape, a.dtype), tree)
    try:
        landed = eqx.filter_eval_shape(sets.project, convex_set, one)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"Problem({name}_set): does not fit {name}0 of structure {jax.tree.map(lambda a: a.shape, one)}: {error}"
        ) from error
    if jax.tree.map(lambda a: a.shape, landed) != jax.tree.map(lambda a: a.shape, one):
        raise InputError(f"Problem({name}_set): bounds do not broadcast to the shape of {name}0.")


def _open_streams(problem: Problem, method: Any) -> dict[str, Feeder]:
    feeders = {}
    if isinstance(problem.xi, samples.Stream) and not method.takes_streams():
        raise InputError(
            f"method: {type(method).__name__} with these settings solves the lower level on all of xi, which a Stream "
            "never shows. Give xi as hx.Finite or hx.Sampler, or use hx.SALVF(inner=hx.SALM())."
        )
    for name in ("zeta", "xi"):
        source = getattr(problem, name)
        if not isinstance(source, samples.Stream):
            continue
        if any(batch is not None for of, batch in method.asked_batches() if of == name):
            raise InputError(f"batch_{name}: the Stream given as {name} sets the batch size; leave it unset.")
        try:
            feeders[name] = feeder_of(name, source)
            feeders[name].peek()
        except Exhausted:
            raise InputError(f"Problem({name}): the Stream yields no batch (any more).") from None
    return feeders


def _check_batches(problem: Problem, method: Any) -> None:
    for name, batch in method.asked_batches():
        source = getattr(problem, name)
        if batch is not None and source is None:
            raise InputError(f"batch size {batch} for {name}, but Problem({name}=None) has no samples; leave it unset.")
        if isinstance(source, samples.Finite) and not source.replace and (batch or 1) > source.size:
            raise InputError(f"batch size {batch} for {name} exceeds the {source.size} rows of Finite(replace=False).")


def _batch_shape(bound: Bound, name: str, n: int, feeders: dict[str, Feeder]) -> PyTree:
    source = getattr(bound.problem, name)
    if source is None:
        return None
    if name in feeders:
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jnp.asarray(a[:0]).dtype), feeders[name].peek())
    if isinstance(source, samples.Finite):
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((n, *a.shape[1:]), a.dtype), source.arrays)
    key = jax.eval_shape(lambda: jax.random.key(0))
    drawn = bound.trace(f"{name}.draw", (key, n))
    for leaf in jax.tree.leaves(drawn):
        if leaf.aval.ndim == 0 or leaf.aval.shape[0] != n:
            raise InputError(
                f"Sampler(draw) of {name}: draw(key, {n}) must return leaves with leading axis {n}, got shape "
                f"{leaf.aval.shape}."
            )
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype), drawn)


def _check_functions(bound: Bound, x: PyTree, y: PyTree, batches: dict[str, PyTree]) -> None:
    dtype = dtype_of(x, y)
    for name, batch in (("upper", "zeta"), ("lower", "xi")):
        out = bound.trace(name, (x, y, batches[batch]))
        leaves = jax.tree.leaves(out)
        if len(leaves) != 1 or leaves[0].aval.shape != ():
            got = [leaf.aval.shape for leaf in leaves]
            raise InputError(
                f"{name}(x, y, {batch}): must return a scalar, the mean over the batch; got shapes {got}. "
                "Average over the leading axis, e.g. with jnp.mean."
            )
        _check_dtype(f"{name}(x, y, {batch})", leaves[0].aval.dtype, dtype)
    for name in ("constraints", "equalities", "upper_constraints"):
        for path, leaf in jax.tree_util.tree_leaves_with_path(bound.trace(name, (x, y))):
            _check_dtype(f"{name}(x, y){jax.tree_util.keystr(path)}", leaf.aval.dtype, dtype)


def _check_dtype(name: str, got: Any, expected: Any) -> None:
    if not jnp.issubdtype(got, jnp.floating):
        raise InputError(f"{name}: must return floating-point numbers, got dtype {got}.")
    if jnp.finfo(got).bits > jnp.finfo(expected).bits:
        raise InputError(
            f"{name}: returns {got} for variables of {expected}: some array it uses is {got}. Cast that data, or start "
            f"from x0, y0 of {got}."
        )


def _into_sets(problem: Problem, x: PyTree, y: PyTree, many: bool) -> tuple[PyTree, PyTree]:
    moved = []
    for name, convex_set, tree in (("x", problem.x_set, x), ("y", problem.y_set, y)):
        if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(tree)):
            raise InputError(f"{name}0: holds NaN or infinite entries; start from a finite point.")

        def land(part: PyTree, convex_set: PyTree = convex_set) -> PyTree:
            return sets.project(convex_set, part)

        landed = jax.vmap(land)(tree) if many else land(tree)
        gap = _farthest(jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), tree, landed))
        if not np.isfinite(gap):
            raise InputError(f"Problem({name}_set): projecting {name}0 gives a non-finite point; check its numbers.")
        if gap > 1e3 * float(jnp.finfo(dtype_of(tree)).eps) * (1 + _farthest(tree)):
            warnings.warn(
                f"{name}0 lies outside Problem({name}_set), by up to {gap:.3g}; its projection is used.",
                HieraxWarning,
                stacklevel=4,
            )
        moved.append(landed)
    return moved[0], moved[1]


def _farthest(tree: PyTree) -> float:
    return max(float(np.max(np.abs(np.asarray(leaf)), initial=0.0)) for leaf in jax.tree.leaves(tree))


def finite_values(problem: Problem, x: PyTree, y: PyTree, zeta: PyTree, xi: PyTree) -> dict[str, jax.Array]:
    """Whether every function and both gradients are finite at a point, by name (part of the compiled start)."""
    rows = {name: getattr(problem, name)(x, y) for name in ("constraints", "equalities", "upper_constraints")}
    return {
        "upper": all_finite(problem.upper(x, y, zeta)),
        "lower": all_finite(problem.lower(x, y, xi)),
        **{name: all_finite(value) for name, value in rows.items()},
        "the gradient of upper": all_finite(jax.grad(problem.upper, (0, 1))(x, y, zeta)),
        "the gradient of lower": all_finite(jax.grad(problem.lower, (0, 1))(x, y, xi)),
        "the gradient of constraints": all_finite(_pulled_back(problem, x, y)),
    }


def _pulled_back(problem: Problem, x: PyTree, y: PyTree) -> PyTree:
    values, pull_back = jax.vjp(lambda x, y: all_constraints(problem, x, y), x, y)
    return pull_back(jax.tree.map(jnp.ones_like, values))


def refuse_doubtful(doubts: dict[str, jax.Array]) -> None:
    """Raise where the method cannot run on the problem."""
    for text, flags in doubts.items():
        if np.any(flags):
            raise InputError(text)


def refuse_nonfinite(fine: dict[str, jax.Array]) -> None:
    """Raise where a function is not finite at the start."""
    for name, flags in fine.items():
        if not np.all(flags):
            many = np.ndim(flags) > 0
            where = f"at {int(np.sum(~np.asarray(flags)))} of the starts" if many else "at (x0, y0)"
            raise InputError(f"{name} is not finite {where}; start from a point where every function is finite.")
