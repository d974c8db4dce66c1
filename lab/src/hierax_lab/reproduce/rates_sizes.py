"""How much `hierax reproduce rates` measures: the full run, the quick one, and another number of seeds.

The defaults of every class are the full run; `choose` gives the sizes of a call.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class InnerSizes:
    """The inner loop alone."""

    steps: int = 30_000
    toy_seeds: int = 800
    qps: tuple[tuple[int, int, int], ...] = ((20, 5, 64), (50, 20, 48), (200, 50, 12))  # n, p, seeds
    variant_seeds: int = 16


@dataclasses.dataclass(frozen=True)
class FloorSizes:
    """The floors of S with a constant step."""

    steps: int = 3000
    batches: tuple[int, ...] = (1, 4, 16, 64)  # values of r and q
    inner_lengths: tuple[int, ...] = (2, 10, 30, 100)  # values of s


@dataclasses.dataclass(frozen=True)
class ComparisonSizes:
    """SALVF-VR against SALVF, long runs, and the two penalties."""

    sigmas: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0)
    repeats: int = 4  # batches of seeds behind the standard error of a ratio
    long_seeds: int = 100
    checkpoints: tuple[int, ...] = (1000, 3000, 10_000, 30_000)
    weights: tuple[float, ...] = (2.0, 5.0, 20.0)  # values of c1 in the comparison of penalties


@dataclasses.dataclass(frozen=True)
class ExponentSizes:
    """S against K of Algorithms 2 and 3 as printed."""

    seeds: int = 32
    lengths: tuple[int, ...] = (500, 1000, 2000, 4000, 8000, 16_000)  # values of K, of SALVF
    vr_lengths: tuple[int, ...] = (1000, 2000, 4000, 8000, 16_000, 32_000)
    weights: tuple[int, ...] = (2, 3, 4, 5, 6)  # values of 1/eps = c1 in Theorem 3.2's regime


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Numbers of seeds, steps and settings; without `synthetic` only the toy and the quadratic problems are run."""

    quick: bool = False
    synthetic: bool = True
    toy_seeds: int = 200
    synthetic_seeds: int = 32
    run_steps: int = 2500  # of a run on the toy
    synthetic_steps: int = 1500
    inner: InnerSizes = InnerSizes()
    floors: FloorSizes = FloorSizes()
    comparison: ComparisonSizes = ComparisonSizes()
    exponents: ExponentSizes = ExponentSizes()


QUICK = Sizes(
    quick=True,
    synthetic=False,
    toy_seeds=100,
    inner=InnerSizes(steps=10_000, toy_seeds=200, qps=((20, 5, 48),), variant_seeds=8),
    floors=FloorSizes(batches=(1, 16)),
    comparison=ComparisonSizes(
        sigmas=(0.1, 1.0), repeats=2, long_seeds=50, checkpoints=(1000, 3000, 10_000), weights=(5.0,)
    ),
    exponents=ExponentSizes(seeds=8, lengths=(500, 1000), vr_lengths=(500, 1000), weights=(2, 3)),
)


def choose(quick: bool, seeds: int | None) -> Sizes:
    """The full or the quick sizes; `seeds` replaces every number of seeds."""
    sizes = QUICK if quick else Sizes()
    if seeds is None:
        return sizes
    qps = tuple((n, p, seeds) for n, p, _ in sizes.inner.qps)
    return dataclasses.replace(
        sizes,
        toy_seeds=seeds,
        synthetic_seeds=seeds,
        inner=dataclasses.replace(sizes.inner, toy_seeds=seeds, qps=qps),
        comparison=dataclasses.replace(sizes.comparison, long_seeds=seeds),
        exponents=dataclasses.replace(sizes.exponents, seeds=seeds),
    )
