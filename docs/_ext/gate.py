"""Docstrings taken apart, and the gate: what a public name must have before the reference is built.

No Sphinx in here: tests/test_docs_site.py asks the same questions in a second.
"""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple

from catalogue import EXCUSED, GROUPS, MEMBERS, MODULES, VALUES

SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Examples", "References")
ENTRY = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): ?(.*)", re.DOTALL)
PAGE = re.compile(r"docs/([\w/-]+\.md)")
YEAR = re.compile(r"\b(?:19|20)\d\d\b")
RELATION = re.compile(r"[=<>~]")  # a block without any is a listing
DOCS = Path(__file__).parent.parent


class Docstring(NamedTuple):
    """A docstring in parts: the text before the first section, and the sections by name, without their indentation."""

    text: str
    sections: dict[str, str]

    def entries(self, section: str) -> list[tuple[str, str]]:
        """The entries `name: text` of a section."""
        found: list[tuple[str, str]] = []
        for block in re.split(r"\n(?=\S)", self.sections.get(section, "")):
            entry = ENTRY.fullmatch(block)
            if entry:
                text = re.sub(r"\n +", " ", entry[2])
                found += [(name.strip().lstrip("*"), text) for name in entry[1].split(",")]
        return found

    @property
    def has_example(self) -> bool:
        """Whether it shows something that runs."""
        return ">>> " in self.sections.get("Examples", "")

    @property
    def formulas(self) -> list[str]:
        """The paragraphs before the first section that stand further in and state a relation, as formulas do."""
        return [one for one in paragraphs(self.text) if is_indented(one) and RELATION.search(one)]

    @property
    def references(self) -> list[str]:
        """What the section References lists, an entry per line that is not a continuation."""
        entries = re.split(r"\n(?=\S)", self.sections.get("References", ""))
        return [" ".join(entry.split()) for entry in entries if entry.strip()]


def paragraphs(text: str) -> list[str]:
    """What blank lines set apart; indented paragraphs that follow one another are one."""
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        if found and is_indented(paragraph) and is_indented(found[-1]):
            found[-1] += f"\n\n{paragraph}"
        elif paragraph.strip():
            found.append(paragraph)
    return found


def is_indented(paragraph: str) -> bool:
    """Whether every line begins with four spaces, as formulas and code in docstrings do."""
    return all(line.startswith("    ") for line in paragraph.splitlines() if line.strip())


def can_be_followed(reference: str) -> bool:
    """Whether an entry of References is a publication with its year, or names pages of docs/, which must be there."""
    pages = PAGE.findall(reference)
    return all((DOCS / page).exists() for page in pages) and bool(pages or YEAR.search(reference))


def take_apart(docstring: str | None) -> Docstring:
    """The parts of a docstring in Google's form."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    text: list[str] = []
    sections: dict[str, list[str]] = {}
    current = text
    for line in lines:
        if line.endswith(":") and line[:-1] in SECTIONS:
            current = sections.setdefault(line[:-1], [])
        else:
            current.append(line)
    parts = {name: inspect.cleandoc("\n".join(["", *part])) for name, part in sections.items()}
    return Docstring("\n".join(text).strip(), parts)


def look_up(name: str) -> Any:
    """The object with a dotted name."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def exported() -> list[str]:
    """Dotted names of everything that the public modules export, once; a name that `hierax` has stands there."""
    first = importlib.import_module("hierax")
    names = []
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            public = f"{module}.{name}"
            if public in MODULES or (module != "hierax" and name in first.__all__):
                continue
            names.append(public)
    return names


def listed() -> list[str]:
    """Dotted names of the catalogue, in its order."""
    return [name for group in GROUPS for name in group.names]


def own_docstring(thing: Any) -> str | None:
    """The docstring that a class or function was given itself: not inherited, not made up by dataclasses."""
    if not inspect.isclass(thing):
        return getattr(thing, "__doc__", None)
    text = vars(thing).get("__doc__")
    return None if text is None or text.startswith(f"{thing.__name__}(") else text


def parameters(thing: Any) -> list[inspect.Parameter]:
    """What it takes; nothing where Python knows no signature (exceptions)."""
    if inspect.isclass(thing) and issubclass(thing, BaseException) and "__init__" not in vars(thing):
        return []
    return list(inspect.signature(thing).parameters.values())


def explanations(thing: Any) -> list[tuple[str, str]]:
    """The entries of Args and Attributes, parameters first and in their order.

    A class is explained by its own docstring and by those of the classes it is put together from.
    """
    texts = [own_docstring(one) for one in (reversed(thing.__mro__) if inspect.isclass(thing) else [thing])]
    wanted = [one.name for one in parameters(thing)]
    found: dict[str, str] = {}
    for place, text in enumerate(texts):
        parts = take_apart(text)
        for entry, said in parts.entries("Args") + parts.entries("Attributes"):
            if place == len(texts) - 1 or entry in wanted:
                found[entry] = said
    return sorted(found.items(), key=lambda entry: wanted.index(entry[0]) if entry[0] in wanted else len(wanted))


def faults_of(name: str) -> dict[str, str]:
    """What a listed name lacks, by kind, each in a sentence."""
    if name in VALUES:
        return {}
    thing = look_up(name)
    text = own_docstring(thing)
    if not text:
        return {"docstring": f"{name} has no docstring"}
    parts = take_apart(text)
    found: dict[str, str] = {}
    explained = {entry for entry, _ in explanations(thing)}
    missing = [one.name for one in parameters(thing) if one.name not in explained]
    if missing:
        found["args"] = f"{name}: its docstring does not explain {', '.join(missing)} (Args, or Attributes of a record)"
    if not parts.has_example:
        found["example"] = f"{name}: its docstring has no example"
    if not parts.formulas:
        found["formula"] = (
            f"{name}: its docstring has no formula (a block, four spaces further in, before its sections)"
        )
    if not any(can_be_followed(one) for one in parts.references):
        found["reference"] = f"{name}: its References name no publication with its year and no page of docs/"
    lost = [page for one in parts.references for page in PAGE.findall(one) if not (DOCS / page).exists()]
    if lost:
        found["page"] = f"{name}: its References name docs/{lost[0]}, which does not exist"
    for member in MEMBERS.get(name, "").split():
        one = inspect.getattr_static(thing, member, None)
        if one is None or not inspect.getdoc(getattr(thing, member, None)):
            found[member] = f"{name}.{member} is listed in the catalogue and does not exist, or has no docstring"
    return found


def faults() -> list[str]:
    """Everything that keeps the reference from being whole."""
    names, shown = exported(), listed()
    found = [f"{name} is exported and missing from docs/_ext/catalogue.py" for name in names if name not in shown]
    found += [f"{name} is in docs/_ext/catalogue.py and not exported" for name in shown if name not in names]
    found += [f"{name} stands twice in docs/_ext/catalogue.py" for name in set(shown) if shown.count(name) > 1]
    for name in shown:
        if name not in names:
            continue
        lacking = faults_of(name)
        found += [text for kind, text in lacking.items() if (name, kind) not in EXCUSED]
        found += [
            f"{name} is excused for its {kind}, and need not be any more"
            for one, kind in EXCUSED
            if one == name and kind not in lacking
        ]
    return found
