"""What a stranger does with an installed hierax-lab; run by `check_release.py` where hierax alone was used before."""

import subprocess
import sys
import warnings
from pathlib import Path

import hierax as hx
from hierax_lab import datasets
from hierax_lab.problems import bolib

COMMANDS = (  # and what each must say
    (["--help"], "reproduce"),
    (["datasets"], "pendigits"),
    (["bench", "toy"], "times hierax"),
    (["reproduce", "toy", "--quick"], "Written to out/toy"),
    (["doctor"], "All is well."),
)


def names_are_there() -> None:
    """The data sets and the collections, also under their old names, which warn."""
    assert datasets.load("pendigits").features.shape == (10992, 16)
    assert len(bolib.CASES) == 71
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert hx.datasets.load is datasets.load
    assert [str(one.message) for one in seen if issubclass(one.category, hx.HieraxWarning)]


def commands_work() -> None:
    """The commands of the lab; each ends with 0."""
    program = Path(sys.executable).with_name("hierax")
    for words, said in COMMANDS:
        done = subprocess.run([str(program), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"hierax {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert said in done.stdout, f"hierax {' '.join(words)} does not say {said!r}:\n{done.stdout}"
        print("hierax", *words, "is fine", flush=True)


if __name__ == "__main__":
    names_are_there()
    commands_work()
