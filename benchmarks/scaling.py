"""Time and memory of a step against dim(y), the number of constraints, the batch and the inner steps."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich import box
from rich.console import Console
from rich.table import Table

import hierax as hx
from benchmarks.stepping import begun, network, network_problem, seconds_per_step, slope, step_bytes, stepper
from hierax.report import new_figure, save_figure
from hierax.trees import size

RESULTS = Path(__file__).parent / "results"
SWEEPS: dict[str, tuple[int, ...]] = {
    "dim(y)": (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000),
    "p": (1, 10, 100, 1_000, 3_000, 10_000, 30_000, 100_000),
    "batch": (1, 4, 16, 64, 128, 256, 1024, 4096),
    "inner steps": (1, 3, 10, 30, 100),
}
MIDDLE = {"dim(y)": 100_000, "p": 1, "batch": 8, "inner steps": 4}
VR_UP_TO = 1_000_000  # dim(y): beyond it SALVF alone
LONG = 2e9  # about this many multiplications are timed at once
MOST = 1.1  # slope


def _methods(batch: int, inner: int) -> dict[str, Any]:
    sizes = {"batch_zeta": batch, "batch_xi": batch}
    return {
        "SALVF": hx.SALVF(**sizes, inner=hx.SALM(steps=inner)),
        "SALVF-VR": hx.SALVF_VR(**sizes, inner=hx.SALM(steps=inner)),
    }


def _measured(setting: dict[str, int], names: Iterable[str]) -> dict[str, dict[str, float]]:
    y = network(jax.random.key(1), max(1, setting["dim(y)"] // 75))
    problem = network_problem(setting["p"])
    work = 6 * size(y) * setting["batch"] * (setting["inner steps"] + 3)
    steps = int(min(50, max(1, LONG // work)))
    found = {}
    for name, method in _methods(setting["batch"], setting["inner steps"]).items():
        if name not in names:
            continue
        ready = begun(problem, jnp.asarray(20.0, jnp.float32), y, method)
        used = step_bytes(ready)
        found[name] = {
            "ms": 1e3 * seconds_per_step(stepper(steps), steps, ready, repeats=3),
            "copies": (used["state"] + used["temporary"]) / used["y"],
            "bytes": used["state"] + used["temporary"],
        }
    return found


def run(console: Console) -> dict[str, Any]:
    """Every sweep for SALVF; SALVF-VR along dim(y)."""
    results: dict[str, Any] = {}
    for axis, values in SWEEPS.items():
        both = axis == "dim(y)"
        rows = [
            _measured({**MIDDLE, axis: value}, ("SALVF", "SALVF-VR") if both and value <= VR_UP_TO else ("SALVF",))
            for value in values
        ]
        slopes = {name: _slope(values, rows, name) for name in (("SALVF", "SALVF-VR") if both else ("SALVF",))}
        results[axis] = {"values": values, "rows": rows, "slopes": slopes}
        console.print(_table(axis, values, rows, slopes))
    save_figure(_figure(results), RESULTS / "scaling.png")
    return results


def _slope(values: tuple[int, ...], rows: list[dict[str, Any]], name: str) -> float:
    known = [(value, row[name]["ms"]) for value, row in zip(values, rows, strict=True) if name in row]
    return slope(*(list(column) for column in zip(*known, strict=True)))


def _table(axis: str, values: tuple[int, ...], rows: list[dict[str, Any]], slopes: dict[str, float]) -> Table:
    others = ", ".join(f"{name} {value:g}" for name, value in MIDDLE.items() if name != axis)
    table = Table(title=f"ms per step against {axis} ({others})", box=box.SIMPLE_HEAD, title_justify="left")
    for heading in (axis, *(f"{name}" for name in slopes), "SALVF: copies of y"):
        table.add_column(heading, justify="right")
    for value, row in zip(values, rows, strict=True):
        table.add_row(
            f"{value:,}",
            *(f"{row[name]['ms']:.3g}" if name in row else "" for name in slopes),
            f"{row['SALVF']['copies']:.1f}",
        )
    table.add_row("slope at the top", *(f"{value:.2f}" for value in slopes.values()))
    return table


def _figure(results: dict[str, Any]) -> Any:
    figure = new_figure(12.0, 6.5)
    panels = figure.subplots(2, 3).ravel()
    for panel, (axis, found) in zip(panels, results.items(), strict=False):
        for name, steepness in found["slopes"].items():
            times = [row[name]["ms"] for row in found["rows"] if name in row]
            panel.loglog(
                found["values"][: len(times)], times, "o-", ms=3, lw=1.2, label=f"{name}, slope {steepness:.2f}"
            )
        panel.set(xlabel=axis, ylabel="ms per step")
    memory, sizes = panels[4], results["dim(y)"]["values"]
    for name in results["dim(y)"]["slopes"]:
        used = [row[name]["bytes"] / 1e6 for row in results["dim(y)"]["rows"] if name in row]
        memory.loglog(sizes[: len(used)], used, "o-", ms=3, label=name)
    memory.loglog(sizes, [4 * value / 1e6 for value in sizes], "k--", lw=0.8, label="one copy of y")
    memory.set(xlabel="dim(y)", ylabel="MB of a compiled step")
    for panel in panels[:5]:
        panel.grid(alpha=0.25)
        panel.legend(frameon=False, fontsize=8)
    panels[5].axis("off")
    return figure
