"""kill -9 at random moments, every second one while a checkpoint is written; each run resumed to its end and compared.

A run counts as lost where it ends elsewhere than the uninterrupted one (x, y, multipliers, history, counts without
seconds), cannot be resumed, or begins anew although there was a checkpoint. How much work a kill costs is the age of
the newest checkpoint when it hits: of a run of steps at most `--checkpoint-every`, and what a busy machine takes away
from a process; of a search (`Auto`) what its piece under way has taken, which is reported and not judged.
"""

import argparse
import csv
import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

MODELS = Path(__file__).with_name("models.py")
ENDED = (0, 3)  # exit codes of a command that came to its end: certified, and not
CHECKPOINT_SECONDS = 1.0  # between two checkpoints: the work that a kill may cost
SLACK_SECONDS = 0.5  # more on a busy machine: a process waits for its core, and for the disk
NO_TIME_LIMIT = ["--seconds", "3600"]  # so that on a busy machine no search is cut short by its clock
RUNS = {  # what is solved, and the options of the command
    "noisy": ["--method", "salvf", "--max-steps", "1000000"],
    "wide": ["--method", "salvf", "--max-steps", "400"],
    "streamed": ["--method", "salvf", "--max-steps", "60000"],
    "several_minima": NO_TIME_LIMIT,
    "averaged": NO_TIME_LIMIT,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this part."""
    parser.add_argument("--kills", type=int, default=200, help="how many processes are killed")


def run(options: argparse.Namespace) -> bool:
    """Whether no run was lost, and no kill cost more work than it may."""
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="hierax-soak-") as folder:
        runs = [Killed(name, Path(folder), chance) for name in RUNS]
        for one in runs:
            one.measure()
        number = 0
        while sum(one.kills for one in runs) < options.kills:
            one = runs[number % len(runs)]
            number += 1
            one.one_kill(aimed=bool(one.kills % 2))
        for one in runs:
            one.finish()
        for one in runs:
            print(one.report(), flush=True)
        lost = sum(one.lost for one in runs)
        costs = [cost for one in runs for cost in one.costs if one.makes_steps]
        inside = sum(one.inside_writes for one in runs)
        kills, ends = sum(one.kills for one in runs), sum(one.ends for one in runs)
        print(
            f"{kills} kills ({inside} inside a write), {ends} runs ended, {lost} lost; work lost per kill of a run of "
            f"steps: at most {max(costs, default=0.0):.2f} s, on average {np.mean(costs or [0.0]):.2f} s, with a "
            f"checkpoint every {CHECKPOINT_SECONDS} s"
        )
        return lost == 0 and max(costs, default=0.0) <= CHECKPOINT_SECONDS + SLACK_SECONDS


@dataclasses.dataclass
class Killed:
    """One command that is killed again and again, and begun anew whenever it has come to its end."""

    name: str
    folder: Path
    chance: random.Random
    kills: int = 0
    inside_writes: int = 0
    ends: int = 0
    lost: int = 0
    takes: float = 0.0
    reached: int = 0  # number of the newest checkpoint, which never falls while a run goes on
    costs: list[float] = dataclasses.field(default_factory=list)

    def measure(self) -> None:
        """The uninterrupted run."""
        begin = time.monotonic()
        process = self._start(self._whole)
        _, errors = process.communicate()
        if process.returncode not in ENDED:
            raise SystemExit(f"{self.name}: {errors}")
        self.takes = time.monotonic() - begin
        print(f"{self.name}: {self.takes:.1f} s without a kill", flush=True)

    @property
    def makes_steps(self) -> bool:
        """Whether it is a run of steps, and no search."""
        return "--method" in RUNS[self.name]

    @property
    def _whole(self) -> Path:
        return self.folder / f"{self.name}-whole"

    @property
    def _out(self) -> Path:
        return self.folder / f"{self.name}-{self.ends}"

    def _start(self, out: Path, resume: bool = False) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "hierax", "solve", f"{MODELS}:{self.name}", *RUNS[self.name]]
        command += ["--out", str(out), "--checkpoint-every", str(CHECKPOINT_SECONDS), *(["--resume"] if resume else [])]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def one_kill(self, aimed: bool) -> None:
        """Start or resume, and kill: at a random moment, or while a checkpoint is being written."""
        process = self._start(self._out, resume=True)
        until = time.monotonic() + self.chance.uniform(0.0, self.takes)
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        inside = False
        while aimed and process.poll() is None and not inside:
            inside = self._writing()
            time.sleep(0.0002)
        if process.poll() is None:
            age = self._age()
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            self.kills += 1
            self.inside_writes += inside
            if age is not None:
                self.costs.append(age)
            self._look()
        else:
            self._compare(process)

    def finish(self) -> None:
        """Resume without a further kill, and compare."""
        if self._out.exists():
            self._compare(self._start(self._out, resume=True))

    def _checkpoints(self) -> dict[int, Path]:
        found = (self._out / "checkpoint").glob("checkpoint-*")
        return {int(match[1]): path for path in found if (match := re.fullmatch(r"checkpoint-(\d+)", path.name))}

    def _writing(self) -> bool:
        try:
            return any(name.endswith(".unfinished") for name in os.listdir(self._out / "checkpoint"))
        except OSError:
            return False

    def _age(self) -> float | None:
        """Seconds since the newest checkpoint of this process, None: it has none yet, or holds the end of the run."""
        numbers = self._checkpoints()
        if not numbers or max(numbers) == self.reached:
            return None
        newest = numbers[max(numbers)]
        try:
            age = time.time() - newest.stat().st_mtime
            with np.load(newest) as stored:
                told = json.loads(stored["arr_0"].tobytes())["progress"]
        except OSError:  # just removed: there is a newer one
            return None
        return None if told.startswith("done") or told == f"step {RUNS[self.name][-1]}" else age

    def _look(self) -> None:
        """After a kill: the checkpoints that there were are still there."""
        newest = max(self._checkpoints(), default=0)
        self.lost += newest < self.reached
        self.reached = newest

    def _compare(self, process: subprocess.Popen[str]) -> None:
        """The end of a run, with that of the uninterrupted one."""
        output, errors = process.communicate()
        resumed = "Resumed from the checkpoint" in output
        wrong = process.returncode not in ENDED
        problems = [f"exit code {process.returncode}: {errors.strip()}"] if wrong else []
        if not problems:
            problems = differences(self._whole, self._out)
        if self.reached and not resumed:
            problems.append("began anew although there was a checkpoint")
        for text in problems:
            print(f"{self.name}, run {self.ends}: {text}", flush=True)
        self.lost += bool(problems)
        self.ends += 1
        self.reached = 0

    def report(self) -> str:
        """What happened, in a line."""
        return (
            f"{self.name}: {self.kills} kills ({self.inside_writes} inside a write), {self.ends} runs ended, "
            f"{self.lost} lost; work lost at most {max(self.costs, default=0.0):.2f} s"
        )


def differences(whole: Path, other: Path) -> list[str]:
    """In what the folders of two runs differ, seconds apart."""
    found = []
    with np.load(whole / "arrays.npz") as one, np.load(other / "arrays.npz") as two:
        if one.files != two.files:
            found.append("other arrays")
        else:
            found += [f"{name} differs" for name in one.files if one[name].tobytes() != two[name].tobytes()]
    tables = [_table(folder / "history.csv") for folder in (whole, other)]
    found += [f"history: {name} differs" for name in tables[0] if tables[0][name] != tables[1].get(name)]
    runs = [json.loads((folder / "run.json").read_text()) for folder in (whole, other)]
    for name, value in runs[0]["counts"].items():
        if "seconds" not in name and value != runs[1]["counts"][name]:
            found.append(f"counts: {name} is {runs[1]['counts'][name]}, not {value}")
    if runs[0]["status"] != runs[1]["status"]:
        found.append(f"status: {runs[1]['status']}, not {runs[0]['status']}")
    return found


def _table(path: Path) -> dict[str, list[str]]:
    with open(path, newline="") as file:
        header, *rows = csv.reader(file)
    columns = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    columns.pop("seconds", None)
    return columns
