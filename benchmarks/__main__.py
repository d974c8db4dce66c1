"""`python -m benchmarks`: run every benchmark and write benchmarks/results/core.json."""

import json
import os
import platform
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

from rich.console import Console  # noqa: E402

from benchmarks import network_step, toy_speed  # noqa: E402


def main() -> None:
    """Run, print and keep the results with notes about the machine."""
    console = Console()
    results = {
        "machine": {"cores": os.cpu_count(), "processor": platform.machine(), "jax": jax.__version__},
        "toy": toy_speed.run(console),
        "network": network_step.run(console),
    }
    path = Path(__file__).parent / "results" / "core.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"written to benchmarks/results/{path.name}")


if __name__ == "__main__":
    main()
