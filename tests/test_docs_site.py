"""The documentation site, without Sphinx: every page can be reached, links lead somewhere, the reference is whole."""

import importlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from pages import DOCS, EVERY

from hierax.extend import METHODS

ROOT = Path(__file__).parent.parent
MADE = ("gallery/", "reference/")  # by the build
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def gate():
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        yield importlib.import_module("gate")
    finally:
        sys.path.remove(str(DOCS / "_ext"))


def in_toctrees():
    """(page, entry) for every entry of every toctree, the entry as a path below docs without its ending."""
    found = []
    for page in EVERY:
        for toctree in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            entries = [line.strip() for line in toctree.splitlines() if line.strip() and not line.startswith(":")]
            for entry in entries:
                path = (page.parent / entry).resolve().relative_to(DOCS).as_posix()
                matched = sorted(DOCS.glob(f"{path}.md")) if "*" in path else [DOCS / f"{path}.md"]
                found += [(page, one.relative_to(DOCS).with_suffix("").as_posix()) for one in matched]
    return found


def test_every_page_is_in_a_toctree():
    entries = {entry for _, entry in in_toctrees()}
    names = {page.relative_to(DOCS).with_suffix("").as_posix() for page in EVERY}
    assert names - entries == {"index"}


def test_every_entry_of_a_toctree_is_a_page():
    for page, entry in in_toctrees():
        assert (DOCS / f"{entry}.md").exists() or entry.startswith(MADE), f"{page.name}: {entry}"


def without_code(text):
    """Fences, indented blocks and spans of code hold no links."""
    text = re.sub(r"^(?: {4}|\t).*$", "", FENCE.sub("", text), flags=re.MULTILINE)
    return re.sub(r"(`+).+?\1", "code", text)


def anchors(page):
    """Those that GitHub and MyST make of headings."""
    found = set()
    for heading in re.findall(r"^#+ +(.*?) *$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        found.add(next(name for name in (slug, *(f"{slug}-{n}" for n in range(1, 99))) if name not in found))
    return found


def links(page):
    return re.findall(r"\]\(([^()\s]+)\)", without_code(page.read_text("utf-8")))


@pytest.mark.parametrize("page", [*EVERY, *ROOT.glob("*.md")], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page):
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), link


def there(dotted):
    """Whether a name as pages write it, `hx.solve` or `hierax_lab.bench.fuzz`, is there."""
    first, *rest = dotted.replace("hx.", "hierax.", 1).split(".") if dotted.startswith("hx.") else dotted.split(".")
    found = importlib.import_module(first)
    for i, name in enumerate(rest):
        fields = getattr(found, "__dataclass_fields__", {}) | getattr(found, "__annotations__", {})
        if hasattr(found, name):
            found = getattr(found, name)
        elif name in fields:  # an attribute of instances
            return True
        else:
            try:
                found = importlib.import_module(".".join([first, *rest[: i + 1]]))
            except ImportError:
                return False
    return True


@pytest.mark.parametrize("page", [*EVERY, *ROOT.glob("*.md")], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_names_is_there(page):
    """Modules, functions and files in backquotes; commands: test_commands.py. The changelog speaks of the past too."""
    if page.stem.lower() == "changelog":
        return
    code = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", FENCE.sub("", page.read_text("utf-8")))
    names = {
        name for text in code for name in re.findall(r"(?<![\w./-])((?:hx|hierax|hierax_lab)(?:\.[A-Za-z]\w*)+)", text)
    }
    names = {name for name in names if not name.endswith((".egg", ".commands"))}  # groups of entry points
    names |= {f"hierax.{text}" for text in code if re.fullmatch(r"_[a-z]+(?:\.\w+)+", text)}  # `_math.psi.outer_term`
    assert sorted(name for name in names if not there(name)) == []
    paths = {text for text in code if re.fullmatch(r"(?:src|tests|lab|docs|gallery|tools)/[\w./-]*\w", text)}
    paths |= {f"src/hierax/{text}" for text in code if re.fullmatch(r"_[a-z]+/\w+\.py", text)}  # `_lower/salm.py`
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []
    assert sorted(name for text in code for name in dotted(text) if not starts_somewhere(name)) == []


# What pages call the objects that they speak of, other libraries, and ends of file names.
OBJECTS = {"sol", "sols", "res", "status", "certificate", "certificate_", "error", "method", "problem", "plan"}
OBJECTS |= {"reference", "steps", "info"}
LIBRARIES = {"jax", "jnp", "optax", "scipy", "math", "torchopt", "discopt", "torch"}
ENDINGS = {"py", "md", "json", "npz", "npy", "txt", "html", "png", "yml", "toml", "tex", "csv", "lock", "tra", "tes"}


def dotted(text):
    """A span of code that is one name with dots: `sol.tol`, `hx.solve`."""
    found = re.fullmatch(r"([a-z_]+(?:\.[a-z_]\w*)+)(?:\(\))?", text)
    return [found[1]] if found and found[1].rpartition(".")[2] not in ENDINGS else []


def starts_somewhere(name):
    """Whether its first part is an object of the page, a library, or a part of hierax: `penalty.psi` begins nowhere."""
    first = name.partition(".")[0]
    return first in OBJECTS | LIBRARIES | {"hx", "hierax", "hierax_lab"} or (ROOT / "src/hierax" / first).is_dir()


def test_names_that_begin_nowhere_are_seen():
    assert dotted("penalty.psi") == ["penalty.psi"] and not starts_somewhere("penalty.psi")
    assert dotted("sol.x()") == ["sol.x"] and starts_somewhere("sol.x")
    assert dotted("toy.json") == dotted("x + y.z") == []
    assert starts_somewhere("_math.psi") and not there("hierax.penalty")


def test_links_are_found_where_there_are_some():
    assert "../methods/auto.md" in links(DOCS / "guides" / "using.md")
    assert "lower-levels-that-are-trained" in anchors(DOCS / "methods" / "auto.md")
    assert without_code("`[a](b)` and\n\n    [c](d)\n") == "code and\n\n\n"


def test_the_full_text_holds_every_page_in_the_order_of_the_toctrees(gate):
    """What llms-full.txt is made of, on the pages that people write."""
    full = importlib.import_module("full_text")
    entries = dict.fromkeys(entry for _, entry in in_toctrees() if (DOCS / f"{entry}.md").exists())
    text = full.full_text((entry, DOCS / f"{entry}.md") for entry in entries)
    assert re.findall(r"^<!-- (\S+)\.html -->$", text, re.MULTILINE) == list(entries)
    assert "```{toctree}" not in text and "```{include}" not in text
    assert "# Contributing to hierax" in text and "# Releasing" in text  # included files
    assert "E f(x, y*(x); zeta)" in text


def test_the_full_text_of_a_gallery_page_is_the_example_alone(gate, tmp_path):
    full = importlib.import_module("full_text")
    page = tmp_path / "plot_one.rst"
    head = ".. DO NOT EDIT.\n.. only:: html\n\n    .. note:: Go to the end\n\n.. _sphx_glr_gallery_plot_one.py:\n\n\n"
    body = "One example\n===========\n\n.. code-block:: Python\n\n    1 + 1"
    page.write_text(f"{head}{body}\n\n.. rst-class:: sphx-glr-timing\n\n   **Total running time**\n", "utf-8")
    assert full.page_text(page) == body


def test_the_site_check_compares_the_files_for_programs(tmp_path):
    spec = importlib.util.spec_from_file_location("check_site", ROOT / "tools" / "check_site.py")
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    for name in ("index", "a", "b"):
        (tmp_path / f"{name}.html").touch()
    (tmp_path / "site.json").write_text('{"pages": 3}')
    (tmp_path / "llms.txt").write_text("# hierax\n\n- [A](a.html): One.\n- [B](b.html): Two.\n")
    pages = ["<!-- index.html -->\n\nText", "<!-- a.html -->\n\nOne", "<!-- b.html -->\n\nTwo"]
    whole = tmp_path / "llms-full.txt"
    whole.write_text("\n\n".join(pages))
    assert check.faults_of_llms(tmp_path) == []
    whole.write_text("\n\n".join([pages[0], pages[2], pages[1]]))
    assert check.faults_of_llms(tmp_path) == ["llms.txt and llms-full.txt differ in the order"]
    whole.write_text("\n\n".join(pages[:2]))
    lacking = check.faults_of_llms(tmp_path)
    assert lacking == ["llms.txt and llms-full.txt differ in b.html", "llms-full.txt: 2 of 3 pages"]


def test_the_reference_is_whole(gate):
    assert gate.faults() == []


def test_the_gate_sees_what_is_missing(gate, monkeypatch):
    """Each kind of fault, on names made for it."""

    def undocumented(x): ...

    def unexplained(x, y):
        """Nothing said of y.

        Args:
            x: said.
        """

    made = {"hierax.undocumented": undocumented, "hierax.unexplained": unexplained}
    monkeypatch.setattr(gate, "look_up", made.get)
    assert set(gate.faults_of("hierax.undocumented")) == {"docstring"}
    assert set(gate.faults_of("hierax.unexplained")) == {"args", "example", "formula", "reference"}
    assert "explain y " in gate.faults_of("hierax.unexplained")["args"]
    monkeypatch.setattr(gate, "exported", lambda: ["hierax.new"])
    monkeypatch.setattr(gate, "listed", lambda: ["hierax.gone"])
    missing, gone = gate.faults()
    assert missing.startswith("hierax.new is exported and missing") and gone.startswith("hierax.gone is in")


FORMULA = """A step.

    {formula}

    Examples:
        >>> 1
        1

    References:
        {reference}
"""


@pytest.mark.parametrize(
    ("formula", "reference", "lacking"),
    [
        ("    x <- x - a d", "Beck: First-order methods in optimization, SIAM 2017.", set()),
        ("    x <- x - a d", "docs/methods/salvf.md, eq. 2.9", set()),
        ("    x <- x - a d", "Beck: First-order methods in optimization.", {"reference"}),
        ("    x <- x - a d", "docs/no-such-page.md", {"reference", "page"}),
        ("x <- x - a d", "docs/methods/salvf.md", {"formula"}),
        ("    first line of a listing", "docs/methods/salvf.md", {"formula"}),
    ],
)
def test_a_formula_and_a_reference_are_asked_for(gate, monkeypatch, formula, reference, lacking):
    def step(): ...

    step.__doc__ = FORMULA.format(formula=formula, reference=reference)
    monkeypatch.setattr(gate, "look_up", {"hierax.step": step}.get)
    assert set(gate.faults_of("hierax.step")) == lacking


def test_a_name_that_loses_its_formula_or_its_reference_is_found(gate, monkeypatch):
    """On a real one: what the build would say of `hierax.Box` without them, and of an excuse that is not needed."""
    thing = gate.look_up("hierax.Box")
    whole = vars(thing)["__doc__"]
    formula, reference = re.search(r"^ +X = {", whole, re.M).start(), re.search("^ *References:", whole, re.M).start()
    rest = whole[formula:].index("\n\n") + formula
    monkeypatch.setattr(gate, "own_docstring", lambda _: whole[:formula] + whole[rest:reference])
    assert {"formula", "reference"} <= set(gate.faults_of("hierax.Box"))
    monkeypatch.undo()
    monkeypatch.setitem(gate.EXCUSED, ("hierax.Box", "formula"), "no longer needed, as the formula is there by now")
    assert gate.faults() == ["hierax.Box is excused for its formula, and need not be any more"]


def test_the_typeset_formula_takes_the_place_of_the_plain_one(gate):
    pages = importlib.import_module("reference_pages")
    shown = pages.page_of("hierax.Ball", {}, DOCS)
    assert r"\|x\|_2 \le \text{radius}" in shown and "X = {x" not in shown
    assert shown.index("## References") > shown.index("## Example") and "Parikh, Boyd" in shown


def test_every_typeset_formula_belongs_to_a_name_with_a_plain_one(gate):
    pages = importlib.import_module("reference_pages")
    for name in pages.FORMULAS:
        assert gate.take_apart(gate.own_docstring(gate.look_up(name))).formulas, name


# Pages that are about no single method.
ABOUT_ALL = {"index", "auto", "corrections", "as-printed", "released-code", "table-1", "elements"}
METHOD_PAGES = [page for page in sorted((DOCS / "methods").glob("*.md")) if page.stem not in ABOUT_ALL]


@pytest.mark.parametrize("page", METHOD_PAGES, ids=lambda page: page.stem)
def test_every_page_of_a_method_says_when_to_use_it_and_what_it_costs(page):
    text = page.read_text("utf-8")
    if page.stem == "lower-solvers":  # one page for all of them: a table says which is for what
        assert "| for | how | not for |" in text and "**Cost.**" in text
    else:
        assert "**When to use it.**" in text and "**Cost of a step.**" in text


def test_table_1_has_every_method():
    text = (DOCS / "methods" / "table-1.md").read_text("utf-8")
    assert [one.__name__ for one in METHODS.values() if f"`hx.{one.__name__}`" not in text] == []


def test_every_excuse_gives_its_reason(gate):
    assert all(len(reason) > 40 for reason in gate.EXCUSED.values())


def test_a_docstring_is_taken_apart(gate):
    parts = gate.take_apart(
        """Text.

        Args:
            a: one
                line more.
            b, c: both.

        Examples:
            >>> 1
            1
        """
    )
    assert parts.text == "Text." and parts.has_example
    assert parts.entries("Args") == [("a", "one line more."), ("b", "both."), ("c", "both.")]


@pytest.mark.usefixtures("as_users_start")
def test_the_start_page_prints_what_it_says(capsys):
    text = (DOCS / "index.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out.strip() == re.search(r"prints `(.*?)`", text)[1]
