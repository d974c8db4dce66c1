"""Which test runs the Python of which page of docs: every page that is not listed here prints what it shows."""

from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
WRITTEN = ("reference", "gallery", "_ext")  # by the build
EVERY = sorted(page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] not in WRITTEN)

RUN = [  # test_readme.py: what they print is not compared
    "guides/using.md",
    "guides/data.md",
    "guides/datasets.md",
    "guides/checkpoints.md",
    "guides/cluster.md",
    "guides/reports.md",
    "guides/bridges.md",
    "guides/estimators.md",
]
ELSEWHERE = [
    "index.md",  # test_docs_site.py
    "guides/own-loop.md",  # test_readme.py
    "guides/own-method.md",  # test_readme.py
    "guides/certificate.md",  # test_certificate.py
    "pictures/constants.md",  # test_theory.py
]
SHOWN = [page for page in EVERY if page.relative_to(DOCS).as_posix() not in [*RUN, *ELSEWHERE]]  # test_learn_pages.py
