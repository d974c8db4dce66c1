"""Counts of the code, per package: `python tools/code_size.py [FOLDER] [--json] [--walks] [--compare OTHER.json]`.

FOLDER is the repository. Its packages are those of src/ and, where there is one, of lab/; tests are not counted.

- Code lines: lines with code. Blank lines, comments, docstrings and other strings that stand alone are text.
- Names: functions, classes and constants (assigned names) at the top level of a module; no `__names__`, no imports.
  Public: functions and classes without a leading underscore.
- Numbers, wherever they stand: at module level (assignments, also of tuples and dictionaries), in defaults (of
  arguments and class fields), in dictionaries, and as literals anywhere else (also as arguments of a call at module
  level). Only among literals 0, 1, 2 and 1/2 of either sign are left out. So a number that moves from the top of a
  module into a default or a dictionary still counts.
- Any: uses of the name, imports apart.
- What is larger than a reader can hold: classes of more than 15 methods, functions of more than 60 code lines, the ten
  longest functions.
- Walks (`--walks`): files of src/ whose code runs in `hx.solve` with SALVF, with Auto, in `hx.certify`, and for
  `sol.certificate` of a solution of SALVF, on the problem of README.md, each in a process of its own; in all threads
  that Python starts. What runs while a module is imported does not count. Auto looks at the clock, so that its walk
  may differ on a busy machine.
"""

import argparse
import ast
import io
import json
import subprocess
import sys
import threading
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

MAX_METHODS, MAX_LINES, LONGEST = 15, 60, 10
TRIVIAL = (0, 0.5, 1, 2)  # literals that need no name
NUMBERS = ("module numbers", "default numbers", "dictionary numbers", "literal numbers")
COLUMNS = ("files", "code lines", "functions", "classes", "constants", "names", "public", *NUMBERS, "numbers", "Any")
TEXT_TOKENS = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
PURE = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.Constant, ast.Starred)
Function = ast.FunctionDef | ast.AsyncFunctionDef
WALKS = ("solve with SALVF", "solve with Auto", "certify", "sol.certificate after SALVF")


def code_lines(source: str, tree: ast.Module) -> set[int]:
    """Numbers of the lines that hold code."""
    alone = {
        (node.value.lineno, node.value.col_offset)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in TEXT_TOKENS and not (token.type == tokenize.STRING and token.start in alone):
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements at the top level of a module, those under an `if`, `try` or `with` too."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            parts = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
            parts += [handler.body for handler in getattr(node, "handlers", [])]
            for part in parts:
                yield from top_level(part)


def targets(node: ast.stmt) -> list[str]:
    """Names that an assignment gives a value, those in tuples too."""
    given = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in given for name in ast.walk(target) if isinstance(name, ast.Name)]


def top_level_names(tree: ast.Module) -> dict[str, int]:
    """How many functions, classes and constants there are, all together, and how many of the first two are public."""
    kinds: dict[str, str] = {}
    for node in top_level(tree.body):
        if isinstance(node, Function | ast.ClassDef):
            kinds[node.name] = "classes" if isinstance(node, ast.ClassDef) else "functions"
        else:
            kinds.update(dict.fromkeys(targets(node), "constants"))
    kinds = {name: kind for name, kind in kinds.items() if not (name.startswith("__") and name.endswith("__"))}
    public = [name for name, kind in kinds.items() if kind != "constants" and not name.startswith("_")]
    return Counter(kinds.values()) | Counter({"names": len(kinds), "public": len(public)})


def numbers(tree: ast.Module) -> Counter[str]:
    """How many numbers stand at each kind of place."""
    found: Counter[str] = Counter()
    assigned = [node.value for node in top_level(tree.body) if isinstance(node, ast.Assign | ast.AnnAssign)]
    at_top = {id(value) for value in assigned if value is not None}

    def look(node: ast.AST, kind: str) -> None:
        if id(node) in at_top:
            kind = "module"
        if kind in ("module", "dictionary") and not isinstance(node, PURE):
            kind = "literal"  # the number is an argument of a call, or part of another computation
        is_dictionary = isinstance(node, ast.Dict) or (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict"
        )
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float | complex):
            trivial = kind == "literal" and node.value in (*TRIVIAL, *(-number for number in TRIVIAL))
            found[f"{kind} numbers"] += not trivial and not isinstance(node.value, bool)
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST):
                    continue
                if kind == "default" or (isinstance(node, ast.arguments) and name in ("defaults", "kw_defaults")):
                    look(child, "default")
                elif isinstance(node, ast.ClassDef) and isinstance(child, ast.Assign | ast.AnnAssign) and child.value:
                    look(child.value, "default")
                elif is_dictionary and kind == "literal":
                    look(child.value if isinstance(child, ast.keyword) else child, "dictionary")
                else:
                    look(child, kind)

    look(tree, "literal")
    return found


def package_folders(root: Path) -> list[Path]:
    """Top folders of the packages in src/ and lab/."""
    below = [folder for place in ("src", "lab", "lab/src") for folder in (root / place).glob("*/__init__.py")]
    return sorted(init.parent for init in below if init.parent.name not in ("src", "tests"))


def counts(root: Path) -> dict[str, Any]:
    """All counts but the walks."""
    packages: dict[str, Counter[str]] = defaultdict(Counter)
    functions, methods = [], []
    for top in package_folders(root):
        for path in sorted(top.rglob("*.py")):
            inside = path.relative_to(top).parts
            if "tests" in inside:
                continue
            source = path.read_text("utf-8")
            tree = ast.parse(source)
            lines, numbered = code_lines(source, tree), numbers(tree)
            package = packages["/".join([top.name, *inside[:-1][:1]])]
            package.update({"files": 1, "code lines": len(lines), "numbers": numbered.total()})
            package.update(numbered)
            package.update(top_level_names(tree))
            for node in ast.walk(tree):
                package["Any"] += "Any" in (getattr(node, "id", ""), getattr(node, "attr", ""))
                where = f"{path.relative_to(root).as_posix()}:{getattr(node, 'lineno', 0)} {getattr(node, 'name', '')}"
                if isinstance(node, Function):
                    functions.append((len(lines & set(range(node.lineno, (node.end_lineno or 0) + 1))), where))
                elif isinstance(node, ast.ClassDef):
                    methods.append((sum(isinstance(item, Function) for item in node.body), where))
    rows = {name: {column: packages[name][column] for column in COLUMNS} for name in sorted(packages)}
    total = {column: sum(row[column] for row in rows.values()) for column in COLUMNS}
    total[f"functions over {MAX_LINES} code lines"] = sum(size > MAX_LINES for size, _ in functions)
    return {
        "packages": rows,
        "total": total,
        f"classes over {MAX_METHODS} methods": largest(methods, MAX_METHODS),
        "longest functions": largest(functions)[:LONGEST],
    }


def largest(sizes: list[tuple[int, str]], limit: int = -1) -> list[dict[str, Any]]:
    """Sizes above the limit, the largest first."""
    kept = sorted(((size, where) for size, where in sizes if size > limit), key=lambda one: (-one[0], one[1]))
    return [{"size": size, "where": where} for size, where in kept]


def walk(root: Path, name: str) -> list[str]:
    """Files of src/ whose code runs in one call, in this process."""
    sys.path.insert(0, str(root / "src"))
    import hierax as hx

    problem = hx.Problem(
        upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        constraints=lambda x, y: y - x,
        x_set=hx.Box(0.0, 3.0),
        y_set=hx.Box(0.0, 3.0),
    )
    solved = hx.solve(problem, 0.5, 0.5, hx.SALVF()) if "after" in name else None
    calls = {
        "solve with SALVF": lambda: hx.solve(problem, 0.5, 0.5, hx.SALVF()),
        "solve with Auto": lambda: hx.solve(problem, 0.5, 0.5),
        "certify": lambda: hx.certify(problem, 1 / 1.1, 1 / 1.1),
        "sol.certificate after SALVF": lambda: solved.certificate,
    }
    return sorted(Path(file).relative_to(root).as_posix() for file in visited(calls[name], root / "src"))


def visited(call: Callable[[], Any], folder: Path) -> set[str]:
    """Files below the folder whose code runs in the call, imports apart."""
    files: set[str] = set()
    importing: Counter[int] = Counter()  # by thread: modules whose body is running

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code, thread = frame.f_code, threading.get_ident()
        if event not in ("call", "return"):
            return
        if code.co_name == "<module>":
            importing[thread] += 1 if event == "call" else -1
        elif event == "call" and not importing[thread] and code.co_filename.startswith(str(folder)):
            files.add(code.co_filename)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return files


def walks(root: Path) -> dict[str, Any]:
    """For each call: how many files it visits, their code lines, and which they are."""
    found = {}
    for name in WALKS:
        command = [sys.executable, __file__, str(root), "--walk", name]
        files = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        sources = [(root / file).read_text("utf-8") for file in files]
        lines = sum(len(code_lines(source, ast.parse(source))) for source in sources)
        found[name] = {"files": len(files), "code lines": lines, "which": files}
    return found


def figures(found: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a result by name, without lists."""
    classes = f"classes over {MAX_METHODS} methods"
    longest = {"longest function": found["longest functions"][0]["size"]} if found["longest functions"] else {}
    walked = {
        f"{name}, {column}": walk[column]
        for name, walk in found.get("walks", {}).items()
        for column in ("files", "code lines")
    }
    return {**found["total"], classes: len(found[classes]), **longest, **walked}


def compared(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Lines with a figure before and after."""
    old, new = figures(before), figures(after)
    rows = [(name, old.get(name, ""), new.get(name, "")) for name in {**old, **new}]
    rows += [
        (
            f"{package}, code lines",
            *(part["packages"].get(package, {}).get("code lines", "") for part in (before, after)),
        )
        for package in {**before["packages"], **after["packages"]}
    ]
    return [f"{'':40} {'before':>8} {'after':>8}", *(f"{name:40} {one:>8} {two:>8}" for name, one, two in rows)]


def table(found: dict[str, Any]) -> list[str]:
    """The counts as lines of text."""
    rows = {**found["packages"], "total": found["total"]}
    widths = {column: max(len(column), 5) + 2 for column in COLUMNS}
    lines = [" " * 20 + "".join(f"{column:>{width}}" for column, width in widths.items())]
    for name, row in rows.items():
        lines.append(f"{name:20}" + "".join(f"{row[column]:>{width}}" for column, width in widths.items()))
    for title in (name for name, value in found.items() if isinstance(value, list)):
        lines += [f"{title}: {len(found[title])}", *(f"  {row['size']:5} {row['where']}" for row in found[title])]
    shown = {name: number for name, number in figures(found).items() if name not in COLUMNS}
    return lines + [f"{name}: {number}" for name, number in shown.items()]


def main() -> None:
    """Count, and print as asked."""
    parser = argparse.ArgumentParser(description="Counts of the code, per package.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[1], help="the repository")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument("--walks", action="store_true", help="also count the files that four calls visit")
    parser.add_argument("--compare", type=Path, metavar="OTHER.json", help="print figures before (OTHER) and after")
    parser.add_argument("--walk", choices=WALKS, help=argparse.SUPPRESS)  # of a process of its own
    asked = parser.parse_args()
    root = asked.folder.resolve()
    if asked.walk:
        print(json.dumps(walk(root, asked.walk)))
        return
    found = counts(root) | ({"walks": walks(root)} if asked.walks else {})
    if asked.compare:
        print(*compared(json.loads(asked.compare.read_text("utf-8")), found), sep="\n")
    else:
        print(json.dumps(found, indent=1) if asked.json else "\n".join(table(found)))


if __name__ == "__main__":
    main()
