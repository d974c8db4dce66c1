"""The Sphinx extension of this site: reference and figures before reading, llms files and counts after, citations."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import yaml
from docutils import nodes
from full_text import full_text
from gate import faults, listed
from reference_pages import write_reference
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[2]


def fresh_jax(_gallery: dict, _script: str) -> None:
    """Every example of the gallery starts with JAX as a fresh interpreter has it."""
    import jax

    jax.config.update("jax_enable_x64", False)


def prepare(app: Sphinx) -> None:
    """Fail where the reference is not whole; then write it."""
    found = faults()
    if found:
        raise ExtensionError("the reference is not whole:\n  " + "\n  ".join(found))
    write_reference(Path(app.srcdir))


def draw_figures(app: Sphinx) -> None:
    """Run the scripts of the figures, unless the last build has run the same ones with the same hierax.

    Their files are in the repository too, where pages are read without this site; they are the same whenever they are
    made.
    """
    for script in sorted(
        [*Path(app.srcdir).glob("pictures/figures/[!_]*.py"), Path(app.srcdir) / "figures" / "idea.py"]
    ):
        parts = [script, *script.parent.glob("_*.py"), *sorted((ROOT / "src" / "hierax").rglob("*.py"))]
        now = hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()
        stamp = Path(app.outdir).parent / "figures" / f"{script.stem}.sha256"
        figure = script.with_name(script.stem.replace("_", "-") + ".svg")
        if stamp.is_file() and stamp.read_text("utf-8") == now and figure.is_file():
            continue
        done = subprocess.run([sys.executable, str(script), str(figure)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ExtensionError(f"{script.name} did not draw its figure:\n{done.stderr}")
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(now, "utf-8")


def leave_out_what_is_not_there(app: Sphinx, page: str, source: list[str]) -> None:
    """Entries of toctrees for the gallery, where it is not built."""

    def kept(toctree: re.Match[str]) -> str:
        lines = toctree[0].splitlines(keepends=True)
        return "".join(line for line in lines if not absent(line.strip()))

    def absent(entry: str) -> bool:
        return (
            entry.startswith("gallery/")
            and not any(Path(app.srcdir).glob(f"{entry}.md"))
            and entry not in app.env.found_docs
        )

    source[0] = re.sub(r"^```\{toctree\}\n.*?^```$", kept, source[0], flags=re.MULTILINE | re.DOTALL)


class Cite(SphinxDirective):
    """`{cite-hierax}`: how to cite, from CITATION.cff."""

    def run(self) -> list[nodes.Node]:
        """A BibTeX entry for the software, and one for every reference."""
        file = ROOT / "CITATION.cff"
        self.env.note_dependency(str(file))
        stated = yaml.safe_load(file.read_text("utf-8"))
        entries = [bibtex("software", "hierax", stated)]
        for place, one in enumerate(stated["references"], 1):
            entries.append(bibtex(one["type"], f"hierax-reference-{place}", one))
        text = "\n\n".join(entries)
        return [nodes.paragraph(text=stated["message"]), nodes.literal_block(text, text, language="bibtex")]


def bibtex(kind: str, key: str, stated: dict) -> str:
    """One entry of a CITATION.cff in BibTeX's form."""
    authors = " and ".join(
        one["name"].join("{}") if "name" in one else f"{one['family-names']}, {one['given-names']}"
        for one in stated["authors"]
    )
    fields = {"title": f"{{{stated['title']}}}", "author": authors}
    fields |= {name: str(stated[name]) for name in ("version", "year", "doi", "url", "notes") if name in stated}
    if "notes" in fields:
        fields["note"] = fields.pop("notes")
    lines = [f"  {name} = {{{value}}}" for name, value in fields.items()]
    return f"@{kind}{{{key},\n" + ",\n".join(lines) + "\n}"


def finish(app: Sphinx, error: Exception | None) -> None:
    """llms.txt: what the site holds, a link and a sentence per page; llms-full.txt: all of it; site.json: how much."""
    if error is not None or app.builder.format != "html":
        return
    docs, out = Path(app.srcdir), Path(app.outdir)
    (out / "llms.txt").write_text(llms(app, docs), "utf-8")
    sources = [(page, Path(app.env.doc2path(page))) for page in all_below(app, "index")]
    (out / "llms-full.txt").write_text(full_text(sources), "utf-8")
    scripts = sorted((ROOT / "gallery").glob("*/plot_*.py"))
    counts = {
        "pages": len(app.env.found_docs),
        "examples of the gallery": len(scripts),
        "code blocks of the gallery, run by this build": sum(code_blocks(file.read_text("utf-8")) for file in scripts),
        "python blocks of pages, run by the tests": sum(
            len(re.findall(r"^```python$", page.read_text("utf-8"), re.MULTILINE)) for page in own_pages(docs)
        ),
        "docstring examples of public names, run by the tests": examples_in_reference(docs),
        "documented names": len(listed()),
    }
    (out / "site.json").write_text(json.dumps(counts, indent=1), "utf-8")


def own_pages(docs: Path) -> list[Path]:
    """The pages that people write."""
    written = {"reference", "gallery", "_ext"}
    return [page for page in sorted(docs.rglob("*.md")) if page.relative_to(docs).parts[0] not in written]


def code_blocks(script: str) -> int:
    """Blocks of code of a gallery script: each is run, and shown with what it prints."""
    body = re.sub(r'\A\s*r?"""(.*?)"""', "", script, count=1, flags=re.DOTALL)
    cells = re.split(r"^# ?%%.*$|^#{20,}.*$", body, flags=re.MULTILINE)
    return sum(any(line.strip() and not line.startswith("#") for line in cell.splitlines()) for cell in cells)


def examples_in_reference(docs: Path) -> int:
    """Pages of the reference that show an example with a prompt."""
    return sum("```pycon" in page.read_text("utf-8") for page in (docs / "reference").glob("*.md"))


def llms(app: Sphinx, docs: Path) -> str:
    """The file for readers that are programs."""
    lines = [
        "# hierax",
        "",
        "> hierax is a Python library on JAX that solves bilevel optimization problems whose lower level has nonlinear "
        "constraints: minimise over x in X the objective E f(x, y*(x); zeta), where y*(x) minimises E g(x, y; xi) over "
        "y in Y subject to h(x, y) <= 0 and e(x, y) = 0. `sol = hx.solve(problem, x0, y0)` needs no settings; "
        "`sol.certificate` says whether the answer can be trusted, and `sol.status` how the run ended.",
        "",
        "All pages in one file: [llms-full.txt](llms-full.txt)",
        "",
    ]
    for section in app.env.toctree_includes.get("index", []):
        lines += [f"## {app.env.titles[section].astext()}", ""]
        for page in all_below(app, section):
            lines.append(f"- [{app.env.titles[page].astext()}]({page}.html): {sentence(app, page)}")
        lines.append("")
    return "\n".join(lines)


def all_below(app: Sphinx, page: str) -> list[str]:
    """A page and those under it, in the order of the toctrees."""
    found = [page]
    for below in app.env.toctree_includes.get(page, []):
        found += [one for one in all_below(app, below) if one not in found]
    return found


def sentence(app: Sphinx, page: str) -> str:
    """The first sentence of a page."""
    for paragraph in app.env.get_doctree(page).findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section):
            text = " ".join(paragraph.astext().split())
            return re.split(r"(?<=[\w)])[.:](?= [A-Z`])", text)[0].rstrip(".:") + "."
    return "see the page."


def setup(app: Sphinx) -> dict[str, bool]:
    """Register."""
    app.add_directive("cite-hierax", Cite)
    app.connect("builder-inited", prepare)
    app.connect("builder-inited", draw_figures)
    app.connect("source-read", leave_out_what_is_not_there)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
