"""Runs on a mesh are those on one device, up to the order of sums: four simulated devices in another process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from cases import METHOD, TOY
from jax.sharding import Mesh

import hierax as hx

SCRIPT = Path(__file__).with_name("four_devices.py")
CLOSE = 1e-10


def on_four_devices(*checks: str) -> dict[str, dict]:
    """What the checks print, by name."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    # More threads than devices: a batched decomposition waits for a thread beside its own (docs/guides/cluster.md).
    environment = os.environ | {"XLA_FLAGS": flags, "NPROC": "16", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(SCRIPT), *checks]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line for line in lines}


@pytest.fixture(scope="module")
def seen() -> dict[str, dict]:
    return on_four_devices("layouts")


@pytest.fixture(scope="module")
def sources() -> dict[str, dict]:
    return on_four_devices("sources", "uneven")


def test_samples_and_y_are_spread(seen):
    assert seen["data"]["far"] < CLOSE
    assert seen["data"]["specs"] == ["()", "()"]
    assert seen["both"]["far"] < CLOSE
    assert "model" in seen["both"]["specs"][1]
    assert seen["both"]["devices"] == 1  # the answer is an ordinary array


@pytest.mark.slow  # batches of `Finite`: the test above
def test_streams_and_files_are_spread(sources):
    assert sources["streams"]["far"] < CLOSE
    assert sources["files"]["far"] < CLOSE


def test_a_run_goes_on_on_other_devices(seen):
    for name in ("state on another mesh", "state on no mesh", "checkpoint on another mesh"):
        assert seen[name]["far"] < CLOSE, name
    assert seen["checkpoint on another mesh"]["log"] == 1
    assert "model" in seen["checkpoint on another mesh"]["specs"][1]


@pytest.mark.slow  # one start, rows that are divided: the tests above
def test_starts_are_spread(sources):
    assert sources["many starts"]["far"] < CLOSE
    assert all("data" in spec for spec in sources["many starts"]["specs"])
    assert sources["many starts"]["status"] == "max_steps"


@pytest.mark.slow  # one start, rows that are divided: the tests above
def test_what_the_devices_do_not_divide_is_said_and_computed_everywhere(sources):
    assert sources["uneven"]["far"] < CLOSE
    (said,) = sources["uneven"]["said"]
    assert "do not divide 23 rows of zeta and 3 samples of zeta in a batch" in said
    assert "Choose multiples of 4" in said
    assert sources["six starts"]["far"] < CLOSE
    assert "do not divide 6 starts" in sources["six starts"]["said"][0]


# One method is compared above; each of the others takes seconds to compile.
@pytest.mark.slow
def test_every_method_runs_on_a_mesh():
    found = on_four_devices("methods")
    assert len(found) >= 11
    assert {name: one["far"] for name, one in found.items() if one["far"] > 1e-6} == {}


# -- a mesh of one device: what needs no second one -------------------------------------------------------------------


def mesh_of(*axes: str) -> Mesh:
    return Mesh(np.array(jax.devices()[:1]).reshape((1,) * len(axes)), axes)


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ("data", "mesh: needs a jax.sharding.Mesh, got str"),
        (mesh_of("data", "tensor"), "has no use for 'tensor'"),
        (mesh_of("a", "b"), "has no use for 'b'"),
    ],
)
def test_a_mesh_that_cannot_be_used_is_refused(mesh, said):
    with pytest.raises(hx.InputError, match=said):
        hx.solve(TOY.problem, TOY.x0, TOY.y0, METHOD, max_steps=2, mesh=mesh)


def test_auto_says_that_it_has_no_use_for_a_mesh():
    with pytest.raises(hx.InputError, match="mesh: belongs to methods that make steps"):
        hx.solve(TOY.problem, TOY.x0, TOY.y0, mesh=mesh_of("data"))
    with pytest.raises(hx.InputError, match="mesh: belongs to methods that make steps"):
        hx.solve_many(TOY.problem, TOY.x0[None], TOY.y0[None], mesh=mesh_of("data"))
