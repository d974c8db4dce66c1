"""Two processes on this machine solve the SVM with half of the data each; one is killed, and both are started again.

    python -m hierax_lab.soak.cluster_recovery [--steps 200]

Prints where the interrupted run ended and how far that is from the uninterrupted one (and from that of one process).
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from hierax_lab.repository import ROOT

EXAMPLE = ROOT / "gallery" / "integrations" / "cluster_svm.py"
LONGEST = 300  # seconds that a run may take
WORST = 1e-6  # difference that counts as none


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def started(count: int, *options: str) -> list[subprocess.Popen]:
    """The processes of a run of the example."""
    address = f"127.0.0.1:{free_port()}"
    commands = [[sys.executable, str(EXAMPLE), *options] for _ in range(count)]
    if count > 1:
        for i, command in enumerate(commands):
            command += ["--coordinator", address, "--num-processes", str(count), "--process-id", str(i)]
    pipe, merged = subprocess.PIPE, subprocess.STDOUT
    return [subprocess.Popen(command, stdout=pipe, stderr=merged, text=True) for command in commands]


def finished(processes: list[subprocess.Popen]) -> str:
    """What the first process says at the end of a run that ends well."""
    try:
        with ThreadPoolExecutor() as pool:  # at once: a process whose pipe is full waits, and the other one for it
            said = list(pool.map(lambda process: process.communicate(timeout=LONGEST)[0], processes))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, text in zip(processes, said, strict=True):
        if process.returncode:
            raise SystemExit(f"a process ended with {process.returncode}:\n{text}")
    return said[0]


def killed_in_the_middle(folder: Path, steps: int) -> None:
    """A run whose second process is killed once a checkpoint has some steps; a scheduler would then end the first."""
    processes = started(2, "--steps", str(steps), "--checkpoint", str(folder), "--every", "1")
    limit = time.monotonic() + LONGEST
    while not any('"progress": "step 0"' not in file.read_text() for file in folder.glob("checkpoint-????????/*.json")):
        if time.monotonic() > limit or any(process.poll() is not None for process in processes):
            finished(processes)
            raise SystemExit("the run ended before such a checkpoint; give more --steps.")
        time.sleep(0.05)
    processes[1].kill()
    begin = time.monotonic()
    try:
        processes[0].wait(timeout=30)
        print(f"process 1 killed; process 0 ended {time.monotonic() - begin:.1f} s later ({processes[0].returncode})")
    except subprocess.TimeoutExpired:
        print("process 1 killed; process 0 still waits for it after 30 s, and is ended")
    for process in processes:
        process.kill()
        process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for runs, count in (("one", 1), ("two", 2)):
            begin = time.monotonic()
            finished(started(count, "--steps", str(steps), "--out", str(folder / f"{runs}.npz")))
            print(f"{count} process{'es' * (count > 1)}: {time.monotonic() - begin:.1f} s")
        killed_in_the_middle(folder / "kept", steps)
        again = started(
            2, "--steps", str(steps), "--checkpoint", str(folder / "kept"), "--out", str(folder / "again.npz")
        )
        print(finished(again).strip())
        points = {run: dict(np.load(folder / f"{run}.npz")) for run in ("one", "two", "again")}

    def distance(one: str, other: str) -> float:
        return max(float(np.abs(points[one][part] - points[other][part]).max()) for part in points[one])

    print(
        f"one process and two: {distance('one', 'two'):.1e}; killed and uninterrupted: {distance('again', 'two'):.1e}"
    )
    if max(distance("one", "two"), distance("again", "two")) > WORST:
        raise SystemExit("they are not the same.")


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
