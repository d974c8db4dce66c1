"""The sets X and Y: convex, with a cheap projection (as in `optax.projections`)."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from hierax._base import trees
from hierax._base.errors import InputError


class Faces(NamedTuple):
    """A set as smooth constraints on the tree: inequalities <= 0 and equalities = 0 (also: their multipliers).

        X = {tree : inequalities(tree) <= 0, equalities(tree) = 0}

    Attributes:
        inequalities: a tree of rows, each <= 0 in the set; None where there is none.
        equalities: the same for rows that are zero in the set.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> hx.Box(0.0, 3.0).faces(jnp.array([1.0])).inequalities["upper"]
        Array([-2.], dtype=float32)

    References:
        docs/methods/lower-solvers.md
    """

    inequalities: PyTree
    equalities: PyTree


class Bounds(NamedTuple):
    """A box: its lower and upper bounds, infinite where there is none."""

    lower: PyTree
    upper: PyTree


class AbstractSet(eqx.Module):
    """A closed convex set that acts on a (sub)tree of arrays.

        Proj(u) = argmin over v in the set of  ||v - u||_2

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> class AtMostOne(hx.AbstractSet):
        ...     def project(self, tree):
        ...         return tree - jnp.maximum(jnp.sum(tree) - 1.0, 0.0) / tree.size
        ...
        ...     def faces(self, tree):
        ...         return hx.extend.Faces(jnp.sum(tree) - 1.0, None)
        >>> AtMostOne().project(jnp.array([1.0, 2.0]))
        Array([0., 1.], dtype=float32)

    References:
        Parikh, Boyd: Proximal algorithms, Foundations and Trends in Optimization 1, 2014.
    """

    entrywise: ClassVar[bool] = False
    """Whether the set is one of bounds on single entries, which may then be measured in units of their own."""

    @abc.abstractmethod
    def project(self, tree: PyTree) -> PyTree:
        """The point of the set nearest to `tree`."""

    def faces(self, tree: PyTree) -> Faces:
        """The set's own constraints at `tree`, for solvers that count them among the problem's."""
        raise InputError(
            f"{type(self).__name__} does not state its faces, which exact lower solvers, GAM and certificates need: "
            "give it a method faces(tree) returning hierax.extend.Faces(inequalities, equalities)."
        )

    def bounds(self, tree: PyTree) -> Bounds:
        """The smallest box around the set, as far as it is known."""
        return _box(-jnp.inf, jnp.inf, tree)

    def in_units(self, lengths: PyTree) -> "AbstractSet":
        """The same set for a tree whose entries are divided by `lengths` (all the same, unless `entrywise`)."""
        return _InUnits(self, lengths)

    def contains(self, tree: PyTree, tol: float = 0.0) -> Bool[Array, ""]:
        """Whether no entry of `tree` is further than `tol` from its projection."""
        away = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b), initial=0.0), tree, self.project(tree))
        return jnp.array([leaf <= tol for leaf in jax.tree.leaves(away)]).all()


class _Measured(AbstractSet):
    """A set whose numbers, where it has some, are lengths."""

    def in_units(self, lengths: PyTree) -> AbstractSet:
        """Its numbers divided by the length."""
        same: AbstractSet = jax.tree.map(lambda number: _scalar_like(number, lengths) / _first(lengths), self)
        return same


class Free(_Measured):
    """The whole space.

        X = R^n,    Proj_X(x) = x

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> hx.Free().project(jnp.array([-1.0, 2.0]))
        Array([-1.,  2.], dtype=float32)

    References:
        Parikh, Boyd: Proximal algorithms, Foundations and Trends in Optimization 1, 2014.
    """

    entrywise: ClassVar[bool] = True

    def project(self, tree: PyTree) -> PyTree:
        """Return the tree unchanged."""
        return tree

    def faces(self, tree: PyTree) -> Faces:
        """There are no faces."""
        return Faces(None, None)


class Box(AbstractSet):
    """Entries between `lower` and `upper`: numbers, arrays that broadcast, or trees of them.

        X = {x : lower_i <= x_i <= upper_i},    Proj_X(x) = min(max(x, lower), upper)

    Args:
        lower: the lower bounds: a number, an array that broadcasts, or a tree of them; -inf where there is none.
        upper: the upper bounds, likewise; inf where there is none.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> hx.Box(0.0, 3.0).project(jnp.array([-1.0, 2.0, 5.0]))
        Array([0., 2., 3.], dtype=float32)

    References:
        Parikh, Boyd: Proximal algorithms, Foundations and Trends in Optimization 1, 2014.
    """

    entrywise: ClassVar[bool] = True
    lower: PyTree
    upper: PyTree

    def __post_init__(self) -> None:
        """Refuse bounds that are no numbers, and an empty box."""
        for name in ("lower", "upper"):
            for leaf in jax.tree.leaves(getattr(self, name), is_leaf=lambda leaf: leaf is None) or [None]:
                _check_number(f"Box({name})", leaf, "numbers or arrays; -jnp.inf and jnp.inf where there is no bound")
        for low, high in zip(jax.tree.leaves(self.lower), jax.tree.leaves(self.upper), strict=False):
            shapes = np.shape(low), np.shape(high)
            try:
                np.broadcast_shapes(*shapes)
            except ValueError:
                raise InputError(
                    f"Box(lower, upper): bounds of shapes {shapes[0]} and {shapes[1]} do not fit."
                ) from None
            if _concrete(low) and _concrete(high) and not np.all(np.asarray(low) <= np.asarray(high)):
                raise InputError(
                    f"Box(lower={self.lower}, upper={self.upper}) is empty: every lower bound must be <= the upper "
                    "bound, and neither may be NaN."
                )

    def project(self, tree: PyTree) -> PyTree:
        """Clip every entry to its bounds."""
        return jax.tree.map(jnp.clip, tree, *self.bounds(tree))

    def bounds(self, tree: PyTree) -> Bounds:
        """Its own bounds."""
        return _box(self.lower, self.upper, tree)

    def faces(self, tree: PyTree) -> Faces:
        """lower - tree <= 0 and tree - upper <= 0; a bound at infinity is a row that is constantly -1."""

        def row(bound: Array, distance: Array) -> Array:
            return jnp.where(jnp.isfinite(bound), distance, -1.0)

        low, high = self.bounds(tree)
        below = jax.tree.map(lambda b, leaf: row(b, b - leaf), low, tree)
        above = jax.tree.map(lambda b, leaf: row(b, leaf - b), high, tree)
        return Faces({"lower": below, "upper": above}, None)

    def in_units(self, lengths: PyTree) -> AbstractSet:
        """The bounds divided by the lengths."""
        return Box(*(jax.tree.map(jnp.divide, bound, lengths) for bound in self.bounds(lengths)))


class NonNegative(_Measured):
    """Entries >= 0.

        X = {x : x_i >= 0},    Proj_X(x) = max(x, 0)

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> hx.NonNegative().project(jnp.array([-1.0, 2.0]))
        Array([0., 2.], dtype=float32)

    References:
        Parikh, Boyd: Proximal algorithms, Foundations and Trends in Optimization 1, 2014.
    """

    entrywise: ClassVar[bool] = True

    def project(self, tree: PyTree) -> PyTree:
        """Replace negative entries by zero."""
        return jax.tree.map(jax.nn.relu, tree)

    def bounds(self, tree: PyTree) -> Bounds:
        """Zero and infinity."""
        return _box(0.0, jnp.inf, tree)

    def faces(self, tree: PyTree) -> Faces:
        """-tree <= 0."""
        return Faces(jax.tree.map(jnp.negative, tree), None)


class Ball(_Measured):
    """Euclidean ball around zero on the joint vector of the subtree: ||tree|| <= radius.

        X = {x : ||x||_2 <= radius},    Proj_X(x) = x min(1, radius / ||x||_2)

    Args:
        radius: a number > 0.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> hx.Ball(5.0).project(jnp.array([6.0, 8.0]))
        Array([3., 4.], dtype=float32)

    References:
        Parikh, Boyd: Proximal algorithms, Foundations and Trends in Optimization 1, 2014.
    """

    radius: PyTree

    def __post_init__(self) -> None:
        """Refuse a ball that is empty or a single point."""
        cure = "the radius must be one number > 0. What is fixed at zero is no variable."
        _check_positive("Ball(radius)", self.radius, f"Ball(radius={self.radius}): {cure}")

    def project(self, tree: PyTree) -> PyTree:
        """Scale the joint vector back to the ball where it is outside."""
        radius = _scalar_like(self.radius, tree)
        square = trees.norm_squared(tree)
        outside = square > radius**2  # written out, because derivatives of the norm itself do not exist at zero
        share = jnp.where(outside, radius / jnp.sqrt(jnp.where(outside, square, 1.0)), 1.0)
        return jax.tree.map(lambda leaf: share * leaf, tree)

    def bounds(self, tree: PyTree) -> Bounds:
        """Minus the radius and the radius."""
        return _box(-self.radius, self.radius, tree)

    def faces(self, tree: PyTree) -> Faces:
        """(||tree||^2 - radius^2) / (2 radius) <= 0: smooth, and of slope one on the sphere."""
        radius = _scalar_like(self.radius, tree)
        return Faces((trees.norm_squared(tree) - radius**2) / (2 * trees.or_one(radius)), None)


class Simplex(_Measured):
    """Entries of the joint vector of the subtree are >= 0 and sum to `scale`.

        X = {x : x_i >= 0, sum_i x_i = scale},    Proj_X(x) = [x - t]_+,  t such that the entries sum to scale

    Args:
        scale: a number > 0, what the entries sum to.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> hx.Simplex().project(jnp.array([0.5, 0.5, 2.0]))
        Array([0., 0., 1.], dtype=float32)

    References:
        Duchi, Shalev-Shwartz, Singer, Chandra: Efficient projections onto the l1-ball for learning in high
            dimensions, ICML 2008.
    """

    scale: PyTree = 1.0

    def __post_init__(self) -> None:
        """Refuse an empty simplex."""
        said = f"Simplex(scale={self.scale}) is empty: the scale must be one number > 0."
        _check_positive("Simplex(scale)", self.scale, said)

    def project(self, tree: PyTree) -> PyTree:
        """The nearest point of the simplex (sorting, O(n log n)).

        Written out: optax counts in the default precision, and its derivative refuses trees of another one.
        """
        flat, unravel = jax.flatten_util.ravel_pytree(tree)
        falling = -jnp.sort(-flat)
        places = jnp.arange(1, flat.size + 1, dtype=flat.dtype)
        above = jnp.cumsum(falling) - _scalar_like(self.scale, tree)
        positive = jnp.sum(falling * places > above)
        return unravel(jnp.maximum(flat - above[positive - 1] / places[positive - 1], 0.0))

    def bounds(self, tree: PyTree) -> Bounds:
        """Zero and the scale."""
        return _box(0.0, self.scale, tree)

    def faces(self, tree: PyTree) -> Faces:
        """-tree <= 0 and sum - scale = 0."""
        return Faces(jax.tree.map(jnp.negative, tree), trees.total(tree) - _scalar_like(self.scale, tree))


class _InUnits(AbstractSet):
    """A set of somebody else's making, for trees divided by one length."""

    inner: AbstractSet
    lengths: PyTree

    def project(self, tree: PyTree) -> PyTree:
        """The projection in the set's own units."""
        return self._apart(self.inner.project(self._whole(tree)))

    def faces(self, tree: PyTree) -> Faces:
        """The faces, as lengths."""
        unit = _first(self.lengths)
        return Faces(*(jax.tree.map(lambda row: row / unit, part) for part in self.inner.faces(self._whole(tree))))

    def bounds(self, tree: PyTree) -> Bounds:
        """The bounds in units."""
        return Bounds(*(self._apart(bound) for bound in self.inner.bounds(tree)))

    def _whole(self, tree: PyTree) -> PyTree:
        return jax.tree.map(jnp.multiply, tree, self.lengths)

    def _apart(self, tree: PyTree) -> PyTree:
        return jax.tree.map(jnp.divide, tree, self.lengths)


def is_set(node: object) -> bool:
    """Whether the node is a set (the leaves of a tree prefix of sets)."""
    return isinstance(node, AbstractSet)


def project(sets: PyTree, tree: PyTree) -> PyTree:
    """Project a tree on a tree prefix of sets.

        Proj(u) = argmin over v in the product of the sets of  ||v - u||_2,     part by part

    Args:
        sets: a set, or a tree of sets whose leaves stand for parts of `tree`.
        tree: what is projected.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> sets = {"a": hx.NonNegative(), "b": hx.Free()}
        >>> hx.extend.project(sets, {"a": jnp.array([-1.0]), "b": jnp.array([-1.0])})
        {'a': Array([0.], dtype=float32), 'b': Array([-1.], dtype=float32)}

    References:
        Parikh, Boyd: Proximal algorithms, Foundations and Trends in Optimization 1, 2014.
    """
    return jax.tree.map(lambda one, part: one.project(part), sets, tree, is_leaf=is_set)


def _each(function: Callable[[AbstractSet, PyTree], Any], sets: PyTree, tree: PyTree) -> list[Any]:
    """What a function gives for every set of a tree prefix and the subtree that it acts on, in the prefix's order."""
    found: list[Any] = []
    jax.tree.map(lambda one, part: found.append(function(one, part)), sets, tree, is_leaf=is_set)
    return found


def faces(sets: PyTree, tree: PyTree) -> Faces:
    """The faces of a tree prefix of sets: one entry per set, in the order of the prefix's leaves."""
    parts = _each(lambda one, part: one.faces(part), sets, tree)
    return Faces([part.inequalities for part in parts], [part.equalities for part in parts])


def bounds(sets: PyTree, tree: PyTree) -> Bounds:
    """The smallest box around a tree prefix of sets, its bounds as vectors in the order of the raveled tree."""
    boxes = _each(lambda one, part: one.bounds(part), sets, tree)
    lower, upper = ([jnp.ravel(leaf) for box in boxes for leaf in jax.tree.leaves(box[i])] for i in (0, 1))
    return Bounds(jnp.concatenate(lower), jnp.concatenate(upper))


def in_units(sets: PyTree, lengths: PyTree) -> PyTree:
    """A tree prefix of sets for a tree whose entries are divided by `lengths`."""
    return jax.tree.map(lambda one, part: one.in_units(part), sets, lengths, is_leaf=is_set)


def all_entrywise(sets: PyTree) -> bool:
    """Whether all of them are bounds on single entries: their projection is clipping to `bounds`."""
    return all(one.entrywise for one in jax.tree.leaves(sets, is_leaf=is_set))


def shared_units(sets: PyTree, tree: PyTree) -> np.ndarray:
    """A number for every entry of the raveled tree; entries with the same one must be measured in the same unit."""
    another = _each(lambda one, part: one.entrywise | (np.arange(trees.size(part)) == 0), sets, tree)  # than before
    return np.cumsum(np.concatenate([np.zeros(0, bool), *another])) - 1


def _check_number(name: str, value: object, needs: str) -> None:
    """Refuse what is neither a number nor an array of numbers (arrays of a compiled program are not looked at)."""
    if isinstance(value, bool) or not (_concrete(value) or isinstance(value, jax.core.Tracer)):
        raise InputError(f"{name}: needs {needs}, got {value!r}.")
    if _concrete(value) and not jnp.issubdtype(np.asarray(value).dtype, jnp.number):
        raise InputError(f"{name}: needs {needs}, got an array of {np.asarray(value).dtype}.")


def _check_positive(name: str, value: PyTree, said: str) -> None:
    _check_number(name, value, "a number > 0")
    if _concrete(value) and not (np.ndim(value) == 0 and np.asarray(value) > 0):
        raise InputError(said)


def _concrete(value: object) -> bool:
    kinds = int | float | np.ndarray | np.generic | jax.Array
    return isinstance(value, kinds) and not isinstance(value, jax.core.Tracer)


def _box(lower: PyTree, upper: PyTree, tree: PyTree) -> Bounds:
    """Bounds in the shape and dtype of the entries they bound, so that a bound never promotes a variable."""

    def like(bound: PyTree) -> PyTree:
        if jax.tree_util.all_leaves([bound]):  # one bound for every leaf
            bound = jax.tree.map(lambda leaf: bound, tree)
        return jax.tree.map(lambda b, leaf: jnp.broadcast_to(jnp.asarray(b, leaf.dtype), leaf.shape), bound, tree)

    return Bounds(like(lower), like(upper))


def _first(tree: PyTree) -> Array:
    """The first entry of a tree of equal numbers."""
    return jnp.ravel(jax.tree.leaves(tree)[0])[0]


def _scalar_like(value: PyTree, tree: PyTree) -> Array:
    return jnp.asarray(value, jax.tree.leaves(tree)[0].dtype)
