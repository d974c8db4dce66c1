"""Figures of the measured rates, one function each.

They read the content of metrics.json: `inner`, `floors`, `vr` and `exponents` are what `rates_inner`, `rates_floors`,
`rates_vr` and `rates_exponents` measure.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hierax_lab.output import new_figure, save_figure
from hierax_lab.reproduce.rates_fit import Slope

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#1f6fb4", "#d1602b", "#3a8f4d", "#8a5aa8", "#8c6d31", "#4c4c4c")
MARKERS = ("o", "s", "^", "D", "v", "P")


def draw(folder: Path, inner: dict, floors: dict, vr: dict, exponents: dict) -> list[Path]:
    """All figures."""
    return [
        _inner(folder / "inner.png", inner),
        _variants(folder / "inner_variants.png", inner),
        _floors(folder / "floors.png", floors),
        _without_noise(folder / "without_noise.png", floors["without_noise"]),
        _ratios(folder / "variance_reduction.png", vr),
        _stability(folder / "stability.png", vr["stability"]),
        _penalties(folder / "penalties.png", vr["penalties"]),
        _exponents(folder / "exponents.png", exponents),
    ]


def _log_log(axes: "Axes", x: str, y: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    axes.grid(alpha=0.25)


def _ticks_at(axes: "Axes", values: list[float]) -> None:
    """Label exactly the settings that were run: matplotlib's own labels overlap on a log axis of one decade."""
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.xaxis.minorticks_off()


def _fitted(axes: "Axes", fit: Slope, label: str, number: int) -> None:
    """Means with two standard errors, and the fitted line."""
    at, mean, error = (np.asarray(fit[name]) for name in ("at", "mean", "mean_error"))
    colour = COLOURS[number]
    # A lower bar that reaches below zero has no place on a log axis.
    bars = np.stack([np.minimum(2 * error, 0.9 * mean), 2 * error])
    style: dict[str, Any] = {"fmt": MARKERS[number], "ms": 4, "color": colour, "capsize": 2, "lw": 1}
    axes.errorbar(at, mean, bars, label=_labelled(label, fit), **style)
    axes.plot(at, fit["factor"] * at ** fit["slope"], color=colour, lw=1)


def _labelled(name: str, fit: Slope) -> str:
    return f"{name}: {fit['slope']:.2f} ± {fit['error']:.2f}"


def _errorbars(axes: "Axes", at: list[float], means: list[float], errors: list[float], label: str, number: int) -> None:
    """Means with two standard errors, joined."""
    style: dict[str, Any] = {"marker": MARKERS[number], "color": COLOURS[number], "capsize": 3}
    axes.errorbar(at, means, [2 * error for error in errors], label=label, **style)


def _inner(path: Path, inner: dict) -> Path:
    return _by_inner_steps(path, inner["slopes"], "Inner loop SALM, capped steps, cold start, σ = 1, z = λ*", _fitted)


def _variants(path: Path, inner: dict) -> Path:
    def joined(axes: "Axes", fit: Slope, label: str, number: int) -> None:
        style: dict[str, Any] = {"marker": MARKERS[number], "ms": 4, "color": COLOURS[number]}
        axes.plot(fit["at"], fit["mean"], label=_labelled(label, fit), **style)

    return _by_inner_steps(path, inner["variants"], f"Variants of the inner loop, {inner['variants_on']}", joined)


def _by_inner_steps(path: Path, runs: dict, title: str, draw: Callable[["Axes", Slope, str, int], None]) -> Path:
    """Errors of w and of lam against the inner steps."""
    figure = new_figure(11, 4.6)
    parts = (("w", "E ‖w$_s$ - w*‖²"), ("lam", "E ‖λ$_s$ - λ*‖²"))
    for axes, (part, label) in zip(figure.subplots(1, 2), parts, strict=True):
        for number, (name, fits) in enumerate(runs.items()):
            draw(axes, fits[part], name, number)
        _log_log(axes, "inner steps s", label)
        axes.legend(title="slope", fontsize=8)
    figure.suptitle(title)
    return save_figure(figure, path)


def _floors(path: Path, floors: dict) -> Path:
    labels = {
        "r": "samples of ζ per step, r",
        "q": "samples of ξ per step, q",
        "s": "inner steps s (warm)",
        "c1": "weight c₁",
        "a": "step a = α L$_Ψ$",
    }
    cases = [name for name in ("toy", "synthetic") if name in floors]
    shown = [key for key in labels if "slope" in floors["toy"].get(key, {})]
    figure = new_figure(11, 3.4 * math.ceil(len(shown) / 3))
    for number, key in enumerate(shown):
        axes = figure.add_subplot(math.ceil(len(shown) / 3), 3, number + 1)
        for colour, case in enumerate(cases):
            _fitted(axes, floors[case][key], case, colour)
        _log_log(axes, labels[key], "floor of S")
        _ticks_at(axes, floors["toy"][key]["at"])
        axes.legend(title="slope", fontsize=8)
    figure.suptitle("Floors of the squared stationarity S: one source of noise at a time, constant step")
    return save_figure(figure, path)


def _without_noise(path: Path, found: dict) -> Path:
    figure = new_figure(5.5, 4)
    axes = figure.subplots()
    k, values = np.asarray(found["k"], float), np.asarray(found["S"])
    axes.plot(k, values, color=COLOURS[0], label="S, no noise, exact inner solver")
    axes.plot(k, values[1] * k[1] / k, "--", color=COLOURS[5], label="1/(α k)")
    axes.set(yscale="log", xlabel="outer step k (linear scale)", ylabel="S")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    axes.set_title("Toy without noise: linear convergence", fontsize=10)
    return save_figure(figure, path)


def _ratios(path: Path, vr: dict) -> Path:
    figure = new_figure(11, 4.2)
    left, right = figure.subplots(1, 2)
    sigmas = [float(sigma) for sigma in vr["toy"]]
    groups = (
        (left, ("S ratio, equal samples", "S ratio, equal gradients"), "S(SALVF) / S(SALVF-VR)"),
        (right, ("mean distance, VR over SALVF", "sd in the global basin, VR over SALVF"), "SALVF-VR / SALVF"),
    )
    for axes, names, label in groups:
        for number, name in enumerate(names):
            rows = [one[name] for one in vr["toy"].values()]
            means, errors = ([row[part] for row in rows] for part in ("mean", "error"))
            _errorbars(axes, sigmas, means, errors, name, number)
        axes.axhline(1.0, color=COLOURS[5], lw=0.8, ls=":")
        axes.set(xscale="log", xlabel="noise σ", ylabel=label, ylim=(0, None))
        _ticks_at(axes, sigmas)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8, loc="lower right")
    left.set_title("squared stationarity: VR is better", fontsize=10)
    right.set_title("position of x: it is not", fontsize=10)
    figure.suptitle("Toy, multiplier, c₁ = 5, c₂ = 100, the same decaying steps")
    return save_figure(figure, path)


def _stability(path: Path, runs: dict) -> Path:
    figure = new_figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    for number, (name, run) in enumerate(runs.items()):
        line = "--" if "no noise" in name else "-"
        for axes, values in ((left, run["S_on_grid"]), (right, run["corner_on_grid"])):
            axes.plot(run["grid"], values, label=name, marker=MARKERS[number], ms=4, color=COLOURS[number], ls=line)
    _log_log(left, "outer step k", "S (mean over the seeds)")
    right.set(xscale="log", xlabel="outer step k", ylim=(-0.02, 1.02))
    right.set_ylabel("share of the runs in a corner of [0, 3]²")
    right.grid(alpha=0.25)
    right.legend(fontsize=8, loc="upper left")
    figure.suptitle("Long runs of SALVF-VR: the printed schedule and the default")
    return save_figure(figure, path)


def _penalties(path: Path, found: dict) -> Path:
    figure = new_figure(9, 4)
    for axes, name in zip(figure.subplots(1, 2), ("mean |y - x|", "mean distance"), strict=True):
        for number, (penalty, rows) in enumerate(found.items()):
            at, means, errors = ([row[part] for row in rows] for part in ("c1", name, f"{name} error"))
            _errorbars(axes, at, means, errors, f"{penalty}, c₂ = {rows[0]['c2'] / rows[0]['c1']:g} c₁", number)
        _log_log(axes, "weight c₁", name if name != "mean distance" else "mean distance of x to a minimiser")
        _ticks_at(axes, [row["c1"] for row in found["quadratic"]])
        axes.legend(fontsize=8)
    figure.suptitle("Outer penalty at equal samples (2,500 steps, σ = 0.1, toy)")
    return save_figure(figure, path)


def _exponents(path: Path, found: dict) -> Path:
    figure = new_figure(11, 4.2)
    left, right = figure.subplots(1, 2)
    plain, reduced = (found[name]["fixed c"] for name in ("SALVF", "SALVF-VR"))
    _fitted(left, plain["R"], "SALVF, r, q, s ~ K: S", 0)
    _fitted(left, reduced["R"], "SALVF-VR, r = 1: S", 1)
    _fitted(left, reduced["R over 1 + log K"], "SALVF-VR: S/(1 + log K)", 2)
    for number, name in enumerate(("SALVF", "SALVF-VR")):
        _fitted(right, found[name]["regime"], name, number)
    _log_log(left, "outer steps K", "S of the random iterate R")
    _log_log(right, "ε", "S of the random iterate R")
    eps = found["SALVF"]["regime"]["at"]
    _ticks_at(right, eps)
    right.set_xticklabels([f"1/{1 / one:.0f}" for one in eps])
    left.set_title("c₁ = c₂ = 1", fontsize=10)
    right.set_title("c₁ = 1/ε, c₂ = 1/ε³, equal samples of ζ", fontsize=10)
    for axes in (left, right):
        axes.legend(title="slope", fontsize=8)
    figure.suptitle("Algorithms 2 and 3 as printed")
    return save_figure(figure, path)
