"""The theory, measured: `hierax reproduce rates`.

Inner error against s, floors of the outer loop, SALVF-VR against SALVF, the stability of its schedules, and the two
outer penalties; on the toy, on quadratic problems over ellipsoids and on the synthetic problem. Everything is float64
with fixed seeds.
"""

import time
from collections.abc import Callable
from pathlib import Path

import jax
from rich import box
from rich.console import Console
from rich.table import Table

from hierax.extend import Interrupt, interruptible
from hierax_lab.output import draw_or_say, versions, write_json
from hierax_lab.reproduce import rates_figures, rates_floors, rates_inner, rates_vr
from hierax_lab.reproduce.rates_claims import ANY, Statement, Target, statements, targets
from hierax_lab.reproduce.rates_sizes import Sizes, choose

PARTS: dict[str, Callable[[Sizes], dict]] = {
    "inner": rates_inner.measure,
    "floors": rates_floors.measure,
    "outer": rates_vr.measure,
}


def run(
    out: Path,
    quick: bool = False,
    seeds: int | None = None,
    data_dir: Path | None = None,
    console: Console | None = None,
) -> dict[str, object]:
    """Measure everything, write metrics.json and the figures, print the table and what it says.

    Args:
        out: folder for the results.
        quick: a minute instead of several: fewer seeds, no synthetic problem; the targets are shown all the same.
        seeds: replaces every number of seeds.
        data_dir: not used, no experiment here has data.
        console: where the table goes; None: standard output.

    Returns:
        The content of metrics.json.
    """
    del data_dir
    console = console or Console()
    sizes = choose(quick, seeds)
    with jax.enable_x64(True), interruptible() as interrupt:
        parts, seconds = _measured(sizes, console, interrupt)
    if interrupt.asked:
        done = dict(zip(PARTS, parts, strict=False))
        write_json(out / "metrics.json", {"sizes": sizes, "versions": versions(), "seconds": seconds, **done})
        console.print(f"Interrupted: {len(parts)} of {len(PARTS)} parts were measured; they are in {out}.")
        raise KeyboardInterrupt
    goals, words = targets(*parts), statements(*parts)
    console.print(_target_table(goals))
    console.print(_statement_table(words))
    content: dict[str, object] = {
        "sizes": sizes,
        "versions": versions(),
        "seconds": seconds,
        **dict(zip(PARTS, parts, strict=True)),
        "targets": [{**goal._asdict(), "met": goal.met} for goal in goals],
        "statements": [word._asdict() for word in words],
    }
    write_json(out / "metrics.json", content)
    draw_or_say(lambda: rates_figures.draw(out / "figures", *parts), console.out)
    console.print(f"Written to {out}: metrics.json, figures/", soft_wrap=True)
    return content


def _measured(sizes: Sizes, console: Console, interrupt: Interrupt) -> tuple[list[dict], dict[str, float]]:
    """What every part measures, in the order of `PARTS`, and the seconds that each took; up to Ctrl-C."""
    parts, seconds = [], {}
    for name, measure in PARTS.items():
        begin = time.perf_counter()
        try:
            measured = measure(sizes)
        except KeyboardInterrupt:
            interrupt.ask()
        if interrupt.asked:  # what was under way ended before its time
            break
        parts.append(measured)
        seconds[name] = round(time.perf_counter() - begin, 1)
        console.print(f"{name}: measured in {seconds[name]:.0f} s", style="dim")
    return parts, seconds


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table


def _target_table(goals: list[Target]) -> Table:
    table = _table("Measured numbers", "what", "measured", "range", "")
    for goal in goals:
        upper = "" if goal.high == ANY else f" to {goal.high:g}"
        wanted = f">= {goal.low:g}" if not upper else f"{goal.low:g}{upper}"
        verdict = "[green]met[/]" if goal.met else "[red]not met[/]"
        table.add_row(goal.name, f"{goal.measured:.3g}", wanted, verdict)
    return table


def _statement_table(words: list[Statement]) -> Table:
    table = _table("Statements", "", "claim", "measured")
    for word in words:
        table.add_row("[green]seen[/]" if word.seen else "[red]not seen[/]", word.claim, word.measured)
    return table
