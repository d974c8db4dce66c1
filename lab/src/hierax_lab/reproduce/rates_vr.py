r"""SALVF-VR against SALVF, the stability of its two schedules, and the two outer penalties.

All runs are those of `rates_outer`: the same decaying steps for both methods, and S with the exact inner solution.
"""

from typing import Literal, TypedDict

import numpy as np

from hierax import SALM, SALVF, Plain, Storm
from hierax.problems.toy import SIDE, local_minimisers
from hierax_lab.reproduce.rates_fit import Values, standard_error
from hierax_lab.reproduce.rates_outer import (
    C1,
    TAIL_STRIDE,
    Case,
    Noise,
    Point,
    all_sources,
    distances,
    exact_inner,
    follow,
    make_method,
    squared_stationarity,
    synthetic_case,
    tail,
    tail_mean,
    toy_case,
    toy_smoothness,
)
from hierax_lab.reproduce.rates_sizes import Sizes

C2 = 100.0  # weight of the constraint
A, DECAY = 1.5, 1 / 3  # alpha_k = min(1, A (k+1)^-DECAY) / L_Psi
CORNER_DISTANCE = 1e-3  # x and y this close to a bound of [0, 3] count as stuck in a corner
TRIED_STEPS = (0.25, 0.5, 1.0)  # values of a in the comparison of penalties; the best one counts


class LongRun(TypedDict):
    """S and the share of runs in a corner: at the checkpoints k, and on a finer grid of steps for the figure."""

    k: list[int]
    S: list[float]
    corner: list[float]
    grid: list[int]
    S_on_grid: list[float]
    corner_on_grid: list[float]


def _method(
    case: Case, direction: Plain | Storm, c2: float = C2, a: float = A, inner: SALM | None = None, q: int = 1
) -> SALVF:
    inner = inner or SALM(steps=10, batch=1)
    return make_method(case, C1, c2, a, inner, direction=direction, power=DECAY, q=q)


def _spread(points: Point) -> float:
    """Standard deviation of x over the runs that end nearest to the toy's global minimiser."""
    x = np.asarray(points.x)[:, -1]
    nearest = np.abs(x[:, None] - local_minimisers()[None]).argmin(axis=1)
    return float(x[nearest == 1].std())


def _mean_and_error(values: list[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "error": standard_error(np.asarray(values))}


def compare_on_toy(case: Case, sigma: float, sizes: Sizes) -> dict[str, dict[str, float]]:
    """Ratios at equal steps, hence equal samples of zeta and xi; and with half the steps for VR.

    VR evaluates the outer gradient twice per step. Half the steps make those evaluations equal; since the inner loops
    are halved too, it then costs less than SALVF.
    """
    plain, reduced = _method(case, Plain()), _method(case, Storm())
    rows: dict[str, list[float]] = {}
    for batch in range(sizes.comparison.repeats):
        runs = [
            follow(case, one, all_sources(sigma), sizes.run_steps, sizes.toy_seeds, seed=100 + batch)
            for one in (plain, reduced)
        ]
        values = [squared_stationarity(case, one, run) for one, run in zip((plain, reduced), runs, strict=True)]
        floors = [tail_mean(one).mean() for one in values]
        half = tail_mean(values[1], sizes.run_steps // 2).mean()
        away = [distances(case, run).mean() for run in runs]
        spread = [_spread(run) for run in runs]
        row = {
            "S ratio, equal samples": floors[0] / floors[1],
            "S ratio, equal gradients": floors[0] / half,
            "mean distance, VR over SALVF": away[1] / away[0],
            "sd in the global basin, VR over SALVF": spread[1] / spread[0],
            "S(SALVF)": floors[0],
            "S(VR)": floors[1],
        }
        for name, value in row.items():
            rows.setdefault(name, []).append(float(value))
    return {name: _mean_and_error(values) for name, values in rows.items()}


def compare_on_synthetic(noise: Literal["additive", "multiplicative"], sizes: Sizes) -> dict[str, float]:
    """The same on the synthetic problem: sigma 0.5, q = 4, a = 3."""
    case = synthetic_case(noise)
    floors, away = [], []
    for direction in (Plain(), Storm()):
        method = _method(case, direction, c2=10 * C1, a=3.0, q=4)
        run = follow(case, method, all_sources(0.5), sizes.synthetic_steps, sizes.synthetic_seeds)
        floors.append(squared_stationarity(case, method, tail(run, TAIL_STRIDE)).mean(axis=1))
        away.append(distances(case, run).mean())
    means = [one.mean() for one in floors]
    relative = [standard_error(one) / one.mean() for one in floors]
    return {
        "S ratio, equal samples": float(means[0] / means[1]),
        "error": float(means[0] / means[1] * np.hypot(relative[0], relative[1])),
        "mean distance, VR over SALVF": float(away[1] / away[0]),
    }


def _cornered(points: Point, step: int) -> float:
    """Share of the runs whose x and y both sit on a bound of [0, 3]."""
    at = np.stack([np.asarray(points.x)[:, step - 1], np.asarray(points.y)[:, step - 1]])
    return float((np.minimum(at, SIDE - at) < CORNER_DISTANCE).all(axis=0).mean())


def long_run(case: Case, method: SALVF, noise: Noise, sizes: Sizes) -> LongRun:
    """S and the share of runs in a corner, at the checkpoints and on a finer grid for the figure."""
    steps = sizes.comparison.checkpoints[-1]
    points = follow(case, method, noise, steps, sizes.comparison.long_seeds)
    values = squared_stationarity(case, method, points)

    def at(step: int) -> float:
        return float(tail_mean(values, step).mean())

    grid = np.unique(np.geomspace(100, steps, 13).round().astype(int))
    return {
        "k": list(sizes.comparison.checkpoints),
        "S": [at(step) for step in sizes.comparison.checkpoints],
        "corner": [_cornered(points, step) for step in sizes.comparison.checkpoints],
        "grid": grid.tolist(),
        "S_on_grid": [at(int(step)) for step in grid],
        "corner_on_grid": [_cornered(points, int(step)) for step in grid],
    }


def stability(case: Case, sizes: Sizes) -> dict[str, LongRun]:
    """Long runs with the default and the printed schedule, with noise and without."""
    noise, exact, quiet = all_sources(0.1), exact_inner(case), Noise()
    # beta such that beta_{k+1} = (k+1)^(-2/3), the printed rule with beta_1 = 1 before alpha_0 is cut to 1/L_Psi.
    printed = Storm(schedule="paper", beta=(toy_smoothness(C1, C2) / A) ** 2)
    found = {
        "SALVF": long_run(case, _method(case, Plain()), noise, sizes),
        "VR, default": long_run(case, _method(case, Storm()), noise, sizes),
        "VR, printed": long_run(case, _method(case, printed), noise, sizes),
    }
    if not sizes.quick:
        for name, direction in (("printed", printed), ("default", Storm())):
            method = _method(case, direction, inner=exact)
            found[f"VR, {name}, no noise, exact inner"] = long_run(case, method, quiet, sizes)
    return found


def grown(run: LongRun, factor: float, since: int) -> bool:
    """Whether S has grown by the factor at some checkpoint after `since`, or most runs have ended in corners."""
    first = run["k"].index(since)
    worst = max(run["S"][first + 1 :])
    return worst > factor * run["S"][first] or run["corner"][-1] > 0.5


def penalties(case: Case, sizes: Sizes) -> dict[str, list[dict]]:
    """The paper's penalty with c2 = 200 c1 and the multiplier with c2 = 20 c1, each with its best step."""
    found: dict[str, list[dict]] = {"quadratic": [], "multiplier": []}
    kinds: tuple[tuple[Literal["quadratic", "multiplier"], float], ...] = (("quadratic", 200.0), ("multiplier", 20.0))
    for penalty, factor in kinds:
        for c1 in sizes.comparison.weights:
            tried = [_penalty_run(case, penalty, c1, factor * c1, a, sizes) for a in TRIED_STEPS]
            found[penalty].append(min(tried, key=lambda one: one["mean distance"]))
    return found


def _penalty_run(
    case: Case, penalty: Literal["quadratic", "multiplier"], c1: float, c2: float, a: float, sizes: Sizes
) -> dict[str, float]:
    method = make_method(case, c1, c2, a, SALM(steps=10, batch=1), penalty=penalty)
    points = follow(case, method, all_sources(0.1), sizes.run_steps, sizes.toy_seeds, seed=200)
    away = distances(case, points)
    gap: Values = np.abs(np.asarray(points.y) - np.asarray(points.x))[:, -1]
    return {
        "c1": c1,
        "c2": c2,
        "a": a,
        "median distance": float(np.median(away)),
        "mean distance": float(away.mean()),
        "mean distance error": standard_error(away),
        "mean |y - x|": float(gap.mean()),
        "mean |y - x| error": standard_error(gap),
    }


def measure(sizes: Sizes) -> dict:
    """Comparisons of SALVF-VR with SALVF, long runs, and the two penalties."""
    case = toy_case()
    found: dict[str, dict] = {
        "toy": {str(sigma): compare_on_toy(case, sigma, sizes) for sigma in sizes.comparison.sigmas}
    }
    if sizes.synthetic:
        found["synthetic"] = {
            "additive": compare_on_synthetic("additive", sizes),
            "multiplicative": compare_on_synthetic("multiplicative", sizes),
        }
    found["stability"] = stability(case, sizes)
    found["penalties"] = penalties(case, sizes)
    return found
