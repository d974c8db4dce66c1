"""Counts that show where code grows beyond what a reader can hold: `python tools/code_size.py [folder]`.

Modules; functions over 60 lines; classes with more than 12 attributes (fields, or names assigned to self) or 15
methods; lines that say Any; the largest number of arguments (settings of dataclasses are not arguments of a function).
"""

import ast
import sys
from pathlib import Path

LINES, ATTRIBUTES, METHODS = 60, 12, 15


def main(folder: Path) -> None:
    """Print the counts of all Python files below the folder, and what exceeds a limit."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}
    long, wide, many, most = [], [], [], (0, "")
    for path, tree in trees.items():
        for node in ast.walk(tree):
            where = f"{path.relative_to(folder)}:{getattr(node, 'lineno', 0)} {getattr(node, 'name', '')}"
            if isinstance(node, ast.FunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1 - docstring_lines(node)
                if lines > LINES:
                    long.append(f"{where}: {lines} lines")
                most = max(most, (len(arguments(node)), where))
            if isinstance(node, ast.ClassDef):
                methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
                found = fields(node)
                if len(found) > ATTRIBUTES:
                    wide.append(f"{where}: {len(found)} attributes")
                if len(methods) > METHODS:
                    many.append(f"{where}: {len(methods)} methods")
    text = [line for path in trees for line in path.read_text().splitlines()]
    print(f"modules {len(trees)}, lines {len(text)}")
    print(f"lines with Any {sum('Any' in line.replace('jnp.Any', '') for line in text)}")
    print(f"largest number of arguments {most[0]} ({most[1]})")
    for title, rows in (("long functions", long), ("wide classes", wide), ("classes of many methods", many)):
        print(f"{title} {len(rows)}", *rows, sep="\n  ")


def docstring_lines(node: ast.FunctionDef) -> int:
    """Lines of the docstring: documentation does not make a function long."""
    first = node.body[0]
    if ast.get_docstring(node) is None:
        return 0
    return (first.end_lineno or 0) - first.lineno + 1


def arguments(node: ast.FunctionDef) -> list[str]:
    """Names of all arguments but self."""
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [argument.arg for argument in given if argument.arg not in ("self", "cls")]


def fields(node: ast.ClassDef) -> set[str]:
    """Annotated names of the class body, and names that methods assign to self."""
    annotated = {
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and "ClassVar" not in ast.unparse(item.annotation)
    }
    assigned = {
        target.attr
        for item in ast.walk(node)
        if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store)
        for target in [item]
        if isinstance(target.value, ast.Name) and target.value.id == "self"
    }
    return annotated | assigned


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "src/hierax"))
