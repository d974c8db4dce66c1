"""Ctrl-C at random moments: there is an answer, or a clean KeyboardInterrupt where no point had been judged yet."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hierax.cli.group import CERTIFIED, NOT_CERTIFIED

HELPER = Path(__file__).with_name("interrupted_runs.py")
SECONDS = 3.0  # of a run that nothing interrupts
PROMPT = 5.0  # seconds from Ctrl-C to the answer, on a loaded machine, where nothing has to be compiled
ENDED = (CERTIFIED, NOT_CERTIFIED)  # exit codes of a command that came to its end
EARLY = 0.1  # seconds within which a warm Auto may have judged no point

MODEL = """
import jax.numpy as jnp
import hierax as hx

problem = hx.Problem(
    upper=lambda x, y, _: ((y - 1.0) ** 2).sum() + 0.1 * (x**2).sum() + 0.05 * jnp.cos(5.0 * x).sum(),
    lower=lambda x, y, _: ((y - 2.0 * x) ** 2).sum(),
    constraints=lambda x, y: y - x,
    x_set=hx.Box(-3.0, 3.0),
)
x0 = y0 = jnp.full(3, 0.5)
"""


def runs(*arguments: str) -> list[dict]:
    """The runs of the helper, in one process."""
    done = subprocess.run(
        [sys.executable, str(HELPER), *arguments], capture_output=True, text=True, timeout=1800, check=False
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and len(found) == len(arguments), done.stderr[-3000:]
    return found


def faults(found: dict, warm: bool = True) -> list[str]:
    """What is wrong with how an interrupted run ended."""
    wrong = []
    if found["ended"] == "KeyboardInterrupt":
        auto = found["method"] in ("auto", "penalty")
        if found["seen"] or (auto and warm and found["moment"] > EARLY):
            wrong.append(f"KeyboardInterrupt although points had been judged ({found['seen']} records)")
    else:
        if not found["finite"]:
            wrong.append("the point is not finite")
        if found["ended"] == "interrupted" and not found["sent"]:
            wrong.append("interrupted by nobody")
    if warm and found["sent"] and found["took"] - found["moment"] > PROMPT:
        wrong.append(f"{found['took'] - found['moment']:.1f} s late")
    if not found["handler_kept"]:
        wrong.append("the handler of SIGINT is another one afterwards")
    return [f"{found['method']} at {found['moment']:.3f} s ({found['ended']}): {text}" for text in wrong]


def moments(count: int, names: list[str], seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [f"{names[i % len(names)]}:x{rng.uniform(0.01, 0.95):.3f}:{SECONDS}" for i in range(count)]


def check(names: list[str], count: int, seed: int) -> None:
    """Interrupt each method at random moments, the first time while it compiles; then nothing may be left of it."""
    cold = [f"{name}:{0.7 + i * 0.9:.1f}:{SECONDS}" for i, name in enumerate(names)]
    whole = [f"{name}:whole:{SECONDS}" for name in names]
    found = runs(*cold, *whole, *whole, *moments(count, names, seed), *whole)
    wrong = [text for one in found[: len(cold)] for text in faults(one, warm=False)]
    after = len(cold) + 2 * len(whole)
    wrong += [text for one in found[after : after + count] for text in faults(one)]
    for first, last in zip(found[after - len(whole) : after], found[after + count :], strict=True):
        if last["ended"] in ("KeyboardInterrupt", "interrupted"):
            wrong.append(f"{last['method']}: a later run ends as {last['ended']}")
        if last["method"] == "auto" and last["value"] != pytest.approx(first["value"], rel=1e-6):
            wrong.append(f"{last['method']}: a later run finds {last['value']}, before it was {first['value']}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_four_moments():
    check(["auto", "salvf"], 4, 0)


@pytest.mark.slow
def test_fifty_moments():
    check(["auto", "penalty", "salvf", "blocc", "gam", "lvhba"], 50, 1)


# -- the command line -------------------------------------------------------------------------------------------------


def command(folder: Path, method: str, moment: float | None) -> tuple[subprocess.CompletedProcess, float]:
    """`hierax solve` with SIGINT after `moment` seconds; and how long it took."""
    (folder / "model.py").write_text(MODEL)
    call = [sys.executable, "-m", "hierax", "solve", "model.py:problem", "--method", method, "--seconds", str(SECONDS)]
    if method != "auto":
        call += ["--max-steps", "1000000"]
    begin = time.perf_counter()
    with subprocess.Popen(
        [*call, "--out", "run"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"XDG_CACHE_HOME": str(folder.parent / "cache")},
    ) as process:
        if moment is not None:
            try:
                process.wait(moment)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(call, process.returncode, out, err), time.perf_counter() - begin


def command_faults(folder: Path, method: str, moment: float, late: bool) -> list[str]:
    """What is wrong with how an interrupted command ended: an answer in its folder, or none and a failure.

    At a `late` moment there must be an answer.
    """
    folder.mkdir()
    done, took = command(folder, method, moment)
    wrong = []
    if (folder / "run" / "run.json").is_file():
        wrong += _folder_faults(folder / "run", done.stdout if done.returncode in ENDED else None)
    elif done.returncode in ENDED:
        wrong.append("says it went well, but run.json is missing")
    elif late:
        wrong.append("no answer although steps had been made")
    if took > moment + 4 * PROMPT:
        wrong.append(f"{took - moment:.1f} s late")
    return [f"{method} at {moment:.2f} s, exit code {done.returncode}: {text}\n{done.stderr[-500:]}" for text in wrong]


def _folder_faults(run: Path, out: str | None) -> list[str]:
    """What is wrong with a run's folder; `out` is what a command that went well printed."""
    if not (run / "arrays.npz").is_file():
        return ["run.json without arrays.npz"]
    wrong = []
    name = json.loads((run / "run.json").read_text())["status"]["name"]
    if out is not None and f"Solution: {name}" not in out:
        wrong.append(f"run.json says {name}, the output does not")
    with np.load(run / "arrays.npz") as arrays:
        if not np.isfinite(arrays["x"]).all():
            wrong.append("x is not finite")
    return wrong


def check_commands(tmp_path: Path, plan: list[tuple[str, float]]) -> None:
    """Interrupt commands at parts of the time that a whole one takes (which a method of steps uses up to the end)."""
    (tmp_path / "whole").mkdir()
    whole = {}
    for method in sorted({method for method, _ in plan}):
        done, _ = command(tmp_path / "whole", method, None)  # fills the folder of compiled programs
        assert done.returncode in ENDED, done.stderr
        whole[method] = command(tmp_path / "whole", method, None)[1]
    wrong = []
    for i, (method, part) in enumerate(plan):
        late = method != "auto" and (1 - part) * whole[method] < 0.6 * SECONDS
        wrong += command_faults(tmp_path / f"run{i}", method, part * whole[method], late)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_two_commands(tmp_path):
    check_commands(tmp_path, [("auto", 0.8), ("salvf", 0.7)])


@pytest.mark.slow
def test_many_commands(tmp_path):
    parts = np.random.default_rng(2).uniform(0.05, 1.0, 20)
    check_commands(tmp_path, [(("auto", "salvf", "gam")[i % 3], part) for i, part in enumerate(parts)])
