"""llms-full.txt: the text of all pages in one file, for readers that are programs. Needs no Sphinx."""

import re
from collections.abc import Iterable
from pathlib import Path

TOCTREE = re.compile(r"^```\{toctree\}\n.*?^```\n?", re.MULTILINE | re.DOTALL)
INCLUDE = re.compile(r"^```\{include\} (?P<path>\S+)\n.*?^```\n?", re.MULTILINE | re.DOTALL)
# What sphinx-gallery puts before the title and after the last line of an example.
BEFORE_EXAMPLE = re.compile(r"\A.*?^\.\. _sphx_glr_\S+:\n+", re.MULTILINE | re.DOTALL)
AFTER_EXAMPLE = re.compile(r"^\.\. rst-class:: sphx-glr-timing\n.*\Z", re.MULTILINE | re.DOTALL)
GENERATED = ".. DO NOT EDIT."


def full_text(pages: Iterable[tuple[str, Path]]) -> str:
    """The pages one after the other, each under a line with its address in the site.

    Args:
        pages: name of a page and the file that it is made from, in the order of the tables of contents.
    """
    return "\n\n".join(f"<!-- {name}.html -->\n\n{page_text(source)}" for name, source in pages) + "\n"


def page_text(source: Path) -> str:
    """A page as it was written, with the files that it includes and without tables of contents."""
    text = source.read_text("utf-8")
    if source.suffix == ".rst":
        if GENERATED in text:
            text = AFTER_EXAMPLE.sub("", BEFORE_EXAMPLE.sub("", text))
        return text.strip()
    text = INCLUDE.sub(lambda found: page_text(source.parent / found["path"]) + "\n", text)
    return TOCTREE.sub("", text).strip()
