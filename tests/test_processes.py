"""Two real processes under jax.distributed, on this machine: they make the same run, and nobody waits for ever.

Both run tests/two_processes.py once; the tests look at what each of them has seen.
"""

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import two_processes

import hierax as hx

SCRIPT = Path(two_processes.__file__)
LONGEST = 240  # seconds, of which a busy machine needs many for the start


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def outputs(commands: list[list[str]], **options: object) -> list[str]:
    """What processes print that run at the same time, and all have to end well."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes, **options) for command in commands]
    try:
        with ThreadPoolExecutor() as pool:  # at once: a process whose pipe is full waits, and the other one for it
            said = list(pool.map(lambda process: process.communicate(timeout=LONGEST), processes))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, said, strict=True):
        assert process.returncode == 0, errors
    return [printed for printed, _ in said]


def in_two_processes(checks: str, folder: Path) -> list[dict[str, dict]]:
    """What each process has seen, by the name of the check."""
    address = f"127.0.0.1:{free_port()}"
    said = outputs([[sys.executable, str(SCRIPT), address, str(i), str(folder), checks] for i in range(2)])
    lines = [[json.loads(line) for line in printed.splitlines() if line.startswith("{")] for printed in said]
    return [{line["name"]: line for line in one} for one in lines]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict]]:
    return in_two_processes("agreement", tmp_path_factory.mktemp("two"))


def alone(zeta: object, xi: object, max_steps: int, method: object = two_processes.METHOD) -> hx.Solution:
    """The same run in this process."""
    stated = two_processes.problem(zeta, xi)
    return hx.solve(stated, two_processes.X0, two_processes.Y0, method, max_steps=max_steps, record_every=3)


def both(seen: list[dict[str, dict]], name: str, field: str) -> object:
    """What both processes have seen, which has to be the same."""
    first, second = (one[name][field] for one in seen)
    assert first == second
    return first


def test_half_of_the_data_each_is_the_run_of_one_process(seen):
    whole = [hx.Finite(two_processes.data(seed)) for seed in (0, 1)]
    expected = alone(*whole, max_steps=50)
    np.testing.assert_allclose(both(seen, "halves", "x"), expected.x, rtol=0, atol=1e-6)
    np.testing.assert_allclose(both(seen, "halves", "y"), expected.y, rtol=0, atol=1e-6)
    np.testing.assert_allclose(both(seen, "halves", "upper"), expected.history["upper"], rtol=1e-6)
    assert np.abs(np.asarray(expected.x) - two_processes.X0).max() > 0.1  # it went somewhere
    # F on all of the data is not known to one process: the value is that of the last record.
    assert both(seen, "halves", "value") == both(seen, "halves", "upper")[-1]
    shorter = alone(*whole, max_steps=6)
    np.testing.assert_allclose(both(seen, "whole data everywhere", "x"), shorter.x, rtol=0, atol=1e-6)
    # Written by one process after three steps, taken over by both.
    np.testing.assert_allclose(both(seen, "checkpoint", "x"), shorter.x, rtol=0, atol=1e-6)
    np.testing.assert_allclose(both(seen, "checkpoint", "upper"), shorter.history["upper"], rtol=1e-6)
    assert both(seen, "checkpoint", "log") == ["step 3"]


def test_every_process_gives_its_part_of_a_stream_s_batch(seen):
    expected = alone(*two_processes.streams(slice(None)), max_steps=6, method=two_processes.UNSIZED)
    np.testing.assert_allclose(both(seen, "streams", "x"), expected.x, rtol=0, atol=1e-6)


def test_one_process_decides(seen):
    assert [one["callback"]["asked"] for one in seen] == [[3], []]
    assert both(seen, "callback", "status") == "stopped"
    assert both(seen, "callback", "step") == 3
    assert both(seen, "clock", "status") == "max_steps"  # although the time of process 1 was up at once


def test_a_signal_to_one_process_ends_both(seen):
    assert both(seen, "SIGTERM in process 1", "status") == "interrupted"
    both(seen, "SIGTERM in process 1", "step")
    both(seen, "SIGTERM in process 1", "x")


def test_what_one_process_cannot_do_no_process_waits_for(seen):
    assert "x0: is another one in process 1" in both(seen, "another x0", "text")
    assert "method: is another one in process 1" in both(seen, "another method", "text")
    first, second = (one["bad in process 1"]["text"] for one in seen)
    assert "process 1 could not go on" in first
    assert "x0: holds NaN" in second
    assert "[10, 11] rows" in both(seen, "unequal parts", "text")
    assert both(seen, "a stream that ends", "status") == "data_error"
    assert both(seen, "a stream that ends", "step") == 4
    first, second = (one["a stream that ends"]["message"] for one in seen)
    assert "process 1" in first
    assert "has no further batch" in second


def test_a_part_of_the_data_is_not_taken_for_all_of_it(seen):
    assert "this process's rows only" in both(seen, "no mesh", "text")
    assert "this process's rows only" in both(seen, "certificate", "text")
    assert "mesh: belongs to methods that make steps" in both(seen, "auto", "text")


# Four devices of one process have the same layouts in test_devices.py.
@pytest.mark.slow
def test_other_layouts_over_two_processes(tmp_path):
    seen = in_two_processes("layouts", tmp_path)
    whole = [hx.Finite(two_processes.data(seed)) for seed in (0, 1)]
    expected = alone(*whole, max_steps=6)
    np.testing.assert_allclose(both(seen, "y over the processes", "x"), expected.x, rtol=0, atol=1e-10)
    np.testing.assert_allclose(both(seen, "y over the processes", "y"), expected.y, rtol=0, atol=1e-10)
    assert "model" in both(seen, "y over the processes", "spread")
    assert [one["y over the processes"]["seen"] for one in seen] == [[[4]], []]
    starts = both(seen, "starts over the processes", "x")
    np.testing.assert_allclose(starts[3], both(seen, "starts over the processes", "last"))
    stated = two_processes.problem(*whole)
    xs = two_processes.X0 + np.linspace(0.0, 1.0, 4)[:, None]
    sols = hx.solve_many(stated, xs, np.tile(two_processes.Y0, (4, 1)), two_processes.METHOD, max_steps=6)
    np.testing.assert_allclose(starts, sols.x, rtol=0, atol=1e-10)
    assert both(seen, "Conic", "far") < 1e-10


STATED = """
import jax
import numpy as np
import hierax as hx
from two_processes import X0, Y0, data, problem


def stated():
    parts = [tuple(np.array_split(a, jax.process_count())[jax.process_index()] for a in data(seed)) for seed in (0, 1)]
    return problem(*(hx.Finite(part, local=True) for part in parts)), X0, Y0
"""


# `solve` in two processes is tested above; the command writes in one of them, and takes the options over from there.
@pytest.mark.slow
def test_the_command_line_in_two_processes(tmp_path):
    (tmp_path / "model.py").write_text(STATED)
    path = os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")])
    said = []
    for options in (["--method", "salvf", "--max-steps", "5"], ["--max-steps", "8", "--resume"]):
        shared = ["--out", "out", "--distributed", "--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", "2"]
        command = [sys.executable, "-m", "hierax", "solve", "model.py:stated", *options, *shared]
        commands = [[*command, "--process-id", str(i)] for i in range(2)]
        said = outputs(commands, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path})
    assert "Resumed from the checkpoint" in said[0]
    assert "Solution" not in said[1]  # one process speaks
    saved = json.loads((tmp_path / "out" / "run.json").read_text())
    assert saved["status"]["step"] == 8


# The same with the SVM, twice the steps and a process that is killed with SIGKILL instead of a second call:
# test_half_of_the_data_each_is_the_run_of_one_process takes over a checkpoint in the same way.
@pytest.mark.slow
def test_the_svm_of_two_processes_survives_a_kill():
    command = [sys.executable, "-m", "hierax_lab.soak.cluster_recovery", "--steps", "60"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Resumed from the checkpoint" in done.stdout
