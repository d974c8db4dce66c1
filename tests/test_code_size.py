"""Tools that count: tools/code_size.py on a small made-up tree and the files that a call visits; tools/rooms.py."""

import importlib.util
import json
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "code_size.py"
spec = importlib.util.spec_from_file_location("code_size", TOOL)
code_size = importlib.util.module_from_spec(spec)
spec.loader.exec_module(code_size)

TOP = '"""Text."""\n\nfrom typing import Any\n\n__version__ = "1"\n'
ENGINE = '''"""Text of
two lines."""

import typing
from typing import Any

STEPS, TOL = 3, -1e-6  # two numbers
TABLE = {"a": 0.25, "b": (1, 2)}
BYTES = 2 * 1024
NAMES = ("x", "y")
FOUND = max(7, 1)  # a literal: the argument of a call; 1 is trivial
"""What stands alone is text."""

if NAMES:
    EXTRA: int = 4


class Part:
    """Text."""

    size: int = 5
    scale: float = max(0.5, size)

    def go(self, x: Any, steps: int = 2, *, tol: float = 1e-3) -> typing.Any:
        """Text.

        More of it.
        """

        def inner(y=9):
            return y

        # a comment
        made = {"k": 6, "one": 1, "sum": x + 0.5 * 11}
        other = dict(z=8)
        return (
            made,
            other,
            x[0] + 1.0 * -2 + 12,
            True,
        )


def _private(): return (lambda a=0.1: a)()
'''


def made(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    many = "class Many:\n" + "".join(f"    def f{i}(self): pass\n" for i in range(16))
    files = {
        "src/hierax/__init__.py": TOP,
        "src/hierax/_engine/__init__.py": "",
        "src/hierax/_engine/part.py": ENGINE,
        "src/hierax/_engine/deep/many.py": many,
        "lab/hierax_lab/__init__.py": "A = 10\n",
        "lab/hierax_lab/bench/runs.py": "LIMIT = 20\n",
        "lab/tests/test_runs.py": "B = 30\n",
        "tests/test_part.py": "C = 40\n",
    }
    return made(tmp_path, files)


def test_exact_counts_of_every_kind(tree: Path) -> None:
    found = code_size.counts(tree)
    assert list(found["packages"]) == ["hierax", "hierax/_engine", "hierax_lab", "hierax_lab/bench"]
    assert found["packages"]["hierax"] == dict.fromkeys(code_size.COLUMNS, 0) | {"files": 1, "code lines": 2}
    assert found["packages"]["hierax/_engine"] == {
        "files": 3,
        "code lines": 24 + 17,
        "functions": 1,
        "classes": 2,
        "constants": 7,  # STEPS, TOL, TABLE, BYTES, NAMES, FOUND, EXTRA
        "names": 10,
        "public": 2,  # Part, Many
        "module numbers": 8,  # 3, 1e-6, 0.25, 1, 2, 2, 1024, 4
        "default numbers": 6,  # 5, 0.5, 2, 1e-3, 9, 0.1
        "dictionary numbers": 5,  # 6, 1, 0.5, 11, 8
        "literal numbers": 2,  # 7, 12
        "numbers": 21,
        "Any": 2,
    }
    assert found["packages"]["hierax_lab/bench"]["module numbers"] == 1
    assert found["total"]["files"] == 6
    assert found["total"]["numbers"] == 23
    assert found["classes over 15 methods"] == [{"size": 16, "where": "src/hierax/_engine/deep/many.py:1 Many"}]
    # The lines of `inner` are lines of `go`, too.
    assert found["longest functions"][0] == {"size": 11, "where": "src/hierax/_engine/part.py:24 go"}
    assert len(found["longest functions"]) == 10


@pytest.mark.parametrize(
    "moved",
    [
        "def run(steps=2, tol=1e-6):\n    return steps, tol\n",
        "class Run:\n    steps: int = 2\n    tol: float = field(default=1e-6)\n",
        'def run():\n    settings = {"steps": 2, "tol": 1e-6}\n    return settings\n',
        "def run():\n    return dict(steps=2, tol=1e-6)\n",
        "run = lambda steps=2, tol=1e-6: steps\n",
    ],
)
def test_a_number_that_moves_into_a_default_or_a_dictionary_still_counts(tmp_path: Path, moved: str) -> None:
    before = made(tmp_path / "before", {"src/p/__init__.py": "STEPS = 2\nTOL = 1e-6\n"})
    after = made(tmp_path / "after", {"src/p/__init__.py": moved})
    assert code_size.counts(before)["total"]["numbers"] == 2
    assert code_size.counts(after)["total"]["numbers"] == 2


def test_files_visited_in_all_threads_but_not_by_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "used.py": "def f():\n    import late\n    return late.g\n",
        "late.py": "import at_import\nat_import.h()\ndef g(): pass\n",
        "at_import.py": "def h(): pass\n",
        "worker.py": "def w(): pass\n",
        "unused.py": "def u(): pass\n",
    }
    made(tmp_path, files)
    monkeypatch.syspath_prepend(tmp_path)
    import unused  # noqa: F401
    import used
    import worker

    def call() -> None:
        used.f()
        thread = threading.Thread(target=worker.w)
        thread.start()
        thread.join()

    assert {Path(file).name for file in code_size.visited(call, tmp_path)} == {"used.py", "worker.py"}
    assert sys.getprofile() is None


def test_json_and_the_comparison_with_it(tree: Path) -> None:
    def printed(*words: str) -> str:
        return subprocess.run([sys.executable, TOOL, tree, *words], capture_output=True, text=True, check=True).stdout

    kept = tree / "before.json"
    kept.write_text(printed("--json"))
    assert str(tree) not in kept.read_text()
    assert json.loads(kept.read_text()) == code_size.counts(tree)
    (tree / "src/hierax/_engine/deep/many.py").write_text("D = 50\n")
    rows = {line[:40].strip(): line[40:].split() for line in printed("--compare", str(kept)).splitlines()}
    assert rows["code lines"] == ["45", "29"]
    assert rows["numbers"] == ["23", "24"]
    assert rows["classes over 15 methods"] == ["1", "0"]
    assert rows["hierax/_engine, code lines"] == ["41", "25"]
    assert "hierax_lab/bench" in printed()


def test_the_page_of_rooms_says_what_the_modules_say():
    rooms = runpy.run_path(str(TOOL.with_name("rooms.py")))
    page = rooms["PAGE"].read_text("utf-8")
    assert page == rooms["written"](page), "run python tools/rooms.py"
    assert "| vectors | " in page and page.count("\n### ") >= 17
