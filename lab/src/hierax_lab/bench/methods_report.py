"""The table of `hierax bench methods` and its performance profiles, from the runs alone.

A method has a row and a kind of problem a column. A kind counts as solved by a method where every run of it, with
samples and without, reaches the first level.
"""

from collections.abc import Iterable
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console

from hierax_lab.bench.methods_measure import LEVELS, Record, Run
from hierax_lab.bench.methods_problems import KINDS
from hierax_lab.output import new_figure, save_figure
from hierax_lab.reproduce.comparison import COLOURS, headed

STYLES = ("-", "--", ":")
SOURCES = {False: "exact functions", True: "samples alone"}
COSTS = {"seconds": "processor seconds", "gradients": "gradients of f and g"}
RIGHT_EDGE = 1e3  # of the profiles: ratio to the best beyond which nothing is drawn
MAX_REASON = 90  # characters of a reason that are printed


def names(runs: Iterable[Run]) -> list[str]:
    """The methods, in the order in which they come."""
    return list(dict.fromkeys(run["method"] for run in runs))


def cell(runs: list[Run]) -> list[str]:
    """What is said of a method's runs on a kind: by level how many reach it, and the median cost of those.

    `3/5 0.2s 40` are five runs, three of which reached the level, at a median of 0.2 processor seconds and 40
    gradients.
    """
    if not runs:
        return ["-"]
    tried = [run for run in runs if not run["refused"]]
    if not tried:
        return ["refuses"]
    lines = []
    for i in range(len(LEVELS)):
        found = [record for run in tried if (record := run["levels"][i])]
        lines.append(f"{len(found)}/{len(runs)}" + (f" {_cost(found)}" if found else ""))
    return lines + ["(refuses some)"] * (len(tried) < len(runs))


def _cost(found: list[Record]) -> str:
    gradients = median(record["gradients"] for record in found)
    text = f"{median(record['seconds'] for record in found):.2g}s"
    return text + (f" {_short(gradients)}" if gradients else "")


def _short(count: float) -> str:
    return f"{count / 1e6:.2g}M" if count >= 999_500 else f"{count / 1e3:.3g}k" if count >= 999.5 else f"{count:.0f}"


def kinds_solved(runs: Iterable[Run], method: str) -> list[str]:
    """The kinds of which the method reached the first level in every run."""
    mine = [run for run in runs if run["method"] == method]
    return [
        kind
        for kind in KINDS
        if (of_kind := [run for run in mine if run["kind"] == kind]) and all(run["levels"][0] for run in of_kind)
    ]


def rows(runs: list[Run], sampled: bool) -> dict[str, dict[str, list[str]]]:
    """The cells of a table by method and kind."""
    return {
        method: {
            kind: cell(
                [run for run in runs if run["method"] == method and run["kind"] == kind and run["sampled"] is sampled]
            )
            for kind in KINDS
        }
        for method in names(runs)
    }


def print_report(console: Console, runs: list[Run], detailed: list[str] | None = None) -> None:
    """Both tables, the kinds that each method solves, and its failures: of all methods, or of those in `detailed`."""
    for sampled, text in SOURCES.items():
        if not any(run["sampled"] is sampled for run in runs):
            continue
        table = headed(
            f"Nothing set, {text}: runs that reach 1e-2 (above) and 1e-3 of the possible decrease; their median "
            "processor seconds and gradients",
            *KINDS,
        )
        for method, cells in rows(runs, sampled).items():
            table.add_row(method, *("\n".join(lines) for lines in cells.values()))
        console.print(table, highlight=False)
    for method in names(runs):
        solved = kinds_solved(runs, method)
        console.print(f"{method}: {len(solved)} of {len(KINDS)} kinds ({', '.join(solved) or 'none'})", highlight=False)
        for line in failures(runs, method) if detailed is None or method in detailed else ():
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def failures(runs: list[Run], method: str) -> list[str]:
    """A line for every problem of which a run of the method did not reach the first level, and why."""
    lines = {}
    for run in runs:
        if run["method"] != method or run["levels"][0]:
            continue
        reason = run["refused"] or run["status"]
        end = f", ends at {run['end']['gap']:.2g} of the start" if run["end"] else ""
        word = "refuses: " if run["refused"] else ""
        lines[run["problem"]] = f"{run['problem']}: {word}{' '.join(reason.split())[:MAX_REASON]}{end}"
    return list(lines.values())


def markdown(runs: list[Run]) -> str:
    """Both tables as Markdown, for docs/start/which-method.md."""
    parts = []
    for sampled, text in SOURCES.items():
        parts += [f"**{text.capitalize()}**", "", "| | " + " | ".join(KINDS) + " |", "|" + " --- |" * (1 + len(KINDS))]
        for method, cells in rows(runs, sampled).items():
            parts.append(f"| `{method}` | " + " | ".join("<br>".join(lines) for lines in cells.values()) + " |")
        parts.append("")
    parts += ["| | kinds solved | which |", "| --- | --- | --- |"]
    for method in names(runs):
        solved = kinds_solved(runs, method)
        parts.append(f"| `{method}` | {len(solved)} of {len(KINDS)} | {', '.join(solved) or 'none'} |")
    return "\n".join(parts) + "\n"


def profile(runs: list[Run], level: float, cost: str) -> dict[str, np.ndarray]:
    """By method, the ascending ratios of its cost of a level to the least of all methods, infinite where not reached.

    The share of the ratios below t is the performance profile at t (E. Dolan, J. More: Benchmarking optimization
    software with performance profiles, 2002). A refusal counts as a level not reached. Runs in which no method reaches
    the level are left out, and so is a method that does not count the cost.
    """
    spent: dict[tuple[str, int], dict[str, float]] = {}
    for run in runs:
        found = run["levels"][LEVELS.index(level)]
        value = float(found[cost]) if found else np.inf  # type: ignore[literal-required]  # one of COSTS
        spent.setdefault((run["problem"], run["seed"]), {})[run["method"]] = value
    counted = [name for name in names(runs) if all(of.get(name) != 0 for of in spent.values())]
    least = {key: min((of.get(name, np.inf) for name in counted), default=np.inf) for key, of in spent.items()}
    some = [key for key, value in least.items() if np.isfinite(value)]
    return {name: np.sort([spent[key].get(name, np.inf) / least[key] for key in some]) for name in counted}


def draw_profiles(path: Path, runs: list[Run]) -> Path:
    """The profiles of both levels and both costs."""
    figure = new_figure(12.0, 8.0)
    panels = figure.subplots(len(LEVELS), len(COSTS), squeeze=False)
    for i, level in enumerate(LEVELS):
        for j, (cost, text) in enumerate(COSTS.items()):
            panel = panels[i, j]
            for k, (name, ratios) in enumerate(profile(runs, level, cost).items()):
                inside = ratios[ratios <= RIGHT_EDGE]
                across = np.concatenate([[1.0], inside, [RIGHT_EDGE]])
                shares = np.concatenate([[0.0], np.arange(1, inside.size + 1), [inside.size]]) / max(ratios.size, 1)
                style = STYLES[k // len(COLOURS) % len(STYLES)]
                panel.step(across, shares, where="post", color=COLOURS[k % len(COLOURS)], ls=style, label=name, lw=1.5)
            panel.set(xscale="log", ylim=(0.0, 1.02), xlim=(1.0, RIGHT_EDGE))
            panel.set(xlabel=f"{text}, times those of the best method", ylabel="share of runs", title=f"to {level:g}")
            panel.grid(alpha=0.25)
            panel.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    figure.suptitle("Nothing set: share of the runs that a method finishes within a multiple of the least cost")
    return save_figure(figure, path)
