"""Numbers and words for people, pages and files: points in a few words, tables as text or HTML, values as JSON.

Whatever a user named (a key of a tree, a row, a file) goes through `escaped` before it is part of a page.
"""

import dataclasses
import html
import io
import math
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from itertools import zip_longest

import jax
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.errors import InputError
from hierax._base.files import Json
from hierax._base.imports import lazy

rich_console, rich_table = lazy("rich.console"), lazy("rich.table")

TABLE_WIDTH = 110  # of a table: fits a terminal and a page


def entries(name: str, tree: PyTree) -> list[str]:
    """A name for every number of a tree: where its leaf is, and its index there.

    Examples:
        >>> entries("constraints", {"ball": np.zeros(()), "rows": np.zeros(2)})
        ["constraints['ball']", "constraints['rows'][0]", "constraints['rows'][1]"]
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    places = [(jax.tree_util.keystr(path), index) for path, leaf in leaves for index in np.ndindex(np.shape(leaf))]
    return [f"{name}{path}{list(index) if index else ''}" for path, index in places]


def numbers_of(tree: PyTree) -> np.ndarray:
    """All numbers of a tree in the order of `entries`."""
    leaves = [np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves) if leaves else np.zeros(0)


def shown(tree: PyTree, most: int = 6) -> str:
    """A point in a few words: the first and the last numbers, where there are more than `most`.

    Examples:
        >>> shown(np.arange(10.0))
        '[0., 1., ..., 8., 9.]'
    """
    numbers = numbers_of(tree)
    if numbers.size == 1:
        return f"{numbers[0]:.6g}"
    text = np.array2string(numbers, precision=4, threshold=most, edgeitems=2, separator=", ")
    return " ".join(text.split()).replace("[ ", "[")


def named_point(name: str, tree: PyTree, most: int = 6) -> list[tuple[str, str]]:
    """One (name, numbers) pair per array of a point: the name says where the array is in the tree.

    Examples:
        >>> named_point("y", {"bias": np.zeros(()), "weights": np.ones(2)})
        [("y['bias']", '0'), ("y['weights']", '[1., 1.]')]
    """
    arrays = [(path, leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if hasattr(leaf, "dtype")]
    return [(f"{name}{jax.tree_util.keystr(path)}", shown(leaf, most)) for path, leaf in arrays]


def text_table(title: str, rows: Iterable[tuple[str, ...]]) -> str:
    """A table of words without lines or colours."""
    table = rich_table.Table(
        title=title, title_justify="left", title_style="", show_header=False, box=None, pad_edge=False
    )
    for row in rows:
        table.add_row(*row)
    page = io.StringIO()
    rich_console.Console(file=page, width=TABLE_WIDTH, color_system=None).print(table, highlight=False, markup=False)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


NOTEBOOK_STYLE = (
    "<style>.hierax-table{border-collapse:collapse;font-size:.92em}"
    ".hierax-table caption{text-align:left;font-weight:600;padding:.2em 0;caption-side:top}"
    ".hierax-table th,.hierax-table td{text-align:left;vertical-align:top;padding:.25em .9em .25em 0;"
    "border-top:1px solid rgba(128,128,128,.35);background:none;white-space:normal;font-weight:400}"
    ".hierax-table thead th,.hierax-table th[scope=row]{font-weight:600}</style>"
)


class Markup(str):
    """Text that is HTML already, made of escaped parts."""


def escaped(text: object) -> str:
    """Text for a page: markup in it is shown, not obeyed, unless it is `Markup`; what no page may hold is replaced.

    Examples:
        >>> escaped("y['<b>']")
        'y[&#x27;&lt;b&gt;&#x27;]'
    """
    if isinstance(text, Markup):
        return text
    shown = "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in str(text))
    return html.escape(shown)


def table(
    caption: str, rows: Iterable[Sequence[object]], headings: Sequence[str] = (), css_class: str = "hierax-table"
) -> str:
    """An HTML table whose first column names the rows, `headings` the columns; nothing where there are no rows.

    Examples:
        >>> '<tr><th scope="row">x</th><td>0.5</td></tr>' in table("Point", [("x", 0.5)])
        True
    """
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in headings)
    labels = [f' data-label="{escaped(name)}"' for name in headings[1:]]  # for screens too narrow for columns

    def row(first: object, *rest: object) -> str:
        cells = zip_longest(labels, rest, fillvalue="")
        return f'<tr><th scope="row">{escaped(first)}</th>{"".join(f"<td{a}>{escaped(b)}</td>" for a, b in cells)}</tr>'

    body = "".join(row(*cells) for cells in rows)
    thead = f"<thead><tr>{head}</tr></thead>" if headings else ""
    shown = f'<table class="{css_class}"><caption>{escaped(caption)}</caption>{thead}<tbody>{body}</tbody></table>'
    return shown if body else ""


def notebook_table(caption: str, rows: Iterable[Sequence[object]], headings: Sequence[str] = ()) -> str:
    """A table with the little style that it needs, for `_repr_html_`."""
    return f"{NOTEBOOK_STYLE}{table(caption, rows, headings)}"


def as_json(value: object) -> Json:
    """The value as JSON knows it: arrays become lists, modules and named tuples dictionaries, anything else text.

    Examples:
        >>> as_json({"a": np.array([1.0, np.nan]), "b": (True, None, 0j)})
        {'a': [1.0, None], 'b': [True, None, '0j']}
    """
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        value = np.asarray(value).tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no word for it
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    if isinstance(value, dict):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **{name: as_json(entry) for name, entry in fields.items()}}
    return str(value)


def arrays_by_path(tree: PyTree) -> dict[str, Array | np.ndarray | np.generic | jax.ShapeDtypeStruct]:
    """Every array of a tree by its path, for example "layers.0.weight"; that of a tree which is one array is empty."""
    kinds = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct
    arrays = [(path, leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if isinstance(leaf, kinds)]
    named = [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in arrays]
    if len(dict(named)) < len(named):
        raise InputError("two arrays of a variable have the same path: a key holds a dot. Rename it.")
    return dict(named)


def tree_as_json(tree: PyTree) -> Json:
    """A number or nested lists for a tree that is one array; else an object with one entry for each, by its path.

    Examples:
        >>> tree_as_json(np.float64(0.5)), tree_as_json({"a": np.ones(2), "b": [np.zeros(())]})
        (0.5, {'a': [1.0, 1.0], 'b.0': 0.0})
    """
    found = {path: as_json(np.asarray(leaf, np.float64)) for path, leaf in arrays_by_path(tree).items()}
    return found[""] if set(found) == {""} else found


def versions() -> dict[str, str]:
    """Versions of what the numbers of a run may depend on, by name."""
    names = ("hierax", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy")
    system = {"python": platform.python_version(), "machine": platform.machine()}
    return {name: version(name) for name in names} | system
