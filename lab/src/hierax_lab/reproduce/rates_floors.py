r"""The floors of S with a constant step, one source of noise at a time.

The theorem bounds the mean of S by O(1/(alpha K) + 1/r + c1^2/q + c1^2/s). Each term is switched on alone and its
number is varied; S is averaged over the last tenth of the steps.
"""

import numpy as np

from hierax import SALM, SALVF
from hierax_lab.reproduce.rates_fit import Slope, Values, fit_independent
from hierax_lab.reproduce.rates_outer import (
    C1,
    TAIL_STRIDE,
    Case,
    Noise,
    exact_inner,
    follow,
    make_method,
    squared_stationarity,
    synthetic_case,
    tail,
    tail_mean,
    toy_case,
)
from hierax_lab.reproduce.rates_sizes import Sizes

SIGMA = 0.5  # standard deviation of the one source of noise that is switched on
STEP = 0.5  # a, the step in units of 1/L_Psi
C1_BATCH = 4  # q in the sweep over c1


class Floors:
    """Sweeps on one case. The penalty is the paper's on the toy and the multiplier on the synthetic problem."""

    def __init__(self, case: Case, seeds: int, steps: int) -> None:
        self.case, self.seeds, self.steps = case, seeds, steps
        self.ratio = 40.0 if case.name == "toy" else 10.0  # c2 / c1
        # Newton's method at every step would be the larger part of the cost; noise-free SALM follows closely enough.
        self.quiet_inner = exact_inner(case) if case.name == "toy" else SALM(steps=30, batch=1, dual_free=True)

    def method(self, c1: float = C1, a: float = STEP, inner: SALM | None = None, r: int = 1, q: int = 1) -> SALVF:
        """The method of this case with a constant step."""
        return make_method(
            self.case,
            c1,
            self.ratio * c1,
            a,
            inner or self.quiet_inner,
            penalty="quadratic" if self.case.name == "toy" else "multiplier",
            r=r,
            q=q,
        )

    def floor(self, method: SALVF, noise: Noise) -> Values:
        """S of every seed, averaged over the tail."""
        points = follow(self.case, method, noise, self.steps, self.seeds)
        return squared_stationarity(self.case, method, tail(points, TAIL_STRIDE)).mean(axis=1)

    def sweep(self, values: tuple[float, ...], noise: Noise, name: str) -> Slope:
        """Floors over r, q, s, c1 or a, and the slope on log-log axes."""
        floors = [self.floor(self._method_at(name, value), noise) for value in values]
        return fit_independent(list(values), floors)

    def _method_at(self, name: str, value: float) -> SALVF:
        """The method with one setting of a sweep."""
        match name:
            case "s":
                return self.method(inner=SALM(steps=int(value), batch=1))
            case "c1":
                return self.method(c1=value, q=C1_BATCH)
            case "a":
                return self.method(a=value)
            case "r":
                return self.method(r=int(value))
            case _:
                return self.method(q=int(value))

    def measure(self, sizes: Sizes) -> dict:
        """All sweeps of this case."""
        is_toy = self.case.name == "toy"
        # A program of the synthetic problem costs 10 s to compile.
        batches = sizes.floors.batches if is_toy else sizes.floors.batches[:3]
        found = {
            "r": self.sweep(batches, Noise(zeta=SIGMA), "r"),
            "q": self.sweep(batches, Noise(xi=SIGMA), "q"),
            "a": self.sweep((0.25, 0.5, 1.0), Noise(zeta=SIGMA), "a"),
        }
        if not sizes.quick:
            lengths = sizes.floors.inner_lengths if is_toy else sizes.floors.inner_lengths[1:]
            found["s"] = self.sweep(lengths, Noise(inner=SIGMA), "s")
            found["c1"] = self.sweep((2.0, 5.0, 20.0), Noise(xi=SIGMA), "c1")
        return found


def ratio(sweep: Slope, first: float, second: float) -> float | None:
    """S at one value over S at another, where both were measured."""
    at = sweep["at"]
    if first not in at or second not in at:
        return None
    return sweep["mean"][at.index(first)] / sweep["mean"][at.index(second)]


def ratios(found: dict) -> dict[str, float | None]:
    """The ratios that the theorem predicts: 16, 16, 10, 3.3, 16 and (not in the bound) 2.

    The warm start of the inner loop counts its steps from 10, so the law in s is flatter below s = 30.
    """
    return {
        "S(r=1)/S(r=16)": ratio(found["r"], 1, 16),
        "S(q=1)/S(q=16)": ratio(found["q"], 1, 16),
        "S(s=10)/S(s=100)": ratio(found["s"], 10, 100) if "s" in found else None,
        "S(s=30)/S(s=100)": ratio(found["s"], 30, 100) if "s" in found else None,
        "S(c1=20)/S(c1=5)": ratio(found["c1"], 20.0, 5.0) if "c1" in found else None,
        "S(a=1)/S(a=0.5)": ratio(found["a"], 1.0, 0.5),
    }


def random_output(floors: Floors, large: int) -> dict[str, float]:
    """The theorem's own left side, the mean over all steps, for r = 1 and a large r; the last tenth beside it."""
    found = {}
    for r in (1, large):
        method = floors.method(r=r)
        points = follow(floors.case, method, Noise(zeta=SIGMA), floors.steps, floors.seeds)
        values = squared_stationarity(floors.case, method, points)
        found[f"mean over all steps, r = {r}"] = float(values.mean())
        found[f"mean over the last tenth, r = {r}"] = float(tail_mean(values).mean())
    return found


def without_noise(case: Case, steps: int, seeds: int) -> dict:
    """S along runs without noise and with an exact inner solver: the term 1/(alpha K) alone."""
    method = make_method(case, C1, 20.0 * C1, 1.0, exact_inner(case))
    points = follow(case, method, Noise(), steps, seeds)
    mean = squared_stationarity(case, method, points).mean(axis=0)
    early, late = steps // 5, steps - 1
    slope = np.log(mean[late] / mean[early]) / np.log((late + 1) / (early + 1))
    return {
        "k": np.arange(1, steps + 1, 10).tolist(),
        "S": mean[::10].tolist(),
        "S_end": float(mean[-1]),
        "log_log_slope_of_the_last_four_fifths": float(slope),
    }


def measure(sizes: Sizes) -> dict:
    """Floors on the toy and on the synthetic problem."""
    floors = Floors(toy_case(), sizes.toy_seeds, sizes.floors.steps)
    found: dict[str, dict] = {"toy": floors.measure(sizes)}
    found["random_output"] = random_output(floors, sizes.floors.batches[-1])
    found["without_noise"] = without_noise(floors.case, sizes.run_steps, sizes.toy_seeds)
    if sizes.synthetic:
        found["synthetic"] = Floors(synthetic_case(), sizes.synthetic_seeds, sizes.synthetic_steps).measure(sizes)
    found["ratios"] = {name: ratios(found[name]) for name in ("toy", "synthetic") if name in found}
    return found
