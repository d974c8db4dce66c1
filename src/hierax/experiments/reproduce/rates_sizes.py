"""How much is measured: the full run, the quick one, and another number of seeds."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Numbers of seeds, steps and settings; the defaults are the full run."""

    quick: bool = False
    inner_steps: int = 30_000
    inner_toy_seeds: int = 800
    qps: tuple[tuple[int, int, int], ...] = ((20, 5, 64), (50, 20, 48), (200, 50, 12))  # n, p, seeds
    variant_seeds: int = 16
    synthetic: bool = True
    toy_seeds: int = 200
    synthetic_seeds: int = 32
    floor_steps: int = 3000
    synthetic_steps: int = 1500
    batches: tuple[int, ...] = (1, 4, 16, 64)  # values of r and q
    inner_lengths: tuple[int, ...] = (2, 10, 30, 100)  # values of s
    sigmas: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0)
    repeats: int = 4  # batches of seeds behind the standard error of a ratio
    run_steps: int = 2500
    long_seeds: int = 100
    checkpoints: tuple[int, ...] = (1000, 3000, 10_000, 30_000)
    weights: tuple[float, ...] = (2.0, 5.0, 20.0)  # values of c1 in the comparison of penalties


def choose(quick: bool, seeds: int | None) -> Sizes:
    """The full or the quick sizes; `seeds` replaces every number of seeds."""
    sizes = Sizes()
    if quick:
        sizes = Sizes(
            quick=True,
            inner_steps=10_000,
            inner_toy_seeds=200,
            qps=((20, 5, 48),),
            synthetic=False,
            toy_seeds=100,
            batches=(1, 16),
            variant_seeds=8,
            sigmas=(0.1, 1.0),
            repeats=2,
            long_seeds=50,
            checkpoints=(1000, 3000, 10_000),
            weights=(5.0,),
        )
    if seeds is None:
        return sizes
    return dataclasses.replace(
        sizes,
        inner_toy_seeds=seeds,
        qps=tuple((n, p, seeds) for n, p, _ in sizes.qps),
        toy_seeds=seeds,
        synthetic_seeds=seeds,
        long_seeds=seeds,
    )
