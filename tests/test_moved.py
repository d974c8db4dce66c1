"""Names that have moved to hierax-lab go on working, with a warning; without the lab they say how to get it."""

import importlib
import sys

import pytest

import hierax as hx
import hierax_lab.datasets
import hierax_lab.problems.bolib


def test_data_sets_forward_and_warn():
    with pytest.warns(hx.HieraxWarning, match=r"hierax\.datasets\.load goes in version 0\.3: write hierax_lab"):
        assert hx.datasets.load is hierax_lab.datasets.load
    from hierax import datasets

    with pytest.warns(hx.HieraxWarning) as seen:
        found = {name: getattr(datasets, name) for name in hierax_lab.datasets.__all__}
    assert found == {name: getattr(hierax_lab.datasets, name) for name in hierax_lab.datasets.__all__}
    assert len(seen) == len(found)


def test_problems_forward_and_warn():
    from hierax import problems

    new = {"chain", "flows", "membrane"}  # written after the move: nobody looks for them at the old place
    for name in set(hierax_lab.problems.__all__) - new:
        with pytest.warns(hx.HieraxWarning, match=rf"hierax\.problems\.{name} goes .* hierax_lab\.problems\.{name}"):
            assert getattr(problems, name) is getattr(hierax_lab.problems, name)
    with pytest.warns(hx.HieraxWarning):
        from hierax.problems import smd
    assert smd is hierax_lab.problems.smd
    from hierax.problems import bolib

    with pytest.warns(hx.HieraxWarning, match=r"write hierax_lab\.problems\.bolib\.load"):
        assert bolib.load is hierax_lab.problems.bolib.load


@pytest.mark.parametrize(
    ("module", "name"), [("hierax.datasets", "load"), ("hierax.problems", "smd"), ("hierax.problems.bolib", "CASES")]
)
def test_without_the_lab_they_say_how_to_get_it(monkeypatch, module, name):
    for one in [one for one in sys.modules if one.partition(".")[0] == "hierax_lab"]:
        monkeypatch.delitem(sys.modules, one)
    monkeypatch.setattr(sys, "meta_path", [_WithoutTheLab(), *sys.meta_path])
    with pytest.raises(hx.MissingExtra, match=rf"{module}\.{name} is now hierax_lab\..*: pip install hierax-lab"):
        getattr(importlib.import_module(module), name)


def test_names_that_never_were_are_plain_mistakes():
    for module in ("hierax.datasets", "hierax.problems", "hierax.problems.bolib"):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            importlib.import_module(module).nothing  # noqa: B018


class _WithoutTheLab:
    """As if hierax-lab were not installed."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "hierax_lab":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
