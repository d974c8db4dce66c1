"""`hierax bench cold`: CPU seconds from starting Python to the answer, for calls as a new user makes them.

Each call is a script in a fresh Python process with one thread; no compiled program is kept or taken from disk. Its
seconds are user and system time of the process until it has ended, import and compilation included. The modules are
there as bytecode, as an installation leaves them.
"""

import compileall
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
from rich.console import Console

from hierax_lab.bench.cold_calls import CALLS, cold_data
from hierax_lab.output import write_results
from hierax_lab.reproduce.comparison import headed, mark
from hierax_lab.reproduce.workers import one_core_variables

CACHE = "JAX_COMPILATION_CACHE_DIR"
BEGIN = """
import json, sys, time
started = time.process_time()
import hierax as hx
imported = time.process_time() - started
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", sys.argv[1] == "64")
data = dict(np.load(sys.argv[2])) if sys.argv[2] else {}
alone = None
"""
END = """
print(json.dumps({"import": imported, "alone": alone, "status": sol.status.name}))
"""


class Row(TypedDict):
    """CPU seconds of a call and the import's part of them, where it has one; how it ended."""

    call: str
    seconds: float
    status: str
    imported: NotRequired[float]
    then: NotRequired[float]


def measure(name: str, environment: dict[str, str] | None = None) -> Row:
    """Run one call in a fresh process.

    Args:
        name: one of `CALLS`.
        environment: variables to add to the process's own (PYTHONPATH: another version of hierax).

    Returns:
        Its seconds. Raises RuntimeError with the last line that the process wrote where it fails.
    """
    data = cold_data(name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.npz"
        if data:
            np.savez(file, allow_pickle=False, **data)
        command = [sys.executable, "-c", BEGIN + CALLS[name].script + END, "64" if data else "32"]
        output, seconds = run_alone([*command, str(file) if data else ""], environment or {})
    report = json.loads(output.splitlines()[-1])
    row: Row = {"call": name, "seconds": seconds, "status": report["status"], "imported": report["import"]}
    if report["alone"] is not None:
        row = {"call": name, "seconds": report["alone"], "status": report["status"]}
    then = CALLS[name].then
    return row if then is None else {**row, "then": then}


def run_alone(command: list[str], environment: dict[str, str]) -> tuple[str, float]:
    """What the process writes, and its user and system time."""
    variables = {name: value for name, value in os.environ.items() if name != CACHE} | environment
    variables |= one_core_variables()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, env=variables, stdout=output, stderr=errors)
        try:
            _, ended, used = os.wait4(process.pid, 0)
        except KeyboardInterrupt:
            process.kill()
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(ended)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(f"ended with {process.returncode}: {(errors.read().splitlines() or [''])[-1]}")
        return output.read(), used.ru_utime + used.ru_stime


def run(console: Console, names: list[str], out: Path) -> bool:
    """Measure one call after another, print the table, write results.json; whether every target is met."""
    compileall.compile_dir(Path(__file__).parents[2], quiet=2)
    rows: list[Row] = []
    try:
        for name in names:
            rows.append(measure(name))
            write_results(out, rows)
            console.print(f"{name}: {rows[-1]['seconds']:.2f} s", style="dim", highlight=False)
    except KeyboardInterrupt:
        _report(console, rows)
        raise
    return _report(console, rows)


def _report(console: Console, rows: list[Row]) -> bool:
    table = headed("CPU seconds, cold", "at 7a7040e", "now", "of which import", "ended", "target", "")
    met = []
    for row in rows:
        target = CALLS[row["call"]].target
        met += [] if target is None else [row["seconds"] <= target]
        table.add_row(
            row["call"],
            f"{row['then']:.1f}" if "then" in row else "-",
            f"{row['seconds']:.2f}",
            f"{row['imported']:.2f}" if "imported" in row else "-",
            row["status"],
            "" if target is None else f"<= {target:g}",
            "" if target is None else mark(row["seconds"] <= target),
        )
    both = [row for row in rows if "then" in row]
    then, now = sum(row["then"] for row in both), sum(row["seconds"] for row in both)
    if len(rows) == len(CALLS):
        met.append(now <= 0.5 * then)
        table.add_row(
            "sum of what ran then", f"{then:.1f}", f"{now:.2f}", "", "", f"<= {0.5 * then:.1f}", mark(met[-1])
        )
    console.print(table)
    return all(met)
