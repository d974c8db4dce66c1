r"""The paper's toy experiment: 200 random starts in [0,3]^2, noisy gradients on both levels, 2,500 samples of zeta.

Rows of the table: the paper's quadratic penalty and the outer multiplier, from the paper's start (the point as drawn,
z = 0) and from the default one (a first solve of the lower level); pairs with equal decaying steps, on which the
paper's "more concentrated" can be tested; nothing set; nothing set and the same problem in seven other units. Every
number is in the toy's original units.
"""

import dataclasses
import warnings
from collections import Counter
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array, Float64
from rich.console import Console

from hierax._base.errors import HieraxWarning
from hierax._base.interrupt import Interrupt, interruptible
from hierax._math.psi import Inner, Point, Weights, psi_gradient, stationarity
from hierax._methods.salvf import SALVF
from hierax._problem.problem import Multipliers, Rows
from hierax._run.progress import News, progress_bar
from hierax._run.solution import Solutions
from hierax.experiments.reproduce import toy_report
from hierax.experiments.reproduce import toy_synthetic as synthetic
from hierax.experiments.reproduce.toy_claims import GLOBAL, verdicts
from hierax.experiments.reproduce.toy_rows import Metrics, Numbers, Result, Row, all_rows
from hierax.experiments.reproduce.verdict import Verdict
from hierax.problems import toy, toy_inner_solution
from hierax.problems.toy import SIDE, local_minimisers
from hierax.report import draw_or_say, versions, write_json
from hierax.solving import solve_many

STARTS, STEPS = 200, 2500
QUICK_STARTS, QUICK_STEPS = 20, 300
SIGMA = 0.1
# x = 3 is a spurious rest point 0.0092 from the last minimiser: only a closer point counts as having found that one.
WITHIN = np.array([0.05, 0.05, 0.05, 0.005])
RESAMPLES = 2000
WIDTH = 120  # of the tables where the output is a file


def run(
    out: Path,
    quick: bool = False,
    seeds: int | None = None,
    data_dir: Path | None = None,
    console: Console | None = None,
) -> dict[str, object]:
    """Run every row, write metrics.json, points.npz and the figures, print the table and what it says.

    Args:
        out: folder for the results.
        quick: few starts and steps: shows that everything works; the targets are then not judged.
        seeds: number of starts; None: 200.
        data_dir: not used, the toy has no data.
        console: where the table goes; None: standard output.

    Returns:
        The content of metrics.json.
    """
    del data_dir
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    count = seeds or (QUICK_STARTS if quick else STARTS)
    steps = QUICK_STEPS if quick else STEPS
    starts = SIDE * np.random.default_rng(0).random((count, 2))
    rows = all_rows(steps)
    with interruptible() as interrupt:
        results = _measured(rows, starts, steps, interrupt)
        if interrupt.asked:
            write_json(out / "metrics.json", _content(results, [], count, steps, quick))
            _write_points(out / "points.npz", starts, results)
            toy_report.print_tables(console, results, judged=False)
            console.print(f"Interrupted: {len(results)} of {len(rows)} rows were measured; they are in {out}.")
            raise KeyboardInterrupt
    statements = verdicts({result.row.key: result for result in results})
    other = synthetic.measure(steps)
    content = _content(results, statements, count, steps, quick) | {"synthetic": other}
    write_json(out / "metrics.json", content)
    _write_points(out / "points.npz", starts, results)
    toy_report.print_tables(console, results, judged=not quick)
    synthetic.print_lines(console, other, judged=not quick)
    toy_report.print_statements(console, statements)
    draw_or_say(lambda: toy_report.draw(out / "figures", {r.row.key: r for r in results}), console.out)
    console.print(f"Written to {out}: metrics.json, points.npz, figures/", soft_wrap=True)
    return content


# -- measuring --------------------------------------------------------------------------------------------------------


def _measured(rows: list[Row], starts: Float64[np.ndarray, "n 2"], steps: int, interrupt: Interrupt) -> list[Result]:
    """The results of the rows, up to Ctrl-C."""
    results: list[Result] = []
    with progress_bar(None, News(), len(rows), "rows") as show:
        for row in rows:
            try:
                result = measure(row, starts, steps)
            except KeyboardInterrupt:
                interrupt.ask()
            if interrupt.asked:  # what was under way ended before its time
                break
            results.append(result)
            show(len(results), None)
    return results


def measure(row: Row, starts: Float64[np.ndarray, "n 2"], steps: int) -> Result:
    """Run one row from every start and measure its final points."""
    problem = toy(SIGMA, **row.units).problem
    stretch = row.units.get("stretch", 1.0)
    with warnings.catch_warnings():
        # The printed schedule of beta warns; it is here on purpose.
        warnings.filterwarnings("ignore", message="Storm", category=HieraxWarning)
        solution = solve_many(
            problem, stretch * starts[:, 0], stretch * starts[:, 1], row.method, max_steps=steps, progress=False
        )
    finished = np.array([not status.failed for status in solution.status])
    x, y = (np.asarray(part)[finished] / stretch for part in (solution.x, solution.y))
    return Result(row, x, y, _metrics(row, solution, x, y, finished), finished)


def _metrics(row: Row, solution: Solutions, x: Numbers, y: Numbers, finished: np.ndarray) -> Metrics:
    distances = np.abs(x[:, None] - local_minimisers())
    nearest, distance = distances.argmin(axis=1), distances.min(axis=1)
    inside = x[nearest == GLOBAL]
    squared = np.asarray(exact_stationarity(solution, row.units))[finished] ** 2
    if not len(x):  # every start failed: no number keeps a target
        x = y = distance = squared = np.array([np.nan])
        nearest = np.array([-1])
    return {
        "starts": len(finished),
        "finished": int(finished.sum()),
        "shares": [float(np.sum(nearest == i) / len(finished)) for i in range(len(WITHIN))],
        "median_distance": float(np.median(distance)),
        "mean_distance": float(np.mean(distance)),
        "share_within": float(np.sum(distance <= WITHIN[nearest]) / len(finished)),
        "mean_gap": float(np.mean(np.abs(y - x))),
        "sd_global": _deviation(inside),
        "sd_global_interval": bootstrap_interval(inside),
        "squared_stationarity": float(np.median(squared)),
        "samples_zeta": solution.counts.zeta,
        "samples_xi": solution.counts.xi,
        "seconds": solution.counts.seconds,
        "compile_seconds": solution.counts.compile_seconds,
        "statuses": dict(Counter(status.name for status in solution.status)),
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

    def one(method: SALVF, point: Point) -> Array:
        assert method.scales is not None
        rho = units.get("scale_constraint", 1.0) / method.scales.inequalities
        gamma = lower / rho**2
        weights = Weights(
            method.c1 * lower / upper, method.c2 * rho**2 / upper, method.gamma1 * gamma, method.gamma2 * gamma
        )
        z, nu = point.z.inequalities * rho / lower, point.nu.inequalities * rho / upper
        here = Point(point.x / stretch, point.y / stretch, Rows(z, None), Multipliers(nu, None, None))
        w, lam = toy_inner_solution(here.x, z, weights.gamma1, weights.gamma2)
        gradient = psi_gradient(problem, here, Inner(w, Rows(lam, None)), weights, None, None)
        return stationarity(problem, here, gradient, upper / (method.smoothness * stretch**2))

    assert isinstance(solution.method, SALVF)
    assert solution.state is not None
    return jax.vmap(one)(solution.method, solution.state.run.state.point)


# -- files ------------------------------------------------------------------------------------------------------------


def _content(
    results: list[Result], statements: list[Verdict], starts: int, steps: int, quick: bool
) -> dict[str, object]:
    return {
        "settings": {"starts": starts, "steps": steps, "sigma": SIGMA, "quick": quick},
        "versions": versions(),
        "minimisers": local_minimisers().tolist(),
        "rows": {
            result.row.key: {
                **result.metrics,
                "group": result.row.group,
                "targets": [
                    dataclasses.asdict(target) | {"met": None if quick else met} for target, met in result.checks
                ],
            }
            for result in results
        },
        "statements": [dataclasses.asdict(statement) for statement in statements],
    }


def _write_points(path: Path, starts: Float64[np.ndarray, "n 2"], results: list[Result]) -> None:
    points = {result.row.key: result.points for result in results}
    np.savez(path, allow_pickle=False, starts=starts, **points)
