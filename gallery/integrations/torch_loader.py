"""
Batches of a PyTorch DataLoader
===============================

Batches from a PyTorch DataLoader, through `hx.Stream`.

::

    python gallery/integrations/torch_loader.py        (needs torch, which hierax does not install)

A Stream takes any iterable of batches. A DataLoader yields torch tensors, which NumPy can read; a loader that is
iterated again restarts, as an epoch does. `drop_last=True` keeps all batches equally long.
"""

from collections.abc import Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import hierax as hx

FEATURES, BATCH = 5, 16
Loader = Iterable[Sequence[np.typing.ArrayLike]]  # a DataLoader yields lists of tensors, which NumPy can read
METHOD = hx.SALVF(c1=5.0, steps=hx.Steps(x=0.1))


def make_data(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A linear relation with noise."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    return inputs, (inputs @ np.arange(FEATURES) + 0.5 * rng.normal(size=rows)).astype(np.float32)


def square(y: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Half the mean square of the errors."""
    inputs, targets = batch
    return 0.5 * jnp.mean((inputs @ y - targets) ** 2)


class Batches:
    """The loader's batches as NumPy arrays; iterating again starts the loader again."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        for batch in self.loader:
            yield tuple(np.asarray(part) for part in batch)


def main(training: Loader, validation: Loader, steps: int = 1000) -> hx.Solution:
    """Choose the norm bound of a linear model; both levels see the loaders' batches only."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: square(y, zeta),
        lower=lambda x, y, xi: square(y, xi),
        constraints=lambda x, y: jnp.sum(y**2) - x**2,
        x_set=hx.Box(1.0, 10.0),
        zeta=hx.Stream(Batches(validation)),
        xi=hx.Stream(Batches(training)),
    )
    sol = hx.solve(problem, np.float32(2.0), np.zeros(FEATURES, np.float32), METHOD, max_steps=steps)
    print(f"bound {float(sol.x):.2f}, coefficients {np.round(np.asarray(sol.y), 2)} (true: 0, 1, 2, 3, 4)")
    return sol


if __name__ == "__main__":
    from torch import from_numpy
    from torch.utils.data import DataLoader, TensorDataset

    loaders = [
        DataLoader(
            TensorDataset(*map(from_numpy, make_data(512, seed))), batch_size=BATCH, shuffle=True, drop_last=True
        )
        for seed in (0, 1)
    ]
    main(*loaders)
