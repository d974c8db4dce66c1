"""Where the repository is: for what writes its results, its pages and its figures, or runs its examples.

`lab/src/hierax_lab` is three folders below it. In an installed package there is none, and results go to `out/speed`.
"""

from pathlib import Path

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "lab" / "results" if (ROOT / "lab" / "results").is_dir() else Path("out") / "speed"
