"""docs/methods/elements.md: no numbered element of the paper is missing, and all that the page names exists."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_docs_site import there

import hierax as hx

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "methods" / "elements.md"
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in PAGE.read_text("utf-8").splitlines()
    if re.match(r"\| \d+ \|", line)
]
COMMANDS = ("toy", "rates", "svm", "weight-decay")

# What the paper's source numbers: by section and by kind.
EQUATIONS = [(1, 2), (2, 15), (3, 10)]
NUMBERED = {
    "Algorithm": ["1", "2", "3"],
    "Assumption": [f"3.{i}" for i in range(1, 8)],
    "Theorem": [*(f"3.{i}" for i in range(1, 6)), *(f"A.{i}" for i in range(1, 5)), "B.1", "C.1", "C.2", "C.3"],
    "Lemma": ["3.1", *(f"A.{i}" for i in range(1, 8)), "B.1", "B.2", *(f"C.{i}" for i in range(1, 8))],
    "Proposition": [f"A.{i}" for i in range(1, 5)],
    "Corollary": ["3.1", "B.1", "B.2", "C.1", "C.2", "C.3"],
    "Remark": ["3.1", "3.2", "3.3", "3.4", "C.1", "C.2", "C.3"],
    "Figure": ["1a", "1b", "2a", "2b", "2c", "2d", "3a", "3b"],
    "Table": ["1"],
}


def names_in(text):
    """`Theorem A.1, A.2` names two theorems: pairs (kind, number)."""
    found = set()
    for kind, numbers in re.findall(r"(\b[A-Z][a-z]+?)s? ((?:[A-C]?\.?\d[\d.]*[a-d]?(?:, | and | to )?)+)", text):
        found |= {(kind, number.rstrip(".")) for number in re.findall(r"(?:[A-C]\.)?\d(?:\.\d+)?[a-d]?", numbers)}
    return found


def test_rows_are_numbered_and_whole():
    assert [int(row[0]) for row in ROWS] == list(range(1, len(ROWS) + 1))
    assert len(ROWS) >= 95
    assert all(len(row) == 6 and all(row) for row in ROWS)


def test_every_numbered_element_of_the_paper_is_on_the_page():
    places = " | ".join(row[1] + " | " + row[2] for row in ROWS)
    for section, last in EQUATIONS:
        for i in range(1, last + 1):
            assert re.search(rf"\({section}\.{i}[a-c]?\)", places), f"equation {section}.{i}"
    named = names_in(places)
    for kind, numbers in NUMBERED.items():
        missing = [number for number in numbers if (kind, number) not in named]
        assert not missing, (kind, missing)


def test_names_of_several_elements_are_read():
    assert names_in("Theorem A.1, A.2") == {("Theorem", "A.1"), ("Theorem", "A.2")}
    assert names_in("Lemma A.7.3, Figure 2a, 2c") >= {("Figure", "2a"), ("Figure", "2c")}


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_what_verifies_an_element_exists(row):
    """A test by its file and name, a file of tests, or a command."""
    spans = re.findall(r"`([^`]+)`", row[4])
    tests = [span for span in spans if span.startswith("test_")]
    assert tests, row[1]
    for span in tests:
        file, _, name = span.partition("::")
        path = next(
            (folder / file for folder in (ROOT / "tests", ROOT / "lab/tests") if (folder / file).exists()), None
        )
        assert path is not None, span
        assert not name or re.search(rf"^def {name}\(", path.read_text("utf-8"), re.MULTILINE), span


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_where_an_element_is_exists(row):
    """Public names, the arguments that are named with them, and experiments."""
    for span in re.findall(r"`([^`]+)`", f"{row[3]} {row[4]}"):
        for name in re.findall(r"(?:hx|hierax_lab)(?:\.\w+)+", span):
            assert there(name), span
        for name, arguments in re.findall(r"hx\.([\w.]+)\(([^()]*)\)?", span):
            known = inspect.signature(getattr(hx, name)).parameters
            assert {*re.findall(r"(\w+)=", arguments)} <= {*known}, span
        command = re.match(r"hierax reproduce (\S+)", span)
        assert command is None or command[1] in COMMANDS, span


def test_the_commands_of_the_page_are_those_of_the_lab():
    """Their names and options, as the command line states them."""
    pytest.importorskip("hierax_lab")
    shown = subprocess.run(
        [sys.executable, "-m", "hierax", "reproduce", "--help"], capture_output=True, text=True, check=True, cwd=ROOT,
        env={"PYTHONPATH": "src:lab/src", "COLUMNS": "200", "PATH": ""},
    ).stdout  # fmt: skip
    assert all(word in shown for word in (*COMMANDS, "--setting", "published", "--seeds", "--quick"))
