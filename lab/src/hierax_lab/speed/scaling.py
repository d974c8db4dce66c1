"""Time and memory of a step against dim(y), the number of constraints, the batch and the inner steps."""

import functools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import hierax as hx
from hierax_lab.output import new_figure, save_figure
from hierax_lab.repository import RESULTS
from hierax_lab.reproduce.comparison import headed
from hierax_lab.speed.stepping import (
    begun,
    compiled_step,
    network,
    network_problem,
    seconds_per_step,
    size,
    slope,
    stepper,
)

SWEEPS: dict[str, tuple[int, ...]] = {
    "dim(y)": (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000),
    "p": (1, 10, 100, 1_000, 3_000, 10_000, 30_000, 100_000),
    "batch": (1, 4, 16, 64, 128, 256, 1024, 4096),
    "inner steps": (1, 3, 10, 30, 100),
}
MIDDLE = {"dim(y)": 100_000, "p": 1, "batch": 64, "inner steps": 4}
COMPARED = (1_000, 10_000, 100_000, 1_000_000)  # dim(y) at which the other methods are timed too
ESTIMATED_AT = 1_000  # parameters of the network on which unset numbers are estimated
X = np.float32(20.0)  # bound of the norm
TIMED_PRODUCTS = 4e9  # multiplications that are timed at once, about


def _methods(batch: int, inner: int) -> dict[str, Any]:
    sizes: dict[str, Any] = {"batch_zeta": batch, "batch_xi": batch}
    lower = hx.MaxMin(inner, 3, 0.01, 0.01)
    return {
        "SALVF": hx.SALVF(**sizes, inner=hx.SALM(steps=inner)),
        "SALVF-VR": hx.SALVF_VR(**sizes, inner=hx.SALM(steps=inner)),
        "BLOCC": hx.BLOCC(**sizes, c=3.0, lower=lower, penalised=lower),
        "BiC-GAFFA": hx.BiCGAFFA(**sizes, start="given"),
    }


@functools.cache
def _estimated(name: str, batch: int, inner: int, p: int) -> Any:
    """Settings estimated once, on a small network: the cost of a step does not depend on them."""
    small = network(jax.random.key(1), max(ESTIMATED_AT, p) // 75 + 1)
    return begun(network_problem(p), X, small, _methods(batch, inner)[name]).method


def _measured(setting: dict[str, int], names: Iterable[str]) -> dict[str, dict[str, float]]:
    y = network(jax.random.key(1), max(1, setting["dim(y)"] // 75))
    problem, batch, inner = network_problem(setting["p"]), setting["batch"], setting["inner steps"]
    steps = int(min(50, max(1, TIMED_PRODUCTS // (6 * size(y) * batch * (inner + 3)))))
    found = {}
    for name in names:
        ready = begun(problem, X, y, _estimated(name, batch, inner, setting["p"]))
        taken = seconds_per_step(stepper(steps), steps, ready, repeats=3)
        found[name] = {"ms": 1e3 * taken, **compiled_step(ready)}
    return found


def run(console: Console) -> dict[str, Any]:
    """Every sweep for SALVF; the other methods along dim(y) too (LV-HBA has no projection for these constraints)."""
    results: dict[str, Any] = {}
    for axis, values in SWEEPS.items():
        names = tuple(_methods(1, 1)) if axis == "dim(y)" else ("SALVF",)
        rows = [
            _measured({**MIDDLE, axis: value}, names if axis != "dim(y)" or value in COMPARED else names[:1])
            for value in values
        ]
        results[axis] = {"values": values, "rows": rows}
        slopes = results[axis]["slopes"] = {name: slope(*_known(results[axis], name, "ms")) for name in names}
        console.print(_table(axis, values, rows, slopes))
    save_figure(_figure(results), RESULTS / "scaling.png")
    return results


def _known(found: dict[str, Any], name: str, what: str) -> tuple[list[float], list[float]]:
    """Where a method was measured along a sweep, and what was found there."""
    pairs = [(at, row[name][what]) for at, row in zip(found["values"], found["rows"], strict=True) if name in row]
    return [at for at, _ in pairs], [value for _, value in pairs]


def _table(axis: str, values: tuple[int, ...], rows: list[dict[str, Any]], slopes: dict[str, float]) -> Table:
    others = ", ".join(f"{name} {value:g}" for name, value in MIDDLE.items() if name != axis)
    table = headed(f"ms per step against {axis} ({others})", *slopes, "SALVF: copies of y", "compile, s")
    for value, row in zip(values, rows, strict=True):
        table.add_row(
            f"{value:,}",
            *(f"{row[name]['ms']:.3g}" if name in row else "" for name in slopes),
            f"{row['SALVF']['copies']:.1f}",
            f"{row['SALVF']['compile_s']:.2f}",
        )
    table.add_row("slope at the top", *(f"{value:.2f}" for value in slopes.values()))
    return table


def _figure(results: dict[str, Any]) -> Any:
    figure = new_figure(12.0, 6.5)
    panels = figure.subplots(2, 3).ravel()
    for panel, (axis, found) in zip(panels, results.items(), strict=False):
        for name, steepness in found["slopes"].items():
            panel.loglog(*_known(found, name, "ms"), "o-", ms=3, lw=1.2, label=f"{name}, slope {steepness:.2f}")
        panel.set(xlabel=axis, ylabel="ms per step")
    memory, sizes = panels[4], results["dim(y)"]["values"]
    for name in results["dim(y)"]["slopes"]:
        at, used = _known(results["dim(y)"], name, "bytes")
        memory.loglog(at, [value / 1e6 for value in used], "o-", ms=3, label=name)
    memory.loglog(sizes, [4 * value / 1e6 for value in sizes], "k--", lw=0.8, label="one copy of y")
    memory.set(xlabel="dim(y)", ylabel="MB of a compiled step")
    for panel in panels[:5]:
        panel.grid(alpha=0.25)
        panel.legend(frameon=False, fontsize=8)
    panels[5].axis("off")
    return figure
