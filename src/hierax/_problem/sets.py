"""The sets X and Y: convex, with a cheap projection (`optax.projections`)."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, PyTree

from hierax._base.errors import InputError
from hierax._base.trees import relaxed_promotion


class Faces(NamedTuple):
    """A set as smooth constraints on the tree: inequalities <= 0 and equalities = 0 (also: their multipliers)."""

    inequalities: PyTree
    equalities: PyTree


class Bounds(NamedTuple):
    """A box: its lower and upper bounds, infinite where there is none."""

    lower: PyTree
    upper: PyTree


class AbstractSet(eqx.Module):
    """A closed convex set that acts on a (sub)tree of arrays."""

    @abc.abstractmethod
    def project(self, tree: PyTree) -> PyTree:
        """The point of the set nearest to `tree`."""

    def faces(self, tree: PyTree) -> Faces:
        """The set's own constraints at `tree`, for solvers that count them among the problem's."""
        raise InputError(
            f"{type(self).__name__} does not state its faces, which exact lower solvers, GAM and certificates need: "
            "give it a method faces(tree) returning hierax._problem.sets.Faces(inequalities, equalities)."
        )

    def bounds(self, tree: PyTree) -> Bounds:
        """The smallest box around the set, as far as it is known."""
        return Bounds(jax.tree.map(jnp.negative, _infinite(tree)), _infinite(tree))

    def contains(self, tree: PyTree, tol: float = 0.0) -> Bool[Array, ""]:
        """Whether no entry of `tree` is further than `tol` from its projection."""
        away = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b), initial=0.0), tree, self.project(tree))
        return jnp.array([leaf <= tol for leaf in jax.tree.leaves(away)]).all()


class Free(AbstractSet):
    """The whole space."""

    def project(self, tree: PyTree) -> PyTree:
        """Return the tree unchanged."""
        return tree

    def faces(self, tree: PyTree) -> Faces:
        """There are no faces."""
        return Faces(None, None)


class Box(AbstractSet):
    """Entries between `lower` and `upper`: numbers, arrays that broadcast, or trees of them.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> hx.Box(0.0, 3.0).project(jnp.array([-1.0, 2.0, 5.0]))
        Array([0., 2., 3.], dtype=float32)
    """

    lower: PyTree
    upper: PyTree

    def __post_init__(self) -> None:
        """Refuse bounds that are no numbers, and an empty box."""
        for name in ("lower", "upper"):
            leaves = jax.tree.leaves(getattr(self, name), is_leaf=lambda leaf: leaf is None)
            for leaf in leaves or [None]:
                _check_number(f"Box({name})", leaf, "numbers or arrays; -jnp.inf and jnp.inf where there is no bound")
        for low, high in zip(jax.tree.leaves(self.lower), jax.tree.leaves(self.upper), strict=False):
            if _concrete(low) and _concrete(high) and not np.all(np.asarray(low) <= np.asarray(high)):
                raise InputError(
                    f"Box(lower={self.lower}, upper={self.upper}) is empty: every lower bound must be <= the upper "
                    "bound, and neither may be NaN."
                )

    def project(self, tree: PyTree) -> PyTree:
        """Clip every entry to its bounds."""
        return optax.projections.projection_box(tree, _bounds_like(self.lower, tree), _bounds_like(self.upper, tree))

    def bounds(self, tree: PyTree) -> Bounds:
        """Its own bounds."""
        return Bounds(_bounds_like(self.lower, tree), _bounds_like(self.upper, tree))

    def faces(self, tree: PyTree) -> Faces:
        """lower - tree <= 0 and tree - upper <= 0; a bound at infinity is a row that is constantly -1."""

        def row(bound: Array, distance: Array) -> Array:
            return jnp.where(jnp.isfinite(bound), distance, -1.0)

        low, high = _bounds_like(self.lower, tree), _bounds_like(self.upper, tree)
        below = jax.tree.map(lambda b, leaf: row(b, b - leaf), low, tree)
        above = jax.tree.map(lambda b, leaf: row(b, leaf - b), high, tree)
        return Faces({"lower": below, "upper": above}, None)


class NonNegative(AbstractSet):
    """Entries >= 0."""

    def project(self, tree: PyTree) -> PyTree:
        """Replace negative entries by zero."""
        return optax.projections.projection_non_negative(tree)

    def bounds(self, tree: PyTree) -> Bounds:
        """Zero and infinity."""
        return Bounds(jax.tree.map(jnp.zeros_like, tree), _infinite(tree))

    def faces(self, tree: PyTree) -> Faces:
        """-tree <= 0."""
        return Faces(jax.tree.map(jnp.negative, tree), None)


class Ball(AbstractSet):
    """Euclidean ball around zero on the joint vector of the subtree: ||tree|| <= radius."""

    radius: PyTree

    def __post_init__(self) -> None:
        """Refuse a ball that is empty or a single point."""
        _check_number("Ball(radius)", self.radius, "a number > 0")
        if _concrete(self.radius) and not (np.ndim(self.radius) == 0 and np.asarray(self.radius) > 0):
            raise InputError(
                f"Ball(radius={self.radius}): the radius must be one number > 0. What is fixed at zero is no variable."
            )

    def project(self, tree: PyTree) -> PyTree:
        """Scale the joint vector back to the ball where it is outside."""
        return optax.projections.projection_l2_ball(tree, _scalar_like(self.radius, tree))

    def bounds(self, tree: PyTree) -> Bounds:
        """Minus the radius and the radius."""
        radius = _scalar_like(self.radius, tree)
        most = jax.tree.map(lambda leaf: jnp.full_like(leaf, radius), tree)
        return Bounds(jax.tree.map(jnp.negative, most), most)

    def faces(self, tree: PyTree) -> Faces:
        """(||tree||^2 - radius^2) / (2 radius) <= 0: smooth, and of slope one on the sphere."""
        radius = _scalar_like(self.radius, tree)
        twice = 2 * jnp.where(radius > 0, radius, 1.0)
        return Faces((optax.tree.norm(tree, squared=True) - radius**2) / twice, None)


class Simplex(AbstractSet):
    """Entries of the joint vector of the subtree are >= 0 and sum to `scale`."""

    scale: PyTree = 1.0

    def __post_init__(self) -> None:
        """Refuse an empty simplex."""
        _check_number("Simplex(scale)", self.scale, "a number > 0")
        if _concrete(self.scale) and not (np.ndim(self.scale) == 0 and np.asarray(self.scale) > 0):
            raise InputError(f"Simplex(scale={self.scale}) is empty: the scale must be one number > 0.")

    def project(self, tree: PyTree) -> PyTree:
        """The nearest point of the simplex (sorting, O(n log n))."""
        with relaxed_promotion():
            landed = optax.projections.projection_simplex(tree, _scalar_like(self.scale, tree))
        return jax.tree.map(lambda a, b: a.astype(b.dtype), landed, tree)  # optax counts in the default precision

    def bounds(self, tree: PyTree) -> Bounds:
        """Zero and the scale."""
        scale = _scalar_like(self.scale, tree)
        return Bounds(jax.tree.map(jnp.zeros_like, tree), jax.tree.map(lambda leaf: jnp.full_like(leaf, scale), tree))

    def faces(self, tree: PyTree) -> Faces:
        """-tree <= 0 and sum - scale = 0."""
        return Faces(jax.tree.map(jnp.negative, tree), optax.tree.sum(tree) - _scalar_like(self.scale, tree))


def is_set(node: Any) -> bool:
    """Whether the node is a set (the leaves of a tree prefix of sets)."""
    return isinstance(node, AbstractSet)


def project(sets: PyTree, tree: PyTree) -> PyTree:
    """Project a tree on a tree prefix of sets."""
    return jax.tree.map(lambda one, part: one.project(part), sets, tree, is_leaf=is_set)


def faces(sets: PyTree, tree: PyTree) -> Faces:
    """The faces of a tree prefix of sets: one entry per set, in the order of the prefix's leaves."""
    parts = jax.tree.leaves(
        jax.tree.map(lambda one, part: one.faces(part), sets, tree, is_leaf=is_set),
        is_leaf=lambda node: isinstance(node, Faces),
    )
    return Faces([part.inequalities for part in parts], [part.equalities for part in parts])


def bounds(sets: PyTree, tree: PyTree) -> Bounds:
    """The smallest box around a tree prefix of sets, its bounds as vectors in the order of the raveled tree."""
    parts = jax.tree.map(lambda one, part: one.bounds(part), sets, tree, is_leaf=is_set)
    boxes = jax.tree.leaves(parts, is_leaf=lambda node: isinstance(node, Bounds))
    lower, upper = ([jnp.ravel(leaf) for box in boxes for leaf in jax.tree.leaves(box[i])] for i in (0, 1))
    return Bounds(jnp.concatenate(lower), jnp.concatenate(upper))


def contains(sets: PyTree, tree: PyTree, tol: float = 0.0) -> Bool[Array, ""]:
    """Whether the tree lies in a tree prefix of sets, up to `tol` in every entry."""
    inside = jax.tree.map(lambda one, part: one.contains(part, tol), sets, tree, is_leaf=is_set)
    return jnp.array(jax.tree.leaves(inside)).all()


def _check_number(name: str, value: Any, needs: str) -> None:
    """Refuse what is neither a number nor an array of numbers (arrays of a compiled program are not looked at)."""
    if isinstance(value, bool) or not (_concrete(value) or isinstance(value, jax.core.Tracer)):
        raise InputError(f"{name}: needs {needs}, got {value!r}.")
    if _concrete(value) and not jnp.issubdtype(np.asarray(value).dtype, jnp.number):
        raise InputError(f"{name}: needs {needs}, got an array of {np.asarray(value).dtype}.")


def _concrete(value: Any) -> bool:
    return isinstance(value, int | float | np.ndarray | np.generic) or (
        isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
    )


def _bounds_like(bound: PyTree, tree: PyTree) -> PyTree:
    """Bounds in the dtype of the entries they bound, so that a bound never promotes a variable."""
    if jax.tree_util.all_leaves([bound]):  # one bound for every leaf
        bound = jax.tree.map(lambda leaf: bound, tree)
    return jax.tree.map(lambda b, leaf: jnp.broadcast_to(jnp.asarray(b, leaf.dtype), leaf.shape), bound, tree)


def _infinite(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.inf), tree)


def _scalar_like(value: PyTree, tree: PyTree) -> Array:
    return jnp.asarray(value, jax.tree.leaves(tree)[0].dtype)
