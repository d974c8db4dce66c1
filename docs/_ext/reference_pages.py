"""Writes docs/reference/: a page per public name from its docstring, and the page that lists them.

The docstrings are plain text (`y*(x)`, `|F_y|`), which reStructuredText would read as markup. So they are taken apart
here and written as Markdown in which everything is escaped but what stands between backticks.
"""

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

from catalogue import FORMULAS, GROUPS, MEMBERS, READ_ON, VALUES
from gate import PAGE, explanations, is_indented, listed, look_up, own_docstring, paragraphs, parameters, take_apart

SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|$~^=:-])")
LISTING = re.compile(r"(?:-|\d+\.) ")


def write_reference(docs: Path) -> None:
    """Write the pages; those that did not change keep their date, so that Sphinx reads only what is new."""
    folder = docs / "reference"
    folder.mkdir(exist_ok=True)
    short = {name.rpartition(".")[2]: name for name in reversed(listed())}
    pages = {f"{name}.md": page_of(name, short, docs) for name in listed()}
    pages["index.md"] = index_page()
    for old in folder.glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        file = folder / name
        if not file.exists() or file.read_text("utf-8") != text:
            file.write_text(text, "utf-8")


def index_page() -> str:
    """The list of all names, by group."""
    lines = [
        "# Reference",
        "",
        "Every public name, from its docstring; the examples run with the tests. What *public* promises is said in "
        "[Versions](../project/versioning.md); the commands have a [page of their own](../guides/commands.md).",
        "",
    ]
    for group in GROUPS:
        lines += [f"## {group.title}", "", group.about, "", "| name | |", "| --- | --- |"]
        for name in group.names:
            said = VALUES.get(name) or first_sentence(own_docstring(look_up(name)))
            cell = re.sub(r"(?<!\\)\|", r"\\|", inline(said, {}))  # in code, where nothing was escaped
            lines.append(f"| [`{shown(name)}`]({name}.md) | {cell} |")
        lines += ["", "```{toctree}", ":hidden:", f":caption: {group.title}", ""]
        lines += [f"{shown(name)} <{name}>" for name in group.names]
        lines += ["```", ""]
    return "\n".join(lines)


def page_of(name: str, short: dict[str, str], docs: Path) -> str:
    """The page of one name."""
    lines = [f"# {shown(name)}", ""]
    thing = look_up(name)
    mentioned: set[str] = set()
    if name in VALUES:
        lines += [f"```{{py:data}} {name}", "```", "", inline(VALUES[name], short), ""]
    else:
        parts = take_apart(own_docstring(thing))
        own = {entry for entry, _ in explanations(thing)} | {name.rpartition(".")[2]}
        near = {"hierax", name.rpartition(".")[0]}  # `violation` is an attribute in one place, a function in another
        short = {
            word: target
            for word, target in short.items()
            if word not in own and (word[0].isupper() or target.rpartition(".")[0] in near)
        }
        kind = "class" if inspect.isclass(thing) else "function"
        kind = "exception" if kind == "class" and issubclass(thing, BaseException) else kind
        is_record = "Attributes" in parts.sections and "Args" not in parts.sections
        lines += [f"```{{py:{kind}}} {name}{'' if is_record else signature(thing)}", "```", ""]
        lines += [*blocks(parts.text, short, FORMULAS.get(name)), ""]
        explained = explanations(thing)
        wanted = {one.name for one in parameters(thing)}
        titles = {"Arguments": [one for one in explained if one[0] in wanted]}
        titles["Attributes"] = [one for one in explained if one[0] not in wanted]
        if is_record:  # the library makes them, users read them
            titles = {"Attributes": explained}
        for title, entries in titles.items():
            if entries:
                lines += [f"## {title}", "", *definitions(entries, short), ""]
        for section, title in (("Returns", "Returns"), ("Raises", "Raises")):
            if section in parts.sections:
                entries = parts.entries(section) if section == "Raises" else []
                text = definitions(entries, short) if entries else blocks(parts.sections[section], short)
                lines += [f"## {title}", "", *text, ""]
        if name in MEMBERS:
            lines += ["## Members", "", *members(name, thing, short), ""]
        if "Examples" in parts.sections:
            lines += ["## Example", "", *examples(parts.sections["Examples"], short), ""]
        if parts.references:
            lines += ["## References", "", *(f"- {cited(one, short, docs)}" for one in parts.references), ""]
        mentioned = {page for one in parts.references for page in PAGE.findall(one)}
    further = [f"- {read_on(one, docs)}" for one in READ_ON.get(name, ()) if one not in mentioned]
    if further:
        lines += ["## Read on", "", *further, ""]
    return "\n".join(lines)


def shown(name: str) -> str:
    """A name as users write it."""
    return "hx." + name.removeprefix("hierax.") if name.count(".") == 1 else name


def signature(thing: Any) -> str:
    """Names and defaults; what they are is said in words."""
    texts = []
    star = False
    for one in parameters(thing):
        if one.kind is one.KEYWORD_ONLY and not star:
            texts.append("*")
            star = True
        if one.kind is one.VAR_POSITIONAL:
            star = True
        text = {one.VAR_KEYWORD: "**", one.VAR_POSITIONAL: "*"}.get(one.kind, "") + one.name
        texts.append(text if one.default is one.empty else f"{text}={default(one.default)}")
    return f"({', '.join(texts)})"


def default(value: object) -> str:
    """A default in a form that Sphinx can parse, without addresses of functions."""
    if inspect.isfunction(value):
        return "None" if value.__name__ == "nothing" else value.__name__
    text = re.sub(r"\s+", " ", repr(value))
    return text if re.fullmatch(r"[\w.'\"(), =\[\]{}:-]+", text) else "..."


def members(name: str, thing: Any, short: dict[str, str]) -> list[str]:
    """The members that a user calls, with the first paragraph of what is said of them."""
    entries = []
    for member in MEMBERS[name].split():
        one = inspect.getattr_static(thing, member)
        call = ""
        if not isinstance(one, property) and callable(getattr(thing, member)):
            taken = [p for p in inspect.signature(getattr(thing, member)).parameters.values() if p.name != "self"]
            texts = [p.name if p.default is p.empty else f"{p.name}={default(p.default)}" for p in taken]
            call = f"({', '.join(texts)})"
        said = take_apart(inspect.getdoc(getattr(thing, member))).text
        entries.append((member + call, " ".join(said.split())))
    return definitions(entries, short)


def definitions(entries: list[tuple[str, str]], short: dict[str, str]) -> list[str]:
    """Entries as a list of definitions."""
    lines: list[str] = []
    for name, text in entries:
        lines += [f"`{name}`", f": {inline(text, short)}", ""]
    return lines


def examples(text: str, short: dict[str, str]) -> list[str]:
    """What runs as code that can be copied with its prompts; other lines as text."""
    lines: list[str] = []
    for paragraph in paragraphs(text):
        shown = ["```pycon", paragraph, "```"] if paragraph.startswith(">>> ") else blocks(paragraph, short)
        lines += [*shown, ""]
    return lines


def blocks(text: str, short: dict[str, str], typeset: str | None = None) -> list[str]:
    """Paragraphs, lists and indented formulas of a docstring as Markdown; `typeset` replaces the first formula."""
    lines: list[str] = []
    for paragraph in paragraphs(text):
        if is_indented(paragraph) and typeset:
            lines += ["```{math}", typeset, "```", ""]
            typeset = None
        elif is_indented(paragraph):
            lines += ["```text", textwrap.dedent(paragraph), "```", ""]
        elif LISTING.match(paragraph):
            for item in re.split(r"\n(?=(?:-|\d+\.) )", paragraph):
                lines.append(f"- {inline(' '.join(LISTING.sub('', item, count=1).split()), short)}")
            lines.append("")
        else:
            lines += [inline(" ".join(paragraph.split()), short), ""]
    return lines


def inline(text: str, short: dict[str, str]) -> str:
    """One line of plain text: escaped, names and pages that exist become links."""
    pieces = []
    for place, piece in enumerate(text.split("`")):
        if place % 2:
            target = short.get(re.sub(r"^hx\.|^hierax\.|\(.*\)$", "", piece))
            pieces.append(f"[`{piece}`]({target}.md)" if target else f"`{piece}`")
        else:
            parts = PAGE.split(piece)
            pieces += [
                f"[{part}](../{part})" if at % 2 else SPECIAL.sub(r"\\\1", part) for at, part in enumerate(parts)
            ]
    return "".join(pieces)


def first_sentence(text: str | None) -> str:
    """What a docstring begins with."""
    paragraph = " ".join(take_apart(text).text.split("\n\n")[0].split())
    return re.split(r"(?<=[a-z)`0-9])\. (?=[A-Z`])", paragraph)[0].rstrip(".")


def read_on(page: str, docs: Path) -> str:
    """A link to a page under its title."""
    return f"[{title_of(docs / page)}](../{page})"


def cited(reference: str, short: dict[str, str], docs: Path) -> str:
    """An entry of References, the pages in it as links under their titles."""
    parts = PAGE.split(reference)
    return "".join(read_on(part, docs) if at % 2 else inline(part, short) for at, part in enumerate(parts))


def title_of(page: Path) -> str:
    """The first heading of a page."""
    heading = re.search(r"^# (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return heading[1] if heading else page.stem
