"""`hierax bench methods`, stored: the table for docs/which-method.md, and the profiles for docs/figures.

`python -m benchmarks methods` runs everything (about 30 minutes on two cores) and rewrites the measured part of the
page; `python -m benchmarks.methods` rewrites it from benchmarks/results/methods.json without running anything.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from hierax.experiments.bench import methods
from hierax.experiments.bench.methods_measure import Run
from hierax.experiments.bench.methods_problems import ENTRIES
from hierax.experiments.bench.methods_report import draw_profiles, markdown

ROOT = Path(__file__).parents[1]
PAGE, FIGURE = ROOT / "docs" / "which-method.md", ROOT / "docs" / "figures" / "methods-profiles.png"
STORED = ROOT / "benchmarks" / "results" / "methods.json"
BEGIN, END = "<!-- measured: python -m benchmarks methods -->\n", "<!-- end of measured -->\n"


def run(console: Console) -> dict[str, Any]:
    """Run the table, publish it; the runs, without the records on the way."""
    with tempfile.TemporaryDirectory() as folder:
        found = methods.run(console, list(ENTRIES), methods.NAMES, Path(folder))
    publish(found)
    return {"runs": [{**one, "records": []} for one in found]}


def publish(runs: list[Run]) -> None:
    """Put the tables between the marks of the page, and draw the figure."""
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{markdown(runs)}\n{END}{after}")
    draw_profiles(FIGURE, runs)


if __name__ == "__main__":
    publish(json.loads(STORED.read_text())["runs"])
