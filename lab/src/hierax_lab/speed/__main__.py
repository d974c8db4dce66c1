"""`python -m hierax_lab.speed [NAME ...]`: run the benchmarks (all, or those named) and write lab/results."""

import importlib
import os
import platform
import sys
import time

import jax
from rich.console import Console

from hierax_lab.output import write_json
from hierax_lab.repository import RESULTS

BENCHMARKS = {  # module and function of each, imported when it is run: some need packages that others do not
    "toy": "toy_speed",
    "network": "network_step",
    "scaling": "scaling",
    "solves": "scaling:solves",
    "seeds": "seeds",
    "to_level": "to_level",
    "lower": "lower_speed",
    "methods": "methods",
    "devices": "devices",
    "estimators": "estimators",
}


def machine() -> dict[str, object]:
    """Notes about where the figures come from."""
    return {"cores": os.cpu_count(), "processor": platform.machine(), "jax": jax.__version__, "python": sys.version[:6]}


def main() -> None:
    """Run, print and keep each result with notes about the machine: NAME.json, and what was printed as NAME.txt."""
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    jax.config.update("jax_enable_x64", True)
    for name in names:
        console = Console(record=True, width=120)
        begin = time.perf_counter()
        module, _, function = BENCHMARKS[name].partition(":")
        result = getattr(importlib.import_module(f"hierax_lab.speed.{module}"), function or "run")(console)
        console.print(f"{name}: {time.perf_counter() - begin:.0f} s; {machine()}", highlight=False)
        write_json(RESULTS / f"{name}.json", {"machine": machine(), **result})
        (RESULTS / f"{name}.txt").write_text(console.export_text())


if __name__ == "__main__":
    main()
