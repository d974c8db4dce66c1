"""Words as HTML: text that can do no harm in a page, and small tables for notebooks.

Whatever a user named (a key of a tree, a row, a file) goes through `escaped` before it is part of a page.
"""

import html
from collections.abc import Iterable, Sequence
from itertools import zip_longest

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
    """An HTML table whose first column names the rows; `headings` name the columns.

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
    return f'<table class="{css_class}"><caption>{escaped(caption)}</caption>{thead}<tbody>{body}</tbody></table>'


def notebook_table(caption: str, rows: Iterable[Sequence[object]], headings: Sequence[str] = ()) -> str:
    """A table with the little style that it needs, for `_repr_html_`."""
    return f"{NOTEBOOK_STYLE}{table(caption, rows, headings)}"
