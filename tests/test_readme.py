"""The examples of README and docs run as printed, and print what they say."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import hierax as hx

ROOT = Path(__file__).parent.parent


def snippets(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


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


def test_using_page_runs():
    for code in snippets("docs/using.md"):
        exec(code, {})
