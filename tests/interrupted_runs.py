"""Run by test_random_interrupts.py in a process of its own: solves problems and sends itself SIGINT at given moments.

Prints one JSON line for every run: what came back, when, and whether a point had been seen by the caller before.
"""

import json
import os
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp

import hierax as hx

jax.config.update("jax_enable_x64", True)

DIAGONAL = jnp.linspace(1.0, 2.0, 3)
PROBLEM = hx.Problem(
    upper=lambda x, y, _: ((y - 1.0) ** 2).sum() + 0.1 * (x**2).sum() + 0.05 * jnp.cos(5.0 * x).sum(),
    lower=lambda x, y, _: (DIAGONAL * (y - 2.0 * x) ** 2).sum(),
    constraints=lambda x, y: y - x,
    x_set=hx.Box(-3.0, 3.0),
    y_set=hx.Box(-3.0, 3.0),
)
X0 = Y0 = jnp.full(3, 0.5)
LONG = 10_000_000  # steps: the limit is the time
NEVER = 1e6

METHODS = {
    "auto": (None, {}),
    "penalty": (hx.Auto(route="penalty"), {}),
    "salvf": (hx.SALVF(), {"max_steps": LONG, "record_every": 50}),
    "blocc": (hx.BLOCC(), {"max_steps": LONG, "record_every": 2}),
    "gam": (hx.GAM(), {"max_steps": LONG, "record_every": 2}),
    "lvhba": (hx.LVHBA(), {"max_steps": LONG, "record_every": 50}),
}


def run(name: str, moment: float, seconds: float) -> dict[str, object]:
    """One run with SIGINT after `moment` seconds."""
    method, options = METHODS[name]
    seen: list[float] = []
    begin = time.perf_counter()

    def look(info: hx.Info) -> None:
        seen.append(time.perf_counter() - begin)

    options = {**options, "callback": look}
    timer = threading.Timer(moment, os.kill, (os.getpid(), signal.SIGINT))
    found: dict[str, object] = {"method": name, "moment": moment}
    solution = None
    try:
        timer.start()
        solution = hx.solve(PROBLEM, X0, Y0, method, seconds=seconds, throw=False, progress=False, **options)
    except KeyboardInterrupt:
        found["ended"] = "KeyboardInterrupt"
    try:  # a request that comes too late for the run is not the run's
        found |= {"took": time.perf_counter() - begin, "seen": len([at for at in seen if at < moment])}
        found["sent"] = found["took"] >= moment
        timer.cancel()
        timer.join()
        time.sleep(0.01)
    except KeyboardInterrupt:
        found["sent"] = False
    if solution is not None:
        found |= {"ended": solution.status.name, "message": solution.status.message}
        found["finite"] = bool(jnp.isfinite(solution.x).all() & jnp.isfinite(solution.y).all())
        found["value"] = solution.value
    found["handler_kept"] = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return found


def main() -> None:
    """Runs as the arguments say: name:moment:seconds ...

    A moment is a number of seconds, "x0.3" for a part of the time that the last whole run of the method took, or
    "whole" for a run without Ctrl-C.
    """
    took: dict[str, float] = {}
    for argument in sys.argv[1:]:
        name, moment, seconds = argument.split(":")
        if moment == "whole":
            found = run(name, NEVER, float(seconds))
            took[name] = float(str(found["took"]))
        else:
            part = float(moment.removeprefix("x"))
            found = run(name, part * took[name] if moment.startswith("x") else part, float(seconds))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
