"""The examples of README and docs run as printed, and print what they say."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx

ROOT = Path(__file__).parent.parent
PAGES = [
    "using.md",
    "data.md",
    "datasets.md",
    "checkpoints.md",
    "cluster.md",
    "reports.md",
    "bridges.md",
    "estimators.md",
]
ELSEWHERE = ["own-loop.md", "own-method.md"]  # below
ELSEWHERE += ["certificate.md", "theory.md"]  # test_certificate.py, test_theory.py
ELSEWHERE += ["index.md"]  # test_docs_site.py
ELSEWHERE += ["compared.md"]  # test_learn_pages.py, which takes the pages of these folders as well
FOLDERS = {"learn", "theory"}


def snippets(name, fence="python"):
    return re.findall(rf"```{fence}\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


@pytest.mark.usefixtures("as_users_start")
def test_readme_prints_what_it_says(capsys):
    (code,) = snippets("README.md")
    exec(code, {})
    claimed = re.search(r"prints `(.*?)`", (ROOT / "README.md").read_text()).group(1)
    assert capsys.readouterr().out.strip() == claimed


def test_own_loop_is_solve():
    (code,) = snippets("docs/own-loop.md")
    names: dict = {}
    exec(code, names)
    sol = hx.solve(names["problem"], names["x0"], names["y0"], hx.SALVF(c1=5.0, c2=100.0), max_steps=100, seed=0)
    np.testing.assert_allclose(jnp.stack([names["x"], names["y"]]), jnp.stack([sol.x, sol.y]), rtol=1e-9)


@pytest.mark.usefixtures("as_users_start")
@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_run(page):
    for code in snippets(f"docs/{page}"):
        exec(code, {})


@pytest.mark.usefixtures("as_users_start")
@pytest.mark.parametrize("place, package", [(0, "torch"), (1, "flax")])
def test_examples_for_packages_in_no_extra_run(place, package, capsys):
    """Derivatives of torch functions are tested with a stand-in, and modules as variables with Equinox, elsewhere."""
    pytest.importorskip(package, reason=f"{package} is in no extra of hierax")
    names: dict = {}
    exec(snippets("docs/bridges.md", "py")[place], names)
    assert names["sol"].status.name == "converged", names["sol"].status.message


@pytest.mark.usefixtures("as_users_start")
def test_own_method_prints_what_it_says(capsys):
    """The method itself goes through the suite of all methods (test_methods.py)."""
    names: dict = {"__name__": "own_method"}
    for code in snippets("docs/own-method.md"):
        exec(code, names)
    claimed = re.search(r"prints `(.*?)`", (ROOT / "docs" / "own-method.md").read_text()).group(1)
    assert capsys.readouterr().out.strip() == claimed


def test_every_page_with_an_example_is_tested():
    found = (ROOT / "docs").rglob("*.md")
    pages = {page.name for page in found if page.parent.name not in FOLDERS and snippets(page)}
    assert pages == {*PAGES, *ELSEWHERE}
