"""`python -m benchmarks [NAME ...]`: run the benchmarks (all, or those named) and write benchmarks/results."""

import json
import os
import platform
import sys
import time
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

from rich.console import Console  # noqa: E402

from benchmarks import devices, estimators, lower_speed, methods, network_step, scaling, seeds, to_level, toy_speed  # noqa: E402

BENCHMARKS = {
    "toy": toy_speed.run,
    "network": network_step.run,
    "scaling": scaling.run,
    "seeds": seeds.run,
    "to_level": to_level.run,
    "lower": lower_speed.run,
    "methods": methods.run,
    "devices": devices.run,
    "estimators": estimators.run,
}
RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, object]:
    """Notes about where the figures come from."""
    return {"cores": os.cpu_count(), "processor": platform.machine(), "jax": jax.__version__, "python": sys.version[:6]}


def main() -> None:
    """Run, print and keep each result with notes about the machine: NAME.json, and what was printed as NAME.txt."""
    asked = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in asked if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    RESULTS.mkdir(exist_ok=True)
    for name in asked:
        console = Console(record=True, width=120)
        begin = time.perf_counter()
        result = BENCHMARKS[name](console)
        console.print(f"{name}: {time.perf_counter() - begin:.0f} s; {machine()}", highlight=False)
        (RESULTS / f"{name}.json").write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")
        (RESULTS / f"{name}.txt").write_text(console.export_text())


if __name__ == "__main__":
    main()
