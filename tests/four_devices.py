"""Run by test_devices.py in a process with four simulated devices: `four_devices.py CHECK ...`.

Prints one JSON line per comparison: how far runs on a mesh are from those on one device.
"""

import dataclasses
import json
import sys
import tempfile
import warnings

import jax
import numpy as np
from two_processes import METHOD, UNSIZED, X0, Y0, data, problem, streams

import hierax as hx
from hierax.extend import METHODS

STEPS = 50
FEW = 10  # of the runs on streams: later a change of x0 by 1e-15 grows to 1e-8, on one device too


def stated(rows: int = 24) -> hx.Problem:
    return problem(hx.Finite(tuple(a[:rows] for a in data(0))), hx.Finite(data(1)))


def saved(name: str, arrays: tuple[np.ndarray, ...]) -> tuple[str, ...]:
    """Arrays as .npy files."""
    paths = tuple(f"{name}-{i}.npy" for i in range(len(arrays)))
    for path, array in zip(paths, arrays, strict=True):
        np.save(path, array)
    return paths


def far(one: hx.Solution, other: hx.Solution) -> float:
    return float(max(np.abs(np.asarray(a) - np.asarray(b)).max() for a, b in ((one.x, other.x), (one.y, other.y))))


def say(name: str, **seen: object) -> None:
    print(json.dumps({"name": name, **seen}), flush=True)


def specs(sol: hx.Solution) -> list[str]:
    """How x and y lie in the state."""
    point = sol.state.run.state.point
    return [str(tuple(leaf.sharding.spec)) for leaf in (point.x, point.y)]


def check_layouts() -> None:
    """Data, data and model; state and checkpoint taken over onto another mesh, and off it."""
    meshes = {"data": jax.make_mesh((4,), ("data",)), "both": jax.make_mesh((2, 2), ("rows", "model"))}
    expected = hx.solve(stated(), X0, Y0, METHOD, max_steps=STEPS)
    found = {}
    for name, mesh in meshes.items():
        found[name] = hx.solve(stated(), X0, Y0, METHOD, max_steps=STEPS, mesh=mesh)
        say(name, far=far(found[name], expected), specs=specs(found[name]), devices=len(found[name].y.devices()))
    half = hx.solve(stated(), X0, Y0, METHOD, max_steps=STEPS // 2, mesh=meshes["both"])
    for name, mesh in (("state on another mesh", meshes["data"]), ("state on no mesh", None)):
        rest = hx.solve(stated(), X0, Y0, METHOD, max_steps=STEPS // 2, state=half.state, mesh=mesh)
        say(name, far=far(rest, expected))
    with tempfile.TemporaryDirectory() as folder:
        hx.solve(stated(), X0, Y0, METHOD, max_steps=STEPS // 2, checkpoint=folder, mesh=meshes["data"])
        rest = hx.solve(stated(), X0, Y0, METHOD, max_steps=STEPS, checkpoint=folder, mesh=meshes["both"])
    say("checkpoint on another mesh", far=far(rest, expected), log=len(rest.log), specs=specs(rest))


def check_sources() -> None:
    """Streams, files, many starts."""
    mesh = jax.make_mesh((4,), ("data",))
    expected = hx.solve(problem(*streams(slice(None))), X0, Y0, UNSIZED, max_steps=FEW)
    sol = hx.solve(problem(*streams(slice(None))), X0, Y0, UNSIZED, max_steps=FEW, mesh=mesh)
    say("streams", far=far(sol, expected))

    with tempfile.TemporaryDirectory() as folder:
        sources = [hx.Finite.from_files(saved(f"{folder}/{seed}", data(seed))) for seed in (0, 1)]
        expected = hx.solve(problem(*sources), X0, Y0, METHOD, max_steps=FEW)
        sol = hx.solve(problem(*sources), X0, Y0, METHOD, max_steps=FEW, mesh=mesh)
    say("files", far=far(sol, expected))

    xs, ys = X0 + np.linspace(0.0, 1.0, 8)[:, None], np.tile(Y0, (8, 1))
    several = hx.solve_many(stated(), xs, ys, METHOD, max_steps=STEPS)
    sols = hx.solve_many(stated(), xs, ys, METHOD, max_steps=STEPS, mesh=mesh)
    say("many starts", far=far(sols, several), specs=specs(sols), status=sols[3].status.name)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sols = hx.solve_many(stated(), xs[:6], ys[:6], METHOD, max_steps=STEPS, mesh=mesh)
        say("six starts", far=far(sols[5], several[5]), said=[str(one.message) for one in said])


def check_uneven() -> None:
    """Rows and batches that four devices do not divide."""
    method = hx.SALVF(c1=5.0, c2=100.0, batch_zeta=3, batch_xi=4, inner=METHOD.inner)
    expected = hx.solve(stated(23), X0, Y0, method, max_steps=STEPS)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sol = hx.solve(stated(23), X0, Y0, method, max_steps=STEPS, mesh=jax.make_mesh((4,), ("data",)))
    say("uneven", far=far(sol, expected), said=[str(one.message) for one in said])


def check_methods() -> None:
    """Every method, with four rows of y on two devices each."""
    mesh = jax.make_mesh((2, 2), ("data", "model"))
    linear = dataclasses.replace(stated(), constraints=lambda x, y: y - 0.6)  # which two of them ask for
    for name, method in METHODS.items():
        expected = hx.solve(linear, X0, Y0, method(), max_steps=10)
        say(name, far=far(hx.solve(linear, X0, Y0, method(), max_steps=10, mesh=mesh), expected))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    checks = {"layouts": check_layouts, "sources": check_sources, "uneven": check_uneven, "methods": check_methods}
    for check in sys.argv[1:]:
        checks[check]()
