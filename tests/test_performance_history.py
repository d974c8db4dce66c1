"""The history of times: what a record holds, that records are added, and that the picture shows them."""

import importlib.util
import json
from pathlib import Path

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "performance_history.py"
CALLS = ["import", "SALVF, cold", "SALVF, warm", "Auto, cold", "Auto, warm", "certify, cold", "certify, warm"]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("performance_history", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def quick(tool, monkeypatch):
    """Processes that answer at once: the reference takes 0.5 s, then 1 s, then 2 s, each call four seconds."""
    speeds = iter([0.5, 1.0, 2.0] * 40)

    def run(command, **_):
        names = [name for name in CALLS if name.startswith(command[-1])]
        answer = dict.fromkeys(names, 4.0) | {"reference": next(speeds)}
        return type("Done", (), {"stdout": "a warning\n" + json.dumps(answer) + "\n"})

    true_run = tool.subprocess.run
    monkeypatch.setattr(
        tool.subprocess, "run", lambda command, **more: (true_run if command[0] == "git" else run)(command, **more)
    )


def test_the_median_ratio_counts(tool, quick):
    assert tool.measure("SALVF", 3) == {
        "SALVF, cold": {"ratio": 4.0, "cpu_seconds": 4.0},
        "SALVF, warm": {"ratio": 4.0, "cpu_seconds": 4.0},
    }


def test_records_are_added_and_drawn(tool, quick, tmp_path, capsys):
    history, picture = tmp_path / "performance.json", tmp_path / "new" / "picture.png"
    for _ in range(2):
        tool.main(["--file", str(history), "--plot", str(picture)])
    records = json.loads(history.read_text("utf-8"))
    assert [list(one["calls"]) for one in records] == [CALLS, CALLS]
    assert set(records[0]["versions"]) == {"python", *tool.PACKAGES}
    assert "before 4.00" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    tool.main(["--file", str(history), "--repeats", "0"])
    assert json.loads(history.read_text("utf-8")) == records


def test_a_process_measures_itself(tool):
    """The one true measurement here: importing, in a fresh process."""
    figures = tool.measure("import", 1)["import"]
    assert figures["cpu_seconds"] > 0.05 and figures["ratio"] > 0.05


def test_the_stored_history_can_be_compared(tool):
    for one in json.loads((tool.RESULTS / "performance.json").read_text("utf-8")):
        assert set(one["calls"]) == set(CALLS) and len(one["commit"]) == 40
        assert all(figures["ratio"] > 0 for figures in one["calls"].values())
