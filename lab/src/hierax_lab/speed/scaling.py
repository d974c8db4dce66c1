"""Time and memory against size: of a step, and of a whole call of `hx.solve` with nothing set (`solves`)."""

import functools
import logging
import resource
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import hierax as hx
from hierax_lab.bench.medium_planted import planted_qp
from hierax_lab.bench.samples_cases import robust
from hierax_lab.output import new_figure, save_figure
from hierax_lab.problems import chain, flows, membrane
from hierax_lab.repository import RESULTS
from hierax_lab.reproduce.comparison import headed, target_table
from hierax_lab.reproduce.workers import Name, Task, run_tasks
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


class Solve(NamedTuple):
    """Calls of `hx.solve` along a size: the problem and its start, the sizes, the exponent that is allowed."""

    build: Callable[[int], tuple[hx.Problem, Any, Any]]
    sizes: tuple[int, ...]
    most: float


def _sparse(build: Callable[..., Any], size: int, *arguments: int) -> tuple[hx.Problem, Any, Any]:
    example = build(size, *arguments)
    return example.problem, example.x0, example.y0


def _flows(size: int) -> tuple[hx.Problem, Any, Any]:
    side = round((size / 4) ** (1 / 3) + 0.4)
    return _sparse(flows, side, max(1, round(size / (4 * side * (side - 1)))))


def _dense(size: int) -> tuple[hx.Problem, Any, Any]:
    case = planted_qp(10, size, 3 * size // 10)
    return case.problem, case.x0, case.y0


def _rows(count: int) -> tuple[hx.Problem, Any, Any]:
    problem, x0, _ = robust(count, 10)
    return problem, x0, np.zeros(x0.size)


SPARSE = (100, 300, 1_000, 3_000, 10_000, 20_000)
SOLVES = {
    "dim(y), chain": Solve(functools.partial(_sparse, chain), SPARSE, 1.5),
    "dim(y), membrane": Solve(lambda size: _sparse(membrane, round(size**0.5)), SPARSE, 1.5),
    "dim(y), flows": Solve(_flows, SPARSE, 1.5),
    "dim(y), dense": Solve(_dense, (100, 200, 500, 1_000, 2_000), 3.0),
    "rows": Solve(_rows, (1_000, 10_000, 100_000, 1_000_000), 1.0),
}
SOLVE_SECONDS = 120.0  # limit of a call, by the clock
ABOUT = 0.1  # by how much a fitted exponent may be above what is allowed


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


def solve_cost(axis: str, size: int) -> dict[str, Any]:
    """CPU seconds of a first and of a second call on the same problem, peak memory of the process, how it ended."""
    logging.getLogger("hierax").setLevel(logging.ERROR)
    jax.config.update("jax_enable_x64", False)
    problem, x0, y0 = SOLVES[axis].build(size)
    unit = 1024 if sys.platform != "darwin" else 1  # of ru_maxrss, in bytes
    before, spent = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(2):
        began = time.process_time()
        found = hx.solve(problem, x0, y0, seconds=SOLVE_SECONDS, throw=False, progress=False)
        spent.append(time.process_time() - began)
    peak = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "dim(y)": int(np.size(y0)),
        "cold": spent[0],
        "warm": spent[1],
        "upper": found.value,
        "status": found.status.name,
        "mb_before": before / 1e6,
        "mb": peak / 1e6,
    }


def solves(console: Console, chosen: dict[str, tuple[int, ...]] | None = None) -> dict[str, Any]:
    """Every size in a process of its own: table, exponents of the compiled calls and whether they are allowed."""
    sizes = chosen or {axis: solve.sizes for axis, solve in SOLVES.items()}
    tasks: dict[Name, Task[dict[str, Any]]] = {
        (axis, f"{size:,}"): (solve_cost, (axis, size)) for axis, some in sizes.items() for size in some
    }
    found = run_tasks(tasks, console, parallel=True, fresh=True)
    results: dict[str, Any] = {}
    targets = []
    for axis, some in sizes.items():
        rows = [found[axis, f"{size:,}"] for size in some]
        measured = [size if axis == "rows" else row["dim(y)"] for size, row in zip(some, rows, strict=True)]
        exponent = slope(measured, [row["warm"] for row in rows])
        results[axis] = {"values": measured, "rows": rows, "exponent": exponent}
        table = headed(f"`hx.solve` with nothing set, against {axis}", "cold, CPU s", "warm", "F", "MB", "status")
        for at, row in zip(measured, rows, strict=True):
            numbers = (f"{row['cold']:.1f}", f"{row['warm']:.2f}", f"{row['upper']:.3g}", f"{row['mb']:.0f}")
            table.add_row(f"{at:,}", *numbers, row["status"])
        console.print(table)
        allowed = SOLVES[axis].most
        targets.append((f"{axis}: exponent at most {allowed:g}", f"{exponent:.2f}", exponent <= allowed + ABOUT))
    console.print(target_table("targets", ("measured, compiled",), targets))
    return results
