"""Pages of docs print what they show and their figures are what the scripts draw."""

import contextlib
import io
import re
import runpy
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from pages import DOCS, SHOWN

FIGURES = sorted(path for path in DOCS.glob("pictures/figures/*.py") if not path.stem.startswith("_"))
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def named(path: Path) -> str:
    return str(path.relative_to(DOCS))


def without_seconds(text: str) -> list[str]:
    """The lines of what a block prints; how long a run took differs from run to run."""
    return [line.rstrip() for line in text.rstrip().splitlines() if not line.startswith("seconds ")]


@pytest.mark.usefixtures("as_users_start")
@pytest.mark.parametrize("page", [page for page in SHOWN if "```python" in page.read_text("utf-8")], ids=named)
def test_a_page_prints_what_it_shows(page: Path) -> None:
    names: dict = {"__name__": page.stem}
    for code, shown in BLOCK.findall(page.read_text("utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(page), "exec"), names)
        assert without_seconds(printed.getvalue()) == without_seconds(shown), code


@pytest.mark.parametrize("script", FIGURES, ids=named)
def test_a_figure_is_made_by_its_script(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, promotion: None
) -> None:
    """And it is in the repository, small, and shown by a page."""
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    name = script.stem.replace("_", "-") + ".svg"
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path / name)])
    runpy.run_path(str(script))
    kept = script.with_name(name)
    for path in (tmp_path / name, kept):
        assert ET.parse(path).getroot().tag.endswith("svg")
        assert path.stat().st_size < 150_000
    assert any(f"](figures/{name})" in page.read_text("utf-8") for page in DOCS.glob("pictures/*.md"))
