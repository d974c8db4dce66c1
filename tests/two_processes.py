"""Run by test_processes.py in each of two processes: `two_processes.py ADDRESS ID FOLDER CHECKS`.

Prints one JSON line per check, what this process has seen of it; the test compares those of both.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import hierax as hx

ROWS = 24
INNER = hx.SALM(steps=2)  # every exchange between processes takes a millisecond
METHOD = hx.SALVF(c1=5.0, c2=100.0, batch_zeta=4, batch_xi=4, inner=INNER)
UNSIZED = hx.SALVF(c1=5.0, c2=100.0, inner=INNER)  # a Stream sets the size


def data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(ROWS, 4))
    return features, features @ np.array([1.0, -1.0, 0.5, 0.25]) + 0.1 * rng.normal(size=ROWS)


def problem(zeta: object, xi: object) -> hx.Problem:
    """Strengths of a ridge penalty, chosen on other data, with a bound on the norm."""
    return hx.Problem(
        upper=lambda x, y, rows: jnp.mean((rows[0] @ y - rows[1]) ** 2),
        lower=lambda x, y, rows: jnp.mean((rows[0] @ y - rows[1]) ** 2) + jnp.sum(jnp.exp(x) * y**2),
        constraints=lambda x, y: jnp.sum(y**2) - 1.0,
        x_set=hx.Box(-4.0, 2.0),
        zeta=zeta,
        xi=xi,
    )


X0, Y0 = np.full(4, -1.0), np.full(4, 0.1)


def streams(part: slice) -> tuple[hx.Stream, hx.Stream]:
    """Batches of four rows, of which `part` is this process's."""
    return tuple(
        hx.Stream([tuple(a[i : i + 4][part] for a in data(seed)) for i in range(0, ROWS, 4)]) for seed in (0, 1)
    )


def say(name: str, **seen: object) -> None:
    print(json.dumps({"name": name, **seen}), flush=True)


def check_layouts(process: int, folder: Path) -> None:
    """y over the processes, starts over the processes, a lower solver on the host of one."""
    whole = problem(hx.Finite(data(0)), hx.Finite(data(1)))
    model = jax.make_mesh((2,), ("model",))
    hx.solve(whole, X0, Y0, METHOD, max_steps=3, record_every=3, mesh=model, checkpoint=folder / "model")
    seen = []
    options = {"mesh": model, "checkpoint": folder / "model", "callback": lambda info: seen.append(info.y.shape)}
    sol = hx.solve(whole, X0, Y0, METHOD, max_steps=6, record_every=3, **options)
    spread = str(sol.state.run.state.point.y.sharding.spec)
    say("y over the processes", x=sol.x.tolist(), y=sol.y.tolist(), spread=spread, seen=seen)
    xs, ys = X0 + np.linspace(0.0, 1.0, 4)[:, None], np.tile(Y0, (4, 1))
    sols = hx.solve_many(whole, xs, ys, METHOD, max_steps=6, mesh=jax.make_mesh((2,), ("data",)))
    say(
        "starts over the processes",
        x=sols.x.tolist(),
        status=[one.name for one in sols.status],
        last=sols[3].x.tolist(),
    )
    quadratic = hx.Problem(
        upper=whole.upper,
        lower=lambda x, y, _: jnp.sum((y - x) ** 2),
        constraints=lambda x, y: y - 0.5,
        zeta=whole.zeta,
    )
    exact = hx.SALVF(inner=hx.Conic())
    on_both = hx.solve(quadratic, X0, Y0, exact, max_steps=4, mesh=jax.make_mesh((2,), ("data",)))
    alone = hx.solve(quadratic, X0, Y0, exact, max_steps=4)
    say("Conic", x=on_both.x.tolist(), far=float(jnp.abs(on_both.x - alone.x).max()))


def check_agreement(process: int, folder: Path) -> None:
    """Parts of the data, checkpoints, decisions, refusals, streams."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    half = slice(process * ROWS // 2, (process + 1) * ROWS // 2)
    local = problem(*(hx.Finite(tuple(a[half] for a in data(seed)), local=True) for seed in (0, 1)))

    def solve(
        stated: hx.Problem = local, x0: np.ndarray = X0, method: object = METHOD, **options: object
    ) -> hx.Solution:
        options = {"max_steps": 6, "record_every": 3, "mesh": mesh, "progress": False} | options
        return hx.solve(stated, x0, Y0, method, **options)

    def refused(name: str, call: object) -> None:
        try:
            call()
            say(name, text="")
        except hx.InputError as error:
            say(name, text=str(error))

    sol = solve(max_steps=50)
    say("halves", x=sol.x.tolist(), y=sol.y.tolist(), upper=sol.history["upper"].tolist(), value=sol.value)
    sol = solve(problem(hx.Finite(data(0)), hx.Finite(data(1))))
    say("whole data everywhere", x=sol.x.tolist())

    # One process writes checkpoints, both go on from them.
    kept = folder / "kept"
    solve(max_steps=3, checkpoint=kept)
    sol = solve(checkpoint=kept)
    log = [line[line.index("(") + 1 : line.index(")")] for line in sol.log]  # (step 3): how far the checkpoint was
    say("checkpoint", x=sol.x.tolist(), upper=sol.history["upper"].tolist(), log=log)

    # Who decides: the callback is asked in process 0, the clock is that of process 0, Ctrl-C counts in any.
    asked: list[int] = []
    sol = solve(callback=lambda info: asked.append(info.step) or info.step >= 3)
    say("callback", asked=asked, status=sol.status.name, step=sol.status.step)
    sol = solve(seconds=None if process == 0 else 1e-3)
    say("clock", status=sol.status.name)
    if process == 1:
        threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    sol = solve(max_steps=10**8, seconds=60.0)
    say("SIGTERM in process 1", status=sol.status.name, step=sol.status.step, x=sol.x.tolist())

    # What one process refuses, both leave with an error, and nobody waits for ever.
    refused("another x0", lambda: solve(x0=X0 + 0.1 * process))
    sized = hx.SALVF(c1=5.0, c2=100.0, batch_zeta=4 + 4 * process, batch_xi=4, inner=INNER)
    refused("another method", lambda: solve(method=sized))
    refused("bad in process 1", lambda: solve(x0=X0 if process == 0 else np.full(4, np.nan)))
    odd = hx.Finite(tuple(a[: 10 + process] for a in data(0)), local=True)
    refused("unequal parts", lambda: solve(problem(odd, None)))
    refused("no mesh", lambda: solve(mesh=None))
    refused("certificate", lambda: hx.certify(local, sol.x, sol.y))
    refused("auto", lambda: hx.solve(local, X0, Y0, mesh=mesh))

    # Streams: each process gives its part of every batch.
    sol = solve(problem(*streams(slice(2 * process, 2 * process + 2))), method=UNSIZED)
    say("streams", x=sol.x.tolist())
    ending, xi = (hx.Stream([tuple(a[:2] for a in data(seed))]) for seed in (0, 1))
    ending = hx.Stream(iter(ending.iterable * (9 - 5 * process)))  # that of process 1 has 4 batches
    sol = solve(problem(ending, xi), method=UNSIZED, throw=False)
    say("a stream that ends", status=sol.status.name, step=sol.status.step, message=sol.status.message)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]), initialization_timeout=60)
    {"agreement": check_agreement, "layouts": check_layouts}[sys.argv[4]](int(sys.argv[2]), Path(sys.argv[3]))
