"""Compiled programs kept in a folder: a second process reads what the first has compiled."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import collections, json, sys
import jax
counts = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: counts.update([event.rsplit("/", 1)[-1]]))
jax.numpy.ones(3) + 1  # something is compiled before hierax is asked for anything
import hierax as hx
if sys.argv[1:]:
    hx.cache(sys.argv[1])
problem = hx.Problem(lambda x, y, _: y, lambda x, y, _: (y - 2 * x) ** 2)
assert abs(hx.MaxMin(dual_steps=20, primal_steps=5).solve(problem, 1.5, 0.0).y - 3) < 1e-3
print(json.dumps(counts))
"""


def counts_of(*arguments: str, **environment: str) -> dict[str, int]:
    """Run the script in a process that no other cache is set for; how often its programs were found or not."""
    clean = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    command = [sys.executable, "-c", SCRIPT, *arguments]
    done = subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    first = counts_of(str(folder))
    assert first["cache_misses"] > 0
    files = sorted(file.name for file in folder.iterdir())
    assert any(name.endswith("-cache") for name in files)
    second = counts_of(HIERAX_CACHE=str(folder))
    assert second["cache_hits"] >= first["cache_misses"]
    assert sorted(name for name in files if name.endswith("-cache")) == sorted(
        file.name for file in folder.iterdir() if file.name.endswith("-cache")
    )
