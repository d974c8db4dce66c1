"""Where the arrays of a run lie: spread over the devices of a mesh (`solve(..., mesh=...)`).

Only the layout is decided here; what is computed stays the same up to the order of sums, because XLA adds the exchange
between devices. Samples (with many starts: the starts) are spread over one axis of the mesh, y over the axis "model"
where there is one, everything else lies on every device. What an axis does not divide lies on every device too.
"""

import dataclasses
from typing import TypeGuard

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from hierax._base.errors import InputError, warn
from hierax._base.trees import is_key, on_device

DATA, MODEL = "data", "model"
EVERYWHERE = PartitionSpec()


@dataclasses.dataclass(frozen=True)
class Placement:
    """The layout of one call on a mesh.

    Attributes:
        mesh: the devices.
        data: the axis of samples or starts; None: the mesh has only the axis "model".
        starts: how many starts there are, spread over that axis; None: a single run, whose samples are spread.
        spread: shapes of arrays that are spread over the axis "model", with their layout: those of y, and whatever
            has their shape (the lower solution, the state of an optimiser).
    """

    mesh: Mesh
    data: str | None
    starts: int | None
    spread: tuple[tuple[tuple[int, ...], PartitionSpec], ...]

    @property
    def parts(self) -> int:
        """Over how many devices samples or starts are spread."""
        return 1 if self.data is None else int(self.mesh.shape[self.data])

    @property
    def processes_have_rows_of_their_own(self) -> bool:
        """Whether no sample lies in several processes, and every process has as many as the others."""
        if self.data is None:
            return False
        owners = np.vectorize(lambda device: device.process_index)(self.mesh.devices)
        owners = np.moveaxis(owners, self.mesh.axis_names.index(self.data), 0).reshape(self.parts, -1)
        _, counts = np.unique(owners[:, 0], return_counts=True)
        return bool((owners == owners[:, :1]).all() and (counts == counts[0]).all())

    def of(self, shape: tuple[int, ...]) -> NamedSharding:
        """The layout of an array of variables, settings or the state."""
        for known, spec in self.spread:
            if known == shape:
                return NamedSharding(self.mesh, spec)
        many = self.starts is not None and shape[:1] == (self.starts,) and self.starts % self.parts == 0
        return NamedSharding(self.mesh, PartitionSpec(self.data) if many else EVERYWHERE)

    def rows(self, count: int, axis: int = 0) -> NamedSharding:
        """The layout of an array with `count` samples along an axis."""
        spread = self.starts is None and count % self.parts == 0
        return NamedSharding(self.mesh, PartitionSpec(*[None] * axis, self.data) if spread else EVERYWHERE)

    def holds(self, leaf: Array | np.ndarray) -> TypeGuard[Array]:
        """Whether an array lies on the mesh."""
        sharding = getattr(leaf, "sharding", None)
        return isinstance(sharding, NamedSharding) and sharding.mesh == self.mesh

    def put(self, leaf: Array | np.ndarray) -> Array:
        """An array of this process, which all processes have, on the mesh; one that lies there stays where it is."""
        return leaf if self.holds(leaf) else self._moved(leaf, self.of(leaf.shape))

    def put_rows(self, tree: PyTree, axis: int = 0) -> PyTree:
        """Samples that every process has, spread over the mesh."""
        return jax.tree.map(lambda leaf: self._moved(leaf, self.rows(leaf.shape[axis], axis)), tree)

    def put_own_rows(self, tree: PyTree, axis: int = 0) -> PyTree:
        """Samples of which every process has its own, as many as the others: those of all, in the mesh's order."""

        def joined(leaf: Array | np.ndarray) -> Array:
            spec = PartitionSpec(*[None] * axis, self.data)
            own = np.asarray(leaf, jax.dtypes.canonicalize_dtype(leaf.dtype))
            return jax.make_array_from_process_local_data(NamedSharding(self.mesh, spec), own)

        return jax.tree.map(joined, tree)

    def _moved(self, leaf: Array | np.ndarray, sharding: NamedSharding) -> Array:
        if not self.mesh.is_multi_process:
            return jax.device_put(leaf, sharding)
        if is_key(leaf):
            numbers = np.asarray(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(self._moved(numbers, self.of(())), impl=jax.random.key_impl(leaf))
        whole = read(leaf)
        return jax.make_array_from_callback(whole.shape, sharding, lambda part: whole[part])

    def constrained(self, leaf: Array) -> Array:
        """A result of a compiled program in the layout of arrays of its shape."""
        return jax.lax.with_sharding_constraint(leaf, self.of(leaf.shape))

    def batch(self, tree: PyTree) -> PyTree:
        """A batch inside of a compiled program, its samples spread."""
        if self.starts is not None or self.data is None:
            return tree

        def spread(leaf: Array) -> Array:
            fits = leaf.ndim > 0 and leaf.shape[0] % self.parts == 0
            return jax.lax.with_sharding_constraint(leaf, self.rows(leaf.shape[0])) if fits else leaf

        return jax.tree.map(spread, tree)


def placement_of(mesh: object, y: PyTree, starts: int | None) -> Placement:
    """The layout of a call with lower variables like y (with an axis of starts, where there are many)."""
    if not isinstance(mesh, Mesh):
        raise InputError(
            f"mesh: needs a jax.sharding.Mesh, got {type(mesh).__name__}. All devices: "
            'jax.make_mesh((jax.device_count(),), ("data",)).'
        )
    names = tuple(str(name) for name in mesh.axis_names)
    others = [name for name in names if name != MODEL]
    data = DATA if DATA in others else others[0] if others else None
    unknown = [name for name in others if name != data]
    if unknown:
        raise InputError(
            f"mesh: has the axes {names}; hierax spreads samples over {data!r} and y over {MODEL!r}, and has no use "
            f"for {', '.join(map(repr, unknown))}. Leave them out."
        )
    by_compiler = Mesh(mesh.devices, names, axis_types=(AxisType.Auto,) * len(names))
    placement = Placement(by_compiler, data, starts, ())
    return dataclasses.replace(placement, spread=_spread(placement, y)) if MODEL in names else placement


def _spread(placement: Placement, y: PyTree) -> tuple[tuple[tuple[int, ...], PartitionSpec], ...]:
    """How the leaves of y are spread over the axis "model": along the first of their axes that it divides."""
    count = int(placement.mesh.shape[MODEL])
    many = placement.starts is not None
    found = {}
    for leaf in jax.tree.leaves(y):
        dividing = [i for i in range(many, leaf.ndim) if leaf.shape[i] and leaf.shape[i] % count == 0]
        if dividing and count > 1:
            first = [placement.data if many and leaf.shape[0] % placement.parts == 0 else None] * many
            found[leaf.shape] = PartitionSpec(*first, *[None] * (dividing[0] - many), MODEL)
    if not found and count > 1:
        shapes = [leaf.shape[many:] for leaf in jax.tree.leaves(y)]
        warn(f"mesh: the {count} devices along {MODEL!r} divide no axis of y (shapes {shapes}): each holds all of y.")
    return tuple(found.items())


def at_home(tree: PyTree) -> PyTree:
    """A tree with the arrays that lie on a mesh as ordinary ones of this process; they are whole in every process."""

    def home(leaf: Array) -> Array:
        if not isinstance(leaf, jax.Array) or not isinstance(leaf.sharding, NamedSharding):
            return leaf
        if is_key(leaf):
            return jax.random.wrap_key_data(home(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        return on_device(read(leaf))

    return jax.tree.map(home, tree)


def read(tree: PyTree) -> PyTree:
    """Arrays as NumPy's, wherever they lie; where several processes run together, all of them have to ask."""

    def numbers(leaf: Array) -> np.ndarray:
        if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            assert isinstance(leaf.sharding, NamedSharding)
            everywhere = NamedSharding(leaf.sharding.mesh, EVERYWHERE)
            leaf = jax.jit(lambda array: array, out_shardings=everywhere)(leaf)
        return np.asarray(leaf)

    return jax.tree.map(numbers, tree)
