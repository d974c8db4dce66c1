"""`hierax demo`: the toy from one start with nothing set, in seconds, and whether its answer can be trusted.

It prints the answer beside the known one and the certificate, and draws the points that were looked at.
"""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from hierax._base.errors import RunFailed
from hierax._run.solution import Kind, Solution
from hierax.cli.run_folder import Out
from hierax.problems import toy
from hierax.problems.toy import SIDE, hyper_objective, local_minimisers
from hierax.reports.folder import draw_or_say, figures, save_figure
from hierax.solving import solve

START = (2.2, 0.5)  # in the valley of another local minimiser, and far from the lower level's solution y = x
STATED = """\
min over x in [0,3] of F(x, y*(x)),  y*(x) = argmin (y - 2x)^2  s.t.  y <= x
F(x, y*(x)) has four local minimisers. hx.solve(problem, 2.2, 0.5) is called, no setting is given.
"""
NEXT = (
    "Next: hierax new problem.py (state your own problem), README.md, docs/guides/certificate.md (the table);\n"
    "or run: hierax reproduce toy (the paper's experiment, 200 starts; of the package hierax-lab)."
)
CURVE, JUDGED, ANSWER = "#444444", "#1f6fb4", "#d1602b"  # colours


def demo(out: Out = None) -> None:
    """Solve the paper's toy problem with nothing set, in seconds; print answer and certificate, and draw it."""
    folder, console, seen = out or Path("out") / "demo", Console(), list[float]()
    solution = solve(toy().problem, *START, callback=lambda info: seen.append(float(info.x)))
    console.print(STATED, highlight=False, soft_wrap=True)
    console.print(_table(solution), highlight=False)
    for text in (f"\n{solution.certificate}\n", *solution.log[-2:]):
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    path = folder / "figures" / "demo.png"
    draw_or_say(
        lambda: console.print(f"\nFigure: {_draw(path, np.array(seen), solution)}", soft_wrap=True), console.out
    )
    console.print(f"Report: {solution.report(folder / 'report.html')}", soft_wrap=True)
    console.print(NEXT, soft_wrap=True)
    if solution.status.kind is Kind.INTERRUPTED:
        raise KeyboardInterrupt
    if not solution.status.ok:
        raise RunFailed(f"the demo has no certified answer: {solution.status.message}", solution)


def _table(solution: Solution) -> Table:
    known = local_minimisers()[np.argmin(np.asarray(hyper_objective(local_minimisers())))]
    table = Table(box=None, pad_edge=False)
    for heading in ("", "found", "known"):
        table.add_column(heading, justify="left" if not heading else "right")
    multiplier, counts = solution.multipliers.inequalities, solution.counts
    for row in (
        ("upper variable x", f"{solution.x:.5f}", f"{known:.5f}"),
        ("lower variable y", f"{solution.y:.5f}", f"{known:.5f}"),
        ("multiplier of y <= x", f"{multiplier:.4f}", f"{2 * known:.4f}"),
        ("upper objective F(x, y)", f"{solution.value:.5f}", f"{float(hyper_objective(known)):.5f}"),
        ("seconds", f"{counts.seconds:.2f}, and {counts.compile_seconds:.2f} to compile", ""),
        ("status", solution.status.name, ""),
    ):
        table.add_row(*row)
    return table


def _draw(path: Path, seen: np.ndarray, solution: Solution) -> Path:
    figure = figures.empty_figure(7.0, 4.0)
    axis = figure.subplots()
    grid, at = np.linspace(0.0, SIDE, 601), local_minimisers()
    axis.plot(grid, np.asarray(hyper_objective(grid)), color=CURVE, lw=1.4, label="F(x, y*(x)) = F(x, x)")
    known = np.asarray(hyper_objective(at))
    axis.plot(at, known, "k+", ms=11, mew=1.6, zorder=4, ls="none", label="local minimisers")
    judged = np.asarray(hyper_objective(seen))
    axis.plot(seen, judged, "o", color=JUDGED, ms=6, alpha=0.6, ls="none", label="points that were judged")
    found, label = float(solution.x), f"answer ({solution.status.name})"
    axis.plot(found, float(hyper_objective(found)), "o", color=ANSWER, ms=9, label=label)
    axis.set(xlabel="x", ylabel="F(x, y*(x))", title="The toy, nothing set")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    return save_figure(figure, path)
