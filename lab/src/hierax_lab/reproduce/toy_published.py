r"""The toy in the published setting: Algorithms 2 and 3 as printed, corrected signs only, with the released constants.

Rows: the paper's F and the F of the released notebook (an extra + x^2), the last iterate (which the paper's figure
shows) and the random one (which its algorithms return); then, to tell the constants from the algorithms, the same
algorithms with penalties that hold the constraint, and the library with nothing set. Every row has 2,500 samples of
zeta, and every point is judged by the paper's F(x, y*(x)) = F(x, x).
"""

import dataclasses
from itertools import groupby
from typing import Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from hierax import SALM, SALVF, SALVF_VR, Problem, Solutions
from hierax.problems import toy
from hierax.problems.toy import hyper_objective, local_minimisers
from hierax_lab.reproduce import published, toy_report
from hierax_lab.reproduce.comparison import headed, shown_endings
from hierax_lab.reproduce.experiment import Content, Run, experiment
from hierax_lab.reproduce.published import CHANGED, CODE, OURS, PAPER, Given
from hierax_lab.reproduce.toy_claims import GLOBAL, MIN_STARTS, normality
from hierax_lab.reproduce.toy_rows import Metrics, Numbers, Result, Row
from hierax_lab.reproduce.toy_run import SIGMA, STARTS, bootstrap_interval, costs, random_starts, solved
from hierax_lab.reproduce.verdict import Verdict

K, R = 500, 5  # outer steps, and samples of zeta in each
QUICK_STARTS, QUICK_K = 10, 40
C1, C2, GAMMA1, GAMMA2, ALPHA = 30.0, 15.0, 10.0, 0.1, 0.005  # the released constants
S, Q = 10, 5  # inner steps, and samples of xi in each outer step
ETA, RHO = 0.5, 1 / GAMMA2  # the theorem's smallest: 1/mu_G and 1/gamma2
HELD = {"c1": 5.0, "c2": 1000.0, "alpha": 2e-4}  # penalties that hold the constraint; a step below 1/(2 L_Psi) = 1/4140
NEAR = 0.05  # distance to the global minimiser that counts as having found it
OUTPUTS: dict[Literal["last", "random"], str] = {"last": "last iterate", "random": "random iterate R"}

SETTINGS = (
    Given("starts, uniform in [0, 3]^2", str(STARTS), PAPER),
    Given("samples of zeta per run", str(K * R), PAPER),
    Given("sigma of the gradient noise", f"{SIGMA:g}", PAPER),
    Given("K, r", f"{K}, {R}", CODE),
    Given("c1, c2", f"{C1:g}, {C2:g}", CODE),
    Given("gamma1, gamma2", f"{GAMMA1:g}, {GAMMA2:g}", CODE),
    Given("alpha, one step for x, y and z", f"{ALPHA:g}", CODE),
    Given("SALVF-VR: alpha_k, beta_(k+1)", "alpha (k+1)^(-1/3), (k+1)^(-2/3)", PAPER),
    Given("z-gradient", "c1 gamma2 (z - lam): the printed sign is reversed", CHANGED),
    Given("penalty, lam_0 of the inner loop", "quadratic, 0", PAPER),
    Given("eta_j, rho_j", f"{ETA:g}/(j+1), {RHO:g}/(j+1): the theorem's least, 1/mu_G and 1/gamma2", PAPER),
    Given("s, q, z_0, w_0 of the inner loop", f"{S}, {Q}, 0, y_k", OURS),
)


def printed(reduced: bool, c1: float = C1, c2: float = C2, alpha: float = ALPHA) -> SALVF:
    """Algorithm 2, or 3 where `reduced`, as printed; the inner loop is Algorithm 1."""
    inner = SALM(steps=S, batch=1, eta=ETA, rho=RHO, warm=False, rule="paper")
    weights = {"c1": c1, "c2": c2, "gamma1": GAMMA1, "gamma2": GAMMA2}
    return published.as_printed(alpha, reduced, **weights, inner=inner, batch_zeta=R, batch_xi=Q)


def all_rows(k: int) -> list[Row]:
    """Every row; `k` outer steps of the printed algorithms, and as many samples of zeta for the last group."""
    both = {"SALVF": False, "SALVF-VR": True}
    rows = [
        Row(f"published/{output}/{name}", "as published", f"{name}, {text}", printed(vr), steps=k, output=output)
        for output, text in OUTPUTS.items()
        for name, vr in both.items()
    ]
    notebook = "as published, with the notebook's F + x^2"
    rows += [Row(f"notebook/{name}", notebook, name, printed(vr), steps=k, notebook=True) for name, vr in both.items()]
    held = f"as printed, {', '.join(f'{name} = {value:g}' for name, value in HELD.items())} < 1/(2 L_Psi)"
    rows += [Row(f"held/{name}", held, name, printed(vr, **HELD), steps=k) for name, vr in both.items()]
    ours = {"SALVF": SALVF(), "SALVF-VR": SALVF_VR()}
    rows += [Row(f"nothing set/{name}", "nothing set", name, method, steps=k * R) for name, method in ours.items()]
    return rows


@experiment
def run(run: Run) -> Content:
    """Run every row, write metrics.json, points.npz and Figures 1a and 1b, print the tables and what they say."""
    starts = random_starts(run.seeds or run.sized(STARTS, QUICK_STARTS))
    results = {row.key: measure(row, starts) for row in all_rows(run.sized(K, QUICK_K))}
    statements = run.judged(verdicts(results))
    content = run.write(
        {
            **published.common_content(run, SETTINGS),
            "starts": len(starts),
            "rows": {key: result.metrics for key, result in results.items()},
            "released": {"x": published.TOY_X, "x_sd": published.TOY_X_SPREAD, "gap": published.TOY_GAP},
        },
        statements,
    )
    run.write_arrays("points", {"starts": starts} | {key: result.points for key, result in results.items()})
    print_tables(run.console, results, statements, run.quick)
    run.draw(lambda folder: toy_report.draw(folder, results, {"published/last": "as published, last iterate"}))
    return content


# -- measuring --------------------------------------------------------------------------------------------------------


def stated(notebook: bool) -> Problem:
    """The toy with the paper's F, or with the F of the released notebook, which has an extra + x^2."""
    problem = toy(SIGMA).problem
    if not notebook:
        return problem
    return dataclasses.replace(problem, upper=lambda x, y, zeta: problem.upper(x, y, zeta) + x**2)


def measure(row: Row, starts: np.ndarray) -> Result:
    """Run one row from every start and measure its points."""
    assert row.steps is not None
    solution, x, y, finished = solved(row, stated(row.notebook), starts, row.steps)
    return Result(row, x, y, _metrics(solution, x, y, finished), finished)


def _metrics(solution: Solutions, x: Numbers, y: Numbers, finished: np.ndarray) -> Metrics:
    """What is measured at the points of a row.

    gap: |y - x|; z_error: |z - 2x|, the multiplier's; excess: median of F(x, x) above its least value; near_global: the
    share of the starts within 0.05 of the global minimiser; shares: nearest to each local minimiser. A start
    that failed counts in the shares as one that is nowhere near, and in no other number.
    """
    assert solution.state is not None
    assert isinstance(solution.method, SALVF)
    assert solution.method.scales is not None
    z = np.asarray(solution.state.run.state.point.z.inequalities / solution.method.scales.inequalities)
    z = z.reshape(finished.shape)[finished]
    interval = bootstrap_interval(x)
    if not len(x):  # every start failed
        x = y = z = np.array([np.nan])
    places = local_minimisers()
    nearest = np.abs(x[:, None] - places).argmin(axis=1)
    least = float(hyper_objective(places[GLOBAL]))
    excess = np.asarray(hyper_objective(x)) - least
    return costs(solution, finished) | {
        "x_mean": float(np.mean(x)),
        "x_sd": float(np.std(x, ddof=1)) if len(x) > 1 else 0.0,
        "x_sd_interval": interval,
        "gap": float(np.mean(np.abs(y - x))),
        "z_error": float(np.mean(np.abs(z - 2 * x))),
        "excess": float(np.median(excess)),
        "near_global": float(np.sum(np.abs(x - places[GLOBAL]) <= NEAR) / len(finished)),
        "shares": [float(np.sum((nearest == i) & np.isfinite(x)) / len(finished)) for i in range(len(places))],
    }


# -- what it says -----------------------------------------------------------------------------------------------------


def verdicts(results: dict[str, Result]) -> list[Verdict]:
    """The paper's three statements about the toy, judged by the rows with the published settings."""
    pair = [results[f"published/last/{name}"] for name in ("SALVF", "SALVF-VR")]
    shares = [result.metrics["near_global"] for result in pair]
    close = Verdict(
        "the converged points are close to the global optimal solution",
        "yes" if min(shares) >= 0.95 else f"no: at most {max(shares):.0%} of the starts are",
        [
            f"{r.row.label}: x = {r.metrics['x_mean']:.3f} +- {r.metrics['x_sd']:.3f}, y - x off by "
            f"{r.metrics['gap']:.3f}; the global minimiser is {local_minimisers()[GLOBAL]:.3f}"
            for r in pair
        ],
    )
    normal = [normality(result.x) for result in pair]
    judged = "yes" if min(normal) >= 0.01 else "no"
    gaussian = Verdict(
        "they form an approximate Gaussian distribution (Shapiro-Wilk at 1 %)",
        judged if len(pair[0].x) >= MIN_STARTS else f"not judged: fewer than {MIN_STARTS} starts",
        [f"{r.row.label}: p = {p:.2g} over all starts" for r, p in zip(pair, normal, strict=True)],
    )
    plain, reduced = (result.metrics["x_sd_interval"] for result in pair)
    concentrated = Verdict(
        "SALVF-VR is more concentrated than SALVF",
        "yes (90 % intervals apart)" if reduced[1] < plain[0] else "no (90 % intervals not apart)",
        [
            f"{r.row.label}: sd of x {r.metrics['x_sd']:.4f} [{r.metrics['x_sd_interval'][0]:.4f}, "
            f"{r.metrics['x_sd_interval'][1]:.4f}]"
            for r in pair
        ],
    )
    return [close, gaussian, concentrated]


def print_tables(console: Console, results: dict[str, Result], statements: list[Verdict], quick: bool) -> None:
    """The settings, the rows beside the released figures, and the statements."""
    published.print_settings(console, SETTINGS)
    places = " / ".join(f"{x:.3f}" for x in local_minimisers())
    console.print(
        f"x, |y - x|, |z - 2x|: mean over the starts, +- standard deviation; % of starts: nearest to {places}\n"
        f"at .986: share within {NEAR:g} of the global minimiser; F - F*: median of F(x, x) above its least value\n",
        highlight=False,
    )
    for group, rows in groupby(results.values(), key=lambda result: result.row.group):
        console.print(_table(group, list(rows)))
    table = headed(f"stored by the released code ({published.RELEASED})", "x", "|y - x|")
    stored_x = f"{published.TOY_X:.3f} +- {published.TOY_X_SPREAD:.3f}"
    table.add_row("14 printed runs, running averages", stored_x, f"{published.TOY_GAP:.3f}")
    console.print(table)
    published.print_statements(console, statements, quick)


def _table(title: str, results: list[Result]) -> Table:
    table = headed(title, "x", "|y - x|", "|z - 2x|", "at .986", "F - F*", "% of starts", "zeta", "finished")
    for result in results:
        m = result.metrics
        table.add_row(
            result.row.label,
            f"{m['x_mean']:.3f} +- {m['x_sd']:.3f}",
            f"{m['gap']:.4f}",
            f"{m['z_error']:.3f}",
            f"{m['near_global']:.0%}",
            f"{m['excess']:.4f}",
            " / ".join(f"{100 * share:.0f}" for share in m["shares"]),
            str(m["samples_zeta"]),
            shown_endings({**m, "runs": m["starts"]}),
        )
    return table
