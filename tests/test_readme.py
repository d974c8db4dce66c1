"""The examples of README and docs run as printed, and print what they say."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from pages import DOCS, ELSEWHERE, RUN

import hierax as hx

ROOT = Path(__file__).parent.parent


def snippets(name, fence="python"):
    return re.findall(rf"```{fence}\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


@pytest.mark.usefixtures("as_users_start")
def test_readme_prints_what_it_says(capsys):
    (code,) = snippets("README.md")
    exec(code, {})
    claimed = re.search(r"prints `(.*?)`", (ROOT / "README.md").read_text()).group(1)
    assert capsys.readouterr().out.strip() == claimed


def test_own_loop_is_solve():
    (code,) = snippets("docs/guides/own-loop.md")
    names: dict = {}
    exec(code, names)
    sol = hx.solve(names["problem"], names["x0"], names["y0"], hx.SALVF(c1=5.0, c2=100.0), max_steps=100, seed=0)
    np.testing.assert_allclose(jnp.stack([names["x"], names["y"]]), jnp.stack([sol.x, sol.y]), rtol=1e-9)


@pytest.mark.usefixtures("as_users_start")
@pytest.mark.parametrize("page", RUN)
def test_examples_of_a_page_run(page):
    for code in snippets(f"docs/{page}"):
        exec(code, {})


@pytest.mark.usefixtures("as_users_start")
@pytest.mark.parametrize("place, package", [(0, "torch"), (1, "flax")])
def test_examples_for_packages_in_no_extra_run(place, package, capsys):
    """Derivatives of torch functions are tested with a stand-in, and modules as variables with Equinox, elsewhere."""
    pytest.importorskip(package, reason=f"{package} is in no extra of hierax")
    names: dict = {}
    exec(snippets("docs/guides/bridges.md", "py")[place], names)
    assert names["sol"].status.name == "converged", names["sol"].status.message


@pytest.mark.usefixtures("as_users_start")
def test_own_method_prints_what_it_says(capsys):
    """The method itself goes through the suite of all methods (test_methods.py)."""
    names: dict = {"__name__": "own_method"}
    for code in snippets("docs/guides/own-method.md"):
        exec(code, names)
    claimed = re.search(r"prints `(.*?)`", (ROOT / "docs" / "guides" / "own-method.md").read_text()).group(1)
    assert capsys.readouterr().out.strip() == claimed


def test_the_pages_that_tests_name_have_examples():
    assert [page for page in [*RUN, *ELSEWHERE] if not snippets(DOCS / page)] == []
