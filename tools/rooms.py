"""The tables of docs/project/architecture.md: one per room, the first sentence of every module's docstring.

    python tools/rooms.py            write them into the page
    python tools/rooms.py --check    say whether the page has them as they are; tests do

The page has two comments between which the tables stand.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "project" / "architecture.md"
BEGIN, END = "<!-- rooms: written by tools/rooms.py -->\n", "<!-- end of rooms -->\n"
ROOMS = (
    *("_base", "_problem", "_compile", "_math", "_lower", "_engine", "_judge", "_run", "_methods", "_theory", "_auto"),
    *("_bridges", "reports", "estimators", "problems", "cli"),
)


def sentence(file: Path) -> str:
    """The first sentence of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    first = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    end = re.search(r"(?<!e\.g)(?<!i\.e)\. (?=[A-Z`])", first)
    return (first[: end.start() + 1] if end else first).replace("|", "\\|")


def table(folder: Path) -> list[str]:
    """The table of a room."""
    files = sorted(file for file in folder.rglob("*.py") if file.name not in ("__init__.py", "__main__.py"))
    lines = [f"### {folder.name}", "", sentence(folder / "__init__.py"), "", "| file | |", "| --- | --- |"]
    for file in files:
        lines.append(f"| {file.relative_to(folder).with_suffix('').as_posix()} | {sentence(file)} |")
    return [*lines, ""]


def tables() -> str:
    """All of them, and the files beside the rooms."""
    library = ROOT / "src" / "hierax"
    lines = [line for room in ROOMS for line in table(library / room)]
    beside = sorted(file for file in library.glob("*.py") if file.name not in ("__init__.py", "__main__.py"))
    lines += ["### Beside the rooms", "", "| file | |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {file.stem} | {sentence(file)} |" for file in beside), ""])


def written(page: str) -> str:
    """The page with its tables as they should be."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + tables() + "\n" + END + rest.split(END)[1]


def main() -> None:
    """Write the page, or compare it."""
    page = PAGE.read_text("utf-8")
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(written(page), "utf-8")
    elif page != written(page):
        sys.exit("docs/project/architecture.md is not what the modules say: run python tools/rooms.py")


if __name__ == "__main__":
    main()
