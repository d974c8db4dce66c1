r"""The paper's toy experiment: 200 random starts in [0,3]^2, noisy gradients on both levels, 2,500 samples of zeta.

Rows of the table: the paper's quadratic penalty and the outer multiplier, from the paper's start (the point as drawn,
z = 0) and from the default one (a first solve of the lower level); pairs with equal decaying steps, on which the
paper's "more concentrated" can be tested; nothing set; nothing set and the same problem in seven other units. Every
number is in the toy's original units.
"""

import dataclasses
from collections import Counter

import jax
import numpy as np
from jaxtyping import Array, Float64, PyTree

from hierax import SALVF, Multipliers, Problem, Solutions, solve_many
from hierax.extend import Rows, psi_stationarity
from hierax.problems import toy, toy_inner_solution
from hierax.problems.toy import SIDE, local_minimisers
from hierax_lab.reproduce import toy_report
from hierax_lab.reproduce import toy_synthetic as synthetic
from hierax_lab.reproduce.comparison import print_verdicts
from hierax_lab.reproduce.experiment import Content, Run, experiment
from hierax_lab.reproduce.published import printed_schedule_allowed
from hierax_lab.reproduce.toy_claims import GLOBAL, verdicts
from hierax_lab.reproduce.toy_rows import Metrics, Numbers, Result, Row, all_rows
from hierax_lab.reproduce.verdict import Verdict
from hierax_lab.reproduce.workers import Name, Task

STARTS, STEPS = 200, 2500  # random starts, and outer steps of each
QUICK_STARTS, QUICK_STEPS = 20, 300
SIGMA = 0.1  # standard deviation of the noise in every gradient
# Distance to each minimiser within which it counts as found. x = 3 is a spurious rest point 0.0092 from the last one.
WITHIN = np.array([0.05, 0.05, 0.05, 0.005])
FIGURES = {
    "quadratic/given": "paper's penalty, c1 = 5, c2 = 1000",
    "multiplier/given": "outer multiplier, c1 = 5, c2 = 100",
}
RESAMPLES = 2000  # bootstrap samples behind an interval


@experiment
def run(run: Run) -> Content:
    """Run every row, write metrics.json, points.npz and the figures, print the table and what it says."""
    starts, steps = random_starts(run.seeds or run.sized(STARTS, QUICK_STARTS)), run.sized(STEPS, QUICK_STEPS)
    tasks: dict[Name, Task[Result]] = {(row.key,): (measure, (row, starts, steps)) for row in all_rows(steps)}

    def write(found: dict[Name, Result], statements: list[Verdict] | None = None, **more: object) -> Content:
        results = list(found.values())
        settings = {"starts": len(starts), "steps": steps, "sigma": SIGMA, "quick": run.quick}
        rows = {result.row.key: _as_json(result, run.quick) for result in results}
        whole = {"settings": settings, "minimisers": local_minimisers().tolist(), "rows": rows} | more
        run.write_arrays("points", {"starts": starts} | {result.row.key: result.points for result in results})
        return run.write(whole, statements or [])

    found = run.measured(tasks, write, parallel=False)
    results = {name: result for (name,), result in found.items()}
    statements = run.judged(verdicts(results))
    other = synthetic.measure(steps)
    judged = dict(zip(other, run.met([*other.values()]), strict=True))
    content = write(found, statements, synthetic=judged)
    toy_report.print_tables(run.console, list(results.values()), judged=not run.quick)
    synthetic.print_lines(run.console, other, judged=not run.quick)
    print_verdicts(run.console, statements)
    run.draw(lambda folder: toy_report.draw(folder, results, FIGURES))
    return content


def _as_json(result: Result, quick: bool) -> Content:
    targets = [dataclasses.asdict(target) | {"met": None if quick else met} for target, met in result.checks]
    return {**result.metrics, "group": result.row.group, "targets": targets}


def random_starts(count: int) -> Float64[np.ndarray, "n 2"]:
    """Uniform in [0, 3]^2; the first ones are the same for every count."""
    return np.asarray(SIDE * np.random.default_rng(0).random((count, 2)))


# -- measuring --------------------------------------------------------------------------------------------------------


def solved(
    row: Row, problem: Problem, starts: np.ndarray, steps: int, stretch: float = 1.0
) -> tuple[Solutions, Numbers, Numbers, np.ndarray]:
    """A row's runs from every start; x and y of those that did not fail, in the original units; and which these are."""
    with printed_schedule_allowed():
        x0s, y0s = stretch * starts.T
        solution = solve_many(problem, x0s, y0s, row.method, max_steps=steps, output=row.output, progress=False)
    finished = np.array([not status.failed for status in solution.status])
    x, y = (np.asarray(part)[finished] / stretch for part in (solution.x, solution.y))
    return solution, x, y, finished


def costs(solution: Solutions, finished: np.ndarray) -> Metrics:
    """Numbers of starts, samples of one start, seconds of all starts, and how many ended with each status."""
    counts = solution.counts
    return {
        "starts": len(finished),
        "finished": int(finished.sum()),
        "statuses": dict(Counter(status.name for status in solution.status)),
        "samples_zeta": counts.zeta,
        "samples_xi": counts.xi,
        "seconds": counts.seconds,
        "compile_seconds": counts.compile_seconds,
    }


def measure(row: Row, starts: np.ndarray, steps: int) -> Result:
    """Run one row from every start and measure its final points."""
    problem = toy(SIGMA, **row.units).problem
    solution, x, y, finished = solved(row, problem, starts, steps, row.units.get("stretch", 1.0))
    return Result(row, x, y, _metrics(row, solution, x, y, finished), finished)


def _metrics(row: Row, solution: Solutions, x: Numbers, y: Numbers, finished: np.ndarray) -> Metrics:
    """What is measured at the final points.

    Shares are of all starts, everything else is of those that did not fail. shares: nearest to each local minimiser;
    share_within: close to it; distances: of x to the nearest minimiser; mean_gap: of |y - x|; sd_global: standard
    deviation of x over those nearest to the global one, with a 90 % interval.
    """
    distances = np.abs(x[:, None] - local_minimisers())
    nearest, distance = distances.argmin(axis=1), distances.min(axis=1)
    inside = x[nearest == GLOBAL]
    squared = np.asarray(exact_stationarity(solution, row.units))[finished] ** 2
    if not len(x):  # every start failed: no number keeps a target
        x = y = distance = squared = np.array([np.nan])
        nearest = np.array([-1])
    return costs(solution, finished) | {
        "shares": [float(np.sum(nearest == i) / len(finished)) for i in range(len(WITHIN))],
        "median_distance": float(np.median(distance)),
        "mean_distance": float(np.mean(distance)),
        "share_within": float(np.sum(distance <= WITHIN[nearest]) / len(finished)),
        "mean_gap": float(np.mean(np.abs(y - x))),
        "sd_global": _deviation(inside),
        "sd_global_interval": bootstrap_interval(inside),
        "squared_stationarity": float(np.median(squared)),
    }


def _deviation(values: Numbers) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")


def bootstrap_interval(values: Numbers) -> list[float]:
    """90 % percentile interval of the standard deviation, by resampling."""
    if len(values) < 2:
        return [float("nan")] * 2
    drawn = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
    low, high = np.quantile(np.std(drawn, axis=1, ddof=1), (0.05, 0.95))
    return [float(low), float(high)]


def exact_stationarity(solution: Solutions, units: dict[str, float]) -> Array:
    r"""||u - Proj_U(u - a grad Psi(u))|| / a of every start, a = 1/L_Psi, without noise and with the exact (w*, lam*).

    The run's own numbers are converted to the toy's original units first. With factors s_f, s_g of F and G, t of x and
    y, and rho of the constraint as the method sees it (its factor over the method's own scale),

        c1 s_g/s_f,  c2 rho^2/s_f,  gamma s_g/rho^2,  z rho/s_g,  nu rho/s_f,  L_Psi t^2/s_f.
    """
    upper, lower, stretch = (units.get(name, 1.0) for name in ("scale_upper", "scale_lower", "stretch"))
    problem = toy(0.0).problem

    def one(method: SALVF, point: PyTree) -> Array:
        assert method.scales is not None
        rho = units.get("scale_constraint", 1.0) / method.scales.inequalities
        gamma = lower / rho**2
        gamma1, gamma2 = method.gamma1 * gamma, method.gamma2 * gamma
        z, nu = point.z.inequalities * rho / lower, point.nu.inequalities * rho / upper
        here = point._replace(x=point.x / stretch, y=point.y / stretch, z=Rows(z, None), nu=Multipliers(nu, None, None))
        w, lam = toy_inner_solution(here.x, z, gamma1, gamma2)
        return psi_stationarity(
            problem,
            here,
            w,
            Rows(lam, None),
            c1=method.c1 * lower / upper,
            c2=method.c2 * rho**2 / upper,
            gamma1=gamma1,
            gamma2=gamma2,
            step=upper / (method.smoothness * stretch**2),
        )

    assert isinstance(solution.method, SALVF)
    assert solution.state is not None
    return jax.vmap(one)(solution.method, solution.state.run.state.point)
