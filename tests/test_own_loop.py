"""Equality to the last digits holds in code as users compile it, so these checks run in a process of their own.

The suite compiles unoptimised code (conftest.py), in which a scan and a single step may round differently.
"""

import os
import subprocess
import sys
from pathlib import Path

CHECKS = Path(__file__).with_name("own_loop_checks.py")


def test_own_loop_equals_solve_in_optimised_code():
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", str(CHECKS)]
    done = subprocess.run(command, env=os.environ | {"XLA_FLAGS": ""}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
