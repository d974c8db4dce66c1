"""Seconds per step on 1, 2 and 4 devices of one process: `solve(..., mesh=...)`.

On a machine without accelerators the devices are simulated: they share its processors, and one device already uses all
of them for large products. So the figures show what spreading costs there, not what real devices would gain.
"""

import argparse
import json
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import hierax as hx
from hierax_lab.reproduce.comparison import headed

COUNTS = (1, 2, 4)  # devices
INNER = hx.SALM(steps=4)


def ridge(rows: int, columns: int, batch: int) -> tuple[hx.Problem, np.ndarray, np.ndarray, hx.SALVF]:
    """One strength of a ridge penalty per column, chosen on other data."""
    rng = np.random.default_rng(0)

    def data() -> hx.Finite:
        features = (rng.normal(size=(rows, columns)) / np.sqrt(columns)).astype(np.float32)
        return hx.Finite((features, features @ np.ones(columns, np.float32)))

    problem = hx.Problem(
        upper=lambda x, y, batch: jnp.mean((batch[0] @ y - batch[1]) ** 2),
        lower=lambda x, y, batch: jnp.mean((batch[0] @ y - batch[1]) ** 2) + jnp.mean(jnp.exp(x) * y**2),
        constraints=lambda x, y: jnp.mean(y**2) - 2.0,
        x_set=hx.Box(-3.0, 3.0),
        y_set=hx.Box(-2.0, 2.0),
        zeta=data(),
        xi=data(),
    )
    start = np.zeros(columns, np.float32)
    return problem, start, start, hx.SALVF(c1=5.0, c2=100.0, batch_zeta=batch, batch_xi=batch, inner=INNER)


def per_step(sol: Any) -> float:
    """Milliseconds of a step, without the start, in the quickest of the stretches between records."""
    return 1e3 * float(np.min(np.diff(sol.history["seconds"]) / np.diff(sol.history["step"])))


def measured(devices: int) -> dict[str, float]:
    """Milliseconds per step by case; a mesh of one device is none."""

    def mesh(*axes: str) -> Any:
        shape = (devices,) if len(axes) == 1 else (1, devices)
        return None if devices == 1 else jax.make_mesh(shape, axes)

    found = {}
    for name, sizes, steps, axes in (
        ("batch of 32, 20 columns", (1024, 20, 32), 200, ("data",)),
        ("batch of 4,096, 500 columns", (16_384, 500, 4096), 20, ("data",)),
        ("batch of 64, 100,000 columns, y spread", (128, 100_000, 64), 10, ("data", "model")),
    ):
        problem, x0, y0, method = ridge(*sizes)
        sol = hx.solve(problem, x0, y0, method, max_steps=steps, record_every=steps // 10, mesh=mesh(*axes))
        found[name] = per_step(sol)
    problem, x0, y0, method = ridge(1024, 200, 256)
    xs, ys = np.tile(x0, (16, 1)), np.tile(y0, (16, 1))
    sols = hx.solve_many(problem, xs, ys, method, max_steps=50, record_every=5, mesh=mesh("data"))
    found["16 starts, batch of 256, 200 columns"] = per_step(sols)
    return found


def run(console: Console) -> dict[str, Any]:
    """The table; every number of devices in a process of its own."""
    found = {}
    for count in COUNTS:
        environment = os.environ | {"NPROC": "16"}
        if jax.default_backend() == "cpu":
            environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
        command = [sys.executable, "-m", "hierax_lab.speed.devices", "--devices", str(count)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found[str(count)] = json.loads(done.stdout.splitlines()[-1])
    table = headed("milliseconds per step", *(f"{count} device{'s' * (count != 1)}" for count in COUNTS))
    for name in found["1"]:
        table.add_row(name, *(f"{found[str(count)][name]:.2f}" for count in COUNTS))
    console.print(table)
    return {"milliseconds": found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, required=True)
    print(json.dumps(measured(parser.parse_args().devices)))
