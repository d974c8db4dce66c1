"""Look at the built site as a browser without a network would: `python tools/check_site.py build/docs/html`.

Every link from page to page, and every anchor in it, must exist; no page may ask a host for a script, a style, a font
or a picture. The files for readers that are programs, llms.txt and llms-full.txt, must hold the same pages in the same
order, and every one of them. Then the counts of the site are printed.
"""

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes that a browser follows by itself when it shows a page, by tag.
LOADED = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "iframe": ("src",),
    "video": ("src",),
    "audio": ("src",),
    "embed": ("src",),
    "object": ("data",),
}
LOADED_LINKS = {"stylesheet", "preload", "prefetch", "modulepreload", "preconnect", "dns-prefetch", "icon", "manifest"}


class Page(HTMLParser):
    """What a page links to, what it loads, and which anchors it has."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Sort the attributes."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and set(given.get("rel", "").split()) & LOADED_LINKS:
            self.loaded.append(given.get("href", ""))
        self.loaded += [given[name] for name in LOADED.get(tag, ()) if name in given]


def main(folder: Path) -> int:
    """The number of faults."""
    pages = {file: Page() for file in sorted(folder.rglob("*.html")) if "_static" not in file.parts}
    for file, page in pages.items():
        page.feed(file.read_text("utf-8"))
    faults = [fault for file in pages for fault in faults_of(file, pages, folder)]
    for style in sorted(folder.rglob("*.css")):
        found = re.findall(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^)'\"]*)", style.read_text("utf-8"))
        faults += [f"{style.relative_to(folder)}: loads {address}" for address in found]
    faults += faults_of_llms(folder)
    for fault in faults:
        print(fault, file=sys.stderr)
    for name, count in json.loads((folder / "site.json").read_text("utf-8")).items():
        print(f"{count:6d}  {name}")
    links = sum(len(page.links) for page in pages.values())
    print(f"{links:6d}  links in {len(pages)} HTML files, {len(faults)} faults")
    return len(faults)


def faults_of(file: Path, pages: dict[Path, Page], folder: Path) -> list[str]:
    """What is wrong with the links of a page."""
    found = []
    here = file.relative_to(folder)
    for address in pages[file].loaded:
        if urlsplit(address).netloc:
            found.append(f"{here}: loads {address}")
    for address in pages[file].links:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc or address.startswith("#!"):
            continue
        target = (file.parent / unquote(parts.path)).resolve() if parts.path else file.resolve()
        if not target.exists():
            found.append(f"{here}: links to {address}, which does not exist")
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
            found.append(f"{here}: links to {address}, an anchor that does not exist")
    return found


def faults_of_llms(folder: Path) -> list[str]:
    """Pages that llms.txt or llms-full.txt lacks, or holds in another order."""
    short, full = ((folder / name).read_text("utf-8") for name in ("llms.txt", "llms-full.txt"))
    linked = re.findall(r"^- \[.*\]\((\S+\.html)\): ", short, re.MULTILINE)
    whole = re.findall(r"^<!-- (\S+\.html) -->$", full, re.MULTILINE)
    faults = [f"llms.txt: {page} does not exist" for page in linked if not (folder / page).is_file()]
    if whole != ["index.html", *dict.fromkeys(linked)]:
        differ = sorted({*whole} ^ {"index.html", *linked}) or ["the order"]
        faults.append(f"llms.txt and llms-full.txt differ in {', '.join(differ[:5])}")
    pages = json.loads((folder / "site.json").read_text("utf-8"))["pages"]
    if len(whole) != pages:
        faults.append(f"llms-full.txt: {len(whole)} of {pages} pages")
    return faults


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    raise SystemExit(1 if main(Path(sys.argv[1]).resolve()) else 0)
