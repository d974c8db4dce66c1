"""Numbers as a person reads them: names for the entries of a tree, points in a few words, tables as text."""

import io
from collections.abc import Iterable

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.lazy import lazy

rich_console, rich_table = lazy("rich.console"), lazy("rich.table")

TABLE_WIDTH = 110  # of a table: fits a terminal and a page


def entries(name: str, tree: PyTree) -> list[str]:
    """A name for every number of a tree: where its leaf is, and its index there.

    Examples:
        >>> entries("constraints", {"ball": np.zeros(()), "rows": np.zeros(2)})
        ["constraints['ball']", "constraints['rows'][0]", "constraints['rows'][1]"]
    """
    return [
        f"{name}{jax.tree_util.keystr(path)}{list(index) if index else ''}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        for index in np.ndindex(np.shape(leaf))
    ]


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
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [
        (f"{name}{jax.tree_util.keystr(path)}", shown(leaf, most)) for path, leaf in leaves if hasattr(leaf, "dtype")
    ]


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
