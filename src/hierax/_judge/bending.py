"""In which direction a function on the host bends down most, from its gradients alone: a few steps of Lanczos.

`hierax._math.spectrum` does the same inside of programs, by products with second derivatives. Those of F(x, y*(x)) are
differences of gradients here, each of which takes a solve of the lower level.
"""

from collections.abc import Callable

import numpy as np

PRODUCTS = 10  # differences of gradients
STEP = 0.01  # lengths between x and either end of one
SPENT = 1e-8  # share of a product that is left after the directions so far, below which there are no new ones


def bends_down(
    gradient: Callable[[np.ndarray], np.ndarray | None],
    x: np.ndarray,
    tangent: Callable[[np.ndarray], np.ndarray],
    seed: int,
    stop: Callable[[], bool],
) -> np.ndarray | None:
    """The direction of least curvature, as far as some products tell, among those that `tangent` projects on.

    None where a gradient is not to be had, `stop` says so, or there is no direction.
    """
    vector = tangent(np.random.default_rng(seed).normal(size=x.size))
    basis: list[np.ndarray] = []
    products: list[np.ndarray] = []
    size = 1.0  # of the last product, or of the first direction
    for _ in range(PRODUCTS):
        if not np.linalg.norm(vector) > SPENT * size:
            break
        vector = vector / np.linalg.norm(vector)
        product = None if stop() else _product(gradient, x, vector)
        if product is None:
            return None
        basis.append(vector)
        products.append(tangent(product))
        vector, size = products[-1].copy(), float(np.linalg.norm(products[-1]))
        for _ in range(2):  # rounding of the first time
            vector -= sum((vector @ one) * one for one in basis)
    if not basis:
        return None
    known, told = np.array(basis), np.array(products)
    small = known @ told.T
    return np.linalg.eigh(0.5 * (small + small.T))[1][:, 0] @ known


def _product(
    gradient: Callable[[np.ndarray], np.ndarray | None], x: np.ndarray, along: np.ndarray
) -> np.ndarray | None:
    """The second derivative times a direction."""
    step = STEP / np.max(np.abs(along))
    up, down = gradient(x + step * along), gradient(x - step * along)
    if up is None or down is None or not np.isfinite(up - down).all():
        return None
    return (up - down) / (2 * step)
