"""Tables and figures of the toy experiment.

The legend that the tables begin with says what each column is. No numbers are computed here, except the bins of the
figures.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from hierax.problems import toy
from hierax.problems.toy import SIDE, local_minimisers
from hierax_lab.output import new_figure, save_figure
from hierax_lab.reproduce.comparison import headed, shown_endings, target_table
from hierax_lab.reproduce.toy_rows import Result, Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from mpl_toolkits.mplot3d.axes3d import Axes3D

NAMES = {
    "median_distance": "median distance",
    "share_within": "within",
    "mean_gap": "mean |y - x|",
    "samples_zeta": "zeta",
}
LEGEND = """\
% of starts: share that ends nearest to each local minimiser, {places}
median, mean: distance of x to the nearest one; within: share closer than 0.05 (0.005 at the last, next to x = 3)
finished: starts that did not fail, and how the others ended; shares are of all starts, the rest of those that finished
|y - x|: mean; sd: of x inside the global basin; S: squared stationarity of Psi with the exact (w*, lam*), median
"""
COLOURS = {"SALVF": "#1f6fb4", "SALVF-VR": "#d1602b"}
CURVE = "#444444"


# -- tables -----------------------------------------------------------------------------------------------------------


def print_tables(console: Console, results: list[Result], judged: bool) -> None:
    """One table per group of rows, then the targets."""
    places = " / ".join(f"{x:.3f}" for x in local_minimisers())
    console.print(LEGEND.format(places=places), highlight=False)
    for group, rows in groupby(results, key=lambda result: result.row.group):
        console.print(_table(group, rows))
    console.print(_costs(results))
    console.print(_targets(results, judged))
    missed = [f"{r.row.key}: {_described(target)}" for r in results for target, met in r.checks if not met]
    if judged:
        console.print(f"Targets not met: {'; '.join(missed) or 'none'}\n", highlight=False, soft_wrap=True)


def _table(title: str, results: Iterable[Result]) -> Table:
    table = headed(title, "% of starts", "median", "mean", "within", "|y - x|", "sd", "S", "finished")
    for result in results:
        m = result.metrics
        table.add_row(
            result.row.label,
            " / ".join(f"{100 * share:.0f}" for share in m["shares"]),
            f"{m['median_distance']:.4f}",
            f"{m['mean_distance']:.4f}",
            f"{m['share_within']:.1%}",
            f"{m['mean_gap']:.5f}",
            f"{m['sd_global']:.4f}",
            f"{m['squared_stationarity']:.1e}",
            shown_endings({**m, "runs": m["starts"]}),
        )
    return table


def _costs(results: list[Result]) -> Table:
    headings = ("zeta", "xi", "seconds, all starts", "compiling", "statuses")
    table = headed("costs per start, and how the starts ended", *headings)
    for result in results:
        m = result.metrics
        statuses = ", ".join(f"{count} {name}" for name, count in m["statuses"].items())
        numbers = (f"{m['samples_zeta']}", f"{m['samples_xi']}", f"{m['seconds']:.1f}", f"{m['compile_seconds']:.1f}")
        table.add_row(result.row.key, *numbers, statuses)
    return table


def _targets(results: list[Result], judged: bool) -> Table:
    title = "targets" if judged else "targets (a quick run is not judged)"
    rows = [
        (result.row.key, _described(target), _number(target.metric, result.metrics[target.metric]), met)
        for result in results
        for target, met in result.checks
    ]
    finished, total = (sum(result.metrics[name] for result in results) for name in ("finished", "starts"))
    rows.append(("all rows", "no start fails", f"{finished} of {total}", finished == total))
    return target_table(title, ("target", "measured"), [(*texts, met if judged else None) for *texts, met in rows])


def _described(target: Target) -> str:
    return f"{NAMES[target.metric]} {target.sign} {_number(target.metric, target.bound)}"


def _number(metric: str, value: float) -> str:
    if metric == "share_within":
        return f"{value:.1%}"
    return f"{value:.0f}" if metric.startswith("samples") else f"{value:.5f}".rstrip("0")


# -- figures ----------------------------------------------------------------------------------------------------------


def draw(folder: Path, results: Mapping[str, Result], titles: Mapping[str, str]) -> list[Path]:
    """The paper's two figures, SALVF beside SALVF-VR, for every pair of rows KEY/SALVF and KEY/SALVF-VR in `titles`."""
    paths = []
    for key, title in titles.items():
        pair, name = {name: results[f"{key}/{name}"] for name in COLOURS}, key.partition("/")[0]
        paths.append(save_figure(_distribution(pair, title), folder / f"distribution-{name}.png"))
        paths.append(save_figure(_surface(pair, title), folder / f"surface-{name}.png"))
    return paths


def upper_objective(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """F(x, y) of the toy, elementwise."""
    return np.asarray(toy(0.0).problem.upper(jnp.asarray(x), jnp.asarray(y), None))


def _distribution(pair: Mapping[str, Result], title: str) -> "Figure":
    """(a) the final points projected on the curve F(x, x) with the distribution of x; below, one basin.

    That is the global one, or where no run ends in it the one where most do.
    """
    figure = new_figure(11.0, 7.0)
    figure.suptitle(f"Final points from {len(next(iter(pair.values())).x)} random starts: {title}")
    curves, zooms = figure.subplots(2, 2, sharex="row", sharey="row", height_ratios=(3, 2))
    edges = np.linspace(0.0, SIDE, 61)
    most = max(np.histogram(result.x, edges)[0].max() for result in pair.values())
    nearest = {name: _nearest(result.x) for name, result in pair.items()}
    counts = np.bincount(np.concatenate(list(nearest.values())), minlength=len(local_minimisers()))
    shown = _global_index() if counts[_global_index()] else int(counts.argmax())
    basins = {name: result.x[nearest[name] == shown] for name, result in pair.items()}
    together = np.concatenate(list(basins.values()))
    for axis, zoom, (name, result) in zip(curves, zooms, pair.items(), strict=True):
        count = axis.twinx()
        _draw_points(axis, count, result, COLOURS[name], edges)
        count.set(ylim=(0, 4.2 * most))  # the bars stay below the curve
        axis.set(title=name, xlabel="x", xlim=(-0.04, SIDE + 0.04), ylim=(0.0, 4.7))
        if len(together):
            _draw_basin(zoom, basins[name], together, local_minimisers()[shown], COLOURS[name])
    curves[0].set_ylabel("F(x, x)")
    curves[1].legend(loc="upper right", frameon=False)
    zooms[0].set_ylabel("starts")
    return figure


def _nearest(x: np.ndarray) -> np.ndarray:
    """Index of the local minimiser that is nearest to each x."""
    return np.abs(x[:, None] - local_minimisers()).argmin(axis=1)


def _global_index() -> int:
    """Index of the global minimiser."""
    at = local_minimisers()
    return int(np.argmin(upper_objective(at, at)))


def _draw_points(axis: "Axes", count: "Axes", result: Result, colour: str, edges: np.ndarray) -> None:
    """The curve, the points on it, the share at each minimiser; behind them the bars of x."""
    draw_curve(axis)
    count.hist(result.x, edges.tolist(), color=colour, alpha=0.35)
    axis.scatter(result.x, upper_objective(result.x, result.x), s=30, color=colour, alpha=0.6, zorder=3)
    for minimiser, share in zip(local_minimisers(), result.metrics["shares"], strict=True):
        place = (minimiser, float(upper_objective(minimiser, minimiser)))
        inward = "right" if minimiser > SIDE - 0.2 else "center"
        axis.annotate(f"{share:.0%}", place, (0, -12), textcoords="offset points", ha=inward, va="top", color=colour)
    count.set_ylabel("starts (bars)", color=colour)
    count.tick_params(axis="y", colors=colour)
    # The points stand in front of the bars, although the bars' axes were made later.
    axis.set_zorder(count.get_zorder() + 1)
    axis.patch.set_visible(False)
    for each in (axis, count):
        each.spines["top"].set_visible(False)


def _draw_basin(axis: "Axes", x: np.ndarray, together: np.ndarray, best: float, colour: str) -> None:
    """The distribution of x inside a basin, on the bins of both methods, with the normal curve of its sd."""
    # A straggler must not squeeze the rest into one bin.
    low, high = np.quantile(np.append(together, best), (0.01, 0.99))
    margin = 0.15 * (high - low) + 1e-6
    edges = np.linspace(low - margin, high + margin, 36)
    axis.hist(x, edges.tolist(), color=colour, alpha=0.35)
    axis.axvline(best, color="k", lw=1.2, ls="--", label=f"minimiser {best:.4f}")
    if len(x) > 1 and np.std(x) > 0:
        grid, sd = np.linspace(edges[0], edges[-1], 300), np.std(x, ddof=1)
        density = np.exp(-0.5 * ((grid - np.mean(x)) / sd) ** 2) / (sd * np.sqrt(2 * np.pi))
        axis.plot(grid, len(x) * (edges[1] - edges[0]) * density, color=colour, lw=1.5, label=f"normal, sd {sd:.4f}")
    axis.margins(y=0.35)  # room for the legend
    axis.set(xlabel=f"x, where {best:.3f} is the nearest minimiser")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="best", frameon=False)


def draw_curve(axis: "Axes") -> None:
    """F(x, x) over X with its local minimisers."""
    grid = np.linspace(0.0, SIDE, 601)
    axis.plot(grid, upper_objective(grid, grid), color=CURVE, lw=1.4, label="F(x, y*(x)) = F(x, x)")
    at = local_minimisers()
    axis.plot(at, upper_objective(at, at), "k+", ms=11, mew=1.6, zorder=4, ls="none", label="local minimisers")


def _surface(pair: Mapping[str, Result], title: str) -> "Figure":
    """(b) the surface F(x, y) with the final points (x, y, F)."""
    figure = new_figure(12.0, 5.8)
    figure.suptitle(f"F(x, y) and the final points: {title}")
    side = np.linspace(0.0, SIDE, 121)
    x, y = np.meshgrid(side, side)
    for place, (name, result) in enumerate(pair.items()):
        axis: Axes3D = figure.add_subplot(1, 2, place + 1, projection="3d", computed_zorder=False)
        axis.plot_surface(x, y, upper_objective(x, y), cmap="Blues", vmin=-4, alpha=0.8, rstride=2, cstride=2, lw=0)
        axis.plot(side, side, upper_objective(side, side), color=CURVE, lw=1.8, label="y = y*(x) = x")
        heights = upper_objective(result.x, result.y)
        style = {"s": 34, "color": COLOURS["SALVF-VR"], "depthshade": False}
        axis.scatter(result.x, result.y, heights, label="final points", **style)
        axis.view_init(elev=38, azim=62)
        axis.set(xlabel="x", ylabel="y", zlabel="F(x, y)", title=name, zlim=(0, 9))
        axis.set_box_aspect((1.0, 1.0, 0.65), zoom=0.95)
        axis.legend(loc="upper left", frameon=False)
    return figure
