"""Time a few fixed calls and add the result to the history: `make performance`.

    python tools/performance_history.py [--file FILE] [--repeats N] [--plot PICTURE]

Each group of calls runs in fresh processes, on one thread of NumPy and without stored programs. A call is cold where it
traces and compiles, warm where the same call was made before. Counted are CPU seconds, of all threads. Machines differ
and are shared, so every process also times a fixed piece of NumPy work, the reference (the median of five), and the
history compares ratios: CPU seconds of the call by those of the reference. Of several processes the one with the median
ratio counts. The file holds a list of records: commit, date, versions, and the figures of each call.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "lab" / "results"
ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
PACKAGES = ("hierax", "jax", "jaxlib", "numpy", "equinox", "optax")
README_ANSWER = 1 / 1.1


def reference() -> None:
    """Some of what the calls do, without them: dense linear algebra, and many small operations."""
    import numpy as np

    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(300, 300))
    small = rng.normal(size=8)
    for _ in range(20):
        np.linalg.cholesky(matrix @ matrix.T + 300.0 * np.eye(300))
    for _ in range(30_000):
        small = 0.5 * small + np.tanh(small)


def readme_problem() -> Any:
    """The problem of the README; its answer is x = y = 1/1.1."""
    import hierax as hx

    return hx.Problem(
        upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        constraints=lambda x, y: y - x,
        x_set=hx.Box(0.0, 3.0),
        y_set=hx.Box(0.0, 3.0),
    )


def cpu_seconds(call: Callable[[], Any]) -> float:
    """CPU seconds of a call."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def run_group(group: str) -> dict[str, float]:
    """CPU seconds of the calls of a group, and of the reference, in this process."""
    seconds = {"import": cpu_seconds(lambda: __import__("hierax"))}
    import hierax as hx

    problem = readme_problem()
    if group == "SALVF":
        from hierax.problems import toy

        problem = toy(0.1).problem
    calls = {
        "SALVF": lambda: hx.solve(problem, 0.5, 0.5, hx.SALVF(), max_steps=500, seed=0, progress=False),
        "Auto": lambda: hx.solve(problem, 0.5, 0.5, seed=0, progress=False),
        "certify": lambda: hx.certify(problem, README_ANSWER, README_ANSWER, seed=0),
    }
    if group != "import":
        seconds = {f"{group}, {state}": cpu_seconds(calls[group]) for state in ("cold", "warm")}
    return seconds | {"reference": statistics.median(cpu_seconds(reference) for _ in range(5))}


def measure(group: str, repeats: int) -> dict[str, dict[str, float]]:
    """Figures of a group by call: CPU seconds and ratio, of the process with the median ratio."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"} | ALONE
    command = [sys.executable, __file__, "--group", group]
    runs = []
    for _ in range(repeats):
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    figures = {}
    for name in runs[0].keys() - {"reference"}:
        ratio, seconds = sorted((run[name] / run["reference"], run[name]) for run in runs)[(len(runs) - 1) // 2]
        figures[name] = {"ratio": round(ratio, 3), "cpu_seconds": round(seconds, 4)}
    return dict(sorted(figures.items()))


def record(repeats: int) -> dict[str, Any]:
    """All figures, with what it takes to compare them."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    calls: dict[str, dict[str, float]] = {}
    for group in ("import", "SALVF", "Auto", "certify"):
        calls |= measure(group, repeats)
    return {
        "commit": git("rev-parse", "HEAD"),
        "changed": bool(git("status", "--porcelain", "--untracked-files=no", "--", "src")),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "calls": calls,
    }


def draw(history: list[dict[str, Any]], picture: Path) -> None:
    """The ratio of every call, by record."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(max(6.0, 0.4 * len(history) + 3.0), 4.0), layout="constrained")
    for name in dict.fromkeys(name for one in history for name in one["calls"]):
        places = [place for place, one in enumerate(history) if name in one["calls"]]
        axes.plot(places, [history[place]["calls"][name]["ratio"] for place in places], "o-", label=name)
    axes.set_xticks(range(len(history)), [f"{one['commit'][:8]}\n{one['date']}" for one in history], rotation=60)
    axes.set(yscale="log", ylabel="CPU seconds, by those of the reference")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Measure, add a record, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, default=RESULTS / "performance.json", help="the history")
    parser.add_argument("--repeats", type=int, default=3, help="processes per group of calls; 0 measures nothing")
    parser.add_argument("--plot", type=Path, help="draw the history into this file")
    parser.add_argument("--group", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.group:
        print(json.dumps(run_group(asked.group)))
        return
    history = json.loads(asked.file.read_text("utf-8")) if asked.file.is_file() else []
    if asked.repeats:
        history.append(record(asked.repeats))
        asked.file.write_text(json.dumps(history, indent=1) + "\n", "utf-8")
        for name, figures in history[-1]["calls"].items():
            before = history[-2]["calls"].get(name, {}).get("ratio") if len(history) > 1 else None
            change = f", before {before:.2f}" if before else ""
            print(f"{name:16s} {figures['cpu_seconds']:8.3f} CPU s, ratio {figures['ratio']:.2f}{change}")
    if asked.plot:
        draw(history, asked.plot)


if __name__ == "__main__":
    main()
