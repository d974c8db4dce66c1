"""`hierax demo`: the toy from one start with nothing set, in seconds.

It prints the answer beside the known one and draws the path of x. The experiment itself is `toy_run`.
"""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from hierax._methods.salvf import SALVF
from hierax._run.solution import Solution
from hierax.experiments.reproduce.toy_report import COLOURS, draw_curve
from hierax.problems import toy
from hierax.problems.toy import hyper_objective, local_minimisers
from hierax.report import draw_or_say, new_figure, save_figure
from hierax.solving import Info, solve

START = (1.4, 0.5)  # in the valley of the global minimiser, and far from the lower level's solution y = x
STEPS = 2500
STATED = """\
min over x in [0,3] of F(x, y*(x)),  y*(x) = argmin (y - 2x)^2  s.t.  y <= x
Gradients carry noise of standard deviation 0.1; no setting is given.
"""
NEXT = (
    "Read next: README.md (state your own problem), docs/method.md (what was computed);\n"
    "or run: hierax reproduce toy (the paper's experiment, 200 starts)."
)


def run(out: Path, console: Console) -> Solution:
    """Solve the toy from one start, print the answer beside the known one, draw the path of x."""
    example = toy()
    path = [START[0]]

    def remember(info: Info) -> None:
        path.append(float(info.x))

    solution = solve(example.problem, *START, SALVF(), max_steps=STEPS, callback=remember)
    console.print(STATED, highlight=False, soft_wrap=True)
    console.print(_table(solution), highlight=False)
    figure = out / "figures" / "demo.png"
    draw_or_say(lambda: console.print(f"\nFigure: {_draw(figure, np.array(path))}", soft_wrap=True), console.print)
    console.print(NEXT, soft_wrap=True)
    return solution


def _table(solution: Solution) -> Table:
    x, y = float(solution.x), float(solution.y)
    known = local_minimisers()[np.argmin(np.abs(local_minimisers() - x))]
    table = Table(box=None, pad_edge=False)
    for heading in ("", "found", "known"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_row("upper variable x", f"{x:.5f}", f"{known:.5f}")
    table.add_row("lower variable y", f"{y:.5f}", f"{known:.5f}")
    table.add_row("multiplier of y <= x", f"{float(solution.multipliers.inequalities):.4f}", f"{2 * known:.4f}")
    table.add_row("upper objective F(x, x)", f"{float(hyper_objective(x)):.5f}", f"{float(hyper_objective(known)):.5f}")
    table.add_row("violation of y <= x", f"{max(y - x, 0.0):.1e}", "0")
    table.add_row("samples of zeta, xi", f"{solution.counts.zeta}, {solution.counts.xi}", "")
    table.add_row("seconds", f"{solution.counts.seconds:.2f}", "")
    table.add_row("seconds to compile", f"{solution.counts.compile_seconds:.2f}", "")
    table.add_row("status", solution.status.name, "")
    return table


def _draw(path: Path, x: np.ndarray) -> Path:
    figure = new_figure(7.0, 4.0)
    axis = figure.subplots()
    draw_curve(axis)
    axis.plot(x, np.asarray(hyper_objective(x)), ".-", color=COLOURS["SALVF"], lw=1, ms=5, alpha=0.7, label="path of x")
    axis.plot(x[-1], float(hyper_objective(x[-1])), "o", color=COLOURS["SALVF-VR"], ms=9, label="solution found")
    axis.set(xlabel="x", ylabel="F(x, y*(x))", title="SALVF on the toy, nothing set")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    return save_figure(figure, path)
