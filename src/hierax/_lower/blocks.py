r"""Second derivatives of a lower level that falls apart into blocks: each has a few entries, with slacks of their own.

A block has entries u with a Hessian H, slacks s with curvatures c, and rows r_i = ... + J_i u + d_i s_i, one per slack
(or neither slacks nor rows). On active rows A the slacks leave

    (H + J_A' W J_A) du = p_u - J_A' W (d p_s / c - q),     W = c / d^2,     dmu_A = W (J_A du + d p_s / c - q),

a small system per block whatever the number of rows: that of a weighted least squares problem. Blocks of equal shape
that stand one after another in y and among the rows are a `Stack`, and are worked on together.
"""

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hierax._base.imports import lazy
from hierax._lower.linear import Matrices, Pair, Solve

if TYPE_CHECKING:
    from scipy.sparse import csr_array

sparse = lazy("scipy.sparse")


class Stack(NamedTuple):
    """Blocks of equal shape: the leading axis counts them.

    Attributes:
        entries: where their entries stand in y, block after block.
        slacks: where their slacks stand in y.
        rows: where their rows stand.
        hessian: H, (blocks, d, d).
        curvatures: c, (blocks, n).
        slopes: J, (blocks, n, d).
        own: d, (blocks, n).
    """

    entries: slice
    slacks: slice
    rows: slice
    hessian: np.ndarray
    curvatures: np.ndarray
    slopes: np.ndarray
    own: np.ndarray

    def scaled(self, of_y: np.ndarray, of_rows: np.ndarray, of_value: float) -> "Stack":
        """The same with every entry of y, every row and G divided by its unit."""
        blocks, n, d = self.slopes.shape
        entries = of_y[self.entries].reshape(blocks, d)
        slacks, rows = of_y[self.slacks].reshape(blocks, n), of_rows[self.rows].reshape(blocks, n)
        return self._replace(
            hessian=self.hessian * entries[:, None] * entries[:, :, None] / of_value,
            curvatures=self.curvatures * slacks**2 / of_value,
            slopes=self.slopes * entries[:, None] / rows[:, :, None],
            own=self.own * slacks / rows,
        )

    def of_entries(self, vectors: np.ndarray) -> np.ndarray:
        """The part of vectors like y, several in columns, that belongs to the entries: (blocks, d, columns)."""
        return vectors[self.entries].reshape(*self.hessian.shape[:2], *(vectors.shape[1:] or (1,)))

    def of_slacks(self, vectors: np.ndarray) -> np.ndarray:
        """That of the slacks: (blocks, n, columns)."""
        return vectors[self.slacks].reshape(*self.own.shape, *(vectors.shape[1:] or (1,)))

    def of_rows(self, vectors: np.ndarray) -> np.ndarray:
        """The part of vectors like the rows: (blocks, n, columns)."""
        return vectors[self.rows].reshape(*self.own.shape, *(vectors.shape[1:] or (1,)))


class Blocks(Matrices):
    """The matrices of all blocks; as a whole they are formed only where somebody asks for them."""

    def __init__(self, stacks: list[Stack], entries: int, rows: int) -> None:
        self.stacks, self._entries, self._rows = stacks, entries, rows

    def scaled(self, of_y: np.ndarray, of_rows: np.ndarray, of_value: float) -> "Blocks":
        """The same with every entry of y, every row and G divided by its unit."""
        if of_value == 1 and np.all(of_y == 1) and np.all(of_rows == 1):
            return self
        return Blocks([stack.scaled(of_y, of_rows, of_value) for stack in self.stacks], self._entries, self._rows)

    @functools.cached_property
    def jacobian(self) -> "csr_array":  # type: ignore[override]  # formed when it is asked for
        """That of the rows."""
        parts = [(stack.rows, stack.entries, stack.slopes) for stack in self.stacks]
        parts += [(stack.rows, stack.slacks, stack.own.ravel()) for stack in self.stacks]
        return _sparse(parts, (self._rows, self._entries))

    @functools.cached_property
    def hessian(self) -> "csr_array":  # type: ignore[override]  # formed when it is asked for
        """That of L."""
        parts = [(stack.entries, stack.entries, stack.hessian) for stack in self.stacks]
        parts += [(stack.slacks, stack.slacks, stack.curvatures.ravel()) for stack in self.stacks]
        return _sparse(parts, (self._entries, self._entries))

    @property
    def single_entries(self) -> Pair:
        """None is taken out: blocks are solved as a whole."""
        return np.full(self._rows, -1), np.zeros(self._rows)

    def along(self, dy: np.ndarray) -> np.ndarray:
        """J dy."""
        found = np.zeros((self._rows, *dy.shape[1:]))
        for stack in self.stacks:
            stack.of_rows(found)[:] = stack.slopes @ stack.of_entries(dy) + stack.own[:, :, None] * stack.of_slacks(dy)
        return found

    def back(self, mu: np.ndarray) -> np.ndarray:
        """J' mu."""
        found = np.zeros((self._entries, *mu.shape[1:]))
        for stack in self.stacks:
            stack.of_entries(found)[:] = stack.slopes.mT @ stack.of_rows(mu)
            stack.of_slacks(found)[:] = stack.own[:, :, None] * stack.of_rows(mu)
        return found

    def curvatures(self) -> np.ndarray:
        """The sizes of the second derivatives of L in every entry of y."""
        found = np.zeros(self._entries)
        for stack in self.stacks:
            found[stack.entries] = np.abs(np.diagonal(stack.hessian, axis1=1, axis2=2)).ravel()
            found[stack.slacks] = np.abs(stack.curvatures).ravel()
        return found

    def sizes(self) -> tuple[float, np.ndarray]:
        """The typical size of second derivatives of L, and the norms of the rows' gradients."""
        squares = sum(float(np.sum(stack.hessian**2) + np.sum(stack.curvatures**2)) for stack in self.stacks)
        norms = np.zeros(self._rows)
        for stack in self.stacks:
            norms[stack.rows] = np.sqrt(np.sum(stack.slopes**2, axis=2) + stack.own**2).ravel()
        return float(np.sqrt(squares / self._entries)), norms

    @functools.cached_property
    def finite(self) -> bool:
        """Whether all entries are finite."""
        return all(bool(np.isfinite(part).all()) for stack in self.stacks for part in stack[3:])

    def same(self, other: object) -> bool:
        """Whether they may be taken for those of another x too: never, as systems are made quickly."""
        del other
        return False

    def convex(self, slack: float) -> bool:
        """Whether no curvature is below minus this share of the largest diagonal entry (or of one)."""
        least = self.least_curvature(np.ones(self._entries, bool))
        return least >= -slack * max(1.0, float(np.max(self.curvatures())))

    def least_curvature(self, free: np.ndarray) -> float:
        """The smallest eigenvalue of the Hessian on some entries of y, as far as all entries of blocks say."""
        found = [np.inf]
        for stack in self.stacks:
            kept = free[stack.slacks]
            found += [float(np.linalg.eigvalsh(stack.hessian).min()), *stack.curvatures.ravel()[kept].tolist()]
        return min(found)

    def factorised(self, free: np.ndarray, own: np.ndarray) -> Solve:
        """The KKT system of all entries of y and some rows, solved block by block."""
        del free
        active = np.zeros(self._rows)
        active[own] = 1.0
        parts = []
        for stack in self.stacks:
            weights = stack.of_rows(active) * (stack.curvatures / stack.own**2)[:, :, None]
            matrix = stack.hessian.copy() if weights.size else stack.hessian
            for block, slopes, weight in zip(matrix, stack.slopes, weights, strict=True) if weights.size else ():
                used = np.flatnonzero(weight)
                block += (slopes[used] * weight[used]).T @ slopes[used]
            parts.append((stack, weights, matrix))

        def solve(right: np.ndarray) -> np.ndarray:
            of_y, of_rows = right[: self._entries], np.zeros((self._rows, *right.shape[1:]))
            found = np.zeros(right.shape)
            of_rows[own] = right[self._entries :]
            dy, dmu = found[: self._entries], np.zeros(of_rows.shape)
            for stack, weights, matrix in parts:
                curvatures, slope = stack.curvatures[:, :, None], stack.own[:, :, None]
                slacks = stack.of_slacks(of_y) / curvatures
                missing = slope * slacks - stack.of_rows(of_rows)
                moved = np.linalg.solve(matrix, stack.of_entries(of_y) - stack.slopes.mT @ (weights * missing))
                multipliers = weights * (stack.slopes @ moved + missing)
                stack.of_entries(dy)[:], stack.of_rows(dmu)[:] = moved, multipliers
                stack.of_slacks(dy)[:] = slacks - slope * multipliers / curvatures
            found[self._entries :] = dmu[own]
            return found

        return solve


def _sparse(parts: list[tuple[slice, slice, np.ndarray]], shape: tuple[int, int]) -> "csr_array":
    """A sparse matrix from stacks of dense blocks, or of single numbers, each along the diagonal of its place."""
    rows, columns, numbers = [np.zeros(0, int)], [np.zeros(0, int)], [np.zeros(0)]
    for down, across, stack in parts:
        blocks = stack if stack.ndim == 3 else stack[:, None, None]
        block, i, j = np.nonzero(blocks)
        rows.append(down.start + block * blocks.shape[1] + i)
        columns.append(across.start + block * blocks.shape[2] + j)
        numbers.append(blocks[block, i, j])
    places = np.concatenate(rows), np.concatenate(columns)
    return sparse.csr_array((np.concatenate(numbers), places), shape=shape)
