"""`hierax bench methods`, stored: for `hierax bench run`, docs/start/which-method.md and its figure of the profiles.

`python -m hierax_lab.speed methods` runs everything (docs/start/which-method.md says how long that takes), stores the
runs and rewrites the measured part of the page. `python -m hierax_lab.speed.methods [FILE]` does the same with a
results.json of `hierax bench methods`, or with what is stored, without running anything.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from hierax import cache
from hierax_lab.bench import methods
from hierax_lab.bench.methods_measure import Run
from hierax_lab.bench.methods_problems import ENTRIES
from hierax_lab.bench.methods_report import draw_profiles, kinds_solved, markdown
from hierax_lab.repository import ROOT

PAGE, FIGURE = ROOT / "docs" / "start" / "which-method.md", ROOT / "docs" / "figures" / "methods-profiles.png"
BEGIN, END = "<!-- measured: python -m hierax_lab.speed methods -->\n", "<!-- end of measured -->\n"


def run(console: Console) -> dict[str, Any]:
    """Run the table with no program compiled before, and publish it; which kinds each method solves."""
    with tempfile.TemporaryDirectory() as folder:
        cache(Path(folder) / "programs")
        found = methods.run(console, list(ENTRIES), methods.NAMES, Path(folder))
    publish(found)
    return {"kinds solved": {name: kinds_solved(found, name) for name in methods.NAMES}}


def publish(runs: list[Run]) -> None:
    """Store the runs without the records on the way, put the tables between the marks of the page, draw the figure."""
    lines = [json.dumps({**run, "records": []}) for run in runs]
    methods.STORED.write_text('{"runs": [\n' + ",\n".join(lines) + "\n]}\n")
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{markdown(runs)}\n{END}{after}")
    draw_profiles(FIGURE, runs)


if __name__ == "__main__":
    publish(methods.stored(Path(sys.argv[1]) if sys.argv[1:] else methods.STORED))
