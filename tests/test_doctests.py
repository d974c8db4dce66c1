"""The examples in the docstrings of both packages show what a user gets who types them into a fresh interpreter."""

import doctest
import importlib
from pathlib import Path

import pytest

import hierax
import hierax_lab

PACKAGES = [Path(package.__file__).parent for package in (hierax, hierax_lab)]


def module_name(package: Path, file: Path) -> str:
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


WITH_EXAMPLES = sorted(
    module_name(package, file)
    for package in PACKAGES
    for file in package.rglob("*.py")
    if ">>> " in file.read_text("utf-8")
)


def test_the_examples_are_found():
    assert {"hierax.solving", "hierax_lab.datasets.loading"} <= set(WITH_EXAMPLES)
    assert any(name.startswith("hierax._") for name in WITH_EXAMPLES)


@pytest.mark.usefixtures("as_users_start")
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_of(name):
    tests = [test for test in doctest.DocTestFinder().find(importlib.import_module(name)) if test.examples]
    assert tests, f"{name} has examples in places that are no docstrings"
    report: list[str] = []
    runner = doctest.DocTestRunner()
    for test in tests:
        runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)
