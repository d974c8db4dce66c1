"""Equality to the last digits holds in code as users compile it, so these checks run in a process of their own.

The suite compiles unoptimised code (conftest.py), in which a scan and a single step may round differently.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("own_loop_checks.py")


def passed(selection: str) -> str:
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", selection, str(CHECKS)]
    done = subprocess.run(command, env=os.environ | {"XLA_FLAGS": ""}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_own_loop_equals_solve_in_optimised_code():
    assert "2 passed" in passed("storm or bit_for_bit")


@pytest.mark.slow  # the step of this method is compared above, its whole loop in test_readme.py (unoptimised)
def test_own_loop_equals_solve_in_optimised_code_without_variance_reduction():
    assert "1 passed" in passed("plain")
