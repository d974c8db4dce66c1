"""Commands in processes of their own that are killed and terminated in the midst of a run (200: make soak)."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from cases import METHOD, TOY, same

import hierax as hx

STATED = """
import hierax as hx, jax

noise = hx.Sampler(lambda key, n: 0.1 * jax.random.normal(key, (n, 2)), exact=jax.numpy.zeros((1, 2)))
problem = hx.Problem(
    upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2 + zeta.mean(0) @ jax.numpy.stack([x, y]),
    lower=lambda x, y, xi: (y - 2.0 * x) ** 2 + xi.mean(0) @ jax.numpy.stack([x, y]),
    constraints=lambda x, y: y - x,
    zeta=noise,
    xi=noise,
)
x0, y0 = 0.5, 0.5
"""
LONG = 10**8


def command(folder, out, steps, *more):
    options = ["--method", "salvf", "--max-steps", str(steps), "--out", out, "--checkpoint-every", "0.1", *more]
    call = [sys.executable, "-m", "hierax", "solve", "model.py:problem", *options]
    return subprocess.Popen(call, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def newest(folder):
    try:
        return max((name for name in os.listdir(folder / "checkpoint") if name[-1].isdigit()), default="")
    except OSError:
        return ""


def after_another_checkpoint(process, folder):
    """Wait until the process has written one; a run that ended before has failed."""
    before = newest(folder)
    while newest(folder) == before:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def status(folder):
    return json.loads((folder / "run.json").read_text())["status"]


def test_a_killed_and_a_terminated_command_go_on_to_the_end_of_an_uninterrupted_one(tmp_path):
    (tmp_path / "model.py").write_text(STATED)
    out = tmp_path / "out"
    process = command(tmp_path, "out", LONG)
    after_another_checkpoint(process, out)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert status(out)["name"] == "running"

    process = command(tmp_path, "out", LONG, "--resume")
    after_another_checkpoint(process, out)
    with pytest.raises(hx.InputError, match="another run writes into this folder"):
        hx.solve(TOY.problem, 0.5, 0.5, METHOD, max_steps=1, checkpoint=out / "checkpoint")
    os.kill(process.pid, signal.SIGTERM)
    output, errors = process.communicate()
    assert process.returncode == 143, errors
    assert "Resumed from the checkpoint" in output and "interrupted (Ctrl-C or SIGTERM) after step" in output
    assert status(out)["name"] == "interrupted"

    steps = status(out)["step"] + 1000
    names: dict = {}
    exec(STATED, names)
    call = names["problem"], names["x0"], names["y0"], hx.SALVF()
    on = hx.solve(*call, max_steps=steps, checkpoint=out / "checkpoint")
    whole = hx.solve(*call, max_steps=steps)
    same((on.x, on.y, on.multipliers, on.state.run), (whole.x, whole.y, whole.multipliers, whole.state.run))
    assert on.status == whole.status


def test_the_handler_of_a_caller_is_kept_and_ours_goes_away(tmp_path):
    """A run that SIGTERM ends returns what it has; afterwards SIGTERM does what it did before."""
    (tmp_path / "model.py").write_text(
        STATED
        + """
import os, signal

own = []
for handler in (signal.SIG_DFL, lambda number, frame: own.append(number)):
    signal.signal(signal.SIGTERM, handler)
    callback = lambda info: os.kill(os.getpid(), signal.SIGTERM) if info.step == 10 else None
    sol = hx.solve(problem, x0, y0, hx.SALVF(), max_steps=30, record_every=10, callback=callback)
    print(sol.status.name, sol.status.step, len(own), signal.getsignal(signal.SIGTERM) == handler)
"""
    )
    done = subprocess.run([sys.executable, "model.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["interrupted 10 0 True", "max_steps 30 1 True"], done.stderr
